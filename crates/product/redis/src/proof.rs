// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proofs: connections that are gone, and marks and fences whose replies cannot be
//! counted, are released when Redis has provably executed what they stand for.
//!
//! Proof: a sweep saw that the kernel handed everything to Redis (or that the socket is gone), and
//! a CLIENT LIST sent after that sweep shows the connection gone or with nothing pending.
//!
//! A connection may have something pending for ever: half a command, an open MULTI, a command that
//! blocks. Commands that were whole have run when Redis has read them and its loop has turned once
//! more, if the connection does not block: that is what a second list shows ([`Proofs::release_run`]). The
//! rest of what is not whole comes in a packet that closes what it must, and so does EXEC. This goes
//! for those whose replies are counted and do not leave, as the client does not read, and for those
//! whose requests cannot be read.
//!
//! Of many of these nothing can be shown for long (clients that block): so a list is sent at once only
//! while the fence is closed. Else for who held the same at the last list once a second, and less often
//! where the list is long: a worker that waits in BLMOVE holds its marks as long as nothing comes.
//! One whose stream cannot be read would hold the fence as long: instead absences are not answered ([`Movers`]).

use std::collections::HashMap;
use std::io::{Read, Write};

use erb_abi as abi;

use crate::client_list::{Blocks, ClientLine, Lines, Ran};
use crate::clock::{MS, SECOND_NS};
use crate::expect::Question;
use crate::feed::Feed;
use crate::movers::Movers;
use crate::outside::{DataPath, Result};
use crate::watch::Watch;

/// CLIENT LIST costs Redis some microseconds per client (30 ms for ten thousand): after each, it is
/// left alone this many times as long as the answer took.
const CLIENTS_PAUSE: u64 = 10;
/// What one of them takes at most, on a slow machine.
const CLIENT_MOST_NS: u64 = MS / 10;
/// And so many times as long for those about whom the last one showed nothing: 1 % of Redis's time.
const STUBBORN_PAUSE: u64 = 100;

/// Whether a row asks for proof, not just for removal.
pub(crate) const fn wants_proof(row: &abi::sweep_row) -> bool {
    let gone_with_holds = abi::SWEEP_F_GONE | abi::SWEEP_F_HOLDS;
    row.flags & abi::SWEEP_F_EXECUTED != 0 || row.flags & gone_with_holds == gone_with_holds
}

/// Whether it is asked for by its first requests, which are counted.
fn is_counted(row: &abi::sweep_row) -> bool {
    row.flags & (abi::SWEEP_F_COUNTED | abi::SWEEP_F_GONE) == abi::SWEEP_F_COUNTED
}

/// Whether what waits in Redis may be a command that is not whole. Of a stream that is not read nobody
/// knows.
fn may_be_half(row: &abi::sweep_row) -> bool {
    !is_counted(row) || row.flags & abi::SWEEP_F_HALF != 0
}

/// Whose commands no reply has come for and no list has shown to have run.
#[derive(Debug, Default)]
struct Stubborn {
    /// How many commands each had sent, by the socket's cookie.
    requests: HashMap<u64, u32>,
    /// When a list is sent for them again.
    next_ns: u64,
}

impl Stubborn {
    /// Whether the row is worth a list now.
    fn wants_list(&self, row: &abi::sweep_row, now: u64, is_fence_closed: bool) -> bool {
        let is_known = self.requests.get(&row.cookie) == Some(&row.requests);
        !is_counted(row) || now >= self.next_ns || (is_fence_closed && !is_known)
    }
}

/// When a list that was asked for and has come is sent again for the stubborn.
fn stubborn_next(asked_ns: u64, came_ns: u64) -> u64 {
    asked_ns + SECOND_NS.max((came_ns - asked_ns) * STUBBORN_PAUSE)
}

/// What is asked for, and what lists have shown.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    /// Something waits that no list was asked for.
    is_pending: bool,
    /// Rows whose commands had run when the last list was made, unless threads had only parsed them.
    perhaps_run: Vec<abi::sweep_row>,
    stubborn: Stubborn,
    movers: Movers,
    asked_ns: u64,
    next_ns: u64,
}

impl Proofs {
    /// Whether something waits that no list was asked for.
    pub(crate) const fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// A round is over: whether something waits, from now on.
    pub(crate) const fn set_pending(&mut self, is_pending: bool) {
        self.is_pending = is_pending;
    }

    /// Something more waits.
    pub(crate) const fn add_pending(&mut self, is_pending: bool) {
        self.is_pending |= is_pending;
    }

    /// Whether any of the rows is worth a list now.
    pub(crate) fn want_list(
        &self,
        rows: &[abi::sweep_row],
        path: &impl DataPath,
        now: u64,
    ) -> bool {
        let is_fence_closed = path.fence() != 0;
        if !self.movers.are_gone() && now >= self.stubborn.next_ns {
            return true;
        }
        rows.iter()
            .any(|row| self.stubborn.wants_list(row, now, is_fence_closed))
    }

    /// Asks for CLIENT LIST, unless that would take more of Redis's time than it may; true if it
    /// did. Who is refused asks again after the next sweep.
    pub(crate) fn ask<S: Read + Write>(
        &mut self,
        question: Question,
        feed: Option<&mut Feed<S>>,
        now: u64,
    ) -> bool {
        let may_ask = now >= self.next_ns;
        let feed = feed.filter(|feed| may_ask && !feed.is_asking_clients());
        let Some(feed) = feed else { return false };
        feed.ask_clients(question);
        self.asked_ns = now;
        true
    }

