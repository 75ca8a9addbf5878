/* SPDX-License-Identifier: GPL-2.0 */
/* drained.h - whether what was answered in Redis's place is in Redis: of all keys, and of one set. While no write
 * is answered (redis/absorb.h), all of it always is.
 *
 * An absorbed write gets its LSN, and notes the lower half in its key's set, under the set's lock. So a set
 * knows its last one only; what it noted long ago means nothing.
 *
 * Invariants:
 *  K1. A set is undrained if its LSN is one of those that are given and not drained: from drained + 1 to
 *      lsn. Fewer than 2^32 are outstanding, so halves tell them apart. A note that is older by 2^32 or more may
 *      be taken for one of them, which only costs time; none of them is ever taken for older.
 *  K2. The three are read in this order: the set's, drained, lsn. Each only grows. So an LSN that the set had
 *      at the first read is at most lsn at the last; and if it is at most drained, it is in Redis. Read in another
 *      order, a write in between would lie outside the window, and hide an earlier one that does not.
 *  K3. A fill begins only for a drained set, looked at behind the version that it notes. An absorbed write
 *      that is not seen by this look moves the version; one that is seen would not, and its value is not what
 *      Redis would be asked for.
 */
#pragma once
#include "base/seam.h"

_Static_assert(__builtin_offsetof(struct control, order) % 64 == 0 &&
		   __builtin_offsetof(struct control, order.lsn) % 64 == 0 &&
		   sizeof(struct control) % 64 == 0,
	       "every absorbed write moves lsn: nothing else is on its line");

/* K1, of what was read. */
INLINE bool lsn_outstanding(u32 lsn_low, u64 drained, u64 lsn)
{
	u32 behind = lsn_low - (u32)drained - 1, outstanding = (u32)lsn - (u32)drained;

	return behind < outstanding;
}

/* Whether an absorbed write to one of the set's keys may not be in Redis yet. K2. */
INLINE bool set_undrained(const struct log_order *order, const struct cache_set *set)
{
	u32 lsn_low = read_once(set->lsn);
	u64 drained;

	load_barrier();
	drained = read_once(order->drained);
	load_barrier();
	return lsn_outstanding(lsn_low, drained, read_once(order->lsn));
}
