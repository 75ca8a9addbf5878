/* SPDX-License-Identifier: GPL-2.0 */
/* lane.h - the express lane: the usual packet with one usual request, in a straight line before the general
 * path (ingress.h). Headers without options but timestamps are read where they lie. An answer is written
 * where it leaves; a miss or a write goes up, translated in place. What decides and changes is the general
 * path's own: answer_unfit(), commit_check(), commit(), up_account().
 *
 * Invariants:
 *  Q1. Whatever is not usual leaves the lane before anything has changed but scratch, and the general path
 *      decides and counts. So the lane has no reasons of its own; without it the same packets leave. Of a
 *      write all is asked before its mark is taken. If the entry has moved since, the mark is given back.
 *  Q3. lane_absorb() is given a packet of which only the bytes were read. It asks all that the lane asks before it hands
 *      on to absorb_packet(), or gives it back unchanged to the general path, which the lane does not come before
 *      again: LANED_BACK. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/segment.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/absorb.h"
#include "splice/accept.h"
#include "splice/answer.h"
#include "splice/closed.h"
#include "splice/handler.h"
#include "splice/ingress.h"
#include "splice/latency.h"
#include "splice/order.h"
#include "splice/place.h"
#include "splice/splice.h"
#include "splice/up.h"

#define LANE	     1	/* 0: all packets go the general way */
#define LANE_LEFT    0	/* no verdict: XDP_ABORTED is never said */
#define LANE_ABSORB  64 /* nor is this: lane_absorb() is to be asked, in a program of its own */
#define LANE_IP4     34 /* where TCP begins */
#define LANE_IP6     54
#define LANE_REQUEST 192 /* most bytes of a request: of YCSB's HSET of one field */
#define LANE_REPLY   192 /* and of its reply */
#define LANE_ASKED   16	 /* and least: what tells whether it is usual */
#define LANE_LEAST   8	 /* of a reply: a last word is written as a whole */

/* Where a packet is that may be a write to be answered; 0: in the general path. */
enum laned {
	LANED_ABSORB = 1, /* on its way to lane_absorb() */
	LANED_BACK, /* the absorbing program has given it back, and the lane has no more to say */
};

/* The sum of a word's halves, unfolded. */
INLINE u64 lane_halves(u64 word)
{
	return (u32)word + (word >> 32);
}

/* Reads IPv6's header at ip; len: what must follow it. */
INLINE bool lane_ipv6(struct pkt *p, const u8 *ip, u32 len)
{
	u32 first = *(const u32 *)ip;

	/* CE is odd: parse_ipv6() */
	if ((first & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000) ||
	    (first & bpf_htonl(0x00300000)) == bpf_htonl(0x00300000) ||
	    *(const u16 *)(ip + 4) != bpf_htons(len) || ip[6] != IPPROTO_TCP)
		return false;
	address_v6(p->key.client_addr, ip + 8);
	address_v6(p->key.server_addr, ip + 24);
	return true;
}

/* The same of IPv4; a part of a packet, CE and options are odd. */
INLINE bool lane_ipv4(struct pkt *p, const u8 *ip, u32 len)
{
	if (ip[0] != 0x45 || (ip[1] & 3) == 3 || *(const u16 *)(ip + 2) != bpf_htons(20 + len) ||
	    (*(const u16 *)(ip + 6) & bpf_htons(0x3fff)) || ip[9] != IPPROTO_TCP ||
	    csum_fold(csum_words(ip, 5)) != 0xffff)
		return false;
	address_v4(p->key.client_addr, ip + 12);
	address_v4(p->key.server_addr, ip + 16);
	return true;
}

/* Reads TCP's header as parse_tcp() does. */
INLINE bool lane_tcp(struct pkt *p, const u8 *tcp)
{
	if (!tcp_is_usual(tcp))
		return false;
	p->key.client_port_be = *(const u16 *)tcp;
	p->key.server_port_be = *(const u16 *)(tcp + 2);
	p->key.pad = 0;
	p->seq = load_be32(tcp + 4);
	p->ack = load_be32(tcp + 8);
	p->window = bpf_ntohs(*(const u16 *)(tcp + 14));
	p->tsval = load_be32(tcp + 24);
	p->tsecr = load_be32(tcp + 28);
	p->flags = tcp[13];
	p->tcp_bytes = TCP_BYTES_STAMPED;
	p->ts_off = 24;
	p->l3_off = ETH_BYTES;
	p->odd = 0;
	return true;
}

