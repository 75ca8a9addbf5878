// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: the same bytes to target and shadow, every reply compared.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use fastrand::Rng;

use super::generate::{Generator, Verb};
use super::{Failure, Mismatch, Report, Shared};
use crate::net::{Broken, Conn};
use crate::resp::{self, Reply};

/// Commands kept for the report of a mismatch.
const HISTORY: usize = 80;
/// Reply bytes that may be outstanding: a client that does not read must not make the target's
/// Redis buffer without bound, 50 connections of these fit into little memory.
const IN_FLIGHT_BYTES_MAX: usize = 1024 * 1024;
/// Deepest pipeline.
const DEPTH_MAX: usize = 64;
/// After a mismatch, how long the target's further bytes are awaited for the report.
const AFTERMATH: Duration = Duration::from_millis(300);
/// Bytes shown of a reply or command.
const SHOWN_BYTES: usize = 200;

/// What one connection did.
#[derive(Default)]
pub struct Outcome {
    commands: u64,
    bytes_sent: u64,
    bytes_compared: u64,
    retransmissions: u64,
    by_verb: BTreeMap<Verb, u64>,
    mismatch: Option<Mismatch>,
    reset: Option<Failure>,
    stall: Option<Failure>,
}

impl Outcome {
    fn is_bad(&self) -> bool {
        self.mismatch.is_some() || self.reset.is_some() || self.stall.is_some()
    }

    /// Adds this connection to the run's report.
    pub fn add_to(self, report: &mut Report) {
        report.commands += self.commands;
        report.bytes_sent += self.bytes_sent;
        report.bytes_compared += self.bytes_compared;
        report.retransmissions += self.retransmissions;
        for (verb, count) in self.by_verb {
            *report
                .by_command
                .entry(verb.name().to_string())
                .or_default() += count;
        }
        report.mismatches.extend(self.mismatch);
        report.resets.extend(self.reset);
        report.stalls.extend(self.stall);
    }
}

/// Why a connection's run ended early.
enum Stop {
    /// The target broke; goes into the report.
    Target(Broken),
    /// A reply differs; already recorded.
    Differs,
    /// The shadow failed: the check itself cannot go on.
    Shadow(Broken),
}

struct Worker<'a> {
    shared: &'a Shared,
    conn: u32,
    local: String,
    target: Conn,
    shadow: Conn,
    generator: Generator,
    /// Sent, reply not yet compared: command and largest reply.
    outstanding: VecDeque<(Verb, usize)>,
    outstanding_bytes: usize,
    last: VecDeque<String>,
    /// Commands generated so far.
    issued: u64,
    out: Outcome,
}

/// Drives one connection until the run's end or until something is wrong with the target.
///
/// # Errors
/// If the shadow fails.
pub fn run(shared: &Shared, conn: u32, seed: u64) -> Result<Outcome> {
    let shadow = Conn::connect(shared.shadow, shared.stall).context("the shadow")?;
    let target = match Conn::connect(shared.target, shared.stall) {
        Ok(target) => target,
        Err(e) => {
            let reset = Failure {
                conn,
                local: String::new(),
                command_index: 0,
                what: format!("{e:#}"),
                last_commands: Vec::new(),
            };
            return Ok(Outcome {
                reset: Some(reset),
                ..Outcome::default()
            });
        }
    };
    let mut worker = Worker {
        shared,
        conn,
        local: target.stream().local_addr()?.to_string(),
        target,
        shadow,
        generator: Generator::new(&shared.mix, seed, conn),
        outstanding: VecDeque::new(),
        outstanding_bytes: 0,
        last: VecDeque::new(),
        issued: 0,
        out: Outcome::default(),
    };
    match worker.rounds().and_then(|()| worker.drained()) {
        Ok(()) | Err(Stop::Differs) => {}
        Err(Stop::Target(broken)) => worker.target_broke(&broken),
        Err(Stop::Shadow(broken)) => {
            return Err(anyhow!("the shadow at {} failed: {broken}", shared.shadow));
        }
    }
    if shared.fail_fast && worker.out.is_bad() {
        shared.stop.store(true, Ordering::Relaxed);
    }
    worker.out.retransmissions = u64::from(worker.target.retransmissions().unwrap_or(0));
    Ok(worker.out)
}

