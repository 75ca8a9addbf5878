// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes of a store that are under way, by io_uring.
//!
//! Invariants:
//! 1. A buffer belongs to the kernel from its submission to its completion: it stays in `under_way` for so long.
//!    Nobody drops it before, also not when the node ends.
//! 2. A write has ended well only if all its bytes are durable: RWF_DSYNC, and nothing was left over.
//! 3. At most [`DEPTH`] are under way, so completions always have room.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use io_uring::{IoUring, opcode, types};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::buffer::Aligned;

/// Reads and writes under way at once.
const DEPTH: u32 = 256;

/// A read or write that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IoId(u64);

/// How one has ended.
#[derive(Debug)]
pub(crate) enum IoEnded {
    /// A read; none: it failed.
    Read(Option<Aligned>),
    /// A write, and whether it is durable.
    Write(bool),
}

struct UnderWay {
    buffer: Aligned,
    is_write: bool,
}

/// A read that waits for its turn: number, address, bytes.
type Waiting = (u64, u64, usize);

/// The reads and writes.
pub(crate) struct Disk {
    ring: IoUring,
    event: EventFd,
    file: RawFd,
    under_way: BTreeMap<u64, UnderWay>,
    waiting: VecDeque<Waiting>,
    next: u64,
}

impl Disk {
    /// Of a file, which outlives it.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        ring.submitter()
            .register_eventfd(event.as_fd().as_raw_fd())?;
        Ok(Self {
            ring,
            event,
            file: file.as_raw_fd(),
            under_way: BTreeMap::new(),
            waiting: VecDeque::new(),
            next: 0,
        })
    }

    /// Rings when something has ended: to be heard by edges, since nobody reads it.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Whether a write may be given now.
    pub(crate) fn takes_write(&self) -> bool {
        self.under_way.len() < DEPTH as usize
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Writes durably. [`Disk::takes_write`] has said that there is room.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> IoId {
        let number = self.number();
        self.begin(number, address, Aligned::of(bytes), true);
        IoId(number)
    }

    /// Reads, when there is room.
    pub(crate) fn read(&mut self, address: u64, bytes: usize) -> IoId {
        let number = self.number();
        self.waiting.push_back((number, address, bytes));
        IoId(number)
    }

    fn begin(&mut self, number: u64, address: u64, mut buffer: Aligned, is_write: bool) {
        let file = types::Fd(self.file);
        let length = u32::try_from(buffer.slice().len()).expect("2 MiB at most");
        let pointer = buffer.slice_mut().as_mut_ptr();
        let entry = if is_write {
            let write = opcode::Write::new(file, pointer, length).offset(address);
            write.rw_flags(libc::RWF_DSYNC).build()
        } else {
            opcode::Read::new(file, pointer, length)
                .offset(address)
                .build()
        };
        self.under_way.insert(number, UnderWay { buffer, is_write });
        // SAFETY: `pointer` names `length` bytes of the buffer that `under_way` holds until the completion
        // (invariant 1), and nobody looks at them meanwhile. The descriptor belongs to a file that outlives the ring.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number)) };
        pushed.expect("as many entries as may be under way");
    }

    /// Tells the kernel of what was asked for.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        while self.takes_write() {
            let Some((number, address, bytes)) = self.waiting.pop_front() else {
                break;
            };
            self.begin(number, address, Aligned::zeroed(bytes), false);
        }
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Completions have to be taken first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next that has ended.
    pub(crate) fn ended(&mut self) -> Option<(IoId, IoEnded)> {
        let entry = self.ring.completion().next()?;
        let under_way = self.under_way.remove(&entry.user_data())?;
        let is_whole = usize::try_from(entry.result()) == Ok(under_way.buffer.slice().len());
        let ended = if under_way.is_write {
            IoEnded::Write(is_whole)
        } else {
            IoEnded::Read(is_whole.then_some(under_way.buffer))
        };
        Some((IoId(entry.user_data()), ended))
    }

    /// Sleeps until something has ended.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        self.submit()?;
        if self.under_way.is_empty() {
            return Ok(());
        }
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.waiting.clear();
        while !self.under_way.is_empty() {
            if self.wait().is_err() {
                // The kernel may still use them: they are never freed.
                std::mem::forget(std::mem::take(&mut self.under_way));
                return;
            }
            while self.ended().is_some() {}
        }
    }
}
