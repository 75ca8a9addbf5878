/* SPDX-License-Identifier: GPL-2.0 */
/* interest.h - what is known of a key's use, a word by its hash: how often it was missed, and
 * whether it is worth reading again when it is written.
 *
 * A key that is read between its writes should be back in the cache before it is read next. A write
 * that drops an entry which was answered from gives its key CREDIT_MAX. As long as there is credit,
 * Redis's report of a write takes one and makes the daemon read the key at once, not when it is
 * missed.
 *
 * Misses are a guess: keys share words and updates get lost, which costs a fill, or saves one. Kind and
 * credit are of one key, told from others by 42 bits of its hash: what was never filled is not read
 * when it is written. Read as what it is not, it would make Redis count errors. */
#pragma once
#include "base/seam.h"

_Static_assert(INTEREST_CREDIT / INTEREST_CREDIT_ONE >= CREDIT_MAX, "credit fits its bits");
_Static_assert((INTEREST_MISSES & INTEREST_KIND) == 0 && (INTEREST_KIND & INTEREST_CREDIT) == 0,
	       "the parts lie apart");

/* Counts a miss; whether the daemon shall hear of it. */
INLINE bool interest_missed(const struct control *c, u64 hash)
{
	u32 one_of = c->miss_one_of, fill_at = c->miss_fill_at, misses, *word;

	if (one_of) /* by chance: a turn would meet the same commands of a client that repeats itself */
		return !(bpf_get_prandom_u32() % one_of);
	word = interest_get(hash);
	if (!word)
		return false;
	misses = (*word & INTEREST_MISSES) + 1;
	if (misses > INTEREST_MISSES)
		return false;
	++*word;
	/* A report that found no room is made again, and fewer and fewer are. */
	return misses >= fill_at && !(misses & (misses - 1));
}

/* Which key: what its place among the words does not say. */
INLINE u32 interest_whose(u64 hash)
{
	return (u32)(hash >> 40) << INTEREST_WHOSE_AT;
}

INLINE bool interest_is_of(u32 word, u64 hash)
{
	return (word >> INTEREST_WHOSE_AT) == (interest_whose(hash) >> INTEREST_WHOSE_AT);
}

/* A write has dropped the key's entry, which was answered from. */
INLINE void interest_written(u64 hash)
{
	u32 *word = interest_get(hash);

	if (word && interest_is_of(*word, hash))
		*word = (*word & ~(u32)INTEREST_CREDIT) | CREDIT_MAX * INTEREST_CREDIT_ONE;
}

/* The key's value was read; stays: and is in the cache now. Misses count anew. Who has credit keeps
 * the word. */
INLINE void interest_filled(u64 hash, u32 type, u32 db, bool stays)
{
	u32 *word = interest_get(hash), now;

	if (!word)
		return;
	now = *word & ~(u32)INTEREST_MISSES;
	if (stays && (interest_is_of(now, hash) || !(now & INTEREST_CREDIT))) {
		now = interest_whose(hash) | (now & INTEREST_CREDIT);
		if (!db) /* a report names no database */
			now |= type == SLOT_HASH ? INTEREST_HASH : INTEREST_STRING;
	}
	*word = now;
}

/* Redis has reported a write of the key, whose misses count anew: what came of their reports is over.
 * Whether it is worth reading again; *type: as what. */
INLINE bool interest_reported(u64 hash, u8 *type)
{
	u32 *word = interest_get(hash), now;

	if (!word)
		return false;
	now = *word & ~(u32)INTEREST_MISSES;
	*word = now;
	if (!interest_is_of(now, hash) || !(now & INTEREST_CREDIT) || !(now & INTEREST_KIND))
		return false;
	*type = now & INTEREST_HASH ? SLOT_HASH : SLOT_STRING;
	*word = now - INTEREST_CREDIT_ONE;
	return true;
}
