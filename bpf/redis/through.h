/* SPDX-License-Identifier: GPL-2.0 */
/* through.h - write-through, the handler's part: which SETs and which replies it is for. What is believed
 * and why: cache/marks.h, W1 to W5.
 *
 * Invariant:
 *  B1. CONN_K_THROUGH: what the connection has said last, but for reads of the express lane, is a SET
 *      that came alone in its packet, in FAST. Bytes that go up again end it: where TCP has dropped
 *      that packet, they may be others.
 */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/marks.h"
#include "net/work.h"
#include "redis/get.h"
#include "redis/resp.h"

#define RESP_ARRAY3_BULK3 0x0a0d33240a0d332aULL /* "*3\r\n$3\r\n" */
#define RESP_SET_CRLF	  0x0a0d746573ULL	/* "set\r\n" */
#define RESP_SET_MASK	  0xffffffffffULL
#define THROUGH_KEY_AT	  13		      /* of a SET: where its key's header begins */
#define THROUGH_BYTES_MAX (CLASS1_BYTES + 48) /* value, key and what RESP says around them */

_Static_assert(THROUGH_BYTES_MAX <= PAYLOAD_BYTES, "it lies in the copy of the packet");
_Static_assert(sizeof(struct slot) % 4 == 0 && CLASS1_BYTES % 8 == 0, "words of a slot");

/* Whether the packet, which was scanned, may be one plain SET. */
INLINE bool through_may(const struct work *w)
{
	return w->h.alone && w->h.found.done == 1 && w->h.found.due == 1 &&
	       w->h.found.effects == 1 && !w->h.found.late && !w->ring &&
	       w->scan_from == w->p.seq && w->loaded == w->p.payload_len &&
	       w->loaded <= THROUGH_BYTES_MAX && *(const u64 *)w->payload == RESP_ARRAY3_BULK3;
}

/* Whether the command behind such a header is SET, in any case. */
INLINE bool through_named(const u8 *body)
{
	return ((*(const u64 *)(body + 8) & RESP_SET_MASK) | 0x202020) == RESP_SET_CRLF;
}

/* Whether Redis runs what it is sent. MODULE LOAD, behind which it may not, shuts the gate before it goes
 * up, and the daemon moves write_through before it acknowledges that. */
INLINE bool through_believed(const struct control *c)
{
	if (read_once(c->gate_seen) != read_once(c->gate_ack))
		return false;
	load_barrier();
	return read_once(c->write_through);
}

/* Whether the SET's key is worth it, as far as that shows without reading the SET: most are not. */
INLINE bool through_wanted(const struct work *w, const struct control *c)
{
	u32 set = w->h.found.marks[0].set;

	return !mark_is_share(set) && set <= MARK_SET && !set_aside(c, set, c->look_mask) &&
	       written_wanted(set, w->h.found.hashes[0]);
}

/* Whether what a SET says may be believed now; notes as of when. What moves later ends it: W4. */
INLINE bool through_open(struct work *w, const struct control *c, u64 *global_version)
{
	*global_version = read_once(c->global_version);
	load_barrier();
	if (read_once(c->fence) || !through_believed(c)) /* a barrier too */
		return false;
	w->h.written.cache_epoch = read_once(c->cache_epoch);
	return c->serving && !c->stopping && c->fills;
}

/* Copies an argument of the payload into the image, padded with zeros to whole words. Global: verified by
 * itself, as its caller has many paths. */
__noinline int through_copy(u32 to, u32 from, u32 len)
{
	struct work *w = work_get();
	u64 word;

	if (!w)
		return 0;
	for (u32 i = 0; i < CLASS1_BYTES; i += 8) {
		u32 at = from + i, put = to + i, left = len - i;

		if (i >= len)
			break;
		opaque(at);
		opaque(put);
		if (at > PAYLOAD_BYTES || put > CLASS1_BYTES)
			return 0;
		word = *(u64 *)(w->payload + at);
		if (left < 8)
			word &= (1ULL << left * 8) - 1;
		*(u64 *)((u8 *)w->h.written.image + put) = word;
	}
	return 1;
}

