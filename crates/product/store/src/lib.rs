// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storage node's engine, without I/O of its own: whoever drives it gives it time, versions and
//! completions, so a simulator and an event loop run the same code.
//!
//! What stands:
//! - [`Clock`] and [`Wall`] give versions, each of which is a moment too.
//! - [`RetentionClock`] says how old versions are, whatever the wall clock says.
//! - [`Versions`] is what one shard knows: keys with all their versions, conditional writes, restores, roll back
//!   of scopes, reads at a cut, snapshots, retention, trims, sweeps, what a checkpoint saves and replay needs.
//! - [`Log`](log::Log) writes [batches](batch) of [records](record) into segments, and [`Scan`](scan::Scan) finds
//!   them again after a crash.
//!
//! What does not yet: directories of closed segments, control log and superblocks (whoever drives it must hold
//! rows, segments, ends and the ceiling durably), checkpoints on disk, GC of space, several shards, expiry, a
//! cache of values.
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
//! 7. What was acknowledged is there after every crash, and what is there is a beginning of what was done:
//!    `log.rs`, `scan.rs`.

pub mod batch;
mod bytes;
mod history;
mod index;
pub mod key;
pub mod log;
pub mod mistake;
pub mod place;
pub mod record;
mod retention;
mod retention_clock;
mod rows;
pub mod scan;
mod slab;
mod sweep;
mod table;
pub mod version;
mod versions;
mod view;

pub use history::{Held, OLDER_MAX};
pub use index::{KEY_BYTES_BUDGET, VERSION_BYTES_BUDGET};
pub use key::{Key, KeyHasher};
pub use place::{Origin, Place};
pub use retention::{Retention, SNAPSHOTS_MAX};
pub use retention_clock::{RetentionClock, SAMPLES_MAX, Sample};
pub use rows::{ROWS_MAX, RollBack, Target};
pub use sweep::{Saved, Swept, TRIMMED_MAX, Trim};
pub use version::{Clock, Version, Wall};
pub use versions::{Condition, Listed, Page, Versions};
pub use view::{Refused, Selector};
