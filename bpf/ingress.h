/* SPDX-License-Identifier: GPL-2.0 */
/* ingress.h - one packet from the client: answered, translated and passed up, dropped, or left to
 * the other tier. Compiled for XDP and for TC.
 *
 * Order of work (must): everything that can refuse comes before the commit under the connection's
 * lock; nothing is written to packet, map or entry before it; after it there is no way back.
 * Locks: a set's lock or a connection's, never both, and no helper under either. */
#pragma once
#include "conn.h"
#include "icmp.h"
#include "fast.h"
#include "segment.h"

enum verdict {
	V_PLAIN = 0, /* up as it came; nothing left to do */
	V_UP,	     /* up, translated and marked */
	V_DROP,
	V_SENT,	    /* answered in place */
	V_TO_TC,    /* the TC tier must see it */
	V_UNMARKED, /* no room for the mark: the TC tier runs the whole path */
	V_REFUSED,  /* no answer; try the next way */
};

/* Copies the payload's first PAYLOAD_BYTES into w->payload and verifies the packet's sums: TCP's
 * must be right in full, or equal the bare pseudo-header sum that a local stack leaves on veth and
 * virtio; IPv4's must be right. Without it a corrupted segment, which the kernel drops, would move
 * scanner and acknowledgements. Fragments cannot be verified and are not. Global: verified by
 * itself. */
__noinline int checksum_ok(ctx_t *ctx)
{
	struct work *w = work_get();
	u32 off, l3, len, sum = 0, tcp_len;
	u64 pseudo;
	u16 ip_sum;
	bool bare;
	int i;

	if (!w)
		return false;
	off = w->p.l4_off;
	l3 = w->p.l3_off == 18 ? 18 : 14;
	len = w->p.payload_len;
	pseudo = csum_pseudo(&w->p, w->p.tcp_bytes + len);
	opaque(off);
	if (off > HEAD_BYTES - TCP_BYTES_MAX)
		return false;
	if (w->p.family == 4) {
		if (w->head[l3] == 0x45)
			ip_sum = csum_fold(csum_words(w->head + l3, 5));
		else
			ip_sum = csum_ipv4(w->head + l3, (w->head[l3] & 0x0f) * 4);
		if (ip_sum != 0xffff)
			return false;
	}
	bare = *(u16 *)(w->head + off + 16) == csum_fold(pseudo);
	tcp_len = w->p.tcp_bytes;
	if (tcp_len == 32) {
		pseudo += csum_words(w->head + off, 8);
	} else {
		opaque(tcp_len);
		tcp_len &= 0x3c;
		pseudo += bpf_csum_diff(0, 0, (__be32 *)(w->head + off), tcp_len, 0);
	}
	if (len && len == w->loaded && !bare) { /* one chunk, the usual case */
		len = ((len - 1) & (CSUM_CHUNK - 1)) + 1;
		sum = bpf_csum_diff(0, 0, (__be32 *)w->payload, (len + 3) & ~3U, 0);
		return (w->p.odd & ODD_F_FRAGMENT) || tier_merged(ctx) ||
		       csum_fold(pseudo + sum) == 0xffff;
	}
	w->pos = 0; /* in memory: the verifier must not count it */
	bpf_for(i, 0, 65536 / CSUM_CHUNK)
	{
		u32 pos = w->pos, n = len - pos, at = pos & (PAYLOAD_BYTES - CSUM_CHUNK);

		if (pos >= len || (bare && pos >= PAYLOAD_BYTES))
			break;
		if (n > CSUM_CHUNK)
			n = CSUM_CHUNK;
		opaque(n);
		n = ((n - 1) & (CSUM_CHUNK - 1)) + 1;
		if (pos || n > w->loaded) {
			if (tier_load(ctx, w->p.payload_off + pos, w->payload + at, n))
				return false;
			if (n & 3)
				*(u32 *)(w->payload + at + n) = 0;
		}
		if (!bare) {
			n = (n + 3) & ~3U;
			opaque(n);
			if (n <= CSUM_CHUNK)
				sum = bpf_csum_diff(0, 0, (__be32 *)(w->payload + at), n, sum);
		}
		w->pos = pos + CSUM_CHUNK;
	}
	if (bare || (w->p.odd & ODD_F_FRAGMENT) ||
	    tier_merged(ctx)) /* GRO has verified its parts */
		return true;
	return csum_fold(pseudo + sum) == 0xffff;
}

