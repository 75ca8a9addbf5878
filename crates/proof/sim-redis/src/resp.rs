// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol: requests are parsed as Redis does it, piece by piece, and replies are written.
//!
//! Invariants:
//! 1. `taken <= query.len()`; what is taken is dropped only when no whole command is left.
//! 2. A protocol error is answered once; nothing of that client is parsed afterwards.

use crate::client::{Argv, Client};
use crate::types::Bytes;

/// `PROTO_INLINE_MAX_SIZE`: a line without end that is longer is an error.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// `proto-max-bulk-len`.
const BULK_BYTES_MAX: i64 = 512 * 1024 * 1024;
/// `PROTO_MBULK_BIG_ARG`: for such an argument the buffer is cut to begin with it.
const BIG_ARG_BYTES: usize = 32 * 1024;
/// Redis reads this much at once.
const READ_BYTES: usize = 16 * 1024;
/// What a client that has not authenticated may send.
const UNAUTH_ARGS_MAX: i64 = 10;
/// What a client that has not authenticated may send in one argument.
const UNAUTH_BULK_MAX: i64 = 16_384;

/// What the buffer held.
pub(crate) enum Parsed {
    /// A whole command.
    Command(Argv),
    /// No whole command.
    Nothing,
    /// A protocol error, answered; the connection closes.
    Broken,
}

enum Step {
    Done,
    More,
    Broken(String),
}

/// Parses a number as `string2ll`: no sign `+`, no leading zero, no blanks.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        _ => (text, false),
    };
    if text == b"0" {
        return Some(0);
    }
    if digits.is_empty() || digits.len() > 19 || !(b'1'..=b'9').contains(&digits[0]) {
        return None;
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut value: i128 = 0;
    for digit in digits {
        value = value * 10 + i128::from(digit - b'0');
    }
    i64::try_from(if negative { -value } else { value }).ok()
}

/// `strchr`: looks for a byte, but not beyond a zero byte.
fn find_before_zero(bytes: &[u8], wanted: u8) -> Option<usize> {
    let at = bytes
        .iter()
        .position(|byte| *byte == wanted || *byte == 0)?;
    (bytes[at] == wanted).then_some(at)
}

impl Client {
    /// How many bytes Redis would read from the socket now.
    pub(crate) fn read_max(&self) -> usize {
        let big = self.bulk_length.filter(|length| *length >= BIG_ARG_BYTES);
        match big {
            Some(length) if self.args_left > 0 => {
                let have = self.query.len() - self.taken;
                match (length + 2).saturating_sub(have) {
                    0 => READ_BYTES,
                    missing => missing,
                }
            }
            _ => READ_BYTES,
        }
    }

    /// Takes the next whole command, if there is one.
    pub(crate) fn parse(&mut self) -> Parsed {
        while self.taken < self.query.len() {
            let multibulk = self.args_left > 0 || self.query[self.taken] == b'*';
            let step = if multibulk {
                self.parse_multibulk()
            } else {
                self.parse_inline()
            };
            match step {
                Step::More => break,
                Step::Broken(text) => {
                    self.add_error(&format!("ERR Protocol error: {text}"));
                    self.close_after_reply = true;
                    self.argv.clear();
                    self.trim();
                    return Parsed::Broken;
                }
                Step::Done if self.argv.is_empty() => self.command_ends(),
                Step::Done => return Parsed::Command(std::mem::take(&mut self.argv)),
            }
        }
        self.trim();
        Parsed::Nothing
    }

    /// Drops what was parsed.
    pub(crate) fn trim(&mut self) {
        self.query.drain(..self.taken);
        self.taken = 0;
    }

    /// After each command, an empty one included: CLIENT REPLY SKIP holds for one.
    pub(crate) fn command_ends(&mut self) {
        self.muted.skip = std::mem::take(&mut self.muted.skip_next);
    }

