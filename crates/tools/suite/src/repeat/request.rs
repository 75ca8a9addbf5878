// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a client sends, cut where a command ends, as Redis reads it: arrays of bulk strings, or a line
//! of words. Only what may be a read of the fast list is held back until it is whole.

use erb_abi::{FAST_COMMANDS, FastCommand};

/// A read longer than this is passed on like any other command: ERB does not answer it.
const READ_BYTES_MAX: usize = 64 * 1024;
/// More arguments than any command has that is held back (`KEYS_PER_PACKET` and a name).
const ARGUMENTS_MAX: usize = erb_abi::KEYS_PER_PACKET as usize + 1;
/// Longer than the name of any command that is held back.
const NAME_BYTES_MAX: usize = 16;
/// Longest line that is held back; Redis refuses longer ones (PROTO_INLINE_MAX_SIZE).
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Commands behind which not each command has one reply, or others' bytes come unasked.
const OPAQUE: [&str; 9] = [
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
    "monitor",
    "sync",
    "psync",
];

/// Other commands of which more must be known than that they have one reply.
const STATES: [&str; 6] = ["client", "reset", "multi", "exec", "discard", "select"];

/// A part of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of some command, and how it ends if they end it.
    Pass(Vec<u8>, Option<End>),
    /// A whole read of the fast list, in the spelling that ERB answers.
    Read(&'static FastCommand, Vec<u8>),
    /// The same as a line of words, which ERB leaves to Redis.
    Line(&'static FastCommand, Vec<u8>),
    /// All that is there and all that comes: it is read by Redis alone.
    Opaque(Vec<u8>),
}

/// How a command that was passed on ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has one reply.
    Replied,
    /// It was empty: no reply.
    Silent,
    /// CLIENT TRACKING: whether reads have effects from here on.
    Tracking(bool),
    /// MULTI or its end: whether commands are queued from here on.
    Multi(bool),
    /// SELECT of this database.
    Database(u32),
    /// RESET: all of that is as it was at first.
    Reset,
    /// What comes behind it cannot be told command by command.
    Opaque,
}

/// The stream of one connection.
#[derive(Default)]
pub struct Requests {
    bytes: Vec<u8>,
    /// What is before is done with.
    at: usize,
    /// Of the command that is being passed on: arguments not begun, bytes missing of the present one.
    passing: Option<Passing>,
}

struct Passing {
    arguments: usize,
    bytes: usize,
    end: End,
}

