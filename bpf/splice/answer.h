/* SPDX-License-Identifier: GPL-2.0 */
/* answer.h - a packet answered from the cache: prepared, checked, committed, sent. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/segment.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/handler.h"
#include "splice/latency.h"
#include "splice/place.h"
#include "splice/splice.h"

/* What can be said against an answer without the lock. */
INLINE u32 answer_unfit(ctx_t *ctx, const struct work *w, const struct control *c,
			const struct conn *conn)
{
	u8 odd = w->p.odd;

	if (conn->state != CONN_FAST)
		return conn->state == CONN_NEW ? STAT_REFUSE_NEW : handler_refusal(conn);
	if (conn->flags & CONN_F_CLOSING)
		return STAT_REFUSE_CLOSING;
	if (conn->ifindex != tier_ifindex(ctx)) /* replies leave by another, or it is not boosted */
		return STAT_REFUSE_NO_EGRESS;
	if (odd)
		return odd & ODD_F_FRAGMENT ? STAT_ODD_FRAGMENT
		       : odd & ODD_F_IP	    ? STAT_ODD_IP_OPTIONS
		       : odd & ODD_F_ECN    ? STAT_ODD_ECN
		       : odd & ODD_F_URGENT ? STAT_ODD_URGENT
		       : odd & ODD_F_FLAGS  ? STAT_ODD_FLAGS
					    : STAT_ODD_OPTIONS;
	if (w->p.tcp_bytes != 20 && (w->p.tcp_bytes != 32 || w->p.ts_off != 24))
		return STAT_ODD_OPTIONS;
	if (tier_merged(ctx))
		return STAT_TC_MERGED;
	if (w->p.payload_len > REPLY_BYTES_MAX)
		return STAT_LONG_PACKET;
	if (!c->serving || c->stopping)
		return STAT_REFUSE_NOT_SERVING;
	if (w->p.seq != conn->next || conn->in_at != STREAM_BETWEEN)
		return STAT_REFUSE_ORDER;
	if (c->heartbeat_up_ns && w->now - conn->request_up_ns > c->heartbeat_up_ns)
		return STAT_REFUSE_HEARTBEAT;
	return 0;
}

/* 0 if w->reply holds the whole answer. */
INLINE u32 answer_prepare(ctx_t *ctx, struct work *w, struct control *c, const struct conn *conn)
{
	u32 reason = answer_unfit(ctx, w, c, conn);

	w->whole = 0;
	if (reason)
		return reason;
	return handler_answer(w, c, conn);
}

#if !TIER_XDP
/* The original goes up as the pure ACK that it also was: headers only, sequence number behind the
 * consumed bytes. */
INLINE enum verdict pass_up_as_ack(ctx_t *ctx, struct work *w, bool partial)
{
	u32 off = w->p.l4_off, l3 = w->p.l3_off, len = w->p.tcp_bytes, total = w->p.payload_off;
	u8 *ip, *tcp;
	u64 pseudo;

	opaque(off);
	opaque(l3);
	if (off > HEAD_BYTES - TCP_BYTES_MAX || l3 > L2_BYTES_MAX)
		return V_DROP;
	if (bpf_skb_change_tail(ctx, total, 0))
		return V_DROP;
	w->p.seq += w->p.payload_len;
	w->p.payload_len = 0;
	translate_up();
	ip = w->head + l3;
	tcp = w->head + off;
	if (w->p.family == 4) {
		store_be16(ip + 2, 20 + len);
		*(u16 *)(ip + 10) = 0;
		*(u16 *)(ip + 10) = ~csum_fold(bpf_csum_diff(0, 0, (__be32 *)ip, 20, 0));
	} else {
		store_be16(ip + 4, len);
	}
	tcp[13] = TCP_ACK;
	*(u16 *)(tcp + 16) = 0;
	pseudo = csum_pseudo(&w->p, len);
	if (partial)
		*(u16 *)(tcp + 16) = csum_fold(pseudo);
	else if (len == 32)
		*(u16 *)(tcp + 16) = ~csum_fold(pseudo + bpf_csum_diff(0, 0, (__be32 *)tcp, 32, 0));
	else
		*(u16 *)(tcp + 16) = ~csum_fold(pseudo + bpf_csum_diff(0, 0, (__be32 *)tcp, 20, 0));
	if (!sized(total, HEAD_BYTES) || tier_store(ctx, 0, w->head, total))
		return V_DROP;
	return V_UP;
}
#endif

