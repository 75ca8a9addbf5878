// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is meant when Redis refuses: one write, or all of them.

/// Codes of errors that are about the write itself: it will be refused for ever, and only it. Whatever else
/// Redis says (OOM, MISCONF, READONLY, NOREPLICAS, BUSY, LOADING, NOPERM, NOAUTH, and what nobody knows yet)
/// may pass, so nothing that was promised is given up for it.
const OF_THE_WRITE: [&str; 2] = ["ERR", "WRONGTYPE"];

/// Its memory is full.
const OOM: &str = "OOM";

fn code(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// Whether an element's error is about that element alone.
pub(crate) fn is_of_the_write(error: &str) -> bool {
    OF_THE_WRITE.contains(&code(error))
}

/// Whether a script may do what a transaction may not.
pub(crate) fn is_out_of_memory(error: &str) -> bool {
    code(error) == OOM
}

/// Redis refuses to take what is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it says.
    pub text: String,
    /// Since when, `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// How often it has said so.
    pub tries: u64,
}

impl Refusal {
    /// What it says now; `since_ns` stays that of the first.
    pub(crate) fn again(before: Option<Self>, text: String, now_ns: u64) -> Self {
        Self {
            text,
            since_ns: before.as_ref().map_or(now_ns, |before| before.since_ns),
            tries: before.map_or(0, |before| before.tries) + 1,
        }
    }
}