/// What the beginning of the held bytes is.
enum Head {
    /// Too short to tell.
    Short,
    /// No command: Redis will say so.
    Broken,
    /// A whole read, so long.
    Read(&'static FastCommand, usize),
    Line(&'static FastCommand, usize),
    /// A command that is whole, so long.
    Whole(usize, End),
    /// An array of so many arguments, the heads of which begin there.
    Array {
        start: usize,
        arguments: usize,
    },
}

impl Requests {
    /// Adds what the client sent.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend_from_slice(bytes);
    }

    /// So many bytes are held.
    pub fn held(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// All that is held: the stream is not looked at any more.
    pub fn rest(&mut self) -> Vec<u8> {
        self.take(self.held())
    }

    /// The next piece, if there is one.
    pub fn next(&mut self) -> Option<Piece> {
        if self.passing.is_none() {
            match head(&self.bytes[self.at..]) {
                Head::Short => return None,
                Head::Broken => return Some(Piece::Opaque(self.rest())),
                Head::Read(command, length) => {
                    return Some(Piece::Read(command, self.take(length)));
                }
                Head::Line(command, length) => {
                    return Some(Piece::Line(command, self.take(length)));
                }
                Head::Whole(length, end) => return Some(Piece::Pass(self.take(length), Some(end))),
                Head::Array { start, arguments } => {
                    self.passing = Some(Passing {
                        arguments,
                        bytes: 0,
                        end: End::Replied,
                    });
                    return Some(Piece::Pass(self.take(start), None));
                }
            }
        }
        self.pass()
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let taken = self.bytes[self.at..self.at + length].to_vec();
        self.at += length;
        taken
    }

    /// As much of a command that nothing depends on as is there.
    fn pass(&mut self) -> Option<Piece> {
        let held = &self.bytes[self.at..];
        let passing = self.passing.as_mut()?;
        let mut at = 0;
        let end = loop {
            let part = passing.bytes.min(held.len() - at);
            at += part;
            passing.bytes -= part;
            if passing.bytes > 0 {
                break None;
            }
            if passing.arguments == 0 {
                break Some(passing.end);
            }
            match count(&held[at..], b'$') {
                Count::Short => break None,
                Count::Is(length, head) if length >= 0 => {
                    at += head;
                    passing.bytes = length as usize + 2;
                    passing.arguments -= 1;
                }
                _ => return Some(Piece::Opaque(self.rest())),
            }
        };
        if end.is_some() {
            self.passing = None;
        }
        (at > 0 || end.is_some()).then(|| Piece::Pass(self.take(at), end))
    }
}

enum Count {
    Short,
    Bad,
    /// The number, and the length of its line.
    Is(i64, usize),
}

/// A line like `$5`.
fn count(bytes: &[u8], sign: u8) -> Count {
    /// Digits of a number, sign and line end.
    const LONGEST: usize = 24;
    match bytes.first() {
        None => return Count::Short,
        Some(first) if *first != sign => return Count::Bad,
        Some(_) => {}
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() > LONGEST {
            true => Count::Bad,
            false => Count::Short,
        };
    };
    let line = bytes[1..end].strip_suffix(b"\r");
    let number = line.and_then(|line| std::str::from_utf8(line).ok()?.parse().ok());
    number.map_or(Count::Bad, |number| Count::Is(number, end + 1))
}

fn head(held: &[u8]) -> Head {
    match held.first() {
        None => Head::Short,
        Some(b'*') => array(held),
        Some(_) => line(held),
    }
}

/// An array: whole if its name says that something depends on it.
fn array(held: &[u8]) -> Head {
    let (number, start) = match count(held, b'*') {
        Count::Short => return Head::Short,
        Count::Bad => return Head::Broken,
        Count::Is(number, start) => (number, start),
    };
    // Redis passes over it.
    if number <= 0 {
        return Head::Whole(start, End::Silent);
    }
    let arguments = number as usize;
    let stream = Head::Array { start, arguments };
    if arguments > ARGUMENTS_MAX {
        return stream;
    }
    let mut words = Vec::new();
    let mut at = start;
    for _ in 0..arguments {
        let (length, head) = match count(held.get(at..).unwrap_or_default(), b'$') {
            Count::Short => return Head::Short,
            Count::Is(length, head) if length >= 0 => (length as usize, head),
            _ => return Head::Broken,
        };
        // What cannot be waited for must go on at once: Redis may object to the number alone.
        let end = at + head + length;
        if end > READ_BYTES_MAX || words.is_empty() && length > NAME_BYTES_MAX {
            return stream;
        }
        let Some(word) = held.get(at + head..at + head + length) else {
            return Head::Short;
        };
        at += head + length + 2;
        words.push(word);
        if !decides(words[0]) {
            return stream;
        }
    }
    match held.len() >= at {
        true => meaning(&words, at),
        false => Head::Short,
    }
}

/// Words in a line, as Redis's own splitting has them where there are no quotes.
fn line(held: &[u8]) -> Head {
    let Some(end) = held.iter().position(|byte| *byte == b'\n') else {
        return match held.len() > LINE_BYTES_MAX {
            true => Head::Broken,
            false => Head::Short,
        };
    };
    let words: Vec<&[u8]> = held[..end]
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .collect();
    if words.is_empty() {
        return Head::Whole(end + 1, End::Silent);
    }
    if held[..end].iter().any(|byte| matches!(byte, b'"' | b'\'')) {
        return match decides(words[0]) && fast(words[0]).is_none() {
            true => Head::Whole(end + 1, End::Opaque),
            false => Head::Whole(end + 1, End::Replied),
        };
    }
    match meaning(&words, end + 1) {
        Head::Read(command, length) => Head::Line(command, length),
        other => other,
    }
}

fn lower(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_lowercase()
}

fn fast(name: &[u8]) -> Option<&'static FastCommand> {
    FAST_COMMANDS
        .iter()
        .find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
}

/// Whether more of it must be known than that it is a command.
fn decides(name: &[u8]) -> bool {
    let name_is = |other: &&str| name.eq_ignore_ascii_case(other.as_bytes());
    fast(name).is_some() || OPAQUE.iter().chain(&STATES).any(name_is)
}

/// What a whole command is.
fn meaning(words: &[&[u8]], length: usize) -> Head {
    let behind = words.len() as u32 - 1;
    if let Some(command) = fast(words[0]) {
        return match (command.least..=command.most).contains(&behind) {
            true => Head::Read(command, length),
            false => Head::Whole(length, End::Replied),
        };
    }
    let word = |at: usize| words.get(at).map_or_else(String::new, |word| lower(word));
    let end = match (word(0).as_str(), word(1).as_str(), word(2).as_str()) {
        (name, ..) if OPAQUE.contains(&name) => End::Opaque,
        ("client", "reply", _) => End::Opaque,
        ("client", "tracking", "on") => End::Tracking(true),
        ("client", "tracking", "off") => End::Tracking(false),
        ("multi", "", _) => End::Multi(true),
        ("exec" | "discard", "", _) => End::Multi(false),
        ("select", number, "") => number.parse().map_or(End::Replied, End::Database),
        ("reset", "", _) => End::Reset,
        _ => End::Replied,
    };
    Head::Whole(length, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of a stream that comes in parts of `step` bytes, neighbours of one command put together.
    fn pieces(stream: &[u8], step: usize) -> Vec<Piece> {
        let mut requests = Requests::default();
        let mut all: Vec<Piece> = Vec::new();
        for part in stream.chunks(step) {
            requests.feed(part);
            while let Some(piece) = requests.next() {
                match (all.last_mut(), piece) {
                    (Some(Piece::Pass(before, end @ None)), Piece::Pass(bytes, ended)) => {
                        before.extend(bytes);
                        *end = ended;
                    }
                    (_, piece) => all.push(piece),
                }
            }
        }
        all
    }

    fn pass(bytes: &str, end: End) -> Piece {
        Piece::Pass(bytes.into(), Some(end))
    }

    fn read(name: &str, bytes: &str) -> Piece {
        let command = FAST_COMMANDS.iter().find(|command| command.name == name);
        Piece::Read(command.unwrap(), bytes.into())
    }

    #[test]
    fn commands_are_told_apart_wherever_they_are_cut() {
        let get = "*2\r\n$3\r\nGeT\r\n$2\r\n\r\n\r\n";
        let set = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n*1\r\n\r\n";
        let tracking = "*3\r\n$6\r\nclient\r\n$8\r\nTRACKING\r\n$2\r\non\r\n";
        let many = "*3\r\n$6\r\nexists\r\n$1\r\na\r\n$1\r\nb\r\n";
        let select = "*2\r\n$6\r\nSELECT\r\n$1\r\n9\r\n";
        let reply = "CLIENT REPLY SKIP\r\n";
        let Piece::Read(ping, bytes) = read("ping", "ping\r\n") else {
            unreachable!()
        };
        let line = Piece::Line(ping, bytes);
        let parts = [
            (get, read("get", get)),
            (set, pass(set, End::Replied)),
            ("\r\n", pass("\r\n", End::Silent)),
            ("*-1\r\n", pass("*-1\r\n", End::Silent)),
            ("ping\r\n", line),
            ("PING x\n", pass("PING x\n", End::Replied)),
            ("get \"a\"\r\n", pass("get \"a\"\r\n", End::Replied)),
            (tracking, pass(tracking, End::Tracking(true))),
            (many, read("exists", many)),
            ("MULTI\r\n", pass("MULTI\r\n", End::Multi(true))),
            ("exec\r\n", pass("exec\r\n", End::Multi(false))),
            (select, pass(select, End::Database(9))),
            ("select x\r\n", pass("select x\r\n", End::Replied)),
            ("RESET\r\n", pass("RESET\r\n", End::Reset)),
            (reply, pass(reply, End::Opaque)),
        ];
        let stream: String = parts.iter().map(|(bytes, _)| *bytes).collect();
        let wanted: Vec<Piece> = parts.into_iter().map(|(_, piece)| piece).collect();
        for step in 1..=stream.len() {
            assert_eq!(pieces(stream.as_bytes(), step), wanted, "{step} bytes each");
        }
    }

    #[test]
    fn what_is_no_command_is_left_to_redis_whole() {
        for broken in [
            "*x\r\nabc",
            "*1\r\nfoo\r\n",
            "*2\r\n$3\r\nGET\r\n$-1\r\n",
            "*3\r\n$3\r\nSET\r\n$x\r\n",
        ] {
            let pieces = pieces(broken.as_bytes(), broken.len());
            assert!(
                matches!(pieces.last(), Some(Piece::Opaque(_))),
                "{broken:?}: {pieces:?}"
            );
            let all: Vec<u8> = pieces
                .into_iter()
                .flat_map(|piece| match piece {
                    Piece::Pass(bytes, _)
                    | Piece::Read(_, bytes)
                    | Piece::Line(_, bytes)
                    | Piece::Opaque(bytes) => bytes,
                })
                .collect();
            assert_eq!(all, broken.as_bytes());
        }
    }

    #[test]
    fn numbers_to_which_redis_may_object_are_not_held_back() {
        for header in [
            "*3000000000\r\n",
            "*2\r\n$3000000000\r\n",
            "*2\r\n$3\r\nget\r\n$3000000000\r\n",
        ] {
            let pieces = pieces(header.as_bytes(), header.len());
            assert_eq!(pieces, [Piece::Pass(header.into(), None)]);
        }
    }

    #[test]
    fn half_a_write_is_not_held_back_and_half_a_read_is() {
        let mut requests = Requests::default();
        requests.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\nabc");
        let mut passed = Vec::new();
        while let Some(Piece::Pass(bytes, None)) = requests.next() {
            passed.extend(bytes);
        }
        assert_eq!((passed.len(), requests.held()), (30, 0));
        let mut requests = Requests::default();
        requests.feed(b"*2\r\n$3\r\nGET\r\n$10\r\nabc");
        assert_eq!((requests.next(), requests.held()), (None, 21));
    }

    #[test]
    fn a_read_that_is_too_long_is_passed_on() {
        let key = "k".repeat(READ_BYTES_MAX);
        let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        assert!(pieces(get.as_bytes(), 1000) == [pass(&get, End::Replied)]);
    }
}
