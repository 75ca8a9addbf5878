// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What waits to be sent on a connection, and how much of it goes into a call.
//!
//! Invariants:
//! 1. Items leave in the order in which they came; an item leaves with its last byte.
//! 2. `pieces` describe the head of the queue from [`Queue::gather`] or [`Queue::gather_small`] until it moves;
//!    `files` from the former.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::mapped::MappedFile;
use crate::sys::{PIECES_MAX, Piece};

/// Several ranges are gathered in a call until it has so many bytes: beyond it a call costs little per byte.
const BATCH_BYTES: usize = 64 << 10;
/// The most of one range that a call gets. The kernel completes a call as a whole, so more would stay pinned
/// for longer.
const SEND_BYTES_MAX: usize = 256 << 10;
/// The same of `sendfile`, which pins nothing. Behind each call TCP sends what it has, in a packet that is not full.
pub const SENDFILE_BYTES_MAX: usize = 1 << 20;
/// Ranges that may wait in the queue of one connection.
pub const QUEUE_MAX: usize = 4096;
/// What the kernel pins and counts.
const PAGE_BYTES: u64 = 4096;

/// Mostly one file, for which nothing is allocated.
pub type Files = SmallVec<[Arc<MappedFile>; 1]>;

/// What waits to be sent.
#[derive(Debug)]
pub enum Item {
    Bytes { bytes: Vec<u8>, at: usize },
    Range { at: u64, end: u64, ticket: Open },
}

/// A ticket that is not done.
#[derive(Debug)]
pub struct Open {
    pub number: u64,
    pub file: Arc<MappedFile>,
    /// The last zero-copy send that has bytes of it.
    pub send: Option<u64>,
    /// Where its last byte sent by `sendfile` ends, counted from the connection's begin.
    pub place: Option<u64>,
}

/// Sums of a batch that was gathered from the queue.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub bytes: usize,
    pub pinned_bytes: u64,
    /// Something follows in the queue, of the same range or behind it.
    pub more: bool,
}

/// The queue, and the last batch that was gathered from it.
#[derive(Debug, Default)]
pub struct Queue {
    items: VecDeque<Item>,
    /// Memory of the batch.
    pub pieces: Vec<Piece>,
    /// The files of the batch, each run of a file once.
    pub files: Files,
}

// SAFETY: the addresses in `pieces` are used within the call that has gathered them.
unsafe impl Send for Queue {}