/* The consumed packet's reply leaves. */
INLINE enum verdict answer_send(ctx_t *ctx, struct work *w)
{
	bool with_ts = w->p.ts_off != 0;
	enum verdict v;

	handler_answered(w);
#if TIER_XDP
	count(STAT_FAST_PACKET);
	v = tier_send(ctx, w, segment_make(w, with_ts, false)) == XDP_TX ? V_SENT : V_DROP;
#else
	bool partial = tier_csum_partial(ctx);

	count(STAT_FAST_PACKET_TC);
	tier_clone(ctx, w, segment_build(with_ts, partial), ctx->ifindex);
	if (sampled(w))
		latency_hit(w);
	return pass_up_as_ack(ctx, w, partial);
#endif
	if (sampled(w))
		latency_hit(w);
	return v;
}

/* The packet, or what is left of it, goes up with its acknowledgement. Lock held. */
INLINE void ack_goes_up(struct conn *conn, const struct work *w)
{
	conn->ack_up_ns = w->now;
	conn->spoke &= ~SPOKE_SINCE;
}

/* Consumes the packet, whose answer is prepared and has room; spoke: bits for conn.spoke. Returns 0, or the reason
 * against it: nothing has changed. */
INLINE u32 answer_commit(struct work *w, struct conn *conn, const struct sock_ref *r,
			 enum grown grown, u8 spoke)
{
	u32 reason = STAT_REFUSE_RACE;

	lock_take(&conn->lock);
	if (sock_view_again(r, &w->view) && conn->cookie == r->cookie)
		reason = commit_check(conn, &w->view, w);
	if (!reason && grown == GROWN_FAILED)
		reason = STAT_TO_TC; /* an skb has room */
	if (!reason || (reason == STAT_TO_TC && !TIER_XDP)) {
		reason = 0;
		commit(conn, &w->view, w);
		if (!TIER_XDP)
			ack_goes_up(conn, w);
		conn->spoke |= spoke;
		translation_take(conn, w);
		w->snd_wscale = w->view.fixed.snd_wscale;
	}
	lock_release(&conn->lock);
	return reason;
}

/* Behind answer_commit() that said no: the packet is as it came. */
INLINE enum verdict answer_refused(ctx_t *ctx, u32 reason, s32 more, enum grown grown)
{
	if (grown == GROWN_FAILED)
		count(STAT_NO_ROOM);
	tier_ungrow(ctx, more, grown);
	return reason == STAT_TO_TC ? V_TO_TC : V_REFUSED;
}

/* Answers the packet, or V_REFUSED: it goes up, unchanged so far. Behind ingress_unacceptable(),
 * which has loaded the view. */
INLINE enum verdict ingress_fast(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
				 struct sock_ref *r)
{
	u32 reason = answer_prepare(ctx, w, c, conn);
	enum grown grown;
	enum verdict v;
	s32 more;

	if (reason) {
		count(reason);
		return V_REFUSED;
	}
	more = w->p.payload_off + w->reply_len - tier_len(ctx);
	grown = tier_grow(ctx, more);
	reason = answer_commit(w, conn, r, grown, 0);
	if (!reason) {
		place_call(w, PLACES_TIMER);
		return answer_send(ctx, w);
	}
	v = answer_refused(ctx, reason, more, grown);
	if (v == V_REFUSED)
		count(reason);
	return v;
}
