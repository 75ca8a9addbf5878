// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all connections of a process share: bounds, counters, and the connections that were dropped while
//! the kernel still read from their files.
//!
//! Invariants:
//! 1. `pinned_bytes` is the sum over all open sends, in whole pages, and never above the bound (L5).
//! 2. A connection that ends with open sends is kept here, aborted, until its completions have come (L4). If
//!    the sender ends first its mappings stay for the rest of the process: unmapping could free the pages.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::calibrate;
use crate::choice::Reason;
use crate::connection::Connection;
use crate::error::Error;
use crate::flight::Flight;
use crate::guard::Guard;
use crate::ring::{Ring, RingSocket};
use crate::socket::{AnySocket, Socket};
use crate::sys;

/// Below this a connection cannot keep a batch in flight.
const PINNED_BYTES_MIN: u64 = 64 << 10;

/// How files that are not on DAX are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// By `sendfile`: no copy and nothing pinned. To a peer on this machine (`lo`, or an address of its own)
    /// bytes are copied from the mapping instead.
    Sendfile,
    /// As if they were on DAX. From 16 KB on it takes less processor time than `sendfile`, and the sender
    /// learns when bytes are free; it pins memory.
    ZeroCopy,
}

/// Bounds and habits of a [`Sender`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that may be pinned for all connections together. A limit of the process that is lower counts.
    pub pinned_bytes_max: u64,
    /// Bytes that may be pinned for one connection.
    pub connection_pinned_bytes_max: u64,
    /// A send that the peer has not acknowledged after this time aborts its connection (L3). It must be shorter
    /// than `/proc/sys/fs/lease-break-time` where leases are used.
    pub deadline: Duration,
    /// Batches up to so many bytes are copied: a zero-copy send costs more. None: measured once for the process,
    /// in some milliseconds; between 2 and 8 KiB.
    pub copy_bytes_max: Option<usize>,
    /// How files that are not on DAX are sent.
    pub page_cache: PageCache,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pinned_bytes_max: 64 << 20,
            connection_pinned_bytes_max: 4 << 20,
            deadline: Duration::from_secs(20),
            copy_bytes_max: None,
            page_cache: PageCache::Sendfile,
        }
    }
}

/// How bytes were sent since the [`Sender`] was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By `MSG_ZEROCOPY`, and the kernel has said that it did not copy them.
    pub zero_copy_bytes: u64,
    /// By `MSG_ZEROCOPY`, and the kernel has copied them after all.
    pub kernel_copied_bytes: u64,
    /// By `sendfile` from the page cache.
    pub sendfile_bytes: u64,
    /// Copied by us, by [`Reason`] in the order of [`Reason::ALL`].
    pub copied_bytes: [u64; Reason::ALL.len()],
    /// Pinned at this moment, in whole pages.
    pub pinned_bytes: u64,
    /// The most that was ever pinned.
    pub pinned_bytes_peak: u64,
    /// Connections that were aborted because a send was not acknowledged in time.
    pub overdue: u64,
    /// Connections that are gone but for completions that have not come.
    pub leftovers: u64,
}

/// The counters themselves.
#[derive(Debug, Default)]
pub struct Counters {
    pub zero_copy_bytes: AtomicU64,
    pub kernel_copied_bytes: AtomicU64,
    pub sendfile_bytes: AtomicU64,
    pub copied_bytes: [AtomicU64; Reason::ALL.len()],
    pub pinned_bytes: AtomicU64,
    pub pinned_bytes_peak: AtomicU64,
    pub overdue: AtomicU64,
}

/// Makes connections, bounds what they pin, counts what they send. One for each process, shared by its threads.
#[derive(Debug)]
pub struct Sender {
    options: Options,
    /// The bound in force.
    pinned_bytes_max: u64,
    copy_bytes_max: usize,
    memlock_bytes: Option<u64>,
    counters: Counters,
    leftovers: Mutex<Vec<Flight<AnySocket>>>,
    guard: Option<Arc<Guard>>,
}

impl Sender {
    /// Without a guard. Reads the limits of the process as they are now.
    #[must_use]
    pub fn new(options: Options) -> Arc<Self> {
        Self::make(options, None)
    }

    /// With a guard, which holds what is sent zero-copy should this process be killed. What it does not hold is
    /// copied.
    #[must_use]
    pub fn guarded(options: Options, guard: Arc<Guard>) -> Arc<Self> {
        Self::make(options, Some(guard))
    }

    fn make(options: Options, guard: Option<Arc<Guard>>) -> Arc<Self> {
        let memlock_bytes = sys::memlock_bytes();
        // The kernel counts up to two pages more for each send, so half of the limit is what can be had.
        let limit = memlock_bytes.map_or(u64::MAX, |limit| limit / 2);
        Arc::new(Self {
            pinned_bytes_max: options.pinned_bytes_max.min(limit),
            copy_bytes_max: options
                .copy_bytes_max
                .unwrap_or_else(calibrate::copy_bytes_max),
            memlock_bytes,
            options,
            counters: Counters::default(),
            leftovers: Mutex::default(),
            guard,
        })
    }

