/* SPDX-License-Identifier: GPL-2.0 */
/* proofs.h - what is held although no reply comes: looked at by the sweep, released by proof. */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/marks.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "redis/admit.h"
#include "redis/effects.h"
#include "splice/handler.h"
#include "splice/table.h"

/* How long it has held what it holds, in 2^20 ns: no less than since a sweep first saw it. Lock
 * held. */
INLINE u32 held_for(struct conn *conn, u64 now)
{
	u32 oldest = conn->h.marks[conn->h.mark_tail & (MARKS_IN_FLIGHT - 1)].request;
	bool same = conn->flags & CONN_F_FENCE_PROOF;

	if (conn->h.mark_head != conn->h.mark_tail)
		same |= !seq_after(oldest, conn->h.held_request);
	if (conn->flags & CONN_F_OVERFLOW)
		same |= seq_before(conn->replies, conn->h.held_request);
	if (conn->h.held_at && same)
		return (u32)(now >> 20) - conn->h.held_at;
	conn->h.held_at = conn_holds(conn) ? now >> 20 : 0;
	conn->h.held_request = conn->requests;
	return 0;
}

/* Whether TCP has handed Redis all that went up, and replies are counted: then a list can show that
 * it was executed, although no reply comes. Lock held. */
INLINE bool held_provable(const struct conn *conn, u32 copied_seq)
{
	return conn_counted(conn) && !(conn->h.kept & CONN_K_TRIAL) &&
	       !(conn->flags & CONN_F_FENCE_PROOF) &&
	       !seq_before(copied_seq, conn->up_max - conn->in_delta);
}

/* Whether what it holds closes more than single sets. Read without the lock: for people. */
INLINE bool held_fence(const struct conn *conn)
{
	u32 tail = conn->h.mark_tail, n = conn->h.mark_head - tail;
	u32 fence = conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW);
	int i;

	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 at = tail + i;

		if (at - tail >= n)
			break;
		fence |= mark_is_share(conn->h.marks[at & (MARKS_IN_FLIGHT - 1)].set);
		opaque(fence);
	}
	return fence;
}

INLINE void held_report(struct sweep_io *io, const struct conn *conn, u32 why, u32 held)
{
	u32 n = io->helds++;

	opaque(n);
	if (n >= HELD_ROWS)
		return;
	__builtin_memcpy(&io->held[n].key, &conn->key, sizeof(conn->key));
	io->held[n].ms = ((u64)held << 20) / 1000000;
	io->held[n].why = why;
	io->held[n].fence = held_fence(conn);
}

/* What held_look() is told of the entry's socket. */
#define HELD_SOCKET 0x1 /* there is one, and Redis has not closed it */
#define HELD_SENDS  0x2 /* not all that it sent is acknowledged */

/* The entry at the walk's place n holds something: whether a list could prove that it may go. Returns flags of
 * its row, and in the upper half for how many requests. Whoever has held it for long is reported.
 * copied_seq was read before. Global: verified by itself. */
__noinline u64 held_look(u32 n, u32 socket, u32 copied_seq)
{
	u32 zero = 0, flags = 0, held, requests, why = HELD_GONE;
	struct work *w = work_get();
	struct sweep_io *io;
	struct conn *conn;

	io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	conn = walk_conn(walk_place(n));
	if (!conn || !w || !io)
		return 0;
	lock_take(&conn->lock);
	held = held_for(conn, w->now);
	/* The last one is not whole: its body counts as scanned (S2), and TCP may refuse the rest, although
	 * its marks were taken. */
	requests = conn->requests - (conn->h.late || seq_after(conn->next, conn->up_max));
	if (held > HELD_NS >> 20 && (socket & HELD_SOCKET) && held_provable(conn, copied_seq))
		flags = SWEEP_F_EXECUTED | SWEEP_F_COUNTED;
	if (conn->h.late || conn->in_at != STREAM_BETWEEN || seq_after(conn->next, conn->up_max))
		flags |= SWEEP_F_HALF;
	if ((socket & HELD_SOCKET) && seq_before(copied_seq, conn->up_max - conn->in_delta))
		why = HELD_UNREAD;
	else if (socket & HELD_SOCKET)
		why = socket & HELD_SENDS ? HELD_UNSENT : HELD_UNANSWERED;
	lock_release(&conn->lock);
	if (held > HELD_SHOWN_NS >> 20)
		held_report(io, conn, why, held);
	return (u64)requests << 32 | flags;
}

/* Whether proof up to proof_pos covers everything that the entry holds. Not while its replies are
 * counted: what it has sent since a trial ended well is in the ring, and is not proved. Lock held.
 */
