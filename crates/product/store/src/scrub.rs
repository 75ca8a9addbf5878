// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scrub: a shard reads all that its log holds once in 30 days, so that rot in what nobody reads is known while
//! there is still another copy of it somewhere.
//!
//! Invariants:
//! 1. A segment is due when the retention clock, taken modulo the period, passes its number's share of it. So a
//!    restart neither begins anew nor leaves one out.
//! 2. What is not right is read once more before it is told.
//! 3. A segment is not left while a piece of it is being read.
//! 4. What is told of a segment is what its last scrub has found; it goes with the segment. It is bounded.
//! 5. Nothing is changed: a version that is rotten stays what it is, and is refused when it is read.
//! 6. A crash may leave a segment without an end: its directory was on its way, and a checkpoint had gone on behind it.
//!    What lies behind its last batch is nothing, unless versions need more records than were found before it.

use std::collections::BTreeMap;

use crate::batch::BATCH_BYTES_MAX;
use crate::collect::{Piece, ShardRead, batches, walk};
use crate::key::Key;
use crate::mistake::Rules;
use crate::shard::Shard;

/// Each segment is read once within it, microseconds of the retention clock.
pub const PERIOD_US: u64 = 30 * 24 * 3600 * 1_000_000;
/// Most places that are told.
pub const ROTTEN_MAX: usize = 1024;

/// A place that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    /// Byte of the store.
    pub address: u64,
    /// Namespace and key, of a record that some version needs; none: so much is damaged that it is not known what it
    /// was.
    pub key: Option<(u16, Vec<u8>)>,
    /// So many bytes, of which it is not known what they were; 0: it is one record, or not known.
    pub bytes: u64,
}

/// What was scrubbed since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Whole segments.
    pub segments: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Places that were found not to be right, also by the start and by reads, and those that are not told for their number.
    pub rotten: u64,
}

/// A segment that is being read.
#[derive(Debug)]
struct Under {
    number: u32,
    /// Bytes of it that have been looked at.
    at: u64,
    /// So many are being read.
    reading: Option<u64>,
    is_repeated: bool,
    found: Vec<Rot>,
    /// Of a segment without an end: where its last batch ends, and how many records versions need before that.
    tail: Option<Rot>,
    needed: u32,
}

/// What a piece of a segment has.
struct Looked {
    /// So many bytes were looked at.
    bytes: u64,
    found: Vec<Rot>,
    tail: Option<Rot>,
    needed: u32,
}

/// What a shard scrubs.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// Up to there nothing is due any more.
    looked_us: Option<u64>,
    under: Option<Under>,
    scrubbed: Scrubbed,
    /// By segment, of this use of it.
    rotten: BTreeMap<(u32, u32), Vec<Rot>>,
    /// What the start and reads have found. It is told as long as the node runs, if it is needed or nobody knows.
    met: Vec<Rot>,
}

/// A place of which nothing else is known.
fn place(address: u64) -> Rot {
    Rot {
        address,
        key: None,
        bytes: 0,
    }
}

impl Scrub {
    /// Of a shard whose start has found this.
    pub(crate) fn new(met: Vec<Rot>) -> Self {
        let rotten = met.len() as u64;
        let scrubbed = Scrubbed {
            rotten,
            ..Scrubbed::default()
        };
        Self {
            met,
            scrubbed,
            ..Self::default()
        }
    }
}

/// When a segment is due next, after a moment.
fn due_after(number: u32, segments: u32, after_us: u64) -> u64 {
    let share = u128::from(PERIOD_US) * u128::from(number) / u128::from(segments.max(1));
    let share = share as u64;
    let period = after_us / PERIOD_US * PERIOD_US;
    let due = period.saturating_add(share);
    if due > after_us {
        due
    } else {
        due.saturating_add(PERIOD_US)
    }
}

impl<R: Rules + Copy> Shard<R> {
    /// The next read of the scrub, if one is due; `run_us` as [`Control::run_us`](crate::control::Control::run_us)
    /// says. What came of it belongs to [`Shard::scrub_done`].
    pub fn take_scrub(&mut self, run_us: u64) -> Option<ShardRead> {
        if self.log.has_failed() || !self.shared.is_open() || self.is_ending {
            return None;
        }
        self.next_scrub(run_us)
    }

