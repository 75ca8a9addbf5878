// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays one case on target and shadow in lockstep, step by step.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::case::{Case, KEY, Mask, Split, Step, with_prefix};
use crate::net::{Broken, Conn};
use crate::pair::{Pair, Played, Trouble, without_hello_id, without_number};
use crate::resp;

/// Reads of every hot key around a step: a cache fills what was missed.
const WARM_READS: usize = 3;
/// Pause between the pieces of a cut request, so that they are segments of their own.
const PIECE_PAUSE: Duration = Duration::from_micros(300);
/// At a case's end: how long unasked bytes are awaited.
const END_WAIT: Duration = Duration::from_millis(5);
pub(super) fn masked(reply: &[u8], mask: Mask) -> Vec<u8> {
    match mask {
        Mask::Number => without_number(reply, 1),
        Mask::HelloId => without_hello_id(reply),
    }
}

/// Plays cases with one key prefix.
pub struct Player {
    addresses: (SocketAddr, SocketAddr),
    stall: Duration,
    warm_pause: Duration,
    prefix: String,
    main: Pair,
    other: Pair,
    /// Steps played.
    pub steps: u64,
    /// Reads of hot keys compared.
    pub reads: u64,
}

impl Player {
    /// Connects twice to both.
    ///
    /// # Errors
    /// If one of them cannot be reached.
    pub fn new(
        (target, shadow): (SocketAddr, SocketAddr),
        stall: Duration,
        warm_pause: Duration,
        prefix: String,
    ) -> Result<Self> {
        let main = Pair::connect(target, shadow, stall)?;
        let other = Pair::connect(target, shadow, stall)?;
        let addresses = (target, shadow);
        Ok(Self {
            addresses,
            stall,
            warm_pause,
            prefix,
            main,
            other,
            steps: 0,
            reads: 0,
        })
    }

    /// Plays the case; `Some` is the step that differs and how.
    ///
    /// # Errors
    /// If the shadow fails: the case itself is wrong or the shadow is down.
    pub fn play(&mut self, case: &Case) -> Result<Option<(usize, String)>> {
        let mut at = 0;
        let played = self.play_steps(case, &mut at);
        match played {
            Ok(()) => Ok(None),
            Err(Trouble::Differs(what)) => Ok(Some((at, what))),
            Err(Trouble::Shadow(broken)) => Err(anyhow!(
                "case {:?}, step {at}: the shadow failed: {broken}",
                case.name
            )),
        }
    }

    fn play_steps(&mut self, case: &Case, at: &mut usize) -> Played<()> {
        let key = with_prefix(KEY.as_bytes(), &self.prefix);
        let set = resp::command(&[b"SET", &key[..], b"value"]);
        self.main.call(&set)?;
        self.commands(&case.given)?;
        std::thread::sleep(case.settle);
        let mut settled = true;
        for (i, step) in case.steps.iter().enumerate() {
            *at = i;
            if settled {
                self.read_hot(case)?;
                std::thread::sleep(self.warm_pause);
            }
            self.step(step)?;
            self.steps += 1;
            // A step without reply may have been carried out by one server only.
            settled = !matches!(step, Step::Send(_, 0));
            if settled {
                self.read_hot(case)?;
            }
        }
        // A monitoring connection goes on getting lines.
        if case.steps.iter().any(|s| matches!(s, Step::Monitored(_))) {
            return Ok(());
        }
        self.main.nothing_left(END_WAIT)?;
        self.other.nothing_left(END_WAIT)?;
        self.commands(&case.finally)
    }

    fn commands(&mut self, commands: &[Vec<u8>]) -> Played<()> {
        for command in commands {
            self.other.call(&with_prefix(command, &self.prefix))?;
        }
        Ok(())
    }

    /// The other connection reads all hot keys several times; what it sees is compared.
    fn read_hot(&mut self, case: &Case) -> Played<()> {
        for _ in 0..WARM_READS {
            for read in &case.hot {
                self.other.call(&with_prefix(read, &self.prefix))?;
                self.reads += 1;
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Played<()> {
        match step {
            Step::Send(pieces, replies) => self.send_pieces(pieces, *replies),
            Step::Masked(bytes, mask) => {
                let bytes = with_prefix(bytes, &self.prefix);
                self.main.send(&bytes)?;
                self.main.masked(&bytes, |reply| masked(reply, *mask))
            }
            Step::Receive(replies) => {
                (0..*replies).try_for_each(|_| self.main.compare(b"(something else)"))
            }
            Step::Monitored(lines) => monitored(&mut self.main, &self.prefix, *lines),
            Step::Closed => {
                self.main.closed()?;
                let (target, shadow) = self.addresses;
                self.main = Pair::connect(target, shadow, self.stall)
                    .map_err(|e| Trouble::Differs(format!("connecting anew: {e:#}")))?;
                Ok(())
            }
            Step::Other(bytes) => self.other.call(&with_prefix(bytes, &self.prefix)),
            Step::Sleep(time) => {
                std::thread::sleep(*time);
                Ok(())
            }
        }
    }

    fn send_pieces(&mut self, pieces: &[Vec<u8>], replies: usize) -> Played<()> {
        let pieces: Vec<Vec<u8>> = pieces
            .iter()
            .map(|p| with_prefix(p, &self.prefix))
            .collect();
        if pieces[0] == Split::EVERY {
            return self.every_cut(&pieces[1]);
        }
        for piece in &pieces {
            self.main.send(piece)?;
        }
        (0..replies).try_for_each(|_| self.main.compare(&pieces[0]))
    }

    fn every_cut(&mut self, whole: &[u8]) -> Played<()> {
        for cut in 1..whole.len() {
            self.main.send(&whole[..cut])?;
            std::thread::sleep(PIECE_PAUSE);
            self.main.send(&whole[cut..])?;
            self.main.compare(whole)?;
        }
        for byte in whole.chunks(1) {
            self.main.send(byte)?;
        }
        self.main.compare(whole)
    }
}

/// Lines that name this case's keys, without time and address; others are nobody's business (a
/// cache's own connection shows in them).
pub(super) fn monitored(main: &mut Pair, prefix: &str, lines: usize) -> Played<()> {
    for _ in 0..lines {
        let want = next_monitored(&mut main.shadow, prefix).map_err(Trouble::Shadow)?;
        let got = next_monitored(&mut main.target, prefix)
            .map_err(|e| Trouble::Differs(format!("MONITOR: {e}; shadow: {want}")))?;
        if got != want {
            return Err(Trouble::Differs(format!("MONITOR: {got}; shadow: {want}")));
        }
    }
    Ok(())
}

/// Reads that warm a key up, of which a cache may answer any, and what a cache asks to fill a key.
const READS: [&str; 9] = [
    "GET",
    "STRLEN",
    "GETRANGE",
    "PEXPIRETIME",
    "OBJECT",
    "MEMORY",
    "HLEN",
    "HRANDFIELD",
    "INFO",
];

fn next_monitored(conn: &mut Conn, prefix: &str) -> std::result::Result<String, Broken> {
    loop {
        let line = String::from_utf8_lossy(&conn.reply()?).into_owned();
        let (_, command) = line.split_once("] ").unwrap_or(("", &line));
        let name = command.split('"').nth(1).unwrap_or_default();
        if line.contains(prefix) && !READS.contains(&name) {
            return Ok(command.to_string());
        }
    }
}
