// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks over the table of connections: retransmission timer and sweep, in pieces, so that no run has
//! softirqs off for longer than a packet's burst, and so many pieces per turn, so that the feed is
//! not kept waiting. A table that is larger goes on with the next turn.
//!
//! Invariants:
//! 1. A round looks at each entry that was there when it began and has not ended since: pieces go up
//!    the places, and an entry keeps its place. What needs the whole table (its counts, who may be
//!    admitted, whether to leave) is judged when a round is over.
//! 2. Leaving is judged by a round that began when nothing was answered any more: an entry that it
//!    has passed does not begin to need translation, and none is made.
//! 3. Who has unacknowledged answers, or holds marks or a share of the fence, is on a list of its own
//!    (`bpf/place.h`), which is walked each time: a large table delays neither.

use erb_abi::{self as abi, SweepReport};

use crate::feed::Question;
use crate::outside::{DataPath, Machine, Result};
use crate::proof::wants_proof;
use crate::turn::{Core, Stage};

/// Connections of which one list can be asked for proof, and which it can make fast.
const PROOFS_MAX: usize = 512;
const ADMISSIONS_MAX: usize = 1024;

/// How much is looked at at once.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// Entries per run, at most `WALK_PLACES`.
    pub places: usize,
    /// Runs per turn: sixteen thousand entries take some milliseconds of the daemon's time.
    pub per_turn: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self {
            places: abi::WALK_PLACES as usize,
            per_turn: 128,
        }
    }
}

/// A walk along a list of places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// The place from which it goes on; 0: from the first.
    next: u32,
}

impl Walk {
    /// The next piece; the walk is over when it was the last.
    fn piece(&mut self, path: &impl DataPath, list: abi::place_list, most: usize) -> Vec<u32> {
        let places = path.places(list, self.next, most);
        let last = places.last().filter(|_| places.len() == most);
        self.next = last.map_or(0, |last| last + 1);
        places
    }

    const fn is_over(self) -> bool {
        self.next == 0
    }
}

/// The retransmission timer's walk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer {
    walk: Walk,
    unacked: u32,
}

/// A sweep over the whole table.
#[derive(Debug, Default)]
pub(crate) struct Round {
    walk: Walk,
    began_ns: u64,
    /// `control.rights` then.
    rights: u32,
    report: SweepReport,
    /// What could not be asked for: too much at once.
    more: bool,
    skip: u32,
    skipped: u32,
}

