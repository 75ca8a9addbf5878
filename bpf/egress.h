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
 *  E1. A packet of an entry's socket is recorded and translated once, whichever way it leaves: at
 *      the first device, the one that its route names. There it is plain TCP still; a tunnel wraps
 *      it up behind it.
 *  E2. Nothing in the packet tells later devices: marks and indexes have other users, who change
 *      them. The kernel does: see egress_first().
 *  E3. A reset of no socket, as netfilter makes it (REJECT), has the numbers of the packet that it
 *      answers, which ingress has translated: it is translated back. The entry's socket knows
 *      nothing of it and lives on, so the entry remembers nothing of it either. */
#pragma once
#include "splice.h"
#include "chunk.h"
#include "scan_reply.h"

#define HEAD_PLAIN  66 /* Ethernet 14 + IPv4 20 + TCP with timestamps 32 */
#define BULK_HEADER 16 /* what tells a bulk string's length */

struct out_work {
	struct pkt p;
	struct reply_found found;
	u32 ifindex; /* the packet's device */
	u32 nobodys; /* a reset of no socket: E3 */
	u32 in_delta;
	u32 out_delta;
	u32 tsval;
	u32 tsecr;
	u32 scan_from;
	u32 whole;    /* the packet is one whole reply: the scanner's state stays as it is */
	u32 released; /* marks to release, in marks[] */
	u32 drop;
	u32 became; /* enum erb_stat of a state change, 0 = none */
	u32 overflow_done;
	u32 hidden;  /* that of the share given back */
	u32 rights;  /* control's, read before open */
	u32 open;    /* without a password everything may be done */
	u32 shut;    /* nothing may */
	u32 gate;    /* Redis refused what access rules as we know them allow */
	u32 auth_at; /* the entry's */
	struct mark marks[MARKS_IN_FLIGHT];
	struct scan_reply scan;
	u8 head[256] __attribute__((aligned(8)));
	u8 old_tcp[64] __attribute__((aligned(8)));
	u32 pos; /* offset in the payload */
	struct chunk chunk;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct out_work);
} out_work_map SEC(".maps");

INLINE struct out_work *out_work_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&out_work_map, &zero);
}

/* Takes what can be taken in one step at ow->pos. Global: verified by itself. */
__noinline int scan_replies_step(void)
{
	struct out_work *ow = out_work_get();
	u32 pos, at, left, used = 0;

	if (!ow)
		return 0;
	pos = ow->pos;
	left = ow->p.payload_len - pos;
	if (ow->scan.state == RP_TYPE) {
		at = pos - ow->chunk.at;
		opaque(at);
		if (at < SCAN_CHUNK)
			used = scan_reply_header(&ow->scan, &ow->found,
						 *(u64 *)(ow->chunk.bytes + at), left);
	}
	if (ow->scan.state == RP_BLOB) {
		u32 n = ow->scan.skip < left - used ? ow->scan.skip : left - used;

		scan_reply_skip(&ow->scan, &ow->found, n);
		used += n;
	} else if (!used) {
		scan_reply_byte(&ow->scan, &ow->found,
				ow->chunk.bytes[(pos - ow->chunk.at) & (SCAN_CHUNK - 1)]);
		used = 1;
	}
	ow->pos = pos + used;
	return 0;
}

/* Scans the payload from scan_from on with ow->scan into ow->found. The position is in memory: the
 * verifier must not count it. Global: verified by itself. */
__noinline int scan_replies(struct __sk_buff *ctx)
{
	struct out_work *ow = out_work_get();
	u32 end;
	int i;

	if (!ow)
		return 0;
	ow->pos = ow->scan_from - ow->p.seq;
	ow->chunk.end = 0;
	end = ow->p.payload_len;
	bpf_for(i, 0, SCAN_STEPS_MAX)
	{
		u32 pos = read_once(ow->pos);

		if (pos >= end || ow->scan.state == RP_LOST)
			break;
		if (ow->scan.state != RP_BLOB &&
		    !chunk_load(ctx, &ow->chunk, ow->p.payload_off, pos, end)) {
			ow->scan.state = RP_LOST;
			break;
		}
		scan_replies_step();
	}
	if (read_once(ow->pos) < end)
		ow->scan.state = RP_LOST;
	return 0;
}

