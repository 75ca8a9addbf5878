// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays one case on target and shadow in lockstep, step by step.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::case::{Case, KEY, Mask, Split, Step, with_prefix};
use crate::net::{Broken, Conn};
use crate::resp;

/// Reads of every hot key around a step: a cache fills what was missed.
const WARM_READS: usize = 3;
/// Pause between the pieces of a cut request, so that they are segments of their own.
const PIECE_PAUSE: Duration = Duration::from_micros(300);
/// At a case's end: how long unasked bytes are awaited.
const END_WAIT: Duration = Duration::from_millis(5);
/// Bytes shown of requests and replies.
const SHOWN_BYTES: usize = 160;

/// Why a case did not go through.
pub(super) enum Trouble {
    Differs(String),
    Shadow(Broken),
}

pub(super) type Played<T> = std::result::Result<T, Trouble>;

/// The same connection to both servers.
pub(super) struct Pair {
    pub(super) target: Conn,
    pub(super) shadow: Conn,
}

impl Pair {
    pub(super) fn connect(target: SocketAddr, shadow: SocketAddr, stall: Duration) -> Result<Self> {
        Ok(Self {
            target: Conn::connect(target, stall)?,
            shadow: Conn::connect(shadow, stall)?,
        })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Played<()> {
        self.shadow.send(bytes).map_err(Trouble::Shadow)?;
        self.target
            .send(bytes)
            .map_err(|e| differs(bytes, &format!("sending to the target: {e}")))
    }

    /// Sends to both; whether it arrived is for what is read afterwards to show: a server that has
    /// found an error may have closed.
    pub(super) fn send_on(&mut self, bytes: &[u8]) {
        let _ = self.shadow.send(bytes);
        let _ = self.target.send(bytes);
    }

    /// One reply of the shadow and the same number of bytes of the target.
    pub(super) fn compare(&mut self, request: &[u8]) -> Played<()> {
        let want = self.shadow.reply().map_err(Trouble::Shadow)?;
        while self.target.buffered().len() < want.len() {
            if !want.starts_with(self.target.buffered()) {
                break;
            }
            self.target.fill().map_err(|e| {
                let had = resp::show(self.target.buffered(), SHOWN_BYTES);
                let want = resp::show(&want, SHOWN_BYTES);
                differs(
                    request,
                    &format!("target: {had:?}, then {e}; shadow: {want}"),
                )
            })?;
        }
        if !self.target.buffered().starts_with(&want) {
            let got = resp::show(self.target.buffered(), SHOWN_BYTES);
            let want = resp::show(&want, SHOWN_BYTES);
            return Err(differs(request, &format!("target: {got}; shadow: {want}")));
        }
        self.target.consume(want.len());
        Ok(())
    }

    pub(super) fn masked(&mut self, request: &[u8], mask: Mask) -> Played<()> {
        let want = masked(&self.shadow.reply().map_err(Trouble::Shadow)?, mask);
        let got = self
            .target
            .reply()
            .map_err(|e| differs(request, &format!("target: {e}")))?;
        let got = masked(&got, mask);
        if got == want {
            return Ok(());
        }
        let (got, want) = (resp::show(&got, 400), resp::show(&want, 400));
        Err(differs(request, &format!("target: {got}; shadow: {want}")))
    }

    /// A command and its reply.
    pub(super) fn call(&mut self, command: &[u8]) -> Played<()> {
        self.send(command)?;
        self.compare(command)
    }

    /// Neither side may have anything to say that nobody asked for.
    pub(super) fn nothing_left(&mut self, wait: Duration) -> Played<()> {
        let target = self.target.rest(wait);
        let shadow = self.shadow.rest(Duration::ZERO);
        if target == shadow {
            return Ok(());
        }
        let (target, shadow) = (
            resp::show(&target, SHOWN_BYTES),
            resp::show(&shadow, SHOWN_BYTES),
        );
        let what = format!("at the end the target sent {target:?}, the shadow {shadow:?}");
        Err(Trouble::Differs(what))
    }

    /// Both sides close, with nothing left to say.
    pub(super) fn closed(&mut self) -> Played<()> {
        let shadow = end_of(&mut self.shadow);
        let target = end_of(&mut self.target);
        if shadow != Some(Vec::new()) {
            let shadow = shadow.map(|rest| resp::show(&rest, SHOWN_BYTES));
            let what = format!("the shadow did not just close: {shadow:?}");
            return Err(Trouble::Shadow(Broken::Garbage(what)));
        }
        match target {
            Some(rest) if rest.is_empty() => Ok(()),
            Some(rest) => {
                let rest = resp::show(&rest, SHOWN_BYTES);
                Err(Trouble::Differs(format!(
                    "before its end the target sent {rest}"
                )))
            }
            None => Err(Trouble::Differs(
                "the shadow closes, the target does not".into(),
            )),
        }
    }
}

pub(super) fn differs(request: &[u8], what: &str) -> Trouble {
    Trouble::Differs(format!(
        "after {}: {what}",
        resp::show(request, SHOWN_BYTES)
    ))
}

/// What is sent before the end; `None` if there is no end within the stall time. A reset counts
/// as an end: Redis itself resets when it closes with bytes unread.
fn end_of(conn: &mut Conn) -> Option<Vec<u8>> {
    loop {
        match conn.fill() {
            Ok(()) => {}
            Err(Broken::Eof | Broken::Reset(_)) => return Some(conn.buffered().to_vec()),
            Err(_) => return None,
        }
    }
}

fn masked(reply: &[u8], mask: Mask) -> Vec<u8> {
    const ID: &[u8] = b"$2\r\nid\r\n:";
    let from = match mask {
        Mask::Number => 1,
        Mask::HelloId => match reply.windows(ID.len()).position(|w| w == ID) {
            Some(at) => at + ID.len(),
            None => return reply.to_vec(),
        },
    };
    let digits = reply[from..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    [&reply[..from], b"N", &reply[from + digits..]].concat()
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
                self.main.masked(&bytes, *mask)
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
