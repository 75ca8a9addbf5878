// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of the control log: each is the value of a record. Little endian numbers behind a byte that says which.
//!
//! Invariants:
//! 1. An entry says what is, not what changes: applied twice it is as applied once. But for a roll back, which is
//!    refused the second time.
//! 2. Decoding believes nothing: no bytes make it panic, read beyond them, or allocate more than they are.
//! 3. What is encoded decodes to the same.

use crate::bytes::Reader;
use crate::key::KEY_BYTES_MAX;
use crate::log::{DirectoryAt, LogEnd};
use crate::retention::Settings;
use crate::retention_clock::Sample;
use crate::rows::{RollBack, Target};
use crate::shortening::Shortening;
use crate::version::Version;

/// Something that the control log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Time, as far as it is known to have come.
    Time {
        /// No version above it is given.
        ceiling: Version,
        /// The wall clock, microseconds since 1970.
        wall_us: u64,
        /// Microseconds that the retention clock has run.
        run_us: u64,
    },
    /// A moment of the retention clock.
    Sample(Sample),
    /// What a segment is used for.
    Segment(u32, SegmentState),
    /// A roll back of a scope.
    RollBack(RollBack),
    /// Rows up to this one have gone.
    RowsForgotten(Version),
    /// Nothing that ended above it was trimmed; of deleted keys.
    Floors(Version, Version),
    /// What is kept. No shortening waits any more.
    Settings(Settings),
    /// What is kept will become less.
    Shortening(Shortening),
    /// Nothing becomes less until the retention clock has run so many microseconds.
    Locked(u64),
    /// So many snapshots hold this moment; 0: none does any more.
    Snapshot(Version, u32),
    /// The same, and how many of them end by themselves at one time; 0: none does then.
    Ending {
        /// The moment.
        moment: Version,
        /// Snapshots that hold it.
        count: u32,
        /// Microseconds that the retention clock has run by then.
        at_us: u64,
        /// So many of them.
        ending: u32,
    },
    /// A checkpoint of a shard's index is whole.
    Checkpoint(u16, Checkpoint),
    /// The checkpoint with this number is damaged: it does not count any more.
    CheckpointDropped(u16, u64),
    /// A batch over shards is committed. Bits of shards that have not said durably that they are done with it; 0: it
    /// is forgotten.
    Commit(Version, u64),
    /// The store was served to the hosts of this generation.
    Hosts(u64),
    /// Batches of a shard's log below this one are durable.
    Durable(u16, u64),
    /// The newest batch over shards that was ever committed.
    LastCommit(Version),
}

/// A segment as the control log knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentState {
    /// How often it was taken into use.
    pub uses: u32,
    /// What for.
    pub used_for: UsedFor,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsedFor {
    /// Nothing.
    #[default]
    Nothing,
    /// A log.
    Log {
        /// Whose.
        shard: u16,
        /// Its place in that log.
        order: u64,
        /// Where its batches end, once that is known.
        end: Option<LogEnd>,
    },
    /// A checkpoint.
    Checkpoint {
        /// Whose.
        shard: u16,
        /// Which one.
        number: u64,
        /// Its place in that.
        order: u32,
    },
}

/// A checkpoint as the control log knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Each has a higher one than those of its shard before it.
    pub number: u64,
    /// Replay begins with the segment of this order,
    pub order: u64,
    /// whose first batch has this number,
    pub lsn: u64,
    /// names this checksum of the head before it,
    pub crc_before: u32,
    /// and was written by this incarnation or a later one.
    pub incarnation: u32,
    /// Keys in it.
    pub keys: u64,
    /// Chunks in it.
    pub chunks: u32,
    /// Rows up to this one are in all its keys.
    pub rows_up_to: Version,
}

const TIME: u8 = 1;
const SAMPLE: u8 = 2;
const SEGMENT: u8 = 3;
const ROLL_BACK: u8 = 4;
const ROWS_FORGOTTEN: u8 = 5;
const FLOORS: u8 = 6;
const SETTINGS: u8 = 7;
const SNAPSHOT: u8 = 8;
const CHECKPOINT: u8 = 9;
const COMMIT: u8 = 10;
const CHECKPOINT_DROPPED: u8 = 11;
const SHORTENING: u8 = 12;
const LOCKED: u8 = 13;
const HOSTS: u8 = 14;
const ENDING: u8 = 15;
const DURABLE: u8 = 16;
const LAST_COMMIT: u8 = 17;

/// How an end is encoded: 1 without a directory, 2 with one; so much more if it says how much of its segment is loose.
const COUNTED: u8 = 2;

/// Numbers behind each other.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(mut self, number: u8) -> Self {
        self.0.push(number);
        self
    }

    fn u16(mut self, number: u16) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn version(self, version: Version) -> Self {
        self.u64(version.number())
    }
}

