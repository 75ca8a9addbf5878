// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rings that the data path writes and the daemon reads.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use erb_abi::{HeldPacket, Wanted};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::{Error, Result};

/// A ring of records, which are read as they are taken.
pub struct RecordRing<T> {
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<T>>>,
    most: usize,
}

/// The ring of misses, or that of sampled keys; drained without wake-ups.
pub type MissRing = RecordRing<Wanted>;

/// The ring of copies of packets that wait; readable while there is one.
pub type HeldRing = RecordRing<HeldPacket>;

/// Keys taken per drain: bounds the time between two looks at the feed.
const MISSES_PER_DRAIN: usize = 4096;
/// Packets taken per drain, for the same reason.
const HELD_PER_DRAIN: usize = 256;

impl MissRing {
    pub(crate) fn of_keys(map: &MapHandle, name: &'static str) -> Result<Self> {
        Self::new(map, name, MISSES_PER_DRAIN, Wanted::of_miss)
    }
}

impl HeldRing {
    pub(crate) fn of_packets(map: &MapHandle) -> Result<Self> {
        Self::new(map, "erb_held", HELD_PER_DRAIN, HeldPacket::of_record)
    }
}

impl<T: 'static> RecordRing<T> {
    /// `read`: what a record says, if it is whole.
    fn new(
        map: &MapHandle,
        name: &'static str,
        most: usize,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<Self> {
        let records = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&records);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |record| {
                sink.borrow_mut().extend(read(record));
                0
            })
            .map_err(|error| Error::map(name, error))?;
        let ring = builder.build().map_err(|error| Error::map(name, error))?;
        Ok(Self {
            ring,
            records,
            most,
        })
    }

    /// Takes what is in the ring, oldest first, at most some thousand keys or some hundred packets.
    pub fn drain(&mut self) -> Vec<T> {
        self.ring.consume_raw_n(self.most);
        self.records.take()
    }
}

impl<T> AsFd for RecordRing<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

/// The ring that says when the daemon is wanted; readable while it is.
pub struct WakeRing(RingBuffer<'static>);

impl WakeRing {
    pub(crate) fn new(map: &MapHandle) -> Result<Self> {
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, |_| 0)
            .map_err(|error| Error::map("erb_wakes", error))?;
        let ring = builder
            .build()
            .map_err(|error| Error::map("erb_wakes", error))?;
        Ok(Self(ring))
    }

    /// Takes what is there.
    pub fn drain(&self) {
        self.0.consume_raw();
    }
}

impl AsFd for WakeRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.0.epoll_fd()) }
    }
}