struct lane_sum {
	u64 all;    /* of all that TCP's checksum is about */
	u64 pseudo; /* of its pseudo-header */
	u16 field;
};

/* Whether the bytes may be believed: as checksum_ok() says it. */
INLINE bool lane_sum_ok(const struct lane_sum *sum)
{
	return csum_fold(sum->all) == 0xffff || csum_fold(sum->pseudo) == sum->field;
}

/* Reads the frame into w->p and w->payload. Returns whether it is usual. */
INLINE bool lane_read(ctx_t *ctx, struct work *w, const struct control *c, bool six,
		      struct lane_sum *sum)
{
	const u32 tcp_at = six ? LANE_IP6 : LANE_IP4, body_at = tcp_at + TCP_BYTES_STAMPED;
	u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *body = at + body_at;
	u32 frame = end - at, last = frame - 8, len = frame - body_at, whole = len & ~7U;
	u64 word;

	if (at + body_at + LANE_ASKED > end || len > LANE_REQUEST ||
	    *(u16 *)(at + tcp_at + 2) != c->port_be || !handler_may_know(w, body))
		return false;
	if (six ? !lane_ipv6(&w->p, at + ETH_BYTES, frame - LANE_IP6)
		: !lane_ipv4(&w->p, at + ETH_BYTES, frame - LANE_IP4))
		return false;
	if (!lane_tcp(&w->p, at + tcp_at))
		return false;
	w->p.family = six ? 6 : 4;
	w->p.payload_len = len;
	w->p.payload_off = body_at;
	for (u32 i = 0; i < 16; i += 8)
		*(u64 *)(w->head + i) = *(u64 *)(at + i);
	sum->field = *(u16 *)(at + tcp_at + 16);
	sum->pseudo = csum_pseudo(&w->p, TCP_BYTES_STAMPED + len);
	sum->all = sum->pseudo + csum_words(at + tcp_at, TCP_BYTES_STAMPED / 4);
#pragma unroll
	for (u32 i = 0; i < LANE_REQUEST; i += 8) {
		if (body + i + 8 > end)
			break;
		word = *(u64 *)(body + i);
		*(u64 *)(w->payload + i) = word;
		sum->all += lane_halves(word);
	}
	opaque(whole);
	if (whole > LANE_REQUEST)
		return false;
	at = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	opaque(last);
	if (last > LANE_IP6 + TCP_BYTES_STAMPED + LANE_REQUEST || at + last + 8 > end)
		return false;
	if (len & 7) { /* the bytes behind the last whole word */
		word = *(u64 *)(at + last) >> (8 - (len & 7)) * 8;
		*(u64 *)(w->payload + whole) = word;
		sum->all += lane_halves(word);
	}
	return true;
}

/* Writes headers and w->reply over the frame, which is long enough, and cuts it. */
INLINE int lane_send(ctx_t *ctx, struct work *w, bool six)
{
	const u32 tcp_at = six ? LANE_IP6 : LANE_IP4, body_at = tcp_at + TCP_BYTES_STAMPED;
	u32 len = w->reply_len, from = len - 8, whole = len & ~7U, rest = len & 7;
	s32 shrink = body_at + len - tier_len(ctx);
	u64 sum = csum_pseudo(&w->p, TCP_BYTES_STAMPED + len), word;
	u8 *at, *end, *tcp;

	if (shrink < 0 && bpf_xdp_adjust_tail(ctx, shrink))
		return XDP_DROP;
	at = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	tcp = at + tcp_at;
	opaque(whole);
	if (at + body_at + LANE_LEAST > end || whole > LANE_REPLY)
		return XDP_DROP;
	segment_ip(w, at, ETH_BYTES, TCP_BYTES_STAMPED + len);
	segment_tcp(w, tcp, true, len);
	sum += csum_words(tcp, TCP_BYTES_STAMPED / 4);
	word = *(u64 *)(w->reply + whole) & ((1ULL << rest * 8) - 1);
	sum += lane_halves(word);
#pragma unroll
	for (u32 i = 0; i < LANE_REPLY; i += 8) {
		if (at + body_at + i + 8 > end)
			break;
		word = *(u64 *)(w->reply + i);
		*(u64 *)(at + body_at + i) = word;
		sum += lane_halves(word);
	}
	*(u16 *)(tcp + 16) = ~csum_fold(sum);
	opaque(from);
	if (from > LANE_REPLY || at + body_at + from + 8 > end)
		return XDP_DROP;
	*(u64 *)(at + body_at + from) = *(u64 *)(w->reply + from);
	return XDP_TX;
}

