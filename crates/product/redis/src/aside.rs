// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stepping aside: what does not pay is left out. A look-up that finds nothing costs its client time, and
//! a fill costs Redis and the daemon more; under a load that a cache cannot help both are lost.
//!
//! - Level 0: every read is looked up.
//! - Level 1: reads look into one of [`SAMPLE`] cache sets only. What is not looked up is not reported
//!   either, so its misses fill nothing.
//! - Level 2: of keys that were written only those of these sets are read again, and Redis tells of no other
//!   changes (`reports.rs`).
//! - Level 3: nothing is read. An operator says so, or what he allowed (`hours.rs`), and `closing.rs` does it.
//!
//! Left out is what the fast path may always leave out: to say "not cached" without a look. All else goes
//! on at every level, so there is nothing to get wrong between them: requests are proved to be reads,
//! counted, writes take their marks, invalidations and lease are as ever. What is in the cache stays true.
//!
//! The sets that are still looked into are a small cache of their own, with all that the whole one has:
//! fills, evictions, expiry, writes. What they find is what the whole would find, within chance (set
//! sampling: Qureshi, Patt, MICRO 2006). So no model of the cache is needed. What it cannot show, as a
//! few hot keys that lie elsewhere, or MGETs over many sets, a try of the whole shows: [`TRY_FIRST_NS`]
//! after level 0 was left, then less and less often until it is each [`TRY_EVERY_NS`], and the sample moves
//! on behind it. So a cold cache of a few keys, on a machine that did other things, is not left for long.

use std::collections::VecDeque;

use erb_abi as abi;

use crate::clock::{MS, SECOND_NS};
use crate::hours::{Shown, Word};
use crate::outside::{DataPath, Error, Result};

/// Processor time of the server's side that an answer saves. These three are of docs/measured.md, *What
/// stepping aside is decided by*. Only their ratios decide, and these vary less than machines do.
const HIT_SAVES_NS: u64 = 4_200;
/// What a look-up that finds nothing takes: what level 1 saves of it, not all that a miss costs.
const LOOK_COSTS_NS: u64 = 250;
/// What a fill takes of Redis and daemon together.
const FILL_COSTS_NS: u64 = 6_000;
/// What a hash takes more: it is measured before it is read, and each of its fields is taken apart.
const HASH_FILL_COSTS_MORE_NS: u64 = 10_000;
/// What it takes Redis to report a write, and the daemon to hear of it (`reports.rs`).
const REPORT_COSTS_NS: u64 = 2_000;

/// It steps aside if answers save less than so many halves of what look-ups and fills cost, and comes back
/// if they save more than so many.
const ASIDE_BELOW_HALVES: u64 = 3;
const BACK_ABOVE_HALVES: u64 = 4;
/// So many seconds in a row must be bad.
const PATIENCE: usize = 5;
/// The same of hopeless ones ([`Counts::is_hopeless`]), which no cache that warms up makes good.
const PATIENCE_HOPELESS: usize = 2;
/// The same while no second has paid since level 0 was entered: there is nothing to lose.
const PATIENCE_NEW: usize = 1;
/// Less than this in a second is no reason for haste: a two-hundredth of a processor.
const HASTE_NS: u64 = 5 * MS;
/// Who comes after so many seconds of few requests comes with another load.
const FEW_SECONDS: u32 = 60;
/// The share of answers has risen by this within these seconds: the cache warms up, and no second is bad.
const RISING: f64 = 0.02;
/// Less in a second is not worth a decision: a thousandth of a processor.
const TELLING_NS: u64 = MS;
/// So many look-ups of the sample tell something.
const TELLING_LOOKS: u64 = 64;
/// At level 1 and 2 one of so many sets is looked into; a power of two.
const SAMPLE: u8 = 64;
/// From sample to sample; odd, so that all come in turn.
const SAMPLE_STEP: u8 = 37;
/// Connections whose reads only miss look into one of so many sets, where others are answered.
const VAIN: u32 = 16;
/// While fills are more than one of so many misses, who misses is not in vain: fills warm the cache up.
const WARM_FILLS: u64 = 8;
/// From level 1 to 2: until then a load that was gone for a moment finds its keys.
const FILLS_GO_ON_NS: u64 = 10 * SECOND_NS;
/// From leaving level 0 to a try of it, twice as long each time that it was entered in vain; the same from
/// try to try, until it is so long; and how long one lasts.
const TRY_FIRST_NS: u64 = 2 * SECOND_NS;
const TRY_EVERY_NS: u64 = 30 * SECOND_NS;
const TRY_NS: u64 = 100 * MS;
/// The sample is not believed for so long after it was wrong, twice as long after each further time.
const DOUBT_NS: u64 = 60 * SECOND_NS;
const DOUBTS_MAX: u32 = 5;

