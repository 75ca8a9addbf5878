// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Liveness of the fast path: whatever had closed it, it is back soon when that is over.

use erb_abi as abi;

use super::World;
use crate::ConnId;
use crate::client::resp::request;
use crate::client::session::Stage;
use crate::client::workload::{Command, Operation};
use crate::server::devices::IFINDEX;
use crate::time::{MS, Ns, SECOND};
use crate::violation::Violation;

/// The fast path is back so long after its cause has ended.
const BACK_WITHIN: Ns = 10 * SECOND;
/// The same for a connection that finds no room: an entry in TIME_WAIT may have its place for a minute.
const ROOM_WITHIN: Ns = 80 * SECOND;
/// Between two questions.
const ASK_EVERY: Ns = 20 * MS;
/// After so many questions what clients have set is taken back again, twice.
const AGAIN: u32 = 120;
/// The key that is asked for.
const KEY: &[u8] = b"alive";

impl World {
    /// All clients have gone and no fault happens any more: a new client's reads are answered fast.
    ///
    /// # Errors
    /// They are not.
    pub(super) fn is_fast_again(&mut self) -> Result<(), Violation> {
        self.server.route_by(IFINDEX);
        self.server.arrive_by(IFINDEX);
        let began = self.inner.now();
        let mut conn = None;
        let mut roomless = false;
        for round in 0_u32.. {
            let before = self.fast_gets();
            // Again: a Redis that was away has not heard it.
            if round % AGAIN == 0 && round <= 2 * AGAIN {
                self.server.trouble_disk(false);
                self.restore_settings();
                self.server.close_or_open(Some(false));
            }
            if round % (AGAIN / 2) == 0 {
                let set = [b"SET".as_slice(), KEY, b"still"];
                self.server.ask_unseen(&request(&set));
            }
            conn = Some(self.asks(conn));
            self.run_for(ASK_EVERY)?;
            if self.fast_gets() > before {
                break;
            }
            roomless |= conn.is_some_and(|conn| self.has_no_room(conn));
            let limit = if roomless { ROOM_WITHIN } else { BACK_WITHIN };
            if self.inner.now() > began + limit {
                let text = format!("not after {} ms: {}", limit / MS, self.why_not(conn));
                let violation = Violation::new("fast-again", self.inner.now(), text);
                self.inner.fail(violation.clone());
                return Err(violation);
            }
        }
        let inner = self.inner.clone();
        for machine in &mut self.machines {
            machine.close_all(&inner);
        }
        Ok(())
    }

    fn fast_gets(&self) -> u64 {
        let stats = self.server.stats();
        stats.get(abi::STAT_FAST_GET as usize).copied().unwrap_or(0)
    }

    /// A connection that asks, another one if it is over.
    fn asks(&mut self, conn: Option<ConnId>) -> ConnId {
        let inner = self.inner.clone();
        let session = conn.and_then(|conn| self.machines[0].session(conn));
        let Some((conn, session)) = conn.zip(session) else {
            let conn = self.new_conn_on(0);
            self.machines[0].connect(&inner, conn, None, true);
            self.note_dialled(0, conn);
            return conn;
        };
        if session.stage == Stage::Open && session.owed() == 0 {
            let get = Operation {
                commands: vec![Command {
                    name: "get",
                    bytes: request(&[b"GET", KEY]),
                    replies: 1,
                }],
                ..Operation::default()
            };
            self.machines[0].begin(&inner, conn, &get);
        }
        conn
    }

    fn has_no_room(&self, conn: ConnId) -> bool {
        let pair = self.machines[0].session(conn).map(|session| session.local);
        pair.is_some_and(|client| self.server.entry_of(client).is_none())
    }

    /// What is closed, for a message.
    fn why_not(&self, conn: Option<ConnId>) -> String {
        let Some(path) = self.server.attached_path() else {
            return "ERB is not attached".to_owned();
        };
        // SAFETY: the map has one value, which stays where it is; no program runs.
        let control = unsafe { *path.control() };
        let now = self.inner.now();
        let entry = conn
            .and_then(|conn| self.machines[0].session(conn))
            .map(|session| self.server.entry_of(session.local));
        let state = entry.flatten().map(|entry| (entry.state, entry.flags));
        format!(
            "daemon {}, serving {}, admit {}, open {}, lease {} ms, fence {}, gate {} of {}, drained {} of {}, entry {state:?}",
            self.server.boost.is_alive(),
            control.serving,
            control.admit,
            control.open,
            (control.lease_until_ns as i64 - now as i64) / MS as i64,
            control.fence,
            control.gate_ack,
            control.gate_seen,
            control.order.drained,
            control.order.lsn,
        )
    }
}