/* The same of a reply that is no longer than a word, over a frame that has more: it is cut behind that. */
INLINE int lane_send_word(ctx_t *ctx, struct work *w, bool six)
{
	const u32 tcp_at = six ? LANE_IP6 : LANE_IP4, body_at = tcp_at + TCP_BYTES_STAMPED;
	u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *tcp = at + tcp_at;
	u32 len = w->reply_len;
	s32 shrink = body_at + len - tier_len(ctx);
	u64 sum = csum_pseudo(&w->p, TCP_BYTES_STAMPED + len), word = *(u64 *)w->reply;

	if (at + body_at + LANE_LEAST > end)
		return XDP_DROP;
	segment_ip(w, at, ETH_BYTES, TCP_BYTES_STAMPED + len);
	segment_tcp(w, tcp, true, len);
	word <<= (LANE_LEAST - len) * 8;
	word >>= (LANE_LEAST - len) * 8;
	sum += csum_words(tcp, TCP_BYTES_STAMPED / 4) + lane_halves(word);
	*(u16 *)(tcp + 16) = ~csum_fold(sum);
	*(u64 *)(at + body_at) = word;
	return shrink < 0 && bpf_xdp_adjust_tail(ctx, shrink) ? XDP_DROP : XDP_TX;
}

/* Whether the packet may be consumed: all that ingress_payload() asks of it, under the lock. What
 * ingress_unacceptable() asks beside that follows from commit_check(), but for the window. Returns what
 * commit_check() does. */
INLINE u32 lane_consumes(const struct conn *conn, const struct sock_ref *r, struct sock_view *v,
			 const struct work *w)
{
	if (!sock_view_again(r, v) || conn->cookie != r->cookie ||
	    (!conn->out_delta && seq_before(w->p.ack, conn->edge)) ||
	    (conn->flags & CONN_F_SCAN_LOST) ||
	    seq_after(w->p.seq + w->p.payload_len - conn->in_delta, sock_right_edge(v)))
		return STAT_REFUSE_RACE;
	return commit_check(conn, v, w);
}

/* Answers the packet, in place, or leaves it to TC, which can also tell the kernel what it acknowledges. */
INLINE int lane_answer(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
		       const struct sock_ref *r, bool six)
{
	s32 more = w->p.payload_off + w->reply_len - tier_len(ctx);
	enum grown grown = tier_grow(ctx, more);
	u32 reason;

	if (grown == GROWN_FAILED)
		return LANE_LEFT;
	lock_take(&conn->lock);
	reason = lane_consumes(conn, r, &w->view, w);
	if (!reason)
		commit(conn, &w->view, w);
	lock_release(&conn->lock);
	if (reason) {
		tier_ungrow(ctx, more, grown);
		if (reason != STAT_TO_TC)
			return LANE_LEFT;
		handler_usual_done(w, c);
		return tier_to_tc(ctx);
	}
	place_call(w, PLACES_TIMER);
	handler_usual_done(w, c);
	handler_answered(w);
	count(STAT_FAST_PACKET);
	return lane_send(ctx, w, six);
}

/* Whether TCP takes the packet as it stands: the next bytes, of which it owes nothing, and an
 * acknowledgement neither old nor of what was not sent. So segment_counts() holds, and nothing that
 * ingress_unacceptable() looks for. Lock held. */