/* Takes one byte of a request. Global: verified by itself, or the loop of scan_packet does not
 * converge on Linux 6.12. */
__noinline int scan_packet_byte(u32 byte)
{
	struct work *w = work_get();
	struct control *c = control_get();

	if (!w || !c)
		return 0;
	scan_request_byte(&w->scan, &w->found, c, byte);
	if (!w->scan.skip || w->scan.state != RQ_BULK)
		scan_request_settle(&w->scan, &w->found);
	return 0;
}

/* Scans w->p's payload from scan_from on with w->scan into w->found. Global: verified by itself.
 * S2: what is left of a skipped body counts as scanned; scan_next is moved over it. */
__noinline int scan_packet(ctx_t *ctx)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 pos, end, base = 0, loaded = 0;
	int i;

	if (!w || !c)
		return 0;
	w->found.done = w->found.effects = 0;
	w->found.overflow = w->found.stateful = w->found.uncountable = w->found.gate = 0;
	pos = w->scan_from - w->p.seq;
	end = w->p.payload_len;
	bpf_for(i, 0, 65536)
	{
		if (pos >= end || w->scan.state == RQ_LOST)
			break;
		if (w->scan.skip && w->scan.state == RQ_BULK) {
			u32 n = w->scan.skip < end - pos ? w->scan.skip : end - pos;

			w->scan.skip -= n;
			pos += n;
			if (!w->scan.skip)
				scan_request_settle(&w->scan, &w->found);
			continue;
		}
		if (pos - base >= loaded) {
			u32 n = end - pos < 64 ? end - pos : 64;

			base = pos;
			opaque(n);
			n = ((n - 1) & 63) + 1;
			if (tier_load(ctx, w->p.payload_off + pos, w->chunk, n)) {
				w->scan.state = RQ_LOST;
				break;
			}
			loaded = n;
		}
		scan_packet_byte(w->chunk[(pos - base) & 63]);
		pos++;
	}
	if (pos < end)
		w->scan.state = RQ_LOST;
	w->scan_next = w->p.seq + end;
	if (w->scan.skip && w->scan.state == RQ_BULK) {
		w->scan_next += w->scan.skip;
		w->scan.skip = 0;
		scan_request_settle(&w->scan, &w->found);
	}
	return 0;
}

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

/* ---- fast answers ---- */

/* What can be said against an answer without the lock. */
INLINE u32 fast_unfit(ctx_t *ctx, const struct work *w, const struct control *c,
		      const struct conn *conn)
{
	u8 odd = w->p.odd;

	if (conn->state != CONN_FAST)
		return conn->state == CONN_NEW ? STAT_REFUSE_NEW : STAT_REFUSE_BYPASS;
	if (conn->flags & CONN_F_CLOSING)
		return STAT_REFUSE_CLOSING;
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
	if (w->p.seq != conn->next || conn->in.state != RQ_IDLE)
		return STAT_REFUSE_ORDER;
	if (c->heartbeat_up_ns && w->now - conn->request_up_ns > c->heartbeat_up_ns)
		return STAT_REFUSE_HEARTBEAT;
	return 0;
}

