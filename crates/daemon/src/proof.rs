//! Sweeps and proofs: connections that are gone, and marks and fences whose replies cannot be
//! counted, are released when Redis has provably executed what they stand for.
//!
//! Proof: a sweep saw that the kernel handed everything to Redis (or that the socket is gone), and
//! a CLIENT LIST sent after that sweep shows the connection gone or with nothing pending.

use std::collections::HashSet;

use erb_abi as abi;

use crate::Result;
use crate::client_list::{ClientLine, addresses, canonical, proves_executed};
use crate::daemon::{Daemon, Stage};
use crate::feed::{Feed, Question};
use crate::sockets::{TcpPair, local_addresses, remote_connections};

/// Whether a row asks for proof, not just for removal.
const fn wants_proof(row: &abi::sweep_row) -> bool {
    let gone_with_holds = abi::SWEEP_F_GONE | abi::SWEEP_F_HOLDS;
    row.flags & abi::SWEEP_F_EXECUTED != 0 || row.flags & gone_with_holds == gone_with_holds
}

impl Daemon {
    /// Sweeps the table, removes what is gone, asks for proof where it is needed.
    pub(crate) fn sweep_connections(&mut self) -> Result<()> {
        let report = self.boosted.datapath.sweep()?;
        let mut wanting = Vec::new();
        for row in &report.rows {
            if wants_proof(row) {
                wanting.push(*row);
            } else if row.flags & abi::SWEEP_F_GONE != 0 {
                self.boosted.datapath.release(row, true)?;
            }
        }
        // What did not fit is next, without waiting for the second.
        self.proof_pending = !wanting.is_empty() || report.more > 0;
        self.sweep = report;
        let feed = self
            .feed
            .as_mut()
            .filter(|feed| !wanting.is_empty() && can_ask(feed));
        if let Some(feed) = feed {
            feed.ask_clients(Question::Proof(wanting));
        }
        if let Stage::Stopping { since_ns } = self.stage {
            self.leave_if_unneeded(since_ns);
        }
        Ok(())
    }

    /// CLIENT LIST came back.
    pub(crate) fn take_clients(&mut self, list: &[ClientLine], question: Question) -> Result<()> {
        match question {
            Question::Proof(rows) => {
                for row in rows.iter().filter(|row| proves_executed(list, &row.key)) {
                    let remove = row.flags & abi::SWEEP_F_GONE != 0;
                    self.boosted.datapath.release(row, remove)?;
                }
                Ok(())
            }
            Question::Untracked => self.end_untracked(list),
        }
    }

    /// Payload of a connection without entry has passed: the fence stays closed until every
    /// connection to the port is tracked again, and Redis knows no other.
    pub(crate) fn check_untracked(&mut self) -> Result<()> {
        if self.boosted.datapath.control().untracked() == 0
            || self.untracked_asked
            || !self.feed.as_ref().is_some_and(can_ask)
        {
            return Ok(());
        }
        // 1: payload passed since the last check. Marks a new check as begun, so that payload that
        // passes from now on is seen at its end.
        if self.boosted.datapath.control().untracked() == 1 {
            self.boosted.datapath.untracked_clear()?;
        }
        let tracked = self.tracked_pairs();
        let open = remote_connections(self.boosted.notes.port)?;
        let feed = self.feed.as_mut().filter(|_| open.is_subset(&tracked));
        if let Some(feed) = feed {
            feed.ask_clients(Question::Untracked);
            self.untracked_asked = true;
        }
        Ok(())
    }

    fn end_untracked(&mut self, list: &[ClientLine]) -> Result<()> {
        self.untracked_asked = false;
        let tracked = self.tracked_pairs();
        let local = local_addresses()?;
        let port = self.boosted.notes.port;
        let all_tracked = list
            .iter()
            .filter_map(|line| Some((canonical(line.addr?), canonical(line.laddr?))))
            .filter(|(client, server)| server.port() == port && !local.contains(&client.ip()))
            .all(|(client, server)| tracked.contains(&TcpPair { client, server }));
        let open = remote_connections(port)?;
        if all_tracked && open.is_subset(&tracked) && self.boosted.datapath.untracked_clear()? {
            tracing::info!("all connections are tracked again");
        }
        Ok(())
    }

    fn tracked_pairs(&self) -> HashSet<TcpPair> {
        self.boosted
            .datapath
            .conn_keys()
            .iter()
            .map(|key| {
                let (client, server) = addresses(key);
                TcpPair { client, server }
            })
            .collect()
    }
}

fn can_ask(feed: &Feed) -> bool {
    feed.is_ready() && !feed.is_asking_clients()
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
