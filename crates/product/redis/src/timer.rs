// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The retransmission timer: it runs only while answers may be unacknowledged.

use erb_abi as abi;

use crate::outside::{DataPath, Machine, Result};
use crate::pace::Pace;
use crate::walk::{Pieces, Walk};

/// The timer.
#[derive(Debug)]
pub(crate) struct Timer {
    pieces: Pieces,
    walk: Walk,
    /// Found so far by this walk.
    found: u32,
    /// Whether bytes may be unacknowledged.
    is_unacked: bool,
    /// Packets answered when it last ran.
    answered: u64,
    pace: Pace,
}

impl Timer {
    /// The timer of an adopted data path, of which nothing is known.
    pub(crate) fn new(pieces: Pieces) -> Self {
        Self {
            pieces,
            walk: Walk::default(),
            found: 0,
            is_unacked: true,
            answered: 0,
            pace: Pace::default(),
        }
    }

    /// Whether it must run again.
    pub(crate) const fn is_unacked(&self) -> bool {
        self.is_unacked
    }

    /// Runs it: only while bytes are unacknowledged or anything was answered since it last found
    /// none. `answered`: packets, ever; counted after the answer is committed, so what this misses,
    /// the next tick finds.
    pub(crate) fn run(
        &mut self,
        path: &impl DataPath,
        machine: &impl Machine,
        now: u64,
        answered: u64,
    ) -> Result<()> {
        if !self.pace.may(now) || (!self.is_unacked && answered == self.answered) {
            return Ok(());
        }
        self.answered = answered;
        let began = machine.monotonic_ns();
        let found = &mut self.found;
        let tick = |path: &_, places: &[u32]| {
            *found += abi::ControlPlane::tick(path, places)?;
            Ok(())
        };
        let is_over = self
            .walk
            .go_on(path, abi::PLACES_TIMER, self.pieces, tick)?;
        self.is_unacked = !is_over || self.found > 0;
        if is_over {
            self.found = 0;
        }
        self.pace.ran(began, machine.monotonic_ns());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::{Recorder, Stand};

    #[test]
    fn it_runs_while_bytes_are_unacknowledged_and_when_more_was_answered() {
        let (path, machine) = (Recorder::default(), Stand::default());
        let mut timer = Timer::new(Pieces::default());
        let runs = |timer: &mut Timer, unacked, answered| {
            path.is_unacked.set(unacked);
            timer.run(&path, &machine, 0, answered).unwrap();
            path.take_log().len()
        };
        assert_eq!(runs(&mut timer, true, 0), 1, "nothing is known");
        assert_eq!(runs(&mut timer, false, 0), 1);
        assert!(!timer.is_unacked());
        assert_eq!(runs(&mut timer, true, 0), 0);
        assert_eq!(runs(&mut timer, true, 1), 1);
        assert!(timer.is_unacked());
    }

    #[test]
    fn what_a_walk_has_found_counts_until_it_is_over() {
        let (path, machine) = (Recorder::default(), Stand::default());
        path.places.borrow_mut()[abi::PLACES_TIMER as usize] = vec![1, 2];
        let mut timer = Timer::new(Pieces {
            places: 1,
            per_turn: 1,
        });
        for (unacked, left) in [(true, true), (false, true), (false, true), (false, true)] {
            path.is_unacked.set(unacked);
            timer.run(&path, &machine, 0, 0).unwrap();
            assert_eq!(timer.is_unacked(), left);
        }
        for _ in 0..2 {
            timer.run(&path, &machine, 0, 0).unwrap();
        }
        assert!(!timer.is_unacked(), "a whole walk has found nothing");
    }
}
