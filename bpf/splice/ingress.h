/* SPDX-License-Identifier: GPL-2.0 */
/* ingress.h - one packet from the client: answered, translated and passed up, dropped, or left to
 * the other tier. Compiled for XDP and for TC.
 *
 * Order of work (must): everything that can refuse comes before the commit under the connection's
 * lock; nothing is written to packet, map or entry before it; after it there is no way back.
 * Locks: a set's lock or a connection's, never both, and no helper under either. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/checksum.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/absorb.h"
#include "splice/accept.h"
#include "splice/ack.h"
#include "splice/ahead.h"
#include "splice/answer.h"
#include "splice/closed.h"
#include "splice/conn.h"
#include "splice/handler.h"
#include "splice/hidden.h"
#include "splice/hold.h"
#include "splice/order.h"
#include "splice/resend.h"
#include "splice/urgent.h"
#include "splice/up.h"

/* Urgent data, or a first fragment: the rest of that one's bytes passes unseen, so what it may have said
 * is only known to be executed 64 KiB further on, or when the connection is gone. The stream is lost. */
INLINE void conn_unread(struct work *w, struct conn *conn)
{
	bool fragment = w->p.odd & ODD_F_FRAGMENT;

	lock_take(&conn->lock);
	conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
	handler_lost(conn);
	lock_release(&conn->lock);
	w->proof_ahead = fragment ? 65535 : 0;
	count(fragment ? STAT_ODD_FRAGMENT : STAT_ODD_URGENT);
}

/* TCP has bytes that no program has seen go up. They may have been any command, so the stream is lost, as where
 * they were: no way around us makes a lie. Global: verified by itself. */
__noinline int conn_bypassed(void)
{
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;
	bool unseen;

	if (!conn)
		return 0;
	lock_take(&conn->lock);
	/* A FIN has a number, too. */
	unseen = !(conn->flags & (CONN_F_SCAN_LOST | CONN_F_CLOSING)) &&
		 seq_after(w->view.rcv_nxt, conn->up_max - conn->in_delta);
	if (unseen) {
		conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
		handler_lost(conn);
	}
	lock_release(&conn->lock);
	if (unseen)
		count(STAT_BYTES_UNSEEN);
	return unseen;
}

/* New bytes in a segment that TCP does not accept (RFC 9293 3.10.7.4, RFC 7323 5.3) must not be
 * scanned, nor go up if it may accept them after all (N2). Read without the lock: the bounds only
 * grow, and were what they are now when the client sent. V_REFUSED: acceptable. */
INLINE enum verdict ingress_unacceptable(ctx_t *ctx, struct work *w, struct conn *conn,
					 struct sock_ref *r)
{
	u32 end = w->p.seq + w->p.payload_len - conn->in_delta;
	u64 acked = r->tp->bytes_acked;

	if (!sock_view_load(r, &w->view)) {
		count(STAT_DROP_RACE);
		return V_DROP;
	}
	if (!(w->p.flags & TCP_ACK))
		return ingress_reject(ctx, w, conn, r);
	if (seq_after(w->p.ack, conn_sent_end(conn, &w->view)) ||
	    ack_too_old(conn, &w->p, &w->view)) {
		/* TCP refuses both, but not in every state: header prediction takes the bytes of what
		 * acknowledges too little before it looks (tcp_rcv_established()). */
		count(STAT_REFUSE_ACK);
		return ingress_gap(ctx, w, conn, r);
	}
	if ((seq_before(w->p.ack, conn->ack_max) &&
	     ack_before_first(conn, &w->p, &w->view, acked)) ||
	    ack_of_unsent(conn, &w->p, &w->view)) {
		/* Of unsent bytes: TCP refuses it, or takes it if it sends them meanwhile. */
		count(STAT_REFUSE_ACK);
		return V_DROP;
	}
	if (!conn_paws_ok(conn, &w->p, &w->view, w->now)) {
		count(STAT_REFUSE_PAWS);
		return ingress_gap(ctx, w, conn, r);
	}
	if (seq_after(end, sock_right_edge(&w->view))) {
		count(STAT_REFUSE_WINDOW_SERVER);
		return ingress_gap(ctx, w, conn, r);
	}
	return V_REFUSED;
}

/* Whether an entry whose stream is not counted has anything new in the packet. TCP has judged the
 * rest before. A fragment does not say how long its packet is. */
INLINE bool lost_again(const struct conn *conn, const struct work *w, const struct sock_ref *r)
{
	u32 more = w->p.odd & ODD_F_FRAGMENT ? 65535 : 0;

	return r->tp &&
	       !seq_after(w->p.seq + w->p.payload_len + more - conn->in_delta, r->tp->rcv_nxt);
}

