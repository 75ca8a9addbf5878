// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a cut may take of SETs that were answered in Redis's place: `judge` holds what Redis's log and the journal have
//! against what the clients were told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::writes_load::{CLIENTS, COUNTER, SUM, Told, after, owner, setter};

/// Redis syncs its log each second, and one sync may be under way for another; half a second more until what waits is
/// kept.
const WINDOW_US: u64 = 2_500_000;

/// What a cut comes behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Redis works, and nobody answers in its place: what is its own window?
    Alone,
    AtWork,
    /// Redis has stood still for less time than after which what waits is kept.
    Young,
    /// Redis stands still, and what waits is kept.
    Stopped,
    /// The same, and its log was synced before.
    Synced,
    /// Redis stood still for seconds, and got what waited just now.
    Resumed,
    /// At work, with `--journal all`.
    All,
    /// The same, and the kernel module writes it.
    Kmod,
}

impl When {
    pub(crate) const fn is_boosted(self) -> bool {
        !matches!(self, Self::Alone)
    }

    /// What is kept, as the guest's script has a word for it.
    pub(crate) const fn keeps(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Kmod => "kmod",
            _ => "late",
        }
    }

    /// Redis does, until what waits is kept.
    pub(crate) const fn stands_still(self) -> bool {
        matches!(self, Self::Stopped | Self::Synced | Self::Resumed)
    }
}

/// Keys with their values.
pub(crate) type Keys = BTreeMap<String, String>;

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    lsn: u64,
    key: String,
    value: String,
}

/// What the clients were told by the cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    pub(crate) told: Vec<Told>,
    /// The last that was heard.
    pub(crate) now_us: u64,
    /// So many were answered and not drained, where somebody has asked.
    pub(crate) waiting: usize,
}

/// What was left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    pub(crate) redis: Keys,
    pub(crate) journal: Vec<Record>,
}

/// What was found, where nothing is against it.
#[derive(Debug)]
pub(crate) struct Found {
    told: usize,
    /// Calls of each client that Redis's log has.
    calls: [u64; CLIENTS as usize],
    records: usize,
    /// Calls that were told and that Redis's log lacks.
    lacks: usize,
    /// How old the oldest of them was at the cut.
    lacks_us: u64,
    /// Those that the journal lacks, too.
    lost: usize,
    lost_us: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "{} told; Redis's log has {:?} of each client's and lacks {} of {} ms; the journal has {}; {} of {} ms are lost",
            self.told,
            self.calls,
            self.lacks,
            self.lacks_us / 1_000,
            self.records,
            self.lost,
            self.lost_us / 1_000
        )
    }
}

/// Lines of keys and values.
pub(crate) fn keys_of(text: &str) -> Result<Keys> {
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ').context("a key and its value")?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.lines().map(pair).collect()
}

/// Records of `erb journal show --json`, in the order of their LSNs.
pub(crate) fn records_of(text: &str) -> Result<Vec<Record>> {
    let record = |line: &str| -> Result<Record> {
        let object: Value = serde_json::from_str(line)?;
        let word = |name: &str| {
            let word = object[name].as_str().context("text")?;
            Ok::<_, anyhow::Error>(word.to_owned())
        };
        Ok(Record {
            lsn: object["lsn"].as_u64().context("an LSN")?,
            key: word("key")?,
            value: word("value")?,
        })
    };
    let mut records = text.lines().map(record).collect::<Result<Vec<_>>>()?;
    records.sort_by_key(|one| one.lsn);
    records.dedup();
    Ok(records)
}

/// What Redis has when the journal was applied.
pub(crate) fn applied(left: &Left) -> Keys {
    let mut keys = left.redis.clone();
    let records = left.journal.iter();
    keys.extend(records.map(|one| (one.key.clone(), one.value.clone())));
    keys
}

