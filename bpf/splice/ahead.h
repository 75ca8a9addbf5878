/* SPDX-License-Identifier: GPL-2.0 */
/* ahead.h - payload beyond a hole: it goes up at once, so that TCP acknowledges it selectively as it
 * should, and a copy is scanned when the hole is filled. Work of the TC tier: XDP leaves it such
 * packets, and all others of the connection while it has a buffer.
 *
 * A buffer of erb_ahead belongs to a connection (CONN_F_AHEAD) from its first payload beyond a hole
 * until TCP has taken all that is in it. Bytes that TCP has are dropped from it, so that what is left
 * fits: what would reach further is dropped, and sent again.
 *
 * Who writes: ahead_look() the buffer, under ahead_busy; conn.ahead, ahead_busy and ahead_end under
 * conn.lock.
 *
 * Invariants:
 *  O1. While there is a buffer, every byte that goes up and that TCP may not have yet is in it. A position
 *      has one value: who sends another one there loses the stream (CONN_F_SCAN_LOST). So it does not
 *      matter what TCP takes, drops, prunes or joins, and in which order.
 *  O2. Before a packet goes up, all that is in the buffer and in order with it is scanned and its
 *      effects are taken: TCP may hand all of it to Redis at once.
 *  O3. in_delta does not move while there is a buffer: nothing is answered fast.
 *  O4. One CPU at a time is at a buffer (ahead_busy); another one drops its packet. A buffer bears
 *      its owner's cookie and is given back once.
 *  O5. The proof that a lost stream's share waits for covers all that is in its buffer (ahead_end).
 */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/handler.h"

_Static_assert((AHEAD_BYTES & (AHEAD_BYTES - 1)) == 0, "places wrap by a mask");
_Static_assert((AHEAD_BUFFERS & (AHEAD_BUFFERS - 1)) == 0, "so do numbers");
_Static_assert(AHEAD_BUFFERS < 256, "conn.ahead is a byte");
_Static_assert(AHEAD_SLACK >= SCAN_CHUNK, "a piece is read whole");

INLINE struct ahead *ahead_get(u32 number)
{
	u32 index = number - 1;

	return bpf_map_lookup_elem(&erb_ahead, &index);
}

/* Whether bytes before the packet's are still to come. The rest of a body that counts as scanned (S2)
 * may come later; not the last byte of a command that closes something with it (S3). */
INLINE bool is_beyond(const struct conn *conn, const struct pkt *p)
{
	return seq_after(p->seq, conn->next) ||
	       (p->seq == conn->next && conn->up_max != conn->next && handler_late(conn));
}

/* Gives a buffer back, unless it is another's by now. The exchange is a full barrier: what was read
 * and written before is over. */
INLINE void ahead_free(u32 number, u64 cookie)
{
	struct ahead *a = ahead_get(number);

	if (a && cookie)
		atomic_swap(&a->owner, cookie, 0);
}

/* The entry's buffer, 0 = none: for who ends its ownership. Lock held. */
INLINE u32 ahead_leave(struct conn *conn)
{
	u32 number = conn->flags & CONN_F_AHEAD ? conn->ahead : 0;

	conn->flags &= ~CONN_F_AHEAD;
	return number;
}

#if !TIER_XDP
enum ahead_fate {
	AHEAD_NOT = 0, /* the hole was filled meanwhile: a packet like any other */
	AHEAD_DROP,    /* no room; or perhaps TCP does not take it */
	AHEAD_RACE,
	AHEAD_KEPT, /* up, there is nothing to scan */
	AHEAD_SCAN, /* up, the buffer is scanned from next to w->end */
	AHEAD_LOST, /* it tells another story: the stream is lost */
};

/* Whether payload must be looked at beside the buffer: it is beyond a hole, or there is a buffer and
 * TCP does not have all of the payload yet. Behind the client's FIN nothing counts, and a server that
 * has closed reads no more. */
INLINE bool ahead_concerns(const struct conn *conn, const struct work *w, const struct sock_ref *r)
{
	u32 end = w->p.seq + w->p.payload_len;

	return r->tp && sock_state(r->tp) == TCP_ESTABLISHED &&
	       ((conn->flags & CONN_F_AHEAD) || is_beyond(conn, &w->p)) &&
	       seq_after(end, r->tp->rcv_nxt + conn->in_delta);
}

