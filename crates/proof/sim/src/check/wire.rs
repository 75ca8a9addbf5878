// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Byte streams cut into requests and replies, as Redis and its clients would.
//!
//! A second parser, on purpose: it judges what the data path, the model of Redis and the simulated
//! clients make of the same bytes, so it shares no code with them.

use std::sync::Arc;

use erb_sim_redis::Bytes;

/// A command: name and arguments.
pub type Argv = Arc<[Bytes]>;

/// Longest argument count and argument that a request may announce (Redis's own bounds).
const ARGS_MAX: usize = 1 << 20;
const ARGUMENT_MAX: usize = 512 << 20;

/// What a client has sent, cut into commands.
#[derive(Debug, Default)]
pub struct Requests {
    buffer: Vec<u8>,
    /// What follows is no request: Redis answers an error and closes.
    pub broken: bool,
}

/// What a stream begins with.
pub(super) enum Parsed {
    /// A command and its length.
    Request(Vec<Bytes>, usize),
    /// Bytes that are no request and get no reply: an empty line, `*0`.
    Nothing(usize),
    More,
    Broken,
}

impl Requests {
    /// Takes bytes; calls `found` for each whole command.
    pub fn push(&mut self, bytes: &[u8], mut found: impl FnMut(Argv)) {
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        while !self.broken && at < self.buffer.len() {
            match parse(&self.buffer[at..]) {
                Parsed::Request(argv, used) => {
                    at += used;
                    found(argv.into());
                }
                Parsed::Nothing(used) => at += used,
                Parsed::More => break,
                Parsed::Broken => self.broken = true,
            }
        }
        self.buffer.drain(..at);
    }
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some(&bytes[..end])
}

fn number(line: &[u8]) -> Option<i64> {
    let text = line.strip_suffix(b"\r")?;
    std::str::from_utf8(text.get(1..)?).ok()?.parse().ok()
}

/// What `bytes` begin with.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let Some(first) = line(bytes) else {
        return Parsed::More;
    };
    let mut at = first.len() + 1;
    if first.first() != Some(&b'*') {
        return inline(first, at);
    }
    let count = match number(first).map(usize::try_from) {
        None => return Parsed::Broken,
        Some(Err(_) | Ok(0)) => return Parsed::Nothing(at),
        Some(Ok(count)) if count > ARGS_MAX => return Parsed::Broken,
        Some(Ok(count)) => count,
    };
    let mut argv = Vec::new();
    for _ in 0..count {
        let Some(head) = line(&bytes[at..]) else {
            return Parsed::More;
        };
        let length = number(head).and_then(|n| usize::try_from(n).ok());
        let Some(length) = length.filter(|n| *n <= ARGUMENT_MAX && head[0] == b'$') else {
            return Parsed::Broken;
        };
        at += head.len() + 1;
        let Some(body) = bytes.get(at..at + length + 2) else {
            return Parsed::More;
        };
        argv.push(Arc::from(&body[..length]));
        at += length + 2;
    }
    Parsed::Request(argv, at)
}

/// An inline command, with quotes and escapes as Redis reads them (sdssplitargs).
fn inline(line: &[u8], used: usize) -> Parsed {
    let mut rest = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words: Vec<Bytes> = Vec::new();
    loop {
        let spaces = rest.iter().take_while(|byte| byte.is_ascii_whitespace());
        rest = &rest[spaces.count()..];
        if rest.is_empty() {
            break;
        }
        match word(rest) {
            Some((text, length)) => {
                words.push(text.into());
                rest = &rest[length..];
            }
            None => return Parsed::Broken,
        }
    }
    if words.is_empty() {
        Parsed::Nothing(used)
    } else {
        Parsed::Request(words, used)
    }
}

/// The next word and the bytes it takes; `None` if its quotes do not close as they must.
fn word(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut text = Vec::new();
    let mut at = 0;
    let mut quote = None;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match (quote, byte) {
            (_, 0) => return None,
            (Some(open), _) if byte == open => {
                let next = bytes.get(at);
                return match next {
                    Some(next) if !next.is_ascii_whitespace() => None,
                    _ => Some((text, at)),
                };
            }
            (Some(b'"'), b'\\') => at += escape(&bytes[at..], &mut text)?,
            (Some(b'\''), b'\\') if bytes.get(at) == Some(&b'\'') => {
                text.push(b'\'');
                at += 1;
            }
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, _) if byte.is_ascii_whitespace() => return Some((text, at - 1)),
            _ => text.push(byte),
        }
    }
    quote.is_none().then_some((text, at))
}

