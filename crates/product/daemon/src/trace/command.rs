// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the first bytes of a payload say to people: the first command and its key.
//!
//! Only what is known to be a name or a key is told. Other arguments may be anything, a password
//! among them, and a payload that begins in the middle of a value is no command at all.

use erb_abi::{CMD_CONTAINER, CMD_MARK, COMMANDS, Command, FAST_COMMANDS, FAST_KIND_PING};

/// Longest name that is told; longer ones are no commands.
const NAME_MAX: usize = erb_abi::NAME_BYTES_MAX as usize;

/// The first command of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct First {
    /// Its name, with the sub-command if it has one, in capitals.
    pub(super) name: String,
    /// Its first key, if the command is known to have one there.
    pub(super) key: Option<Vec<u8>>,
}

/// Reads the first command; none if the payload begins with none.
pub(super) fn first(payload: &[u8]) -> Option<First> {
    let mut words = Words::of(payload)?;
    let name = name(words.next()?)?;
    let known = COMMANDS.iter().find(|command| command.name == name);
    if known.is_none() && words.inline {
        return None;
    }
    let mut shown = name.to_uppercase();
    if known.is_some_and(|command| command.class == CMD_CONTAINER) {
        if let Some(sub) = words.next().and_then(self::name) {
            shown = format!("{shown} {}", sub.to_uppercase());
        }
        return Some(First {
            name: shown,
            key: None,
        });
    }
    let place = known.map_or(0, key_place);
    let key = place
        .checked_sub(1)
        .and_then(|skipped| words.nth(skipped))
        .map(<[u8]>::to_vec);
    Some(First { name: shown, key })
}

/// Number of the argument that is the first key; 0 if it is not known to have one.
fn key_place(command: &Command) -> usize {
    let fast = FAST_COMMANDS.iter().find(|fast| fast.name == command.name);
    match fast {
        Some(fast) if fast.kind != FAST_KIND_PING => 1,
        None if command.class == CMD_MARK => usize::from(command.keys.first),
        _ => 0,
    }
}

/// The word in small letters, if it can be a name.
fn name(word: &[u8]) -> Option<String> {
    let letters = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte);
    let fits = !word.is_empty() && word.len() <= NAME_MAX && word.iter().all(letters);
    fits.then(|| String::from_utf8_lossy(word).to_lowercase())
}

/// The words of a command as far as the bytes hold them whole.
struct Words<'a> {
    rest: &'a [u8],
    inline: bool,
}

impl<'a> Words<'a> {
    fn of(payload: &'a [u8]) -> Option<Self> {
        if payload.first() == Some(&b'*') {
            let (_, rest) = line(&payload[1..])?;
            return Some(Self {
                rest,
                inline: false,
            });
        }
        let end = payload.iter().position(|byte| *byte == b'\n')?;
        let rest = payload[..end].trim_ascii();
        Some(Self { rest, inline: true })
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.inline {
            let rest = self.rest.trim_ascii_start();
            let end = rest.iter().position(u8::is_ascii_whitespace);
            let (word, rest) = rest.split_at(end.unwrap_or(rest.len()));
            self.rest = rest;
            return (!word.is_empty()).then_some(word);
        }
        let (length, rest) = line(self.rest.strip_prefix(b"$")?)?;
        let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
        let (word, rest) = rest.split_at_checked(length)?;
        self.rest = rest.strip_prefix(b"\r\n").unwrap_or_default();
        Some(word)
    }
}

/// Splits at the first end of a line.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some((&bytes[..end], &bytes[end + 2..]))
}

/// A key as redis-cli writes it: as it is, or in quotes with escapes if it has more than letters,
/// digits and signs.
pub(super) fn quoted(key: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\".contains(byte);
    if !key.is_empty() && key.iter().all(plain) {
        return String::from_utf8_lossy(key).into_owned();
    }
    format!("\"{}\"", key.escape_ascii())
}