impl Entry {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let out = Writer::default();
        let out = match self {
            Self::Time {
                ceiling,
                wall_us,
                run_us,
            } => out.u8(TIME).version(*ceiling).u64(*wall_us).u64(*run_us),
            Self::Sample(sample) => out.u8(SAMPLE).u64(sample.run_us).version(sample.version),
            Self::Segment(number, state) => {
                encode_used(out.u8(SEGMENT).u32(*number).u32(state.uses), state.used_for)
            }
            Self::RollBack(row) => encode_row(out.u8(ROLL_BACK), row),
            Self::RowsForgotten(up_to) => out.u8(ROWS_FORGOTTEN).version(*up_to),
            Self::Floors(floor, deleted) => out.u8(FLOORS).version(*floor).version(*deleted),
            Self::Settings(settings) => encode_settings(out.u8(SETTINGS), settings),
            Self::Shortening(shortening) => {
                encode_settings(out.u8(SHORTENING).u64(shortening.at_us), &shortening.to)
            }
            Self::Locked(until_us) => out.u8(LOCKED).u64(*until_us),
            Self::Snapshot(moment, count) => out.u8(SNAPSHOT).version(*moment).u32(*count),
            Self::Checkpoint(shard, it) => out
                .u8(CHECKPOINT)
                .u16(*shard)
                .u64(it.number)
                .u64(it.order)
                .u64(it.lsn)
                .u32(it.crc_before)
                .u32(it.incarnation)
                .u64(it.keys)
                .u32(it.chunks)
                .version(it.rows_up_to),
            Self::CheckpointDropped(shard, number) => {
                out.u8(CHECKPOINT_DROPPED).u16(*shard).u64(*number)
            }
            Self::Commit(version, owing) => out.u8(COMMIT).version(*version).u64(*owing),
            Self::Hosts(generation) => out.u8(HOSTS).u64(*generation),
            Self::LastCommit(version) => out.u8(LAST_COMMIT).version(*version),
            Self::Durable(shard, lsn) => out.u8(DURABLE).u16(*shard).u64(*lsn),
            Self::Ending {
                moment,
                count,
                at_us,
                ending,
            } => out
                .u8(ENDING)
                .version(*moment)
                .u32(*count)
                .u64(*at_us)
                .u32(*ending),
        };
        out.0
    }

    /// A segment is free.
    #[must_use]
    pub const fn freed(number: u32, uses: u32) -> Self {
        let used_for = UsedFor::Nothing;
        Self::Segment(number, SegmentState { uses, used_for })
    }

    /// Reads one. None: it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let entry = decode(&mut from)?;
        from.is_empty().then_some(entry)
    }
}

fn version(from: &mut Reader<'_>) -> Option<Version> {
    from.u64().map(Version::new)
}

fn decode(from: &mut Reader<'_>) -> Option<Entry> {
    Some(match from.u8()? {
        TIME => Entry::Time {
            ceiling: version(from)?,
            wall_us: from.u64()?,
            run_us: from.u64()?,
        },
        SAMPLE => Entry::Sample(Sample {
            run_us: from.u64()?,
            version: version(from)?,
        }),
        SEGMENT => {
            let (number, uses) = (from.u32()?, from.u32()?);
            let used_for = decode_used(from)?;
            Entry::Segment(number, SegmentState { uses, used_for })
        }
        ROLL_BACK => Entry::RollBack(decode_row(from)?),
        ROWS_FORGOTTEN => Entry::RowsForgotten(version(from)?),
        FLOORS => Entry::Floors(version(from)?, version(from)?),
        SETTINGS => Entry::Settings(decode_settings(from)?),
        SHORTENING => Entry::Shortening(Shortening {
            at_us: from.u64()?,
            to: decode_settings(from)?,
        }),
        LOCKED => Entry::Locked(from.u64()?),
        SNAPSHOT => Entry::Snapshot(version(from)?, from.u32()?),
        CHECKPOINT => {
            let shard = from.u16()?;
            let checkpoint = Checkpoint {
                number: from.u64()?,
                order: from.u64()?,
                lsn: from.u64()?,
                crc_before: from.u32()?,
                incarnation: from.u32()?,
                keys: from.u64()?,
                chunks: from.u32()?,
                rows_up_to: version(from)?,
            };
            Entry::Checkpoint(shard, checkpoint)
        }
        COMMIT => Entry::Commit(version(from)?, from.u64()?),
        CHECKPOINT_DROPPED => Entry::CheckpointDropped(from.u16()?, from.u64()?),
        HOSTS => Entry::Hosts(from.u64()?),
        LAST_COMMIT => Entry::LastCommit(version(from)?),
        DURABLE => Entry::Durable(from.u16()?, from.u64()?),
        ENDING => Entry::Ending {
            moment: version(from)?,
            count: from.u32()?,
            at_us: from.u64()?,
            ending: from.u32()?,
        },
        _ => return None,
    })
}

