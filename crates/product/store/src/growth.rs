// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Space is added to a store. Segments keep their numbers and places; there are more of them.
//!
//! If nobody has it open the driver makes the file larger, then does what [`io`](Growth::io) says, one after the other,
//! each durable before the next, and tells [`done`](Growth::done). If it is open, it makes the space durable first, and
//! then [gives](crate::control::Control::grow) the control log the [`larger`] layout, which writes the superblock itself.
//!
//! Invariants:
//! 1. What is added is there, durably, before a superblock names it. So wherever a growth is cut off the store is as it
//!    was, or as it shall be, and the growth may be repeated.
//! 2. Of the superblock its size and its generation change alone: incarnation, control area and what it holds stay. So
//!    recovery finds what it would have found.
//! 3. One copy of the superblock is written at a time, those that lag behind first.
//! 4. A control area still holds the largest state twice: [`Growth::within`].

use std::ops::Range;

use crate::layout::{ALIGN_BYTES, Layout, NoLayout, SUPERBLOCKS};
use crate::superblock::{NoSuperblock, Superblock};

/// Zeros that are written at once, at most.
const ZEROS_BYTES: u64 = 1 << 20;

/// What the driver shall do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrowthIo {
    /// Write so many zeros, unless writes there change no metadata of a file system.
    Zeros {
        /// Byte of the store.
        address: u64,
        /// Multiples of 4,096.
        bytes: u64,
    },
    /// Make all that was written durable.
    Flush,
    /// Write a copy of the superblock, durably.
    Superblock {
        /// Byte of the store.
        address: u64,
        /// A multiple of 4,096.
        bytes: Vec<u8>,
    },
}

/// Why a store cannot grow so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrowth {
    /// It is no store.
    #[error(transparent)]
    Superblock(#[from] NoSuperblock),
    /// It cannot be laid out so.
    #[error(transparent)]
    Layout(#[from] NoLayout),
    /// It would have no segment more.
    #[error(
        "it has {has} bytes, and with {wants} no segment more: it becomes larger by segments of {segment_bytes} bytes, \
         and never smaller"
    )]
    NotLarger {
        /// Bytes that it has.
        has: u64,
        /// Bytes that it should have.
        wants: u64,
        /// Of a segment.
        segment_bytes: u64,
    },
    /// The control log cannot describe so many segments.
    #[error("it can have {most} bytes at most: its control log has no room for more segments")]
    TooMany {
        /// Bytes that it may have.
        most: u64,
    },
}

/// A growth under way.
#[derive(Debug)]
pub struct Growth {
    block: Superblock,
    order: [usize; SUPERBLOCKS],
    zeros: Range<u64>,
    is_flushed: bool,
    copies: usize,
}

impl Growth {
    /// Of a store with these copies of the superblock, none of one that could not be read, to so many bytes.
    ///
    /// # Errors
    /// It cannot be; nothing was done.
    pub fn new(
        copies: &[Option<Vec<u8>>; SUPERBLOCKS],
        store_bytes: u64,
    ) -> Result<Self, NoGrowth> {
        let (found, order) = Superblock::choose(copies)?;
        let layout = longer(&found.layout, store_bytes)?;
        Ok(Self {
            block: Superblock {
                generation: found.generation + 1,
                layout,
                ..found
            },
            order,
            zeros: found.layout.segments_end()..layout.segments_end(),
            is_flushed: false,
            copies: 0,
        })
    }

    /// The same, if the control log can describe it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn within(
        copies: &[Option<Vec<u8>>; SUPERBLOCKS],
        store_bytes: u64,
    ) -> Result<Self, NoGrowth> {
        let growth = Self::new(copies, store_bytes)?;
        fits(growth.block.layout).map(|_| growth)
    }

    /// What lies where when it is done.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.block.layout
    }

    /// Bytes that are still to be zeroed.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.zeros.end - self.zeros.start
    }

    /// What to do next; none: the store has grown.
    #[must_use]
    pub fn io(&self) -> Option<GrowthIo> {
        if self.left_bytes() > 0 {
            return Some(GrowthIo::Zeros {
                address: self.zeros.start,
                bytes: self.left_bytes().min(ZEROS_BYTES),
            });
        }
        if !self.is_flushed {
            return Some(GrowthIo::Flush);
        }
        let copy = *self.order.get(self.copies)?;
        Some(GrowthIo::Superblock {
            address: Layout::superblock_at(copy),
            bytes: self.block.encode(copy),
        })
    }

    /// That is done.
    pub fn done(&mut self) {
        match self.io() {
            Some(GrowthIo::Zeros { bytes, .. }) => self.zeros.start += bytes,
            Some(GrowthIo::Flush) => self.is_flushed = true,
            Some(GrowthIo::Superblock { .. }) => self.copies += 1,
            None => {}
        }
    }
}

