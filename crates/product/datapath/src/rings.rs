// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rings that the data path writes and the daemon reads.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use erb_abi::{HeldPacket, Wanted};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::{Error, Result};

/// The ring of misses, or that of sampled keys; drained without wake-ups.
pub struct MissRing {
    ring: RingBuffer<'static>,
    keys: Rc<RefCell<Vec<Wanted>>>,
}

/// Keys taken per drain: bounds the time between two looks at the feed.
const MISSES_PER_DRAIN: usize = 4096;

impl MissRing {
    pub(crate) fn new(map: &MapHandle, name: &'static str) -> Result<Self> {
        let keys = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&keys);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |record| {
                sink.borrow_mut().extend(Wanted::of_miss(record));
                0
            })
            .map_err(|error| Error::map(name, error))?;
        let ring = builder.build().map_err(|error| Error::map(name, error))?;
        Ok(Self { ring, keys })
    }

    /// Takes what is in the ring, oldest first, at most a few thousand keys.
    pub fn drain(&mut self) -> Vec<Wanted> {
        self.ring.consume_raw_n(MISSES_PER_DRAIN);
        self.keys.take()
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

/// The ring of copies of packets that wait; readable while there is one.
pub struct HeldRing {
    ring: RingBuffer<'static>,
    packets: Rc<RefCell<Vec<HeldPacket>>>,
}

/// Packets taken per drain, as misses are.
const HELD_PER_DRAIN: usize = 256;

impl HeldRing {
    pub(crate) fn new(map: &MapHandle) -> Result<Self> {
        let packets = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&packets);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |record| {
                sink.borrow_mut().extend(HeldPacket::of_record(record));
                0
            })
            .map_err(|error| Error::map("erb_held", error))?;
        let ring = builder
            .build()
            .map_err(|error| Error::map("erb_held", error))?;
        Ok(Self { ring, packets })
    }

    /// Takes what is in the ring, oldest first, at most a few hundred packets.
    pub fn drain(&mut self) -> Vec<HeldPacket> {
        self.ring.consume_raw_n(HELD_PER_DRAIN);
        self.packets.take()
    }
}

impl AsFd for HeldRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}