fn encode_settings(out: Writer, settings: &Settings) -> Writer {
    out.u64(settings.min_age_us)
        .u64(settings.keep_deleted_us)
        .u32(settings.min_count)
        .u32(settings.counted)
}

fn decode_settings(from: &mut Reader<'_>) -> Option<Settings> {
    Some(Settings {
        min_age_us: from.u64()?,
        keep_deleted_us: from.u64()?,
        min_count: from.u32()?,
        counted: from.u32()?,
    })
}

fn encode_used(out: Writer, used_for: UsedFor) -> Writer {
    match used_for {
        UsedFor::Nothing => out.u8(0),
        UsedFor::Checkpoint {
            shard,
            number,
            order,
        } => out.u8(1).u16(shard).u64(number).u32(order),
        UsedFor::Log { shard, order, end } => {
            let out = out.u8(2).u16(shard).u64(order);
            let Some(end) = end else { return out.u8(0) };
            let counted = if end.loose_bytes.is_some() {
                COUNTED
            } else {
                0
            };
            let out = out.u8(1 + u8::from(end.directory.is_some()) + counted);
            let out = out.u64(end.bytes).u64(end.lsn).u32(end.crc);
            let out = out.u32(end.sectors);
            let out = match end.loose_bytes {
                Some(loose) => out.u32(loose),
                None => out,
            };
            match end.directory {
                Some(directory) => out.u32(directory.bytes).u32(directory.crc),
                None => out,
            }
        }
    }
}

fn decode_used(from: &mut Reader<'_>) -> Option<UsedFor> {
    Some(match from.u8()? {
        0 => UsedFor::Nothing,
        1 => UsedFor::Checkpoint {
            shard: from.u16()?,
            number: from.u64()?,
            order: from.u32()?,
        },
        2 => {
            let (shard, order, ended) = (from.u16()?, from.u64()?, from.u8()?);
            let end = match ended {
                0 => None,
                1 | 2 => Some(decode_end(from, false, ended == 2)?),
                _ => {
                    let ended = ended.checked_sub(COUNTED)?;
                    (1..=2).contains(&ended).then_some(())?;
                    Some(decode_end(from, true, ended == 2)?)
                }
            };
            UsedFor::Log { shard, order, end }
        }
        _ => return None,
    })
}

fn decode_end(from: &mut Reader<'_>, is_counted: bool, has_directory: bool) -> Option<LogEnd> {
    let mut end = LogEnd {
        bytes: from.u64()?,
        lsn: from.u64()?,
        crc: from.u32()?,
        sectors: from.u32()?,
        loose_bytes: None,
        directory: None,
    };
    if is_counted {
        end.loose_bytes = Some(from.u32()?);
    }
    if has_directory {
        end.directory = Some(DirectoryAt {
            bytes: from.u32()?,
            crc: from.u32()?,
        });
    }
    Some(end)
}

fn encode_row(out: Writer, row: &RollBack) -> Writer {
    let out = out.version(row.id).u16(row.namespace);
    let out = match row.target {
        Target::Moment(moment) => out.u8(0).version(moment),
        Target::Back(back) => out.u8(1).u64(u64::from(back)),
    };
    let mut out = match row.unless_written_since {
        None => out.u8(0),
        Some(since) => out.u8(1).version(since),
    };
    out.0.extend_from_slice(&row.prefix);
    out
}