/// What stands behind a backslash; returns the bytes it takes.
fn escape(bytes: &[u8], text: &mut Vec<u8>) -> Option<usize> {
    if let [b'x', high, low, ..] = bytes
        && let (Some(high), Some(low)) = ((*high as char).to_digit(16), (*low as char).to_digit(16))
    {
        text.push((high * 16 + low) as u8);
        return Some(3);
    }
    text.push(match bytes.first()? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => *other,
    });
    Some(1)
}

/// What a client has read, cut into frames.
#[derive(Debug, Default)]
pub(super) struct Replies {
    buffer: Vec<u8>,
}

impl Replies {
    /// Takes bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        match erb_check::resp::frame_len(&self.buffer) {
            Ok(Some(length)) => Ok(Some(self.buffer.drain(..length).collect())),
            Ok(None) => Ok(None),
            Err(error) => Err(format!("{error}; the bytes are {}", show(&self.buffer))),
        }
    }
}

/// The value of a bulk string or nil; `None` for anything else.
#[must_use]
pub fn bulk(frame: &[u8]) -> Option<Option<&[u8]>> {
    if frame == b"$-1\r\n" || frame == b"_\r\n" {
        return Some(None);
    }
    let line = frame.windows(2).position(|pair| pair == b"\r\n")?;
    let text = std::str::from_utf8(frame.get(1..line)?).ok()?;
    let length: usize = text.parse().ok()?;
    let canonical = text.len() == length.to_string().len();
    let whole = frame[0] == b'$' && canonical && frame.len() == line + 2 + length + 2;
    let value = frame.get(line + 2..line + 2 + length)?;
    (whole && frame.ends_with(b"\r\n")).then_some(Some(value))
}

/// The values of an array of bulk strings and of nil, spelt like this; `None` for anything else.
#[must_use]
pub fn nil_or_bulks<'a>(frame: &'a [u8], nil: &[u8]) -> Option<Vec<Option<&'a [u8]>>> {
    let end = |from: usize| Some(from + line(&frame[from..])?.len() + 1);
    let mut at = end(0)?;
    let count = usize::try_from(number(&frame[..at - 1]).filter(|_| frame[0] == b'*')?).ok()?;
    let head = format!("*{count}\r\n");
    let mut values = Vec::new();
    while values.len() < count {
        if frame.get(at..)?.starts_with(nil) {
            values.push(None);
            at += nil.len();
            continue;
        }
        let length = number(&frame[at..end(at)? - 1])?;
        let whole = end(at)?.checked_add(usize::try_from(length).ok()? + 2)?;
        values.push(Some(bulk(frame.get(at..whole)?)??));
        at = whole;
    }
    (at == frame.len() && frame.starts_with(head.as_bytes())).then_some(values)
}

/// The number of an integer reply in Redis's spelling.
#[must_use]
pub fn integer(frame: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(frame.strip_prefix(b":")?.strip_suffix(b"\r\n")?).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Whether the command has this name.
pub(super) fn is(argv: &[Bytes], name: &str) -> bool {
    argv.first()
        .is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether a command that may have succeeded changes what users may do (Redis `src/acl.c`;
/// `requirepass` is the default user's password).
pub fn changes_rights(argv: &[Bytes]) -> bool {
    let is_one_of = |word: Option<&Bytes>, names: &[&str]| {
        word.is_some_and(|word| {
            names
                .iter()
                .any(|n| word.eq_ignore_ascii_case(n.as_bytes()))
        })
    };
    if is(argv, "config") {
        let mut set = argv.iter().skip(2).step_by(2);
        return is_one_of(argv.get(1), &["set"])
            && set.any(|name| is_one_of(Some(name), &["requirepass"]));
    }
    is(argv, "acl") && is_one_of(argv.get(1), &["setuser", "deluser", "load"])
}

/// Bytes for people, cut.
pub(super) fn show(bytes: &[u8]) -> String {
    const MAX: usize = 80;
    let text = bytes[..bytes.len().min(MAX)].escape_ascii();
    if bytes.len() > MAX {
        format!("\"{text}...\" ({} bytes)", bytes.len())
    } else {
        format!("\"{text}\"")
    }
}

/// A command for people.
#[must_use]
pub fn show_argv(argv: &[Bytes]) -> String {
    let words: Vec<String> = argv
        .iter()
        .map(|word| word[..word.len().min(24)].escape_ascii().to_string())
        .collect();
    words.join(" ")
}
