// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays an exchange over a wire.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use erb_wire::{Segment as Wired, flags};

use crate::exchange::{Exchange, FIN, Fault, Offer, RST, SYN, Segment, Silence, Stamp, Step};
use crate::frame::{self, Numbers, WINDOW, WINDOW_SCALE};
use crate::peer::{Peer, Seen};
use crate::wire::{Ends, Wire};

/// Longest wait for counters, which say what the answer that came earlier was.
const TRIES: u32 = 20;
/// Where the client's clock begins: far from zero, so that old stamps are not before it.
const STAMP_FIRST: u32 = 1_000_000;
/// How far it moves with each segment.
const STAMP_STEP: u32 = 10;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was done and seen, one line each, in client space.
    pub log: String,
    /// What went wrong.
    pub failure: Option<String>,
    /// By how much a time that was waited for was exceeded: others had the processor, and what came then may have
    /// come later.
    pub late: Duration,
}

/// Plays `exchange`.
pub fn play(wire: &mut dyn Wire, exchange: &Exchange) -> Outcome {
    let ends = wire.fresh_ends();
    let mut player = Player {
        wire,
        ends,
        peer: Peer::default(),
        stamp: STAMP_FIRST,
        log: format!("{}\n{}\n\n", exchange.name, exchange.rule),
        since: 0,
        sent_at: Duration::ZERO,
        late: Duration::ZERO,
        read: 0,
        ends_sent: BTreeSet::new(),
        counters: counters_of(exchange),
    };
    let done = exchange.steps.iter().try_for_each(|step| player.step(step));
    let failure = done.err().map(|why| {
        player.give_up();
        let from = player.peer.segments.len().saturating_sub(12);
        let last = &player.peer.segments[from..];
        format!(
            "{}: {why}\nso far:\n{}last segments: {last:#?}",
            exchange.name, player.log
        )
    });
    Outcome {
        log: player.log,
        failure,
        late: player.late,
    }
}

struct Player<'a> {
    wire: &'a mut dyn Wire,
    ends: Ends,
    peer: Peer,
    /// Newest timestamp sent.
    stamp: u32,
    log: String,
    /// Segments that were there before the last send.
    since: usize,
    sent_at: Duration,
    late: Duration,
    /// End of the stream that steps have asked for.
    read: i64,
    /// Ends of all segments sent.
    ends_sent: BTreeSet<i64>,
    counters: BTreeMap<&'static str, u64>,
}

/// The counters that an exchange asks for.
fn counters_of(exchange: &Exchange) -> BTreeMap<&'static str, u64> {
    let names = exchange.steps.iter().filter_map(|step| match step {
        Step::Count(name, ..) => Some((*name, 0)),
        _ => None,
    });
    names.collect()
}

