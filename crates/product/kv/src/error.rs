// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong, in sentences that say what to do.

use std::io;

use erb_nvme::auth::Failure;
use erb_nvme::client::{Ended, NotTaken};
use erb_nvme::status::{Filled, Status};

/// Why a call has no answer, or a refusal for one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be read.
    #[error(
        "{0}: not an address of a store: write nvme://HOST:PORT/NQN#NAMESPACE, of which HOST alone is needed"
    )]
    Url(String),
    /// The node cannot be reached.
    #[error("{address}: no node can be reached there: {source}")]
    Unreachable {
        /// Where.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The connection did not come up.
    #[error("the node does not take the connection: {0}")]
    Refused(Ended),
    /// The node does not let this host in.
    #[error("{0}")]
    NotLetIn(NotLetIn),
    /// The connection ended while an answer was awaited.
    #[error(
        "the connection ended before the answer came, so it is not known whether that was done: list the key's \
         versions before it is repeated"
    )]
    Lost,
    /// A call was not made.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    /// The node refuses.
    #[error("{}", sentence(*status, *result))]
    Status {
        /// How it ended.
        status: Status,
        /// What it gives back.
        result: u64,
    },
    /// The system refuses what many connections need.
    #[error("the system refuses what many connections at once need: {0}")]
    System(io::Error),
    /// An answer that makes no sense.
    #[error("the node's answer makes no sense: is it another version?")]
    Answer,
    /// A key is too short or too long.
    #[error("a key has 1 to 1,024 bytes, and key and value together less than 1 MiB")]
    Size,
}

/// Why a node does not let a host in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLetIn {
    /// It is not listed.
    #[error(
        "the node does not know this host: it wants the name and the secret of one that `erb node host add` has made"
    )]
    Unknown,
    /// It has no secret.
    #[error("the node asks for a secret: give the one that `erb node host add` has printed")]
    NoSecret,
    /// Its secret is another one.
    #[error(
        "the node refuses this host's secret: `erb node host rekey` makes another one; if a controller's secret was \
         given too, the node may have none"
    )]
    Secret,
    /// The node is not the one that was meant.
    #[error(
        "the node does not prove that it knows the controller's secret: it may be another one, so nothing was sent"
    )]
    NoProof,
}

impl From<Ended> for Error {
    fn from(ended: Ended) -> Self {
        Self::NotLetIn(match ended {
            Ended::Refused(Status::CONNECT_HOST) => NotLetIn::Unknown,
            Ended::NoSecret => NotLetIn::NoSecret,
            Ended::NoProof => NotLetIn::NoProof,
            Ended::Authentication(Failure::Failed) => NotLetIn::Secret,
            other => return Self::Refused(other),
        })
    }
}

impl Error {
    /// How the node ended the call, if it did.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

fn sentence(status: Status, result: u64) -> String {
    let text = match status {
        Status::ABSENT => "there is no such key",
        Status::PRESENT => "the key is there already",
        Status::MISMATCH if result == 0 => "the key has no value, so the condition is not met",
        Status::MISMATCH => return format!("the key's version is {result}: read it again"),
        Status::TRIMMED => {
            "that part of the history is not kept any more: ask for something newer, or for a snapshot"
        }
        Status::NO_SUCH_VERSION => "the key has no such version: list its versions",
        Status::LOCKED => "retention is locked: it can grow, and not shrink until the lock ends",
        Status::FUTURE => "that moment is in the future: ask for an earlier one",
        Status::BUSY => "the node is busy: repeat it later",
        Status::CAPACITY => Filled::of_result(result).sentence(),
        Status::DAMAGED => "the value is damaged on the disk: restore the key from another version",
        Status::DENIED => "the role that the node gives this host does not allow it",
        Status::INVALID_NAMESPACE => "there is no such namespace",
        Status::INVALID_FIELD => {
            "the node does not take one of the numbers: a time for example is ten years at most"
        }
        Status::VALUE_SIZE => "a value has at most 1 MiB",
        Status::KEY_SIZE => "a key has 1 to 1,024 bytes",
        Status::INTERNAL => "the node has failed: look at what it said",
        other => return format!("the node refuses it with status {other:?}"),
    };
    text.to_owned()
}

/// An answer, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;
