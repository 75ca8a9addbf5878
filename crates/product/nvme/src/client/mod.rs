// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: one connection, which is one queue of a controller. Whoever drives it brings bytes, time and random
//! numbers, computes [`Job`]s, and sends what it says.
//!
//! ```text
//! Starting ─ICResp─► Connecting ─► (Proving) ─► (Configuring: admin queue) ─► Up;      any ─► Over
//! ```
//!
//! Invariants:
//! 1. A call ends once: with a reply, or lost with the connection. A lost call may have happened, or may still: before a
//!    write is repeated, a fence ([`calls::fence`]) has to be answered.
//! 2. Nothing a target sends makes it allocate more than the calls' room.
//! 3. Data leaves only where an R2T asks for it, in order, once.
//! 4. Calls are taken only while the connection is up.

pub mod calls;
mod connection;
mod pending;

pub use calls::Call;
pub use connection::{Connection, Settings};

use crate::auth::{Failure, Job};
use crate::pdu::Fatal;
use crate::status::Status;

/// Names a call on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// What it gives back.
    pub result: u64,
    /// Data from the node.
    pub data: Vec<u8>,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// Something wrong came.
    #[error("{0}")]
    Wrong(Fatal),
    /// The node said that something wrong came; its fatal error status.
    #[error("the node ended the connection with fatal error status {0}")]
    Peer(u16),
    /// The node refused a step of the way up.
    #[error("the node refused the connection with status {0:?}")]
    Refused(Status),
    /// The node asks for proof, and there is no secret.
    #[error("the node asks for authentication: give a secret")]
    NoSecret,
    /// The node has not proved that it knows its own secret.
    #[error("the node gives no proof of itself, or a wrong one: it may be another one")]
    NoProof,
    /// Authentication failed.
    #[error("authentication failed: {0}")]
    Authentication(Failure),
    /// A call took too long.
    #[error("the node did not answer in time")]
    Slow,
    /// The connection was closed.
    #[error("the connection was closed")]
    Closed,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Calls are taken now.
    Up,
    /// A call is answered.
    Done(CallId, Reply),
    /// A call is lost: whether it happened is not known.
    Lost(CallId),
    /// To be computed; [`Connection::computed`] takes what comes of it.
    Compute(Job),
    /// The connection is over.
    Ended(Ended),
}

/// A call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The connection is not up.
    #[error("the connection is not up")]
    NotUp,
    /// As many are under way as the queue has.
    #[error("the queue is full: wait for an answer")]
    Full,
    /// More data or room than a command may have.
    #[error("a command moves at most 1 MiB")]
    TooLarge,
}
