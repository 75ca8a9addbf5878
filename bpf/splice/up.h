/* SPDX-License-Identifier: GPL-2.0 */
/* up.h - packets that go up: scanned by the handler, which takes what they do, and translated. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/accept.h"
#include "splice/answer.h"
#include "splice/busy.h"
#include "splice/handler.h"
#include "splice/hold.h"
#include "splice/latency.h"
#include "splice/order.h"
#include "splice/splice.h"

INLINE void store_tcp(ctx_t *ctx, struct work *w)
{
	u32 off = w->p.l4_off, len = w->p.tcp_bytes;

	opaque(off);
	if (off <= HEAD_BYTES - TCP_BYTES_MAX && sized(len, TCP_BYTES_MAX))
		tier_store(ctx, off, w->head + off, len);
}

/* The packet leaves upward, translated if it has to be. The mark was set before. */
INLINE enum verdict pass_up(ctx_t *ctx, struct work *w)
{
	if (w->translate) {
		translate_up();
		store_tcp(ctx, w);
	}
	return V_UP;
}

/* What every packet that goes up leaves in the entry; counts: segment_counts(), viewed: the view is
 * loaded. Lock held. */
INLINE void up_account(struct conn *conn, struct work *w, bool viewed, bool counts)
{
	if (counts) {
		if (!w->acked)
			conn_ack(conn, &w->p, &w->view, w->now);
		conn_ts_recent(conn, &w->p, &w->view, w->now);
		if (!w->held) /* Y4 */
			ack_goes_up(conn, w);
	}
	if ((counts || (!viewed && !(w->p.flags & TCP_RST))) && w->p.payload_len &&
	    seq_after(w->end, conn->up_max))
		conn->up_max = w->end;
	if (ends_connection(conn, w, viewed, counts))
		conn->flags |= CONN_F_CLOSING;
	if (w->moved && counts) {
		conn->ifindex = w->moved;
		conn->flags &= ~CONN_F_EGRESS_SEEN; /* until a reply has left there */
		link_turn(w, (u32 *)conn->link);
		conn_tag(conn, w);
	} else if (counts || !viewed) {
		link_note(conn, w);
	}
	translation_take(conn, w);
	if (viewed) {
		w->snd_wscale = w->view.fixed.snd_wscale;
		if (ack_too_old(conn, &w->p, &w->view))
			translation_refused(w);
	}
}

/* Behind ingress_unacceptable(), which has loaded the view. */
INLINE bool up_counts(const struct conn *conn, struct work *w, const struct sock_ref *r)
{
	return sock_view_again(r, &w->view) && segment_counts(conn, &w->p, &w->view, w->now);
}

/* Applies a scan to the entry. Lock held. */
INLINE enum up_taken up_commit(const struct control *c, struct conn *conn, struct work *w,
			       struct sock_ref *r, enum up_how how)
{
	bool lost = how == UP_LOST;
	enum up_taken taken;

	if (lost != !!(conn->flags & CONN_F_SCAN_LOST)) /* a fragment, or an admission */
		return UP_RACE;
	if (conn->spoke & ABSORBING) /* I9 */
		return UP_RACE;
	if (conn->cookie != r->cookie || (!lost && conn->next != w->scan_from))
		return UP_RACE;
	if ((conn->flags & CONN_F_AHEAD) && !w->ring && (TIER_XDP || !lost)) /* O2 */
		return UP_RACE;
	if (r->tp && !up_counts(conn, w, r)) /* N2: it did when it was looked at first */
		return UP_RACE;
	if (w->whole && (lost || conn->in_at != STREAM_BETWEEN))
		return UP_RACE;
	taken = handler_up_commit(conn, w, how);
	if (taken == UP_RACE)
		return UP_RACE;
	if (taken == UP_TAKEN && !lost) {
		conn->next = w->scan_next;
		conn->in_at = w->in_at;
		conn->requests += w->requests;
		conn->request_up_ns = w->now;
	}
	w->held = order_waits(c, conn, taken == UP_TAKEN ? w->asks : 0); /* Y1 */
	up_account(conn, w, r->tp, r->tp);
	return taken;
}

