// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of the reads of the fast list, by command.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use erb_abi::FastCommand;
use serde::Serialize;

/// What became of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// ERB gave the reply that the client got, to the first try.
    FastAtOnce,
    /// To a later try.
    Fast,
    /// Redis gave it, to the last try too.
    Slow,
    /// The same of what ERB cannot have: no such key, or a value that fits no slot.
    Beyond,
    /// Redis refused it with an error, so it was not repeated.
    Refused,
    /// MULTI queued it, so it was not repeated.
    Queued,
    /// CLIENT TRACKING was on, so it was not repeated.
    Tracked,
    /// It stood in a pipeline, so it was not repeated.
    Piped,
    /// It was a line of words, which is no command of the fast list.
    Line,
}

/// The reads of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Read {
    /// Clients sent so many, lines of words left out.
    pub sent: u64,
    /// [`Why::FastAtOnce`] and [`Why::Fast`].
    pub fast: u64,
    /// [`Why::FastAtOnce`].
    pub fast_at_once: u64,
    /// [`Why::Slow`].
    pub slow: u64,
    /// [`Why::Beyond`].
    pub beyond: u64,
    /// [`Why::Refused`].
    pub refused: u64,
    /// [`Why::Queued`].
    pub queued: u64,
    /// [`Why::Tracked`].
    pub tracked: u64,
    /// [`Why::Piped`].
    pub piped: u64,
    /// [`Why::Line`].
    pub lines: u64,
}

impl Read {
    fn count(&mut self, why: Why) {
        self.sent += u64::from(why != Why::Line);
        *match why {
            Why::FastAtOnce => {
                self.fast_at_once += 1;
                &mut self.fast
            }
            Why::Fast => &mut self.fast,
            Why::Slow => &mut self.slow,
            Why::Beyond => &mut self.beyond,
            Why::Refused => &mut self.refused,
            Why::Queued => &mut self.queued,
            Why::Tracked => &mut self.tracked,
            Why::Piped => &mut self.piped,
            Why::Line => &mut self.lines,
        } += 1;
    }

    /// Those that ERB may answer by its own rules: neither an error, nor queued, nor with effects, nor
    /// [`Why::Beyond`].
    pub const fn open(&self) -> u64 {
        self.sent - self.beyond - self.refused - self.queued - self.tracked
    }

    /// Adds another run's.
    pub fn add(&mut self, more: &Self) {
        self.sent += more.sent;
        self.fast += more.fast;
        self.fast_at_once += more.fast_at_once;
        self.slow += more.slow;
        self.beyond += more.beyond;
        self.refused += more.refused;
        self.queued += more.queued;
        self.tracked += more.tracked;
        self.piped += more.piped;
        self.lines += more.lines;
    }
}

/// By name of the command.
pub type ReadTable = BTreeMap<String, Read>;

/// The counts of all connections.
#[derive(Default)]
pub struct Reads(Mutex<ReadTable>);

impl Reads {
    /// Counts one read.
    pub fn count(&self, command: &FastCommand, why: Why) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(command.name.to_owned()).or_default().count(why);
    }

    /// All counts.
    pub fn table(&self) -> ReadTable {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.clone()
    }
}
