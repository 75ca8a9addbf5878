// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hashes of DH-HMAC-CHAP, and what both ends compute with them. Checked against Linux,
//! `drivers/nvme/common/auth.c` and `drivers/nvme/host/auth.c`.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::secret::Secret;

/// A hash of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "they are the standard's names")]
pub enum Hash {
    Sha256 = 1,
    Sha384 = 2,
    Sha512 = 3,
}

impl Hash {
    /// By its number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Sha256,
            2 => Self::Sha384,
            3 => Self::Sha512,
            _ => return None,
        })
    }

    /// Bytes of its result.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        fn of<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
            let mut mac = <M as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
            parts.iter().for_each(|part| mac.update(part));
            mac.finalize().into_bytes().to_vec()
        }
        match self {
            Self::Sha256 => of::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => of::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => of::<Hmac<Sha512>>(key, parts),
        }
    }
}

/// Which end a response proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Host,
    Controller,
}

/// What a response is computed from.
pub(super) struct Question<'a> {
    pub(super) hash: Hash,
    pub(super) challenge: &'a [u8],
    /// What Diffie-Hellman gave; nothing without it.
    pub(super) shared: &'a [u8],
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    pub(super) host: &'a str,
    pub(super) subsystem: &'a str,
}

impl Question<'_> {
    /// The response that proves knowledge of a secret.
    pub(super) fn response(&self, role: Role, secret: &Secret) -> Vec<u8> {
        let challenge = if self.shared.is_empty() {
            self.challenge.to_vec()
        } else {
            let session = self.hash.digest(self.shared);
            self.hash.hmac(&session, &[self.challenge])
        };
        let (words, own, peer) = match role {
            Role::Host => (&b"HostHost"[..], self.host, self.subsystem),
            Role::Controller => (&b"Controller"[..], self.subsystem, self.host),
        };
        let parts: [&[u8]; 8] = [
            &challenge,
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            // No secure channel is concatenated.
            &[0],
            words,
            own.as_bytes(),
            &[0],
            peer.as_bytes(),
        ];
        self.hash.hmac(&secret.key(own), &parts)
    }
}
