/* SPDX-License-Identifier: GPL-2.0 */
/* resend.h - segments of the fast path's own: duplicate ACKs for gaps, replays for duplicates. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/packet.h"
#include "net/segment.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/accept.h"
#include "splice/splice.h"

/* Sends w->reply_len bytes of w->reply (or a bare ACK) in place of the packet at hand. As much as
 * fits: the payload is cut to the room there is. */
INLINE enum verdict send_segment(ctx_t *ctx, struct work *w)
{
#if TIER_XDP
	u32 header = w->p.payload_off - w->p.tcp_bytes + (w->p.ts_off ? 32 : 20);

	if (w->p.odd & (ODD_F_IP | ODD_F_FRAGMENT))
		return V_DROP;
	for (int i = 0; i < 4; i++) {
		s32 more = header + w->reply_len - tier_len(ctx);

		if (tier_grow(ctx, more) != GROWN_FAILED)
			return tier_send(ctx, w, segment_build(w->p.ts_off != 0, false)) == XDP_TX
				   ? V_SENT
				   : V_DROP;
		w->reply_len /= 2;
	}
	return V_DROP;
#else
	if (!(w->p.odd & (ODD_F_IP | ODD_F_FRAGMENT)))
		tier_clone(ctx, w, segment_build(w->p.ts_off != 0, tier_csum_partial(ctx)),
			   ctx->ifindex);
	return V_DROP;
#endif
}

/* Payload beyond next, or older than PAWS allows: dropped, and a bare duplicate ACK tells the
 * client what is missing. */
INLINE enum verdict ingress_gap(ctx_t *ctx, struct work *w, struct conn *conn, struct sock_ref *r)
{
	bool send = false;

	count(STAT_DROP_OUT_OF_ORDER);
	if (!r->tp)
		return V_DROP;
	lock_take(&conn->lock);
	if (sock_view_load(r, &w->view) && conn->cookie == r->cookie && w->view.established &&
	    !(conn->flags & CONN_F_CLOSING)) {
		send = true;
		conn_stamp(conn, &w->view, w);
		link_again(conn, w);
		w->out_seq = conn->egress_max + conn->out_delta;
		w->out_ack = w->view.rcv_nxt + conn->in_delta;
		w->reply_len = 0;
	}
	lock_release(&conn->lock);
	if (!send)
		return V_DROP;
	count(STAT_DUP_ACK_SENT);
	return send_segment(ctx, w);
}

/* Whether everything the packet acknowledges is known to the kernel, so that it may be swallowed.
 * Lock held. */
INLINE bool ack_is_known(const struct conn *conn, const struct sock_view *v, const struct pkt *p)
{
	return seq_max(p->ack - conn->out_delta, conn->edge) == v->snd_una;
}

/* A copy of consumed requests: answered with the bytes that the client has not acknowledged, or
 * with a bare ACK. N1: it is no segment that TCP would look at, its acknowledgement only says where
 * this answer begins. V_REFUSED: it goes up, where TCP knows it as an old duplicate. */
INLINE enum verdict ingress_duplicate(ctx_t *ctx, struct work *w, struct conn *conn,
				      struct sock_ref *r)
{
	bool send = false;
	u32 unacked, from;

	if (!r->tp || w->p.odd)
		return V_REFUSED;
	lock_take(&conn->lock);
	if (sock_view_load(r, &w->view) && conn->cookie == r->cookie &&
	    conn_may_resend(conn, &w->view) && conn_paws_ok(conn, &w->p, &w->view, w->now) &&
	    !seq_after(w->p.ack, conn_sent_end(conn, &w->view)) &&
	    ack_is_known(conn, &w->view, &w->p)) {
		send = true;
		from = seq_max(conn->ack_max, w->p.ack);
		unacked = conn_unacked(conn, from);
		w->out_seq =
		    unacked ? seq_max(from, conn->replay_from) : conn->egress_max + conn->out_delta;
		if (unacked > conn_mss(conn, &w->view))
			unacked = conn_mss(conn, &w->view);
		replay_get(conn, w, w->out_seq, unacked);
		conn_stamp(conn, &w->view, w);
		link_again(conn, w);
		w->out_ack = w->view.rcv_nxt + conn->in_delta;
		if (unacked && from == conn->ack_max)
			sent_note(conn, w->now);
	}
	lock_release(&conn->lock);
	if (!send)
		return V_REFUSED;
	count(STAT_REPLAY_REQUEST);
	return send_segment(ctx, w);
}
