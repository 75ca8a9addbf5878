/* SPDX-License-Identifier: GPL-2.0 */
/* interest.h - what is known of a key's use, a byte by its hash: how often it was missed, and
 * whether it is worth reading again when it is written.
 *
 * A key that is read between its writes should be back in the cache before it is read next. A write
 * that drops an entry which was answered from gives its key CREDIT_MAX; a write that drops one which
 * nobody read takes one of it. As long as there is credit, Redis's report of a write makes the daemon
 * read the key at once, not when it is missed.
 *
 * All of it is a guess. Keys share bytes and updates get lost: that costs a fill, or saves one, and
 * is never an answer. */
#pragma once
#include "base/seam.h"

_Static_assert(INTEREST_CREDIT / INTEREST_CREDIT_ONE >= CREDIT_MAX, "credit fits its bits");
_Static_assert((INTEREST_MISSES & INTEREST_KIND) == 0 && (INTEREST_KIND & INTEREST_CREDIT) == 0,
	       "the parts lie apart");

/* Counts a miss; whether the daemon shall hear of it. */
INLINE bool interest_missed(const struct control *c, u64 hash)
{
	u32 one_of = c->miss_one_of, fill_at = c->miss_fill_at, misses;
	u8 *byte;

	if (one_of) /* by chance: a turn would meet the same commands of a client that repeats itself */
		return !(bpf_get_prandom_u32() % one_of);
	byte = interest_get(hash);
	if (!byte)
		return false;
	misses = (*byte & INTEREST_MISSES) + 1;
	if (misses > INTEREST_MISSES)
		return false;
	++*byte;
	/* A report that found no room is made again, and fewer and fewer are. */
	return misses >= fill_at && !(misses & (misses - 1));
}

/* A write has dropped the key's entry; used: it was answered from. */
INLINE void interest_written(u64 hash, bool used)
{
	u8 *byte = interest_get(hash);

	if (!byte)
		return;
	if (used)
		*byte |= CREDIT_MAX * INTEREST_CREDIT_ONE;
	else if (*byte & INTEREST_CREDIT)
		*byte -= INTEREST_CREDIT_ONE;
}

/* The key's value was read; stays: and is in the cache now. Misses count anew. */
INLINE void interest_filled(u64 hash, u32 type, u32 db, bool stays)
{
	u8 *byte = interest_get(hash), now;

	if (!byte)
		return;
	now = *byte & (INTEREST_KIND | INTEREST_CREDIT);
	if (stays) {
		now &= ~INTEREST_KIND;
		if (!db) /* a report names no database */
			now |= type == SLOT_HASH ? INTEREST_HASH : INTEREST_STRING;
	} else if (now & INTEREST_CREDIT) {
		now -= INTEREST_CREDIT_ONE;
	}
	*byte = now;
}

/* Whether a key that Redis has reported is worth reading again; *type: as what. */
INLINE bool interest_wants(u64 hash, u8 *type)
{
	u8 *byte = interest_get(hash), now;

	if (!byte)
		return false;
	now = *byte;
	*type = now & INTEREST_HASH ? SLOT_HASH : SLOT_STRING;
	return (now & INTEREST_CREDIT) && (now & INTEREST_KIND);
}
