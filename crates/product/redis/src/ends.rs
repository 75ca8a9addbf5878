// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the reply at the start of a stream ends, however it arrives in pieces.
//!
//! Invariant: a byte is looked at once. What was found out of a reply that is not whole is kept, so
//! that a long one costs time by its length and not by its square.

use std::io;

/// Levels of a reply: COMMAND INFO has eight.
const DEPTH_MAX: usize = 32;

/// Fewest bytes of an element: its mark and the line's end.
const ELEMENT_BYTES: usize = 3;

/// How far the first reply has been looked at.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Where the next element begins; may lie beyond what has come.
    at: usize,
    /// From here on the end of its first line has not been looked for.
    line: usize,
    /// Elements still to come, per level.
    left: Vec<usize>,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            at: 0,
            line: 0,
            left: vec![1],
        }
    }
}

/// What an element's first line says of what follows.
enum Follows {
    Nothing,
    Bytes(usize),
    Elements(usize),
    /// Attributes: elements before the one that they belong to.
    Attributes(usize),
}

impl Ends {
    /// Whether nothing was found out of a reply that is not whole.
    pub(crate) fn is_between(&self) -> bool {
        (self.at, self.line, self.left.as_slice()) == (0, 0, &[1])
    }

    /// Length of the reply at the start of `bytes`, if it is whole; the next call is about the next
    /// reply.
    ///
    /// # Errors
    /// It is no RESP, or longer than `most`.
    pub(crate) fn find(&mut self, bytes: &[u8], most: usize) -> io::Result<Option<usize>> {
        loop {
            while self.left.last() == Some(&0) {
                self.left.pop();
            }
            if self.at > most || bytes.len().min(self.line) > most {
                return Err(too_long(most));
            }
            if self.left.is_empty() {
                if bytes.len() < self.at {
                    return Ok(None);
                }
                return Ok(Some(std::mem::take(self).at));
            }
            let Some(next) = self.line_end(bytes) else {
                return Ok(None);
            };
            let follows = follows(&bytes[self.at..next - 2])?;
            self.at = next;
            let mut more = 0;
            match follows {
                Follows::Nothing => self.took_one(),
                Follows::Bytes(count) => {
                    self.at = next.saturating_add(count).saturating_add(2);
                    self.took_one();
                }
                Follows::Elements(count) => {
                    self.took_one();
                    more = count;
                }
                Follows::Attributes(count) => more = count,
            }
            if more > most / ELEMENT_BYTES {
                return Err(too_long(most));
            }
            self.left.push(more);
            if self.left.len() > DEPTH_MAX {
                return Err(odd());
            }
            self.line = self.at;
        }
    }

    fn took_one(&mut self) {
        if let Some(left) = self.left.last_mut() {
            *left -= 1;
        }
    }

    /// Behind the line that begins at the element, if its end is there.
    fn line_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let from = self.line.max(self.at);
        let rest = bytes.get(from..)?;
        match rest.windows(2).position(|pair| pair == b"\r\n") {
            Some(found) => Some(from + found + 2),
            None => {
                // The last byte may be the first half of the line's end.
                self.line = from + rest.len().saturating_sub(1);
                None
            }
        }
    }
}

fn follows(line: &[u8]) -> io::Result<Follows> {
    let (mark, rest) = line.split_first().ok_or_else(odd)?;
    if matches!(mark, b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(') {
        return Ok(Follows::Nothing);
    }
    let number = std::str::from_utf8(rest).map_err(|_| odd())?;
    let count = match number.parse::<i64>().map_err(|_| odd())? {
        -1 => return Ok(Follows::Nothing),
        count => usize::try_from(count).map_err(|_| odd())?,
    };
    Ok(match mark {
        b'$' | b'=' | b'!' => Follows::Bytes(count),
        b'*' | b'~' | b'>' => Follows::Elements(count),
        b'%' => Follows::Elements(count.saturating_mul(2)),
        b'|' => Follows::Attributes(count.saturating_mul(2)),
        _ => return Err(odd()),
    })
}

fn odd() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what Redis sent is no RESP")
}

fn too_long(most: usize) -> io::Error {
    let text = format!("Redis sent a reply longer than {most} bytes, which none asked for can be");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&[u8]; 12] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"_\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n~2\r\n+a\r\n$1\r\nb\r\n",
        b"%1\r\n+k\r\n%1\r\n:1\r\n*-1\r\n",
        b"|1\r\n+ttl\r\n:3\r\n=5\r\ntxt:a\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
    ];

    #[test]
    fn a_reply_ends_where_it_ends_in_whatever_pieces_it_comes() {
        let all = REPLIES.concat();
        for piece in 1..9 {
            let (mut ends, mut from, mut found) = (Ends::default(), 0, Vec::new());
            for to in (piece..all.len() + piece).step_by(piece) {
                let to = to.min(all.len());
                while from < to {
                    let Some(length) = ends.find(&all[from..to], 1000).unwrap() else {
                        break;
                    };
                    found.push(&all[from..from + length]);
                    from += length;
                }
            }
            assert_eq!(found, REPLIES, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_too_long_or_no_reply_is_refused_before_it_is_here() {
        for (start, word) in [
            (b"$101\r\n".as_slice(), "longer than 100"),
            (b"*34\r\n", "longer than 100"),
            (b"%17\r\n", "longer than 100"),
            (b"*1\r\n$99\r\n", "longer than 100"),
            (&[b'+'; 102], "longer than 100"),
            (b"?\r\n", "no RESP"),
            (b"\r\n", "no RESP"),
            (b"$x\r\n", "no RESP"),
            (b"*-2\r\n", "no RESP"),
        ] {
            let mut ends = Ends::default();
            let first = ends.find(start, 100);
            let error = first.and_then(|_| ends.find(start, 100)).unwrap_err();
            assert!(error.to_string().contains(word), "{start:?}: {error}");
        }
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        assert!(Ends::default().find(&deep, 1000).is_err());
    }
}
