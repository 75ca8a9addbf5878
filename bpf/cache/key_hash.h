/* SPDX-License-Identifier: GPL-2.0 */
/* key_hash.h - the key hash: NH (RFC 4418, 5.2.2) over the key's words of 8 bytes, the last one padded
 * with zeros, plus its length; then mixed. A word a step, so that a key can be hashed while it
 * streams by.
 *
 * A secret of its place is added to each word before its halves are multiplied. So for any two keys
 * that somebody chooses without knowing the secret, at most one secret in 2^30 gives both the same
 * sum, whatever the keys' difference (J. Black et al., UMAC, CRYPTO '99; the carry between the halves
 * costs two bits). Mixing loses nothing: each step can be undone. The secret is drawn at each boost.
 */
#pragma once
#include "base/seam.h"

#define HASH_K1 0x9e3779b97f4a7c15ULL /* golden ratio, odd */
#define HASH_K2 0xd6e8feb86659fd93ULL /* from the rrmxmx mixer */

_Static_assert((HASH_WORDS & (HASH_WORDS - 1)) == 0, "a word's place is a mask");

INLINE u64 hash_begin(const struct hash_secret *secret, u32 key_len)
{
	return secret->begin + key_len * HASH_K2;
}

/* The word's place counts from 0. */
INLINE u64 hash_word(const struct hash_secret *secret, u64 hash, u64 word, u32 place)
{
	word += secret->words[place & (HASH_WORDS - 1)];
	return hash + (u32)word * (word >> 32);
}

/* Every bit of the sum is to reach the set's index and the tag. */
INLINE u64 hash_end(const struct hash_secret *secret, u64 hash)
{
	hash = (hash ^ hash >> 32) * (secret->odd | 1);
	hash = (hash ^ hash >> 29) * HASH_K1;
	return hash ^ hash >> 32;
}