impl Queue {
    pub fn push(&mut self, item: Item) {
        self.items.push_back(item);
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    /// Where in its file the first range begins.
    pub fn first_offset(&self) -> u64 {
        let offset = |item: &Item| match item {
            Item::Bytes { .. } => None,
            Item::Range { at, ticket, .. } => Some(ticket.file.file_offset(*at)),
        };
        self.items.iter().find_map(offset).unwrap_or(0)
    }

    /// Gives up what waits; returns its tickets.
    pub fn clear(&mut self) -> impl Iterator<Item = Open> {
        std::mem::take(&mut self.items)
            .into_iter()
            .filter_map(Item::ticket)
    }

    /// Moves the first item by at most so many bytes and lets `mark` see its ticket. Returns by how many, and
    /// the ticket of an item that has left.
    pub fn move_front(
        &mut self,
        left: u64,
        mark: impl FnOnce(&mut Open, u64),
    ) -> (u64, Option<Open>) {
        let (moved, whole) = match self.items.front_mut() {
            Some(Item::Bytes { bytes, at }) => {
                let moved = (bytes.len() - *at).min(usize::try_from(left).unwrap_or(usize::MAX));
                *at += moved;
                (moved as u64, *at == bytes.len())
            }
            Some(Item::Range { at, end, ticket }) => {
                let moved = (*end - *at).min(left);
                *at += moved;
                mark(ticket, moved);
                (moved, *at == *end)
            }
            None => unreachable!("the kernel took no more than it was given"),
        };
        let left = whole.then(|| self.items.pop_front()).flatten();
        (moved, left.and_then(Item::ticket))
    }

    /// Collects the ranges at the queue's head, neighbours as one piece, and their files.
    /// None: the first one's file cannot be mapped.
    pub fn gather(&mut self) -> Option<Batch> {
        self.pieces.clear();
        self.files.clear();
        let (mut bytes, mut pinned_bytes, mut items, mut is_cut) = (0, 0, 0, false);
        let mut last: Option<(*const MappedFile, u64)> = None;
        for item in &self.items {
            let Item::Range { at, end, ticket } = item else {
                break;
            };
            let full = self.pieces.len() == PIECES_MAX || bytes >= BATCH_BYTES;
            if full || items > 0 && ticket.file.is_dax() != self.files[0].is_dax() {
                break;
            }
            let length =
                usize::try_from(*end - *at).map_or(SEND_BYTES_MAX, |it| it.min(SEND_BYTES_MAX));
            let length = if items == 0 {
                length
            } else {
                length.min(BATCH_BYTES)
            };
            let Some(piece) = ticket.file.piece(*at, length) else {
                break;
            };
            let file = Arc::as_ptr(&ticket.file);
            match self.pieces.last_mut() {
                Some(before) if last == Some((file, *at)) => before.length_bytes += length,
                _ => self.pieces.push(piece),
            }
            if last.is_none_or(|(before, _)| before != file) {
                self.files.push(Arc::clone(&ticket.file));
            }
            pinned_bytes += pages(&piece) * PAGE_BYTES;
            bytes += length;
            items += 1;
            last = Some((file, *at + length as u64));
            if *at + (length as u64) < *end {
                is_cut = true;
                break;
            }
        }
        let more = is_cut || items < self.items.len();
        (items > 0).then_some(Batch {
            bytes,
            pinned_bytes,
            more,
        })
    }

    /// Collects what is copied into one call, from the queue's head on: bytes, and ranges between them that are
    /// together no longer than `range_bytes_max`. None: the head is a range that is sent otherwise.
    pub fn gather_small(&mut self, range_bytes_max: usize) -> Option<Batch> {
        self.pieces.clear();
        self.files.clear();
        let (mut bytes, mut items) = (0, 0);
        while items < self.items.len() && self.pieces.len() < PIECES_MAX && bytes < BATCH_BYTES {
            if let Item::Bytes { bytes: own, at } = &self.items[items] {
                self.pieces.push(Piece::of(&own[*at..]));
                bytes += own.len() - at;
                items += 1;
                continue;
            }
            let run = self.run_of_ranges(items, range_bytes_max.min(BATCH_BYTES));
            if run == 0 || self.pieces.len() + run > PIECES_MAX {
                break;
            }
            for item in self.items.range(items..items + run) {
                let Item::Range { at, end, ticket } = item else {
                    break;
                };
                let length = (*end - *at) as usize;
                self.pieces.extend(ticket.file.piece(*at, length));
                bytes += length;
            }
            items += run;
        }
        let more = items < self.items.len();
        (items > 0).then_some(Batch {
            bytes,
            pinned_bytes: 0,
            more,
        })
    }

    /// How many ranges follow each other from this item on, if all of them together are short and their files
    /// are worth mapping and mapped; else 0.
    fn run_of_ranges(&self, from: usize, bytes_max: usize) -> usize {
        let (mut bytes, mut count) = (0_u64, 0);
        for item in self.items.range(from..) {
            let Item::Range { at, end, ticket } = item else {
                break;
            };
            bytes += *end - *at;
            count += 1;
            let is_long = bytes > bytes_max as u64 || count > PIECES_MAX;
            if is_long || !ticket.file.is_worth_mapping() || !ticket.file.is_mapped() {
                return 0;
            }
        }
        count
    }

    /// Fills page tables for what is sent zero-copy.
    pub fn populate(&self, mut bytes: usize) {
        for item in &self.items {
            let Item::Range { at, end, ticket } = item else {
                return;
            };
            let length = usize::try_from(*end - *at).map_or(bytes, |it| it.min(bytes));
            ticket.file.populate(*at, length);
            bytes -= length;
            if bytes == 0 {
                return;
            }
        }
    }

    /// Memory that so many of the gathered bytes pin.
    pub fn pinned_of(&self, mut bytes: usize) -> u64 {
        let mut sum = 0;
        for piece in &self.pieces {
            let length_bytes = piece.length_bytes.min(bytes);
            sum += pages(&Piece {
                length_bytes,
                ..*piece
            });
            bytes -= length_bytes;
            if bytes == 0 {
                break;
            }
        }
        sum * PAGE_BYTES
    }
}

impl Item {
    fn ticket(self) -> Option<Open> {
        match self {
            Self::Bytes { .. } => None,
            Self::Range { ticket, .. } => Some(ticket),
        }
    }
}

/// Pages that a piece touches.
fn pages(piece: &Piece) -> u64 {
    let begin = piece.address as u64;
    (begin + piece.length_bytes as u64).div_ceil(PAGE_BYTES) - begin / PAGE_BYTES
}
