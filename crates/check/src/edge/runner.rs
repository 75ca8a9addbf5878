// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays one case on target and shadow in lockstep.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::script::{Case, KEY, Mask, PREFIX_BYTES, Split, Step, with_prefix};
use crate::net::{Broken, Conn};
use crate::resp;

/// Reads of every hot key around a step: a cache fills what was missed more than once.
const WARM_READS: usize = 3;
/// Pause between the pieces of a cut request, so that they are segments of their own.
const PIECE_PAUSE: Duration = Duration::from_micros(300);
/// At a case's end: how long unasked bytes are awaited.
const END_WAIT: Duration = Duration::from_millis(5);
/// Bytes shown of requests and replies.
const SHOWN_BYTES: usize = 160;

/// Why a case did not go through.
enum Trouble {
    Differs(String),
    Shadow(Broken),
}

type Played<T> = std::result::Result<T, Trouble>;

/// The same connection to both servers.
struct Pair {
    target: Conn,
    shadow: Conn,
}

impl Pair {
    fn connect(target: SocketAddr, shadow: SocketAddr, stall: Duration) -> Result<Self> {
        Ok(Self {
            target: Conn::connect(target, stall)?,
            shadow: Conn::connect(shadow, stall)?,
        })
    }

    fn send(&mut self, bytes: &[u8]) -> Played<()> {
        self.shadow.send(bytes).map_err(Trouble::Shadow)?;
        self.target
            .send(bytes)
            .map_err(|e| differs(bytes, &format!("sending to the target: {e}")))
    }

    /// One reply of the shadow and the same number of bytes of the target.
    fn compare(&mut self, request: &[u8]) -> Played<()> {
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

    fn masked(&mut self, request: &[u8], mask: Mask) -> Played<()> {
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

    /// Both sides close, with nothing left to say.
    fn closed(&mut self) -> Played<()> {
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

fn differs(request: &[u8], what: &str) -> Trouble {
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
        target: SocketAddr,
        shadow: SocketAddr,
        stall: Duration,
        warm_pause: Duration,
        mut prefix: String,
    ) -> Result<Self> {
        assert!(
            prefix.len() <= PREFIX_BYTES,
            "{prefix} is longer than {PREFIX_BYTES}"
        );
        while prefix.len() < PREFIX_BYTES {
            prefix.push('.');
        }
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
        let set = resp::command(&["SET", &with_prefix_str(KEY, &self.prefix), "value"]);
        self.main.send(&set)?;
        self.main.compare(&set)?;
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
        self.nothing_left()
    }

    /// The other connection reads all hot keys several times; what it sees is compared.
    fn read_hot(&mut self, case: &Case) -> Played<()> {
        for _ in 0..WARM_READS {
            for key in &case.hot {
                let get = resp::command(&[b"GET", &with_prefix(key, &self.prefix)[..]]);
                self.other.send(&get)?;
                self.other.compare(&get)?;
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
            Step::Monitored(lines) => self.monitored(*lines),
            Step::Closed => {
                self.main.closed()?;
                let (target, shadow) = self.addresses;
                self.main = Pair::connect(target, shadow, self.stall)
                    .map_err(|e| Trouble::Differs(format!("connecting anew: {e:#}")))?;
                Ok(())
            }
            Step::Other(bytes) => {
                let bytes = with_prefix(bytes, &self.prefix);
                self.other.send(&bytes)?;
                self.other.compare(&bytes)
            }
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

    /// Lines that name this case's keys, without time and address; others are nobody's business
    /// (a cache's own connection shows in them).
    fn monitored(&mut self, lines: usize) -> Played<()> {
        for _ in 0..lines {
            let want = next_monitored(&mut self.main.shadow, &self.prefix);
            let want = want.map_err(Trouble::Shadow)?;
            let got = next_monitored(&mut self.main.target, &self.prefix)
                .map_err(|e| Trouble::Differs(format!("MONITOR: {e}; shadow: {want}")))?;
            if got != want {
                return Err(Trouble::Differs(format!("MONITOR: {got}; shadow: {want}")));
            }
        }
        Ok(())
    }

    /// Neither connection may get anything that nobody asked for.
    fn nothing_left(&mut self) -> Played<()> {
        for pair in [&mut self.main, &mut self.other] {
            let target = pair.target.rest(END_WAIT);
            let shadow = pair.shadow.rest(Duration::ZERO);
            if target != shadow {
                let (target, shadow) = (
                    resp::show(&target, SHOWN_BYTES),
                    resp::show(&shadow, SHOWN_BYTES),
                );
                let what = format!("at the end the target sent {target:?}, the shadow {shadow:?}");
                return Err(Trouble::Differs(what));
            }
        }
        Ok(())
    }
}

fn with_prefix_str(text: &str, prefix: &str) -> String {
    String::from_utf8_lossy(&with_prefix(text.as_bytes(), prefix)).into_owned()
}

fn next_monitored(conn: &mut Conn, prefix: &str) -> std::result::Result<String, Broken> {
    loop {
        let line = String::from_utf8_lossy(&conn.reply()?).into_owned();
        // Warm-up reads are not compared: a cache may well answer them. Nor is what a cache asks
        // for itself to fill a key.
        let read = line.contains("] \"GET\"") || line.contains("] \"PEXPIRETIME\"");
        if line.contains(prefix) && !read {
            let (_, command) = line.split_once("] ").unwrap_or(("", &line));
            return Ok(command.to_string());
        }
    }
}
