// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--journal all`: every write that is answered is written to the journal, and synced each second, drained or not. It is
//! for who wants to have what Redis's own log may lose with the machine's power, and for sinks that are not ours.
//!
//! Invariants:
//! 1. No record is freed in its ring before it was written ([`Kept`]). Whoever begins, a next daemon or one whose segment
//!    failed, writes all that the rings have. So LSNs of the journal have no gaps but where a segment failed; what is
//!    missing there was drained.
//! 2. A segment stays until all of it is settled ([`crate::settled`]), and takes more until then.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use erb_abi::{Kept, Logs};
use erb_journal::{Disk, Journal};
use erb_redis::drain::Follower;

use crate::keeper::as_kept;

/// Between looks while something is written: a ring is full in 20 ms at the most that one processor answers.
pub(crate) const BUSY_LOOK: Duration = Duration::from_millis(2);

/// Between syncs, as Redis has them with `appendfsync everysec`.
const SYNC: Duration = Duration::from_secs(1);

/// What is known of it beside the journal itself.
pub(crate) struct Everything {
    kept: Arc<Kept>,
    follower: Follower,
    /// All up to this LSN was written; none: it begins with what the rings have.
    behind: Option<u64>,
    synced: Instant,
    /// Something was written in the last turn.
    pub(crate) is_busy: bool,
}

impl Everything {
    pub(crate) fn new(kept: Arc<Kept>) -> Self {
        Self {
            kept,
            follower: Follower::of_all(),
            behind: None,
            synced: Instant::now(),
            is_busy: false,
        }
    }

    /// The same where nobody waits for it.
    pub(crate) fn of_nobody(rings: usize) -> Self {
        Self::new(Kept::of(rings))
    }

    /// An LSN before which nothing more is to be written.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.behind.map_or(1, |behind| behind + 1)
    }

    /// What was written is not there any more: the next turn begins with all that the rings have.
    pub(crate) const fn begin_anew(&mut self) {
        self.behind = None;
    }

    /// Writes all that is answered by now; syncs it, if that is due or wanted.
    ///
    /// # Errors
    /// The segment has ended, or a ring holds what cannot be. The next turn begins with all that the rings have.
    pub(crate) fn keep(
        &mut self,
        journal: &mut Journal<Disk>,
        logs: &Logs,
        at_once: bool,
    ) -> io::Result<()> {
        let done = self.write(journal, logs, at_once);
        if done.is_err() {
            self.begin_anew();
        }
        done
    }

    fn write(&mut self, journal: &mut Journal<Disk>, logs: &Logs, at_once: bool) -> io::Result<()> {
        let lsn = logs.lsn();
        if self.behind.is_none() {
            self.follower.begin(logs, 0);
        }
        let before = self.behind.unwrap_or(0);
        let last = put_up_to(journal, &mut self.follower, logs, (before, lsn))?;
        let now = Instant::now();
        if at_once || now.duration_since(self.synced) >= SYNC {
            journal.flush()?;
            self.synced = now;
        } else {
            journal.write_out()?;
        }
        for ring in 0..logs.count() {
            self.kept.set(ring, self.follower.position(ring));
        }
        (self.behind, self.is_busy) = (Some(last), last > before);
        Ok(())
    }
}

/// Puts in what the follower tells, which is behind the first LSN; what it has come to: the second one, unless a CPU has
/// not put that into its ring yet.
pub(crate) fn put_up_to(
    journal: &mut Journal<Disk>,
    follower: &mut Follower,
    logs: &Logs,
    (mut last, lsn): (u64, u64),
) -> io::Result<u64> {
    while last < lsn {
        let Some(one) = follower.next(logs).map_err(io::Error::other)? else {
            break;
        };
        last = one.lsn;
        journal.put(&as_kept(one))?;
    }
    Ok(last)
}
