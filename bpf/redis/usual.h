/* SPDX-License-Identifier: GPL-2.0 */
/* usual.h - what the express lane knows of Redis: a packet of one GET of a small value, reads of keys
 * that are not in the cache, and writes (usual_write.h). */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "net/work.h"
#include "redis/effects.h"
#include "redis/get.h"
#include "redis/usual_write.h"
#include "splice/handler.h"
#include "splice/place.h"

/* The kind of a command that begins with these 16 bytes and that the lane may know: GET, where keys are
 * missed two reads of hashes, of which it knows no more than that they miss, and writes. */
INLINE u32 usual_kind(const struct work *w, u64 word, u64 next)
{
	if (word == RESP_ARRAY2_BULK3)
		return FAST_KIND_GET;
	if (w->unlikely && word == RESP_ARRAY2_BULK7 &&
	    (next | 0x20202020202020ULL) == RESP_HGETALL)
		return FAST_KIND_HGETALL;
	if (w->unlikely && word == RESP_ARRAY3_BULK4 &&
	    ((next & 0xffffffffffffffULL) | 0x20202020) == RESP_HGET)
		return FAST_KIND_HGET;
	return usual_write_kind(word, next);
}

/* Whether the request at hand is a write. */
INLINE bool usual_writes(const struct work *w)
{
	return w->h.usual >= FAST_KIND_MAX;
}

INLINE bool handler_may_know(const struct work *w, const u8 *body)
{
	return usual_kind(w, *(u64 *)body, *(u64 *)(body + 8)) != FAST_NONE;
}

/* Reads a command on a hash that usual_kind() knows. */
INLINE bool usual_hashed(struct work *w, const struct control *c)
{
	u32 field;

	if (!fast_one_key(w, c, 0, w->h.usual == FAST_KIND_HGET ? 15 : 18))
		return false;
	w->h.unseen = fast_unseen(w, c);
	if (w->h.usual == FAST_KIND_HGET) {
		field = w->pos;
		if (!usual_arg(w) || w->pos - field <= USUAL_ARG_NONE)
			return false;
	}
	return w->pos == w->p.payload_len;
}

INLINE bool handler_peek_usual(struct work *w, const struct control *c)
{
	handler_peek(w, c, true);
	w->h.usual = w->h.first;
	if (w->h.first == FAST_KIND_GET)
		return w->h.first_end == w->p.payload_len;
	w->h.usual = usual_kind(w, *(u64 *)w->payload, *(u64 *)(w->payload + 8));
	if (usual_writes(w))
		return usual_write_read(w, c);
	return w->h.usual >= FAST_KIND_HGET && usual_hashed(w, c);
}

/* The small way that holds the key, read to the reply: the predicted one, else the first with its tag.
 * *end: where the value ends. Returns the way, WAYS if none has its tag, or USUAL_WAY_NOT. What it reads
 * may be torn. */
#define USUAL_WAY_NOT (WAYS + 1)
INLINE u32 fast_read_usual(struct work *w, const struct control *c, struct cache_set *set, u32 *end)
{
	u64 hash = w->h.look.hash;
	u32 way = way_predicted(hash), bits;
	struct slot *slot;

	if (read_once(set->tags[way]) != tag_of(hash)) {
		bits = tags_match(set, tag_of(hash));
		if (!bits)
			return WAYS;
		way = lowest_bit(bits);
	}
	slot = slot_small(set, way);
	if (!slot || !slot_key_equal(slot, &w->h.look, CLASS0_BYTES))
		return USUAL_WAY_NOT;
	load_barrier(); /* as in fast_read_set() */
	if (slot->flags & SLOT_F_EXPIRES)
		fast_wall(w, c);
	return fast_read_slot(w, slot, CLASS0_BYTES, true, end) ? USUAL_WAY_NOT : way;
}

/* Looks the key up as fast_get() does. */
INLINE enum usual fast_get_usual(struct work *w, const struct control *c)
{
	struct cache_set *set = set_get(set_of(c, w->h.look.hash));
	u32 changes, marks, way, end = 0;

	if (!set)
		return USUAL_NOT;
	changes = set_read_begin(set);
	marks = read_once(set->marks);
	way = fast_read_usual(w, c, set, &end);
	if (!set_read_valid(set, changes) || marks || way == USUAL_WAY_NOT)
		return USUAL_NOT;
	if (way == WAYS) {
		w->refusal = STAT_REFUSE_MISS;
		return USUAL_MISS;
	}
	set_visit(set, way);
	return fast_frame(w, 0, end) ? USUAL_NOT : USUAL_ANSWER;
}

/* Whether the key is in the cache, whatever holds it. */
INLINE enum usual fast_lacks_usual(struct work *w, const struct control *c)
{
	struct cache_set *set = set_get(set_of(c, w->h.look.hash));
	u32 changes, there;

	if (!set)
		return USUAL_NOT;
	changes = set_read_begin(set);
	there = read_once(set->marks) | tags_match(set, tag_of(w->h.look.hash));
	if (!set_read_valid(set, changes) || there)
		return USUAL_NOT;
	w->refusal = STAT_REFUSE_MISS;
	return USUAL_MISS;
}

/* One GET of a small value, a read of a key that is not in the cache, or a write. */
INLINE enum usual handler_usual(struct work *w, struct control *c, const struct conn *conn)
{
	if (usual_writes(w))
		return usual_write(w, c, conn);
	w->reply_len = w->refusal = w->h.closed = w->h.pings = 0;
	w->commands = w->whole = w->h.gets = 1;
	if (c->fast_off & 1U << w->h.usual)
		return USUAL_NOT;
	if (c->stopping) {
		w->refusal = w->h.closed = STAT_REFUSE_NOT_SERVING;
		return USUAL_MISS;
	}
	if (fast_closed(w, c, conn) || w->h.rights != conn->h.rights)
		return USUAL_NOT;
	if (is_vain(conn) && set_aside(c, set_of(c, w->h.look.hash), c->vain_mask))
		w->refusal = STAT_REFUSE_ASIDE;
	else
		w->refusal = w->h.unseen;
	if (w->refusal)
		return USUAL_MISS;
	return w->h.usual == FAST_KIND_GET ? fast_get_usual(w, c) : fast_lacks_usual(w, c);
}

INLINE void handler_usual_done(struct work *w, struct control *c)
{
	fast_looked(w, c, w->refusal, w->h.usual == FAST_KIND_GET ? SLOT_STRING : SLOT_HASH, true);
}

INLINE void handler_usual_take(struct work *w, const struct control *c)
{
	usual_write_take(w, c);
}

INLINE bool handler_up_usual(struct conn *conn, struct work *w, bool writes)
{
	if (!usual_counts(conn) || (writes && !usual_write_hold(conn, w)))
		return false;
	conn->h.half = 0;
	held_note(conn, w);
	if (!writes && w->refusal == STAT_REFUSE_MISS)
		vain_note(conn);
	return true;
}

INLINE void handler_up_usual_done(struct work *w)
{
	place_call(w, PLACES_HELD);
}
