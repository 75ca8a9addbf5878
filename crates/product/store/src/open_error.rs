// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a store does not open.

use crate::superblock::NoSuperblock;
use crate::view::Refused;

/// Why a store does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No superblock.
    #[error(transparent)]
    NoSuperblock(#[from] NoSuperblock),
    /// The control log is damaged.
    #[error(
        "the control log is damaged at byte {0}, and was durable once: `erb node check --repair` says what opening it \
         without that would cost"
    )]
    Control(u64),
    /// A shard's log cannot be read.
    #[error(
        "shard {shard}: the log cannot be read at byte {address}: check the device; `erb node check --repair` says what \
         opening it without that would cost"
    )]
    Log {
        /// Whose.
        shard: u16,
        /// Byte of the store.
        address: u64,
    },
    /// All checkpoints of a shard are damaged.
    #[error(
        "shard {shard}: both checkpoints are damaged, the newer one at byte {address}: check the device"
    )]
    Checkpoints {
        /// Whose.
        shard: u16,
        /// Byte of the store.
        address: u64,
    },
    /// A record says what cannot be.
    #[error("shard {shard}: the record at byte {address} cannot be replayed: {refused}")]
    Replay {
        /// Whose.
        shard: u16,
        /// Byte of the store.
        address: u64,
        /// Why.
        refused: Refused,
    },
    /// A repair cannot tell where what it has found belongs.
    #[error(
        "shard {shard}: what its log has at byte {address} cannot be put in order with the rest, because too much of the \
         control log is damaged: nothing was written, and all of it is still there; put the store back from a copy"
    )]
    Unordered {
        /// Whose.
        shard: u16,
        /// Byte of the store.
        address: u64,
    },
    /// A version that was never given.
    #[error(
        "shard {0} has a version above the ceiling: parts of another store, or an older copy, lie in this one"
    )]
    AboveCeiling(u16),
    /// The device cannot be flushed.
    #[error(
        "the device could not be flushed: what can be read now may be lost; restart the machine, then open it again"
    )]
    Flush,
    /// It is not over.
    #[error("recovery was not brought to its end")]
    Unfinished,
}
