/* SPDX-License-Identifier: GPL-2.0 */
/* absorb.h - a write answered in the server's place: prepared, announced, looked at once more, committed, published,
 * answered. A program of its own behind a tail call (stages.h). What a write says and where it is kept until the
 * server has it, the handler knows.
 *
 * Invariants:
 *  I5. Before the commit the write is prepared whole: its record lies in the log behind the head, where nobody reads,
 *      and its answer in the reply. Behind the commit nothing can refuse, and nothing is undone.
 *  I6. Marks, the fence and the gate are looked at once more behind the CPU's word of erb_busy (I1): if any stands by
 *      then, the write is not answered. So whoever takes one of them finds this write's LSN given, or keeps it from
 *      being answered.
 *  I7. The write's LSN is given before it is answered, and its record is in the log before the word of erb_busy is
 *      taken back: whoever waits for the word finds it there.
 *  I8. No two locks are held. The connection's commit comes first, the LSN is given under the set's lock.
 *  I9. Between the two the connection is ABSORBING: nothing of it is answered, goes up or is sent again. Who read
 *      the answer early, or asked behind it, could see what was before the write.
 *  I10. control.order.absorb is set only while erb_busy is watched, and the stages of both tiers are there: else
 *      its packets would be dropped.
 *  I11. A write that cannot be answered now, but soon, is delayed: it is dropped, uncommitted, so that for TCP and for
 *      all of us it has not come yet, and a copy is brought up when it may be answered (hold.h). It would cost the
 *      server more than one that is answered, and what it marks would send up the next ones of a hot key, too.
 *      Without a copy it goes up. It is delayed for a bounded time in all, then it goes up.
 *  I12. Where a module keeps every write (the keep programs), its room is reserved before the LSN is given, and the
 *      record is pushed before the head moves: what it refuses is not answered, and what is answered it has.
 */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/answer.h"
#include "splice/busy.h"
#include "splice/handler.h"
#include "splice/hold.h"
#include "splice/place.h"

/* Whether writes may be answered at all. */
INLINE bool absorb_open(const struct control *c)
{
	return read_once(c->order.absorb);
}

/* The write is published: the connection may go on. */
INLINE void absorb_end(struct conn *conn, u64 cookie)
{
	lock_take(&conn->lock);
	if (conn->cookie == cookie)
		conn->spoke &= ~ABSORBING;
	lock_release(&conn->lock);
}

/* Commits and publishes what is prepared. Returns 0, or the reason against it: nothing has changed. */
INLINE u32 absorb_commit(struct work *w, struct control *c, struct conn *conn,
			 const struct sock_ref *r, enum grown grown, bool keeps)
{
	u64 *busy = busy_begin(c, handler_absorb_set(w));
	u32 reason = STAT_ABSORB_SHUT;

	if (!busy)
		return reason;
	if (absorb_open(c) && handler_absorb_may(w, c)) /* I6 */
		reason = answer_commit(w, conn, r, grown, ABSORBING | ABSORBED);
	if (!reason) {
		if (keeps)
			handler_keep_publish();
		else
			handler_absorb_publish();
		absorb_end(conn, r->cookie);
	}
	busy_end(busy);
	return reason;
}

/* The packet goes up, as it came. */
INLINE enum verdict absorb_not(struct work *w, u32 reason)
{
	w->unabsorbed = reason;
	w->unabsorbed_seq = w->p.seq;
	return V_REFUSED;
}

/* Whether the packet at hand is delayed still; begins that. marked_ns: 0, or for how long it is at most behind a mark. */
INLINE bool delay_lasts(struct conn *conn, const struct work *w, u32 marked_ns)
{
	u16 now = w->now >> 20;
	bool lasts;

	now += !now;
	lock_take(&conn->lock);
	if (conn->delayed_seq != w->p.seq || !conn->delayed_at) {
		conn->delayed_seq = w->p.seq;
		conn->delayed_at = now;
		conn->marked_at = 0;
	}
	if (!marked_ns)
		conn->marked_at = 0;
	else if (!conn->marked_at)
		conn->marked_at = now;
	lasts = (u16)(now - conn->delayed_at) < (u16)(DELAY_NS >> 20) &&
		(u16)(now - conn->marked_at) * !!marked_ns <= marked_ns >> 20;
	lock_release(&conn->lock);
	return lasts;
}

/* Whether the packet at hand, which cannot be answered for this reason, is delayed: then its copy is the daemon's. */
INLINE bool absorb_delayed(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
			   u32 reason)
{
	u32 marked_ns = 0, why = handler_absorb_delay(w, c, reason, &marked_ns);
	bool copied;

	/* Behind a request of its own connection it would wait for that alone. A guess: without the lock. */
	if (!why || read_once(conn->requests) != read_once(conn->replies) || !hold_bytes(ctx, w))
		return false;
	if (!delay_lasts(conn, w, marked_ns)) {
		handler_absorb_overdue(w, c, reason);
		return false;
	}
	w->delayed = why;
	copied = hold_copy(ctx);
	w->delayed = 0;
	if (copied)
		count(STAT_ABSORB_DELAYED);
	return copied;
}

/* Whether it is the packet at hand that absorb_not() was said of. */
INLINE bool unabsorbed(const struct work *w)
{
	return w->unabsorbed && w->unabsorbed_seq == w->p.seq;
}

/* Whether the packet is answered: V_SENT if so, and its answer is to be sent. V_REFUSED: it is as it came, and the next
 * program is told why. */
INLINE enum verdict absorb_packet(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
				  const struct sock_ref *r, bool keeps)
{
	u32 reason = read_once(conn->spoke) & ABSORBS_NOT ? STAT_ABSORB_ASKED
							  : answer_unfit(ctx, w, c, conn);
	enum grown grown;
	enum verdict v;
	s32 more;

	if (!reason)
		reason = handler_absorb(w, c, conn);
	if (!reason && keeps)
		reason = handler_keep_reserve(w);
	if (reason)
		return absorb_delayed(ctx, w, c, conn, reason) ? V_DROP : absorb_not(w, reason);
	more = w->p.payload_off + w->reply_len - tier_len(ctx);
	grown = tier_grow(ctx, more);
	reason = absorb_commit(w, c, conn, r, grown, keeps);
	if (reason) {
		v = answer_refused(ctx, reason, more, grown);
		return v == V_REFUSED ? absorb_not(w, reason) : v;
	}
	place_call(w, PLACES_TIMER);
	return V_SENT;
}

/* The packet at hand, which the first stage would have asked ingress_fast() of. keeps: every write is kept by a module,
 * too (I12). */
INLINE enum verdict absorb(ctx_t *ctx, bool keeps)
{
	struct control *c = control_get();
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;
	struct sock_ref r;
	enum verdict v;

	if (!c || !conn)
		return V_DROP;
	handler_absorb_peek(w);
	if (!sock_known(conn, &r))
		return absorb_not(w, STAT_REFUSE_RACE);
	w->view.fixed = r.fixed;
	v = absorb_packet(ctx, w, c, conn, &r, keeps);
	return v == V_SENT ? answer_send(ctx, w) : v;
}
