// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case as a pipeline: what follows on each other without waiting for anybody is one string of
//! bytes, sent in two parts, for one place after the other.
//!
//! Every place is tried in two worlds: warm, where all that the case reads is cached and the
//! connection has been answered before, and cold, where nothing is.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::case::{Case, KEY, Mask, PREFIX_BYTES, Split, Step, with_prefix};
use super::front::{self, executed};
use super::runner::{masked, monitored};
use crate::pair::{Pair, Played, Trouble};
use crate::resp;

/// A fill takes about two round trips after the first miss.
const FILL_PAUSE: Duration = Duration::from_millis(8);
/// The same where it must not be too short for a busy machine.
const FILL_PAUSE_ALONE: Duration = Duration::from_millis(14);
/// Reads on the cached keys, by either connection, before a case begins.
const WARM_READS: usize = 3;
/// So many plays are done one after the other, so that no other play's writes keep a cache from being
/// filled: of these it is counted what was answered in front of Redis.
const ALONE: usize = 2;
/// Such a play waits at most for this long until reads are answered in front of Redis again.
const FRONT_WAIT: Duration = Duration::from_millis(1500);
/// After this long the rest is played together, if any was; after the longer time in any case.
const ALONE_MAX: [Duration; 2] = [Duration::from_millis(2500), Duration::from_secs(15)];
/// Between the parts, for one place after the other: one segment behind the other; Redis has had
/// the first; so has everybody, and the acknowledgement has been sent.
const PAUSES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_micros(300),
    Duration::from_millis(45),
];
/// Of so many plays one waits for the longest.
const LONG_PAUSE_EVERY: usize = 32;
/// Of so many plays one waits at its end until its connection may be answered again.
const COMES_BACK_EVERY: usize = 16;
/// What that takes at most on an idle machine: two ticks and a delayed acknowledgement.
const COMES_BACK: Duration = Duration::from_millis(160);
/// Unasked bytes are awaited for this long.
const END_WAIT: Duration = Duration::from_millis(1);
/// Pipelines up to this length are cut everywhere, and also sent byte by byte.
const EVERYWHERE: usize = 4096;
/// Longer ones are cut everywhere in these first bytes, and around each CRLF.
const FIRST: usize = 512;
/// Bytes that the cuts of one case may send at most.
const BYTES_MAX: usize = 128 << 20;
/// Milliseconds that the plays of one case may wait in all, per worker.
const WAIT_MS_MAX: u128 = 1_000;

/// Where pipelines are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Cuts {
    /// Nowhere: cases are only played step by step.
    None,
    /// At each CRLF and in its middle, and at other places: some dozens, others with another
    /// seed.
    Some,
    /// Everywhere; in pipelines longer than 4 KiB in the first 512 bytes and around each CRLF.
    Every,
}

/// What the plays of one case in parts saw.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Places that the case's pipelines have.
    pub boundaries: usize,
    /// Places that were cut.
    pub cuts: usize,
    /// Plays.
    pub plays: usize,
    /// The first difference.
    pub difference: Option<String>,
    /// Of the plays done one by one: reads that Redis alone has executed and the target's Redis
    /// has not. Unknown in cases that stop such answers.
    pub answered_in_front: Option<i64>,
    /// Of the same plays: reads that Redis alone has executed.
    pub reads: i64,
}

/// What is compared of a pipeline's replies, in order.
#[derive(Debug, Clone, Copy)]
enum Expect {
    Frames(usize),
    Masked(Mask),
}

/// What the main connection sends at once, or a step that is not its sending.
#[derive(Debug, Clone)]
enum Turn {
    Say(Vec<u8>, Vec<Expect>),
    Other(Step),
}