/* Reads payload and cache; 0 if w->reply holds the whole answer. */
INLINE u32 fast_prepare(ctx_t *ctx, struct work *w, const struct control *c,
			const struct conn *conn)
{
	u32 reason = fast_unfit(ctx, w, c, conn);

	w->whole = 0;
	if (reason)
		return reason;
	fast_packet();
	return w->refusal;
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
INLINE enum verdict fast_send(ctx_t *ctx, struct work *w)
{
	bool with_ts = w->p.ts_off != 0;

	count_n(STAT_FAST_GET, w->gets);
	if (w->pings)
		count_n(STAT_FAST_PING, w->pings);
#if TIER_XDP
	count(STAT_FAST_PACKET);
	return tier_send(ctx, w, segment_build(with_ts, false)) == XDP_TX ? V_SENT : V_DROP;
#else
	bool partial = tier_csum_partial(ctx);

	count(STAT_FAST_PACKET_TC);
	tier_clone(ctx, w, segment_build(with_ts, partial), ctx->ifindex);
	return pass_up_as_ack(ctx, w, partial);
#endif
}

/* The packet, or what is left of it, goes up with its acknowledgement. Lock held. */
INLINE void ack_goes_up(struct conn *conn, const struct work *w)
{
	u32 end = w->p.seq + w->p.payload_len;

	conn->ack_up_ns = w->now;
	conn->spoke = 0;
	if (!TIER_XDP && (conn->flags & CONN_F_TC_PENDING) && !seq_before(end, conn->tc_until))
		conn->flags &= ~CONN_F_TC_PENDING;
}

/* Answers the packet, or V_REFUSED: it goes up, unchanged so far. */
INLINE enum verdict ingress_fast(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
				 struct sock_ref *r)
{
	u32 reason = fast_prepare(ctx, w, c, conn);
	enum grown grown;
	s32 more;

	if (reason) {
		count(reason);
		return V_REFUSED;
	}
	more = w->p.payload_off + w->reply_len - tier_len(ctx);
	grown = tier_grow(ctx, more);
	if (grown == GROWN_FAILED) {
		count(STAT_REFUSE_NO_ROOM);
		return V_REFUSED;
	}
	lock_take(&conn->lock);
	sock_view_load(r->tp, &w->view);
	reason = conn->cookie == r->cookie ? commit_check(conn, &w->view, w) : STAT_REFUSE_RACE;
	if (reason == STAT_TO_TC && TIER_XDP) {
		conn->tc_until = w->p.seq + w->p.payload_len;
		conn->flags |= CONN_F_TC_PENDING;
	} else if (!reason || reason == STAT_TO_TC) {
		reason = 0;
		commit(conn, &w->view, w);
		if (!TIER_XDP)
			ack_goes_up(conn, w);
		translation_take(conn, w);
		w->snd_wscale = w->view.snd_wscale;
	}
	lock_release(&conn->lock);
	if (!reason)
		return fast_send(ctx, w);
	tier_ungrow(ctx, more, grown);
	if (reason == STAT_TO_TC)
		return V_TO_TC;
	count(reason);
	return V_REFUSED;
}

/* ---- segments of the fast path's own ---- */

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

/* Payload beyond next: dropped, a bare duplicate ACK tells the client what is missing. */
INLINE enum verdict ingress_gap(ctx_t *ctx, struct work *w, struct conn *conn, struct sock_ref *r)
{
	bool send = false;

	count(STAT_DROP_OUT_OF_ORDER);
	if (!r->tp)
		return V_DROP;
	lock_take(&conn->lock);
	sock_view_load(r->tp, &w->view);
	if (conn->cookie == r->cookie && w->view.established && !(conn->flags & CONN_F_CLOSING)) {
		send = true;
		conn_stamp(conn, &w->view, w);
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
 * with a bare ACK. V_REFUSED: it goes up, where TCP knows it as an old duplicate. */
INLINE enum verdict ingress_duplicate(ctx_t *ctx, struct work *w, struct conn *conn,
				      struct sock_ref *r)
{
	bool send = false;
	u32 unacked;

	if (!r->tp || w->p.odd)
		return V_REFUSED;
	w->acked = 1;
	lock_take(&conn->lock);
	sock_view_load(r->tp, &w->view);
	if (conn->cookie == r->cookie && w->view.established && !(conn->flags & CONN_F_CLOSING) &&
	    conn_paws_ok(conn, &w->p) && conn_ack(conn, &w->p, &w->view, w->now) &&
	    ack_is_known(conn, &w->view, &w->p)) {
		send = true;
		unacked = conn_unacked(conn, conn->ack_max);
		w->out_seq = unacked ? seq_max(conn->ack_max, conn->replay_from)
				     : conn->egress_max + conn->out_delta;
		if (unacked > w->view.mss_cache)
			unacked = w->view.mss_cache;
		replay_get(conn, w, w->out_seq, unacked);
		conn_stamp(conn, &w->view, w);
		w->out_ack = w->view.rcv_nxt + conn->in_delta;
		if (unacked)
			conn->sent_ns = w->now;
	}
	lock_release(&conn->lock);
	if (!send)
		return V_REFUSED;
	count(STAT_REPLAY_REQUEST);
	return send_segment(ctx, w);
}

/* ---- up ---- */

/* Gives back what was taken for a packet that does not go up after all, or whose effects a share
 * of the fence holds instead. */
__noinline int effects_release(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	int i;

	if (!w || !c)
		return 0;
	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 n = i;

		if (n >= w->found.effects || n >= MARKS_IN_FLIGHT)
			break;
		if (w->found.marks[n].set == MARK_FENCE)
			fence_release(c);
		else
			mark_release(w->found.marks[n].set);
	}
	return 0;
}

/* Takes marks and shares of the fence for the packet's effects, before it goes up. Global. */
__noinline int effects_take(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	int i;

	if (!w || !c)
		return 0;
	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 n = i;

		if (n >= w->found.effects || n >= MARKS_IN_FLIGHT)
			break;
		if (w->found.marks[n].set == MARK_FENCE)
			fence_take(c);
		else
			mark_take(w->found.marks[n].set, w->found.hashes[n]);
	}
	return 0;
}

enum hold { HOLD_RING = 0, HOLD_SHARE_OLD, HOLD_SHARE_NEW, HOLD_RACE };

/* Decides who holds the packet's effects until they are executed: the ring of the connection, or
 * one share of the fence. Lock held; scan results are valid. */
INLINE enum hold hold_effects(struct conn *conn, struct work *w)
{
	u32 n = w->found.effects, used = conn->mark_head - conn->mark_tail;
	u32 end = w->p.seq + w->p.payload_len + w->proof_ahead - conn->in_delta;
	u8 flag = CONN_F_OVERFLOW, had;

	if (conn->flags & CONN_F_UNCOUNTABLE) {
		flag = CONN_F_FENCE_PROOF;
		if (!n && !w->found.overflow && !used &&
		    !(conn->flags & (CONN_F_SCAN_LOST | CONN_F_OVERFLOW)))
			return HOLD_RING; /* nothing to hold */
		if (!(conn->flags & flag) || seq_after(end, conn->proof_pos))
			conn->proof_pos = end;
	} else if (!w->found.overflow && used + n <= MARKS_IN_FLIGHT) {
		for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
			u32 at = (conn->mark_head + i) & (MARKS_IN_FLIGHT - 1);

			if (i >= n)
				break;
			conn->marks[at].request = conn->requests + w->found.marks[i].request;
			conn->marks[at].set = w->found.marks[i].set;
		}
		conn->mark_head += n;
		return HOLD_RING;
	}
	had = conn->flags & flag;
	conn->flags |= flag;
	return had ? HOLD_SHARE_OLD : HOLD_SHARE_NEW;
}

