// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store behind the target: requests go to it, completions come back later and in any order.
//!
//! Invariants that a backend keeps:
//! 1. Each ticket is completed once.
//! 2. A change is completed when it is durable; a refusal when nothing can take back what it rests on.
//! 3. What it gives has at most the bytes or rows that were asked for.
//! 4. `List` and `Keys` go on behind a key that has been deleted, or that was moved within the store, and give no key
//!    twice.

use crate::status::{Filled, Status};

/// Names a request until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A key of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// All of it, 1 to 1,024 bytes.
    Plain(Vec<u8>),
    /// The first 16 bytes of the SHA-256 of a key above 16 bytes.
    Digest([u8; 16]),
}

/// Which version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The newest.
    Head,
    /// The one with this number.
    Version(u64),
    /// So many before the newest.
    Back(u32),
    /// The one that was the head at this moment.
    AsOf(u64),
}

/// What has to be so for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Any,
    /// The head is this version; 0: there is no value.
    Head(u64),
    /// There is a value.
    Present,
    /// There is none.
    Absent,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It gets this value.
    Put(Vec<u8>),
    /// It gets a delete marker.
    Delete,
    /// It gets the content of one of its versions.
    Restore(Selector),
}

/// One change of a batch, or one alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Whose change it is.
    pub key: Key,
    /// The change.
    pub change: Change,
    /// What has to be so.
    pub condition: Condition,
}

/// Where a roll back leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// What each key was at this moment.
    Moment(u64),
    /// What each key was so many versions before.
    Back(u32),
    /// What the keys of the roll back with this id were before it. The prefix is that of the roll back, or empty.
    Undo(u64),
}

/// A roll back of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollBack {
    /// What the keys begin with.
    pub prefix: Vec<u8>,
    /// Where it leads.
    pub target: Target,
    /// Keys that were written after this moment are spared.
    pub unless_written_since: Option<u64>,
    /// Nothing changes; what would change is counted in the log.
    pub is_dry_run: bool,
}

/// How long versions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Microseconds for which a version is kept that has ended.
    pub min_age_us: u64,
    /// Microseconds for which a deleted key is kept.
    pub keep_deleted_us: u64,
    /// Newest versions of a key that are kept.
    pub min_count: u32,
}

/// How long versions are kept now, and what is to be known beside that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Now.
    pub retention: Retention,
    /// For so many microseconds that the node runs it becomes no less; 0: it is not locked.
    pub locked_us: u64,
    /// What it will be, and when the node has run for so many microseconds; 0: as soon as the lock ends.
    pub less: Option<(Retention, u64)>,
}

/// Damage that the scrub has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it lies: a byte of the store.
    pub address: u64,
    /// The namespace of the key; 0: it is not known whose it was.
    pub namespace: u32,
    /// The key; empty: it is not known.
    pub key: Vec<u8>,
}

/// A log page that the store fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// How the store is.
    Status,
    /// Roll backs, dry runs and snapshots.
    Marks,
    /// What the scrub has found damaged: of this namespace, and what it does not know whose it was.
    Damage,
}

/// What is asked of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One change. `must_exist`: a delete of a missing key is refused.
    Write {
        /// The change.
        write: Write,
        /// Whether a delete of a missing key is an error.
        must_exist: bool,
    },
    /// All or none, with one version.
    Batch(Vec<Write>),
    /// A value, or its first bytes.
    Get {
        /// Whose.
        key: Key,
        /// Which version.
        at: Selector,
        /// Bytes of the value at most.
        bytes: usize,
    },
    /// Whether there is a value.
    Exist(Key),
    /// Keys of at most 16 bytes, from this one on, or from the first; of an unknown one from what comes behind it.
    List {
        /// Where it begins; empty: at the first.
        from: Vec<u8>,
        /// Bytes that rows of 2 bytes and the key, padded to 4, may have.
        bytes: usize,
    },
    /// A key's versions, newest first.
    Versions {
        /// Whose.
        key: Key,
        /// Below this one; 0: from the head.
        below: u64,
        /// At most.
        rows: usize,
    },
    /// Keys with a prefix, in the store's order.
    Keys {
        /// What they begin with.
        prefix: Vec<u8>,
        /// Where the page before ended; 0: at the beginning.
        cursor: u64,
        /// At a moment; none: now.
        moment: Option<u64>,
        /// Only keys that changed after it.
        changed_since: u64,
        /// Also those that were deleted after it.
        has_deleted: bool,
        /// Bytes that rows of 16 bytes and the key, padded to 8, may have.
        bytes: usize,
    },
    /// Whether a moment can be listed; 0: the present one. Answered with its version.
    Moment(u64),
    /// A roll back.
    RollBack(RollBack),
    /// A snapshot of now, for so many seconds; 0: until it is released.
    Snapshot(u64),
    /// Releases the snapshot of this version.
    Release(u64),
    /// A log page.
    Log(Log),
    /// How long versions are kept.
    Retention,
    /// Changes that.
    SetRetention(Retention),
    /// For so many microseconds that the node runs it becomes no less.
    Lock(u64),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The namespace. 0 for what concerns all.
    pub namespace: u32,
    /// The host's number, which versions carry.
    pub writer: u32,
    /// Whether it may go on out of the reserve when the store is full: the host is a restorer or more.
    pub may_use_reserve: bool,
    /// What to do.
    pub operation: Operation,
}

/// What is known of a version beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub version: u64,
    /// The version whose content it has.
    pub source: u64,
    /// Bytes of the whole value.
    pub bytes: u32,
    /// [`DELETED`](Self::DELETED) and others.
    pub flags: u32,
    /// Who wrote it.
    pub writer: u32,
    /// Milliseconds since 1970; 0: none.
    pub expiry_ms: u64,
}

