/* SPDX-License-Identifier: GPL-2.0 */
/* interest.h - what is known of a key's use, a word by its hash: how often it was missed, and
 * whether it is worth reading again when it is written.
 *
 * A key that is read between its writes should be back in the cache before it is read next. But to read
 * it again takes Redis and the daemon as long as two to three answers save. So it pays for keys that are
 * read three times as often as written, and for no others. That shows by how many of a key's entries
 * were answered from when a write dropped them: three of four, or more. Each such gives the key credit, each
 * other takes some, and so does reading again. Once an entry goes unread of a key that has none left, the
 * key is in doubt until it has earned CREDIT_DOUBTED. Meanwhile it is not read again when it is
 * written, and not at its first miss either, but when it was missed DOUBTED_MISSES times since.
 *
 * Misses are a guess: keys share words and updates get lost, which costs a fill, or saves one. All else
 * is of one key, told from others by 41 bits of its hash: what was never filled is not read
 * when it is written. Read as what it is not, it would make Redis count errors. */
#pragma once
#include "base/seam.h"

_Static_assert(INTEREST_CREDIT / INTEREST_CREDIT_ONE >= CREDIT_MAX, "credit fits its bits");
_Static_assert(INTEREST_MISSES + INTEREST_KIND + INTEREST_CREDIT + INTEREST_DOUBT ==
		   (1 << INTEREST_WHOSE_AT) - 1,
	       "the parts lie apart, and side by side");
_Static_assert(DOUBTED_MISSES <= INTEREST_MISSES && !(DOUBTED_MISSES & (DOUBTED_MISSES - 1)),
	       "a count of misses at which one is reported");

/* Which key: what its place among the words does not say. */
INLINE u32 interest_whose(u64 hash)
{
	return (u32)(hash >> (32 + INTEREST_WHOSE_AT)) << INTEREST_WHOSE_AT;
}

INLINE bool interest_is_of(u32 word, u64 hash)
{
	return (word >> INTEREST_WHOSE_AT) == (interest_whose(hash) >> INTEREST_WHOSE_AT);
}

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
	if ((*word & INTEREST_DOUBT) && interest_is_of(*word, hash) && fill_at < DOUBTED_MISSES)
		fill_at = DOUBTED_MISSES;
	/* A report that found no room is made again, and fewer and fewer are. */
	return misses >= fill_at && !(misses & (misses - 1));
}

/* Whether what a SET of the key says is worth keeping: it is a known string, and not in doubt, or missed since
 * its last report. To keep it costs a copy, where reading it again costs Redis more than an answer: one read
 * between writes pays. So credit is not asked for: of a key that is written every millisecond all
 * reads of Redis come too late, and spend it. */
INLINE bool interest_wants(u64 hash)
{
	u32 *word = interest_get(hash);

	return word && interest_is_of(*word, hash) && (*word & INTEREST_STRING) &&
	       (!(*word & INTEREST_DOUBT) || (*word & INTEREST_MISSES));
}

/* A write has dropped the key's entry; read: it was answered from. */
INLINE void interest_written(u64 hash, bool read)
{
	u32 *word = interest_get(hash), credit;

	if (!word || !interest_is_of(*word, hash))
		return;
	credit = (*word & INTEREST_CREDIT) / INTEREST_CREDIT_ONE;
	if (!read) {
		if (!credit)
			*word |= INTEREST_DOUBT;
		credit = credit > CREDIT_UNREAD ? credit - CREDIT_UNREAD : 0;
	} else {
		credit += CREDIT_READ;
		if (credit > CREDIT_MAX)
			credit = CREDIT_MAX;
	}
	*word = (*word & ~(u32)INTEREST_CREDIT) | credit * INTEREST_CREDIT_ONE;
	if (credit >= CREDIT_DOUBTED)
		*word &= ~(u32)INTEREST_DOUBT;
}

/* The key's value was read; stays: and is in the cache now. Misses count anew. Who has earned credit
 * keeps the word. */
INLINE void interest_filled(u64 hash, u32 type, u32 db, bool stays)
{
	u32 *word = interest_get(hash), now;

	if (!word)
		return;
	now = *word & ~(u32)INTEREST_MISSES;
	if (stays && interest_is_of(now, hash))
		now &= ~(u32)INTEREST_KIND;
	else if (stays && (now & INTEREST_CREDIT) <= CREDIT_FIRST * INTEREST_CREDIT_ONE)
		now = interest_whose(hash) | CREDIT_FIRST * INTEREST_CREDIT_ONE;
	if (stays && interest_is_of(now, hash)) {
		if (!db) /* a report names no database */
			now |= type == SLOT_HASH ? INTEREST_HASH : INTEREST_STRING;
	}
	*word = now;
}

/* Redis has reported a write of the key, whose misses count anew: what came of their reports is over.
 * Whether it is worth reading again, as *type; *doubted: for certain not. */
INLINE bool interest_reported(u64 hash, u8 *type, bool *doubted)
{
	u32 *word = interest_get(hash), now;

	*doubted = false;
	if (!word)
		return false;
	now = *word & ~(u32)INTEREST_MISSES;
	*word = now;
	if (!interest_is_of(now, hash))
		return false;
	*doubted = now & INTEREST_DOUBT;
	if (*doubted || !(now & INTEREST_CREDIT) || !(now & INTEREST_KIND))
		return false;
	*type = now & INTEREST_HASH ? SLOT_HASH : SLOT_STRING;
	*word = now - CREDIT_AGAIN * INTEREST_CREDIT_ONE;
	return true;
}
