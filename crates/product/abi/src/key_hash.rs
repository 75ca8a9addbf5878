// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key hash of `bpf/cache/key_hash.h` a second time: for checks and tests of what the programs did.

use crate::{CLIENT_COUNTS, HASH_WORDS, UNSEEN_TIMES, conn_key, hash_secret};

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xd6e8_feb8_6659_fd93;

impl hash_secret {
    /// Bytes of a secret.
    pub const BYTES: usize = size_of::<Self>();

    /// A secret of random bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_ne_bytes(word)
        };
        Self {
            begin: word(0),
            odd: word(1),
            words: std::array::from_fn(|place| word(2 + place)),
        }
    }

    /// The secret that follows from a number: for tests and simulations, which must repeat.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            // SplitMix64.
            state = state.wrapping_add(K1);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        };
        Self {
            begin: next(),
            odd: next(),
            words: std::array::from_fn(|_| next()),
        }
    }

    /// The hash of a key of at most `KEY_BYTES_MAX` bytes.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hash = self.begin.wrapping_add((key.len() as u64).wrapping_mul(K2));
        for (place, chunk) in key.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let secret = self.words[place % HASH_WORDS as usize];
            let word = u64::from_le_bytes(word).wrapping_add(secret);
            hash = hash.wrapping_add(u64::from(word as u32) * (word >> 32));
        }
        hash = (hash ^ hash >> 32).wrapping_mul(self.odd | 1);
        hash = (hash ^ hash >> 29).wrapping_mul(K1);
        hash ^ hash >> 32
    }

    /// Where `erb_clients` counts the entries of a client's address (`client_count_of()` of
    /// `bpf/splice/conn.h`).
    #[must_use]
    pub fn client_place(&self, key: &conn_key) -> u32 {
        let mut address = key.client_addr;
        let is_ipv4 = address[..10] == [0; 10] && address[10..12] == [0xff; 2];
        if !is_ipv4 {
            address[8..].fill(0);
        }
        self.hash(&address) as u32 & (CLIENT_COUNTS - 1)
    }

    /// Where `erb_unseen` keeps when payload of a connection last passed unseen
    /// (`unseen_time_of()` of `bpf/splice/conn.h`).
    #[must_use]
    pub fn unseen_place(&self, key: &conn_key) -> u32 {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&key.client_addr);
        bytes[16..18].copy_from_slice(&key.client_port_be.to_ne_bytes());
        bytes[18..].copy_from_slice(&key.server_port_be.to_ne_bytes());
        self.hash(&bytes) as u32 & (UNSEEN_TIMES - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Secrets tried per difference.
    const SECRETS: u64 = 1000;

    /// What a cache of 32,768 sets keeps of a hash: set and tag.
    const PLACE: u64 = 0xffff_0000_0000_7fff;

    /// How many of the secrets give both keys the same place, and the same hash.
    fn collisions(secrets: &[hash_secret], key: &[u8], flips: &[usize]) -> (u32, u32) {
        let mut other = key.to_vec();
        for bit in flips {
            other[bit / 8] ^= 1 << (bit % 8);
        }
        let mut found = (0, 0);
        for secret in secrets {
            let difference = secret.hash(key) ^ secret.hash(&other);
            found.0 += u32::from(difference & PLACE == 0);
            found.1 += u32::from(difference == 0);
        }
        found
    }

    fn secrets() -> Vec<hash_secret> {
        (0..SECRETS).map(hash_secret::of_seed).collect()
    }

    #[test]
    fn no_two_flipped_bits_collide_more_than_chance() {
        let secrets = secrets();
        let key = *b"user:0123456789a";
        let bits = key.len() * 8;
        let (mut places, mut hashes) = (0, 0);
        for one in 0..bits {
            for two in one..bits {
                // One bit if they are the same: a flip undone is no difference.
                let flips = [one, two];
                let flips = if one == two { &flips[..1] } else { &flips[..] };
                let (place, hash) = collisions(&secrets, &key, flips);
                assert!(place <= 1, "bits {flips:?}: {place} of {SECRETS}");
                (places, hashes) = (places + place, hashes + hash);
            }
        }
        // 8.3 million pairs: 0.004 by chance.
        assert!(places <= 1, "{places} in one place");
        assert_eq!(hashes, 0);
    }

    #[test]
    fn upper_bits_of_neighbouring_words_do_not_cancel() {
        let secrets = secrets();
        let key = [b'k'; 64];
        let marked: Vec<usize> = (0..8)
            .flat_map(|word| [0, 7, 31, 32, 62, 63].map(|bit| word * 64 + bit))
            .collect();
        for (n, one) in marked.iter().enumerate() {
            for two in &marked[n + 1..] {
                let (places, hashes) = collisions(&secrets, &key, &[*one, *two]);
                assert_eq!((places, hashes), (0, 0), "bits {one} and {two}");
                // As was shown of the former hash: bits 63 and 31 of what follows undo bit 63.
                let (places, hashes) = collisions(&secrets, &key, &[*one, *two, (*two ^ 32) % 512]);
                assert_eq!(
                    (places, hashes),
                    (0, 0),
                    "bits {one}, {two} and its neighbour"
                );
            }
        }
    }

    #[test]
    fn keys_that_differ_by_zeros_differ() {
        let secrets = secrets();
        for length in 1..24 {
            let short = vec![0; length];
            let long = vec![0; length + 1];
            for secret in &secrets {
                assert_ne!(secret.hash(&short), secret.hash(&long), "{length}");
            }
        }
    }

    #[test]
    fn keys_as_people_make_them_spread_like_chance() {
        let keys = 60_000_u32;
        for secret in secrets().iter().take(4) {
            let mut places: Vec<u64> = (0..keys)
                .map(|n| secret.hash(format!("key:{n:012}").as_bytes()) & PLACE)
                .collect();
            places.sort_unstable();
            let equal = places.windows(2).filter(|two| two[0] == two[1]).count();
            assert!(
                equal <= 8,
                "{equal} of {keys} keys share a place; 0.8 by chance"
            );
            let mut sets = vec![0_u32; 0x8000];
            for place in &places {
                sets[(place & 0x7fff) as usize] += 1;
            }
            // Poisson with mean 1.8: more than 14 once in a billion sets.
            assert!(sets.iter().all(|count| *count <= 14));
        }
    }
}
