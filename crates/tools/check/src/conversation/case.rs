// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases as lists of steps.

use std::time::Duration;

use crate::resp;

/// Stands for the case's key prefix wherever it occurs in bytes to send.
pub const PREFIX: &str = "{p}";
/// The key that every case starts with and that is read around every step.
pub const KEY: &str = "{p}k";

/// What is compared although it differs from server to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// `id` in HELLO's reply.
    HelloId,
    /// A reply that is nothing but a number of this server.
    Number,
}

/// One step of a case. "Main" is the connection that does odd things, "other" a normal one.
#[derive(Debug, Clone)]
pub enum Step {
    /// Main sends the pieces, each a segment, and gets this many replies.
    Send(Vec<Vec<u8>>, usize),
    /// Main sends; what comes back is compared with this masked.
    Masked(Vec<u8>, Mask),
    /// Main gets this many replies that something else has caused.
    Receive(usize),
    /// Main gets lines of MONITOR that name keys of this case.
    Monitored(usize),
    /// The peer closes main; a new main is connected.
    Closed,
    /// The other connection sends and gets one reply.
    Other(Vec<u8>),
    /// Nothing for a while.
    Sleep(Duration),
}

/// A case: steps on a fresh main connection, with [`KEY`] set to "value".
#[derive(Debug, Clone)]
pub struct Case {
    /// Name, unique.
    pub name: &'static str,
    /// Deletes or swaps whole databases.
    pub flushes: bool,
    /// Has keys that are everybody's, so no other play may go on.
    pub alone: bool,
    /// What it does stops answers in front of Redis for all, or forgets how many there were, or most
    /// of it is done by a user who is never answered there.
    pub stops_answers: bool,
    /// What the other connection does first, and last, when all was compared.
    pub given: Vec<Vec<u8>>,
    /// See `given`.
    pub finally: Vec<Vec<u8>>,
    /// After `given`, before anything is read.
    pub settle: Duration,
    /// What the other connection reads around every step: [`KEY`] and more.
    pub hot: Vec<Vec<u8>>,
    /// What is done.
    pub steps: Vec<Step>,
}

impl Case {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            flushes: false,
            alone: false,
            stops_answers: false,
            given: Vec::new(),
            finally: Vec::new(),
            settle: Duration::ZERO,
            hot: vec![encoded(&["GET", KEY])],
            steps: Vec::new(),
        }
    }

    /// Marks the case as one after which nobody can say how much was answered in front of Redis.
    pub fn stopping(mut self) -> Self {
        self.stops_answers = true;
        self
    }

    /// Commands, separated by " ; ", that the other connection sends first.
    pub fn given(mut self, commands: &str) -> Self {
        self.given.extend(each(commands));
        self
    }

    /// The same at the end.
    pub fn finally(mut self, commands: &str) -> Self {
        self.finally.extend(each(commands));
        self
    }

    /// What was given needs this long until a cache in front of Redis is at work again.
    pub fn settles_ms(mut self, ms: u64) -> Self {
        self.settle = Duration::from_millis(ms);
        self
    }

    /// More reads around every step.
    pub fn reads(mut self, commands: &str) -> Self {
        self.hot.extend(each(commands));
        self
    }

    /// Marks the case as one that touches whole databases.
    pub fn flushing(mut self) -> Self {
        self.flushes = true;
        self.alone()
    }

    /// Marks the case as one whose keys are everybody's.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// One more key that is read around every step.
    pub fn hot(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.hot.push(encoded(&[b"GET".to_vec(), key.into()]));
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// A command as words, one reply.
    pub fn cmd(self, words: &str) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        self.args(&words)
    }

    /// Several commands as words, separated by " ; ", each sent alone.
    pub fn cmds(self, commands: &str) -> Self {
        commands.split(" ; ").fold(self, Self::cmd)
    }

    /// A command of any bytes, one reply. Only the arguments' [`PREFIX`] is replaced, so the
    /// lengths are right: encoding is done by the player.
    pub fn args<A: AsRef<[u8]>>(self, args: &[A]) -> Self {
        self.step(Step::Send(vec![encoded(args)], 1))
    }

    /// A command without a reply.
    pub fn silent(self, words: &str) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        self.step(Step::Send(vec![encoded(&words)], 0))
    }

    /// Raw bytes in one segment and the number of replies.
    pub fn raw(self, bytes: impl AsRef<[u8]>, replies: usize) -> Self {
        self.step(Step::Send(vec![bytes.as_ref().to_vec()], replies))
    }

    /// Several commands, separated by " ; ", in one segment, one reply each.
    pub fn segment(self, commands: &str) -> Self {
        let bytes: Vec<u8> = each(commands).concat();
        let replies = commands.split(" ; ").count();
        self.step(Step::Send(vec![bytes], replies))
    }

    /// The command once for every place where it can be cut in two, and once byte by byte.
    pub fn every_cut(mut self, words: &str) -> Self {
        let whole = encoded(&words.split(' ').collect::<Vec<_>>());
        self.steps
            .push(Step::Send(vec![Split::EVERY.to_vec(), whole], 1));
        self
    }

    pub fn masked(self, words: &str, mask: Mask) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        self.step(Step::Masked(encoded(&words), mask))
    }

    pub fn receive(self, replies: usize) -> Self {
        self.step(Step::Receive(replies))
    }

    pub fn monitored(self, lines: usize) -> Self {
        self.step(Step::Monitored(lines))
    }

    pub fn closed(self) -> Self {
        self.step(Step::Closed)
    }

    pub fn other(self, words: &str) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        self.step(Step::Other(encoded(&words)))
    }

    pub fn sleep_ms(self, ms: u64) -> Self {
        self.step(Step::Sleep(Duration::from_millis(ms)))
    }
}

/// First piece of a [`Step::Send`] that is to be cut at every place.
pub struct Split;

impl Split {
    /// No request begins like this.
    pub const EVERY: &'static [u8] = b"\0every cut\0";
}

/// Commands as words, separated by " ; ".
fn each(commands: &str) -> Vec<Vec<u8>> {
    let encode = |words: &str| encoded(&words.split(' ').collect::<Vec<_>>());
    commands.split(" ; ").map(encode).collect()
}

/// Encodes with [`PREFIX`] counted as [`PREFIX_BYTES`]: the player's prefix is padded to that.
fn encoded<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let filler = [b'#'; PREFIX_BYTES];
    let args: Vec<Vec<u8>> = args
        .iter()
        .map(|a| replace(a.as_ref(), PREFIX.as_bytes(), &filler))
        .collect();
    resp::command(&args)
}

/// Length of every case's key prefix.
pub const PREFIX_BYTES: usize = 16;

/// Puts the prefix into place: encoded commands carry filler, raw bytes the placeholder.
pub fn with_prefix(bytes: &[u8], prefix: &str) -> Vec<u8> {
    let filler = [b'#'; PREFIX_BYTES];
    let bytes = replace(bytes, &filler, prefix.as_bytes());
    replace(&bytes, PREFIX.as_bytes(), prefix.as_bytes())
}

fn replace(bytes: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(what) {
            out.extend_from_slice(with);
            at += what.len();
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_keeps_lengths_right() {
        let prefix = "p".repeat(PREFIX_BYTES);
        let sent = with_prefix(&encoded(&["GET", KEY]), &prefix);
        assert_eq!(
            sent,
            resp::command(&["GET".to_string(), format!("{prefix}k")])
        );
        assert_eq!(with_prefix(b"GET {p}k\r\n", "x"), b"GET xk\r\n");
    }
}