/// Sends that follow on each other become one pipeline.
fn turns(case: &Case) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for step in &case.steps {
        let (bytes, expect) = match step {
            Step::Send(pieces, n) if pieces[0] == Split::EVERY => {
                (pieces[1].clone(), Expect::Frames(*n))
            }
            Step::Send(pieces, n) => (pieces.concat(), Expect::Frames(*n)),
            Step::Masked(bytes, mask) => (bytes.clone(), Expect::Masked(*mask)),
            other => {
                turns.push(Turn::Other(other.clone()));
                continue;
            }
        };
        if let Some(Turn::Say(said, expected)) = turns.last_mut() {
            said.extend(bytes);
            expected.push(expect);
        } else {
            turns.push(Turn::Say(bytes, vec![expect]));
        }
    }
    turns
}

/// A place inside a pipeline: number of the turn, bytes before it.
type Place = (usize, usize);

/// All places, and those that matter most.
fn places(turns: &[Turn], cuts: Cuts, seed: u64) -> (usize, Vec<Place>) {
    let prefix = "p".repeat(PREFIX_BYTES);
    let (mut total, mut bytes) = (0, 0);
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    for (number, turn) in turns.iter().enumerate() {
        let Turn::Say(said, _) = turn else { continue };
        let said = with_prefix(said, &prefix);
        total += said.len() - 1;
        bytes += said.len();
        for at in 1..said.len() {
            let near = said[at.saturating_sub(2)..(at + 2).min(said.len())]
                .windows(2)
                .any(|two| two == b"\r\n");
            let wanted = match cuts {
                Cuts::None => continue,
                Cuts::Some => near,
                Cuts::Every => near || said.len() <= EVERYWHERE || at < FIRST,
            };
            let list = if wanted { &mut chosen } else { &mut rest };
            list.push((number, at));
        }
    }
    let most = match cuts {
        Cuts::Every => usize::MAX,
        _ => 48,
    };
    let most = most.min((BYTES_MAX / bytes.max(1)).max(8));
    if cuts == Cuts::Some {
        let few = 16.min(rest.len());
        chosen.extend(thinned(&rest, few, seed));
    }
    (total, thinned(&chosen, most, seed))
}

/// At most `most` of them, evenly, from a place that the seed says.
fn thinned(places: &[Place], most: usize, seed: u64) -> Vec<Place> {
    if places.len() <= most {
        return places.to_vec();
    }
    let from = seed as usize % places.len();
    (0..most)
        .map(|i| places[(from + i * places.len() / most) % places.len()])
        .collect()
}

/// How a play is done.
#[derive(Debug, Clone, Copy)]
struct Job {
    number: usize,
    place: Place,
    warm: bool,
}

/// No place: each byte is sent by itself.
const BYTE_BY_BYTE: Place = (usize::MAX, 0);

fn jobs(places: &[Place], cuts: Cuts, short: bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut add = |place, warm| {
        let number = jobs.len();
        jobs.push(Job {
            number,
            place,
            warm,
        });
    };
    for (number, place) in places.iter().enumerate() {
        add(*place, true);
        if cuts == Cuts::Every || number % 4 == 0 {
            add(*place, false);
        }
    }
    if short {
        add(BYTE_BY_BYTE, true);
        add(BYTE_BY_BYTE, false);
    }
    jobs
}

/// The two servers and how they are talked to.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    /// Under test, and alone.
    pub addresses: (SocketAddr, SocketAddr),
    /// Silence that counts as stuck.
    pub stall: Duration,
    /// Plays at a time.
    pub workers: usize,
    /// Whether the target answers anything in front of Redis.
    pub in_front: bool,
    /// Where pipelines are cut.
    pub cuts: Cuts,
    /// Seed of what is chosen.
    pub seed: u64,
}

impl Stage {
    /// Reads that target and shadow have executed.
    fn executed(&self) -> Result<(i64, i64)> {
        let (target, shadow) = self.addresses;
        Ok((executed(target, self.stall)?, executed(shadow, self.stall)?))
    }
}

