// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of which changes Redis tells the feed. Of all (`BCAST`), as long as answers pay: that takes none of
//! Redis's memory, however much is cached. While ERB steps aside next to nothing is cached, and a report of
//! each write is all that a write costs more. So then only of keys that the feed has read.
//!
//! Redis keeps the list of these itself (`trackingRememberKeys`, Redis src/tracking.c): each command that
//! reads notes its keys, whether they are there or not, also within a transaction. The next change of such a
//! key is reported and its note ends, by whatever means it changes: both modes hear of it from the same place
//! (`signalModifiedKey`, `trackingInvalidateKey`), a flush included.
//!
//! Invariants:
//! 1. Redis reports the next change of each key in the cache, in either mode. [`Reports::OfRead`]: what is there
//!    was read on this connection in this mode. What a SET has said was perhaps not read, and no report ends
//!    it (`bpf/cache/marks.h`, W3).
//! 2. One transaction ends one mode and begins the other: no change lies between them.
//! 3. To [`Reports::OfRead`]: the cache is emptied when its EXEC is answered, before any later reply is
//!    looked at. So what was read before goes, and what a fill under way has read before is not inserted, as
//!    the global version moves (C10). Of what others have changed in the turn of that EXEC, and in front of it,
//!    Redis says nothing (`disableTracking`). That is no more than what is hidden anyway: leases and
//!    settlings of before come from PINGs of before, and whatever is asked for later is answered behind it.
//! 4. To [`Reports::All`]: nothing is emptied. Redis reports at once in the old mode, so all that it had to
//!    report is in front of EXEC's answer; from then on it reports everything.
//! 5. `NOLOOP` in [`Reports::All`] only. There it keeps back what the feed changes: what it drains. Else also what
//!    Redis evicts, or finds expired, while it runs a command of the feed.
//! 6. Redis's list is bounded: keys that stay as they are stay in it. Beyond [`TABLE_MAX`], whoever has read
//!    them, it is told of all again.
//! 7. While something that was answered in Redis's place is not drained, and for a second behind, it is told of all,
//!    whatever else speaks against it: the drain's writes of keys that were read would come back as reports, without
//!    NOLOOP. Who answers may only begin when Redis tells of all.

use std::io;

use crate::outside::DataPath;
use crate::resp::{Frame, broken, error, is_simple};

/// Of which changes Redis tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reports {
    /// Of all.
    #[default]
    All,
    /// Of keys that the feed has read.
    OfRead,
}

/// Keys in Redis's list, some 200 bytes each.
const TABLE_MAX: u64 = 20_000;

/// So many writes in a second are worth it: a thousandth of a processor.
const WRITES_MIN: u64 = 500;

/// The level from which on the cache is small enough.
const FROM_LEVEL: u8 = 2;

/// What speaks for and against each.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    wanted: Reports,
    pinned: Option<Reports>,
    /// Keys that were reported in this second.
    heard: u64,
    /// Keys in Redis's list, as last told.
    table: u64,
    /// Something was outstanding in this second: 7.
    outstanding: bool,
}

impl Choice {
    /// So many keys were reported.
    pub(crate) const fn hear(&mut self, keys: usize) {
        self.heard += keys as u64;
    }

    /// Redis has so many keys in its list.
    pub(crate) const fn take_table(&mut self, keys: u64) {
        self.table = keys;
    }

    /// Whether something that was answered in Redis's place is not drained.
    pub(crate) const fn see(&mut self, outstanding: bool) {
        self.outstanding |= outstanding;
    }

    /// Keeps it so; none: decides again.
    pub(crate) const fn pin(&mut self, to: Option<Reports>) {
        self.pinned = to;
    }

    pub(crate) fn wanted(&self) -> Reports {
        if self.outstanding {
            return Reports::All;
        }
        self.pinned.unwrap_or(self.wanted)
    }

    /// Keys that were reported in this second so far.
    pub(crate) const fn heard(&self) -> u64 {
        self.heard
    }

    /// Once a second, behind which the level is this.
    pub(crate) fn second(&mut self, level: u8) {
        let heard = std::mem::take(&mut self.heard);
        let outstanding = std::mem::take(&mut self.outstanding);
        self.wanted = match self.wanted {
            _ if level < FROM_LEVEL || outstanding => Reports::All,
            Reports::All if heard >= WRITES_MIN && self.table <= TABLE_MAX / 2 => Reports::OfRead,
            Reports::OfRead if self.table > TABLE_MAX => Reports::All,
            as_before => as_before,
        };
    }
}

/// EXEC was answered: these reports come from here on.
pub(crate) fn begin(cache: &impl DataPath, to: Reports, reply: &Frame) -> io::Result<()> {
    let Frame::Array { data, .. } = reply else {
        let what = error(reply).unwrap_or_else(|| "an unexpected reply".to_owned());
        return Err(broken(&format!("CLIENT TRACKING was answered by {what}")));
    };
    if data.len() != 2 || !data.iter().all(|one| is_simple(one, b"OK")) {
        return Err(broken("CLIENT TRACKING was refused"));
    }
    match to {
        Reports::All => Ok(()),
        Reports::OfRead => cache.clear().map_err(io::Error::other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_nobody_caches_are_not_reported_for_long() {
        let mut choice = Choice::default();
        let second = |choice: &mut Choice, level, heard| {
            choice.hear(heard);
            choice.second(level);
            choice.wanted()
        };
        assert_eq!(
            second(&mut choice, 1, 9_000),
            Reports::All,
            "it may pay soon"
        );
        assert_eq!(second(&mut choice, 2, 499), Reports::All, "worth nothing");
        assert_eq!(second(&mut choice, 2, 500), Reports::OfRead);
        assert_eq!(
            second(&mut choice, 2, 0),
            Reports::OfRead,
            "nobody tells now"
        );
        choice.take_table(TABLE_MAX + 1);
        assert_eq!(second(&mut choice, 2, 0), Reports::All, "Redis's memory");
        choice.take_table(TABLE_MAX);
        assert_eq!(
            second(&mut choice, 2, 500),
            Reports::All,
            "not at once again"
        );
        choice.take_table(TABLE_MAX / 2);
        assert_eq!(second(&mut choice, 2, 500), Reports::OfRead);
        assert_eq!(second(&mut choice, 0, 500), Reports::All, "answers pay");
        choice.pin(Some(Reports::OfRead));
        assert_eq!(second(&mut choice, 0, 0), Reports::OfRead);
        choice.pin(None);
        assert_eq!(choice.wanted(), Reports::All);
    }

    #[test]
    fn while_something_is_not_drained_all_is_told() {
        let mut choice = Choice::default();
        let second = |choice: &mut Choice| {
            choice.hear(WRITES_MIN as usize);
            choice.second(FROM_LEVEL);
            choice.wanted()
        };
        assert_eq!(second(&mut choice), Reports::OfRead);
        choice.see(true);
        choice.see(false);
        assert_eq!(choice.wanted(), Reports::All, "at once");
        assert_eq!(second(&mut choice), Reports::All, "not back at once");
        assert_eq!(second(&mut choice), Reports::OfRead);
        choice.pin(Some(Reports::OfRead));
        choice.see(true);
        assert_eq!(choice.wanted(), Reports::All, "whatever was decided");
    }
}
