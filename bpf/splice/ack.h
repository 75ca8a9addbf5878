/* SPDX-License-Identifier: GPL-2.0 */
/* ack.h - pure ACKs: dropped only if they say nothing new, answered by a replay if they show a
 * hole. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/accept.h"
#include "splice/resend.h"
#include "splice/splice.h"
#include "splice/up.h"

/* A hole that a replay can fill: a SACK block above the acknowledgement and none below (D-SACK), or
 * the third duplicate; once per hole and RTT (RFC 6675). Lock held. */
INLINE bool replay_wanted(struct conn *conn, const struct work *w)
{
	u64 pause = conn->rtt_us ? conn->rtt_us * 1000ULL : RTO_MIN_NS;

	if (conn->spoke & ABSORBING) /* I9 */
		return false;
	if (!conn_unacked(conn, w->p.ack) || w->p.ack != conn->ack_max ||
	    w->now - conn->replay_ns < pause)
		return false;
	if (w->p.sack_off)
		return seq_after(w->p.sack_first, w->p.ack);
	return conn->dup_acks >= 3;
}

/* A loss: remember the flight, halve the bound. Lock held. */
INLINE void conn_loss(struct conn *conn, u64 now)
{
	u32 end = conn->edge + conn->out_delta;

	conn->replay_ns = now;
	if (seq_before(conn->ack_max, conn->recover))
		return;
	conn->recover = end;
	conn->flight_max /= 2;
	if (conn->flight_max < REPLY_BYTES_MAX)
		conn->flight_max = REPLY_BYTES_MAX;
}

/* Nothing in it is new to the kernel, and the kernel has nothing to send for it. Lock held, segment_counts(). */
INLINE bool ack_droppable(const struct conn *conn, const struct sock_view *v, const struct work *w)
{
	const struct pkt *p = &w->p;

	return conn->state == CONN_FAST && !(conn->flags & CONN_F_CLOSING) && !p->odd &&
	       p->seq == conn->next && !p->sack_off && v->write_seq == v->snd_una &&
	       ack_is_known(conn, v, p) && !(conn->spoke & SPOKE_SINCE) &&
	       w->now - conn->ack_up_ns < PURE_ACK_UP_NS;
}

enum ack_fate { ACK_UP = 0, ACK_DROP, ACK_REPLAY };

INLINE enum verdict ingress_ack(ctx_t *ctx, struct work *w, struct conn *conn, struct sock_ref *r)
{
	enum ack_fate fate = ACK_UP;

	if (!r->tp || (w->p.flags & (TCP_FIN | TCP_RST)))
		return ingress_up_again(ctx, w, conn, r);
	lock_take(&conn->lock);
	if (sock_view_load(r, &w->view) && conn->cookie == r->cookie &&
	    segment_counts(conn, &w->p, &w->view, w->now)) {
		w->acked = 1;
		conn_ack(conn, &w->p, &w->view, w->now);
		if (replay_wanted(conn, w)) {
			conn_loss(conn, w->now);
			if (w->view.write_seq == conn->edge && !w->p.odd &&
			    ack_is_known(conn, &w->view, &w->p)) {
				fate = ACK_REPLAY;
				w->out_seq = w->p.ack;
				w->reply_len = w->p.sack_off ? w->p.sack_first - w->p.ack
							     : conn_mss(conn, &w->view);
				if (w->reply_len > conn_unacked(conn, w->p.ack))
					w->reply_len = conn_unacked(conn, w->p.ack);
				if (w->reply_len > conn_mss(conn, &w->view))
					w->reply_len = conn_mss(conn, &w->view);
				replay_get(conn, w, w->out_seq, w->reply_len);
				conn_stamp(conn, &w->view, w);
				link_again(conn, w);
				w->out_ack = w->view.rcv_nxt + conn->in_delta;
				sent_note(conn, w->now);
			} else {
				if (!conn->sent_ns)
					conn->sent_ns = w->now;
				conn->resend_due = 1;
			}
		} else if (ack_droppable(conn, &w->view, w)) {
			fate = ACK_DROP;
			conn_ts_recent(conn, &w->p, &w->view, w->now);
		}
	}
	lock_release(&conn->lock);
	if (fate == ACK_REPLAY) {
		count(STAT_REPLAY_ACK);
		return send_segment(ctx, w);
	}
	if (fate == ACK_DROP) {
		count(STAT_PURE_ACK_DROPPED);
		return V_DROP;
	}
	return ingress_up_again(ctx, w, conn, r);
}
