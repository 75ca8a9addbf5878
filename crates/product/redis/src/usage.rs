// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which commands Redis executes for others than the daemon, and how much of its processor's time answers of ERB save
//! it: out of what INFO counts, which is read each second anyhow. The data path counts what it has answered.
//!
//! The time is an estimate. INFO tells how long a command runs (`usec`), and nothing of what it costs Redis besides: to
//! wake up, to read, to parse, to write, and the kernel's TCP below. All that is what the process used (`used_cpu_*`)
//! without what commands ran for, by the command. So an answer saves that, and the time that its command runs for.
//!
//! Invariants:
//! 1. Both sides count from this daemon's first reading on, and never fall. Of a Redis that has begun anew, by CONFIG
//!    RESETSTAT or as another process, all that it counts has come since.
//! 2. What the daemon has asked for before an INFO is taken off what that counts.
//! 3. What the estimate does not know counts as nothing: no time is saved before Redis was seen at work, none by SETs
//!    that are drained later, and what the daemon's own commands cost is taken off.

use std::collections::HashMap;
use std::sync::LazyLock;

use erb_abi::{self as abi, COMMANDS, FAST_COMMANDS, NAME_BYTES_MAX};

use crate::calls::{calls, part};
use crate::clock::SECOND_NS;
use crate::outside::{DataPath, Result};

/// Redis's time by the command is believed of a time in which it executed so many a second: with fewer, what it does
/// besides (its clock ticks ten times a second, for about a millisecond in all) would count as theirs.
const TELLING_PER_SECOND: u64 = 1_000;

/// What is not in `commands.def`: commands of modules, and those of a newer Redis.
const OTHER: usize = COMMANDS.len();

/// Where each name is counted. `name|*` is no command's name.
static PLACES: LazyLock<HashMap<&'static str, usize>> = LazyLock::new(|| {
    let names = COMMANDS.iter().map(|command| command.name).zip(0..);
    names.filter(|(name, _)| !name.ends_with('*')).collect()
});

/// By its own name, or by its container's.
fn place_of(name: &str) -> usize {
    let container = || name.split('|').next().and_then(|name| PLACES.get(name));
    PLACES
        .get(name)
        .or_else(container)
        .copied()
        .unwrap_or(OTHER)
}

/// A number for each command of `commands.def`, and one for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByCommand(Vec<u64>);

impl Default for ByCommand {
    fn default() -> Self {
        Self(vec![0; OTHER + 1])
    }
}

impl ByCommand {
    /// Counts a command by its words, the second of which may be a key, of any bytes.
    pub(crate) fn count(&mut self, words: &[&[u8]]) {
        let mut name = [0; 2 * NAME_BYTES_MAX as usize + 1];
        let (mut length, mut ends) = (0, [0; 2]);
        let words = [0, 1].map(|at| words.get(at).copied().unwrap_or_default());
        for (word, end) in words.into_iter().zip(&mut ends) {
            let from = length + usize::from(length > 0);
            if from + word.len() > name.len() {
                break; // it names nothing
            }
            name[length..from].fill(b'|');
            length = from + word.len();
            name[from..length].copy_from_slice(word);
            *end = length;
        }
        name.make_ascii_lowercase();
        let [container, whole] = ends.map(|end| std::str::from_utf8(&name[..end]).ok());
        let known = whole.and_then(|whole| PLACES.get(whole));
        let known = known.or_else(|| PLACES.get(container?));
        self.0[known.copied().unwrap_or(OTHER)] += 1;
    }

    /// Counts so many of a name.
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        self.0[place_of(name)] += count;
    }

    fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What came since `before`; what is less than before has begun anew.
    fn since(&self, before: &Self) -> Self {
        let each = self.0.iter().zip(&before.0);
        Self(
            each.map(|(now, before)| now.saturating_sub(*before))
                .collect(),
        )
    }

    fn fell(&self, before: &Self) -> bool {
        self.0
            .iter()
            .zip(&before.0)
            .any(|(now, before)| now < before)
    }
}

/// What an INFO tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `run_id`: of a Redis that has begun anew it is another one.
    run: String,
    calls: ByCommand,
    /// `usec` of all calls.
    run_us: ByCommand,
    /// Processor time of the process; none: INFO has not told.
    cpu_us: Option<u64>,
    /// Which feed has asked, and what it had asked for before.
    feed: u64,
    own: ByCommand,
}

impl Usage {
    /// Takes a line of INFO.
    pub(crate) fn take(&mut self, name: &str, value: &str) {
        match name {
            "run_id" => value.clone_into(&mut self.run),
            "used_cpu_sys" | "used_cpu_user" => {
                let more = micros(value);
                self.cpu_us = more.map(|more| self.cpu_us.unwrap_or(0) + more);
            }
            _ => {
                if let Some(command) = name.strip_prefix("cmdstat_") {
                    self.calls.add(command, calls(value));
                    self.run_us.add(command, part(value, "usec="));
                }
            }
        }
    }

    /// Notes which feed has asked, and what it had asked for before.
    pub(crate) fn asked_by(&mut self, feed: u64, own: ByCommand) {
        (self.feed, self.own) = (feed, own);
    }

    /// How long a command runs, on average, ns; 0: it never ran.
    fn run_ns(&self, place: usize) -> u64 {
        let (us, calls) = (self.run_us.0[place], self.calls.0[place]);
        us.saturating_mul(1_000).checked_div(calls).unwrap_or(0)
    }
}

/// Seconds with a fraction of six digits.
fn micros(value: &str) -> Option<u64> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let digits: String = fraction.chars().chain(['0'; 6]).take(6).collect();
    let whole: u64 = whole.parse().ok()?;
    Some(whole.checked_mul(1_000_000)? + digits.parse::<u64>().ok()?)
}

