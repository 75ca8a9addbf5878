/* SPDX-License-Identifier: GPL-2.0 */
/* egress.h - one packet from the server's kernel: recorded, translated, its replies counted.
 *
 * Sees retransmissions, keepalive probes, RSTs and the answers of TIME_WAIT as well. skbs may be
 * GSO (one header for up to 64 KB) with a short linear part: header fields change by
 * bpf_l4_csum_replace without the pseudo-header flag, which is right for CHECKSUM_PARTIAL and for
 * complete sums; lengths never change.
 * Runs inside the TC ingress tier when that sends a clone: its scratch is its own.
 *
 * The program is on every device, and a packet may meet it several times: a VLAN, a bond, a bridge
 * hand it on to a device below. Invariants:
 *  E1. A packet of an entry's socket is recorded and translated once, whichever way it leaves: at the first
 *      device, the one that its route names. There it still is plain TCP; a tunnel wraps it up behind it.
 *  E2. Nothing in the packet tells later devices: marks and indexes have other users, who change them. The
 *      kernel's own route does (egress_first()).
 *  E3. A reset of no socket, as netfilter makes it (REJECT), has the numbers of the packet that it answers.
 *      Ingress has translated that packet, so the reset is translated back. The entry's socket knows
 *      nothing of it and lives on, so the entry remembers nothing of it either. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/sock.h"
#include "splice/closed.h"
#include "splice/handler.h"
#include "splice/latency.h"
#include "splice/out_work.h"

#define HEAD_PLAIN  66 /* Ethernet 14 + IPv4 20 + TCP with timestamps 32 */
#define BULK_HEADER 16 /* what tells a bulk string's length */

/* Notes whether the kernel's last packet left by the device by which the client's come, and how: T9.
 * Lock held. */
INLINE void egress_way(struct conn *conn, const u8 *head, bool same)
{
	if (same) {
		for (u32 i = 0; i < ETH_ADDRESSES; i += 4)
			*(u32 *)(conn->link + i) = *(const u32 *)(head + i);
		conn->flags |= CONN_F_EGRESS_SEEN;
	} else {
		conn->flags &= ~CONN_F_EGRESS_SEEN;
	}
}

/* The scan of this packet takes effect: T6. Lock held. */
INLINE void egress_count_replies(struct conn *conn, struct out_work *ow)
{
	handler_down_take(conn, ow);
	conn->out_at = ow->out_at;
	conn->scan_next = ow->p.seq + ow->p.payload_len;
	if (conn->flags & CONN_F_UNCOUNTABLE)
		return;
	if (ow->scan_lost || handler_doubts(conn, ow) ||
	    seq_after(conn->replies + ow->replies, conn->requests)) {
		ow->became = ow->scan_lost ? STAT_SCAN_REPLY_LOST : STAT_REPLY_EXTRA;
		conn->flags |= CONN_F_UNCOUNTABLE;
		handler_uncounted(conn, ow);
		if (conn->state != CONN_OLD)
			conn->state = CONN_BYPASS;
		return;
	}
	conn->replies += ow->replies;
	ow->timed_ns = latency_replied(conn);
	handler_replied(conn, ow);
}

/* Sets the timestamps to those with which the packet leaves. Lock held. */
INLINE void egress_stamp(struct conn *conn, u32 *tsval, u32 *tsecr)
{
	if (conn->last_tsval)
		*tsval = seq_max(*tsval, conn->last_tsval);
	conn->last_tsval = *tsval;
	if (conn->in_delta)
		*tsecr = seq_max(*tsecr, conn->ts_recent);
}

/* Records what leaves and takes the deltas. Lock held, cookie checked. scanned: egress_scan() has
 * scanned this packet. */
INLINE void egress_record(struct conn *conn, struct out_work *ow, bool scanned)
{
	u32 end = ow->p.seq + ow->p.payload_len;

	ow->in_delta = conn->in_delta;
	ow->out_delta = conn->out_delta;
	if (ow->nobodys)
		return;
	conn->spoke |= SPOKE_SINCE;
	if (ow->p.payload_len && conn->out_delta && seq_before(ow->p.seq, conn->edge)) {
		ow->drop = 1; /* T4: the client has these bytes, or their place is taken */
		return;
	}
	if (ow->p.flags & TCP_FIN)
		end++;
	if (ow->p.flags & (TCP_FIN | TCP_RST))
		conn->flags |= CONN_F_CLOSING;
	if (ow->p.flags & TCP_RST)
		conn->flags |= CONN_F_RESET;
	if (!(ow->p.flags & TCP_RST)) {
		conn->egress_max = seq_max(conn->egress_max, end);
		egress_way(conn, ow->head, ow->ifindex == conn->ifindex);
	}
	if (ow->p.ts_off) {
		ow->tsval = ow->p.tsval;
		ow->tsecr = ow->p.tsecr;
		egress_stamp(conn, &ow->tsval, &ow->tsecr);
	}
	if (scanned)
		egress_count_replies(conn, ow);
}