/// Plays the case's pipelines, cut at one place after the other, until something differs.
/// `prefix` gives a prefix that nobody had.
///
/// # Errors
/// If the shadow fails: the case itself is wrong or the shadow is down.
pub fn play(case: &Case, stage: &Stage, prefix: &(dyn Fn() -> String + Sync)) -> Result<Outcome> {
    let turns = turns(case);
    let (boundaries, places) = places(&turns, stage.cuts, stage.seed);
    let mut jobs = jobs(&places, stage.cuts, boundaries <= EVERYWHERE);
    let workers = if case.alone { 1 } else { stage.workers };
    let waits = waits_ms(case);
    if let Some(most) = (WAIT_MS_MAX * workers as u128).checked_div(waits) {
        let every = if stage.cuts == Cuts::Every { 8 } else { 1 };
        while jobs.len() > (most as usize * every).max(8) {
            jobs.remove(stage.seed as usize % jobs.len());
        }
    }
    let cuts = places
        .iter()
        .filter(|place| jobs.iter().any(|job| job.place == **place))
        .count();
    let mut outcome = Outcome {
        boundaries,
        cuts,
        plays: jobs.len(),
        ..Outcome::default()
    };
    // The first ones are spread over all places.
    let patience = WAIT_MS_MAX / waits.max(1);
    let alone = ALONE.min(jobs.len()).min(patience.max(1) as usize);
    for first in 0..alone {
        let from = first * jobs.len() / alone;
        jobs.swap(first, from);
    }
    let crew = Crew {
        case,
        turns: &turns,
        stage,
        prefix,
    };
    let began = Instant::now();
    let (mut rest, mut front) = (&jobs[..], 0);
    while let Some((job, later)) = rest.split_first() {
        let wanted = stage.in_front && !case.stops_answers && front == 0;
        let enough = jobs.len() - rest.len() >= alone || began.elapsed() > ALONE_MAX[0];
        if enough && (!wanted || began.elapsed() > ALONE_MAX[1]) {
            break;
        }
        let at_work = stage.in_front && front::wait(stage.addresses.0, stage.stall, FRONT_WAIT)?;
        let before = stage.executed()?;
        outcome.difference = crew.play(std::slice::from_ref(job), 1)?;
        let after = stage.executed()?;
        if job.warm && at_work {
            outcome.reads += after.1 - before.1;
            front += after.1 - before.1 - (after.0 - before.0);
        }
        rest = later;
        if outcome.difference.is_some() {
            return Ok(outcome);
        }
    }
    if !case.stops_answers {
        outcome.answered_in_front = Some(front);
    }
    outcome.difference = crew.play(rest, workers)?;
    Ok(outcome)
}

/// Workers on one case.
struct Crew<'a> {
    case: &'a Case,
    turns: &'a [Turn],
    stage: &'a Stage,
    prefix: &'a (dyn Fn() -> String + Sync),
}

/// Where a worker ended, and of what; of nothing that was played if it could not begin.
type Ended = (String, Option<Trouble>);

impl Crew<'_> {
    /// Plays all; gives the first difference.
    fn play(&self, jobs: &[Job], workers: usize) -> Result<Option<String>> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let found: Mutex<Result<Option<String>>> = Mutex::new(Ok(None));
        std::thread::scope(|scope| {
            for _ in 0..workers.min(jobs.len()) {
                scope.spawn(|| {
                    if let Err(ended) = self.work(jobs, &next, &stop, workers == 1) {
                        stop.store(true, Ordering::Relaxed);
                        *found.lock().expect("no worker panics") = self.said(ended);
                    }
                });
            }
        });
        found.into_inner().expect("no worker panics")
    }

    fn work(
        &self,
        jobs: &[Job],
        next: &AtomicUsize,
        stop: &AtomicBool,
        alone: bool,
    ) -> std::result::Result<(), Ended> {
        let mut actor = Actor::new(self.case, self.turns, self.stage, alone)
            .map_err(|e| (format!("{e:#}"), None))?;
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            actor
                .play(job, (self.prefix)())
                .map_err(|trouble| (told(self.turns, job), Some(trouble)))?;
        }
        Ok(())
    }

    fn said(&self, (place, trouble): Ended) -> Result<Option<String>> {
        let name = self.case.name;
        match trouble {
            Some(Trouble::Differs(what)) => Ok(Some(format!("{place}: {what}"))),
            Some(Trouble::Shadow(e)) => {
                Err(anyhow!("case {name:?}, {place}: the shadow failed: {e}"))
            }
            None => Err(anyhow!("case {name:?}: {place}")),
        }
    }
}

