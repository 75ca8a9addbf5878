// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storage node's engine, without I/O of its own: whoever drives it gives it time, versions and
//! completions, so a simulator and an event loop run the same code.
//!
//! What stands:
//! - [`Clock`] and [`Wall`] give versions, each of which is a moment too.
//! - [`RetentionClock`] says how old versions are, whatever the wall clock says.
//! - [`Versions`] is what one shard knows: keys with all their versions, conditional writes, restores, roll back
//!   of scopes, expiry, reads at a cut, snapshots, retention, trims, sweeps, what a checkpoint saves and replay needs.
//! - [`Log`](log::Log) writes [batches](batch) of [records](record) into segments, closes them with
//!   [directories](directory), and [`Scan`](scan::Scan) finds all again after a crash.
//! - [`ControlLog`](control_log::ControlLog) holds durably what concerns all shards: its [entries](entry) lie in one of
//!   two areas, which the [superblock](superblock) names.
//! - [`Control`](control::Control) coordinates by it: roll backs and batches over shards, snapshots, retention, time,
//!   segments, checkpoints.
//! - [`Shard`](shard::Shard) has one shard's versions and log, and writes its [checkpoints](checkpoint). It collects
//!   segments, so that their [space](space) is used again, checks what is [read](Reading) of values, keeps
//!   [some](CacheCounts) in memory, and scrubs for [rot](Rot).
//! - [`Shared`](watermark::Shared) has clock and watermark: what all shards know durably.
//! - [`Growth`](growth::Growth) adds space to a store that nobody has open.
//! - [`Opening`](opening::Opening) recovers all of that, and records where every log ended before anything is answered.
//!
//! What does not yet: the delay of a snapshot's release. Copies of what is needed lie among what
//! users write, not in a segment of their own. Of hosts it knows the newest generation that it was served to.
//!
//! Invariants, each held by the file that is named:
//! 1. No version is given twice, over crashes too, and none goes back: `version.rs`.
//! 2. A place tells a version's source: `place.rs`.
//! 3. Bytes of the disk are believed only if their checksums are right for this place: `record.rs`, `batch.rs`.
//! 4. A key's versions are the same whether roll backs visited it at once or when it was next touched:
//!    `versions.rs`.
//! 5. What retention holds is never trimmed, and no count goes over what was: `sweep.rs`, `view.rs`.
//! 6. Memory for keys and versions is bounded by budgets, and listing by hash stays good while keys come and go:
//!    `index.rs`.
//! 7. What was acknowledged is there after every crash, and what is there is a beginning of what each shard did:
//!    `log.rs`, `scan.rs`, `opening.rs`.
//! 8. What shards rest on is durable in the control log first: `control.rs`, `control_log.rs`.
//! 9. Nobody sees what a crash takes back: `watermark.rs`, `shard.rs`.
//! 10. Space is used again only when nobody needs what is there, checkpoints and readers included: `collect.rs`,
//!     `space.rs`.
//! 11. What is not needed is won back, padding of every kind too, so a full store is full of what is needed: `spare.rs`,
//!     `collect.rs`, `pacing.rs`.
//! 12. A roll back needs memory for the versions that it makes and for no others: `roll_backs.rs`.
//! 13. A version that a roll back has made is what it was, or is refused, also where a record is lost that nobody knows the
//!     key of: `losses.rs`.

pub mod batch;
mod bytes;
mod cache;
pub mod checkpoint;
mod collect;
pub mod control;
pub mod control_log;
pub mod directory;
pub mod entry;
mod expiry;
pub mod growth;
mod history;
mod index;
pub mod key;
pub mod layout;
pub mod log;
mod losses;
mod mending;
pub mod message;
pub mod mistake;
mod moves;
mod open_error;
pub mod opened;
pub mod opening;
mod operation;
mod pacing;
pub mod place;
mod reading;
pub mod record;
mod replay;
mod retention;
mod retention_clock;
mod roll_backs;
mod rows;
pub mod salvage;
pub mod scan;
mod scrub;
pub mod shard;
mod shard_turn;
pub mod shortening;
mod slab;
mod snapshots;
pub mod space;
mod spare;
pub mod state;
mod strays;
pub mod superblock;
mod sweep;
mod table;
mod usage;
pub mod version;
mod versions;
mod view;
pub mod watermark;

pub use cache::{CacheCounts, Cached};
pub use collect::ShardRead;
pub use expiry::EXPIRY_BYTES_BUDGET;
pub use history::{Held, OLDER_MAX};
pub use index::{KEY_BYTES_BUDGET, VERSION_BYTES_BUDGET};
pub use key::{Key, KeyHasher};
pub use place::{Origin, Place};
pub use reading::{Came, CameHead, Reading};
pub use retention::{Retention, SNAPSHOTS_MAX, Settings};
pub use retention_clock::{RetentionClock, SAMPLES_MAX, Sample};
pub use roll_backs::Counting;
pub use rows::{ROWS_MAX, RollBack, Target};
pub use scrub::{PERIOD_US as SCRUB_PERIOD_US, ROTTEN_MAX, Rot, Scrubbed};
pub use sweep::{Saved, Swept, TRIMMED_MAX, Trim};
pub use usage::Needed;
pub use version::{Clock, Version, Wall};
pub use versions::{Condition, Listed, Page, Versions};
pub use view::{Refused, Selector};