/* What every packet that goes up leaves in the entry. Lock held. */
INLINE void up_account(struct conn *conn, struct work *w, struct sock_ref *r)
{
	u32 end = w->p.seq + w->p.payload_len;

	if (r->tp) {
		sock_view_load(r->tp, &w->view);
		if (!w->acked)
			conn_ack(conn, &w->p, &w->view, w->now);
		w->snd_wscale = w->view.snd_wscale;
	}
	conn_ts_recent(conn, &w->p);
	if (w->p.payload_len && seq_after(end, conn->up_max))
		conn->up_max = end;
	if (w->p.flags & (TCP_FIN | TCP_RST))
		conn->flags |= CONN_F_CLOSING;
	ack_goes_up(conn, w);
	translation_take(conn, w);
}

/* Applies a scan to the entry. Lock held. */
INLINE enum hold up_commit(struct conn *conn, struct work *w, struct sock_ref *r)
{
	enum hold hold;
	bool lost = conn->flags & CONN_F_SCAN_LOST;

	if (conn->cookie != r->cookie || (!lost && conn->next != w->scan_from))
		return HOLD_RACE;
	if (w->whole && (lost || conn->in.state != RQ_IDLE))
		return HOLD_RACE;
	if (!w->whole && w->scan.state == RQ_LOST)
		conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
	if (w->found.uncountable)
		conn->flags |= CONN_F_UNCOUNTABLE;
	if ((w->found.stateful || (conn->flags & CONN_F_UNCOUNTABLE)) && conn->state != CONN_OLD)
		conn->state = CONN_BYPASS;
	hold = hold_effects(conn, w);
	if (!lost) {
		if (!w->whole)
			conn->in = w->scan;
		conn->next = w->scan_next;
		conn->requests += w->found.done;
		conn->request_up_ns = w->now;
	}
	up_account(conn, w, r);
	return hold;
}

