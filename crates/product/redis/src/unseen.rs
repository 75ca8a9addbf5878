// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections for which the table had no room: counted for people, nothing hinges on their number.
//!
//! Nothing of theirs is answered. What they write is a change that no packet shows: Redis pushes it,
//! and no lease is renewed before the push is handled.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use erb_abi as abi;

use crate::client_list::{addresses, key_of};
use crate::clock::SECOND_NS;
use crate::outside::{DataPath, Machine, Result, TcpPair, Traffic};

/// All sockets and all entries are listed for it (20 ms for twenty thousand): at most this part of
/// the daemon's time.
const PART_OF_TIME: u64 = 50;

/// What counts payload that passed unseen.
const REFUSALS: [abi::erb_stat; 3] = [
    abi::STAT_CONN_TABLE_FULL,
    abi::STAT_CONN_SHARE_FULL,
    abi::STAT_CONN_UNSEEN,
];

/// Connections that are not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnseenConnections {
    /// How many.
    pub count: u32,
    /// The address that has most of them.
    pub most: Option<UnseenClient>,
}

/// An address with connections that are not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnseenClient {
    /// The address.
    pub address: IpAddr,
    /// Its connections that are not seen.
    pub unseen: u32,
    /// Its connections that are.
    pub seen: u32,
}

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    found: UnseenConnections,
    /// Refusals counted so far.
    refused: u64,
    /// When they are counted again.
    next_ns: u64,
}

impl Unseen {
    /// Connections for which the table had no room, as last counted.
    pub(crate) const fn found(&self) -> UnseenConnections {
        self.found
    }

    /// Counts them, if there may be others than before.
    pub(crate) fn count(
        &mut self,
        path: &impl DataPath,
        machine: &impl Machine,
        now: u64,
    ) -> Result<()> {
        let mut refused = 0;
        for stat in REFUSALS {
            refused += path.stat(stat)?;
        }
        let moved = refused != self.refused;
        if now < self.next_ns || !moved && self.found.count == 0 {
            return Ok(());
        }
        let found = find(path, machine)?;
        if found.count > 0 && self.found.count == 0 {
            tracing::warn!("{} connections are not seen: no room for them", found.count);
        }
        let took = machine.monotonic_ns() - now;
        *self = Self {
            found,
            refused,
            next_ns: now + SECOND_NS.max(took * PART_OF_TIME),
        };
        Ok(())
    }
}

fn find(path: &impl DataPath, machine: &impl Machine) -> Result<UnseenConnections> {
    let seen: HashSet<TcpPair> = path.conn_keys().iter().map(pair_of).collect();
    let mut unseen: HashMap<IpAddr, u32> = HashMap::new();
    for (pair, traffic) in machine.passing_connections()? {
        let heard = traffic == Traffic::Heard && !seen.contains(&pair);
        if heard && path.was_unseen(&key_of(pair.client, pair.server))? {
            *unseen.entry(pair.client.ip()).or_default() += 1;
        }
    }
    let most = unseen
        .iter()
        .max_by_key(|(address, count)| (**count, **address));
    Ok(UnseenConnections {
        count: unseen.values().sum(),
        most: most.map(|(address, count)| {
            let own = seen.iter().filter(|pair| pair.client.ip() == *address);
            UnseenClient {
                address: *address,
                unseen: *count,
                seen: u32::try_from(own.count()).unwrap_or(u32::MAX),
            }
        }),
    })
}

fn pair_of(key: &abi::conn_key) -> TcpPair {
    let (client, server) = addresses(key);
    TcpPair { client, server }
}
