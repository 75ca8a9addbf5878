// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TCP stack as a model: what Linux does on the wire, without a kernel, a clock or I/O.
//!
//! [`Host`] is one stack. The caller owns time (nanoseconds, [`Ns`]), the network and the tasks:
//! it feeds segments with [`Host::input`], runs timers that are due with [`Host::on_timer`], and takes
//! what the stack sends, one at a time, with [`Host::pop_out`]. A segment in that queue has left TCP
//! but not yet the device: the fields that [`Host::view`] and [`Host::lookup`] show are already those
//! of after it, as for a packet that waits between TCP and the egress hook.
//!
//! Everything is deterministic from the seed. Two hosts never share state.
//!
//! # Layout
//!
//! | module | is |
//! | --- | --- |
//! | `config` | knobs with Linux's defaults, and the constants of RFCs and kernel |
//! | `api` | what the caller sees: handles, events, look-ups, counters |
//! | `host`, `demux` | tables of sockets; which of them a segment is for |
//! | `request`, `timewait` | the two kinds of socket that are no full socket, and SYN cookies |
//! | `sock`, `owner` | one connection: state and numbered invariants; what its owner does |
//! | `input`, `ack`, `rx`, `urgent` | acceptance tests and states; acknowledgements; data, windows, SACK blocks; urgent data received |
//! | `tx`, `rtx`, `timers` | what leaves, what is sent again, when |
//!
//! It is not: a congestion-control laboratory (NewReno), TCP Fast Open, MPTCP, or a sender of urgent data.

mod ack;
mod api;
mod config;
mod core;
mod demux;
mod host;
mod input;
mod listen;
mod owner;
mod request;
mod rtx;
mod rx;
mod seq;
mod sock;
mod timers;
mod timewait;
mod tx;
mod urgent;

// What it takes and gives.
pub use erb_wire::{
    Checksum, IcmpError, IcmpKind, Macs, Options, ParseError, SackBlocks, Segment, flags,
};

pub use api::{Counters, Event, EventKind, Look, Outgoing, SockId, State, View};
pub use config::{Config, Keepalive};
pub use host::Host;

/// Virtual time in nanoseconds.
pub type Ns = u64;