    /// CLIENT LIST came back for these rows.
    pub(crate) fn take(
        &mut self,
        list: &[ClientLine],
        rows: &[abi::sweep_row],
        path: &impl DataPath,
        watch: &Watch,
        now: u64,
    ) -> Result<()> {
        // Longer than that Redis had other things to do, or its clients were paused.
        let most = (list.len() as u64 + 1) * CLIENT_MOST_NS;
        let took = (now - self.asked_ns).min(most);
        self.next_ns = now + took * CLIENTS_PAUSE;
        let lines = Lines::of(list);
        let earlier = std::mem::take(&mut self.perhaps_run);
        self.stubborn = Stubborn {
            requests: HashMap::new(),
            next_ns: stubborn_next(self.asked_ns, self.asked_ns + took),
        };
        self.movers.take(list);
        for row in rows {
            let remove = row.flags & abi::SWEEP_F_GONE != 0;
            if !is_counted(row) && lines.prove_executed(&row.key) {
                path.release(row, remove)?;
            } else if !remove {
                self.release_run(row, &lines, &earlier, path, watch)?;
            }
        }
        Ok(())
    }

    /// Releases what a connection's commands hold, as far as the list shows that they have run although
    /// something is pending. `earlier`: rows of the list before, which perhaps had run.
    fn release_run(
        &mut self,
        row: &abi::sweep_row,
        lines: &Lines<'_>,
        earlier: &[abi::sweep_row],
        path: &impl DataPath,
        watch: &Watch,
    ) -> Result<()> {
        match lines.have_run(&row.key) {
            Ran::All => {
                path.release(row, false)?;
                return Ok(());
            }
            Ran::AllButLast(Blocks::Harmlessly) if !is_counted(row) && !watch.parses_ahead() => {
                path.release(row, false)?;
                return Ok(());
            }
            Ran::AllButLast(Blocks::InMove(id)) if !is_counted(row) && !watch.parses_ahead() => {
                self.movers.add(id);
                path.set_absent(0);
                path.release(row, false)?;
                return Ok(());
            }
            Ran::AllButLast(_) if is_counted(row) && !watch.parses_ahead() => {
                // The last one's effect may be in the share that stands for what had no room.
                let but_last = abi::sweep_row {
                    requests: row.requests.wrapping_sub(1),
                    proof_pos: row.proof_pos.wrapping_sub(1),
                    ..*row
                };
                path.release(&but_last, false)?;
            }
            Ran::Perhaps if may_be_half(row) && !watch.may_reply_early() => {
                let same = |old: &&abi::sweep_row| old.key == row.key && old.cookie == row.cookie;
                let Some(old) = earlier.iter().find(same) else {
                    self.perhaps_run.push(*row);
                    return Ok(()); // not stubborn yet
                };
                path.release(old, false)?;
            }
            Ran::AllButLast(_) | Ran::Perhaps | Ran::Unknown => {}
        }
        self.stubborn.requests.insert(row.cookie, row.requests);
        Ok(())
    }

    /// Whether absences may be answered: [`Movers`].
    pub(crate) const fn let_absences_be_answered(&self) -> bool {
        self.movers.are_gone()
    }

    /// The feed is gone: of two lists over different feeds nothing follows.
    pub(crate) fn forget(&mut self) {
        self.perhaps_run.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_rows_want_proof() {
        let row = |flags| abi::sweep_row {
            flags,
            ..Default::default()
        };
        assert!(!wants_proof(&row(0)));
        assert!(!wants_proof(&row(abi::SWEEP_F_GONE)));
        assert!(!wants_proof(&row(abi::SWEEP_F_HOLDS)));
        assert!(wants_proof(&row(abi::SWEEP_F_GONE | abi::SWEEP_F_HOLDS)));
        assert!(wants_proof(&row(abi::SWEEP_F_EXECUTED)));
    }

    #[test]
    fn a_long_list_is_seldom_sent_for_who_blocks() {
        assert_eq!(stubborn_next(7, 7 + 150_000), 7 + SECOND_NS);
        assert_eq!(stubborn_next(7, 7 + 30_000_000), 7 + 3 * SECOND_NS);
    }

    #[test]
    fn who_blocks_does_not_have_lists_sent_all_the_time() {
        let counted = abi::SWEEP_F_EXECUTED | abi::SWEEP_F_COUNTED;
        let row = |flags, requests| abi::sweep_row {
            flags,
            cookie: 7,
            requests,
            ..Default::default()
        };
        let stubborn = Stubborn {
            requests: HashMap::from([(7, 3)]),
            next_ns: 1_000,
        };
        for (flags, requests, now, is_fence_closed, wants) in [
            (counted, 3, 999, true, false),
            (counted, 3, 1_000, false, true),
            (counted, 4, 999, true, true),
            (counted, 4, 999, false, false),
            (abi::SWEEP_F_EXECUTED, 3, 999, false, true),
            (counted | abi::SWEEP_F_GONE, 3, 999, false, true),
        ] {
            let found = stubborn.wants_list(&row(flags, requests), now, is_fence_closed);
            assert_eq!(found, wants, "{flags:x} {requests} {now} {is_fence_closed}");
        }
    }
}