fn decode_row(from: &mut Reader<'_>) -> Option<RollBack> {
    let (id, namespace) = (version(from)?, from.u16()?);
    let target = match (from.u8()?, from.u64()?) {
        (0, moment) => Target::Moment(Version::new(moment)),
        (1, back) => Target::Back(u32::try_from(back).ok()?),
        _ => return None,
    };
    let unless_written_since = match from.u8()? {
        0 => None,
        1 => Some(version(from)?),
        _ => return None,
    };
    let prefix = from.rest().to_vec();
    (prefix.len() <= KEY_BYTES_MAX).then_some(RollBack {
        id,
        namespace,
        prefix,
        target,
        unless_written_since,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions() -> impl Strategy<Value = Version> {
        any::<u64>().prop_map(Version::new)
    }

    prop_compose! {
        fn ends()(
            bytes: u64, lsn: u64, crc: u32, sectors: u32, loose_bytes: Option<u32>,
            directory: Option<(u32, u32)>,
        ) -> LogEnd {
            let directory = directory.map(|(bytes, crc)| DirectoryAt { bytes, crc });
            LogEnd { bytes, lsn, crc, sectors, loose_bytes, directory }
        }
    }

    pub(crate) fn used() -> impl Strategy<Value = UsedFor> {
        prop_oneof![
            Just(UsedFor::Nothing),
            (any::<u16>(), any::<u64>(), any::<u32>()).prop_map(|(shard, number, order)| {
                UsedFor::Checkpoint {
                    shard,
                    number,
                    order,
                }
            }),
            (any::<u16>(), any::<u64>(), prop::option::of(ends()))
                .prop_map(|(shard, order, end)| UsedFor::Log { shard, order, end }),
        ]
    }

    prop_compose! {
        pub(crate) fn rows()(
            id in versions(), namespace: u16, prefix in prop::collection::vec(any::<u8>(), 0..30),
            moment in versions(), back: Option<u32>, unless_written_since in prop::option::of(versions()),
        ) -> RollBack {
            let target = back.map_or(Target::Moment(moment), Target::Back);
            RollBack { id, namespace, prefix, target, unless_written_since }
        }
    }

    prop_compose! {
        pub(crate) fn checkpoints()(
            number: u64, order: u64, lsn: u64, crc_before: u32, incarnation: u32, keys: u64, chunks: u32,
            rows_up_to in versions(),
        ) -> Checkpoint {
            Checkpoint { number, order, lsn, crc_before, incarnation, keys, chunks, rows_up_to }
        }
    }

    fn settings() -> impl Strategy<Value = Settings> {
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
            |(min_age_us, keep_deleted_us, min_count, counted)| Settings {
                min_age_us,
                keep_deleted_us,
                min_count,
                counted,
            },
        )
    }

    fn entries() -> impl Strategy<Value = Entry> {
        prop_oneof![
            (versions(), any::<u64>(), any::<u64>()).prop_map(|(ceiling, wall_us, run_us)| {
                Entry::Time {
                    ceiling,
                    wall_us,
                    run_us,
                }
            }),
            (any::<u64>(), versions())
                .prop_map(|(run_us, version)| Entry::Sample(Sample { run_us, version })),
            (any::<u32>(), any::<u32>(), used()).prop_map(|(number, uses, used_for)| {
                Entry::Segment(number, SegmentState { uses, used_for })
            }),
            rows().prop_map(Entry::RollBack),
            versions().prop_map(Entry::RowsForgotten),
            (versions(), versions()).prop_map(|(floor, deleted)| Entry::Floors(floor, deleted)),
            settings().prop_map(Entry::Settings),
            (settings(), any::<u64>())
                .prop_map(|(to, at_us)| Entry::Shortening(Shortening { to, at_us })),
            any::<u64>().prop_map(Entry::Locked),
            (versions(), any::<u32>()).prop_map(|(moment, count)| Entry::Snapshot(moment, count)),
            (versions(), any::<u32>(), any::<u64>(), any::<u32>()).prop_map(
                |(moment, count, at_us, ending)| Entry::Ending {
                    moment,
                    count,
                    at_us,
                    ending,
                }
            ),
            (any::<u16>(), checkpoints()).prop_map(|(shard, it)| Entry::Checkpoint(shard, it)),
            (versions(), any::<u64>()).prop_map(|(version, owing)| Entry::Commit(version, owing)),
            (any::<u16>(), any::<u64>())
                .prop_map(|(shard, it)| Entry::CheckpointDropped(shard, it)),
            any::<u64>().prop_map(Entry::Hosts),
            (any::<u16>(), any::<u64>()).prop_map(|(shard, lsn)| Entry::Durable(shard, lsn)),
            any::<u64>().prop_map(|number| Entry::LastCommit(Version::new(number))),
        ]
    }

    proptest! {
        #[test]
        fn an_entry_says_what_was_said(entry in entries()) {
            prop_assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        }

        #[test]
        fn an_entry_cut_off_or_drawn_out_is_none(entry in entries(), at: prop::sample::Index) {
            let bytes = entry.encode();
            let is_row = matches!(entry, Entry::RollBack(_));
            // Of a row the prefix alone may end anywhere: the record around it says how long it is.
            let least = if is_row { 13 } else { bytes.len() };
            prop_assert_eq!(Entry::decode(&bytes[..at.index(least)]), None);
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(is_row || Entry::decode(&longer).is_none());
        }

        #[test]
        fn arbitrary_bytes_are_none_or_that_entry(mut bytes in prop::collection::vec(any::<u8>(), 0..80), tag in 0u8..16) {
            if let Some(first) = bytes.first_mut() {
                *first = tag;
            }
            if let Some(entry) = Entry::decode(&bytes) {
                prop_assert_eq!(entry.encode(), bytes);
            }
        }
    }
}
