// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sweep over the whole table, and between its parts over those that hold something.

use erb_abi::{self as abi, ControlPlane, SweepReport};

use crate::outside::{DataPath, Machine, Result};
use crate::pace::Pace;
use crate::proof::wants_proof;
use crate::walk::{Pieces, Walk};

/// Connections of which one list can be asked for proof, and which it can make fast.
const PROOFS_MAX: usize = 512;
const ADMISSIONS_MAX: usize = 1024;

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
    /// When it began.
    pub(crate) const fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// `control.rights` then.
    pub(crate) const fn rights(&self) -> u32 {
        self.rights
    }

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

/// Those that want proof, as far as there was room, and whether there was none.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) rows: Vec<abi::sweep_row>,
    pub(crate) more: bool,
}

/// What a turn's part of the sweep has come to.
pub(crate) enum Part {
    /// The round is over.
    Over(Round),
    /// It goes on, and these hold something.
    Held(Held),
}

/// The sweep.
#[derive(Debug)]
pub(crate) struct Sweeps {
    pieces: Pieces,
    /// What the last round found.
    report: SweepReport,
    /// The round that is not over yet.
    round: Option<Round>,
    pace: Pace,
    held: Walk,
    held_pace: Pace,
}

impl Sweeps {
    pub(crate) fn new(pieces: Pieces) -> Self {
        Self {
            pieces,
            report: SweepReport::default(),
            round: None,
            pace: Pace::default(),
            held: Walk::default(),
            held_pace: Pace::default(),
        }
    }

    /// What the last round found, without who wants proof.
    pub(crate) const fn report(&self) -> &SweepReport {
        &self.report
    }

    /// Whether a round is not over.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.round.is_some()
    }

    /// Whether it has rested.
    pub(crate) const fn may(&self, now: u64) -> bool {
        self.pace.may(now)
    }

    /// Whether those that hold something may be looked at while the round rests.
    pub(crate) const fn may_look_at_held(&self, now: u64) -> bool {
        self.round.is_some() && self.held_pace.may(now)
    }

    /// The round that is under way does not count: the next one begins anew.
    pub(crate) fn begin_anew(&mut self) {
        self.round = None;
    }

    /// Goes on with the round, or begins one that leaves so many admissions out; where it takes
    /// several turns, those that hold something are looked at in each.
    pub(crate) fn go_on(
        &mut self,
        path: &impl DataPath,
        machine: &impl Machine,
        skip: u32,
    ) -> Result<Part> {
        let began = machine.monotonic_ns();
        let mut round = self.round.take().unwrap_or_else(|| Round {
            began_ns: began,
            rights: path.rights(),
            skip,
            ..Round::default()
        });
        let mut walk = round.walk;
        let is_over = walk.go_on(path, abi::PLACES_USED, self.pieces, |path, places| {
            let found = path.sweep(places)?;
            round.report.count(&found);
            round.take_admissions(found.admit);
            round.more |= release_gone(path, &found.rows, &mut round.report.rows)?;
            Ok(())
        })?;
        round.walk = walk;
        let part = if is_over {
            Part::Over(round)
        } else {
            self.round = Some(round);
            Part::Held(self.look_at_held(path, machine)?)
        };
        self.pace.ran(began, machine.monotonic_ns());
        Ok(part)
    }

    /// A round is over: its counts stand. Who wants proof; who may be admitted stays to be planned.
    pub(crate) fn end(&mut self, round: &mut Round) -> Held {
        self.report = std::mem::take(&mut round.report);
        Held {
            rows: std::mem::take(&mut self.report.rows),
            more: round.more,
        }
    }

    /// Those of the last round that may be admitted.
    pub(crate) fn take_candidates(&mut self) -> Vec<abi::admit_row> {
        std::mem::take(&mut self.report.admit)
    }

    /// Looks at those that hold something: everybody's hits wait for them.
    pub(crate) fn look_at_held(
        &mut self,
        path: &impl DataPath,
        machine: &impl Machine,
    ) -> Result<Held> {
        let began = machine.monotonic_ns();
        let mut held = Held::default();
        let look = |path: &_, places: &[u32]| {
            let found = ControlPlane::sweep(path, places)?;
            held.more |= release_gone(path, &found.rows, &mut held.rows)?;
            Ok(())
        };
        self.held.go_on(path, abi::PLACES_HELD, self.pieces, look)?;
        self.held_pace.ran(began, machine.monotonic_ns());
        Ok(held)
    }

    /// Counts the connections for somebody who asks; of a large table the last round's counts stand.
    pub(crate) fn count(&mut self, path: &impl DataPath) -> Result<()> {
        let (mut walk, mut report) = (Walk::default(), SweepReport::default());
        let count = |path: &_, places: &[u32]| {
            report.count(&ControlPlane::sweep(path, places)?);
            Ok(())
        };
        if walk.go_on(path, abi::PLACES_USED, self.pieces, count)? {
            self.report = report;
        }
        Ok(())
    }
}

/// Removes what is gone and holds nothing; what needs proof is added, as far as there is room. True
/// if there was none.
fn release_gone(
    path: &impl DataPath,
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
            path.release(row, true)?;
        }
    }
    Ok(more)
}