INLINE bool egress_stamps(const struct out_work *ow)
{
	return ow->p.ts_off && (ow->tsval != ow->p.tsval || ow->tsecr != ow->p.tsecr);
}

INLINE bool egress_changes(const struct out_work *ow)
{
	return ow->in_delta || ow->out_delta || egress_stamps(ow);
}

/* Rewrites the copy of the TCP header from kernel to client space. */
INLINE void translate_down(struct out_work *ow, u8 *tcp)
{
	store_be32(tcp + 4, ow->p.seq + ow->out_delta);
	if (ow->p.flags & TCP_ACK)
		store_be32(tcp + 8, ow->p.ack + ow->in_delta);
	if (egress_stamps(ow)) {
		u32 at = ow->p.ts_off;

		opaque(at);
		if (at <= TCP_BYTES_MAX - 8) {
			store_be32(tcp + at, ow->tsval);
			store_be32(tcp + at + 4, ow->tsecr);
		}
	}
	for (u32 i = 0; i < 4; i++) {
		u32 at = ow->p.sack_off + i * 8;

		if (i >= ow->p.sack_blocks)
			break;
		opaque(at);
		if (at > TCP_BYTES_MAX - 8)
			break;
		store_be32(tcp + at, load_be32(tcp + at) + ow->in_delta);
		store_be32(tcp + at + 4, load_be32(tcp + at + 4) + ow->in_delta);
	}
}

/* Stores the rewritten header. Returns false if the packet must not leave. */
INLINE bool egress_rewrite(struct __sk_buff *ctx, struct out_work *ow)
{
	u32 off = ow->p.l4_off, len = ow->p.tcp_bytes;
	/* The sum is still to be made: its field holds the pseudo-header's, which stays. */
	bool partial = tier_csum_partial(ctx), failed;
	u8 *tcp;
	s64 diff;

	opaque(off);
	if (off > HEAD_BYTES - TCP_BYTES_MAX)
		return false;
	tcp = ow->head + off;
	if (!egress_changes(ow)) {
		count(STAT_EGRESS_PLAIN);
		return true;
	}
	opaque(len);
	len &= 0x3c;
	if (len < 20)
		return false;
	if (partial) {
		translate_down(ow, tcp);
		failed = bpf_skb_store_bytes(ctx, off, tcp, len, 0);
	} else {
		for (u32 i = 0; i < TCP_BYTES_MAX; i += 4)
			*(u32 *)(ow->old_tcp + i) = *(u32 *)(tcp + i);
		translate_down(ow, tcp);
		diff = bpf_csum_diff((__be32 *)ow->old_tcp, len, (__be32 *)tcp, len, 0);
		failed = bpf_skb_store_bytes(ctx, off, tcp, len, 0) ||
			 bpf_l4_csum_replace(ctx, off + 16, 0, diff, 0);
	}
	if (failed) {
		count(STAT_EGRESS_REWRITE_FAILED);
		return false;
	}
	count(STAT_EGRESS_TRANSLATED);
	return true;
}

/* Whether the packet belongs to the entry's socket. Answers of TIME_WAIT and request sockets come
 * from the namespace's control socket, resets of netfilter from none: then the table of sockets
 * decides. */
INLINE bool egress_owner(struct __sk_buff *ctx, struct out_work *ow, struct conn *conn, u64 cookie)
{
	struct sock_ref r;
	bool ours;

	ow->nobodys = 0;
	if (conn->cookie == cookie || conn->cookie == COOKIE_UNKNOWN)
		return true;
	if (ow->p.payload_len || (ow->p.flags & TCP_SYN))
		return false;
	if (!sock_get(ctx, &ow->p.key, ow->p.family, &r))
		return false;
	ow->nobodys = !cookie && (ow->p.flags & TCP_RST);
	ours = (r.state == TCP_TIME_WAIT || ow->nobodys) && r.cookie == conn->cookie;
	sock_put(&r);
	return ours;
}

/* Scans new reply bytes. Returns whether there are any. conn.scan_next is written by egress only,
 * ordered by the socket's lock. */
INLINE bool egress_scan(struct __sk_buff *ctx, struct out_work *ow, struct conn *conn)
{
	u32 end = ow->p.seq + ow->p.payload_len;

	if (!ow->p.payload_len || (conn->flags & CONN_F_UNCOUNTABLE) ||
	    !seq_after(end, conn->scan_next))
		return false;
	ow->scan_from = conn->scan_next;
	ow->scan_lost = seq_after(ow->p.seq, ow->scan_from); /* a gap: bytes left by another way */
	handler_down_scan(ctx, ow, conn);
	return true;
}