/// What one play of the case waits for, by its own words.
fn waits_ms(case: &Case) -> u128 {
    let sleep = |step: &Step| match step {
        Step::Sleep(time) => time.as_millis(),
        _ => 0,
    };
    case.settle.as_millis() + case.steps.iter().map(sleep).sum::<u128>()
}

/// How a play was done, so that it can be found again.
fn told(turns: &[Turn], job: &Job) -> String {
    let world = if job.warm { "warm" } else { "cold" };
    if job.place == BYTE_BY_BYTE {
        return format!("{world}, byte by byte");
    }
    let (turn, at) = job.place;
    let Some(Turn::Say(said, _)) = turns.get(turn) else {
        return format!("{world}, uncut");
    };
    let said = with_prefix(said, &"p".repeat(PREFIX_BYTES));
    let before = &said[at.saturating_sub(24)..at];
    let behind = &said[at..(at + 24).min(said.len())];
    format!(
        "{world}, play {}, turn {turn} cut behind byte {at} ({} | {})",
        job.number,
        resp::show(before, 24),
        resp::show(behind, 24)
    )
}

/// One worker: a connection that reads, and a fresh main one for each play.
struct Actor<'a> {
    case: &'a Case,
    turns: &'a [Turn],
    stage: &'a Stage,
    other: Pair,
    main: Pair,
    prefix: String,
    alone: bool,
}

impl<'a> Actor<'a> {
    fn new(case: &'a Case, turns: &'a [Turn], stage: &'a Stage, alone: bool) -> Result<Self> {
        let (target, shadow) = stage.addresses;
        let pair = || Pair::connect(target, shadow, stage.stall);
        Ok(Self {
            case,
            turns,
            stage,
            other: pair()?,
            main: pair()?,
            prefix: String::new(),
            alone,
        })
    }

    fn fresh_main(&mut self) -> Played<()> {
        let (target, shadow) = self.stage.addresses;
        self.main = Pair::connect(target, shadow, self.stage.stall)
            .map_err(|e| Trouble::Differs(format!("connecting anew: {e:#}")))?;
        Ok(())
    }

    fn given(&mut self, commands: &[Vec<u8>]) -> Played<()> {
        for command in commands {
            self.other.call(&with_prefix(command, &self.prefix))?;
        }
        Ok(())
    }

    fn read(&mut self, by_main: bool) -> Played<()> {
        let reader = if by_main {
            &mut self.main
        } else {
            &mut self.other
        };
        for read in &self.case.hot {
            reader.call(&with_prefix(read, &self.prefix))?;
        }
        Ok(())
    }

    fn play(&mut self, job: &Job, prefix: String) -> Played<()> {
        self.prefix = prefix;
        self.fresh_main()?;
        let key = with_prefix(KEY.as_bytes(), &self.prefix);
        self.given(&[resp::command(&[b"SET", &key[..], b"value"])])?;
        self.given(&self.case.given)?;
        std::thread::sleep(self.case.settle);
        if job.warm {
            self.read(false)?;
            self.read(false)?;
            std::thread::sleep(if self.alone {
                FILL_PAUSE_ALONE
            } else {
                FILL_PAUSE
            });
            // Of a fresh connection the first command is Redis's, after that it is fast.
            for _ in 0..WARM_READS {
                self.read(false)?;
                self.read(true)?;
            }
        }
        for (number, turn) in self.turns.iter().enumerate() {
            let settled = self.turn(number, turn, job)?;
            if settled {
                self.read(false)?;
            }
        }
        let watched = |turn: &Turn| matches!(turn, Turn::Other(Step::Monitored(_)));
        if !self.turns.iter().any(watched) {
            if job.number % COMES_BACK_EVERY == 0 {
                std::thread::sleep(COMES_BACK);
                self.read(true)?;
                self.read(true)?;
            }
            self.main.nothing_left(END_WAIT)?;
        }
        self.given(&self.case.finally)?;
        self.given(&[resp::command(&[b"UNLINK", &key[..]])])
    }

