// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules that can be left out, so that a test shows that it would see it.
//!
//! The engine is generic over [`Rules`]. [`Sound`] breaks none, and the compiler leaves nothing of it.

/// A rule of the engine that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A roll back that changes nothing of a key adds a version.
    NoOpCounts,
    /// A write does not resolve its key.
    WriteUnresolved,
    /// A moment below the floor is not refused.
    FloorIgnored,
    /// Versions are trimmed above the floor.
    FloorLate,
    /// A roll back spares what was written since a moment below the floor.
    KeepBelowFloor,
    /// A trim does not resolve its key.
    TrimUnresolved,
    /// A trim does not see snapshots.
    SnapshotsIgnored,
    /// A version's age is counted from its birth, not from its end.
    AgeFromBirth,
    /// Rows go although not all keys know them.
    RowsForgottenEarly,
    /// Replay applies rows that are younger than the record.
    ReplayAll,
    /// Replay trims a key that it has not resolved as far.
    ReplayTrimUnresolved,
    /// A restore of one key does not count as a write of it.
    RestoreNotCounted,
    /// Counting back goes over versions that were trimmed.
    GapsIgnored,
    /// What ended above the watermark or a cut is trimmed.
    CutsIgnored,
    /// Min-count has grown, and counting back goes as far at once.
    CountGrownAtOnce,
    /// A new key is taken for one that was there before all roll backs.
    NewKeyUnresolved,
    /// The epoch does not move when rows are applied.
    EpochStays,
    /// A read does not stop at its cut.
    CutPassed,
    /// A deleted key's entry goes while a snapshot holds a version of it.
    EntryGoesEarly,
    /// A row of a prefix is not found for the key that equals it.
    WholeKeyMissed,
    /// Deletes are listed since a moment, and some of them are forgotten.
    ForgottenDeletes,
    /// A batch is acknowledged although one before it is under way.
    AcknowledgedBeforeOthers,
    /// A failed write counts as done.
    FailureForgotten,
    /// Recovery does not compare what a batch says of the one before it.
    ChainUnchecked,
    /// Recovery takes what lies behind the end that an earlier one recorded.
    EndsIgnored,
    /// Recovery does not flush what a killed process left in the drive's cache.
    NotFlushed,
    /// A superblock counts before any copy is durable.
    SuperblockCountsAtOnce,
    /// The superblock names an area whose snapshot is not durable.
    AreaNamedEarly,
    /// An area is begun anew while a slow write to its former use is under way.
    AreaBegunUnderWrite,
    /// Versions are given up to a ceiling that is not durable.
    CeilingNotDurable,
    /// A segment is written to before the control log has it.
    SegmentGivenEarly,
    /// Shards get a roll back that is not durable.
    RowNotDurable,
    /// The watermark passes a roll back that not all shards have.
    RowPassedEarly,
    /// Counts back are good as far as versions reach that are not durable.
    CountNotDurable,
    /// Shards get floors that are not durable.
    FloorsNotDurable,
    /// A shard accepts writes in the scope of a freeze.
    FreezeIgnored,
    /// Readers see what only their own shard would not lose.
    WatermarkPerShard,
    /// Recovery records no end: what lies behind may count again.
    EndsUnrecorded,
    /// A checkpoint counts before all of it is durable.
    CheckpointUnwritten,
    /// A checkpoint counts before the log is as far.
    CheckpointBeforeLog,
    /// Replay does not leave out what slices have.
    SlicesIgnored,
    /// A slice is taken while a batch is open.
    SliceInBatch,
    /// Rows go when one checkpoint has them.
    RowsForgottenAtOnce,
    /// A part counts without its commit.
    PartsWithoutCommit,
    /// A commit without *done* does not count.
    CommitsForgotten,
    /// A batch is committed before its parts are durable.
    CommitBeforeParts,
    /// A batch is forgotten before *done* is durable.
    DoneBeforeDurable,
    /// A move changes one of the versions that share a place.
    SharedPlaceStays,
    /// A record is not needed any more when one of the versions that share it goes.
    SharedPlaceCeases,
    /// The index names a copy that is not durable.
    MoveNotDurable,
    /// A segment is free when nothing in it is needed, whatever checkpoints need.
    SegmentFreedAtOnce,
    /// It is free when the newer checkpoint does not need it.
    SegmentFreedAfterOne,
    /// It is free although a read of it is under way.
    ReadsIgnored,
    /// Nobody is told how much is free.
    SpaceUnknown,
    /// Logs and trims take what checkpoints need.
    CheckpointsStarved,
    /// Trims take of the last space while a segment without anything needed is not durably free.
    TrimsBeforeFreed,
    /// What is not durably free counts as free.
    FreedEarly,
    /// Writers are refused for want of space while collecting makes room.
    RefusedTooEarly,
    /// Padding and heads count as needed as long as a record of their segment is.
    PaddingNeeded,
    /// A roll back keeps memory for all keys of its namespace until a sweep has met them.
    RoomOfNamespace,
    /// A move does not take along when its value expires.
    ExpiryStays,
    /// A checkpoint does not save when values expire.
    ExpiryNotSaved,
    /// A value that is over counts as there.
    ExpiredIsThere,
    /// Less is kept at once.
    ShortenedAtOnce,
    /// Less is kept although the store is locked.
    LockIgnored,
    /// A snapshot ends before its time.
    SnapshotEndsAtOnce,
    /// The end of one lets go of all that hold the moment.
    SnapshotEndsAll,
    /// A snapshot ends although the store is locked.
    SnapshotEndsLocked,
    /// A release takes the snapshot that would have stayed longest.
    ReleaseTakesLast,
    /// A cached value is known by its address, whatever has been written there since.
    CachedPlaceUsedAgain,
    /// Nothing leaves the cache of values.
    CacheUnbounded,
    /// What a read has brought is cached before it is checked.
    CachedUnchecked,
    /// A batch says that those under way before it are durable.
    VouchedTooEarly,
    /// Recovery does not believe what a later batch says to have been durable.
    VouchersIgnored,
    /// A clean stop does not record where logs end.
    StopUnrecorded,
    /// Nobody notes how far an idle log is durable.
    IdleUnmarked,
    /// Recovery does not tell of what it has found to be rotten.
    RotUntold,
    /// What lies behind a rotten record in its batch is not looked at.
    RestAbandoned,
    /// A part whose *done* has rotted away is nothing.
    DoneLostForgotten,
    /// What a roll back made is not uncertain where it may rest on something that is lost.
    LossForgotten,
    /// A segment is used before the superblock that says that it is there counts.
    GrowthCountsAtOnce,
    /// Shards do not hear of new segments.
    GrowthUntold,
}

