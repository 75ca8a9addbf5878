/* SPDX-License-Identifier: GPL-2.0 */
/* effects.h - what requests do to keys: marks and shares of the fence, from the packet that makes a
 * command whole until it was executed.
 *
 * Invariants:
 *  U1. Marks and shares of the fence for what a packet says are taken before it goes up, and each is held
 *      by exactly one of: the connection's ring, its OVERFLOW share, its FENCE_PROOF share.
 *      marks[mark_tail .. mark_head) are those of unanswered requests, in order.
 *  U2. They are taken, and the gate is shut, before the packet is committed: behind the commit nothing is
 *      closed any more, so what was read in between was read with all of it closed. What the entry
 *      will ask for is foreseen without its lock (effects_take). Under the lock what was not foreseen is a
 *      race (UP_RACE); what was foreseen in vain is given back behind it. */
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

/* Gives back what was taken for a packet that does not go up after all, or whose effects something else
 * holds: its marks, its share. Global: verified by itself. */
__noinline int effects_release(u32 marks, u32 share)
{
	struct work *w = work_get();
	struct control *c = control_get();

	if (!w || !c)
		return 0;
	if (marks)
		marks_release(c, w->h.found.marks, w->h.found.due, false, 0);
	if (share)
		fence_return(c);
	return 0;
}

INLINE void gate_shut(struct control *c)
{
	atomic_add(&c->gate_seen, 1);
	count(STAT_GATE_SHUT);
}

/* The entry's flags as the packet will leave them. Here and below in bits: each branch under the entry's lock
 * costs the verifier a tenth more. */
INLINE u32 hold_flags(const struct conn *conn, const struct work *w)
{
	return read_once(conn->flags) | w->scan_lost * (CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE) |
	       w->h.found.uncountable * CONN_F_UNCOUNTABLE;
}

/* How many marks the ring holds. */
INLINE u32 hold_used(const struct conn *conn)
{
	return read_once(conn->h.mark_head) - read_once(conn->h.mark_tail);
}

_Static_assert(CONN_F_OVERFLOW >> 1 == CONN_F_FENCE_PROOF, "the share's flag is told by a shift");
_Static_assert(HOLD_RING == 0 && HOLD_SHARE_OLD == 1 && HOLD_SHARE_NEW == 2, "so is who holds");

/* Who is to hold what is due with the packet until it was executed: the ring of the connection, or one
 * share of the fence: OVERFLOW, if the ring has no room, or, if only proof will release it, FENCE_PROOF for
 * whatever there is to hold. flags, used: as above; trial: CONN_K_TRIAL. */
INLINE enum hold hold_choose(const struct work *w, u32 flags, u32 trial, u32 used)
{
	u32 due = w->h.found.due, overflow = w->h.found.overflow;
	u32 proof = any_bit((flags & CONN_F_UNCOUNTABLE) | trial);
	u32 lacks = any_bit(overflow) | (MARKS_IN_FLIGHT - used - due) >> 31;
	u32 holds =
	    any_bit(due | overflow | used | trial | (flags & (CONN_F_SCAN_LOST | CONN_F_OVERFLOW)));
	u32 share = (proof & holds) | (~proof & lacks);
	u32 had = any_bit(flags & (CONN_F_OVERFLOW >> proof));

	return share * (HOLD_SHARE_NEW - had);
}

/* Takes marks and shares of the fence for what is due with the packet, before it goes up; of what
 * is not, only the key's tag is kept. U2: and the share that hold_choose() will ask for, if the entry is
 * still like this then; and the gate, if what was found or the caller says so (shuts). Global: verified by
 * itself. */
__noinline int effects_take(u32 flags, u32 trial, u32 used, u32 shuts)
{
	struct work *w = work_get();
	struct control *c = control_get();
	int i;

	if (!w || !c)
		return 0;
	w->h.share = hold_choose(w, flags, trial, used) == HOLD_SHARE_NEW;
	if (w->h.share)
		fence_take(c);
	w->h.gate = w->h.found.gate || shuts;
	if (w->h.gate)
		gate_shut(c);
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

/* Whether the entry is as effects_take() took it for: sets w->h.hold. Lock held. */
INLINE bool hold_foreseen(const struct conn *conn, struct work *w)
{
	u32 trial = conn->h.kept & CONN_K_TRIAL;
	u32 hold = hold_choose(w, hold_flags(conn, w), trial, hold_used(conn));

	w->h.hold = hold;
	return !(hold & HOLD_SHARE_NEW & ~(w->h.share << 1));
}

/* What the packet takes goes to who holds it: w->h.hold. Lock held; scan results are valid. */
INLINE void hold_effects(struct conn *conn, struct work *w)
{
	u32 n = w->h.found.due, all = w->h.found.effects, used = hold_used(conn);
	u32 end = w->end + w->proof_ahead - conn->in_delta;
	bool proof = (conn->flags & CONN_F_UNCOUNTABLE) || (conn->h.kept & CONN_K_TRIAL);
	u8 flag = proof ? CONN_F_FENCE_PROOF : CONN_F_OVERFLOW;

	if (!TIER_XDP && (conn->flags & CONN_F_AHEAD) && (conn->flags & CONN_F_SCAN_LOST))
		end = seq_max(end, conn->ahead_end - conn->in_delta); /* O5 */
	conn->h.half = 0;
	if (all != n && (proof || w->h.found.overflow || used + all > MARKS_IN_FLIGHT)) {
		half_settle(w);
		all = n;
	}
	if (w->h.hold == HOLD_RING) {
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
		return;
	}
	if (!(conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW)) ||
	    seq_after(end, conn->h.proof_pos))
		conn->h.proof_pos = end;
	conn->flags |= flag;
	if (w->h.found.hidden || (conn->flags & CONN_F_SCAN_LOST) || (conn->h.kept & CONN_K_TRIAL))
		conn->handler_bits |= flag;
}

/* P2. Lock held, behind hold_effects(). */
INLINE void held_note(struct conn *conn, struct work *w)
{
	if (conn_holds(conn))
		place_note(conn, w, PLACES_HELD);
}

/* Outside of the lock: the daemon finds the entry; what was taken and is not held is given back. */
INLINE void hold_done(struct work *w, const struct conn *conn)
{
	bool taken = w->h.hold == HOLD_SHARE_NEW, marks = w->h.hold != HOLD_RING;
	bool vain = w->h.share && !taken;

	place_call(w, PLACES_HELD);
	if (taken && (conn->flags & CONN_F_FENCE_PROOF))
		count(STAT_FENCE_PROOF);
	if (marks || vain)
		effects_release(marks, vain);
}