    /// Returns whether both servers have carried out all that was sent.
    fn turn(&mut self, number: usize, turn: &Turn, job: &Job) -> Played<bool> {
        match turn {
            Turn::Say(bytes, expect) => {
                let bytes = with_prefix(bytes, &self.prefix);
                self.say(&bytes, number, job)?;
                for expect in expect {
                    match expect {
                        Expect::Frames(n) => (0..*n).try_for_each(|_| self.main.compare(&bytes))?,
                        Expect::Masked(mask) => self.main.masked(&bytes, |it| masked(it, *mask))?,
                    }
                }
                return Ok(!matches!(expect.last(), Some(Expect::Frames(0))));
            }
            Turn::Other(Step::Receive(n)) => {
                (0..*n).try_for_each(|_| self.main.compare(b"(something else)"))?;
            }
            Turn::Other(Step::Monitored(n)) => monitored(&mut self.main, &self.prefix, *n)?,
            Turn::Other(Step::Closed) => {
                self.main.closed()?;
                self.fresh_main()?;
            }
            Turn::Other(Step::Other(bytes)) => {
                self.other.call(&with_prefix(bytes, &self.prefix))?;
            }
            Turn::Other(Step::Sleep(time)) => std::thread::sleep(*time),
            Turn::Other(Step::Send(..) | Step::Masked(..)) => {}
        }
        Ok(true)
    }

    fn say(&mut self, bytes: &[u8], number: usize, job: &Job) -> Played<()> {
        if job.place == BYTE_BY_BYTE {
            for byte in bytes.chunks(1) {
                self.main.send_on(byte);
            }
            return Ok(());
        }
        let at = if job.place.0 == number {
            job.place.1
        } else {
            0
        };
        self.main.send_on(&bytes[..at]);
        if at > 0 {
            let long = job.number % LONG_PAUSE_EVERY == LONG_PAUSE_EVERY - 1;
            std::thread::sleep(PAUSES[if long { 2 } else { job.number % 2 }]);
        }
        self.main.send_on(&bytes[at..]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_without_a_wait_are_one_pipeline() {
        let case = Case::new("x")
            .cmds("GET {p}k ; PING")
            .silent("CLIENT REPLY SKIP")
            .other("PING")
            .cmd("PING")
            .closed()
            .cmd("PING");
        let turns = turns(&case);
        assert_eq!(turns.len(), 5);
        assert!(matches!(&turns[0], Turn::Say(_, expect) if expect.len() == 3));
        assert!(matches!(&turns[3], Turn::Other(Step::Closed)));
    }

    #[test]
    fn every_place_is_cut_in_short_pipelines_and_those_around_crlf_in_long_ones() {
        let case = Case::new("x").raw(b"*1\r\n$4\r\nPING\r\n", 1);
        let (total, every) = places(&turns(&case), Cuts::Every, 7);
        assert_eq!((total, every.len()), (13, 13));
        let value = "v".repeat(100_000);
        let case = Case::new("x").args(&["SET", KEY, &value]);
        let (total, every) = places(&turns(&case), Cuts::Every, 7);
        assert!(total > 100_000 && every.len() > FIRST && every.len() < 600);
        assert!(every.contains(&(0, total)), "inside the last CRLF");
        let (_, some) = places(&turns(&case), Cuts::Some, 7);
        assert!(some.len() <= 48 && some.contains(&(0, 3)));
    }
}
