// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the server's TCP has no memory for.

use erb_sim_tcp::Segment;

use super::{Pair, Server};
use crate::fault::Fault;

impl Server {
    /// Whether TCP has no memory for the packet; or none for what it holds beyond a hole of that
    /// connection, which is gone then.
    pub(super) fn forgets(&self, bytes: &[u8]) -> bool {
        let rate = self.inner.plan.profile.server.prune;
        if !self.inner.happens(Fault::Prune, rate) {
            return false;
        }
        let Ok(segment) = Segment::parse(bytes) else {
            return true;
        };
        !self.prune((segment.dst, segment.src))
    }

    /// TCP throws away what it holds beyond a hole. Returns whether there was anything.
    pub fn prune(&self, pair: Pair) -> bool {
        let mut host = self.host.borrow_mut();
        let id = host.lookup(pair.0, pair.1).and_then(|look| look.id);
        id.is_some_and(|id| host.prune(self.inner.now(), id))
    }
}