/* The device at hand, if it is a boosted one: a connection has moved to it. */
INLINE u32 moved_to(ctx_t *ctx, const struct control *c)
{
	return device_boosted(c, tier_ifindex(ctx)) ? tier_ifindex(ctx) : 0;
}

/* Whether XDP leaves the packet to TC whatever it says: it lies beyond a hole or behind what TC is
 * still to have (T7), in front of a hole or behind a body that is not whole; or the connection has a
 * buffer. In bits: each branch would cost the verifier a tenth more. */
INLINE bool tc_alone(const struct conn *conn, const struct work *w)
{
	u32 beyond = (conn->next - w->p.seq) >> 31;
	u32 apart = w->p.seq ^ conn->next, open = conn->up_max ^ conn->next;
	u32 at_end = ~(apart | -apart) & (open | -open);
	u32 bytes = -w->p.payload_len;
	u32 counted = !(conn->flags & CONN_F_SCAN_LOST), whole = !(w->p.odd & ODD_F_UNREAD);

	return ((beyond | at_end >> 31) & bytes >> 31 & counted & whole) |
	       (conn->flags & CONN_F_AHEAD);
}

#if !TIER_XDP
/* Whether payload lies behind a write that is delayed, and waits with it: what would be a hole for TCP has come. Most
 * lies behind nothing, and is not to fetch the line that says what is delayed. */
INLINE bool delayed_with(ctx_t *ctx, struct work *w, struct conn *conn)
{
	u16 at, since;
	bool copied;

	if (!seq_after(w->p.seq, conn->next) || (conn->flags & CONN_F_AHEAD))
		return false;
	at = read_once(conn->delayed_at);
	since = (u16)(w->now >> 20) - at;
	if (!at || conn->delayed_seq != conn->next || since >= (u16)(DELAY_NS >> 20) ||
	    !hold_bytes(ctx, w))
		return false;
	w->delayed = HELD_LATE;
	copied = hold_copy(ctx);
	w->delayed = 0;
	return copied;
}
#endif

/* What becomes of payload that ahead_concerns(). V_REFUSED: it goes up, again unscanned, or scanned.
 */
INLINE enum verdict ingress_ahead(ctx_t *ctx, struct work *w, struct conn *conn, struct sock_ref *r,
				  bool *again)
{
#if !TIER_XDP
	w->cookie = r->cookie;
	switch (ahead_look(ctx)) {
	case AHEAD_DROP:
		return ingress_gap(ctx, w, conn, r);
	case AHEAD_RACE:
		count(STAT_DROP_RACE);
		return V_DROP;
	case AHEAD_KEPT:
		*again = true;
		return V_REFUSED;
	case AHEAD_NOT:
		*again = !seq_after(w->end, conn->next);
		return V_REFUSED;
	}
#endif
	return V_REFUSED;
}

/* Payload of the entry's socket. */
INLINE enum verdict ingress_payload(ctx_t *ctx, struct work *w, struct control *c,
				    struct conn *conn, struct sock_ref *r)
{
	bool again, ahead = false;
	enum verdict v;

	if (urgent_is_old(conn, w))
		urgent_clear(ctx, w);
	if (!(w->p.odd & ODD_F_UNREAD) && !(conn->flags & CONN_F_SCAN_LOST)) {
		if (!seq_after(w->end, conn->in_edge) && conn->in_delta) {
			v = ingress_duplicate(ctx, w, conn, r);
			if (v != V_REFUSED)
				return v;
		}
#if !TIER_XDP
		if (delayed_with(ctx, w, conn)) {
			count(STAT_ABSORB_BEHIND);
			return V_DROP;
		}
		ahead = ahead_concerns(conn, w, r);
#endif
		if (!TIER_XDP && !ahead && is_beyond(conn, &w->p)) { /* of no connection any more */
			count(STAT_DROP_OUT_OF_ORDER);
			return V_DROP;
		}
		again = !ahead && !seq_after(w->end, conn->next);
	} else {
		again = lost_again(conn, w, r);
	}
	if (!again && r->tp) {
		v = ingress_unacceptable(ctx, w, conn, r);
		if (v != V_REFUSED)
			return v;
		if (seq_after(w->view.rcv_nxt, read_once(conn->up_max) - read_once(conn->in_delta)))
			conn_bypassed(); /* a guess without the lock */
	}
	if (ahead) {
		v = ingress_ahead(ctx, w, conn, r, &again);
		if (v != V_REFUSED)
			return v;
	}
	if (again) {
		if (handler_up_again(w, conn, r->cookie))
			return ingress_up_again(ctx, w, conn, r);
		count(STAT_DROP_RACE);
		return V_DROP;
	}
	if (w->p.odd & ODD_F_UNREAD) {
		conn_unread(w, conn);
	} else if (r->tp && !w->ring && !(conn->flags & CONN_F_SCAN_LOST)) {
		if (handler_may_absorb(w->payload) && absorb_open(c)) {
			if (!unabsorbed(w))
				return V_ABSORB;
			count(w->unabsorbed);
			w->unabsorbed = 0;
		} else {
			v = ingress_fast(ctx, w, c, conn, r);
			if (v != V_REFUSED)
				return v;
		}
	}
	return ingress_up(ctx, w, conn, r);
}

