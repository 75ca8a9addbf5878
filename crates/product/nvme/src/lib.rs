// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NVMe/TCP with keys, values and versions: the storage node's protocol. Both ends are state machines without I/O:
//! bytes and time go in, bytes and events come out. What is served lies behind [`Backend`](backend::Backend).
//!
//! - [`Target`](target::Target) is the node's end: connections, controllers, queues, commands.
//! - [`Connection`](client::Connection) is the client's end of one queue; [`calls`](client::calls) are its commands.
//! - [`auth`] is DH-HMAC-CHAP, [`pdu`] and [`command`] are what goes over the wire, [`layout`] what commands move.
//! - [`limits`] has every bound.
//!
//! What it speaks, what it refuses and where it differs from the standard: docs/internals/nvme.md.
//!
//! Invariants, each held by the files that are named:
//! 1. Nothing is allocated for a peer's bytes before they are counted against a bound: `reader.rs`,
//!    `target/connection.rs`, `target/pool.rs`, `client/pending.rs`.
//! 2. A command is answered once, and its room comes back once: `target/commands.rs`, `target/subsystem.rs`.
//! 3. A change is asked of the store only for a controller that lives, so a fence is final: `target/subsystem.rs`.
//! 4. A host does what its role allows, and nothing before it is known: `target/fabrics.rs`, `target/io.rs`.
//! 5. A call ends once, with an answer or as lost: `client/mod.rs`.

pub mod auth;
pub mod backend;
mod bytes;
pub mod client;
pub mod command;
pub mod layout;
pub mod limits;
pub mod opcode;
mod outbox;
pub mod pdu;
pub mod random;
mod reader;
pub mod status;
pub mod target;