INLINE bool lane_taken(const struct conn *conn, const struct sock_ref *r, struct sock_view *v,
		       const struct work *w)
{
	const u8 spoilt = CONN_F_CLOSING | CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE | CONN_F_AHEAD;
	const struct pkt *p = &w->p;
	u32 ack = p->ack - conn->out_delta;

	if (!sock_view_again(r, v) || conn->cookie != r->cookie || conn->state != CONN_FAST ||
	    (conn->flags & spoilt) || (conn->spoke & (ABSORBING | WAITS_SYNC)) /* I9, Y3 */)
		return false;
	if (p->seq != conn->next || p->seq != conn->up_max || conn->in_at != STREAM_BETWEEN ||
	    p->seq - conn->in_delta != v->rcv_nxt)
		return false;
	if (seq_after(w->end - conn->in_delta, sock_right_edge(v)) ||
	    seq_before(p->ack, conn->ack_max) || seq_before(ack, conn->edge) ||
	    seq_after(ack, v->write_seq) || seq_after(ack, v->snd_nxt))
		return false;
	return conn_paws_ok(conn, p, v, w->now);
}

/* Rewrites seq and acknowledgement from client to kernel space, as translate_up() does. The frame is that
 * which lane_read() has read. */
INLINE int lane_translate(ctx_t *ctx, const struct work *w, bool six, bool bare)
{
	const u32 tcp_at = six ? LANE_IP6 : LANE_IP4;
	u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *tcp = at + tcp_at;
	u32 *seq, *ack, new_seq, new_ack;
	u64 diff;

	if (at + tcp_at + TCP_BYTES_STAMPED > end)
		return XDP_DROP;
	seq = (u32 *)(tcp + 4);
	ack = (u32 *)(tcp + 8);
	new_seq = bpf_htonl(w->p.seq - w->in_delta);
	new_ack = bpf_htonl(w->p.ack - w->out_delta);
	diff = (u64)new_seq + ~*seq + new_ack + ~*ack;
	*seq = new_seq;
	*ack = new_ack;
	if (!bare)
		*(u16 *)(tcp + 16) = ~csum_fold((u16) ~*(u16 *)(tcp + 16) + diff);
	return XDP_PASS;
}

/* Passes a packet whose request is missed, or a write, up, translated. */
INLINE int lane_up(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
		   const struct sock_ref *r, bool six, bool bare, bool writes)
{
	bool taken;

	w->acked = w->moved = w->held = 0;
	if (writes && (!lane_taken(conn, r, &w->view, w) || order_stirs(c)))
		return LANE_LEFT;
	if (!tier_note(ctx, META_TRANSLATED))
		return LANE_LEFT;
	if (writes)
		handler_usual_take(w, c);
	lock_take(&conn->lock);
	taken = lane_taken(conn, r, &w->view, w) && !(writes && order_watched(c)) /* I1 */ &&
		!order_open(c) && handler_up_usual(conn, w, writes); /* Y1 */
	if (taken) {
		conn->next = w->end;
		conn->requests++;
		conn->request_up_ns = w->now;
		up_account(conn, w, true, true);
	}
	lock_release(&conn->lock);
	if (!taken) {
		if (writes)
			handler_up_undo(w);
		tier_unnote(ctx);
		return LANE_LEFT;
	}
	handler_up_usual_done(w);
	if (!writes)
		handler_usual_done(w, c);
	count(w->refusal);
	count(STAT_UP_TRANSLATED);
	if (sampled(w))
		latency_up();
	return w->translate ? lane_translate(ctx, w, six, bare) : XDP_PASS;
}

/* Its connection's socket is known: the rest of the scratch, and what answer_unfit() says. */
INLINE u32 lane_begin(ctx_t *ctx, struct work *w, const struct control *c, const struct conn *conn,
		      const struct sock_ref *r)
{
	w->now = now_ns();
	w->tag = 0;
	w->end = w->p.seq + w->p.payload_len;
	w->view.fixed = r->fixed;
	return answer_unfit(ctx, w, c, conn);
}

