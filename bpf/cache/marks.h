/* SPDX-License-Identifier: GPL-2.0 */
/* marks.h - write marks on cache sets, and write-through: the value of a plain SET enters the cache
 * with its own packet and is answered from its reply on, until Redis is read again or a short time is
 * over. A hot key that is written all the time is so never read from Redis.
 *
 * Between packet and reply the entry is awaited (SLOT_AWAITED): it has its tag, so whatever ends an
 * entry of the key ends it, and no look-up finds it. The mark that its packet took says in which way it
 * is, and goes with it from hand to hand.
 *
 * Invariants:
 *  W1. An entry becomes awaited only under the lock under which its mark is taken, as the set's
 *      only one. While that mark stands nothing else enters the set (C1). So what is awaited in the
 *      mark's way is its own, or was ended.
 *  W2. It is shown only by the release of its mark, and only if the reply of that very request
 *      was "+OK", alone in its packet, with nothing sent behind the request. Any other release ends
 *      it. A later write of the key that was seen meanwhile has ended it by its tag; an earlier one would
 *      have had its mark on the set.
 *  W3. It is answered until WRITTEN_NS behind its packet, not its reply: Redis ran the SET in
 *      between, so nothing that Redis has done since is hidden for longer. So a report of the key need
 *      not end it, and does not: it mostly is the SET's own.
 *  W4. It is answered only while control.global_version is what it was when no share of the fence stood,
 *      before its packet went up. So a command whose keys are unknown ends it, although the reports
 *      behind which the fence opens (C10) leave it.
 *  W5. Where its key is read from Redis again, the value replaces it under the rules of any fill
 *      (C2): its mark and its release have moved the version.
 */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/interest.h"

#define WRITTEN_TAIL sizeof(struct written_end)

_Static_assert(MARK_SET >> MARK_WAY_AT == 0 && (WAYS - 1) << MARK_WAY_AT < MARK_WRITTEN,
	       "set, way and flag lie apart");
_Static_assert(KEY_BYTES_MAX < SLOT_AWAITED, "no look-up is for such a key");

/* What a SET says, as its slot will hold it. */
struct written {
	u32 class; /* 0 or 1 */
	u32 cache_epoch;
	u64 image[CLASS1_BYTES / 8 + 4];
};

INLINE struct slot *slot_of(struct cache_set *set, struct cache_large *large, u32 way)
{
	return way < CLASS0_WAYS ? slot_small(set, way) : slot_large(large, way);
}

/* The end of a SET's own entry in a slot of so many bytes; what it reads may be torn. */
INLINE const struct written_end *slot_written(struct slot *slot, u32 slot_bytes, bool small)
{
	u32 at = slot_bytes - WRITTEN_TAIL - SLOT_HEADER_BYTES;

	opaque(at);
	if (at > (small ? CLASS0_BYTES : CLASS3_BYTES) - WRITTEN_TAIL - SLOT_HEADER_BYTES)
		return 0;
	return (const struct written_end *)(slot->data + at);
}

/* W3, W4. Read behind the fence. */
INLINE bool written_lives(const struct control *c, const struct written_end *end, u64 now_ns)
{
	return end && now_ns < end->until_ns && end->global_version == read_once(c->global_version);
}

/* A write goes up: entries of its key go. Returns how many did; *used: whether one was answered from.
 * Lock held. */
INLINE u32 mark_begin(struct cache_set *set, u64 hash, bool *used)
{
	set->marks++;
	set->version++;
	return set_drop_tag(set, tag_of(hash), used);
}

/* Behind the lock. */
INLINE void mark_begun(u64 hash, u32 dropped, bool used)
{
	count(STAT_MARK_TAKEN);
	if (dropped) {
		count_n(STAT_CACHE_INVALIDATED, dropped);
		interest_written(hash, used);
	}
}

/* Takes a write mark on the key's set. */
INLINE void mark_take(u32 index, u64 hash)
{
	struct cache_set *set = set_get(index);
	bool used;
	u32 dropped;

	if (!set)
		return;
	set_change_begin(set);
	dropped = mark_begin(set, hash, &used);
	set_change_end(set);
	mark_begun(hash, dropped, used);
}

/* Whether what a SET of the key says is worth a way: the key is cached, or wanted. Without the lock: it
 * only saves work. */
INLINE bool written_wanted(u32 index, u64 hash)
{
	const struct cache_set *set = set_get(index);

	return set && !read_once(set->marks) &&
	       (tags_match(set, tag_of(hash)) || interest_wants(hash));
}

#define WRITTEN_EVICTS 0x100

/* A way for what a SET says: that of an entry of its key, a free one, one that was not answered from, or any; and
 * whether an entry of another key goes. Read without the lock, for any way will do. Global: verified by itself. */
