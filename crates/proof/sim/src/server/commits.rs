// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What entries say at the moment when a program leaves their lock: what they hold is closed by then (U2).

use erb_abi as abi;

use crate::check::maps::addresses;
use crate::server::{Pair, Server};
use crate::violation::Violation;

/// An entry as a program has left it, and what stood for everybody.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Whose: the server's address, the client's.
    pub pair: Pair,
    /// Marks and shares that have gone into its ring, ever.
    pub mark_head: u32,
    /// `CONN_F_*`.
    pub flags: u32,
    /// Shares of the fence.
    pub fence: u64,
    /// Times that the gate was shut.
    pub gate_seen: u64,
}

impl Commit {
    /// Whether it holds a share by itself, beside its ring.
    #[must_use]
    pub const fn has_share(&self) -> bool {
        self.flags & (abi::CONN_F_FENCE_PROOF | abi::CONN_F_OVERFLOW) != 0
    }
}

/// Shares of the fence that the entry holds. Where replies are not counted any more, egress notes the share
/// before it takes it: what the entry holds otherwise stands meanwhile.
fn shares(entry: &abi::conn) -> u64 {
    let flags = u32::from(entry.flags);
    let (tail, head) = (entry.h.mark_tail, entry.h.mark_head);
    let ring = (0..head.wrapping_sub(tail).min(abi::MARKS_IN_FLIGHT)).filter(|number| {
        let at = tail.wrapping_add(*number) % abi::MARKS_IN_FLIGHT;
        entry.h.marks[at as usize].set >= abi::EFFECT_EXEC
    });
    let overflow = flags & abi::CONN_F_OVERFLOW != 0;
    let alone = head == tail && !overflow;
    let proof = flags & abi::CONN_F_FENCE_PROOF != 0 && alone;
    ring.count() as u64 + u64::from(overflow) + u64::from(proof)
}

impl Server {
    /// Notes from now on what entries say when a program leaves their lock.
    pub fn watch_commits(&self) {
        self.commits.replace(Some(Vec::new()));
    }

    /// What was noted since.
    #[must_use]
    pub fn commits(&self) -> Vec<Commit> {
        self.commits.borrow().clone().unwrap_or_default()
    }

    /// A program leaves the lock of this entry.
    pub(super) fn entry_left(&self, entry: &abi::conn) {
        let flags = u32::from(entry.flags);
        let holds = flags & (abi::CONN_F_FENCE_PROOF | abi::CONN_F_OVERFLOW) != 0;
        let mut commits = self.commits.borrow_mut();
        if !holds && commits.is_none() {
            return;
        }
        let path = self.path.borrow();
        let Some(path) = path.as_ref() else { return };
        // SAFETY: the map has one value, which stays where it is; no program runs meanwhile.
        let control = unsafe { path.control().read() };
        let (client, server) = addresses(&entry.key);
        if let Some(commits) = commits.as_mut() {
            commits.push(Commit {
                pair: (server, client),
                mark_head: entry.h.mark_head,
                flags,
                fence: control.fence,
                gate_seen: control.gate_seen,
            });
        }
        if !holds {
            return;
        }
        let mut held = 0;
        path.each_conn(|_, entry| held += shares(entry));
        if held > control.fence {
            let text = format!(
                "entries hold {held} shares of a fence of {}: {client} holds what is not taken",
                control.fence
            );
            let now = self.inner.now();
            self.inner.fail(Violation::new("U2", now, text));
        }
    }
}