/// What the data path has answered.
#[derive(Clone, Debug, Default)]
struct Answered {
    by_command: ByCommand,
    /// Of these, SETs: Redis executes them later.
    absorbed: u64,
    /// Packets with answers to others than these.
    packets: u64,
}

impl Answered {
    fn read(path: &impl DataPath) -> Result<Self> {
        let mut found = Self::default();
        for fast in &FAST_COMMANDS {
            found.by_command.add(fast.name, path.stat(fast.stat)?);
        }
        found.absorbed = path.stat(abi::STAT_ABSORBED)?;
        found.by_command.add("set", found.absorbed);
        let packets = path.stat(abi::STAT_FAST_PACKET)? + path.stat(abi::STAT_FAST_PACKET_TC)?;
        found.packets = packets.saturating_sub(found.absorbed);
        Ok(found)
    }
}

/// All that is known at one moment.
struct Reading {
    at_ns: u64,
    usage: Usage,
    answered: Answered,
}

/// How often a command was executed, and answered without Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCount {
    /// Its name in `commands.def`, or `other`.
    pub name: &'static str,
    /// Answered by ERB.
    pub answered: u64,
    /// Executed by Redis, for others than the daemon.
    pub to_redis: u64,
}

/// What is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageState {
    /// When counting began, CLOCK_MONOTONIC; none: Redis was not read yet.
    pub since_ns: Option<u64>,
    /// Commands that came.
    pub commands: Vec<CommandCount>,
    /// What a command costs Redis besides what it runs for, ns; none: Redis was not seen at work yet.
    pub overhead_ns: Option<u64>,
    /// Processor time of Redis that was saved, about.
    pub saved_ns: u64,
}

/// What came since the first reading.
#[derive(Default)]
pub(crate) struct Spared {
    began: Option<(u64, ByCommand)>,
    last: Option<Reading>,
    to_redis: ByCommand,
    overhead_ns: Option<u64>,
    saved_ns: u64,
}

impl Spared {
    /// INFO was read.
    pub(crate) fn take(&mut self, path: &impl DataPath, usage: &Usage, now: u64) -> Result<()> {
        let reading = Reading {
            at_ns: now,
            usage: usage.clone(),
            answered: Answered::read(path)?,
        };
        match self.last.take() {
            Some(before) => self.add(&before, &reading),
            None => self.began = Some((now, reading.answered.by_command.clone())),
        }
        self.last = Some(reading);
        Ok(())
    }

    fn add(&mut self, before: &Reading, now: &Reading) {
        let (was, is) = (&before.usage, &now.usage);
        let same_run = was.run == is.run;
        // RESETSTAT forgets all of them.
        let anew = !same_run || is.calls.fell(&was.calls);
        let nothing = ByCommand::default();
        let calls = is.calls.since(if anew { &nothing } else { &was.calls });
        let run_us = is.run_us.since(if anew { &nothing } else { &was.run_us });
        let same_feed = same_run && was.feed == is.feed;
        let own = is.own.since(if same_feed { &was.own } else { &nothing });
        for (sum, (calls, own)) in self.to_redis.0.iter_mut().zip(calls.0.iter().zip(&own.0)) {
            *sum += calls.saturating_sub(*own);
        }
        let time_ns = now.at_ns.saturating_sub(before.at_ns);
        if let (false, Some(cpu), Some(cpu_was)) = (anew, is.cpu_us, was.cpu_us) {
            let busy_us = cpu.saturating_sub(cpu_was).saturating_sub(run_us.sum());
            let per_second = calls.sum().saturating_mul(SECOND_NS) / time_ns.max(1);
            if per_second >= TELLING_PER_SECOND {
                self.overhead_ns = Some(busy_us * 1_000 / calls.sum());
            }
        }
        self.saved_ns += self.saved(&own, (&before.answered, &now.answered), is);
    }

    fn saved(&self, own: &ByCommand, (was, is): (&Answered, &Answered), usage: &Usage) -> u64 {
        let Some(overhead_ns) = self.overhead_ns else {
            return 0;
        };
        let mut answered = is.by_command.since(&was.by_command);
        // They cost it less than alone, but how much less is not known.
        answered.0[place_of("set")] -= is.absorbed.saturating_sub(was.absorbed);
        let ran = |by: &ByCommand| -> u64 {
            let each = by.0.iter().zip(0..).filter(|(count, _)| **count > 0);
            each.map(|(count, place)| count * usage.run_ns(place)).sum()
        };
        let packets = is.packets.saturating_sub(was.packets);
        let gross = packets * overhead_ns + ran(&answered);
        gross.saturating_sub(own.sum() * overhead_ns + ran(own))
    }

    /// What is told of it.
    pub(crate) fn state(&self) -> UsageState {
        let Some(((since_ns, first), last)) = self.began.as_ref().zip(self.last.as_ref()) else {
            return UsageState::default();
        };
        let answered = last.answered.by_command.since(first);
        let names = COMMANDS.iter().map(|command| command.name);
        let counts = answered.0.iter().zip(&self.to_redis.0);
        let rows = names.chain(["other"]).zip(counts);
        let rows = rows.map(|(name, (answered, to_redis))| CommandCount {
            name,
            answered: *answered,
            to_redis: *to_redis,
        });
        UsageState {
            since_ns: Some(*since_ns),
            commands: rows.filter(|row| row.answered + row.to_redis > 0).collect(),
            overhead_ns: self.overhead_ns,
            saved_ns: self.saved_ns,
        }
    }
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
