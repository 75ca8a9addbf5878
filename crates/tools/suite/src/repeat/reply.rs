// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis sends, cut where a reply ends, in RESP2 and RESP3.

/// Longest line that says how much follows.
const COUNT_BYTES_MAX: usize = 24;
/// Replies nest this deep at most; COMMAND DOCS has six levels.
const DEPTH_MAX: usize = 128;

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The reply to a command; its first byte says of what kind.
    Reply(u8),
    /// A push, which nobody asked for.
    Push,
}

/// It is no RESP: replies cannot be counted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Where the stream of one connection stands.
#[derive(Default)]
pub struct Replies {
    /// Kind of the item at the top; 0: none has begun.
    top: u8,
    /// The line that is being read, as far as it matters.
    line: Vec<u8>,
    /// Bytes missing of a bulk string.
    bulk: u64,
    /// Elements missing, outermost first; of attributes, which are no elements themselves, `true`.
    open: Vec<(u64, bool)>,
}

impl Replies {
    /// Reads up to the end of the next item: how many bytes that took, and what it was if it ended.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<(usize, Option<Item>), Unreadable> {
        let mut at = 0;
        while at < bytes.len() {
            if self.bulk > 0 {
                let part = self.bulk.min((bytes.len() - at) as u64);
                at += part as usize;
                self.bulk -= part;
                if self.bulk == 0
                    && let Some(item) = self.ended()
                {
                    return Ok((at, Some(item)));
                }
                continue;
            }
            let rest = &bytes[at..];
            let end = rest.iter().position(|byte| *byte == b'\n');
            let part = &rest[..end.map_or(rest.len(), |end| end + 1)];
            let room = (COUNT_BYTES_MAX + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            at += part.len();
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                if let Some(item) = self.line(&line)? {
                    return Ok((at, Some(item)));
                }
            }
        }
        Ok((at, None))
    }

    /// Whether a push has begun and not ended.
    pub fn in_push(&self) -> bool {
        match self.open.is_empty() && self.bulk == 0 {
            true => self.line.first() == Some(&b'>'),
            false => self.top == b'>',
        }
    }

    /// A line has ended.
    fn line(&mut self, line: &[u8]) -> Result<Option<Item>, Unreadable> {
        let kind = *line.first().ok_or(Unreadable)?;
        if self.open.is_empty() {
            self.top = kind;
        }
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(self.ended()),
            b'$' | b'=' | b'!' => match count(line)? {
                -1 => Ok(self.ended()),
                length => {
                    self.bulk = u64::try_from(length).map_err(|_| Unreadable)? + 2;
                    Ok(None)
                }
            },
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let elements = count(line)?;
                let each = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
                let elements = u64::try_from(elements.max(0)).map_err(|_| Unreadable)? * each;
                let attribute = kind == b'|';
                if elements == 0 {
                    return Ok(if attribute { None } else { self.ended() });
                }
                if self.open.len() == DEPTH_MAX {
                    return Err(Unreadable);
                }
                self.open.push((elements, attribute));
                Ok(None)
            }
            _ => Err(Unreadable),
        }
    }

    /// An item has ended: with it what it was the last element of.
    fn ended(&mut self) -> Option<Item> {
        while let Some((missing, attribute)) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return None;
            }
            let attribute = *attribute;
            self.open.pop();
            if attribute {
                return None;
            }
        }
        Some(match self.top {
            b'>' => Item::Push,
            kind => Item::Reply(kind),
        })
    }
}

fn count(line: &[u8]) -> Result<i64, Unreadable> {
    let number = line[1..].strip_suffix(b"\r\n").ok_or(Unreadable)?;
    let number = std::str::from_utf8(number).map_err(|_| Unreadable)?;
    number.parse().map_err(|_| Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(stream: &[u8], step: usize) -> Vec<(usize, Item)> {
        let (mut replies, mut all, mut before) = (Replies::default(), Vec::new(), 0);
        for part in stream.chunks(step) {
            let mut at = 0;
            while at < part.len() {
                let (length, item) = replies.scan(&part[at..]).unwrap();
                at += length;
                all.extend(item.map(|item| (before + at, item)));
            }
            before += part.len();
        }
        all
    }

    #[test]
    fn replies_are_told_apart_wherever_they_are_cut() {
        let parts: [(&str, Item); 15] = [
            ("+OK\r\n", Item::Reply(b'+')),
            (
                "-ERR a line that is longer than a number\r\n",
                Item::Reply(b'-'),
            ),
            (":-12\r\n", Item::Reply(b':')),
            ("$5\r\na\r\n*1\r\n", Item::Reply(b'$')),
            ("$-1\r\n", Item::Reply(b'$')),
            ("$0\r\n\r\n", Item::Reply(b'$')),
            ("*-1\r\n", Item::Reply(b'*')),
            ("*0\r\n", Item::Reply(b'*')),
            (
                "*2\r\n*1\r\n:1\r\n*2\r\n$1\r\nx\r\n*0\r\n",
                Item::Reply(b'*'),
            ),
            ("%1\r\n+a\r\n~2\r\n_\r\n#t\r\n", Item::Reply(b'%')),
            (">2\r\n+a\r\n$1\r\nb\r\n", Item::Push),
            ("|1\r\n+ttl\r\n:3\r\n,1.5\r\n", Item::Reply(b',')),
            (
                "*2\r\n|1\r\n+a\r\n*1\r\n:1\r\n:2\r\n:3\r\n",
                Item::Reply(b'*'),
            ),
            ("=7\r\ntxt:abc\r\n", Item::Reply(b'=')),
            ("(12345678901234567890123456789\r\n", Item::Reply(b'(')),
        ];
        let stream: String = parts.iter().map(|(bytes, _)| *bytes).collect();
        let mut end = 0;
        let wanted: Vec<(usize, Item)> = parts
            .iter()
            .map(|(bytes, item)| {
                end += bytes.len();
                (end, *item)
            })
            .collect();
        for step in 1..=stream.len() {
            assert_eq!(items(stream.as_bytes(), step), wanted, "{step} bytes each");
        }
    }

    #[test]
    fn what_is_no_reply_is_found() {
        for broken in ["hello\r\n", "$x\r\n", "$-2\r\n", "*2\r\n:1\r\nx\r\n"] {
            let mut replies = Replies::default();
            assert_eq!(
                replies.scan(broken.as_bytes()),
                Err(Unreadable),
                "{broken:?}"
            );
        }
    }
}