/* Copies a SET's value, and behind it its key, into the image. */
INLINE bool through_fill(u32 value_at, u32 value_len, u32 key_at, u32 key_len)
{
	return through_copy(SLOT_HEADER_BYTES, value_at, value_len) &&
	       through_copy(SLOT_HEADER_BYTES + value_len, key_at, key_len);
}

/* Where the bytes of the argument at this offset of the payload begin, and in the upper half how many; 0: there
 * is none that is whole and in its usual spelling. Global: verified by itself. */
__noinline u64 through_arg(u32 at)
{
	struct work *w = work_get();
	u32 len = 0, used, end;

	opaque(at);
	if (!w || at > THROUGH_BYTES_MAX || w->payload[at] != '$')
		return 0;
	used = fast_key_len(w->payload + at + 1, &len);
	at += 1 + used;
	end = at + len;
	opaque(end);
	if (!used || end > THROUGH_BYTES_MAX || *(u16 *)(w->payload + end) != RESP_CRLF)
		return 0;
	return (u64)len << 32 | at;
}

/* Header and end of the image. */
INLINE void through_frame(struct work *w, u32 value_len, u32 key_len, u64 global_version)
{
	struct slot *slot = (struct slot *)w->h.written.image;
	u32 tail = w->h.written.class ? CLASS1_BYTES : CLASS0_BYTES;
	struct written_end *end = (struct written_end *)((u8 *)slot + tail - WRITTEN_TAIL);

	slot_head(slot, w->h.written.cache_epoch, value_len, key_len | SLOT_AWAITED, SLOT_F_WRITTEN,
		  w->h.db);
	end->global_version = global_version;
	end->until_ns = w->now + WRITTEN_NS;
}

/* Reads the SET and makes its image: sets found.written. Global: verified by itself. */
__noinline int through_look(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 key_len, value_len, bytes;
	u64 global_version, key, value;

	if (!w || !c || !through_may(w) || !through_wanted(w, c))
		return 0;
	if (!through_named(w->payload))
		return 0;
	key = through_arg(THROUGH_KEY_AT);
	key_len = key >> 32;
	value = key ? through_arg((u32)key + key_len + 2) : 0;
	value_len = value >> 32;
	bytes = SLOT_HEADER_BYTES + value_len + ((key_len + 7) & ~7U) + WRITTEN_TAIL;
	if (!value || (u32)value + value_len + 2 != w->p.payload_len || bytes > CLASS1_BYTES ||
	    !through_open(w, c, &global_version))
		return 0;
	w->h.written.class = bytes > CLASS0_BYTES;
	if (!through_fill(value, value_len, key, key_len))
		return 0;
	through_frame(w, value_len, key_len, global_version);
	w->h.found.written = 1;
	return 0;
}

/* Takes the SET's mark, with its image. Global: verified by itself. */
__noinline int through_take(void)
{
	struct work *w = work_get();
	u32 mark;

	if (!w)
		return 0;
	mark = mark_take_written(w->h.found.marks[0].set, w->h.found.hashes[0], &w->h.written);
	w->h.found.marks[0].set = mark;
	w->h.found.written = !!(mark & MARK_WRITTEN);
	return 0;
}

/* The packet's requests go into the entry: B1. Lock held. */
INLINE void through_commit(struct conn *conn, const struct work *w)
{
	bool written = w->h.found.written && w->h.hold == HOLD_RING && conn->state == CONN_FAST;

	if (written)
		conn->h.kept |= CONN_K_THROUGH;
	else
		conn->h.kept &= ~CONN_K_THROUGH;
}

/* Bytes go up again: B1. */
INLINE void through_doubt(struct conn *conn)
{
	lock_take(&conn->lock);
	conn->h.kept &= ~CONN_K_THROUGH;
	lock_release(&conn->lock);
}
