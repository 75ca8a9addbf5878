// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What shards and control log tell each other. From one to another messages keep their order.

use crate::entry::{Checkpoint, Entry};
use crate::layout::Layout;
use crate::log::{LogEnd, Segment};
use crate::rows::RollBack;
use crate::version::Version;
use crate::versions::Condition;
use crate::view::{Refused, Selector};

/// What is done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// It gets this value.
    Put(&'a [u8]),
    /// It gets a delete marker, if it has a value.
    Delete,
    /// It gets a delete marker, if its value is over.
    Expire,
    /// It gets the content of one of its versions.
    Restore(Selector),
}

/// A change of one key in a batch over shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The key's namespace.
    pub namespace: u16,
    /// The key.
    pub key: Vec<u8>,
    /// What is done to it.
    pub what: PartWhat,
    /// What is asked of its head.
    pub condition: Condition,
    /// Who writes.
    pub writer: u32,
    /// Of a put: milliseconds since 1970; 0: none.
    pub expiry_ms: u64,
    /// The reserve is for whoever writes this.
    pub may_use_reserve: bool,
}

/// [`What`], owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartWhat {
    /// It gets this value.
    Put(Vec<u8>),
    /// It gets a delete marker, if it has a value.
    Delete,
    /// It gets the content of one of its versions.
    Restore(Selector),
}

impl PartWhat {
    pub(crate) fn borrowed(&self) -> What<'_> {
        match self {
            Self::Put(value) => What::Put(value),
            Self::Delete => What::Delete,
            Self::Restore(from) => What::Restore(*from),
        }
    }
}

/// What a freeze holds back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Writes of the keys that a roll back concerns. Its id is not the one that it will have, but below it.
    RollBack(RollBack),
    /// Writes of these keys, all of one shard.
    Batch(Vec<Part>),
}

/// To a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToShard {
    /// A segment for its log.
    LogSegment(Segment),
    /// A segment for its checkpoint.
    CheckpointSegment(Segment),
    /// Hold this back, and say when everything accepted before is durable.
    Freeze(Scope),
    /// This roll back is durable.
    RollBack(RollBack),
    /// Log the parts of the batch that is frozen, with this version.
    LogParts(Version),
    /// The batch is committed.
    Commit(Version),
    /// The freeze is over.
    Release,
    /// Floors, settings or a snapshot, durable.
    Retain(Entry),
    /// Begin a checkpoint with this number.
    BeginCheckpoint(u64),
    /// Rows up to this one are in all checkpoints.
    ForgetRows(Version),
    /// No checkpoint needs this segment of the log: leave it once no read of it is under way.
    Leave(u32),
    /// The segment that it has left is durably free.
    Freed(u32),
    /// The store has more segments.
    Grown(Layout),
}

/// To the control log, from a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToControl {
    /// Its log wants another segment, ahead of need.
    WantsLogSegment,
    /// It needs that now: there is something to be logged that cannot wait for space.
    NeedsLogSegment,
    /// Its checkpoint does.
    WantsCheckpointSegment,
    /// It has left a segment, which is durable up to this end.
    Closed(u32, LogEnd),
    /// What it had accepted is durable, and it accepts what was asked; or not, and why, and the version that has to be
    /// visible before that is answered.
    Frozen(Result<(), (Refused, Version)>),
    /// The parts of the batch are durable.
    PartsDurable,
    /// A roll back, a commit or a change of retention has come.
    Taken,
    /// Of the batch with this version nothing is needed in the control log any more.
    Done(Version),
    /// A checkpoint should be written.
    WantsCheckpoint,
    /// A checkpoint is durable.
    Checkpointed(Checkpoint),
    /// Of this segment of the log nothing is needed, but by this checkpoint or those before it.
    Unneeded(u32, u64),
    /// It has left this segment of the log.
    Left(u32),
}