impl Round {
    /// Takes what a piece says of admissions: each has its turn.
    fn take_admissions(&mut self, rows: Vec<abi::admit_row>) {
        for row in rows {
            if self.skipped < self.skip {
                self.skipped += 1;
            } else if self.report.admit.len() < ADMISSIONS_MAX {
                self.report.admit.push(row);
            } else {
                self.report.admit_more += 1;
            }
        }
    }
}

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Runs the retransmission timer: only while bytes are unacknowledged or anything was answered
    /// since it last found none.
    pub(crate) fn retransmit(&mut self, now: u64) -> Result<()> {
        // Counted after the answer is committed: what this misses, the next tick finds.
        let answered = self.asked.answered();
        if !self.timer_pace.may(now) || (!self.unacked && answered == self.answered) {
            return Ok(());
        }
        self.answered = answered;
        let began = self.machine.monotonic_ns();
        let Pieces { places, per_turn } = self.settings.pieces;
        for _ in 0..per_turn {
            let piece = self.timer.walk.piece(&self.path, abi::PLACES_TIMER, places);
            self.timer.unacked += self.path.tick(&piece)?;
            if self.timer.walk.is_over() {
                break;
            }
        }
        let is_over = self.timer.walk.is_over();
        self.unacked = !is_over || self.timer.unacked > 0;
        if is_over {
            self.timer.unacked = 0;
        }
        self.timer_pace.ran(began, self.machine.monotonic_ns());
        Ok(())
    }

    /// Goes on with the sweep of the table, or begins one; where it takes several turns, those that
    /// hold something are looked at in each.
    pub(crate) fn sweep_connections(&mut self) -> Result<()> {
        let began = self.machine.monotonic_ns();
        let mut round = self.round.take().unwrap_or_else(|| Round {
            began_ns: began,
            rights: self.path.rights(),
            skip: self.admissions_to_skip(),
            ..Round::default()
        });
        let Pieces { places, per_turn } = self.settings.pieces;
        for _ in 0..per_turn {
            let piece = round.walk.piece(&self.path, abi::PLACES_USED, places);
            let found = self.path.sweep(&piece)?;
            round.report.count(&found);
            round.take_admissions(found.admit);
            round.more |= self.release_gone(&found.rows, &mut round.report.rows)?;
            if round.walk.is_over() {
                break;
            }
        }
        if !round.walk.is_over() {
            self.round = Some(round);
            self.sweep_held()?;
            self.sweep_pace.ran(began, self.machine.monotonic_ns());
            return Ok(());
        }
        self.sweep_pace.ran(began, self.machine.monotonic_ns());
        self.end_round(round);
        Ok(())
    }

    /// Begins the sweep anew.
    pub(crate) fn sweep_anew(&mut self) -> Result<()> {
        self.round = None;
        self.sweep_connections()
    }

    fn end_round(&mut self, round: Round) {
        let now = self.machine.monotonic_ns();
        self.sweep = round.report;
        let proof = std::mem::take(&mut self.sweep.rows);
        let wants_list = self.want_list(&proof, now);
        // What did not fit is next, without waiting for the second.
        self.proof_pending = wants_list || round.more;
        let question = Question {
            proof,
            admit: self.plan_admissions(now),
            rights: round.rights,
        };
        let probes = self.wants_probes();
        if probes || wants_list || !question.admit.is_empty() {
            if self.ask_clients(question) {
                self.ask_for_probes();
            } else {
                self.hurry_admissions();
            }
        }
        if let Stage::Stopping { since_ns } = self.stage {
            self.leave_if_unneeded(since_ns, round.began_ns);
        }
    }

    /// Between two parts of a large table's round: everybody's hits wait for what these hold.
    pub(crate) fn hurry_held(&mut self, now: u64) -> Result<()> {
        if self.round.is_none() || !self.is_sweep_urgent() || !self.held_pace.may(now) {
            return Ok(());
        }
        self.sweep_held()
    }

    /// Looks at those that hold something, and asks for proof.
    fn sweep_held(&mut self) -> Result<()> {
        let began = self.machine.monotonic_ns();
        let Pieces { places, per_turn } = self.settings.pieces;
        let mut proof = Vec::new();
        for _ in 0..per_turn {
            let piece = self.held.piece(&self.path, abi::PLACES_HELD, places);
            let found = self.path.sweep(&piece)?;
            self.proof_pending |= self.release_gone(&found.rows, &mut proof)?;
            if self.held.is_over() {
                break;
            }
        }
        self.held_pace.ran(began, self.machine.monotonic_ns());
        if self.want_list(&proof, began) {
            self.proof_pending = true;
            self.ask_clients(Question {
                proof,
                admit: Vec::new(),
                rights: self.path.rights(),
            });
        }
        Ok(())
    }

    /// Whether any of the rows is worth a list now.
    fn want_list(&self, rows: &[abi::sweep_row], now: u64) -> bool {
        let is_fence_closed = self.path.fence() != 0;
        rows.iter()
            .any(|row| self.stubborn.wants_list(row, now, is_fence_closed))
    }

    /// Removes what is gone and holds nothing; what needs proof is added, as far as there is room.
    /// True if there was none.
    fn release_gone(
        &self,
        rows: &[abi::sweep_row],
        proof: &mut Vec<abi::sweep_row>,
    ) -> Result<bool> {
        let mut more = false;
        for row in rows {
            if wants_proof(row) {
                if proof.len() < PROOFS_MAX {
                    proof.push(*row);
                } else {
                    more = true;
                }
            } else if row.flags & abi::SWEEP_F_GONE != 0 {
                self.path.release(row, true)?;
            }
        }
        Ok(more)
    }

    /// Counts the connections for somebody who asks; of a large table the last round's counts stand.
    pub(crate) fn count_connections(&mut self) -> Result<()> {
        let Pieces { places, per_turn } = self.settings.pieces;
        let mut walk = Walk::default();
        let mut report = SweepReport::default();
        for _ in 0..per_turn {
            let piece = walk.piece(&self.path, abi::PLACES_USED, places);
            report.count(&self.path.sweep(&piece)?);
            if walk.is_over() {
                self.sweep = report;
                break;
            }
        }
        Ok(())
    }
}