    fn parse_inline(&mut self) -> Step {
        let rest = &self.query[self.taken..];
        let Some(end) = find_before_zero(rest, b'\n') else {
            if rest.len() > LINE_BYTES_MAX {
                return Step::Broken("too big inline request".to_owned());
            }
            return Step::More;
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let Some(words) = split_words(line) else {
            return Step::Broken("unbalanced quotes in request".to_owned());
        };
        self.taken += end + 1;
        self.argv = words;
        Step::Done
    }

    /// The number in a line like `*3\r\n`: its value and the bytes of the line, None if incomplete.
    fn number_line(&self, what: &str) -> Result<Option<(Option<i64>, usize)>, String> {
        let rest = &self.query[self.taken..];
        let Some(end) = find_before_zero(rest, b'\r') else {
            if rest.len() > LINE_BYTES_MAX {
                return Err(format!("too big {what} count string"));
            }
            return Ok(None);
        };
        if end + 2 > rest.len() {
            return Ok(None);
        }
        let number = rest.get(1..end).and_then(parse_i64);
        Ok(Some((number, end + 2)))
    }

    fn parse_multibulk(&mut self) -> Step {
        if self.args_left == 0 {
            let (number, bytes) = match self.number_line("mbulk") {
                Ok(Some(found)) => found,
                Ok(None) => return Step::More,
                Err(text) => return Step::Broken(text),
            };
            let Some(count) = number.filter(|count| *count <= i64::from(i32::MAX)) else {
                return Step::Broken("invalid multibulk length".to_owned());
            };
            if count > UNAUTH_ARGS_MAX && !self.authenticated {
                return Step::Broken("unauthenticated multibulk length".to_owned());
            }
            self.taken += bytes;
            if count <= 0 {
                return Step::Done;
            }
            self.args_left = usize::try_from(count).unwrap_or(0);
        }
        while self.args_left > 0 {
            match self.parse_bulk() {
                Step::Done => self.args_left -= 1,
                other => return other,
            }
        }
        Step::Done
    }

    fn parse_bulk(&mut self) -> Step {
        let length = match self.bulk_length {
            Some(length) => length,
            None => match self.parse_bulk_length() {
                Ok(Some(length)) => length,
                Ok(None) => return Step::More,
                Err(text) => return Step::Broken(text),
            },
        };
        if self.query.len() - self.taken < length + 2 {
            return Step::More;
        }
        let bytes = &self.query[self.taken..self.taken + length];
        self.argv.push(Bytes::from(bytes));
        self.taken += length + 2;
        self.bulk_length = None;
        Step::Done
    }

    fn parse_bulk_length(&mut self) -> Result<Option<usize>, String> {
        let Some((number, bytes)) = self.number_line("bulk")? else {
            return Ok(None);
        };
        let first = self.query[self.taken];
        if first != b'$' {
            let shown = if first == b'\r' || first == b'\n' {
                ' '
            } else {
                char::from(first)
            };
            return Err(format!("expected '$', got '{shown}'"));
        }
        let Some(length) = number.filter(|length| (0..=BULK_BYTES_MAX).contains(length)) else {
            return Err("invalid bulk length".to_owned());
        };
        if length > UNAUTH_BULK_MAX && !self.authenticated {
            return Err("unauthenticated bulk length".to_owned());
        }
        self.taken += bytes;
        let length = usize::try_from(length).unwrap_or(0);
        if length >= BIG_ARG_BYTES && self.query.len() - self.taken <= length + 2 {
            self.trim();
        }
        self.bulk_length = Some(length);
        Ok(Some(length))
    }
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Splits a line as `sdssplitargs`: quotes and escapes; None if quotes do not match.
pub(crate) fn split_words(line: &[u8]) -> Option<Argv> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|byte| is_space(*byte)) {
            at += 1;
        }
        if at >= line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some(&byte) = line.get(at).filter(|byte| !is_space(**byte)) {
            at += 1;
            match byte {
                b'"' | b'\'' => {
                    at = quoted(line, at, byte, &mut word)?;
                    if line.get(at).is_some_and(|next| !is_space(*next)) {
                        return None;
                    }
                    break;
                }
                _ => word.push(byte),
            }
        }
        words.push(Bytes::from(word));
    }
}