    /// The next read of a scrub of everything, of a store that was opened to be looked at: nobody writes to it.
    pub fn take_scrub_of_all(&mut self) -> Option<ShardRead> {
        self.scrub.looked_us.get_or_insert(0);
        self.next_scrub(PERIOD_US)
    }

    /// Bytes that such a scrub reads.
    #[must_use]
    pub fn scrubbed_bytes(&self) -> u64 {
        let segments = self.collector.segments.values();
        let scrubbed = segments.filter(|it| it.is_scrubbed());
        scrubbed.map(|it| it.limit()).sum()
    }

    fn next_scrub(&mut self, run_us: u64) -> Option<ShardRead> {
        if self.scrub.under.is_none() {
            let number = self.due(run_us)?;
            self.scrub.under = Some(Under {
                number,
                at: 0,
                reading: None,
                is_repeated: false,
                found: Vec::new(),
                tail: None,
                needed: 0,
            });
        }
        let under = self.scrub.under.as_mut()?;
        let segment = self.collector.segments.get_mut(&under.number);
        let Some(segment) = segment else {
            // It was left between two pieces.
            self.scrub.under = None;
            return None;
        };
        if under.reading.is_some() {
            return None;
        }
        let bytes = (segment.limit() - under.at).min(BATCH_BYTES_MAX as u64);
        under.reading = Some(bytes);
        segment.readers += 1;
        Some(ShardRead {
            address: segment.segment.seat.address + under.at,
            bytes: bytes as usize,
        })
    }

    /// The segment that is due first.
    fn due(&mut self, run_us: u64) -> Option<u32> {
        let looked_us = *self.scrub.looked_us.get_or_insert(run_us);
        let all = self.layout.segments();
        let dues = self.collector.segments.iter().filter_map(|(number, it)| {
            let is_worth = it.is_scrubbed() && self.versions.needed(*number).records > 0;
            is_worth.then(|| (due_after(*number, all, looked_us), *number))
        });
        let first = dues.min().filter(|(due_us, _)| *due_us <= run_us);
        self.scrub.looked_us = Some(first.map_or(run_us.max(looked_us), |(due_us, _)| due_us));
        first.map(|(_, number)| number)
    }

    /// What came of that read; none: it failed.
    pub fn scrub_done(&mut self, bytes: Option<&[u8]>) {
        let Some(mut under) = self.scrub.under.take() else {
            return;
        };
        let Some(length) = under.reading.take() else {
            self.scrub.under = Some(under);
            return;
        };
        if let Some(segment) = self.collector.segments.get_mut(&under.number) {
            segment.readers -= 1;
        }
        let looked = match bytes {
            Some(bytes) => self.scrub_piece(&under, bytes),
            None => Looked {
                bytes: length,
                found: vec![self.unknown(&under, 0)],
                tail: under.tail.clone(),
                needed: 0,
            },
        };
        let is_new = !looked.found.is_empty() || looked.tail.is_some() && under.tail.is_none();
        if is_new && !under.is_repeated {
            under.is_repeated = true;
        } else {
            under.is_repeated = false;
            under.at += looked.bytes;
            under.found.extend(looked.found);
            under.tail = looked.tail;
            under.needed += looked.needed;
        }
        self.scrub.under = Some(under);
        self.finish_scrub();
        self.leave_unread();
    }

    /// A place of which nothing can be said but where it is.
    fn unknown(&self, under: &Under, behind: u64) -> Rot {
        let segment = self.collector.segments.get(&under.number);
        let begin = segment.map_or(0, |it| it.segment.seat.address);
        place(begin + under.at + behind)
    }

