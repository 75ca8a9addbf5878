/* SPDX-License-Identifier: GPL-2.0 */
/* lane_down.h - the express lane for replies: the usual packet of the server's kernel with one usual reply,
 * in a straight line before the general path (egress.h). Headers without options but timestamps are read
 * where they lie, and what of them changes is stored in one piece.
 *
 * Invariants:
 *  Q2. Whatever is not usual leaves the lane before anything has changed, and the general path decides and
 *      counts, as Q1 says of the lane for requests. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "splice/closed.h"
#include "splice/egress.h"
#include "splice/handler.h"
#include "splice/latency.h"
#include "splice/out_work.h"

#define LANE_DOWN      1  /* 0: all packets go the general way */
#define LANE_DOWN_LEFT 0  /* no verdict: TCX_PASS is never said */
#define DOWN_MOVES     8  /* of TCP's header: seq and acknowledgement, at 4 */
#define DOWN_STAMPED   28 /* of it: these, and all up to the timestamps */

/* A reply's packet. */
struct down {
	struct conn_key key;
	u32 seq;
	u32 ack;
	u32 tsval;
	u32 tsecr;
	u32 len; /* of the payload */
	u32 ifindex;
	u64 cookie;
	/* taken under the connection's lock */
	u32 in_delta;
	u32 out_delta;
	u32 new_tsval;
	u32 new_tsecr;
	u64 timed_ns; /* as in out_work */
};

/* Reads IP's header at ip; len: what must follow it. The ports stand behind it: returns false as well where
 * the packet is not Redis's, and sets *other. */
INLINE bool down_ip(struct down *d, const u8 *ip, u32 len, u16 port_be, bool six, bool *other)
{
	if (six) {
		if (ip[0] >> 4 != 6 || ip[6] != IPPROTO_TCP)
			return false;
		*other = *(const u16 *)(ip + 40) != port_be;
		address_v6(d->key.server_addr, ip + 8);
		address_v6(d->key.client_addr, ip + 24);
		return !*other && *(const u16 *)(ip + 4) == bpf_htons(len);
	}
	if (ip[0] != 0x45 || ip[9] != IPPROTO_TCP)
		return false;
	*other = *(const u16 *)(ip + 20) != port_be;
	address_v4(d->key.server_addr, ip + 12);
	address_v4(d->key.client_addr, ip + 16);
	return !*other && *(const u16 *)(ip + 2) == bpf_htons(20 + len) &&
	       !(*(const u16 *)(ip + 6) & bpf_htons(0x3fff));
}

/* Reads TCP's header; len: its own and the payload's. */
INLINE bool down_tcp(struct down *d, const u8 *tcp, u32 len)
{
	if (!tcp_is_usual(tcp) || len <= TCP_BYTES_STAMPED)
		return false;
	d->key.server_port_be = *(const u16 *)tcp;
	d->key.client_port_be = *(const u16 *)(tcp + 2);
	d->key.pad = 0;
	d->seq = load_be32(tcp + 4);
	d->ack = load_be32(tcp + 8);
	d->tsval = load_be32(tcp + 24);
	d->tsecr = load_be32(tcp + 28);
	d->len = len - TCP_BYTES_STAMPED;
	return true;
}

/* Whether the packet is the next of a connection of which nothing is to be said but that a reply left, and
 * what that ends. Lock held. */
INLINE bool down_next(const struct conn *conn, const struct down *d, bool ends)
{
	return conn->cookie == d->cookie && conn->ifindex == d->ifindex &&
	       !(conn->out_delta && seq_before(d->seq, conn->edge)) && conn->scan_next == d->seq &&
	       conn->out_at == STREAM_BETWEEN && !(conn->flags & CONN_F_UNCOUNTABLE) &&
	       !seq_after(conn->replies + 1, conn->requests) && handler_down_usual(conn, ends);
}

/* egress_record() of such a packet. Lock held. */
INLINE void down_record(struct conn *conn, struct down *d, const u8 *head)
{
	conn->spoke |= SPOKE_SINCE;
	conn->egress_max = seq_max(conn->egress_max, d->seq + d->len);
	egress_way(conn, head, true);
	d->new_tsval = d->tsval;
	d->new_tsecr = d->tsecr;
	egress_stamp(conn, &d->new_tsval, &d->new_tsecr);
	conn->scan_next = d->seq + d->len;
	conn->replies++;
	d->timed_ns = latency_replied(conn);
	d->in_delta = conn->in_delta;
	d->out_delta = conn->out_delta;
}

