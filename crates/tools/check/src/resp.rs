// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RESP as bytes: commands are encoded, replies are only measured.
//!
//! Checks compare raw bytes, so a reply is never turned into a value before it was compared;
//! [`frame_len`] says where one ends, [`Reply`] reads the few kinds that checkers look into.

use anyhow::{Result, bail};

/// Nesting that a reply may have; Redis's own replies stay far below (COMMAND has 4).
const DEPTH_MAX: usize = 16;

/// Bytes of a RESP array of bulk strings, as clients send it.
pub fn encode<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    erb_wire::resp::push_command(out, args);
}

/// Like [`encode`], in a fresh buffer.
pub fn command<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(args, &mut out);
    out
}

/// Length in bytes of the first whole frame of `buf`, or `None` if it is not all there yet.
///
/// # Errors
/// If the bytes are no RESP2 or RESP3 frame.
pub fn frame_len(buf: &[u8]) -> Result<Option<usize>> {
    frame_len_nested(buf, 0)
}

fn frame_len_nested(buf: &[u8], depth: usize) -> Result<Option<usize>> {
    if depth > DEPTH_MAX {
        bail!("reply is nested deeper than {DEPTH_MAX}");
    }
    let Some(line) = line_len(buf) else {
        return Ok(None);
    };
    let text = &buf[1..line - 2];
    match buf[0] {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(Some(line)),
        b'$' | b'=' | b'!' => {
            let n = number(text)?;
            let end = if n < 0 { line } else { line + n as usize + 2 };
            Ok((buf.len() >= end).then_some(end))
        }
        b'*' | b'~' | b'>' => elements_len(buf, line, number(text)?.max(0) as usize, depth),
        b'%' | b'|' => elements_len(buf, line, 2 * number(text)?.max(0) as usize, depth),
        other => bail!("a reply begins with byte {other:#04x}, which is no RESP type"),
    }
}

fn elements_len(buf: &[u8], head: usize, count: usize, depth: usize) -> Result<Option<usize>> {
    let mut at = head;
    // An attribute (`|`) belongs to the frame after it.
    let count = if buf[0] == b'|' { count + 1 } else { count };
    for _ in 0..count {
        match frame_len_nested(&buf[at..], depth + 1)? {
            Some(n) => at += n,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// Length of the first line with its CRLF.
fn line_len(buf: &[u8]) -> Option<usize> {
    let lf = buf.iter().position(|&b| b == b'\n')?;
    (lf >= 2 && buf[lf - 1] == b'\r').then_some(lf + 1)
}

fn number(text: &[u8]) -> Result<i64> {
    match std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()) {
        Some(n) => Ok(n),
        None => bail!("a reply has the length {:?}", show(text, 40)),
    }
}

/// The elements of an array, set or map, one whole frame each; none: the frame is nothing of these.
#[must_use]
pub fn elements(frame: &[u8]) -> Option<Vec<&[u8]>> {
    let line = line_len(frame)?;
    if !matches!(frame[0], b'*' | b'~' | b'%') || &frame[1..line - 2] == b"-1" {
        return None;
    }
    let mut rest = &frame[line..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (one, others) = rest.split_at(frame_len(rest).ok()??);
        found.push(one);
        rest = others;
    }
    Some(found)
}

/// A reply of a kind that checkers look into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+OK` and the like, without the sign.
    Simple(&'a [u8]),
    /// An error's text, without the sign.
    Error(&'a [u8]),
    /// An integer.
    Int(i64),
    /// A bulk string.
    Bulk(&'a [u8]),
    /// RESP2 `$-1`, `*-1` or RESP3 `_`.
    Nil,
    /// Anything else, as bytes.
    Other(&'a [u8]),
}

impl<'a> Reply<'a> {
    /// Reads one whole frame, as [`frame_len`] delimits it.
    #[must_use]
    pub fn parse(frame: &'a [u8]) -> Self {
        let Some(line) = line_len(frame) else {
            return Self::Other(frame);
        };
        let text = &frame[1..line - 2];
        match frame[0] {
            b'+' => Self::Simple(text),
            b'-' => Self::Error(text),
            b'_' => Self::Nil,
            b':' => number(text).map_or(Self::Other(frame), Self::Int),
            b'$' | b'*' if text == b"-1" => Self::Nil,
            b'$' => Self::Bulk(&frame[line..frame.len() - 2]),
            _ => Self::Other(frame),
        }
    }
}

/// Bytes for a human: escaped, at most `max` of them, with the total if cut.
#[must_use]
pub fn show(bytes: &[u8], max: usize) -> String {
    let cut = &bytes[..bytes.len().min(max)];
    let text = cut.escape_ascii().to_string();
    if bytes.len() > max {
        format!("{text}... ({} B)", bytes.len())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_measured_at_every_cut() {
        let frames: [&[u8]; 10] = [
            b"+OK\r\n",
            b"-ERR x\r\n",
            b":-7\r\n",
            b"$0\r\n\r\n",
            b"$4\r\n\r\n\0\xff\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n#t\r\n",
            b"|1\r\n+a\r\n:1\r\n_\r\n",
        ];
        for frame in frames {
            for cut in 0..frame.len() {
                assert_eq!(
                    frame_len(&frame[..cut]).unwrap(),
                    None,
                    "{}",
                    show(frame, 99)
                );
            }
            let mut longer = frame.to_vec();
            longer.extend_from_slice(b"+MORE\r\n");
            assert_eq!(frame_len(&longer).unwrap(), Some(frame.len()));
        }
        assert!(frame_len(b"hello\r\n").is_err());
        assert!(frame_len(b"$x\r\n").is_err());
    }

    #[test]
    fn commands_are_encoded_and_replies_read() {
        assert_eq!(command(&["GET", ""]), b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n");
        assert_eq!(Reply::parse(b"$2\r\n\r\n\r\n"), Reply::Bulk(b"\r\n"));
        assert_eq!(Reply::parse(b":12\r\n"), Reply::Int(12));
        assert_eq!(Reply::parse(b"_\r\n"), Reply::Nil);
        assert_eq!(
            elements(b"*2\r\n$-1\r\n:1\r\n"),
            Some(vec![&b"$-1\r\n"[..], b":1\r\n"])
        );
        assert_eq!(elements(b"*-1\r\n"), None);
        assert_eq!(Reply::parse(b"-ERR a\r\n"), Reply::Error(b"ERR a"));
    }
}
