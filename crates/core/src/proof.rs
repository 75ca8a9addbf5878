// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sweeps and proofs: connections that are gone, and marks and fences whose replies cannot be
//! counted, are released when Redis has provably executed what they stand for.
//!
//! Proof: a sweep saw that the kernel handed everything to Redis (or that the socket is gone), and
//! a CLIENT LIST sent after that sweep shows the connection gone or with nothing pending.

use erb_abi as abi;

use crate::client_list::{ClientLine, Lines};
use crate::feed::Question;
use crate::outside::{DataPath, Machine, Result};
use crate::turn::{Core, Stage};

/// CLIENT LIST costs Redis some microseconds per client (30 ms for ten thousand): after each, it is
/// left alone this many times as long as the answer took.
const CLIENTS_PAUSE: u64 = 10;

/// Whether a row asks for proof, not just for removal.
const fn wants_proof(row: &abi::sweep_row) -> bool {
    let gone_with_holds = abi::SWEEP_F_GONE | abi::SWEEP_F_HOLDS;
    row.flags & abi::SWEEP_F_EXECUTED != 0 || row.flags & gone_with_holds == gone_with_holds
}

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Sweeps the table, removes what is gone, asks for proof where it is needed.
    pub(crate) fn sweep_connections(&mut self) -> Result<()> {
        let now = self.machine.monotonic_ns();
        let rights = self.path.rights();
        let report = self.path.sweep(self.admissions_to_skip())?;
        self.sweep_pace.ran(now, self.machine.monotonic_ns());
        let mut wanting = Vec::new();
        for row in &report.rows {
            if wants_proof(row) {
                wanting.push(*row);
            } else if row.flags & abi::SWEEP_F_GONE != 0 {
                self.path.release(row, true)?;
            }
        }
        // What did not fit is next, without waiting for the second.
        self.proof_pending = !wanting.is_empty() || report.more > 0;
        self.sweep = report;
        let question = Question {
            proof: wanting,
            admit: self.plan_admissions(now),
            rights,
        };
        let probes = self.wants_probes();
        if probes || !question.proof.is_empty() || !question.admit.is_empty() {
            let asked = self.ask_clients(question);
            if asked {
                self.ask_for_probes();
            }
            if !asked {
                self.hurry_admissions();
            }
        }
        if let Stage::Stopping { since_ns } = self.stage {
            self.leave_if_unneeded(since_ns);
        }
        Ok(())
    }

    /// Asks for CLIENT LIST, unless that would take more of Redis's time than it may; true if it
    /// did. Who is refused asks again after the next sweep.
    fn ask_clients(&mut self, question: Question) -> bool {
        let now = self.machine.monotonic_ns();
        let may_ask = now >= self.clients_next_ns;
        let feed = self
            .feed
            .as_mut()
            .filter(|feed| may_ask && feed.is_ready() && !feed.is_asking_clients());
        let Some(feed) = feed else { return false };
        feed.ask_clients(question);
        self.clients_asked_ns = now;
        true
    }

    /// CLIENT LIST came back.
    pub(crate) fn take_clients(&mut self, list: &[ClientLine], question: Question) -> Result<()> {
        let now = self.machine.monotonic_ns();
        self.clients_next_ns = now + (now - self.clients_asked_ns) * CLIENTS_PAUSE;
        let lines = Lines::of(list);
        let proved = |row: &&abi::sweep_row| lines.prove_executed(&row.key);
        for row in question.proof.iter().filter(proved) {
            let remove = row.flags & abi::SWEEP_F_GONE != 0;
            self.path.release(row, remove)?;
        }
        // Before the next packet of who was proved: it may not leave a whole tick.
        self.watch_gate();
        // Behind the proofs: who holds something is not admitted.
        self.admit(list, &question.admit, question.rights)?;
        self.judge_listeners(list)
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
}
