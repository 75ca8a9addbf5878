// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys, their names in the index, and their hash.
//!
//! Invariants:
//! 1. A key's name has 16 bytes: the key itself with zeros behind it, or the first 16 bytes of SHA-256 of a
//!    longer one. With namespace and length class it tells keys apart, but for two long ones of one digest.
//! 2. The hash depends on the name alone, so whoever knows only a digest finds the key, and an entry can be
//!    hashed again without its long key. It is keyed by a secret of the store.

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Keys up to here lie in their index entry.
pub const INLINE_BYTES_MAX: usize = 16;

/// A key of a namespace, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key<'a> {
    /// Its namespace.
    pub namespace: u16,
    /// At most [`KEY_BYTES_MAX`]; none is a key too.
    pub bytes: &'a [u8],
}

/// What an index entry says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The key's.
    pub namespace: u16,
    /// Bytes of a short key; none: it is a long one.
    pub inline_bytes: Option<u8>,
    /// The key with zeros behind it, or its digest.
    pub bytes: [u8; INLINE_BYTES_MAX],
}

impl Name {
    /// Of a long key with this digest, the first 16 bytes of its SHA-256.
    #[must_use]
    pub fn of_digest(namespace: u16, digest: [u8; INLINE_BYTES_MAX]) -> Self {
        Self {
            namespace,
            inline_bytes: None,
            bytes: digest,
        }
    }

    /// Of this key.
    #[must_use]
    pub fn of(key: Key<'_>) -> Self {
        let mut bytes = [0; INLINE_BYTES_MAX];
        let length = key.bytes.len();
        if length <= INLINE_BYTES_MAX {
            bytes[..length].copy_from_slice(key.bytes);
            return Self {
                namespace: key.namespace,
                inline_bytes: u8::try_from(length).ok(),
                bytes,
            };
        }
        bytes.copy_from_slice(&Sha256::digest(key.bytes)[..INLINE_BYTES_MAX]);
        Self::of_digest(key.namespace, bytes)
    }
}

/// Hashes names with a secret.
#[derive(Clone, Copy)]
pub struct KeyHasher {
    secret: [u64; 2],
}

/// Stands for a length in the hash of a long key.
const LONG: u8 = u8::MAX;

impl KeyHasher {
    /// With the store's secret.
    #[must_use]
    pub fn new(secret: [u64; 2]) -> Self {
        Self { secret }
    }

    /// 64 bits, of which the highest choose the sub-table.
    #[must_use]
    pub fn hash(&self, name: &Name) -> u64 {
        let mut bytes = [0; INLINE_BYTES_MAX + 3];
        bytes[..INLINE_BYTES_MAX].copy_from_slice(&name.bytes);
        bytes[INLINE_BYTES_MAX..][..2].copy_from_slice(&name.namespace.to_le_bytes());
        bytes[INLINE_BYTES_MAX + 2] = name.inline_bytes.unwrap_or(LONG);
        SipHasher13::new_with_keys(self.secret[0], self.secret[1]).hash(&bytes)
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("KeyHasher(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(namespace: u16, bytes: &[u8]) -> u64 {
        KeyHasher::new([1, 2]).hash(&Name::of(Key { namespace, bytes }))
    }

    #[test]
    fn keys_that_differ_have_names_that_differ() {
        let mut names = Vec::new();
        for namespace in [0, 1, 256] {
            for length in 0..40 {
                names.push(Name::of(Key {
                    namespace,
                    bytes: &vec![0; length],
                }));
            }
        }
        let mut hashes: Vec<u64> = names
            .iter()
            .map(|it| KeyHasher::new([1, 2]).hash(it))
            .collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), names.len());
    }

    #[test]
    fn a_long_key_is_found_by_its_digest() {
        // SHA-256 of 56 bytes: FIPS 180-4's example.
        let key = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        let digest = 0x248d_6a61_d206_38b8_e5c0_2693_0c3e_6039_u128.to_be_bytes();
        let name = Name::of(Key {
            namespace: 7,
            bytes: key,
        });
        assert_eq!(name, Name::of_digest(7, digest));
    }

    #[test]
    fn the_hash_depends_on_the_secret() {
        let name = Name::of(Key {
            namespace: 0,
            bytes: b"key",
        });
        assert_ne!(KeyHasher::new([1, 3]).hash(&name), hash(0, b"key"));
        assert_eq!(
            format!("{:?}", KeyHasher::new([41, 42])),
            "KeyHasher(secret)"
        );
    }
}
