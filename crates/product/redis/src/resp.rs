// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RESP3 on one connection: commands out, frames in, in order. Decoding is redis-protocol's, of
//! frames that are whole: a decoder that begins anew with each piece takes the square of the time.

use std::io::{self, Read, Write};

use bytes::{Buf as _, Bytes, BytesMut};
use redis_protocol::resp3::decode::complete::decode_bytes_mut;
pub use redis_protocol::resp3::types::BytesFrame as Frame;

use crate::ends::Ends;

/// Bytes asked of the kernel per read; Redis writes at most 64 KiB per turn and client.
const READ_BYTES: usize = 64 * 1024;

/// Unsent bytes at which the connection counts as stuck: Redis reads nothing any more.
const UNSENT_MAX: usize = 16 << 20;

/// Longest reply: CLIENT LIST of half a million clients.
pub(crate) const REPLY_BYTES_MAX: usize = 256 << 20;

/// Longest push: the keys of one command, which is as long as Redis takes one.
const PUSH_BYTES_MAX: usize = 1 << 30;

/// A connection to Redis that never blocks.
pub struct RespStream<S> {
    stream: S,
    input: BytesMut,
    ends: Ends,
    received: u64,
    output: BytesMut,
    scratch: Box<[u8]>,
}

impl<S> RespStream<S> {
    /// Speaks RESP over a connection that never blocks.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            ends: Ends::default(),
            received: 0,
            output: BytesMut::new(),
            scratch: vec![0; READ_BYTES].into(),
        }
    }

    /// The connection.
    #[must_use]
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Queues one command; nothing is written before [`Self::flush`].
    pub fn push(&mut self, arguments: &[&[u8]]) {
        let mut header = [0u8; 24];
        let mut put = |output: &mut BytesMut, mark: u8, number: usize| {
            let mut rest = &mut header[..];
            // 24 bytes hold any 64-bit number with its mark and line end.
            let _ = write!(rest, "{}{number}\r\n", char::from(mark));
            let left = rest.len();
            let used = header.len() - left;
            output.extend_from_slice(&header[..used]);
        };
        put(&mut self.output, b'*', arguments.len());
        for argument in arguments {
            put(&mut self.output, b'$', argument.len());
            self.output.extend_from_slice(argument);
            self.output.extend_from_slice(b"\r\n");
        }
    }

    /// What waits to be written: who says many commands at once appends them here.
    pub const fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// What was read and is not taken. Between two replies alone, so not if [`Self::next_frame`] has found
    /// that one is not whole.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        debug_assert!(self.ends.is_between());
        &self.input
    }

    /// Whether [`Self::input`] begins with a frame of which nothing was looked at.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.ends.is_between()
    }

    /// Takes so many bytes of the input: whole replies, or whole elements of one.
    pub fn take_input(&mut self, bytes: usize) {
        self.input.advance(bytes);
    }

    /// Whether [`Self::flush`] left something behind.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Bytes received so far.
    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    /// The next whole frame, if one is there.
    ///
    /// # Errors
    /// What came is no RESP, or longer than any reply.
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        self.next_frame_of(REPLY_BYTES_MAX)
    }

    /// The next whole frame: a push, or a reply of at most so many bytes.
    ///
    /// # Errors
    /// What came is no RESP, or longer.
    pub(crate) fn next_frame_of(&mut self, most: usize) -> io::Result<Option<Frame>> {
        let Some(mut whole) = self.next_whole(most)? else {
            return Ok(None);
        };
        let odd = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let decoded = decode_bytes_mut(&mut whole).map_err(|error| odd(error.to_string()))?;
        let (frame, ..) = decoded.ok_or_else(|| odd("a whole frame is none".to_owned()))?;
        Ok(Some(frame))
    }

    fn next_whole(&mut self, most: usize) -> io::Result<Option<BytesMut>> {
        if self.input.is_empty() {
            return Ok(None);
        }
        let is_push = self.input[0] == b'>';
        let most = if is_push { PUSH_BYTES_MAX } else { most };
        let length = self.ends.find(&self.input, most)?;
        Ok(length.map(|length| self.input.split_to(length)))
    }
}