/// Says what is not as it is promised.
pub(crate) fn judge(when: When, book: &Book, left: &Left) -> Result<Found> {
    let calls = prefixes(&left.redis)?;
    let has = |one: &Told| one.number < calls[one.client as usize];
    let lacking: Vec<Told> = book.told.iter().filter(|one| !has(one)).copied().collect();
    if let Some(first) = lacking.iter().min_by_key(|one| one.answered_us) {
        let behind = book
            .told
            .iter()
            .find(|one| has(one) && one.sent_us > first.answered_us);
        ensure!(
            behind.is_none(),
            "Redis's log has {behind:?}, which was said behind the answer of {first:?}, which it has not"
        );
    }
    let kept = kept(book, &left.journal)?;
    let is_kept = |one: &&Told| kept.contains(&(one.client, one.number));
    let lost: Vec<Told> = lacking
        .iter()
        .filter(|one| !is_kept(one))
        .copied()
        .collect();
    let end = match when {
        When::Stopped | When::Synced => waited(book, &left.journal, &lost)?,
        _ => book.now_us,
    };
    ensure!(
        when.keeps() == "late" || !left.journal.is_empty() && gap(&left.journal).is_none(),
        "a journal of all has nothing, or a gap behind {:?}",
        gap(&left.journal)
    );
    ensure!(
        when != When::Synced || lost.is_empty(),
        "{} are lost, although Redis had synced its log: {:?}",
        lost.len(),
        lost.first()
    );
    let lost_us = age(&lost, end);
    ensure!(
        lost_us <= WINDOW_US,
        "what was answered {} ms before is lost: {} calls",
        lost_us / 1_000,
        lost.len()
    );
    Ok(Found {
        told: book.told.len(),
        calls,
        records: left.journal.len(),
        lacks: lacking.len(),
        lacks_us: age(&lacking, end),
        lost: lost.len(),
        lost_us,
    })
}

fn age(calls: &[Told], end: u64) -> u64 {
    let first = calls.iter().map(|one| one.answered_us).min();
    first.map_or(0, |first| end.saturating_sub(first))
}

/// How many of each client's calls Redis has: it has to be as if these were done once each, and no other one was.
fn prefixes(redis: &Keys) -> Result<[u64; CLIENTS as usize]> {
    let stranger = redis.keys().find(|key| owner(key).is_none());
    ensure!(stranger.is_none(), "nobody has said {stranger:?}");
    let mut calls = [0; CLIENTS as usize];
    for client in 0..CLIENTS {
        let own = |key: &&String| owner(key) == Some(client);
        let keys: Keys = redis
            .iter()
            .filter(|(key, _)| own(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        // Who counts has said three calls for each of its sum, or one or two more.
        let sum = keys.get(SUM).and_then(|sum| sum.parse::<u64>().ok());
        let counts = match client {
            COUNTER => 3 * sum.unwrap_or(0)..3 * sum.unwrap_or(0) + 3,
            _ => keys.len() as u64..keys.len() as u64 + 1,
        };
        let count = counts
            .into_iter()
            .find(|count| after(client, *count) == keys);
        let last: Vec<_> = keys.iter().rev().take(3).collect();
        calls[client as usize] = count.with_context(|| {
            format!(
                "client {client} has {} keys that are no prefix of what it said: {last:?}",
                keys.len()
            )
        })?;
    }
    Ok(calls)
}

/// The calls that the journal has: values as they were said, in an order that could be.
fn kept(book: &Book, journal: &[Record]) -> Result<BTreeSet<(u64, u64)>> {
    let told: BTreeMap<_, _> = book
        .told
        .iter()
        .map(|one| ((one.client, one.number), one))
        .collect();
    let (mut kept, mut sent_us) = (BTreeSet::new(), 0);
    for record in journal {
        let call = setter(&record.key).with_context(|| format!("nobody has said {record:?}"))?;
        let said = after(call.0, call.1 + 1);
        ensure!(
            said.get(&record.key) == Some(&record.value),
            "nobody has said {record:?}"
        );
        if let Some(one) = told.get(&call) {
            ensure!(
                one.answered_us >= sent_us,
                "LSN {} is of {one:?}, and one before it of what was said later",
                record.lsn
            );
            sent_us = sent_us.max(one.sent_us);
        }
        kept.insert(call);
    }
    Ok(kept)
}

/// The last record behind which one is missing.
fn gap(journal: &[Record]) -> Option<usize> {
    let mut pairs = journal.windows(2);
    pairs.rposition(|two| two[0].lsn + 1 != two[1].lsn)
}

/// When what waited for Redis began to: from then on all of it is in the journal, without a gap.
fn waited(book: &Book, journal: &[Record], lost: &[Told]) -> Result<u64> {
    ensure!(!journal.is_empty(), "the journal has nothing");
    // What lies before a gap was drained.
    let waited = &journal[gap(journal).map_or(0, |at| at + 1)..];
    ensure!(
        waited.len() >= book.waiting,
        "{} waited, and the journal has {} of them without a gap",
        book.waiting,
        waited.len()
    );
    let first = &waited[0];
    let call = setter(&first.key);
    let first = book
        .told
        .iter()
        .find(|one| Some((one.client, one.number)) == call);
    let first = first.context("nobody was told of what the journal has first")?;
    let missing = lost.iter().find(|one| one.sent_us > first.answered_us);
    ensure!(missing.is_none(), "what waited is not kept: {missing:?}");
    Ok(first.answered_us)
}

#[cfg(test)]
#[path = "writes_judge_tests.rs"]
mod tests;
