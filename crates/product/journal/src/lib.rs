// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal: what was answered in Redis's place and has not reached Redis for a while, on a disk. It is not what
//! keeps such writes while the machine runs: that are the log rings, which outlive daemon and Redis. It is there for
//! the loss of power that takes the rings away.
//!
//! It is not a database's log: nothing is read back by itself. What a segment has is Redis's already, or older than
//! what Redis has by now, and only a person can tell.
//!
//! Reading order: `format` (bytes), [`read`](SegmentReader) (segments, as if an enemy had written them), [`Journal`]
//! (when a record counts, what ends a segment), [`Sink`] (what it asks of a disk), `disk` (files), `survey` (a folder).

mod disk;
mod format;
mod holes;
mod journal;
mod read;
mod sink;
mod survey;

pub use disk::{Disk, DiskFile, sync_folder_of};
pub use format::{
    HEADER_BYTES, Header, Id, Identity, RECORD_BYTES_MAX, Write, encode_header, encode_record,
};
pub use holes::{Hole, holes};
pub use journal::{Journal, SEGMENT_BYTES};
pub use read::{Entry, Fault, SegmentReader};
pub use sink::Sink;
pub use survey::{
    Found, Segment, State, Survey, below, discard, journals, segments, summary, unread,
};