/// The other way round: what is in double quotes is unescaped, anything else is the key itself.
///
/// # Errors
/// What is wrong with an escape.
pub(super) fn unquoted(text: &[u8]) -> Result<Vec<u8>, String> {
    let Some(inner) = text
        .strip_prefix(b"\"")
        .and_then(|text| text.strip_suffix(b"\""))
    else {
        return Ok(text.to_vec());
    };
    let mut key = Vec::new();
    let mut rest = inner.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            key.push(byte);
            continue;
        }
        key.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.map(char::from));
                let digits: Option<String> = digits.into_iter().collect();
                let value = digits.and_then(|digits| u8::from_str_radix(&digits, 16).ok());
                value.ok_or("\\x wants two hexadecimal digits")?
            }
            Some(sign @ (b'\\' | b'"' | b'\'')) => sign,
            _ => return Err("a backslash in quotes wants n, r, t, \", \\ or xHH".to_owned()),
        });
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(payload: &[u8]) -> Option<(String, Option<String>)> {
        let found = first(payload)?;
        Some((found.name, found.key.map(|key| quoted(&key))))
    }

    fn is(payload: &[u8], name: &str, key: Option<&str>) {
        let expected = (name.to_owned(), key.map(str::to_owned));
        assert_eq!(read(payload), Some(expected));
    }

    #[test]
    fn names_and_keys() {
        is(b"*2\r\n$3\r\nget\r\n$4\r\nkey1\r\n", "GET", Some("key1"));
        is(
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n",
            "SET",
            Some("a"),
        );
        is(
            b"*3\r\n$5\r\nHMGET\r\n$1\r\nh\r\n$1\r\nf\r\n",
            "HMGET",
            Some("h"),
        );
        is(b"*1\r\n$4\r\nPING\r\n", "PING", None);
        is(b"*2\r\n$6\r\nCLIENT\r\n$4\r\nlist\r\n", "CLIENT LIST", None);
        is(b"GET key1\r\n", "GET", Some("key1"));
        is(b"PING\r\n", "PING", None);
    }

    #[test]
    fn the_key_that_is_written_need_not_be_the_first_argument() {
        let bitop = COMMANDS.iter().find(|command| command.name == "bitop");
        assert_eq!(bitop.map(|command| command.keys.first), Some(2));
        is(
            b"*4\r\n$5\r\nBITOP\r\n$3\r\nAND\r\n$1\r\nd\r\n$1\r\ns\r\n",
            "BITOP",
            Some("d"),
        );
    }

    #[test]
    fn what_may_be_secret_is_not_told() {
        is(b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n", "AUTH", None);
        is(b"AUTH secret\r\n", "AUTH", None);
        is(b"*2\r\n$7\r\nrenamed\r\n$6\r\nsecret\r\n", "RENAMED", None);
        is(b"*2\r\n$4\r\nEVAL\r\n$6\r\nreturn\r\n", "EVAL", None);
        // The middle of a value.
        assert_eq!(read(b"secret text of a value\r\n"), None);
        assert_eq!(read(b"\x00\x01\x02"), None);
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        is(b"*2\r\n$3\r\nGET\r\n$4\r\nke", "GET", None);
        is(b"*2\r\n$3\r\nGET\r\n", "GET", None);
        assert_eq!(read(b"*2\r\n$3\r\nGE"), None);
        assert_eq!(read(b"*2"), None);
        assert_eq!(read(b""), None);
        assert_eq!(read(b"*2\r\n$99999999999999999999999\r\nGET\r\n"), None);
        assert_eq!(read(b"*2\r\n$-1\r\nGET\r\n"), None);
    }

    #[test]
    fn keys_go_out_and_come_back() {
        for (key, text) in [
            (&b"user:1"[..], "user:1"),
            (b"", "\"\""),
            (b"a b", "\"a b\""),
            (b"\xff\x00\r\n\"\\", "\"\\xff\\x00\\r\\n\\\"\\\\\""),
            ("ä".as_bytes(), "\"\\xc3\\xa4\""),
        ] {
            assert_eq!(quoted(key), text);
            assert_eq!(unquoted(text.as_bytes()).unwrap(), key);
        }
        // Without quotes a backslash is a backslash.
        assert_eq!(unquoted(b"a\\n").unwrap(), b"a\\n");
        assert_eq!(unquoted(b"\"").unwrap(), b"\"");
        for wrong in ["\"\\\"", "\"\\q\"", "\"\\x1\"", "\"\\xzz\""] {
            assert!(unquoted(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
