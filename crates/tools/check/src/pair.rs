// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same connection to a target and to a plain Redis: what is sent to one is sent to the other,
//! and what both reply is compared.
//!
//! How much is compared, the plain Redis says: it is read first, and the target owes the same bytes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::net::{Broken, Conn};
use crate::resp;

/// Bytes shown of requests and replies.
pub const SHOWN_BYTES: usize = 160;
/// The same of replies with many fields.
const SHOWN_LONG_BYTES: usize = 400;

/// Why a comparison did not go through.
#[derive(Debug)]
pub enum Trouble {
    /// The target did not do what the shadow did; both byte strings are in the text.
    Differs(String),
    /// The shadow itself failed, so nothing can be compared.
    Shadow(Broken),
}

/// Result of what is compared.
pub type Played<T> = std::result::Result<T, Trouble>;

/// The same connection to both servers.
#[derive(Debug)]
pub struct Pair {
    /// To the address under test.
    pub target: Conn,
    /// To the plain Redis.
    pub shadow: Conn,
}

/// What one side has said, and whether it has closed.
type Said = (Vec<u8>, bool);

impl Pair {
    /// Connects to both.
    ///
    /// # Errors
    /// If one of them cannot be reached.
    pub fn connect(target: SocketAddr, shadow: SocketAddr, stall: Duration) -> Result<Self> {
        Ok(Self {
            target: Conn::connect(target, stall)?,
            shadow: Conn::connect(shadow, stall)?,
        })
    }

    /// Sends to both.
    ///
    /// # Errors
    /// If one of them does not take it.
    pub fn send(&mut self, bytes: &[u8]) -> Played<()> {
        self.shadow.send(bytes).map_err(Trouble::Shadow)?;
        self.target
            .send(bytes)
            .map_err(|e| differs(bytes, &format!("sending to the target: {e}")))
    }

    /// Sends to both; whether it arrived is for what is read afterwards to show: a server that has
    /// found an error may have closed.
    pub fn send_on(&mut self, bytes: &[u8]) {
        let _ = self.shadow.send(bytes);
        let _ = self.target.send(bytes);
    }

    /// One reply of the shadow and the same number of bytes of the target.
    ///
    /// # Errors
    /// If they differ.
    pub fn compare(&mut self, request: &[u8]) -> Played<()> {
        let want = self.shadow.reply().map_err(Trouble::Shadow)?;
        self.owes(request, &want)
    }

    /// What the shadow says up to `mark`, and the same number of bytes of the target: where nobody can
    /// tell how many replies there are.
    ///
    /// # Errors
    /// If they differ.
    pub fn compare_until(&mut self, request: &[u8], mark: &[u8]) -> Played<()> {
        let want = self.shadow.until(mark).map_err(Trouble::Shadow)?;
        self.owes(request, &want)
    }

    /// The target must say just this next.
    fn owes(&mut self, request: &[u8], want: &[u8]) -> Played<()> {
        while self.target.buffered().len() < want.len() {
            if !want.starts_with(self.target.buffered()) {
                break;
            }
            self.target.fill().map_err(|e| {
                let had = resp::show(self.target.buffered(), SHOWN_BYTES);
                let want = resp::show(want, SHOWN_BYTES);
                differs(
                    request,
                    &format!("target: {had:?}, then {e}; shadow: {want}"),
                )
            })?;
        }
        if !self.target.buffered().starts_with(want) {
            let got = resp::show(self.target.buffered(), SHOWN_BYTES);
            let want = resp::show(want, SHOWN_BYTES);
            return Err(differs(request, &format!("target: {got}; shadow: {want}")));
        }
        self.target.consume(want.len());
        Ok(())
    }

    /// One reply of each, compared after `mask` took out what rightly differs.
    ///
    /// # Errors
    /// If they differ.
    pub fn masked(&mut self, request: &[u8], mask: impl Fn(&[u8]) -> Vec<u8>) -> Played<()> {
        let want = mask(&self.shadow.reply().map_err(Trouble::Shadow)?);
        let got = self
            .target
            .reply()
            .map_err(|e| differs(request, &format!("target: {e}")))?;
        let got = mask(&got);
        if got == want {
            return Ok(());
        }
        let (got, want) = (
            resp::show(&got, SHOWN_LONG_BYTES),
            resp::show(&want, SHOWN_LONG_BYTES),
        );
        Err(differs(request, &format!("target: {got}; shadow: {want}")))
    }

    /// A command and its reply.
    ///
    /// # Errors
    /// If the replies differ.
    pub fn call(&mut self, command: &[u8]) -> Played<()> {
        self.send(command)?;
        self.compare(command)
    }

    /// Everything that both say until both have been silent for `quiet`, and whether they close: where
    /// a server may say nothing, or end the connection. The slower side is waited for.
    ///
    /// # Errors
    /// If they still differ when nothing moved for `stall`.
    pub fn compare_all(&mut self, request: &[u8], quiet: Duration, stall: Duration) -> Played<()> {
        let mut before: Option<(Said, Said)> = None;
        let mut moved = Instant::now();
        loop {
            let ended = (self.target.gather(quiet), self.shadow.gather(quiet));
            let said = |conn: &Conn, ended| (conn.buffered().to_vec(), ended);
            let now = (said(&self.target, ended.0), said(&self.shadow, ended.1));
            if before.as_ref() != Some(&now) {
                before = Some(now);
                moved = Instant::now();
                continue;
            }
            if now.0 == now.1 {
                let heard = now.0.0.len();
                self.target.consume(heard);
                self.shadow.consume(heard);
                return Ok(());
            }
            if moved.elapsed() > stall {
                let told = |(bytes, ended): &Said| {
                    let end = if *ended { " and an end" } else { "" };
                    format!("{}{end}", resp::show(bytes, SHOWN_BYTES))
                };
                let (got, want) = (told(&now.0), told(&now.1));
                return Err(differs(request, &format!("target: {got}; shadow: {want}")));
            }
        }
    }

    /// Neither side may have anything to say that nobody asked for.
    ///
    /// # Errors
    /// If they do not say the same.
    pub fn nothing_left(&mut self, wait: Duration) -> Played<()> {
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
    ///
    /// # Errors
    /// If one does not.
    pub fn closed(&mut self) -> Played<()> {
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

/// What differs, and what was sent before.
#[must_use]
pub fn differs(request: &[u8], what: &str) -> Trouble {
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

/// HELLO's reply without the connection's number, which is each server's own.
#[must_use]
pub fn without_hello_id(reply: &[u8]) -> Vec<u8> {
    const ID: &[u8] = b"$2\r\nid\r\n:";
    match reply.windows(ID.len()).position(|w| w == ID) {
        Some(at) => without_number(reply, at + ID.len()),
        None => reply.to_vec(),
    }
}

/// The reply without the digits at this place.
#[must_use]
pub fn without_number(reply: &[u8], from: usize) -> Vec<u8> {
    let digits = reply[from..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    [&reply[..from], b"N", &reply[from + digits..]].concat()
}