/* Gives the buffer back if TCP has taken all that is in it, or takes nothing any more. */
INLINE void ahead_settle(struct conn *conn, struct work *w, struct sock_ref *r)
{
	u32 number = 0;

	if (!r->tp)
		return;
	lock_take(&conn->lock);
	if (!conn->ahead_busy && conn->cookie == r->cookie && sock_view_load(r, &w->view) &&
	    (!w->view.established || !seq_after(conn->ahead_end, w->view.rcv_nxt + conn->in_delta)))
		number = ahead_leave(conn);
	lock_release(&conn->lock);
	if (number)
		ahead_free(number, r->cookie);
}

/* Takes a buffer if it is free. Global: verified by itself. */
__noinline int ahead_claim_one(u32 number, u64 cookie)
{
	struct ahead *a = ahead_get(number);

	if (!a || read_once(a->owner) || atomic_swap(&a->owner, 0, cookie))
		return 0;
	a->count = 0;
	return 1;
}

/* Takes a free buffer. Returns its number, 0: there is none. Global: verified by itself. */
__noinline int ahead_claim(u64 cookie)
{
	u32 first = cookie;
	int i;

	bpf_for(i, 0, AHEAD_BUFFERS)
	{
		u32 number = ((first + i) & (AHEAD_BUFFERS - 1)) + 1;

		if (ahead_claim_one(number, cookie))
			return number;
	}
	return 0;
}

/* Whether TCP is sure to take the packet's timestamp, as things are: without the allowances of
 * paws_ok(). What it does not take is not lost by being dropped here. */
INLINE bool ahead_paws_ok(const struct conn *conn, const struct work *w)
{
	const struct pkt *p = &w->p;

	if (!p->ts_off || !w->view.fixed.tstamp_ok)
		return !p->ts_off == !w->view.fixed.tstamp_ok;
	return !seq_before(p->tsval, w->view.ts_recent) &&
	       (!conn->in_delta || !seq_before(p->tsval, conn->ts_recent));
}

/* O1: the stream cannot be followed: which of its stories Redis will read is TCP's secret. Lock held.
 */
INLINE void ahead_lost(struct conn *conn, const struct work *w)
{
	conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
	conn->ahead_end = seq_max(conn->ahead_end, w->end);
	handler_lost(conn);
}

/* O4: becomes the one who is at the connection's buffer, which is the given one if it has none.
 * AHEAD_KEPT: done, in w is what cannot change meanwhile. Lock held. */
INLINE enum ahead_fate ahead_take(struct conn *conn, struct work *w, u32 number)
{
	bool beyond = is_beyond(conn, &w->p);

	if (conn->cookie != w->cookie || (conn->flags & CONN_F_SCAN_LOST) || conn->ahead_busy)
		return AHEAD_RACE;
	if (!w->view.established || (beyond && !ahead_paws_ok(conn, w)))
		return AHEAD_DROP;
	w->ring_floor = w->view.rcv_nxt + conn->in_delta;
	if (seq_after(w->ring_floor, conn->next)) { /* TCP has bytes that nobody has scanned */
		ahead_lost(conn, w);
		return AHEAD_LOST;
	}
	if (!(conn->flags & CONN_F_AHEAD)) {
		if (!beyond)
			return AHEAD_NOT;
		if (!number)
			return AHEAD_DROP;
		conn->flags |= CONN_F_AHEAD;
		conn->ahead = number;
		conn->ahead_end = conn->next;
	}
	conn->ahead_busy = 1;
	w->ring = conn->ahead;
	w->ring_from = seq_max(w->p.seq, w->ring_floor);
	return AHEAD_KEPT;
}

/* Leaves the buffer, and gives it back if there is nothing in it. */
INLINE void ahead_done(struct conn *conn, struct work *w)
{
	struct ahead *a = ahead_get(w->ring);
	bool empty = a && !a->count;

	lock_take(&conn->lock);
	conn->ahead_busy = 0;
	if (empty)
		ahead_leave(conn);
	lock_release(&conn->lock);
	if (empty)
		ahead_free(w->ring, w->cookie);
}

/* Whether two stretches overlap or lie side by side. */
INLINE bool ahead_touch(const struct ahead_range *range, u32 from, u32 end)
{
	return !seq_after(range->from, end) && !seq_after(from, range->end);
}

/* One range of ahead_ranges(). Global: verified by itself, or the loop does not converge on Linux
 * 6.12. */
