// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What others see of a core.

use std::net::IpAddr;

use erb_abi::SweepReport;

use super::Core;
use crate::commands::CommandsReport;
use crate::holding::HoldingState;
use crate::listeners::Whose;
use crate::outside::{DataPath, Machine, TcpPair};
use crate::redis_state::RedisState;
use crate::unseen::UnseenConnections;
use crate::usage::UsageState;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// The last sweep.
    #[must_use]
    pub const fn last_sweep(&self) -> &SweepReport {
        self.connections.report()
    }

    /// Why ERB must not answer, as far as Redis is concerned; empty: it may.
    #[must_use]
    pub fn reasons_against_serving(&self) -> Vec<String> {
        match self.closing.reason() {
            Some(reason) => vec![reason.to_owned()],
            None => self.watch.reasons(),
        }
    }

    /// Redis's state, as last read over the present feed.
    #[must_use]
    pub const fn redis_state(&self) -> Option<&RedisState> {
        self.watch.state()
    }

    /// Whether tracking is on.
    #[must_use]
    pub fn is_feed_up(&self) -> bool {
        self.link.is_up()
    }

    /// Feeds made so far.
    #[must_use]
    pub const fn feeds_made(&self) -> u64 {
        self.link.made()
    }

    /// What came of Redis's command table, if it could be read.
    #[must_use]
    pub const fn commands(&self) -> Option<&CommandsReport> {
        self.watch.commands()
    }

    /// Connections for which the table had no room, as last counted.
    #[must_use]
    pub const fn unseen(&self) -> UnseenConnections {
        self.connections.unseen()
    }

    /// Of a connection that is not answered because its user may not do everything: which user it is, and the first
    /// rule that is against it; none: CLIENT LIST has not said that of it.
    #[must_use]
    pub fn limit_of(&self, pair: &TcpPair) -> Option<String> {
        self.connections.limit_of(pair)
    }

    /// Commands by name, and the processor time that Redis was spared.
    #[must_use]
    pub fn usage(&self) -> UsageState {
        self.spared.state()
    }

    /// Packets that wait for what was answered before them.
    #[must_use]
    pub fn holding(&self) -> HoldingState {
        self.holding.state()
    }

    /// Who listens on the port, and if that is not known why.
    pub fn listeners(&self) -> impl Iterator<Item = (IpAddr, Whose, Option<&str>)> {
        self.connections.listeners().all()
    }
}