impl Head {
    /// There is no value.
    pub const DELETED: u32 = 1;
    /// It was restored by itself.
    pub const RESTORED: u32 = 2;
    /// It came from a roll back of a scope.
    pub const ROLLED_BACK: u32 = 4;
    /// What was before it was trimmed.
    pub const GAP: u32 = 8;
    /// What is known of it beside its version could not be read: it is damaged.
    pub const DAMAGED: u32 = 16;
    /// A roll back or a restore made it, and it may rest on a record that is lost: it may have had another content.
    pub const UNCERTAIN: u32 = 32;
}

/// A key in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Vec<u8>,
    /// Its version.
    pub version: u64,
    /// Bytes of its value.
    pub bytes: u32,
    /// Flags of [`Head`].
    pub flags: u16,
}

/// What a log of marks has in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// A roll back.
    RollBack = 1,
    /// A dry run of one.
    DryRun = 2,
    /// A snapshot.
    Snapshot = 3,
}

/// A roll back, dry run or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What it is.
    pub kind: MarkKind,
    /// Its id: a version.
    pub id: u64,
    /// Its namespace; 0: all.
    pub namespace: u32,
    /// Keys that it would change; of a roll back [`NOT_COUNTED`](Self::NOT_COUNTED) if nobody has counted them.
    pub keys: u64,
    /// Where it led; of a snapshot for how many more microseconds that the node runs it holds; 0: until it is released.
    pub target: u64,
}

impl Mark {
    /// Keys that nobody has counted: a roll back takes the same time for any number.
    pub const NOT_COUNTED: u64 = u64::MAX;
}

/// How the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Everything up to this version is durable.
    pub watermark: u64,
    /// The oldest moment for which every key's state is still known.
    pub floor: u64,
    /// The node's clock, microseconds since 1970; 0: it does not say.
    pub now_us: u64,
    /// Bytes that may hold data.
    pub size_bytes: u64,
    /// Bytes that do.
    pub used_bytes: u64,
    /// Keys.
    pub keys: u64,
    /// Writes get no room.
    pub is_full: bool,
    /// Writes are refused because the store is damaged.
    pub is_read_only: bool,
    /// How often reads and the scrub have found damage since the start.
    pub damaged: u64,
    /// Bytes of values that are kept in memory.
    pub cached_bytes: u64,
    /// Gets since the start that needed no disk.
    pub cache_hits: u64,
    /// Gets since the start that needed one although values are kept.
    pub cache_misses: u64,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of changes, roll backs, snapshots and moments: a version.
    Version(u64),
    /// Of a get.
    Value {
        /// What is known of it.
        head: Head,
        /// Its first bytes.
        bytes: Vec<u8>,
    },
    /// Of `Exist` and of settings.
    Done,
    /// Of a list.
    Keys(Vec<Vec<u8>>),
    /// Of versions.
    Versions {
        /// The rows.
        rows: Vec<Head>,
        /// Whether there are older ones.
        has_more: bool,
        /// The oldest moment that is known.
        floor: u64,
    },
    /// Of keys.
    Page {
        /// The rows.
        rows: Vec<Listed>,
        /// Where the next page begins; 0: it was the last.
        cursor: u64,
        /// The version at which the page is true.
        cut: u64,
    },
    /// Of the log of status.
    Health(Health),
    /// Of the log of marks: a number that moves with each change, and the rows.
    Marks(u64, Vec<Mark>),
    /// Of the log of damage: a number that moves with each place that is found, and the rows.
    Damage(u64, Vec<Damage>),
    /// Of retention.
    Retention(Kept),
}

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such key, or no value at that version.
    #[error("there is no such key")]
    Absent,
    /// The key is there.
    #[error("the key is there already")]
    Present,
    /// The head is another version: this one; 0: no value.
    #[error("the head is version {0}: read it again")]
    Mismatch(u64),
    /// That part of the history is not kept any more.
    #[error("that part of the history is not kept any more: ask for something newer")]
    Trimmed,
    /// There is no such version.
    #[error("the key has no such version: list its versions")]
    NoSuchVersion,
    /// Retention is locked.
    #[error("retention is locked: wait until the lock ends")]
    Locked,
    /// That moment is in the future.
    #[error("that moment is in the future: ask for an earlier one")]
    Future,
    /// Not now.
    #[error("the store is busy: repeat it later")]
    Busy,
    /// There is no room.
    #[error("{}", .0.sentence())]
    Full(Filled),
    /// The value is damaged.
    #[error("the value is damaged: restore the key from another version")]
    Damaged,
    /// A field makes no sense, such as a key twice in a batch.
    #[error("the request makes no sense: look at its fields")]
    Invalid,
    /// The store has failed.
    #[error("the store has failed: look at the node's log")]
    Failed,
}

impl Refused {
    /// What the wire says of it.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Absent => Status::ABSENT,
            Self::Present => Status::PRESENT,
            Self::Mismatch(_) => Status::MISMATCH,
            Self::Trimmed => Status::TRIMMED,
            Self::NoSuchVersion => Status::NO_SUCH_VERSION,
            Self::Locked => Status::LOCKED,
            Self::Future => Status::FUTURE,
            Self::Busy => Status::BUSY,
            Self::Full(_) => Status::CAPACITY,
            Self::Damaged => Status::DAMAGED,
            Self::Invalid => Status::INVALID_FIELD,
            Self::Failed => Status::INTERNAL,
        }
    }
}

/// The store.
pub trait Backend {
    /// Takes a request, which [`completed`](Self::completed) answers later.
    fn submit(&mut self, ticket: Ticket, request: Request);
    /// A completion, in any order.
    fn completed(&mut self) -> Option<(Ticket, Result<Answer, Refused>)>;
    /// How the store is, at once.
    fn health(&self) -> Health;
}