impl Player<'_> {
    /// Counters move from here on.
    fn count_from_here(&mut self) {
        let names: Vec<&'static str> = self.counters.keys().copied().collect();
        let counts = self.wire.counters(&names);
        self.counters = names.into_iter().zip(counts).collect();
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Ask(words, reply) => self.ask(words, reply),
            Step::Heat(key) => {
                self.wire.heat(key);
                self.note(format_args!("hot {key}"));
                Ok(())
            }
            Step::Connect(offer) => self.connect(offer),
            Step::ConnectInVain(offer, ms) => self.connect_in_vain(offer, *ms),
            Step::Send(segments) => self.send(segments),
            Step::Reply(at, bytes) => self.reply(*at, bytes),
            Step::Again(at, bytes) => self.again(*at, bytes),
            Step::Bare(seq, ack) => {
                self.since(&format!("a bare ACK, seq {seq} ack {ack}"), |seen| {
                    seen.is_bare() && (seen.seq, seen.ack) == (*seq, *ack)
                })?;
                self.note(format_args!("< seq {seq} ack {ack}"));
                Ok(())
            }
            Step::Acked(ack) => {
                self.until(&format!("ACK {ack}"), |peer, _| peer.acked >= *ack)?;
                self.note(format_args!("< ack {ack}"));
                Ok(())
            }
            Step::Fin(seq, anew) => self.fin(*seq, *anew),
            Step::Rst(seq) => {
                self.since(&format!("RST {seq}"), |seen| {
                    seen.flags & RST != 0 && seen.seq == *seq
                })?;
                self.note(format_args!("< RST seq {seq}"));
                Ok(())
            }
            Step::Silence(ms, what) => self.silence(*ms, *what),
            Step::Copies(number, ms, most) => self.copies(*number, *ms, *most),
            Step::Echo => self.echo(),
            Step::Pause(ms) => self.pass(*ms),
            Step::Count(name, least, most) => self.count(name, *least, *most),
        }
    }

    /// Ends the connection, so that nothing of it holds up the exchanges that follow.
    fn give_up(&mut self) {
        let ack = self.peer.stream_end();
        // Exact is the end of one of them, whether it should have been taken or not.
        for seq in std::mem::take(&mut self.ends_sent) {
            let frame = self.frame(&Segment::ack(seq, ack).flags(RST).stray());
            self.wire.send(&[frame]);
        }
    }

    fn note(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.log, "{line}").expect("a string takes everything");
    }

    fn ask(&mut self, words: &str, reply: &str) -> Result<(), String> {
        let got = self.wire.ask(words);
        if got != reply {
            return Err(format!("{words:?} was answered by {got:?}, not {reply:?}"));
        }
        self.note(format_args!("{words}: {}", reply.escape_default()));
        Ok(())
    }

    /// Sends the SYN.
    fn open(&mut self, offer: &Offer) {
        self.stamp += STAMP_STEP;
        let syn = Segment {
            seq: -1,
            ack: None,
            flags: SYN,
            window: None,
            stamp: Stamp::Now,
            sack: Vec::new(),
            ecn: 0,
            fault: Fault::None,
            payload: Vec::new(),
            counts: true,
        };
        let numbers = Numbers {
            seq: offer.isn,
            ack: 0,
            server_zero: 0,
            stamp: offer.timestamps.then_some((self.stamp, 0)),
        };
        let frame = frame::build(&self.ends, numbers, &syn, Some(offer));
        self.wire.send(&[frame]);
        let how = if offer.timestamps {
            ""
        } else {
            ", no timestamps"
        };
        self.note(format_args!("> SYN{how}"));
    }

    fn connect(&mut self, offer: &Offer) -> Result<(), String> {
        self.open(offer);
        let end = self.wire.now() + self.wire.wait_max();
        let zero = offer.isn.wrapping_add(1);
        let answer = loop {
            let answer = self.receive(end)?.ok_or("no SYN-ACK")?;
            if answer.has(flags::SYN | flags::ACK) && answer.ack == zero {
                break answer;
            }
        };
        if answer.options.ts.is_some() != offer.timestamps || answer.options.sack_ok != offer.sack {
            return Err(format!("not what was offered: {answer:?}"));
        }
        self.note(format_args!("< SYN ACK"));
        self.peer = Peer::new(zero, &answer, offer.timestamps, self.stamp);
        self.read = 0;
        self.count_from_here();
        self.send(&[Segment::ack(0, 0)])
    }

    fn connect_in_vain(&mut self, offer: &Offer, ms: u64) -> Result<(), String> {
        self.open(offer);
        let end = self.wire.now() + Duration::from_millis(ms);
        while let Some(answer) = self.receive(end)? {
            if answer.has(flags::SYN) {
                return Err(format!("answered: {answer:?}"));
            }
        }
        self.is_late(end);
        self.note(format_args!("no SYN ACK for {ms} ms"));
        Ok(())
    }

    fn send(&mut self, segments: &[Segment]) -> Result<(), String> {
        // What is on its way belongs to earlier steps.
        self.drain()?;
        self.since = self.peer.segments.len();
        let frames: Vec<Vec<u8>> = segments.iter().map(|s| self.frame(s)).collect();
        self.wire.send(&frames);
        self.sent_at = self.wire.now();
        Ok(())
    }

    /// Notes the segment as sent, and makes its frame.
    fn frame(&mut self, segment: &Segment) -> Vec<u8> {
        self.stamp += STAMP_STEP;
        let own = match segment.stamp {
            Stamp::Older(age) => self.stamp - age,
            _ => self.stamp,
        };
        let agreed = self.peer.timestamps && segment.stamp != Stamp::Absent;
        let ack = segment.ack.unwrap_or(0);
        let numbers = Numbers {
            seq: self.peer.client_zero.wrapping_add(segment.seq as u32),
            ack: self.peer.server_zero.wrapping_add(ack as u32),
            server_zero: self.peer.server_zero,
            stamp: agreed.then_some((own, self.peer.peer_stamp)),
        };
        self.peer.newest_stamp = self.stamp;
        self.ends_sent.insert(segment.end());
        if segment.counts {
            self.peer.sent = self.peer.sent.max(segment.end());
            self.peer.own_stamp = self.stamp;
            let window = i64::from(segment.window.unwrap_or(WINDOW)) << WINDOW_SCALE;
            self.peer.right_edge = self.peer.right_edge.max(ack + window);
        }
        self.note(format_args!("> {segment}"));
        frame::build(&self.ends, numbers, segment, None)
    }

    fn receive(&mut self, end: Duration) -> Result<Option<Wired>, String> {
        while let Some(bytes) = self.wire.receive(end) {
            if let Some(segment) = frame::parse(&self.ends, &bytes).map_err(|e| e.to_string())? {
                return Ok(Some(segment));
            }
        }
        Ok(None)
    }

    fn drain(&mut self) -> Result<(), String> {
        let now = self.wire.now();
        while let Some(segment) = self.receive(now)? {
            self.peer.take_in(segment)?;
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) -> Result<(), String> {
        self.take_until(Duration::from_millis(ms))
    }

    fn take_until(&mut self, time: Duration) -> Result<(), String> {
        let end = self.wire.now() + time;
        while let Some(segment) = self.receive(end)? {
            self.peer.take_in(segment)?;
        }
        self.is_late(end);
        Ok(())
    }

    /// A time that was to end then is over.
    fn is_late(&mut self, end: Duration) {
        self.late = self.late.max(self.wire.now().saturating_sub(end));
    }

    /// Takes segments in until `good`, given the connection and the segments since the last send.
    fn until(&mut self, what: &str, good: impl Fn(&Peer, &[Seen]) -> bool) -> Result<(), String> {
        let end = self.wire.now() + self.wire.wait_max();
        loop {
            if good(&self.peer, &self.peer.segments[self.since..]) {
                return Ok(());
            }
            let segment = self
                .receive(end)?
                .ok_or_else(|| format!("{what}: never came"))?;
            self.peer.take_in(segment)?;
        }
    }

    fn since(&mut self, what: &str, good: impl Fn(&Seen) -> bool) -> Result<(), String> {
        self.until(what, |_, since| since.iter().any(&good))
    }

    fn reply(&mut self, at: i64, bytes: &[u8]) -> Result<(), String> {
        let end = at + bytes.len() as i64;
        let what = format!("reply {at}..{end} {:?}", bytes.escape_ascii().to_string());
        self.until(&what, |peer, _| {
            peer.stream(at, bytes.len()).len() == bytes.len()
        })?;
        let got = self.peer.stream(at, bytes.len());
        if got != bytes {
            return Err(format!("{what}: {:?}", got.escape_ascii().to_string()));
        }
        self.read = self.read.max(end);
        self.note(format_args!("< {at}..{end} {}", brief(bytes)));
        Ok(())
    }

    fn again(&mut self, at: i64, bytes: &[u8]) -> Result<(), String> {
        let end = at + bytes.len() as i64;
        self.until(&format!("{at}..{end} again"), |_, since| {
            (at..end).all(|number| since.iter().any(|seen| seen.carries(number)))
        })?;
        let got = self.peer.stream(at, bytes.len());
        if got != bytes {
            return Err(format!(
                "{at}..{end} again: {:?}",
                got.escape_ascii().to_string()
            ));
        }
        self.note(format_args!("< again {at}..{end} {}", brief(bytes)));
        Ok(())
    }

    fn fin(&mut self, seq: i64, anew: bool) -> Result<(), String> {
        let ends =
            |seen: &Seen| seen.flags & FIN != 0 && seen.seq + seen.payload.len() as i64 == seq;
        self.until(&format!("FIN {seq}"), |peer, since| {
            if anew {
                since.iter().any(ends)
            } else {
                peer.segments.iter().any(ends)
            }
        })?;
        let word = if anew { "again " } else { "" };
        self.note(format_args!("< {word}FIN seq {seq}"));
        Ok(())
    }

    fn silence(&mut self, ms: u64, what: Silence) -> Result<(), String> {
        let from = self.peer.segments.len();
        self.pass(ms)?;
        let read = self.read;
        let broken = self.peer.segments[from..].iter().find(|seen| match what {
            Silence::Everything => true,
            Silence::NewBytes => {
                seen.flags & (RST | FIN) != 0 || seen.seq + seen.payload.len() as i64 > read
            }
        });
        if let Some(broken) = broken {
            return Err(format!("silence was broken: {broken:?}"));
        }
        let noun = match what {
            Silence::Everything => "nothing",
            Silence::NewBytes => "nothing new",
        };
        self.note(format_args!("{noun} for {ms} ms"));
        Ok(())
    }

    fn copies(&mut self, number: i64, ms: u64, most: usize) -> Result<(), String> {
        let time = Duration::from_millis(ms);
        let spent = self.wire.now() - self.sent_at;
        self.take_until(time.saturating_sub(spent))?;
        self.is_late(self.sent_at + time);
        let since = &self.peer.segments[self.since..];
        let copies = since.iter().filter(|seen| seen.carries(number)).count();
        if copies > most {
            return Err(format!(
                "byte {number} came {copies} times, at most {most} expected"
            ));
        }
        self.note(format_args!(
            "byte {number} at most {most} times in {ms} ms"
        ));
        Ok(())
    }

    fn echo(&mut self) -> Result<(), String> {
        let last = self.peer.segments.last().ok_or("no segment")?;
        match last.stamp {
            Some((_, echo)) if echo == self.peer.own_stamp => {
                self.note(format_args!("the newest timestamp is echoed"));
                Ok(())
            }
            other => Err(format!("{other:?} does not echo {}", self.peer.own_stamp)),
        }
    }

    /// What was answered was counted before the answer was sent, but reading takes its time.
    fn count(&mut self, name: &'static str, least: u64, most: u64) -> Result<(), String> {
        let before = self.counters[name];
        let mut now = self.wire.counters(&[name])[0];
        for _ in 0..TRIES {
            if now - before >= least {
                break;
            }
            now = self.wire.counters(&[name])[0];
        }
        let moved = now - before;
        if moved < least || moved > most {
            return Err(format!("{name} +{moved}, expected {least}..={most}"));
        }
        self.counters.insert(name, now);
        if least == most {
            self.note(format_args!("{name} +{least}"));
        } else {
            self.note(format_args!("{name} +{least} or more"));
        }
        Ok(())
    }
}

/// Bytes for people; long ones by their ends.
#[must_use]
pub fn brief(bytes: &[u8]) -> String {
    const MOST: usize = 120;
    if bytes.len() <= MOST {
        return format!("\"{}\"", bytes.escape_ascii());
    }
    let (first, last) = (&bytes[..24], &bytes[bytes.len() - 8..]);
    format!("\"{}...{}\"", first.escape_ascii(), last.escape_ascii())
}