__noinline int ahead_range(u32 at, u32 join)
{
	struct work *w = work_get();
	struct ahead_range range;
	struct ahead *a;
	bool touches;
	u32 to;

	a = w ? ahead_get(w->ring) : 0;
	if (!a || at >= AHEAD_RANGES || at >= a->count)
		return 0;
	range.end = a->ranges[at].end;
	range.from = seq_max(a->ranges[at].from, w->ring_floor);
	if (!seq_after(range.end, w->ring_floor))
		return 0;
	touches = ahead_touch(&range, w->ring_from, w->ring_end);
	w->ring_touch |= touches;
	if (touches && join) {
		if (seq_before(range.from, w->ring_first))
			w->ring_first = range.from;
		w->end = seq_max(w->end, range.end);
		return 0;
	}
	to = w->ring_count;
	w->ring_count = to + 1;
	opaque(to);
	if (to < AHEAD_RANGES)
		a->ranges[to] = range;
	return 0;
}

/* Goes over the ranges: leaves out what TCP has, and, if join, those that touch [ring_from,
 * ring_end), which becomes one with them and is added. w->ring_touch: whether there were any. Global:
 * verified by itself. */
__noinline int ahead_ranges(u32 join)
{
	struct work *w = work_get();
	struct ahead *a;
	u32 to;
	int i;

	a = w ? ahead_get(w->ring) : 0;
	if (!a)
		return 0;
	w->ring_touch = w->ring_count = 0;
	w->ring_first = w->ring_from;
	bpf_for(i, 0, AHEAD_RANGES)
	{
		ahead_range(i, join);
	}
	to = w->ring_count;
	opaque(to);
	if (join && to < AHEAD_RANGES) {
		a->ranges[to].from = w->ring_first;
		a->ranges[to].end = w->end;
		w->ring_count++;
	}
	a->count = w->ring_count;
	return 0;
}

/* Compares n bytes of the piece with what is in the buffer at that place. */
INLINE bool ahead_same(const struct work *w, const struct ahead *a, u32 at, u32 n)
{
	u64 other = 0;

	for (u32 i = 0; i < SCAN_CHUNK; i += 8) {
		u64 bits = *(const u64 *)(w->chunk.bytes + i) ^ *(const u64 *)(a->bytes + at + i);

		if (i >= n)
			break;
		if (n - i < 8)
			bits &= (1ULL << (n - i) * 8) - 1;
		other |= bits;
	}
	return !other;
}

/* Ends the piece at w->ring_pos where one range begins or ends. Global: verified by itself. */
__noinline int ahead_bound(u32 at)
{
	struct work *w = work_get();
	struct ahead *a;
	s32 from, end;

	a = w ? ahead_get(w->ring) : 0;
	if (!a || at >= AHEAD_RANGES || at >= a->count)
		return 0;
	from = a->ranges[at].from - w->ring_pos;
	end = a->ranges[at].end - w->ring_pos;
	if (end <= 0)
		return 0;
	w->ring_touch |= from <= 0;
	if (from <= 0)
		from = end;
	if ((u32)from < w->ring_piece)
		w->ring_piece = from;
	return 0;
}

/* Takes one piece of the packet at w->ring_pos: new bytes into the buffer, known ones are compared.
 * Global: verified by itself. */
__noinline int ahead_piece(struct __sk_buff *ctx)
{
	struct work *w = work_get();
	struct ahead *a;
	u32 pos, at, n;
	int i;

	a = w ? ahead_get(w->ring) : 0;
	if (!a)
		return 0;
	pos = w->ring_pos;
	at = pos & (AHEAD_BYTES - 1);
	n = w->ring_end - pos;
	if (n > SCAN_CHUNK)
		n = SCAN_CHUNK;
	w->ring_piece = n > AHEAD_BYTES - at ? AHEAD_BYTES - at : n;
	w->ring_touch = 0;
	bpf_for(i, 0, AHEAD_RANGES)
	{
		ahead_bound(i);
	}
	n = w->ring_piece;
	if (!sized(n, SCAN_CHUNK))
		return 0;
	if (w->ring_touch)
		w->ring_other |=
		    tier_load(ctx, w->p.payload_off + pos - w->p.seq, w->chunk.bytes, n) ||
		    !ahead_same(w, a, at, n);
	else
		w->ring_other |=
		    !!tier_load(ctx, w->p.payload_off + pos - w->p.seq, a->bytes + at, n);
	w->ring_pos = pos + n;
	return 0;
}

/* Pieces of one packet: whole ones, and one more where a range or the ring begins or ends. */
#define AHEAD_PIECES (AHEAD_BYTES / SCAN_CHUNK + 2 * AHEAD_RANGES + 2)

