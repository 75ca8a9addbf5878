// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that are answered in Redis's place, as they are told.

use serde::{Deserialize, Serialize};

/// What answering writes depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionReport {
    /// Its name.
    pub condition: String,
    /// Whether nothing of it speaks against answering writes.
    pub met: bool,
    /// What has to hold.
    pub means: String,
    /// Why it does not, and what to do; empty: it does.
    pub why: String,
}

/// Writes that are answered in Redis's place, and what becomes of them. Of mode read all is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritesReport {
    /// Whether SETs are answered.
    pub open: bool,
    /// How often this daemon began to let them be.
    pub opened: u64,
    /// All conditions.
    pub conditions: Vec<ConditionReport>,
    /// SETs that are answered and not in Redis.
    pub waiting: u64,
    /// For how long at most one of them is, ms.
    pub waiting_ms: u64,
    /// Bytes that are taken in the log ring that has the least room.
    pub ring_bytes: u64,
    /// SETs that this daemon has brought to Redis.
    pub drained: u64,
    /// Keys that it has written for that: of each key in a batch the last value.
    pub drained_keys: u64,
    /// Batches that these were.
    pub batches: u64,
    /// Batches that Redis refused, and that were tried again.
    pub refused_batches: u64,
    /// SETs that were answered and that Redis will never take.
    pub refused_writes: u64,
    /// What is known of the last ones of these.
    pub refused: Vec<String>,
    /// What is kept of them over a loss of power.
    #[serde(default)]
    pub journal: JournalReport,
}

/// What is kept on a disk of SETs that were answered and are not in Redis. Of mode read all is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalReport {
    /// `none`; `late`: what has waited for long; `all`: every SET.
    pub keeps: String,
    /// Who writes it: `daemon`, or `kmod`: the kernel module.
    #[serde(default)]
    pub sink: String,
    /// Where.
    pub folder: String,
    /// Whether what waits could be kept.
    pub sound: bool,
    /// Why not, and what to do; empty: it could.
    pub why: String,
    /// SETs that wait and are on the disk.
    pub waiting: u64,
    /// Segments of this boost.
    pub segments: u64,
    /// Records that this daemon has written.
    pub written: u64,
    /// Of all SETs up to this LSN those that are not in Redis are on the disk.
    #[serde(default)]
    pub durable_lsn: u64,
    /// Writes to the disk, each of one record or more. These three count as long as the folder is open, or since the kernel
    /// module was inserted.
    #[serde(default)]
    pub batches: u64,
    /// Syncs of such writes.
    #[serde(default)]
    pub syncs: u64,
    /// How often a push has woken the kernel module's thread that writes.
    #[serde(default)]
    pub wakes: u64,
    /// Writes, syncs and other work on files that failed.
    pub failures: u64,
    /// Segments that a boost has left which is no more.
    pub left_segments: u64,
    /// SETs that these have, and that may not be in Redis.
    pub left: u64,
    /// What is to be done about them; empty: there are none.
    pub left_what: String,
}