/// A reply without types. The decoder's sets cannot hold maps (it panics), of which Redis makes the
/// key specifications of COMMAND INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// A string of any kind.
    Text(String),
    /// A number.
    Number(i64),
    /// An array or a set.
    List(Vec<Tree>),
    /// A map, in order.
    Map(Vec<(Tree, Tree)>),
    /// Nothing.
    Null,
}

/// Levels of a [`Tree`]: COMMAND INFO has eight.
const TREE_DEPTH_MAX: u32 = 16;

/// Elements of one level of a [`Tree`].
const TREE_WIDTH_MAX: usize = 100_000;

impl Tree {
    /// The reply at the start of `bytes`, and its length, if it is whole.
    ///
    /// # Errors
    /// It is none of the types that a [`Tree`] has.
    pub fn parse(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        Self::parse_at(bytes, 0, TREE_DEPTH_MAX)
    }

    fn parse_at(bytes: &[u8], from: usize, depth: u32) -> io::Result<Option<(Self, usize)>> {
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "no reply to COMMAND INFO");
        let rest = bytes.get(from..).unwrap_or_default();
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let line = String::from_utf8_lossy(&rest[1..end.max(1)]);
        let next = from + end + 2;
        let count = || match line.parse::<i64>().map_err(|_| odd())? {
            -1 => Ok(None),
            count => usize::try_from(count)
                .ok()
                .filter(|count| *count <= TREE_WIDTH_MAX && depth > 0)
                .map(Some)
                .ok_or_else(odd),
        };
        match rest[0] {
            b'+' => Ok(Some((Self::Text(line.into_owned()), next))),
            b':' => {
                let number = line.parse().map_err(|_| odd())?;
                Ok(Some((Self::Number(number), next)))
            }
            b'_' => Ok(Some((Self::Null, next))),
            b'$' => {
                let Some(length) = count()? else {
                    return Ok(Some((Self::Null, next)));
                };
                let text = bytes.get(next..next + length);
                let whole = text.filter(|_| bytes.len() >= next + length + 2);
                let text = |text| Self::Text(String::from_utf8_lossy(text).into_owned());
                Ok(whole.map(|bytes| (text(bytes), next + length + 2)))
            }
            kind @ (b'*' | b'~' | b'%') => {
                let Some(count) = count()? else {
                    return Ok(Some((Self::Null, next)));
                };
                let all = if kind == b'%' { 2 * count } else { count };
                let mut at = next;
                let mut list = Vec::new();
                for _ in 0..all {
                    let Some((one, end)) = Self::parse_at(bytes, at, depth - 1)? else {
                        return Ok(None);
                    };
                    list.push(one);
                    at = end;
                }
                if kind != b'%' {
                    return Ok(Some((Self::List(list), at)));
                }
                let mut list = list.into_iter();
                let pairs = std::iter::from_fn(|| Some((list.next()?, list.next()?)));
                Ok(Some((Self::Map(pairs.collect()), at)))
            }
            _ => Err(odd()),
        }
    }
}

impl<S> RespStream<S> {
    /// Whether the next reply is an array.
    #[must_use]
    pub fn has_array(&self) -> bool {
        self.input.first() == Some(&b'*')
    }

    /// The next reply without types, if it is whole.
    ///
    /// # Errors
    /// What came is no such reply.
    pub fn next_tree(&mut self) -> io::Result<Option<Tree>> {
        let Some(whole) = self.next_whole(REPLY_BYTES_MAX)? else {
            return Ok(None);
        };
        Ok(Tree::parse(&whole)?.map(|(tree, _)| tree))
    }
}