/// At which the cache is closed.
pub(crate) const CLOSED_LEVEL: u8 = 3;

/// Reads that were looked up and not answered.
const MISSES: [abi::erb_stat; 4] = [
    abi::STAT_REFUSE_MISS,
    abi::STAT_REFUSE_MARKED,
    abi::STAT_REFUSE_EXPIRED,
    abi::STAT_REFUSE_SET_CHANGED,
];

/// Values that were read from Redis, whatever came of them.
const FILLS: [abi::erb_stat; 3] = [
    abi::STAT_FILL_INSERTED,
    abi::STAT_FILL_STALE,
    abi::STAT_FILL_TOO_BIG,
];

/// Why the level is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Begin,
    Lost,
    Hopeless,
    SampleLost,
    SamplePays,
    TryPays,
    Few,
    Pinned,
    Released,
    Kept,
    Hours,
    Again,
}

impl Why {
    const fn text(self) -> &'static str {
        match self {
            Self::Begin => "nothing speaks against it",
            Self::Lost => "answers save less than look-ups and fills cost",
            Self::Hopeless => "writes cost more than answers to all reads would save",
            Self::SampleLost => "the sample shows no gain either",
            Self::SamplePays => "the sample shows that it pays",
            Self::TryPays => "a short try has paid",
            Self::Few => "too few requests to save anything",
            Self::Pinned => "set by hand",
            Self::Released => "the cache was opened by hand",
            Self::Kept => "it was set by hand, and is decided again from now on",
            Self::Hours => "nothing has paid for as long as --close-after says",
            Self::Again => "the cache was closed long enough to look again",
        }
    }
}

/// What was counted, ever or since.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    fills: u64,
    /// Of these, hashes.
    hashes: u64,
    found: u64,
    missed: u64,
    aside: u64,
    /// Writes that went up, or that Redis has reported.
    writes: u64,
    /// Writes that were answered in Redis's place.
    absorbed: u64,
}

/// What the daemon itself has counted in a second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Writes that Redis has reported.
    pub(crate) reported: u64,
    /// Hashes that were read.
    pub(crate) hashes: u64,
}

impl Counts {
    fn read(path: &impl DataPath) -> Result<Self> {
        let sum = |stats: &[abi::erb_stat]| {
            let mut stats = stats.iter();
            stats.try_fold(0, |sum, stat| Ok::<_, Error>(sum + path.stat(*stat)?))
        };
        let reads = abi::FAST_COMMANDS.iter();
        let reads = reads.filter(|command| command.kind != abi::FAST_KIND_PING);
        let reads: Vec<_> = reads.map(|command| command.stat).collect();
        Ok(Self {
            hits: sum(&reads)?,
            misses: sum(&MISSES)?,
            fills: sum(&FILLS)?,
            hashes: 0,
            found: path.stat(abi::STAT_SAMPLE_FOUND)?,
            missed: path.stat(abi::STAT_SAMPLE_MISSED)?,
            aside: path.stat(abi::STAT_REFUSE_ASIDE)?,
            writes: path.stat(abi::STAT_MARK_TAKEN)?,
            absorbed: path.stat(abi::STAT_ABSORBED)?,
        })
    }

