// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb serve --json`: a line at the begin, one for each interval, one at the end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How bytes have left, heads of answers included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentBytes {
    /// From the file's own memory; the kernel says that it has not copied them.
    pub zero_copy: u64,
    /// From the page cache by sendfile, not copied.
    pub sendfile: u64,
    /// Meant to go without a copy, and copied by the kernel.
    pub kernel_copied: u64,
    /// Copied by ERB, by reason.
    pub copied: BTreeMap<String, u64>,
}

/// All that was served since the begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serve {
    /// Where it listens.
    pub address: String,
    /// Threads.
    pub threads: usize,
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were closed at once, because there were too many.
    pub refused: u64,
    /// Answers by status.
    pub answers: BTreeMap<u16, u64>,
    /// Bodies that were broken off with a reset, because their file changed meanwhile.
    pub reset_changed: u64,
    /// Connections that were reset because the client did not take or acknowledge in time.
    pub reset_slow: u64,
    /// How bytes have left.
    pub sent_bytes: SentBytes,
    /// Connections for which the kernel copied, by likely cause.
    pub kernel_copies: BTreeMap<String, u64>,
    /// Memory pinned at this moment.
    pub pinned_bytes: u64,
    /// The most that was ever pinned.
    pub pinned_bytes_peak: u64,
    /// The guard's process.
    pub guard: Option<u32>,
    /// What this process lacks to send without a copy, and what to do.
    pub lacks: Option<String>,
}