    /// A connection that sends by this sender. The socket must have sent nothing with `MSG_ZEROCOPY` before,
    /// and becomes non-blocking.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking.
    pub fn connection(self: &Arc<Self>, socket: TcpStream) -> std::io::Result<Connection> {
        let socket = AnySocket::Plain(Socket::new(socket));
        Connection::new(Arc::clone(self), socket)
    }

    /// The same; zero-copy sends go by the ring, and their completions come to it. With a guard they go by the
    /// socket all the same: a guard cannot see when what a ring has sent is done.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking.
    pub fn connection_on(
        self: &Arc<Self>,
        ring: &Arc<Ring>,
        socket: TcpStream,
    ) -> std::io::Result<Connection> {
        let socket = RingSocket::new(Socket::new(socket), Arc::clone(ring));
        Connection::new(Arc::clone(self), AnySocket::Ring(socket))
    }

    /// Its options.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Why nothing can be sent zero-copy by this process, with what to do; none: it can.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        if self.guard.as_ref().is_some_and(|guard| guard.has_failed()) {
            let what = "the guard process has ended or does not answer: bytes are copied until this process is \
                        started anew";
            return Some(what.to_owned());
        }
        let limit = self
            .memlock_bytes
            .filter(|limit| limit / 2 < PINNED_BYTES_MIN)?;
        Some(format!(
            "RLIMIT_MEMLOCK is {limit} bytes, too few to keep a send in flight: raise it (LimitMEMLOCK= of \
             the unit, ulimit -l), 16 MiB or more; until then bytes are copied"
        ))
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.counters;
        Counts {
            zero_copy_bytes: counters.zero_copy_bytes.load(Relaxed),
            kernel_copied_bytes: counters.kernel_copied_bytes.load(Relaxed),
            sendfile_bytes: counters.sendfile_bytes.load(Relaxed),
            copied_bytes: counters
                .copied_bytes
                .each_ref()
                .map(|one| one.load(Relaxed)),
            pinned_bytes: counters.pinned_bytes.load(Relaxed),
            pinned_bytes_peak: counters.pinned_bytes_peak.load(Relaxed),
            overdue: counters.overdue.load(Relaxed),
            leftovers: self.leftovers().len() as u64,
        }
    }

    /// Takes completions of connections that are gone. Call it now and then, as each turn of an event loop
    /// that closed something; each new leftover does it too.
    pub fn reap(&self) {
        self.leftovers().retain_mut(|flight| {
            // A socket that tells nothing more tells nothing later either: what it holds stays mapped.
            let _ = flight.reap(&self.counters, |_, _| {});
            !flight.is_empty()
        });
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Ranges that follow each other and are together no longer than so many bytes are copied.
    #[must_use]
    pub const fn copy_bytes_max(&self) -> usize {
        self.copy_bytes_max
    }

    /// Whether the process may pin enough to try.
    pub(crate) const fn may_pin(&self) -> bool {
        self.pinned_bytes_max >= PINNED_BYTES_MIN
    }

    /// Its guard.
    #[must_use]
    pub const fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref()
    }

    /// Takes from the bound, if there is room.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let counter = &self.counters.pinned_bytes;
        let room = |pinned: u64| {
            let after = pinned + bytes;
            (after <= self.pinned_bytes_max).then_some(after)
        };
        let taken = counter.fetch_update(Relaxed, Relaxed, room);
        if let Ok(before) = taken {
            self.counters
                .pinned_bytes_peak
                .fetch_max(before + bytes, Relaxed);
        }
        taken.is_ok()
    }

    pub(crate) fn keep(&self, flight: Flight<AnySocket>) {
        self.leftovers().push(flight);
        self.reap();
    }

    fn leftovers(&self) -> MutexGuard<'_, Vec<Flight<AnySocket>>> {
        // Whoever panicked with the lock held has changed one flight at most, and each is whole by itself.
        self.leftovers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    pub(crate) fn release(&self, bytes: u64) {
        let before = self.pinned_bytes.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "what is released was reserved");
    }

    pub(crate) fn copied(&self, reason: Reason, bytes: u64) {
        self.copied_bytes[reason as usize].fetch_add(bytes, Relaxed);
    }

    /// A send is done.
    pub(crate) fn completed(&self, bytes: u64, pinned_bytes: u64, copied: bool) {
        let counter = if copied {
            &self.kernel_copied_bytes
        } else {
            &self.zero_copy_bytes
        };
        counter.fetch_add(bytes, Relaxed);
        self.release(pinned_bytes);
    }
}

impl Error {
    /// Whether the peer is the cause, and not this machine.
    #[must_use]
    pub fn is_peers(&self) -> bool {
        matches!(self, Self::Overdue { .. } | Self::Socket(_))
    }
}