    fn scrub_piece(&self, under: &Under, bytes: &[u8]) -> Looked {
        let mut looked = Looked {
            bytes: bytes.len() as u64,
            found: Vec::new(),
            tail: under.tail.clone(),
            needed: 0,
        };
        let Some(segment) = self.collector.segments.get(&under.number) else {
            return looked;
        };
        let begin = segment.segment.seat.plus(under.at as usize);
        let has_end = segment.has_end();
        let mut follows_gap = false;
        let looked_at = batches(bytes, begin, self.store_id, self.number, |piece| {
            let is_gap = matches!(piece, Piece::Gap(_));
            match piece {
                // One batch is one place, however long it was.
                Piece::Gap(_) if follows_gap => {}
                Piece::Gap(address) if has_end => looked.found.push(place(address)),
                Piece::Gap(address) => {
                    looked.tail.get_or_insert_with(|| place(address));
                }
                Piece::Batch(seat, content, records) => {
                    looked.found.extend(looked.tail.take());
                    let end = walk(content, seat, records, |address, key, record| {
                        let is_asked = record.is_err() || !has_end;
                        let is_needed = is_asked && self.versions.needs(key, address);
                        looked.needed += u32::from(is_needed);
                        if record.is_err() && is_needed {
                            let key = Some((key.namespace, key.bytes.to_vec()));
                            let bytes = 0;
                            looked.found.push(Rot {
                                address,
                                key,
                                bytes,
                            });
                        }
                    });
                    looked.found.extend(end.err().map(place));
                }
            }
            follows_gap = is_gap;
        });
        looked.bytes = looked_at as u64;
        looked
    }

    fn finish_scrub(&mut self) {
        let collector = &self.collector;
        let is_over = |under: &mut Under| {
            let segment = collector.segments.get(&under.number);
            segment.is_none_or(|it| under.at >= it.limit())
        };
        let Some(mut under) = self.scrub.under.take_if(is_over) else {
            return;
        };
        let all = self.versions.needed(under.number).records;
        under
            .found
            .extend(under.tail.filter(|_| under.needed < all));
        self.scrub.rotten.retain(|(number, of), _| {
            *number != under.number && collector.uses(*number) == Some(*of)
        });
        self.scrub.scrubbed.segments += 1;
        self.scrub.scrubbed.bytes += under.at;
        self.scrub.scrubbed.rotten += under.found.len() as u64;
        let told: usize = self.scrub.rotten.values().map(Vec::len).sum();
        let mut found = under.found;
        found.truncate(ROTTEN_MAX - told.min(ROTTEN_MAX));
        if let Some(of) = collector.uses(under.number).filter(|_| !found.is_empty()) {
            self.scrub.rotten.insert((under.number, of), found);
        }
    }

    /// A read was refused for this record. False: that was known, or there is too much of it.
    pub(crate) fn is_met_by_read(&mut self, address: u64, key: Key<'_>) -> bool {
        let is_known = self.rotten().any(|rot| rot.address == address);
        if is_known || self.scrub.met.len() >= ROTTEN_MAX {
            return false;
        }
        let key = Some((key.namespace, key.bytes.to_vec()));
        let bytes = 0;
        self.scrub.met.push(Rot {
            address,
            key,
            bytes,
        });
        self.scrub.scrubbed.rotten += 1;
        true
    }

    /// What was scrubbed since the start.
    #[must_use]
    pub fn scrubbed(&self) -> Scrubbed {
        self.scrub.scrubbed
    }

    /// What the start has found to be damaged, and reads since then.
    #[must_use]
    pub fn met_by_start(&self) -> &[Rot] {
        &self.scrub.met
    }

    /// Places that are not what was written, as far as somebody needs them or it is not known who does.
    pub fn rotten(&self) -> impl Iterator<Item = &Rot> {
        let is_there = |number: u32, of: u32| {
            self.collector.uses(number) == Some(of) && self.versions.needed(number).records > 0
        };
        let is_needed = |rot: &&Rot| {
            rot.key.as_ref().is_none_or(|(namespace, bytes)| {
                let namespace = *namespace;
                self.versions.needs(Key { namespace, bytes }, rot.address)
            })
        };
        let met = &self.scrub.met;
        let is_new = |rot: &&Rot| !met.iter().any(|it| it.address == rot.address);
        let rotten = self.scrub.rotten.iter();
        rotten
            .filter(move |((number, of), _)| is_there(*number, *of))
            .flat_map(|(_, all)| all)
            .filter(is_new)
            .chain(met)
            .filter(is_needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_segment_is_due_once_in_a_period_at_a_moment_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..1000 {
            let first = due_after(number, 1000, 0);
            assert!(seen.insert(first % PERIOD_US));
            assert_eq!(due_after(number, 1000, first), first + PERIOD_US);
            assert_eq!(due_after(number, 1000, first - 1), first);
            let late = 7 * PERIOD_US + 5;
            let due = due_after(number, 1000, late);
            assert!(due > late && due - late <= PERIOD_US);
        }
        assert_eq!(due_after(3, 4, u64::MAX), u64::MAX);
    }
}
