// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether ERB could have answered a read at all: it has no key that is not there, and no value that fits
//! no slot.
//!
//! Mostly the reply tells. Of a field nobody sees how large its hash is, so Redis is asked, by a
//! connection beside. The questions are among those that the daemon asks before it fills a key.
//! In doubt ERB could have answered.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use erb_abi::{FastCommand, HASH_FIELDS_MAX, HASH_MEMORY_MAX, TABLE_MEMORY_MAX, VALUE_BYTES_MAX};

use super::reply::{Item, Replies};

/// Longest wait for an answer: a Redis that is stopped is not waited for.
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Whether ERB could have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Could {
    Yes,
    No,
    Unknown,
}

/// What the reply itself tells.
pub fn by_reply(command: &FastCommand, reply: &[u8]) -> Could {
    let most = |max: u32, number: i64| match number {
        // No key, or an empty string.
        0 => Could::Unknown,
        number if number > i64::from(max) => Could::No,
        _ => Could::Yes,
    };
    match (command.name, first_number(reply)) {
        ("ping", _) => Could::Yes,
        ("get", None) => Could::No,
        ("get", Some(length)) if length > i64::from(VALUE_BYTES_MAX) => Could::No,
        ("get", Some(length)) if length >= 0 => Could::Yes,
        ("get", Some(_)) => Could::No,
        ("strlen", Some(length)) => most(VALUE_BYTES_MAX, length),
        ("hlen", Some(fields)) if fields > i64::from(HASH_FIELDS_MAX) => Could::No,
        ("exists", Some(0)) | ("ttl" | "pttl", Some(-2)) => Could::No,
        _ => Could::Unknown,
    }
}

/// Whether more can be told of it by [`Beside::hash`].
pub fn is_of_hash(command: &FastCommand) -> bool {
    command.name.starts_with('h')
}

/// Whether a hash of that memory, as MEMORY USAGE replied, could be cached.
fn within(most: u64, memory: &[u8]) -> Could {
    match first_number(memory) {
        Some(bytes) if bytes > most as i64 => Could::No,
        _ => Could::Unknown,
    }
}

/// The number in the reply's first line; none of RESP3's null.
fn first_number(reply: &[u8]) -> Option<i64> {
    let end = reply.iter().position(|byte| *byte == b'\r')?;
    std::str::from_utf8(reply.get(1..end)?).ok()?.parse().ok()
}

/// A connection to Redis beside that of the client; made when it is needed.
pub struct Beside {
    stream: TcpStream,
    replies: Replies,
}