/* A socket was found. */
INLINE enum verdict ingress_sock(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
				 struct sock_ref *r)
{
	enum verdict v;

	if (request_unproved(w, r)) {
		count(STAT_SOCK_REQUEST);
		return V_DROP;
	}
	if (conn->cookie == COOKIE_UNKNOWN && r->cookie) {
		lock_take(&conn->lock);
		if (conn->cookie == COOKIE_UNKNOWN)
			conn->cookie = r->cookie; /* OLD, deltas zero: any owner will do */
		lock_release(&conn->lock);
	}
	if (conn->cookie != r->cookie && conn->cookie != COOKIE_UNKNOWN) {
		if (!w->p.payload_len || (w->p.flags & TCP_SYN)) {
			count(STAT_SOCK_OTHER_COOKIE);
			return V_PLAIN;
		}
		v = conn_begin(ctx);
		if (TIER_XDP || v != V_REFUSED) /* TC finds the entry of the new owner */
			return v == V_REFUSED ? V_TO_TC : v;
		conn = conn_get(&w->p.key);
		if (!conn || conn->cookie != r->cookie) {
			count(STAT_DROP_RACE);
			return V_DROP;
		}
	}
	if (!r->cookie)
		r->cookie = COOKIE_UNKNOWN;
	w->moved = conn->ifindex == tier_ifindex(ctx) ? 0 : moved_to(ctx, c);
	if (TIER_XDP && tc_alone(conn, w))
		return V_TO_TC;
#if !TIER_XDP
	if (conn->flags & CONN_F_AHEAD)
		ahead_settle(conn, w, r);
#endif
	if (!w->p.payload_len || (w->p.flags & TCP_RST)) /* TCP takes no bytes of a reset */
		return ingress_ack(ctx, w, conn, r);
	v = ingress_payload(ctx, w, c, conn, r);
#if !TIER_XDP
	if (w->ring)
		ahead_done(conn, w);
#endif
	return v;
}

/* SYNs make no state and are never translated: the numbers of the next incarnation are its own.
 * One that would land inside the client-space range of a spliced TIME_WAIT without PAWS to protect
 * it waits (T-30). */
INLINE enum verdict ingress_syn(ctx_t *ctx, struct work *w, struct conn *conn)
{
	struct sock_ref r;
	bool hold = false;

	if (!w->p.ts_off && (conn->in_delta > 65536 || conn->out_delta > 65536) &&
	    sock_get(ctx, &w->p.key, w->p.family, &r)) {
		hold = r.state == TCP_TIME_WAIT && r.cookie == conn->cookie;
		sock_put(&r);
	}
	if (hold)
		count(STAT_DROP_SYN_TIME_WAIT);
	return hold ? V_DROP : V_PLAIN;
}

/* Fetches the lines that a hit needs, side by side instead of one after the other. */
INLINE void conn_touch(const struct work *w, struct conn *conn)
{
	read_once(conn->egress_max);
	read_once(conn->link[0]);
	if (w->unlikely)
		return;
	read_once(conn->replay[0]); /* where it begins when nothing is unacknowledged */
	read_once(conn->replay[64]);
}

/* The payload's first chunk, which holds most requests whole; a short one is in the head already.
 * Returns false if there is more. */
INLINE bool payload_load(ctx_t *ctx, struct work *w)
{
	u32 n = w->p.payload_len < CSUM_CHUNK ? w->p.payload_len : CSUM_CHUNK;
	u32 off = w->p.payload_off;

	opaque(n);
	opaque(off);
	n = ((n - 1) & (CSUM_CHUNK - 1)) + 1;
	if (n <= PAYLOAD_SHORT && off <= HEAD_BYTES - PAYLOAD_SHORT) {
		for (u32 i = 0; i < PAYLOAD_SHORT; i += 8)
			*(u64 *)(w->payload + i) = *(u64 *)(w->head + off + i);
	} else if (tier_load(ctx, off, w->payload, n)) {
		return false;
	}
	csum_short_pad(w->payload + n);
	w->loaded = n;
	return w->p.payload_len <= CSUM_CHUNK;
}

