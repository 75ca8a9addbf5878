// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a running storage node says of itself to those who watch it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A running node and its store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Version of the program.
    pub version: String,
    /// Name of the NVMe subsystem.
    pub nqn: String,
    /// Where it listens.
    pub address: String,
    /// Since it began to serve, in milliseconds.
    pub up_ms: u64,
    /// Connections, those of hosts that have not proved themselves too.
    pub connections: u64,
    /// Failed authentications since the start.
    pub failed_authentications: u64,
    /// Keys, deleted ones that are still kept too.
    pub keys: u64,
    /// Memory of the index, in bytes.
    pub index_bytes: u64,
    /// What it may take: `--memory`.
    pub index_max_bytes: u64,
    /// Space of the store.
    pub space: NodeSpace,
    /// What is kept of the past.
    pub history: NodeHistory,
    /// Values in memory.
    pub cache: NodeCache,
    /// How often reads and the scrub have found damage since the start.
    pub damaged: u64,
    /// Writes are refused because the store has failed.
    pub is_read_only: bool,
    /// Requests since the start, by what they ask for.
    pub requests: BTreeMap<String, u64>,
    /// Requests since the start that were refused, by why.
    pub refused: BTreeMap<String, u64>,
}

/// Space of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpace {
    /// Bytes that may hold data.
    pub size_bytes: u64,
    /// Bytes that do.
    pub used_bytes: u64,
    /// How short it is: `plenty`, `low`, `short`, `full`, `reserve`, `last`.
    pub level: String,
    /// Writers are refused.
    pub is_full: bool,
}

/// What a store keeps of the past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHistory {
    /// Every key's state is known for so long back, in milliseconds; none: nothing was ever trimmed.
    pub whole_ms: Option<u64>,
    /// A version is kept for so long after it was overwritten.
    pub min_age_ms: u64,
    /// A deleted key is kept for so long.
    pub keep_deleted_ms: u64,
    /// So many of each key's newest versions are kept.
    pub min_count: u64,
    /// Nobody can keep less for so long.
    pub locked_ms: u64,
    /// Roll backs that a start would have to apply again.
    pub roll_backs: u64,
    /// Moments that snapshots hold.
    pub snapshots: u64,
}

/// Values that a node keeps in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCache {
    /// Their bytes.
    pub bytes: u64,
    /// Gets since the start that needed no disk.
    pub hits: u64,
    /// Gets since the start that needed one.
    pub misses: u64,
}