impl Beside {
    /// Connects.
    pub fn connect(server: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, ANSWER_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self {
            stream,
            replies: Replies::default(),
        })
    }

    /// Whether ERB could have the hash of this key.
    pub fn hash(&mut self, database: u32, key: &[u8]) -> Result<Could> {
        let database = database.to_string();
        let words: [&[&[u8]]; 3] = [
            &[b"SELECT", database.as_bytes()],
            &[b"OBJECT", b"ENCODING", key],
            &[b"MEMORY", b"USAGE", key, b"SAMPLES", b"1"],
        ];
        let request: Vec<u8> = words
            .iter()
            .flat_map(|words| erb_wire::resp::command(words))
            .collect();
        self.stream.write_all(&request)?;
        let [selected, encoding, memory] = self.answers()?;
        Ok(match (selected.as_slice(), encoding.as_slice()) {
            (b"+OK\r\n", b"$8\r\nlistpack\r\n" | b"$7\r\nziplist\r\n") => {
                within(HASH_MEMORY_MAX, &memory)
            }
            (b"+OK\r\n", b"$9\r\nhashtable\r\n") => within(TABLE_MEMORY_MAX, &memory),
            // No key, or a listpack with fields that expire.
            (b"+OK\r\n", [b'$' | b'_', ..]) => Could::No,
            _ => Could::Unknown,
        })
    }

    fn answers(&mut self) -> Result<[Vec<u8>; 3]> {
        let mut answers: [Vec<u8>; 3] = Default::default();
        let (mut bytes, mut at) = ([0; 1024], 0);
        while at < answers.len() {
            let length = self.stream.read(&mut bytes)?;
            if length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let answer = answers.get_mut(at);
                let answer = answer.ok_or_else(|| Error::from(ErrorKind::InvalidData))?;
                let (length, item) = self
                    .replies
                    .scan(rest)
                    .map_err(|_| Error::from(ErrorKind::InvalidData))?;
                answer.extend_from_slice(&rest[..length]);
                at += usize::from(matches!(item, Some(Item::Reply(_))));
                rest = &rest[length..];
            }
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn command(name: &str) -> &'static FastCommand {
        let mut all = erb_abi::FAST_COMMANDS.iter();
        all.find(|command| command.name == name).unwrap()
    }

    #[test]
    fn a_reply_tells_what_erb_could_not_have_given() {
        for (name, reply, could) in [
            ("ping", "+PONG\r\n", Could::Yes),
            ("get", "$-1\r\n", Could::No),
            ("get", "_\r\n", Could::No),
            ("get", "$0\r\n\r\n", Could::Yes),
            ("get", "$1451\r\n", Could::Yes),
            ("get", "$1452\r\n", Could::No),
            ("strlen", ":0\r\n", Could::Unknown),
            ("strlen", ":1451\r\n", Could::Yes),
            ("strlen", ":1452\r\n", Could::No),
            ("hlen", ":64\r\n", Could::Unknown),
            ("hlen", ":65\r\n", Could::No),
            ("exists", ":0\r\n", Could::No),
            ("exists", ":1\r\n", Could::Unknown),
            ("ttl", ":-2\r\n", Could::No),
            ("pttl", ":-1\r\n", Could::Unknown),
            ("hget", "$-1\r\n", Could::Unknown),
            ("getrange", "$0\r\n\r\n", Could::Unknown),
        ] {
            let told = by_reply(command(name), reply.as_bytes());
            assert_eq!(told, could, "{name} {reply:?}");
        }
    }

    #[test]
    fn redis_is_asked_how_large_a_hash_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut beside = Beside::connect(listener.local_addr().unwrap()).unwrap();
        let plays = [
            ("+OK\r\n$8\r\nlistpack\r\n:100\r\n", Could::Unknown),
            ("+OK\r\n$8\r\nlistpack\r\n:4097\r\n", Could::No),
            ("+OK\r\n$9\r\nhashtable\r\n:8192\r\n", Could::Unknown),
            ("+OK\r\n$9\r\nhashtable\r\n:8193\r\n", Could::No),
            ("+OK\r\n$10\r\nlistpackex\r\n:100\r\n", Could::No),
            ("+OK\r\n$-1\r\n$-1\r\n", Could::No),
            ("-NOAUTH\r\n-NOAUTH\r\n-NOAUTH\r\n", Could::Unknown),
        ];
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            for (answers, _) in plays {
                let mut bytes = [0; 1024];
                let length = stream.read(&mut bytes).unwrap();
                asked.push(bytes[..length].to_vec());
                stream.write_all(answers.as_bytes()).unwrap();
            }
            asked
        });
        for (answers, could) in plays {
            assert_eq!(beside.hash(9, b"k").unwrap(), could, "{answers:?}");
        }
        let asked = server.join().unwrap();
        let wanted: [&[&[u8]]; 3] = [
            &[b"SELECT", b"9"],
            &[b"OBJECT", b"ENCODING", b"k"],
            &[b"MEMORY", b"USAGE", b"k", b"SAMPLES", b"1"],
        ];
        let wanted: Vec<u8> = wanted
            .iter()
            .flat_map(|words| erb_wire::resp::command(words))
            .collect();
        assert_eq!(asked, vec![wanted; plays.len()]);
        assert!(beside.hash(9, b"k").is_err(), "it has gone");
    }
}