/* Whether a mark's command has been executed. Redis makes the reply of a command that is settled
 * when it has run, so its first byte says so; that of EXEC may leave in parts. Lock held. */
INLINE bool egress_executed(const struct conn *conn, const struct mark *m, bool begun)
{
	u32 early = begun & (m->set == MARK_SETTLE); /* a branch costs the verifier twice as much */

	return !seq_after(m->request, conn->replies + early);
}

/* Whether all that the connection ever asked for was refused, as it has shown no password: M5. Lock
 * held. */
INLINE bool egress_refused(const struct conn *conn, const struct out_work *ow)
{
	return ow->shut && !(conn->kept & (CONN_K_LET_IN | CONN_K_RECOUNTED)) &&
	       conn->rights == ow->rights;
}

/* Moves marks whose replies have left into ow->marks. Lock held. */
INLINE void egress_take_marks(struct conn *conn, struct out_work *ow)
{
	bool begun = conn->out.left && !conn->out.push, refused = egress_refused(conn, ow);

	for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
		struct mark *m = &conn->marks[conn->mark_tail & (MARKS_IN_FLIGHT - 1)];

		if (conn->mark_tail == conn->mark_head || !egress_executed(conn, m, begun))
			break;
		ow->marks[i] = *m;
		if (refused && m->set == MARK_FENCE)
			ow->marks[i].set = MARK_SETTLE;
		ow->released = i + 1;
		conn->mark_tail++;
	}
}

/* Whether the first answer does not prove that a stream older than ERB was taken up at a command's
 * begin: Redis would have answered anything else by an error. */
INLINE bool egress_trial_failed(const struct conn *conn, const struct out_work *ow)
{
	return (conn->kept & CONN_K_TRIAL) && ow->found.errors;
}

/* What counted replies say of the connection itself: M2 to M4, and the end of a trial. Lock held.
 */
INLINE void egress_modes(struct conn *conn, const struct out_work *ow)
{
	if (ow->found.success || ow->found.ran)
		conn->kept |= CONN_K_LET_IN;
	if (ow->found.map && !conn->resp && conn->hellos == 1)
		conn->resp = 3;
	if (ow->found.authed && conn->auth_at == ow->auth_at)
		conn->kept |= CONN_K_AUTHED;
	if (ow->found.errors && (conn->kept & CONN_K_WATCHED))
		conn->kept |= CONN_K_STUCK;
	if (ow->found.success && conn->replies == conn->requests)
		conn->kept &= ~CONN_K_TRIAL;
}