/* Has the payload scanned. Returns false if the packet must be dropped. */
INLINE bool up_scan(ctx_t *ctx, struct work *w, struct conn *conn, enum up_how *how)
{
	if (w->whole) {
		*how = UP_WHOLE;
		w->scan_from = w->p.seq;
		w->scan_next = w->p.seq + w->p.payload_len;
	} else {
		lock_take(&conn->lock);
		*how = conn->flags & CONN_F_SCAN_LOST ? UP_LOST : UP_SCAN;
		w->scan_from = conn->next;
		handler_up_load(w, conn);
		lock_release(&conn->lock);
		if (!w->ring) {
			w->scan_seq = w->p.seq;
			w->scan_len = w->p.payload_len;
		}
		/* Another CPU was faster. A body's rest may count as scanned before it comes (S2): where all of the
		 * packet does, its scan would take next back. */
		if (*how == UP_SCAN && (seq_after(w->scan_seq, w->scan_from) ||
					!seq_after(w->scan_seq + w->scan_len, w->scan_from)))
			return false;
	}
	handler_up_scan(ctx, w, conn, *how);
	return true;
}

/* Payload goes up: scanned, its effects taken, translated; or it is held. */
INLINE enum verdict ingress_up(ctx_t *ctx, struct work *w, struct conn *conn, struct sock_ref *r)
{
	const struct control *c;
	bool was_bypass, is_bypass;
	enum up_taken taken;
	enum up_how how;

	if (!tier_note(ctx, META_TRANSLATED))
		return V_UNMARKED;
	if (!up_scan(ctx, w, conn, &how))
		return V_DROP;
	c = control_get(); /* here: else it would lie on the stack all the way */
	if (!c)
		return V_DROP;
	w->asks = ASKS_DRAINED;
	if (order_stirs(c)) {
		if (order_watched(c) && !busy_passed()) { /* I1 */
			handler_up_undo(w);
			return V_DROP;
		}
		w->asks = !order_open(c) || handler_up_asks(w, how);
	}
	w->asks |= handler_up_syncs(w, how) * ASKS_SYNCED; /* in bits: cheaper for the verifier */
	lock_take(&conn->lock);
	was_bypass = conn->state == CONN_BYPASS;
	taken = up_commit(c, conn, w, r, how);
	is_bypass = conn->state == CONN_BYPASS;
	lock_release(&conn->lock);
	if (taken == UP_RACE) {
		handler_up_undo(w);
		count(STAT_DROP_RACE);
		return V_DROP;
	}
	handler_up_done(w, conn);
	if (is_bypass && !was_bypass)
		count(STAT_CONN_BYPASS);
	if (w->scan_lost)
		count(STAT_SCAN_LOST);
	if (w->held) {
		count(STAT_HELD);
		latency_hold();
		hold_copy(ctx);
		return V_DROP;
	}
	count(STAT_UP_TRANSLATED);
	if (sampled(w))
		latency_up();
	return pass_up(ctx, w);
}

/* New bytes that the kernel is sure to throw away, because the segment acknowledges nothing: up, but
 * nothing of it counts; the same numbers may come with other bytes. */
INLINE enum verdict ingress_reject(ctx_t *ctx, struct work *w, struct conn *conn,
				   struct sock_ref *r)
{
	if (!tier_note(ctx, META_TRANSLATED))
		return V_UNMARKED;
	lock_take(&conn->lock);
	if (conn->cookie == r->cookie)
		translation_take(conn, w);
	lock_release(&conn->lock);
	count(STAT_REFUSE_ACK);
	return pass_up(ctx, w);
}

/* Bytes that went up before, or no bytes at all: up again, unscanned and uncounted. */
INLINE enum verdict ingress_up_again(ctx_t *ctx, struct work *w, struct conn *conn,
				     struct sock_ref *r)
{
	const struct control *c;
	bool viewed;

	if (!tier_note(ctx, META_TRANSLATED))
		return V_UNMARKED;
	c = w->p.payload_len && !(w->p.flags & TCP_RST) ? control_get() : 0;
	lock_take(&conn->lock);
	w->held = c && order_waits(c, conn, 0); /* Y2 */
	w->held_ns = 0;
	if (c && !w->held && conn->cookie == r->cookie)
		latency_let_up(conn, w);
	viewed = r->tp && sock_view_load(r, &w->view);
	if (conn->cookie == r->cookie)
		up_account(conn, w, viewed,
			   viewed && segment_counts(conn, &w->p, &w->view, w->now));
	else
		w->translate = 0;
	lock_release(&conn->lock);
	if (w->held) {
		count(STAT_HELD_AGAIN);
		hold_copy(ctx);
		return V_DROP;
	}
	latency_held(w);
	count(w->p.payload_len ? STAT_UP_TRANSLATED : STAT_PURE_ACK_UP);
	return pass_up(ctx, w);
}
