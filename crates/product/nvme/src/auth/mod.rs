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

/// Bytes of a key that is drawn, as many as of the smallest hash.
const KEY_BYTES: usize = 32;

impl Secrets {
    /// Draws them: the host's, and the subsystem's if `both`.
    pub fn drawn(random: &mut dyn Random, both: bool) -> Self {
        let mut draw =
            || Secret::of_key(drawn(random, KEY_BYTES), None).expect("32 bytes are usual");
        Self {
            host: draw(),
            subsystem: both.then(draw),
        }
    }

    /// Reads them as [`Self::text`] writes them.
    ///
    /// # Errors
    /// No line has a secret, more than two have something, one has something else, or both have the same.
    pub fn parse(text: &str) -> Result<Self, NoSecret> {
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let host = Secret::parse(lines.next().ok_or(NoSecret)?)?;
        let subsystem = lines.next().map(Secret::parse).transpose()?;
        // With one secret for both directions each end could answer the other with its own words.
        let is_usual = lines.next().is_none() && subsystem.as_ref() != Some(&host);
        is_usual.then_some(Self { host, subsystem }).ok_or(NoSecret)
    }

    /// The host's in one line, the subsystem's in the next. A line of a file that begins with # says nothing.
    #[must_use]
    pub fn text(&self) -> String {
        let both = [Some(&self.host), self.subsystem.as_ref()];
        let lines = both.into_iter().flatten();
        lines.map(|secret| secret.text() + "\n").collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u8);

    impl Random for Count {
        fn fill(&mut self, bytes: &mut [u8]) {
            self.0 += 1;
            bytes.fill(self.0);
        }
    }

    #[test]
    fn secrets_are_read_as_they_were_written_and_never_one_for_both_directions() {
        for both in [false, true] {
            let secrets = Secrets::drawn(&mut Count(0), both);
            assert_eq!(secrets.subsystem.is_some(), both);
            let text = secrets.text();
            assert_eq!(text.lines().count(), 1 + usize::from(both));
            assert_eq!(Secrets::parse(&text), Ok(secrets));
            let with_words = format!("# alice's\n\n  {text}");
            assert!(Secrets::parse(&with_words).is_ok());
        }
        let one = Secrets::drawn(&mut Count(0), false).text();
        for text in [
            "",
            "# nothing",
            &one.repeat(2),
            &format!("{one}x"),
            &one.replace("00", "09"),
        ] {
            assert_eq!(Secrets::parse(text), Err(NoSecret), "{text}");
        }
    }
}