    const fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            fills: self.fills.saturating_sub(before.fills),
            hashes: 0,
            found: self.found.saturating_sub(before.found),
            missed: self.missed.saturating_sub(before.missed),
            aside: self.aside.saturating_sub(before.aside),
            writes: self.writes.saturating_sub(before.writes),
            absorbed: self.absorbed.saturating_sub(before.absorbed),
        }
    }

    /// What the whole cache brought and cost.
    const fn account(&self) -> Account {
        Account::of(self.hits, self.misses, self.fills_ns(), self.writes)
    }

    const fn fills_ns(&self) -> u64 {
        self.fills * FILL_COSTS_NS + self.hashes * HASH_FILL_COSTS_MORE_NS
    }

    /// Whether it would be bad even if each read were answered: what writes cost, and reading again what was
    /// written, stays.
    fn is_hopeless(&self) -> bool {
        let again_ns = self.fills_ns() * self.fills.min(self.writes) / self.fills.max(1);
        let best = Account::of(self.hits + self.misses, 0, again_ns, self.writes);
        best.cost >= HASTE_NS && best.is_bad()
    }

    /// What the sample did, beside its part of the writes.
    fn sample(&self) -> Account {
        let writes = self.writes / u64::from(SAMPLE);
        Account::of(self.found, self.missed, self.fills_ns(), writes)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a ratio")]
fn ratio(hits: u64, misses: u64) -> f64 {
    hits as f64 / (hits + misses).max(1) as f64
}

/// Processor time, ns.
#[derive(Clone, Copy, Debug)]
struct Account {
    saved: u64,
    cost: u64,
}

impl Account {
    const fn of(hits: u64, misses: u64, fills_ns: u64, writes: u64) -> Self {
        let reads_cost = misses * LOOK_COSTS_NS + fills_ns;
        Self {
            saved: hits * HIT_SAVES_NS,
            cost: reads_cost + writes * REPORT_COSTS_NS,
        }
    }

    const fn is_bad(&self) -> bool {
        self.cost >= TELLING_NS && 2 * self.saved < ASIDE_BELOW_HALVES * self.cost
    }

    const fn pays(&self) -> bool {
        2 * self.saved > BACK_ABOVE_HALVES * self.cost
    }
}

/// A short time of level 0.
#[derive(Clone, Copy, Debug)]
struct Try {
    began_ns: u64,
    before: Counts,
}

/// What is known of it, for people and programs.
#[derive(Clone, Debug, PartialEq)]
pub struct AsideState {
    /// 0, 1 or 2; 3 by hand, or where `--close-after` allows it.
    pub level: u8,
    /// Why.
    pub why: &'static str,
    /// Since when, ns of the machine's monotonic clock.
    pub since_ns: u64,
    /// Share of the sample's look-ups that found their key, when last told; none at level 0.
    pub sample_hit_ratio: Option<f64>,
    /// How often each level was entered.
    pub entered: [u64; 4],
    /// Short tries of level 0.
    pub tries: u64,
}

/// Decides the level.
#[derive(Debug)]
pub(crate) struct Aside {
    state: AsideState,
    is_pinned: bool,
    before: Counts,
    /// Of the last seconds in which something was looked up: share of answers.
    ratios: VecDeque<f64>,
    /// Bad seconds in a row.
    bad: usize,
    /// Hopeless ones.
    hopeless: usize,
    /// Seconds in a row at level 1 or 2 in which nothing could be saved.
    few: u32,
    /// A second at level 0 was not bad since it was entered.
    has_paid: bool,
    /// In the last second most writes were answered, which no closed cache could do.
    writes_pay: bool,
    /// In it level 0 saved more than it cost, and as much as is worth a decision.
    reads_pay: bool,
    /// How often in a row level 0 was entered in vain.
    doubts: u32,
    /// The sample's counts that were not enough to tell.
    sample: Counts,
    /// When level 0 was left last.
    left_ns: u64,
    look_at: u8,
    tried: Option<Try>,
    next_try_ns: u64,
    /// From the next try to the one behind it.
    try_pause_ns: u64,
}

impl Aside {
    /// Level 0, whatever another daemon has left.
    pub(crate) fn begin(path: &impl DataPath) -> Self {
        let aside = Self {
            state: AsideState {
                level: 0,
                why: Why::Begin.text(),
                since_ns: 0,
                sample_hit_ratio: None,
                entered: [0; 4],
                tries: 0,
            },
            is_pinned: false,
            before: Counts::default(),
            ratios: VecDeque::new(),
            bad: 0,
            hopeless: 0,
            few: 0,
            has_paid: false,
            writes_pay: false,
            reads_pay: false,
            doubts: 0,
            sample: Counts::default(),
            left_ns: 0,
            look_at: 0,
            tried: None,
            next_try_ns: 0,
            try_pause_ns: TRY_FIRST_NS,
        };
        aside.tell(path, false);
        aside
    }

    pub(crate) const fn state(&self) -> &AsideState {
        &self.state
    }

    /// Whether look-ups are left out now.
    pub(crate) const fn leaves_out(&self) -> bool {
        self.state.level > 0 && self.tried.is_none()
    }

    /// Keeps this level; none: decides again.
    pub(crate) fn pin(&mut self, path: &impl DataPath, level: Option<u8>, now: u64) {
        self.is_pinned = level.is_some();
        match level {
            Some(level) => self.enter(level.min(CLOSED_LEVEL), Why::Pinned, now),
            None if self.state.level == CLOSED_LEVEL => self.enter(0, Why::Released, now),
            None if self.state.why == Why::Pinned.text() => {
                self.state.why = Why::Kept.text();
            }
            None => {}
        }
        self.tell(path, false);
    }

    /// Closes the cache for hours, or opens it again.
    pub(crate) fn obey(&mut self, path: &impl DataPath, word: Word, now: u64) {
        match word {
            Word::Close => self.enter(CLOSED_LEVEL, Why::Hours, now),
            Word::Open => self.enter(0, Why::Again, now),
        }
        self.is_pinned = false;
        self.tell(path, false);
    }

    /// What the last second has shown of the load.
    pub(crate) fn shown(&self) -> Shown {
        let is_aside = matches!(self.state.level, 1 | 2);
        Shown {
            is_lost: is_aside && !self.is_pinned && self.few == 0,
            pays: self.writes_pay || self.reads_pay,
        }
    }

    /// Each tick: a try ends in time.
    pub(crate) fn tick(&mut self, path: &impl DataPath, now: u64) -> Result<()> {
        let ended = self.tried.take_if(|tried| now >= tried.began_ns + TRY_NS);
        let Some(tried) = ended else {
            return Ok(());
        };
        self.before = Counts::read(path)?;
        let seen = self.before.since(&tried.before).account();
        if seen.saved > 0 && seen.pays() {
            self.enter(0, Why::TryPays, now);
        } else {
            self.look_at = self.look_at.wrapping_add(SAMPLE_STEP);
            self.sample = Counts::default();
        }
        self.tell(path, false);
        Ok(())
    }

    /// Once a second, in which the daemon has seen this.
    pub(crate) fn second(&mut self, path: &impl DataPath, seen: Seen, now: u64) -> Result<()> {
        if self.tried.is_some() {
            return Ok(());
        }
        if self.state.since_ns == 0 {
            self.state.since_ns = now; // nothing was entered yet
        }
        let counts = Counts::read(path)?;
        let mut second = counts.since(&self.before);
        self.writes_pay = second.absorbed > second.writes;
        self.reads_pay = false;
        // Of those that no packet has shown too.
        second.writes = second.writes.max(seen.reported);
        second.hashes = seen.hashes;
        self.before = counts;
        let mut vain = false;
        if self.state.level == CLOSED_LEVEL {
            // Nothing was read.
        } else if self.state.level > 0 {
            let shown = self.look_at_sample(&second);
            if !self.is_pinned {
                self.second_of_sample(&second, shown, now);
            }
        } else if !self.is_pinned {
            self.second_of_all(&second, now);
            let is_warm = second.fills * WARM_FILLS <= second.misses;
            vain = self.state.level == 0 && is_warm && second.hits > 0 && second.account().pays();
            // Who is in vain finds in turn what it reads.
            self.look_at = self.look_at.wrapping_add(SAMPLE_STEP);
        }
        self.tell(path, vain);
        Ok(())
    }

    fn second_of_all(&mut self, second: &Counts, now: u64) {
        if second.hits + second.misses + second.writes == 0 {
            return; // it says nothing
        }
        self.ratios.push_back(ratio(second.hits, second.misses));
        let account = second.account();
        let is_bad = account.is_bad();
        self.has_paid |= !is_bad && second.hits > 0;
        self.reads_pay = account.saved >= TELLING_NS && account.pays();
        let count = |so_far, is_one| if is_one { so_far + 1 } else { 0 };
        self.bad = count(self.bad, is_bad);
        self.hopeless = count(self.hopeless, is_bad && second.is_hopeless());
        if self.ratios.len() > PATIENCE {
            self.ratios.pop_front();
        }
        let (level, why) = if self.hopeless >= self.patience_hopeless() {
            (2, Why::Hopeless)
        } else if self.bad >= PATIENCE && !self.is_warming() {
            (1, Why::Lost)
        } else {
            return;
        };
        // Nobody has come back in vain who was never away.
        let in_vain = !self.has_paid && self.state.entered[0] > 0;
        self.doubts = match in_vain {
            true => (self.doubts + 1).min(DOUBTS_MAX),
            false => 0,
        };
        self.enter(level, why, now);
        self.left_ns = now;
        self.try_pause_ns = TRY_FIRST_NS << self.doubts;
        self.try_later(now);
    }

    const fn patience_hopeless(&self) -> usize {
        if self.has_paid {
            PATIENCE_HOPELESS
        } else {
            PATIENCE_NEW
        }
    }

    fn try_later(&mut self, now: u64) {
        let pause_ns = self.try_pause_ns.min(TRY_EVERY_NS);
        self.next_try_ns = now + pause_ns;
        self.try_pause_ns = 2 * pause_ns;
    }

    fn is_warming(&self) -> bool {
        let ends = self.ratios.front().zip(self.ratios.back());
        ends.is_some_and(|(first, last)| *last >= first + RISING)
    }

    /// What the sample shows, once it tells something.
    fn look_at_sample(&mut self, second: &Counts) -> Option<Account> {
        self.sample.found += second.found;
        self.sample.missed += second.missed;
        self.sample.fills += second.fills;
        self.sample.hashes += second.hashes;
        self.sample.writes += second.writes;
        let looks = self.sample.found + self.sample.missed;
        if looks < TELLING_LOOKS {
            return None;
        }
        let sample = std::mem::take(&mut self.sample);
        self.state.sample_hit_ratio = Some(ratio(sample.found, sample.missed));
        Some(sample.sample())
    }

    fn second_of_sample(&mut self, second: &Counts, shown: Option<Account>, now: u64) {
        let asked = second.aside + second.found + second.missed;
        let most_ns = asked * (LOOK_COSTS_NS + FILL_COSTS_NS) + second.writes * REPORT_COSTS_NS;
        self.few = if most_ns < TELLING_NS / 2 {
            self.few + 1
        } else {
            0
        };
        if self.few >= FEW_SECONDS {
            self.enter(0, Why::Few, now);
            return;
        }
        let pays = shown.is_some_and(|sample| sample.saved > 0 && sample.pays());
        if pays && now >= self.left_ns + self.doubt_ns() {
            self.enter(0, Why::SamplePays, now);
            return;
        }
        if self.state.level == 1 && now >= self.left_ns + FILLS_GO_ON_NS {
            self.enter(2, Why::SampleLost, now);
        }
        if now >= self.next_try_ns {
            self.try_later(now);
            self.state.tries += 1;
            self.tried = Some(Try {
                began_ns: now,
                before: self.before,
            });
        }
    }

    /// How long the sample is not believed.
    const fn doubt_ns(&self) -> u64 {
        match self.doubts {
            0 => 0,
            times => DOUBT_NS << (times - 1),
        }
    }

    fn enter(&mut self, level: u8, why: Why, now: u64) {
        tracing::info!("aside: level {level}, as {}", why.text());
        let state = &mut self.state;
        state.level = level;
        state.why = why.text();
        state.since_ns = now;
        state.entered[usize::from(level)] += 1;
        if level == 0 {
            state.sample_hit_ratio = None;
            self.has_paid = false;
            self.ratios.clear();
        }
        (self.bad, self.hopeless) = (0, 0);
        if level != 2 {
            self.few = 0;
        }
        self.tried = None;
        self.sample = Counts::default();
    }

    /// Tells the data path, each second anew.
    fn tell(&self, path: &impl DataPath, vain: bool) {
        let is_tried = self.tried.is_some();
        let level = if is_tried { 0 } else { self.state.level };
        path.set_look_at(self.look_at);
        path.set_look_mask(if level > 0 { SAMPLE - 1 } else { 0 });
        path.set_fill_mask(if level > 1 { u16::from(SAMPLE) - 1 } else { 0 });
        path.set_vain_mask(if vain { VAIN - 1 } else { 0 });
    }
}

#[cfg(test)]
#[path = "aside_tests.rs"]
mod tests;