/// Those of what a start finds to be rotten.
pub const ROT_MISTAKES: [Mistake; 8] = [
    Mistake::VouchedTooEarly,
    Mistake::VouchersIgnored,
    Mistake::StopUnrecorded,
    Mistake::IdleUnmarked,
    Mistake::RotUntold,
    Mistake::RestAbandoned,
    Mistake::DoneLostForgotten,
    Mistake::LossForgotten,
];

/// Those of the cache of values.
pub const CACHE_MISTAKES: [Mistake; 3] = [
    Mistake::CachedPlaceUsedAgain,
    Mistake::CacheUnbounded,
    Mistake::CachedUnchecked,
];

/// Those of snapshots that end by themselves.
pub const SNAPSHOT_MISTAKES: [Mistake; 4] = [
    Mistake::SnapshotEndsAtOnce,
    Mistake::SnapshotEndsAll,
    Mistake::SnapshotEndsLocked,
    Mistake::ReleaseTakesLast,
];

/// Those of shortened retention.
pub const SHORTENING_MISTAKES: [Mistake; 2] = [Mistake::ShortenedAtOnce, Mistake::LockIgnored];

/// Those of expiry.
pub const EXPIRY_MISTAKES: [Mistake; 3] = [
    Mistake::ExpiryStays,
    Mistake::ExpiryNotSaved,
    Mistake::ExpiredIsThere,
];

