/* SPDX-License-Identifier: GPL-2.0 */
/* hash.h - the key hash: 8 bytes a step, zero padded tail, length mixed in first, so that a key can
 * be hashed while it streams by. Seeded per boot: clients cannot choose colliding keys. */
#pragma once
#include "seam.h"

#define HASH_K1 0x9e3779b97f4a7c15ULL /* golden ratio, odd */
#define HASH_K2 0xd6e8feb86659fd93ULL /* from the rrmxmx mixer */

INLINE u64 hash_begin(u64 seed, u32 key_len)
{
	return seed ^ key_len * HASH_K2;
}

INLINE u64 hash_word(u64 hash, u64 word)
{
	hash = (hash ^ word) * HASH_K1;
	return hash ^ hash >> 32;
}

INLINE u64 hash_end(u64 hash)
{
	hash *= HASH_K2;
	return hash ^ hash >> 29;
}