/* Whether the device is the packet's first: the route that TCP gave it still names the device. The
 * kernel drops the route behind tcx or leaves the upper device's in place (net/core/dev.c,
 * __dev_queue_xmit()); what another namespace sends on has none of ours (skb_scrub_packet()). */
INLINE bool egress_first(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct dst_entry *route;
	u64 at = skb->_skb_refdst & ~1ULL;

	if (!at)
		return false;
	route = bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct dst_entry));
	return route->dev->ifindex == ctx->ifindex;
}

/* A device below the first one: as the packet was translated there (E1). It may be the one by which
 * the client's packets come. */
INLINE int egress_below(struct __sk_buff *ctx, const struct out_work *ow, struct conn *conn,
			u64 cookie)
{
	if (conn->ifindex == ctx->ifindex && !(ow->p.flags & TCP_RST)) {
		lock_take(&conn->lock);
		if (conn->cookie == cookie)
			egress_way(conn, ow->head, true);
		lock_release(&conn->lock);
	}
	count(STAT_EGRESS_BELOW);
	return TCX_NEXT;
}

INLINE int egress_conn(struct __sk_buff *ctx, struct out_work *ow, struct control *c,
		       struct conn *conn, u64 cookie)
{
	bool scanned, ours;

	/* An entry that takes any owner has no deltas: twice does no harm. */
	if (conn->cookie != COOKIE_UNKNOWN && !egress_first(ctx))
		return egress_below(ctx, ow, conn, cookie);
	if (conn->ifindex != ctx->ifindex)
		count(STAT_EGRESS_OTHER_DEVICE);
	ow->ifindex = ctx->ifindex;
	if (!egress_owner(ctx, ow, conn, cookie))
		return TCX_NEXT;
	cookie = conn->cookie;
	ow->drop = ow->became = ow->timed_ns = 0;
	handler_down_begin(ow, c);
	scanned = egress_scan(ctx, ow, conn);
	lock_take(&conn->lock);
	ours = conn->cookie == cookie;
	if (ours)
		egress_record(conn, ow, scanned);
	lock_release(&conn->lock);
	if (!ours)
		return TCX_NEXT;
	handler_down_done(ow, c);
	latency_down(ow->timed_ns);
	if (ow->became)
		count(ow->became);
	if (ow->drop) {
		count(STAT_EGRESS_BELOW_EDGE);
		return TCX_DROP;
	}
	return egress_rewrite(ctx, ow) ? TCX_NEXT : TCX_DROP;
}

/* The packet's head. Not by the helper if the linear part holds the usual headers: of what follows
 * only the first bytes are wanted, and they mostly lie in another page. */
INLINE bool egress_head(struct __sk_buff *ctx, struct out_work *ow, u32 len)
{
	u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	u32 more = len - HEAD_PLAIN;

	if (len < HEAD_PLAIN || at + HEAD_PLAIN > end)
		return !bpf_skb_load_bytes(ctx, 0, ow->head, len);
	for (u32 i = 0; i < HEAD_PLAIN - 2; i += 8)
		*(u64 *)(ow->head + i) = *(u64 *)(at + i);
	*(u16 *)(ow->head + HEAD_PLAIN - 2) = *(u16 *)(at + HEAD_PLAIN - 2);
	if (*(u16 *)(ow->head + 12) != bpf_htons(ETH_P_IP) || ow->head[14] != 0x45 ||
	    (ow->head[14 + 20 + 12] >> 4) != 8)
		return !bpf_skb_load_bytes(ctx, 0, ow->head, len);
	if (more > BULK_HEADER)
		more = BULK_HEADER;
	opaque(more);
	if (!more)
		return true;
	if (more > BULK_HEADER)
		return false;
	return !bpf_skb_load_bytes(ctx, HEAD_PLAIN, ow->head + HEAD_PLAIN, more);
}

INLINE int egress_packet(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	struct out_work *ow = out_work_get();
	u32 len = ctx->len;
	struct conn *conn;
	u64 cookie;

	if (!c || !ow || len < HEADERS_MIN)
		return TCX_NEXT;
	if (ctx->ingress_ifindex)
		return TCX_NEXT; /* forwarded: of no socket of ours */
	if (len > HEAD_BYTES)
		len = HEAD_BYTES;
	opaque(len);
	len &= 0xff; /* the verifier's bound: head is 256 bytes long */
	if (len < HEADERS_MIN || !egress_head(ctx, ow, len))
		return TCX_NEXT;
	if (parse_packet(&ow->p, ow->head, tier_l3(ctx), ctx->len, ctx->gso_segs > 1, true) !=
		PARSE_TCP ||
	    ow->p.key.server_port_be != c->port_be)
		return TCX_NEXT;
	cookie = bpf_get_socket_cookie(ctx);
	conn = conn_get(&ow->p.key);
	if (!conn || closed_to(c, conn))
		return TCX_NEXT;
	return egress_conn(ctx, ow, c, conn, cookie);
}