INLINE bool release_covers(const struct conn *conn, const struct release_io *io)
{
	return io->remove || io->closed || !conn_counted(conn) || (conn->h.kept & CONN_K_TRIAL);
}

/* Takes what the entry's first requests hold into w->h.found, and the share of those that had no room
 * in the ring if none has come to it since the sweep. Returns that share's flag. Lock held. */
INLINE u32 release_counted(struct conn *conn, struct work *w, const struct release_io *io)
{
	u32 share = conn->flags & CONN_F_OVERFLOW;

	for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
		struct mark *m = &conn->h.marks[conn->h.mark_tail & (MARKS_IN_FLIGHT - 1)];

		if (conn->h.mark_tail == conn->h.mark_head || seq_after(m->request, io->requests))
			break;
		w->h.found.marks[i] = *m;
		w->h.found.effects = i + 1;
		conn->h.mark_tail++;
	}
	if (seq_after(conn->h.proof_pos, io->proof_pos))
		return 0;
	conn->flags &= ~share;
	return share;
}

/* Takes what the entry holds into w->h.found: all, or the share that waited for proof. Returns the
 * flags of the shares of the fence. Lock held. */
INLINE u32 release_take(struct conn *conn, struct work *w, bool all)
{
	u32 shares = conn->flags & CONN_F_FENCE_PROOF;
	u32 n = conn->h.mark_head - conn->h.mark_tail;

	conn->flags &= ~CONN_F_FENCE_PROOF;
	if (!all)
		return shares;
	shares |= conn->flags & CONN_F_OVERFLOW;
	for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
		if (i >= n)
			break;
		w->h.found.marks[i] =
		    conn->h.marks[(conn->h.mark_tail + i) & (MARKS_IN_FLIGHT - 1)];
	}
	w->h.found.effects = n;
	conn->h.mark_tail = conn->h.mark_head;
	conn->flags &= ~CONN_F_OVERFLOW;
	return shares;
}

INLINE u32 handler_proof_pos(const struct conn *conn)
{
	return conn->h.proof_pos;
}

INLINE u32 handler_sweep(struct conn *conn, struct sweep_io *io, const struct sock_ref *r,
			 const struct control *c, struct sweep_look *look)
{
	u32 flags = 0, candidate = 0;
	bool waits = false;

	if (conn_holds(conn)) {
		flags |= SWEEP_F_HOLDS;
	} else {
		conn->h.held_at = 0;
		conn->called &= ~(1 << PLACES_HELD);
	}
	if ((look->closed && conn_holds(conn)) ||
	    (look->executed && (conn->flags & CONN_F_FENCE_PROOF)))
		flags |= SWEEP_F_EXECUTED;
	look->counts = look->found && trial_give_up(conn, r);
	if (look->found)
		candidate = admit_candidate(conn, r, read_once(c->rights), &waits);
	if (candidate && r->tp)
		admit_report(io, conn, r->tp->write_seq, candidate);
	io->waiting += waits;
	return flags;
}

INLINE u32 handler_swept(struct sweep_io *io, u32 n, u32 flags, struct sweep_look *look)
{
	u32 socket = (look->lives * HELD_SOCKET) | (look->unsent * HELD_SENDS);
	u64 looked;

	if (look->counts)
		count(STAT_TRIAL_FAILED);
	if (!(flags & SWEEP_F_HOLDS))
		return 0;
	looked = held_look(n, socket, look->copied_seq);
	look->requests = looked >> 32;
	return looked;
}

INLINE bool handler_proved(const struct conn *conn, const struct release_io *io)
{
	if (io->counted)
		return conn_counted(conn) && !(conn->h.kept & CONN_K_TRIAL) &&
		       !seq_after(io->requests, conn->requests);
	return !seq_after(conn->h.proof_pos, io->proof_pos);
}

INLINE void handler_release_begin(struct work *w)
{
	w->h.found.effects = w->h.found.hidden = 0;
}

INLINE u32 handler_release(struct conn *conn, struct work *w, const struct release_io *io)
{
	u32 shares;

	w->h.found.hidden = conn->handler_bits;
	shares = io->counted && !io->remove && !io->closed
		     ? release_counted(conn, w, io)
		     : release_take(conn, w, release_covers(conn, io));
	conn->handler_bits &= ~shares;
	return shares;
}

INLINE void handler_released(struct work *w, struct control *c, u32 shares)
{
	marks_release(c, w->h.found.marks, w->h.found.effects, true, 0);
	if (shares & CONN_F_FENCE_PROOF)
		fence_end(c, w->h.found.hidden & CONN_F_FENCE_PROOF);
	if (shares & CONN_F_OVERFLOW)
		fence_end(c, w->h.found.hidden & CONN_F_OVERFLOW);
}