/* egress_rewrite() of it; its sum is still to be made. tcp: its header as it stands. */
INLINE int down_rewrite(struct __sk_buff *ctx, const struct down *d, const u8 *tcp, u32 tcp_at)
{
	bool stamped = d->new_tsval != d->tsval || d->new_tsecr != d->tsecr;
	u32 words[DOWN_STAMPED / 4];
	long failed;

	if (!d->in_delta && !d->out_delta && !stamped) {
		count(STAT_EGRESS_PLAIN);
		return TCX_NEXT;
	}
	words[0] = bpf_htonl(d->seq + d->out_delta);
	words[1] = bpf_htonl(d->ack + d->in_delta);
	if (stamped) {
		for (u32 i = 2; i < 5; i++)
			words[i] = *(const u32 *)(tcp + 4 + i * 4);
		words[5] = bpf_htonl(d->new_tsval);
		words[6] = bpf_htonl(d->new_tsecr);
		failed = bpf_skb_store_bytes(ctx, tcp_at + 4, words, DOWN_STAMPED, 0);
	} else {
		failed = bpf_skb_store_bytes(ctx, tcp_at + 4, words, DOWN_MOVES, 0);
	}
	count(failed ? STAT_EGRESS_REWRITE_FAILED : STAT_EGRESS_TRANSLATED);
	return failed ? TCX_DROP : TCX_NEXT;
}

/* The packet is counted, what its reply ends (ends: REPLY_ENDS) is ended, and it leaves. */
INLINE int down_leave(struct __sk_buff *ctx, struct control *c, struct conn *conn, struct down *d,
		      const u8 *at, u32 tcp_at, bool ends)
{
	struct out_work *ow = ends ? out_work_get() : 0;
	bool taken;

	if (ends && !ow)
		return LANE_DOWN_LEFT;
	if (ends)
		handler_down_begin(ow, c);
	lock_take(&conn->lock);
	taken = down_next(conn, d, ends);
	if (taken)
		down_record(conn, d, at);
	if (taken && ends)
		handler_down_end(conn, ow);
	lock_release(&conn->lock);
	if (!taken)
		return LANE_DOWN_LEFT;
	if (ends)
		handler_down_done(ow, c);
	latency_down(d->timed_ns);
	return down_rewrite(ctx, d, at + tcp_at, tcp_at);
}

/* A frame of this family. */
INLINE int down_of(struct __sk_buff *ctx, struct control *c, bool six)
{
	const u32 tcp_at = ETH_BYTES + (six ? 40 : 20);
	const u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	u32 len = ctx->len - tcp_at;
	enum reply_usual usual;
	struct conn *conn;
	bool other = false;
	struct down d;

	if (at + tcp_at + TCP_BYTES_STAMPED > end)
		return LANE_DOWN_LEFT;
	if (!down_ip(&d, at + ETH_BYTES, len, c->port_be, six, &other))
		return other ? TCX_NEXT : LANE_DOWN_LEFT;
	/* The reply is asked for first: most of what leaves the lane does so here, without a look-up. */
	if (!down_tcp(&d, at + tcp_at, len) || !tier_csum_partial(ctx))
		return LANE_DOWN_LEFT;
	usual = handler_reply_usual(ctx, tcp_at + TCP_BYTES_STAMPED, d.len);
	if (usual == REPLY_ODD || !egress_first(ctx))
		return LANE_DOWN_LEFT;
	conn = conn_get(&d.key);
	if (!conn || closed_to(c, conn))
		return TCX_NEXT;
	d.ifindex = ctx->ifindex;
	d.cookie = bpf_get_socket_cookie(ctx);
	return usual == REPLY_ENDS ? down_leave(ctx, c, conn, &d, at, tcp_at, true)
				   : down_leave(ctx, c, conn, &d, at, tcp_at, false);
}

/* Global: verified by itself. */
__noinline int lane_down(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	const u8 *at, *end;
	u16 type;

	opaque(ctx); /* as in lane() */
	at = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (c && closed_to_all(c))
		return TCX_NEXT;
	if (!LANE_DOWN || !c || at + ETH_BYTES > end || ctx->ingress_ifindex ||
	    tier_l3(ctx) != ETH_BYTES)
		return LANE_DOWN_LEFT;
	type = *(const u16 *)(at + 12);
	if (type == bpf_htons(ETH_P_IP))
		return down_of(ctx, c, false);
	return type == bpf_htons(ETH_P_IPV6) ? down_of(ctx, c, true) : LANE_DOWN_LEFT;
}
