/* SPDX-License-Identifier: GPL-2.0 */
/* effects.h - what requests do to keys: marks and shares of the fence, from the packet that makes a
 * command whole until it was executed.
 *
 * Invariant U1: marks and shares of the fence for what a packet says are taken before it goes up,
 * and each is held by exactly one of: the connection's ring, its OVERFLOW share, its FENCE_PROOF
 * share. marks[mark_tail .. mark_head) are those of unanswered requests, in order. */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/marks.h"
#include "net/packet.h"
#include "net/work.h"
#include "redis/through.h"
#include "splice/place.h"

/* Whether it holds marks or a share of the fence. Lock held. */
INLINE bool conn_holds(const struct conn *conn)
{
	return conn->h.mark_head != conn->h.mark_tail ||
	       (conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW));
}

/* Gives back what was taken for a packet that does not go up after all, or whose effects a share
 * of the fence holds instead. */
__noinline int effects_release(void)
{
	struct work *w = work_get();
	struct control *c = control_get();

	if (w && c)
		marks_release(c, w->h.found.marks, w->h.found.due, false, 0);
	return 0;
}

/* Takes marks and shares of the fence for what is due with the packet, before it goes up; of what
 * is not, only the key's tag is kept. Global. */
__noinline int effects_take(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	int i;

	if (!w || !c)
		return 0;
	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 n = i;

		if (n >= w->h.found.effects || n >= MARKS_IN_FLIGHT)
			break;
		if (n >= w->h.found.due)
			w->h.found.marks[n].request = tag_of(w->h.found.hashes[n]);
		else if (mark_is_share(w->h.found.marks[n].set))
			fence_take(c);
		else if (w->h.found.written)
			through_take();
		else
			mark_take(w->h.found.marks[n].set, w->h.found.hashes[n]);
	}
	return 0;
}

/* The keys of a command that is not whole cannot wait: it takes a share of the fence instead. */
INLINE void half_settle(struct work *w)
{
	if (w->h.found.late)
		w->h.found.late |= PENDING_SETTLE;
	else
		w->h.scan.pending |= PENDING_SETTLE;
}

/* Decides who holds the packet's effects until they are executed: the ring of the connection, or
 * one share of the fence. Lock held; scan results are valid. */
INLINE enum hold hold_effects(struct conn *conn, struct work *w)
{
	u32 n = w->h.found.due, all = w->h.found.effects,
	    used = conn->h.mark_head - conn->h.mark_tail;
	u32 end = w->end + w->proof_ahead - conn->in_delta;
	bool proof = (conn->flags & CONN_F_UNCOUNTABLE) || (conn->h.kept & CONN_K_TRIAL);
	u8 flag = CONN_F_OVERFLOW, had;

	if (!TIER_XDP && (conn->flags & CONN_F_AHEAD) && (conn->flags & CONN_F_SCAN_LOST))
		end = seq_max(end, conn->ahead_end - conn->in_delta); /* O5 */
	conn->h.half = 0;
	if (all != n && (proof || w->h.found.overflow || used + all > MARKS_IN_FLIGHT)) {
		half_settle(w);
		all = n;
	}
	if (proof) {
		flag = CONN_F_FENCE_PROOF;
		if (!n && !w->h.found.overflow && !used &&
		    !(conn->flags & (CONN_F_SCAN_LOST | CONN_F_OVERFLOW)) &&
		    !(conn->h.kept & CONN_K_TRIAL))
			return HOLD_RING; /* nothing to hold */
	} else if (!w->h.found.overflow && used + n <= MARKS_IN_FLIGHT) {
		for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
			u32 at = (conn->h.mark_head + i) & (MARKS_IN_FLIGHT - 1);
			u32 due =
			    (s32)(i - n) >> 31; /* a branch costs the verifier twice as much */

			if (i >= all)
				break;
			conn->h.marks[at].request =
			    (conn->requests & due) + w->h.found.marks[i].request;
			conn->h.marks[at].set = w->h.found.marks[i].set;
		}
		conn->h.mark_head += n;
		conn->h.half = all - n;
		return HOLD_RING;
	}
	if (!(conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW)) ||
	    seq_after(end, conn->h.proof_pos))
		conn->h.proof_pos = end;
	had = conn->flags & flag;
	conn->flags |= flag;
	if (w->h.found.hidden || (conn->flags & CONN_F_SCAN_LOST) || (conn->h.kept & CONN_K_TRIAL))
		conn->handler_bits |= flag;
	return had ? HOLD_SHARE_OLD : HOLD_SHARE_NEW;
}

/* P2. Lock held, behind hold_effects(). */
INLINE void held_note(struct conn *conn, struct work *w)
{
	if (conn_holds(conn))
		place_note(conn, w, PLACES_HELD);
}

/* Outside of the lock: the daemon finds the entry, a new share is taken, what is held otherwise is given back. */
INLINE void hold_done(struct work *w, struct control *c, struct conn *conn, enum hold hold)
{
	place_call(w, PLACES_HELD);
	if (hold == HOLD_SHARE_NEW) {
		fence_take(c);
		if (conn->flags & CONN_F_FENCE_PROOF)
			count(STAT_FENCE_PROOF);
	}
	if (hold != HOLD_RING)
		effects_release();
}

INLINE void gate_shut(struct control *c)
{
	atomic_add(&c->gate_seen, 1);
	count(STAT_GATE_SHUT);
}
