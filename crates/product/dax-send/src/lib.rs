// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends ranges of files over TCP without copying them, and says when their bytes are free again.
//!
//! For files on persistent memory (ext4 or xfs, mounted with `dax`) there is no page cache to send from:
//! `sendfile` copies each byte on every stock kernel. This crate sends the mapping itself with
//! `MSG_ZEROCOPY`, and takes care of what that asks for. On other files it uses `sendfile`, which copies nothing.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{fs::File, net::TcpStream, sync::Arc};
//! use dax_send::{MappedFile, Options, Sender};
//!
//! let sender = Sender::new(Options::default());
//! let file = Arc::new(MappedFile::new(File::open("/pmem/log")?)?);
//! let mut connection = sender.connection(TcpStream::connect("192.0.2.1:9000")?)?;
//! connection.queue_bytes(*b"two records:");
//! let ticket = connection.queue(&file, 0..65_536);
//! connection.queue(&file, 131_072..196_608);
//! connection.finish()?; // until the peer has acknowledged all of it
//! assert!(connection.is_done(ticket));
//! # Ok(())
//! # }
//! ```
//!
//! # What the kernel promises
//! - `send()` returns when bytes are queued. TCP reads them from the file's own pages when it sends, and again when
//!   it retransmits. Only the completion on the socket's error queue says that it reads no more
//!   (Documentation/networking/msg_zerocopy.rst). A **ticket** is done when that has come for all its bytes.
//! - Before Linux 6.15 a DAX page may be freed by `truncate` while TCP reads from it, if nobody maps it any more: the
//!   peer then receives *another file's* bytes. From 6.15 on the truncate waits instead (dax: Fix page refcounts
//!   for fs dax). So the mapping stays until the last ticket is done ([`MappedFile`]), on all kernels.
//! - A process that is killed with tickets open cannot keep that. A [`Guard`] does: a second process that holds the
//!   same files and sockets, and lets go in the right order. Without one nothing may free the blocks of a file until
//!   the sockets of the killed process are gone (before 6.15), or whoever does waits for the peer (since).
//! - The kernel copies after all to a local peer, beside a packet socket (tcpdump), and to devices without
//!   scatter-gather or checksum offload. The completion says so, and the connection then copies by itself, which
//!   is cheaper ([`Reason::KernelCopies`]); it asks again after 64 MB.
//!
//! - What `sendfile` sends to a receiver on the same machine stays the file's own pages in the *receiver's* queue,
//!   beyond its acknowledgement, until it reads. So this crate does not use it there. It knows such a peer by its
//!   address; one in another network namespace of the machine looks like any other ([`PageCache::ZeroCopy`] is
//!   right for it: the kernel copies on the way).
//!
//! # With io_uring
//! A process that has many connections may give them a [`Ring`] ([`Sender::connection_on`]). What is sent and what
//! is promised stay the same. Completions then come to the ring: one look tells of all connections, and they come
//! even when the socket is closed. One send at a time costs as much as `MSG_ZEROCOPY`, or somewhat more.
//!
//! # Rules for the owner of a file
//! 1. Never edit, cut or free bytes with a ticket open ([`MappedFile::open_tickets`], [`Connection::is_done`]):
//!    a retransmission sends what the page holds *then*. Append, or rename a new file over the old one.
//! 2. Files that others may write need a [`ReadLease`] while tickets are open, or a comparison of the file's times.
//! 3. A ticket has a deadline ([`Options::deadline`]), after which its connection is aborted: a client that
//!    stops reading would pin memory, and hold up `truncate` and `unlink` of others, for as long as it likes.
//! 4. What `sendfile` sent has a ticket too. It is done when the peer has acknowledged the bytes.
//! 5. A forked child has the same connections. Who drops one there resets it for both: exec, or `_exit`.
//! 6. A socket that is no TCP gets copies. It has no reset: dropped with tickets open it is closed.
//!
//! # Limits of the process
//! `RLIMIT_MEMLOCK` bounds what a user without `CAP_IPC_LOCK` may pin; 8 MiB are usual. [`Sender::lacks`] says if
//! it is too little. `net.core.optmem_max` bounds sends in flight per socket; beyond it, and beyond the bounds in
//! [`Options`], bytes are copied and counted ([`Counts`]). Nothing waits, nothing fails.

mod calibrate;
mod cause;
mod choice;
mod connection;
mod engine;
mod error;
mod flight;
mod guard;
mod guardian;
mod lease;
mod ledger;
mod mapped;
mod queue;
mod ring;
mod sender;
mod socket;
mod sys;

pub use cause::{Cause, has_packet_sockets};
pub use choice::{ASK_AGAIN_BYTES, Reason, TRIAL_SENDS};
pub use connection::{Connection, Ticket};
pub use engine::Progress;
pub use error::Error;
pub use guard::Guard;
pub use guardian::run_guard;
pub use lease::ReadLease;
pub use ledger::{Completion, Ledger, Stray};
pub use mapped::MappedFile;
pub use ring::{Ring, RingId};
pub use sender::{Counts, Options, PageCache, Sender};