impl Worker<'_> {
    fn rounds(&mut self) -> std::result::Result<(), Stop> {
        while self.shared.running() && self.issued < self.shared.commands_max {
            let rng = self.generator.rng();
            match rng.u32(..10) {
                0..5 => {
                    let singles = rng.usize(1..40);
                    self.window(singles, 1, 1)?;
                }
                5..8 => {
                    let depth = skewed_depth(rng);
                    self.window(depth, depth, depth)?;
                }
                _ => {
                    // Requests leave while replies arrive: their ACKs cover parts of replies.
                    let depth = skewed_depth(rng).max(2);
                    let count = rng.usize(depth..=4 * depth);
                    let batch = rng.usize(1..=depth);
                    self.window(count, depth, batch)?;
                }
            }
            let rng = self.generator.rng();
            if rng.u32(..50) == 0 {
                // Longer than a delayed ACK, so that the connection is idle in every sense.
                std::thread::sleep(Duration::from_millis(rng.u64(1..80)));
            }
        }
        Ok(())
    }

    /// Sends `count` commands in batches of up to `batch`, at most `depth` unanswered.
    fn window(
        &mut self,
        count: usize,
        depth: usize,
        batch: usize,
    ) -> std::result::Result<(), Stop> {
        let mut left = count;
        while left > 0 {
            let n = batch.min(left);
            while !self.outstanding.is_empty() && self.outstanding.len() + n > depth {
                self.compare_one()?;
            }
            left -= self.send_batch(n)?;
        }
        while !self.outstanding.is_empty() {
            self.compare_one()?;
        }
        self.nothing_unasked()
    }

    /// Sends up to `n` commands in one go; fewer if the replies could become too large.
    fn send_batch(&mut self, n: usize) -> std::result::Result<usize, Stop> {
        let mut bytes = Vec::new();
        let mut sent = 0;
        while sent < n && (sent == 0 || self.outstanding_bytes < IN_FLIGHT_BYTES_MAX) {
            let command = self.generator.next();
            self.remember(&command.bytes);
            bytes.extend_from_slice(&command.bytes);
            self.outstanding
                .push_back((command.verb, command.reply_bytes_max));
            self.outstanding_bytes += command.reply_bytes_max;
            self.issued += 1;
            sent += 1;
        }
        self.shared.throttle(sent as u64);
        self.shadow.send(&bytes).map_err(Stop::Shadow)?;
        self.send_in_segments(&bytes).map_err(Stop::Target)?;
        self.out.bytes_sent += bytes.len() as u64;
        Ok(sent)
    }

    /// Mostly one write; sometimes cut anywhere, each piece a segment of its own (TCP_NODELAY).
    fn send_in_segments(&mut self, bytes: &[u8]) -> std::result::Result<(), Broken> {
        if self.generator.rng().u32(..6) != 0 {
            return self.target.send(bytes);
        }
        let cuts = self.generator.rng().usize(1..6);
        let mut rest = bytes;
        for _ in 0..cuts {
            let rng = self.generator.rng();
            // Cuts in the first bytes (headers) matter most; values are cut by MSS anyway.
            let near = rest.len().min(if rng.bool() { 40 } else { usize::MAX });
            let at = rng.usize(..=near);
            let pause = rng.u32(..4) == 0;
            self.target.send(&rest[..at])?;
            rest = &rest[at..];
            if pause {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        self.target.send(rest)
    }

    fn remember(&mut self, bytes: &[u8]) {
        if self.last.len() == HISTORY {
            self.last.pop_front();
        }
        self.last.push_back(resp::show(
            &bytes[..bytes.len().min(SHOWN_BYTES)],
            SHOWN_BYTES,
        ));
    }

    /// Takes one reply of the shadow and demands the same bytes of the target, as they come.
    fn compare_one(&mut self) -> std::result::Result<(), Stop> {
        let want = self.shadow.reply().map_err(Stop::Shadow)?;
        let slack = self.outstanding.front().and_then(|asked| asked.0.slack());
        match (slack, Reply::parse(&want)) {
            (Some(slack), Reply::Int(left @ 1..)) => self.demand_near(&want, left, slack)?,
            _ => self.demand_same(&want)?,
        }
        let (verb, bytes) = self.outstanding.pop_front().unwrap_or((Verb::Ping, 0));
        self.outstanding_bytes -= bytes;
        *self.out.by_verb.entry(verb).or_default() += 1;
        self.out.commands += 1;
        self.out.bytes_compared += want.len() as u64;
        Ok(())
    }

    /// How long is left must be nearly the same.
    fn demand_near(&mut self, want: &[u8], left: i64, slack: u64) -> std::result::Result<(), Stop> {
        let got = self.target.reply().map_err(Stop::Target)?;
        if matches!(Reply::parse(&got), Reply::Int(n @ 1..) if n.abs_diff(left) <= slack) {
            return Ok(());
        }
        self.record_mismatch(want, 0, got);
        Err(Stop::Differs)
    }

    fn demand_same(&mut self, want: &[u8]) -> std::result::Result<(), Stop> {
        let mut same = 0;
        while same < want.len() {
            if self.target.buffered().is_empty() {
                self.target.fill().map_err(Stop::Target)?;
            }
            let got = self.target.buffered();
            let n = got.len().min(want.len() - same);
            let equal = (0..n).take_while(|&i| got[i] == want[same + i]).count();
            self.target.consume(equal);
            same += equal;
            if equal < n {
                self.differs(want, same);
                return Err(Stop::Differs);
            }
        }
        Ok(())
    }

    /// With nothing outstanding, any byte of the target is one too many.
    fn nothing_unasked(&mut self) -> std::result::Result<(), Stop> {
        if self.target.buffered().is_empty() {
            return Ok(());
        }
        self.differs(b"", 0);
        Err(Stop::Differs)
    }

    /// At the end: nothing more may come, and an ECHO must pass both ways.
    fn drained(&mut self) -> std::result::Result<(), Stop> {
        let extra = self.target.rest(Duration::from_millis(20));
        if !extra.is_empty() {
            self.record_mismatch(b"", 0, extra);
            return Err(Stop::Differs);
        }
        let end = resp::command(&[&b"ECHO"[..], b"the end"]);
        self.remember(&end);
        self.shadow.send(&end).map_err(Stop::Shadow)?;
        self.target.send(&end).map_err(Stop::Target)?;
        self.outstanding.push_back((Verb::Echo, 0));
        self.compare_one()
    }

    fn differs(&mut self, want: &[u8], same: usize) {
        let got = [&want[..same], &self.target.rest(AFTERMATH)].concat();
        self.record_mismatch(want, same, got);
    }

    fn record_mismatch(&mut self, want: &[u8], same: usize, got: Vec<u8>) {
        let at = self
            .last
            .len()
            .saturating_sub(self.outstanding.len().max(1));
        self.out.mismatch = Some(Mismatch {
            conn: self.conn,
            local: self.local.clone(),
            command_index: self.out.commands,
            command: self.last.get(at).cloned().unwrap_or_default(),
            target: shown_around(&got, same),
            shadow: shown_around(want, same),
            first_difference: same,
            last_commands: self.last.iter().take(at + 1).cloned().collect(),
        });
    }

    fn target_broke(&mut self, broken: &Broken) {
        let failure = Failure {
            conn: self.conn,
            local: self.local.clone(),
            command_index: self.out.commands,
            what: format!("{broken}; the shadow answered"),
            last_commands: self.last.iter().cloned().collect(),
        };
        match broken {
            Broken::Stalled(_) => self.out.stall = Some(failure),
            _ => self.out.reset = Some(failure),
        }
    }
}

fn shown_around(bytes: &[u8], at: usize) -> String {
    let from = at.saturating_sub(SHOWN_BYTES / 2);
    let prefix = if from > 0 {
        format!("[from byte {from}] ")
    } else {
        String::new()
    };
    prefix + &resp::show(bytes.get(from..).unwrap_or_default(), SHOWN_BYTES)
}

/// Half of the pipelines are up to 4 deep, the rest up to [`DEPTH_MAX`].
fn skewed_depth(rng: &mut Rng) -> usize {
    if rng.bool() {
        rng.usize(1..=4)
    } else {
        rng.usize(1..=DEPTH_MAX)
    }
}