/// What a store with this layout will be with so many bytes, if the control log can describe it.
///
/// # Errors
/// It cannot become so.
pub fn larger(layout: &Layout, store_bytes: u64) -> Result<Layout, NoGrowth> {
    fits(longer(layout, store_bytes)?)
}

fn longer(before: &Layout, store_bytes: u64) -> Result<Layout, NoGrowth> {
    let store_bytes = store_bytes / ALIGN_BYTES * ALIGN_BYTES;
    let layout = Layout {
        store_bytes,
        ..*before
    };
    if store_bytes <= before.store_bytes || layout.segments() <= before.segments() {
        return Err(NoGrowth::NotLarger {
            has: before.store_bytes,
            wants: store_bytes,
            segment_bytes: layout.segment_bytes,
        });
    }
    layout.check()?;
    Ok(layout)
}

fn fits(layout: Layout) -> Result<Layout, NoGrowth> {
    let most = layout.store_bytes_max();
    if layout.store_bytes > most {
        return Err(NoGrowth::TooMany { most });
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retention::Settings;
    use crate::state::State;

    const GIB: u64 = 1 << 30;

    fn copies(block: &Superblock) -> [Option<Vec<u8>>; SUPERBLOCKS] {
        std::array::from_fn(|copy| Some(block.encode(copy)))
    }

    fn block() -> Superblock {
        Superblock {
            generation: 5,
            ..Superblock::format(Layout::new(4 * GIB, 2).unwrap(), 7, [1, 2])
        }
    }

    #[test]
    fn space_is_durable_before_a_superblock_names_it_and_nothing_else_changes() {
        let old = block();
        let mut growth = Growth::within(&copies(&old), 5 * GIB + 77).unwrap();
        let (mut at, mut is_flushed) = (old.layout.segments_end(), false);
        let mut written = copies(&old);
        while let Some(io) = growth.io() {
            match io {
                GrowthIo::Zeros { address, bytes } => {
                    assert_eq!(address, at);
                    assert!(!is_flushed && bytes <= ZEROS_BYTES);
                    at += bytes;
                }
                GrowthIo::Flush => is_flushed = true,
                GrowthIo::Superblock { address, bytes } => {
                    assert!(is_flushed);
                    let copy = (0..SUPERBLOCKS).find(|it| Layout::superblock_at(*it) == address);
                    written[copy.unwrap()] = Some(bytes);
                    // One copy is enough.
                    let (found, _) = Superblock::choose(&written).unwrap();
                    assert_eq!(found.layout, growth.layout());
                }
            }
            growth.done();
        }
        let (new, _) = Superblock::choose(&written).unwrap();
        let layout = new.layout;
        let wanted = Superblock {
            generation: 6,
            layout,
            ..old
        };
        assert_eq!(new, wanted);
        assert_eq!(layout.segment_at(0), old.layout.segment_at(0));
        assert_eq!(at, layout.segments_end());
        let states = [old, new].map(|it| State::new(&it.layout, Settings::NEW).segments.len());
        assert_eq!(states[0] + 16, states[1]);
    }

    #[test]
    fn what_cannot_grow_is_refused() {
        let copies = copies(&block());
        let refused = |bytes| Growth::within(&copies, bytes).map(|_| ()).unwrap_err();
        for bytes in [0, GIB, 4 * GIB, 4 * GIB + (1 << 20)] {
            let is_no_larger = matches!(refused(bytes), NoGrowth::NotLarger { .. });
            assert!(is_no_larger, "{bytes}");
        }
        let NoGrowth::TooMany { most } = refused(1 << 49) else {
            panic!("that is too large");
        };
        // A tebibyte more than it was made for.
        assert!(most > 1 << 40, "{most}");
        assert!(Growth::within(&copies, most).is_ok());
        assert_eq!(refused(most + (64 << 20)), NoGrowth::TooMany { most });
        let none = std::array::from_fn(|_| None);
        let refused = Growth::new(&none, GIB).map(|_| ()).unwrap_err();
        assert_eq!(refused, NoGrowth::Superblock(NoSuperblock::Absent));
    }
}