/// Those of space, but for [`Mistake::CheckpointsStarved`], [`Mistake::TrimsBeforeFreed`] and [`Mistake::FreedEarly`],
/// which take a full store that is killed again and again, and [`Mistake::RefusedTooEarly`], [`Mistake::PaddingNeeded`]
/// and [`Mistake::RoomOfNamespace`], which lose nothing.
pub const SPACE_MISTAKES: [Mistake; 7] = [
    Mistake::SharedPlaceStays,
    Mistake::SharedPlaceCeases,
    Mistake::MoveNotDurable,
    Mistake::SegmentFreedAtOnce,
    Mistake::SegmentFreedAfterOne,
    Mistake::ReadsIgnored,
    Mistake::SpaceUnknown,
];

/// Those of a store that grows while it runs.
pub const GROWTH_MISTAKES: [Mistake; 2] = [Mistake::GrowthCountsAtOnce, Mistake::GrowthUntold];

/// Those of the whole store: control log, checkpoints, several shards. But for [`Mistake::CountNotDurable`], which takes a
/// sweep, a roll back and a kill within one batch.
pub const STORE_MISTAKES: [Mistake; 19] = [
    Mistake::SuperblockCountsAtOnce,
    Mistake::AreaNamedEarly,
    Mistake::CeilingNotDurable,
    Mistake::SegmentGivenEarly,
    Mistake::RowNotDurable,
    Mistake::RowPassedEarly,
    Mistake::FloorsNotDurable,
    Mistake::FreezeIgnored,
    Mistake::WatermarkPerShard,
    Mistake::EndsUnrecorded,
    Mistake::CheckpointUnwritten,
    Mistake::CheckpointBeforeLog,
    Mistake::SlicesIgnored,
    Mistake::SliceInBatch,
    Mistake::RowsForgottenAtOnce,
    Mistake::PartsWithoutCommit,
    Mistake::CommitsForgotten,
    Mistake::CommitBeforeParts,
    Mistake::DoneBeforeDurable,
];

/// Those of the log and its recovery.
pub const LOG_MISTAKES: [Mistake; 5] = [
    Mistake::AcknowledgedBeforeOthers,
    Mistake::FailureForgotten,
    Mistake::ChainUnchecked,
    Mistake::EndsIgnored,
    Mistake::NotFlushed,
];

/// Those of versions and roll back.
pub const MISTAKES: [Mistake; 21] = [
    Mistake::NoOpCounts,
    Mistake::WriteUnresolved,
    Mistake::FloorIgnored,
    Mistake::FloorLate,
    Mistake::KeepBelowFloor,
    Mistake::TrimUnresolved,
    Mistake::SnapshotsIgnored,
    Mistake::AgeFromBirth,
    Mistake::RowsForgottenEarly,
    Mistake::ReplayAll,
    Mistake::ReplayTrimUnresolved,
    Mistake::RestoreNotCounted,
    Mistake::GapsIgnored,
    Mistake::CutsIgnored,
    Mistake::CountGrownAtOnce,
    Mistake::NewKeyUnresolved,
    Mistake::EpochStays,
    Mistake::CutPassed,
    Mistake::EntryGoesEarly,
    Mistake::WholeKeyMissed,
    Mistake::ForgottenDeletes,
];

/// Which rules an engine keeps.
pub trait Rules {
    /// Whether it makes this mistake.
    fn makes(&self, mistake: Mistake) -> bool;
}

/// All of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sound;

impl Rules for Sound {
    #[inline]
    fn makes(&self, _: Mistake) -> bool {
        false
    }
}

/// All but one, or none.
#[derive(Clone, Copy, Debug)]
pub struct Broken(pub Option<Mistake>);

impl Rules for Broken {
    fn makes(&self, mistake: Mistake) -> bool {
        self.0 == Some(mistake)
    }
}
