// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DH-HMAC-CHAP: both ends prove that they know secrets, and Diffie-Hellman keeps those who listen from trying
//! secrets offline. The node's half is [`Verifier`], the client's [`Prover`]. Neither computes powers itself: those
//! are [`Job`]s.
//!
//! Invariants:
//! 1. Nobody is believed whose response differs in a bit; the comparison takes the same time wherever it differs.
//! 2. A challenge is drawn anew each time, so an old response proves nothing.
//! 3. A challenge that comes back as the peer's own, and a peer's value that is this end's, are refused: who reflects
//!    knows nothing.
//! 4. After a failure nothing helps but a new connection.

mod group;
mod hash;
mod message;
mod prover;
mod secret;
mod verifier;

pub use group::{Computed, Group, Job};
pub use hash::Hash;
pub use message::{Failure, MESSAGE_BYTES_MAX, Message};
pub use prover::{Next, Prover};
pub use secret::{NoSecret, Secret};
pub use verifier::Verifier;

use subtle::ConstantTimeEq;

use crate::random::Random;

/// Whose connection it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The host's NQN.
    pub host: String,
    /// The subsystem's NQN.
    pub subsystem: String,
}

/// Secrets of a pair of host and subsystem. Each direction has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets {
    /// The host proves that it knows this one.
    pub host: Secret,
    /// The subsystem proves that it knows this one, if the host asks.
    pub subsystem: Option<Secret>,
}

/// What an end takes, the best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Hashes.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Default for Policy {
    /// Everything but the null group, with which secrets can be tried offline.
    fn default() -> Self {
        Self {
            hashes: vec![Hash::Sha256, Hash::Sha384, Hash::Sha512],
            groups: vec![Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe2048],
        }
    }
}

fn is_same(expected: &[u8], found: &[u8]) -> bool {
    expected.ct_eq(found).into()
}

fn drawn(random: &mut dyn Random, bytes: usize) -> Vec<u8> {
    let mut drawn = vec![0; bytes];
    random.fill(&mut drawn);
    drawn
}

/// A number that is never 0.
fn drawn_sequence(random: &mut dyn Random) -> u32 {
    let mut bytes = [0; 4];
    random.fill(&mut bytes);
    u32::from_le_bytes(bytes).max(1)
}