/* Whether the packet, which was read, is for lane_absorb(). */
INLINE bool lane_absorbs(struct work *w, const struct control *c, bool six)
{
	if (!absorb_open(c) || !handler_may_absorb(w->payload))
		return false;
	w->laned = LANED_ABSORB;
	w->p.l4_off = six ? LANE_IP6 : LANE_IP4;
	return true;
}

/* A packet that may be a write to be answered, of which lane_of() has read the bytes and no more. V_REFUSED: it is as it
 * came; the general path is to see it, which is told what the write was refused for, if that was asked. */
INLINE enum verdict lane_absorb(ctx_t *ctx, bool keeps)
{
	struct control *c = control_get();
	struct work *w = work_get();
	struct conn *conn;
	struct sock_ref r;
	enum verdict v;
	int sent;

	if (!c || !w)
		return V_DROP;
	handler_absorb_peek(w);
	conn = conn_get(&w->p.key);
	if (!conn || closed_to(c, conn))
		return V_REFUSED;
	conn_touch(w, conn);
	if (!sock_known(conn, &r))
		return V_REFUSED;
	if (lane_begin(ctx, w, c, conn, &r) || !lane_taken(conn, &r, &w->view, w))
		return V_REFUSED;
	v = absorb_packet(ctx, w, c, conn, &r, keeps);
	if (v != V_SENT)
		return v;
	if (w->reply_len > LANE_LEAST)
		return answer_send(ctx, w);
	handler_answered(w);
	count(STAT_FAST_PACKET);
	sent = w->p.family == 6 ? lane_send_word(ctx, w, true) : lane_send_word(ctx, w, false);
	if (sampled(w))
		latency_hit(w);
	return sent == XDP_TX ? V_SENT : V_DROP;
}

/* A frame of this family. Returns what becomes of it, or LANE_LEFT. */
INLINE int lane_of(ctx_t *ctx, struct work *w, struct control *c, bool six)
{
	struct sock_ref r;
	struct conn *conn;
	struct lane_sum sum;
	u32 unfit;
	bool bare;

	if (!lane_read(ctx, w, c, six, &sum))
		return LANE_LEFT;
	if (lane_absorbs(w, c, six))
		return lane_sum_ok(&sum) ? LANE_ABSORB : LANE_LEFT;
	if (!handler_peek_usual(w, c))
		return LANE_LEFT;
	conn = conn_get(&w->p.key);
	if (!conn || closed_to(c, conn))
		return LANE_LEFT;
	conn_touch(w, conn);
	if (!lane_sum_ok(&sum))
		return LANE_LEFT;
	if (!sock_known(conn, &r))
		return LANE_LEFT;
	unfit = lane_begin(ctx, w, c, conn, &r);
	/* While the cache is closed handler_usual() says no more than that it is a read. */
	if (unfit && !(unfit == STAT_REFUSE_NOT_SERVING && closed(c)))
		return LANE_LEFT;
	bare = csum_fold(sum.all) != 0xffff;
	switch (handler_usual(w, c, conn)) {
	case USUAL_MISS:
		return lane_up(ctx, w, c, conn, &r, six, bare, false);
	case USUAL_WRITE:
		return lane_up(ctx, w, c, conn, &r, six, bare, true);
	case USUAL_ANSWER:
		return w->reply_len - LANE_LEAST <= LANE_REPLY - LANE_LEAST
			   ? lane_answer(ctx, w, c, conn, &r, six)
			   : LANE_LEFT;
	default:
		return LANE_LEFT;
	}
}

/* Global: verified by itself. */
__noinline int lane(ctx_t *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	int action = LANE_LEFT;
	u8 *at, *end;
	u16 type;

	/* Used at all: of a handler that knows nothing usual clang would pass none, which the verifier refuses. */
	opaque(ctx);
	at = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!c || !w)
		return LANE_LEFT;
	sample_begin(w, c);
	if (!LANE || at + ETH_BYTES > end)
		return LANE_LEFT;
	type = *(u16 *)(at + 12);
	if (type == bpf_htons(ETH_P_IP))
		action = lane_of(ctx, w, c, false);
	else if (type == bpf_htons(ETH_P_IPV6))
		action = lane_of(ctx, w, c, true);
	if (action == XDP_TX && sampled(w))
		latency_hit(w);
	return action;
}