impl<S: Read + Write> RespStream<S> {
    /// Writes what is queued, as far as the other end takes it.
    ///
    /// # Errors
    /// The connection ended, or Redis does not read any more.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.output.split_to(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.output.len() > UNSENT_MAX {
            return Err(io::Error::other("Redis does not read any more"));
        }
        Ok(())
    }

    /// Reads once; true if there may be more to read.
    ///
    /// # Errors
    /// The connection ended.
    pub fn fill(&mut self) -> io::Result<bool> {
        match self.stream.read(&mut self.scratch) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "Redis closed the connection",
            )),
            Ok(count) => {
                self.input.extend_from_slice(&self.scratch[..count]);
                self.received += count as u64;
                Ok(count == READ_BYTES)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The bytes of a string of any kind.
#[must_use]
pub fn text(frame: &Frame) -> Option<&Bytes> {
    match frame {
        Frame::BlobString { data, .. }
        | Frame::SimpleString { data, .. }
        | Frame::VerbatimString { data, .. } => Some(data),
        _ => None,
    }
}

/// The text of an error reply.
#[must_use]
pub fn error(frame: &Frame) -> Option<String> {
    match frame {
        Frame::SimpleError { data, .. } => Some(data.to_string()),
        Frame::BlobError { data, .. } => Some(String::from_utf8_lossy(data).into_owned()),
        _ => None,
    }
}

/// Whether the reply is the simple string `wanted`, literally.
#[must_use]
pub fn is_simple(frame: &Frame, wanted: &[u8]) -> bool {
    matches!(frame, Frame::SimpleString { data, .. } if data == wanted)
}

/// The value of this name in a map (RESP3).
#[must_use]
pub(crate) fn field<'a>(frame: &'a Frame, name: &[u8]) -> Option<&'a Frame> {
    let Frame::Map { data, .. } = frame else {
        return None;
    };
    let named = |(found, _): &(&Frame, _)| text(found).is_some_and(|found| *found == name);
    data.iter().find(named).map(|(_, value)| value)
}

/// A number that is not negative.
#[must_use]
pub fn integer(frame: &Frame) -> Option<u64> {
    match frame {
        Frame::Number { data, .. } => u64::try_from(*data).ok(),
        _ => None,
    }
}

/// Name and value pairs of a map (RESP3) or flat array (RESP2) of strings.
#[must_use]
pub fn pairs(frame: &Frame) -> Vec<(String, String)> {
    let string = |frame: &Frame| text(frame).map(|data| String::from_utf8_lossy(data).into_owned());
    match frame {
        Frame::Map { data, .. } => data
            .iter()
            .filter_map(|(name, value)| Some((string(name)?, string(value)?)))
            .collect(),
        Frame::Array { data, .. } => data
            .chunks_exact(2)
            .filter_map(|pair| Some((string(&pair[0])?, string(&pair[1])?)))
            .collect(),
        _ => Vec::new(),
    }
}

/// What Redis sent is not what it can have sent.
pub(crate) fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::doubles::Pipe;

    const USERS: usize = 100_000;

    /// How long it takes to read a long reply that comes in pieces of so many bytes.
    fn reads_in_pieces(piece_bytes: usize) -> Duration {
        let redis = Pipe::default();
        let mut stream = RespStream::new(redis.clone());
        let reply = format!("*{USERS}\r\n{}", "$9\r\nuser name\r\n".repeat(USERS));
        let began = Instant::now();
        let mut found = None;
        for piece in reply.as_bytes().chunks(piece_bytes) {
            assert!(found.is_none());
            redis.say(piece);
            while stream.fill().unwrap() {}
            found = stream.next_frame().unwrap();
        }
        let Some(Frame::Array { data, .. }) = found else {
            panic!("{found:?}")
        };
        assert_eq!(data.len(), USERS);
        began.elapsed()
    }

    #[test]
    fn a_long_reply_in_small_pieces_costs_time_by_its_length() {
        let [few, many] = [100_000, 100].map(reads_in_pieces);
        // A decoder that begins anew with each piece needs hundreds of times as much.
        if many > 50 * few {
            erb_steady::too_slow(format_args!(
                "{many:?} in small pieces, {few:?} in large ones"
            ));
        }
    }

    #[test]
    fn a_reply_longer_than_what_was_asked_for_is_refused_and_a_push_is_not() {
        let redis = Pipe::default();
        let mut stream = RespStream::new(redis.clone());
        redis.say(format!(
            ">2\r\n$10\r\ninvalidate\r\n*1\r\n$99\r\n{}\r\n",
            "k".repeat(99)
        ));
        redis.say("$91\r\n");
        stream.fill().unwrap();
        let push = stream.next_frame_of(90).unwrap();
        assert!(matches!(push, Some(Frame::Push { .. })));
        let error = stream.next_frame_of(90).unwrap_err();
        assert!(
            error.to_string().contains("longer than 90 bytes"),
            "{error}"
        );
    }
}