/* Finds out what the payload says: w->found, and the state behind it in w->scan. Returns false if
 * the packet must be dropped. */
INLINE bool up_scan(ctx_t *ctx, struct work *w, struct conn *conn, bool *lost)
{
	w->found.effects = w->found.overflow = w->found.stateful = 0;
	w->found.uncountable = w->found.gate = w->found.done = 0;
	*lost = false;
	if (w->whole) { /* read by the handler already, nothing but reads */
		w->found.done = w->commands;
		w->scan_from = w->p.seq;
		w->scan_next = w->p.seq + w->p.payload_len;
		return true;
	}
	lock_take(&conn->lock);
	*lost = conn->flags & CONN_F_SCAN_LOST;
	w->scan_from = conn->next;
	w->scan = conn->in;
	lock_release(&conn->lock);
	if (*lost)
		return true;
	if (seq_after(w->p.seq, w->scan_from)) /* another CPU was faster */
		return false;
	scan_packet(ctx);
	effects_take();
	return true;
}

/* Payload goes up: scanned, its effects taken, translated. */
INLINE enum verdict ingress_up(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
			       struct sock_ref *r)
{
	enum hold hold;
	bool lost, was_bypass, is_bypass;

	if (!tier_mark(ctx, META_TRANSLATED))
		return V_UNMARKED;
	if (!up_scan(ctx, w, conn, &lost))
		return V_DROP;
	lock_take(&conn->lock);
	was_bypass = conn->state == CONN_BYPASS;
	hold = up_commit(conn, w, r);
	is_bypass = conn->state == CONN_BYPASS;
	lock_release(&conn->lock);
	if (hold == HOLD_RACE) {
		effects_release();
		count(STAT_DROP_RACE);
		return V_DROP;
	}
	if (hold == HOLD_SHARE_NEW) {
		fence_take(c);
		if (conn->flags & CONN_F_FENCE_PROOF)
			count(STAT_FENCE_PROOF);
	}
	if (hold == HOLD_SHARE_NEW || hold == HOLD_SHARE_OLD)
		effects_release();
	if (w->found.gate) {
		atomic_add(&c->gate_seen, 1);
		count(STAT_GATE_SHUT);
	}
	if (is_bypass && !was_bypass)
		count(STAT_CONN_BYPASS);
	if (!lost && !w->whole && w->scan.state == RQ_LOST)
		count(STAT_SCAN_LOST);
	count(STAT_UP_TRANSLATED);
	return pass_up(ctx, w);
}

/* Bytes that went up before, or no bytes at all: up again, unscanned and uncounted. */
INLINE enum verdict ingress_up_again(ctx_t *ctx, struct work *w, struct conn *conn,
				     struct sock_ref *r)
{
	if (!tier_mark(ctx, META_TRANSLATED))
		return V_UNMARKED;
	lock_take(&conn->lock);
	if (conn->cookie == r->cookie)
		up_account(conn, w, r);
	else
		w->translate = 0;
	lock_release(&conn->lock);
	count(w->p.payload_len ? STAT_UP_TRANSLATED : STAT_PURE_ACK_UP);
	return pass_up(ctx, w);
}

/* ---- pure ACKs ---- */

/* A hole that a replay can fill: a SACK block above the acknowledgement and none below (D-SACK), or
 * the third duplicate; once per hole and RTT (RFC 6675). Lock held. */