INLINE enum verdict ingress_tcp(ctx_t *ctx, struct work *w, struct control *c)
{
	struct conn *conn;
	struct sock_ref r;
	enum verdict v;

	if (w->p.payload_len)
		handler_peek(w, c, payload_load(ctx, w));
	conn = conn_get(&w->p.key);
	if (closed_to(c, conn)) {
		count(STAT_UP_UNREAD);
		return V_PLAIN;
	}
	if ((w->p.flags & TCP_SYN) && w->p.payload_len && syn_data_taken(ctx, w)) {
		count(STAT_DROP_SYN_DATA);
		return V_DROP;
	}
	if (!conn && (!w->p.payload_len || (w->p.flags & (TCP_SYN | TCP_RST)))) {
		if (urgent_is_bare(w) && checksum_ok(ctx))
			urgent_clear(ctx, w);
		count(STAT_UP_UNTRACKED);
		return V_PLAIN;
	}
	if (!TIER_XDP && !conn && !device_boosted(c, tier_ifindex(ctx))) {
		count(STAT_UP_ELSEWHERE);
		return order_unseen(w, c);
	}
	if (conn && (w->p.flags & TCP_SYN))
		return ingress_syn(ctx, w, conn);
	if (conn && !w->p.payload_len && !(w->p.flags & (TCP_FIN | TCP_RST | TCP_URG)) &&
	    !conn->in_delta && !conn->out_delta && !(conn->flags & CONN_F_AHEAD)) {
		count(STAT_PURE_ACK_UP);
		return V_PLAIN;
	}
	if (conn)
		conn_touch(w, conn);
	if (!checksum_short_ok(ctx, w) && !checksum_ok(ctx)) {
		/* The kernel drops it, but where whoever made it on this machine says that it needs no check
		 * (CHECKSUM_PARTIAL, by a tap or a packet socket). */
		count(STAT_DROP_CHECKSUM);
		return V_DROP;
	}
	if (urgent_is_bare(w))
		urgent_clear(ctx, w);
	if (!conn) {
		v = conn_begin(ctx);
		if (v != V_REFUSED)
			return v;
		conn = conn_get(&w->p.key);
		if (!conn) {
			count(STAT_DROP_RACE);
			return V_DROP;
		}
	}
	if (!sock_known(conn, &r)) {
		if (!sock_get(ctx, &w->p.key, w->p.family, &r)) {
			count(STAT_SOCK_NONE);
			return V_PLAIN;
		}
		sock_note(conn, &r);
	}
	v = ingress_sock(ctx, w, c, conn, &r);
	sock_put(&r);
	return v;
}

/* Copies the head of the packet and parses it; PARSE_OTHER if it is not for Redis's port. */
INLINE enum parse_result ingress_parse(ctx_t *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	u32 frame = tier_len(ctx), len;
	enum parse_result res;

	opaque(frame); /* a number, not a difference of pointers */
	len = frame;
	if (!c || !w)
		return PARSE_OTHER;
	w->p.odd = 0; /* hidden_bytes() looks at it */
	if (len < FRAGMENT_BYTES_MIN)
		return PARSE_OTHER;
	if (len > HEAD_BYTES)
		len = HEAD_BYTES;
	opaque(len);
	len &= 0xff; /* the verifier's bound: head is 256 bytes long */
	if (len < FRAGMENT_BYTES_MIN || tier_load_head(ctx, w->head, len))
		return PARSE_OTHER;
	res = parse_packet(&w->p, w->head, tier_l3(ctx), frame, tier_merged(ctx), false);
	w->end = w->p.seq + w->p.payload_len;
	w->ring = 0;
	w->acked = w->loaded = w->whole = w->proof_ahead = w->snd_wscale = w->translate = 0;
	if (res == PARSE_TCP &&
	    (w->p.key.server_port_be != c->port_be || w->p.payload_off + w->p.payload_len > frame))
		return PARSE_OTHER;
	if (len < HEADERS_MIN)
		return PARSE_OTHER; /* what is behind it in head is not of this packet */
	w->tag = tier_tag(ctx);
	if (w->tag && w->p.l3_off != ETH_BYTES)
		w->p.odd |= ODD_F_IP; /* a second tag has no room in conn.l2 */
	return res;
}