/// The rest of a quoted word; returns where it ends.
fn quoted(line: &[u8], mut at: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        let byte = *line.get(at)?;
        at += 1;
        if byte == quote {
            return Some(at);
        }
        if byte != b'\\' {
            word.push(byte);
            continue;
        }
        let next = line.get(at).copied();
        if quote == b'\'' {
            if next == Some(b'\'') {
                word.push(b'\'');
                at += 1;
            } else {
                word.push(b'\\');
            }
            continue;
        }
        let digits = (
            line.get(at + 1).copied().and_then(hex),
            line.get(at + 2).copied().and_then(hex),
        );
        if let (Some(b'x'), (Some(high), Some(low))) = (next, digits) {
            word.push(high * 16 + low);
            at += 3;
            continue;
        }
        word.push(match next? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'a' => 7,
            other => other,
        });
        at += 1;
    }
}

/// Replies.
impl Client {
    /// Adds bytes to the output, unless the client does not want any.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let muted = (self.muted.off || self.muted.skip) && !self.pushing;
        if !muted && !self.close_after_reply && !self.close_now {
            self.out.extend_from_slice(bytes);
        }
    }

    pub(crate) fn add_status(&mut self, text: &str) {
        self.put(format!("+{text}\r\n").as_bytes());
    }

    pub(crate) fn add_ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// An error with its code; line ends in it become blanks.
    pub(crate) fn add_error(&mut self, text: &str) {
        self.add_error_bytes(text.as_bytes());
    }

    /// An error as servers say it that leave line ends in it.
    pub(crate) fn add_error_lines(&mut self, text: &[u8]) {
        self.errors += 1;
        self.put(&[b"-", text, b"\r\n"].concat());
    }

    pub(crate) fn add_error_bytes(&mut self, text: &[u8]) {
        self.errors += 1;
        let end = text.len()
            - text
                .iter()
                .rev()
                .take_while(|b| matches!(b, b'\r' | b'\n'))
                .count();
        let mut line = Vec::with_capacity(text.len() + 3);
        line.push(b'-');
        line.extend(text[..end].iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        }));
        line.extend_from_slice(b"\r\n");
        self.put(&line);
    }

    pub(crate) fn add_int(&mut self, value: i64) {
        self.put(format!(":{value}\r\n").as_bytes());
    }

    pub(crate) fn add_count(&mut self, value: usize) {
        self.put(format!(":{value}\r\n").as_bytes());
    }

    pub(crate) fn add_bulk(&mut self, bytes: &[u8]) {
        self.put(&erb_wire::resp::bulk(bytes));
    }

    /// A bulk, or RESP3's verbatim text.
    pub(crate) fn add_verbatim(&mut self, text: &str) {
        if self.resp == 2 {
            return self.add_bulk(text.as_bytes());
        }
        self.put(format!("={}\r\ntxt:{text}\r\n", text.len() + 4).as_bytes());
    }

    pub(crate) fn add_null(&mut self) {
        self.put(if self.resp == 2 { b"$-1\r\n" } else { b"_\r\n" });
    }

    pub(crate) fn add_null_array(&mut self) {
        self.put(if self.resp == 2 { b"*-1\r\n" } else { b"_\r\n" });
    }

    pub(crate) fn add_array(&mut self, length: usize) {
        self.put(format!("*{length}\r\n").as_bytes());
    }

    pub(crate) fn add_set(&mut self, length: usize) {
        let mark = if self.resp == 2 { '*' } else { '~' };
        self.put(format!("{mark}{length}\r\n").as_bytes());
    }

    pub(crate) fn add_map(&mut self, pairs: usize) {
        if self.resp == 2 {
            self.put(format!("*{}\r\n", pairs * 2).as_bytes());
        } else {
            self.put(format!("%{pairs}\r\n").as_bytes());
        }
    }

    pub(crate) fn add_push(&mut self, length: usize) {
        let mark = if self.resp == 2 { '*' } else { '>' };
        self.put(format!("{mark}{length}\r\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_canonical() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("00", None),
            ("-0", None),
            ("+1", None),
            (" 1", None),
            ("", None),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn words_and_quotes() {
        let words = split_words(br#"set  "a\x41\n" 'b\'c' d"#).unwrap();
        let expected: [&[u8]; 4] = [b"set", b"aA\n", b"b'c", b"d"];
        assert!(words.iter().map(|word| &word[..]).eq(expected));
        assert!(split_words(br#"set "a"#).is_none());
        assert!(split_words(br#"set "a"b"#).is_none());
    }
}