INLINE bool replay_wanted(struct conn *conn, const struct work *w)
{
	u64 pause = conn->rtt_us ? conn->rtt_us * 1000ULL : RTO_MIN_NS;

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

/* Nothing in it is new to the kernel: see the design, "Pure ACKs". Lock held. */
INLINE bool ack_droppable(const struct conn *conn, const struct sock_view *v, const struct work *w)
{
	const struct pkt *p = &w->p;

	return conn->state == CONN_FAST && !(conn->flags & CONN_F_CLOSING) && !p->odd &&
	       p->seq == conn->next && !p->sack_off && v->write_seq == v->snd_una &&
	       ack_is_known(conn, v, p) && conn_paws_ok(conn, p) && !conn->spoke &&
	       w->now - conn->ack_up_ns < PURE_ACK_UP_NS;
}

enum ack_fate { ACK_UP = 0, ACK_DROP, ACK_REPLAY };

INLINE enum verdict ingress_ack(ctx_t *ctx, struct work *w, struct conn *conn, struct sock_ref *r)
{
	enum ack_fate fate = ACK_UP;

	if (!r->tp || (w->p.flags & (TCP_FIN | TCP_RST)))
		return ingress_up_again(ctx, w, conn, r);
	w->acked = 1;
	lock_take(&conn->lock);
	sock_view_load(r->tp, &w->view);
	if (conn->cookie == r->cookie && conn_ack(conn, &w->p, &w->view, w->now)) {
		if (replay_wanted(conn, w)) {
			conn_loss(conn, w->now);
			if (w->view.write_seq == conn->edge && !w->p.odd &&
			    ack_is_known(conn, &w->view, &w->p)) {
				fate = ACK_REPLAY;
				w->out_seq = w->p.ack;
				w->reply_len =
				    w->p.sack_off ? w->p.sack_first - w->p.ack : w->view.mss_cache;
				if (w->reply_len > conn_unacked(conn, w->p.ack))
					w->reply_len = conn_unacked(conn, w->p.ack);
				if (w->reply_len > w->view.mss_cache)
					w->reply_len = w->view.mss_cache;
				replay_get(conn, w, w->out_seq, w->reply_len);
				conn_stamp(conn, &w->view, w);
				w->out_ack = w->view.rcv_nxt + conn->in_delta;
				conn->sent_ns = w->now;
			} else {
				conn->sent_ns = 1; /* the timer sends it at its next tick */
			}
		} else if (ack_droppable(conn, &w->view, w)) {
			fate = ACK_DROP;
			conn_ts_recent(conn, &w->p);
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

/* ---- one packet ---- */

/* A first fragment: the rest of its bytes passes unseen, so the stream is lost and what it may
 * have said is only known to be executed 64 KiB further on, or when the connection is gone. */
INLINE void conn_fragment(struct work *w, struct conn *conn)
{
	lock_take(&conn->lock);
	conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
	lock_release(&conn->lock);
	w->proof_ahead = 65535;
	count(STAT_ODD_FRAGMENT);
}

/* A socket was found. */
INLINE enum verdict ingress_sock(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
				 struct sock_ref *r)
{
	u32 end = w->p.seq + w->p.payload_len;
	enum verdict v;

	if (conn && conn->cookie == COOKIE_UNKNOWN && r->cookie) {
		lock_take(&conn->lock);
		if (conn->cookie == COOKIE_UNKNOWN)
			conn->cookie = r->cookie; /* OLD, deltas zero: any owner will do */
		lock_release(&conn->lock);
	}
	if (!conn || (conn->cookie != r->cookie && conn->cookie != COOKIE_UNKNOWN)) {
		if (!w->p.payload_len || (w->p.flags & TCP_SYN)) {
			count(conn ? STAT_SOCK_OTHER_COOKIE : STAT_UP_UNTRACKED);
			return V_PLAIN;
		}
		conn = conn_track(w, c, conn, r, tier_ifindex(ctx));
		if (!conn)
			return V_PLAIN;
	}
	if (!r->cookie)
		r->cookie = COOKIE_UNKNOWN;
	if (TIER_XDP && (conn->flags & CONN_F_TC_PENDING))
		return V_TO_TC;
	if (!w->p.payload_len)
		return ingress_ack(ctx, w, conn, r);
	if (w->p.odd & ODD_F_FRAGMENT)
		conn_fragment(w, conn);
	if (conn->flags & CONN_F_SCAN_LOST)
		return ingress_up(ctx, w, c, conn, r);
	if (seq_after(w->p.seq, conn->next))
		return ingress_gap(ctx, w, conn, r);
	if (!seq_after(end, conn->in_edge) && conn->in_delta) {
		v = ingress_duplicate(ctx, w, conn, r);
		return v == V_REFUSED ? ingress_up_again(ctx, w, conn, r) : v;
	}
	if (!seq_after(end, conn->next))
		return ingress_up_again(ctx, w, conn, r);
	if (r->tp) {
		v = ingress_fast(ctx, w, c, conn, r);
		if (v != V_REFUSED)
			return v;
	}
	return ingress_up(ctx, w, c, conn, r);
}

/* SYNs make no state and are never translated: the numbers of the next incarnation are its own.
 * One that would land inside the client-space range of a spliced TIME_WAIT without PAWS to protect
 * it waits (tcp-traps 30). */
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
INLINE void conn_touch(struct conn *conn)
{
	read_once(conn->egress_max);
	read_once(conn->in.state);
	read_once(conn->replay[0]); /* where it begins when nothing is unacknowledged */
	read_once(conn->replay[64]);
}

/* The payload's first chunk, which holds most requests whole. */
INLINE bool payload_load(ctx_t *ctx, struct work *w)
{
	u32 n = w->p.payload_len < CSUM_CHUNK ? w->p.payload_len : CSUM_CHUNK;

	opaque(n);
	n = ((n - 1) & (CSUM_CHUNK - 1)) + 1;
	if (tier_load(ctx, w->p.payload_off, w->payload, n))
		return false;
	*(u32 *)(w->payload + n) = 0;
	w->loaded = n;
	return w->p.payload_len <= CSUM_CHUNK;
}

INLINE enum verdict ingress_tcp(ctx_t *ctx, struct work *w, struct control *c)
{
	struct conn *conn;
	struct sock_ref r;
	enum verdict v;

	if (w->p.payload_len && payload_load(ctx, w))
		fast_first();
	conn = conn_get(&w->p.key);
	if (!conn && (!w->p.payload_len || (w->p.flags & TCP_RST))) {
		count(STAT_UP_UNTRACKED);
		return V_PLAIN;
	}
	if (conn && (w->p.flags & TCP_SYN))
		return ingress_syn(ctx, w, conn);
	if (conn && !w->p.payload_len && !(w->p.flags & (TCP_FIN | TCP_RST)) && !conn->in_delta &&
	    !conn->out_delta && !(conn->flags & CONN_F_TC_PENDING)) {
		count(STAT_PURE_ACK_UP);
		return V_PLAIN;
	}
	if (conn)
		conn_touch(conn);
	if (!checksum_ok(ctx)) {
		count(STAT_ODD_CHECKSUM); /* the kernel drops it */
		return V_PLAIN;
	}
	if (!sock_get(ctx, &w->p.key, w->p.family, &r)) {
		count(STAT_SOCK_NONE);
		return V_PLAIN;
	}
	if (r.tp && w->first) { /* lines that the locked sections need: fetch them now */
		sock_view_load(r.tp, &w->view);
		fast_peek(w, c);
	}
	v = ingress_sock(ctx, w, c, conn, &r);
	sock_put(&r);
	return v;
}

/* Copies the head of the packet and parses it; PARSE_OTHER if it is not for Redis's port. Global:
 * verified by itself. */
__noinline int ingress_parse(ctx_t *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	u32 len = tier_len(ctx);
	enum parse_result res;

	if (!c || !w || len < 54)
		return PARSE_OTHER;
	if (len > HEAD_BYTES)
		len = HEAD_BYTES;
	opaque(len);
	len &= 0xff; /* the verifier's bound: head is 256 bytes long */
	if (len < 54 || tier_load(ctx, 0, w->head, len))
		return PARSE_OTHER;
	res = parse_packet(&w->p, w->head, false);
	w->acked = w->first = w->loaded = w->whole = w->proof_ahead = w->snd_wscale = w->translate =
	    0;
	if (res == PARSE_TCP && (w->p.key.server_port_be != c->port_be ||
				 w->p.payload_off + w->p.payload_len > tier_len(ctx)))
		return PARSE_OTHER;
	return res;
}