__noinline int written_choose(u32 index, u64 hash, u32 cache_epoch, u32 class)
{
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	u32 first = class ? CLASS0_WAYS : 0, ways = class ? CLASS1_WAYS : CLASS0_WAYS;
	u32 start = class ? 0 : way_predicted(hash), found = WRITTEN_EVICTS | (first + start), own;

	if (!set || !large)
		return found;
	own = tags_match(set, tag_of(hash)) &
	      (class ? ((1U << CLASS1_WAYS) - 1) << CLASS0_WAYS : (1U << CLASS0_WAYS) - 1);
	if (own)
		return lowest_bit(own);
	for (u32 i = 0; i < CLASS0_WAYS; i++) {
		u32 way = class ? first + i : (start + i) & (CLASS0_WAYS - 1);

		if (i >= ways)
			break;
		way &= WAYS - 1;
		if (!set->tags[way] || slot_epoch(set, large, way) != cache_epoch)
			found = way;
		else if ((found & WRITTEN_EVICTS) && !(set->visited & 1U << way))
			found = way | WRITTEN_EVICTS;
	}
	return found;
}

/* The way has the key's entry from now on: C8, before the tag. Lock held. */
INLINE void written_enter(struct cache_set *set, struct cache_digest *digest, u64 hash, u32 way)
{
	way &= WAYS - 1;
	digest->tags[way] = digest_of(hash);
	set->tags[way] = tag_of(hash);
	set->visited &= ~(1U << way);
}

/* Puts the image into the way, awaited. Lock held. */
INLINE void written_put(struct cache_set *set, struct cache_large *large,
			struct cache_digest *digest, const struct written *wr, u64 hash, u32 way)
{
	struct slot *slot;
	u32 off = (way - CLASS0_WAYS) * CLASS1_BYTES;

	if (way < CLASS0_WAYS) {
		slot = slot_small(set, way);
		if (slot)
			slot_write(slot, wr->image, CLASS0_BYTES);
	} else {
		opaque(off);
		if (off > (CLASS1_WAYS - 1) * CLASS1_BYTES)
			return;
		slot_write((struct slot *)(large->slots + off), wr->image, CLASS1_BYTES);
	}
	written_enter(set, digest, hash, way);
}

/* The same as mark_take() for a SET whose image is at hand. Returns the mark. */
INLINE u32 mark_take_written(u32 index, u64 hash, const struct written *wr)
{
	u32 chosen = written_choose(index, hash, wr->cache_epoch, wr->class);
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	struct cache_digest *digest = digest_get(index);
	u32 dropped, way = chosen & (WAYS - 1), mark = index;
	bool used;

	if (!set || !large || !digest)
		return index;
	set_change_begin(set);
	dropped = mark_begin(set, hash, &used);
	if (set->marks == 1) {
		written_put(set, large, digest, wr, hash, way);
		mark |= MARK_WRITTEN | way << MARK_WAY_AT;
	}
	set_change_end(set);
	mark_begun(hash, dropped, used);
	if (mark != index && (chosen & WRITTEN_EVICTS))
		count(STAT_CACHE_EVICTED);
	return mark;
}

/* W2: what the mark's SET says is shown, or ended. Returns whether it is shown. Lock held. */
INLINE bool written_release(struct cache_set *set, struct slot *slot, u32 way, bool ok)
{
	u32 key_len = slot ? slot->key_len : 0;

	if (!slot || !set->tags[way] || !(key_len & SLOT_AWAITED))
		return false; /* a write of the key has ended it */
	if (ok)
		slot->key_len = key_len & ~SLOT_AWAITED;
	else
		set->tags[way] = 0;
	return ok;
}

/* Gives a mark back; ok: Redis has said so to its SET. */
INLINE void mark_release(u32 mark, bool ok)
{
	u32 index = mark & MARK_SET, way = mark >> MARK_WAY_AT & (WAYS - 1);
	struct cache_set *set = set_get(index);
	struct cache_large *large = mark & MARK_WRITTEN ? large_get(index) : 0;
	bool broken, shown = false;

	if (!set)
		return;
	set_change_begin(set);
	if (large)
		shown = written_release(set, slot_of(set, large, way), way, ok);
	broken = set->marks == 0;
	if (!broken)
		set->marks--;
	set->version++;
	set_change_end(set);
	count(broken ? STAT_INVARIANT : STAT_MARK_RELEASED);
	if (shown)
		count(STAT_CACHE_WRITTEN);
}

INLINE bool mark_is_share(u32 set)
{
	return set >= EFFECT_EXEC;
}

/* Gives back n marks and shares of the fence, at most MARKS_IN_FLIGHT. executed: what they stand for
 * was; ok: number of the SET to which Redis has said OK, 0: none. */
INLINE void marks_release(struct control *c, const struct mark *marks, u32 n, bool executed, u32 ok)
{
	int i;

	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 at = i, set;

		if (at >= n || at >= MARKS_IN_FLIGHT)
			break;
		set = marks[at].set;
		if (!mark_is_share(set))
			mark_release(set, ok && marks[at].request == ok);
		else if (executed)
			fence_end(c, set == EFFECT_FENCE);
		else
			fence_return(c);
	}
}