/* The counted replies take effect: states, marks. Lock held. */
INLINE void egress_count_replies(struct conn *conn, struct out_work *ow)
{
	if (!ow->whole)
		conn->out = ow->scan;
	conn->scan_next = ow->p.seq + ow->p.payload_len;
	if (conn->flags & CONN_F_UNCOUNTABLE)
		return;
	if (ow->scan.state == RP_LOST || egress_trial_failed(conn, ow) ||
	    seq_after(conn->replies + ow->found.done, conn->requests)) {
		ow->became = ow->scan.state == RP_LOST ? STAT_SCAN_REPLY_LOST : STAT_REPLY_EXTRA;
		conn->flags |= CONN_F_UNCOUNTABLE;
		conn_epoch_move(conn);
		if (conn->kept & CONN_K_TRIAL) {
			conn_trial_failed(conn);
			ow->became = STAT_TRIAL_FAILED;
		}
		if ((conn->mark_head != conn->mark_tail || (conn->flags & CONN_F_OVERFLOW)) &&
		    !(conn->flags & CONN_F_FENCE_PROOF)) {
			/* from now on only proof releases what the ring holds */
			conn->flags |= CONN_F_FENCE_PROOF;
			conn->proof_pos = conn->up_max - conn->in_delta;
			ow->overflow_done = 2;
		}
		if (conn->state != CONN_OLD)
			conn->state = CONN_BYPASS;
		return;
	}
	conn->replies += ow->found.done;
	egress_modes(conn, ow);
	ow->gate = (ow->open && ow->found.noauth) ||
		   (conn->state == CONN_FAST && conn->rights == ow->rights && ow->found.noperm);
	egress_take_marks(conn, ow);
	if (conn->replies == conn->requests && (conn->flags & CONN_F_OVERFLOW)) {
		conn->flags &= ~CONN_F_OVERFLOW;
		ow->hidden = (conn->hidden & CONN_F_OVERFLOW) && !egress_refused(conn, ow);
		conn->hidden &= ~CONN_F_OVERFLOW;
		ow->overflow_done = 1;
	}
	if (conn->state != CONN_NEW)
		return;
	if (ow->found.bars) {
		conn->state = CONN_BYPASS;
		ow->became = STAT_CONN_BYPASS;
	} else if (ow->found.success && !ow->open) {
		conn->state = CONN_BYPASS; /* whose it is only a list can tell */
		ow->became = STAT_CONN_BYPASS;
	} else if (ow->found.success && !(conn->flags & CONN_F_CLOSING)) {
		conn->rights = ow->rights;
		conn->state = CONN_FAST;
		ow->became = STAT_CONN_FAST;
	}
}

/* Notes whether the kernel's last packet left by the device by which the client's come, and how: T9.
 * Lock held. */
INLINE void egress_way(struct conn *conn, const struct out_work *ow, bool same)
{
	if (same) {
		for (u32 i = 0; i < ETH_ADDRESSES; i += 4)
			*(u32 *)(conn->link + i) = *(const u32 *)(ow->head + i);
		conn->flags |= CONN_F_EGRESS_SEEN;
	} else {
		conn->flags &= ~CONN_F_EGRESS_SEEN;
	}
}

/* Records what leaves and takes the deltas. Lock held, cookie checked. scanned: ow->scan holds a
 * valid scan of this packet. */
INLINE void egress_record(struct conn *conn, struct out_work *ow, bool scanned)
{
	u32 end = ow->p.seq + ow->p.payload_len;

	ow->in_delta = conn->in_delta;
	ow->out_delta = conn->out_delta;
	if (ow->nobodys)
		return;
	conn->spoke = 1;
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
		egress_way(conn, ow, ow->ifindex == conn->ifindex);
	}
	if (ow->p.ts_off) {
		ow->tsval = ow->p.tsval;
		if (conn->last_tsval)
			ow->tsval = seq_max(ow->p.tsval, conn->last_tsval);
		conn->last_tsval = ow->tsval;
		ow->tsecr = conn->in_delta ? seq_max(ow->p.tsecr, conn->ts_recent) : ow->p.tsecr;
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
	for (u32 i = 0; i < TCP_BYTES_MAX; i += 4)
		*(u32 *)(ow->old_tcp + i) = *(u32 *)(tcp + i);
	translate_down(ow, tcp);
	opaque(len);
	len &= 0x3c;
	diff = bpf_csum_diff((__be32 *)ow->old_tcp, len, (__be32 *)tcp, len, 0);
	if (len < 20)
		return false;
	if (bpf_skb_store_bytes(ctx, off, tcp, len, 0) ||
	    bpf_l4_csum_replace(ctx, off + 16, 0, diff, 0)) {
		count(STAT_EGRESS_REWRITE_FAILED);
		return false;
	}
	count(STAT_EGRESS_TRANSLATED);
	return true;
}