/* Puts the packet into the buffer. */
INLINE void ahead_store(struct __sk_buff *ctx, struct work *w)
{
	int i;

	w->ring_other = 0;
	w->ring_pos = w->ring_from;
	bpf_for(i, 0, AHEAD_PIECES)
	{
		if (read_once(w->ring_pos) == w->ring_end || w->ring_other)
			break;
		ahead_piece(ctx);
	}
	if (read_once(w->ring_pos) != w->ring_end)
		w->ring_other = 1;
}

/* Whether there is room. The packet at which TCP waits has a range of its own, if it needs one:
 * else the client could never go on. */
INLINE bool ahead_fits(const struct work *w, const struct ahead *a)
{
	u32 most = w->ring_from == w->ring_floor ? AHEAD_RANGES : AHEAD_RANGES - 1;

	return w->ring_end - w->ring_floor <= AHEAD_BYTES && (w->ring_touch || a->count < most);
}

/* The packet is in the buffer, one with [ring_first, w->end): what is to be scanned. Of a counted
 * command that is not whole the last byte must have come: S3. Lock held. */
INLINE enum ahead_fate ahead_order(struct conn *conn, struct work *w)
{
	u32 reach = handler_late(conn) ? w->ring_first + 1 : w->ring_first;

	conn->ahead_end = seq_max(conn->ahead_end, w->end);
	if (seq_after(reach, conn->next)) { /* nothing of it counts yet */
		w->end = conn->up_max;
		return AHEAD_KEPT;
	}
	if (!seq_after(w->end, conn->next))
		return AHEAD_KEPT;
	w->scan_seq = conn->next;
	w->scan_len = w->end - conn->next;
	return AHEAD_SCAN;
}

/* Payload that ahead_concerns(). On AHEAD_SCAN the caller ends with ahead_done(). Global: verified by
 * itself. */
__noinline int ahead_look(struct __sk_buff *ctx)
{
	struct work *w = work_get();
	enum ahead_fate fate;
	struct conn *conn;
	struct ahead *a;
	u32 number = 0;

	conn = w ? conn_get(&w->p.key) : 0;
	if (!conn)
		return AHEAD_RACE;
	if (!(conn->flags & CONN_F_AHEAD)) {
		number = ahead_claim(w->cookie);
		if (!number)
			count(STAT_AHEAD_FULL);
	}
	lock_take(&conn->lock);
	fate = ahead_take(conn, w, number);
	lock_release(&conn->lock);
	if (number && (fate != AHEAD_KEPT || w->ring != number))
		ahead_free(number, w->cookie);
	if (fate == AHEAD_LOST)
		count(STAT_INVARIANT);
	if (fate != AHEAD_KEPT)
		return fate;
	w->ring_end = w->end;
	ahead_ranges(0);
	a = ahead_get(w->ring);
	if (a && ahead_fits(w, a)) {
		ahead_store(ctx, w);
		ahead_ranges(1);
		lock_take(&conn->lock);
		if (w->ring_other)
			ahead_lost(conn, w);
		fate = w->ring_other ? AHEAD_LOST : ahead_order(conn, w);
		lock_release(&conn->lock);
	} else {
		fate = AHEAD_DROP;
	}
	if (fate == AHEAD_LOST)
		count(STAT_AHEAD_OTHER);
	else if (fate == AHEAD_KEPT)
		count(STAT_AHEAD_KEPT);
	if (fate != AHEAD_SCAN) {
		ahead_done(conn, w);
		w->ring = 0;
	}
	return fate;
}

/* The piece of the buffer at w->scan_seq + pos, as chunk_load() has it of a packet. Global: verified
 * by itself. */
__noinline int ahead_chunk(u32 pos)
{
	struct work *w = work_get();
	struct ahead *a;
	u32 at, n;

	if (!w)
		return 0;
	if (pos + SCAN_WORD <= w->chunk.end || w->chunk.end >= w->scan_len)
		return 1;
	a = ahead_get(w->ring);
	if (!a)
		return 0;
	at = (w->scan_seq + pos) & (AHEAD_BYTES - 1);
	n = w->scan_len - pos;
	if (n > SCAN_CHUNK)
		n = SCAN_CHUNK;
	if (n > AHEAD_BYTES - at)
		n = AHEAD_BYTES - at;
	for (u32 i = 0; i < SCAN_CHUNK; i += 8)
		*(u64 *)(w->chunk.bytes + i) = *(const u64 *)(a->bytes + at + i);
	w->chunk.at = pos;
	w->chunk.end = pos + n;
	return 1;
}
#endif