/* What the lock section decided is carried out: marks, shares of the fence, counters. */
INLINE void egress_settle(struct out_work *ow, struct control *c)
{
	if (ow->released)
		marks_release(c, ow->marks, ow->released, true);
	if (ow->overflow_done == 1)
		fence_end(c, ow->hidden);
	if (ow->overflow_done == 2) {
		fence_take(c);
		count(STAT_FENCE_PROOF);
	}
	if (ow->gate) {
		atomic_add(&c->gate_seen, 1);
		count(STAT_GATE_SHUT);
	}
	if (ow->became)
		count(ow->became);
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

/* The usual reply, a bulk string that fills the packet or nil, is told by its header, which is in
 * ow->head: true if the packet is one whole reply. The scanner would say the same. */
INLINE bool egress_one_bulk(struct out_work *ow)
{
	u32 at = ow->p.payload_off, len = ow->p.payload_len, n, digits;
	u64 word;

	opaque(at);
	if (at > HEAD_BYTES - RESP_HEADER_BYTES)
		return false;
	word = *(u64 *)(ow->head + at);
	if ((u8)word != '$')
		return false;
	if ((word & REPLY_NIL_MASK) == REPLY_NIL)
		return len == 5;
	digits = resp_header_digits(word, len, &n);
	return digits && len == digits + 3 + n + 2;
}

/* Copies and scans new reply bytes. Returns whether ow->scan is a valid scan. */
INLINE bool egress_scan(struct __sk_buff *ctx, struct out_work *ow, struct conn *conn)
{
	u32 end = ow->p.seq + ow->p.payload_len;

	ow->found.done = ow->found.pushes = 0;
	ow->found.bars = ow->found.success = 0;
	ow->found.authed = ow->found.errors = ow->found.map = 0;
	ow->found.noauth = ow->found.noperm = ow->found.ran = 0;
	ow->auth_at = read_once(conn->auth_at);
	ow->found.auth_at = ow->auth_at ? ow->auth_at - conn->replies : 0;
	if (!ow->p.payload_len || (conn->flags & CONN_F_UNCOUNTABLE) ||
	    !seq_after(end, conn->scan_next))
		return false;
	/* R1: written by egress only, ordered by the socket's lock */
	ow->scan_from = conn->scan_next;
	ow->whole = ow->scan_from == ow->p.seq && conn->out.state == RP_TYPE && !conn->out.left &&
		    egress_one_bulk(ow);
	if (ow->whole) {
		ow->scan.state = RP_TYPE;
		ow->found.done = ow->found.success = 1;
		return true;
	}
	ow->scan = conn->out;
	if (seq_after(ow->p.seq, ow->scan_from))
		ow->scan.state = RP_LOST; /* a gap: bytes left by another way */
	else
		scan_replies(ctx);
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
			egress_way(conn, ow, true);
		lock_release(&conn->lock);
	}
	count(STAT_EGRESS_BELOW);
	return TCX_NEXT;
}

INLINE int egress_conn(struct __sk_buff *ctx, struct out_work *ow, struct control *c,
		       struct conn *conn, u64 cookie)
{
	bool scanned, ours;
	u32 open;

	/* An entry that takes any owner has no deltas: twice does no harm. */
	if (conn->cookie != COOKIE_UNKNOWN && !egress_first(ctx))
		return egress_below(ctx, ow, conn, cookie);
	if (conn->ifindex != ctx->ifindex)
		count(STAT_EGRESS_OTHER_DEVICE);
	ow->ifindex = ctx->ifindex;
	if (!egress_owner(ctx, ow, conn, cookie))
		return TCX_NEXT;
	cookie = conn->cookie;
	ow->drop = ow->released = ow->became = ow->overflow_done = ow->gate = 0;
	ow->rights = read_once(c->rights);
	load_barrier();
	open = read_once(c->open);
	ow->open = open == DOOR_OPEN;
	ow->shut = open == DOOR_SHUT;
	scanned = egress_scan(ctx, ow, conn);
	lock_take(&conn->lock);
	ours = conn->cookie == cookie;
	if (ours)
		egress_record(conn, ow, scanned);
	lock_release(&conn->lock);
	if (!ours)
		return TCX_NEXT;
	egress_settle(ow, c);
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
	if (!conn)
		return TCX_NEXT;
	return egress_conn(ctx, ow, c, conn, cookie);
}
