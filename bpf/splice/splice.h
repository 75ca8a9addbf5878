/* SPDX-License-Identifier: GPL-2.0 */
/* splice.h - two TCP streams as one: what may be edited in a connection, and when.
 *
 * Client space is what the client counts, kernel space what the server's kernel counts.
 *   up:   seq - in_delta, ack - out_delta (never below edge)
 *   down: seq + out_delta, ack + in_delta
 *
 * Entry states and their arrows: ARCHITECTURE.md, "A connection's states".
 *
 * Who writes (all under conn.lock): ingress next, up_max, in_delta, out_delta, edge, in_edge,
 * replay*, ack_max, ts_recent, requests, in_at; egress egress_max, replies,
 * last_tsval (raised by both), scan_next, out_at; state and flags both.
 *
 * Invariants:
 *  T1. in_delta and out_delta change together, in commit(), and only when nothing sent before
 *      can be sent again or is on its way (quiescence rule, conditions in commit_check()).
 *  T2. Bytes [replay_from, edge + out_delta) of client space are in replay[]; there are at most
 *      REPLAY_BYTES of them and they are all the unacknowledged bytes that the kernel has no copy
 *      of.
 *  T3. in_edge <= next and up_max <= next whenever the scanner is not lost (sequence order).
 *  T4. Kernel data below edge never leave again; acknowledgements below edge never go up.
 *  T5. An entry is used for translation only for the socket whose cookie it carries.
 *  T6. requests - replies is the number of unanswered requests that went up.
 *  T7. XDP never overtakes what it left to TC, which may work on another CPU. What comes behind such a
 *      packet lies beyond next until TC has had it, so it is TC's, too (tc_alone()).
 *  T8. Of a connection that was answered, edge, replay_from, recover and in_edge follow the stream: they
 *      are never 2^31 behind it, where newer bytes would be taken for older (conn_follow()).
 *  T9. An answer leaves as the kernel's last packet did. It is given only if the kernel has sent one since
 *      the client's packets come as this one does: who hands requests on may not be who takes answers
 *      (direct server return, a second gateway).
 *  T10. Behind an answer the kernel's idea of the client's window is at most a sixteenth too large. It
 *      takes a smaller window only with newer numbers (tcp_may_update_window()), and a packet that is
 *      answered never reaches it. Without this rule a client that does not read its answers would be
 *      sent more than it takes.
 */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/accept.h"
#include "splice/handler.h"
#include "splice/place.h"

_Static_assert((REPLAY_BYTES & (REPLAY_BYTES - 1)) == 0, "replay wraps by a mask");
_Static_assert(REPLAY_BYTES >= 2 * REPLY_BYTES_MAX, "a full reply fits beside another");

#define REPLAY_SLACK  COPY_BLOCK /* block copies may run over by one block */
#define REPLAY_BLOCKS (REPLY_BYTES_MAX / COPY_BLOCK + 1)

/* Cache lines of a connection: the table's elements begin with the kernel's head and the key, and
 * lie one behind the other from a page's begin (kernel/bpf/hashtab.c, prealloc_init()). */
#define HTAB_ELEM_HEAD_BYTES 48 /* struct htab_elem of Linux 6.12 and 6.18; else only slower */
#define CONN_AT(bytes)	     ((HTAB_ELEM_HEAD_BYTES + sizeof(struct conn_key) + (bytes)) % 64)
_Static_assert(CONN_AT(sizeof(struct conn)) == 0, "every element lies alike");
_Static_assert(CONN_AT(__builtin_offsetof(struct conn, edge)) == 0, "line B");
_Static_assert(CONN_AT(__builtin_offsetof(struct conn, request_up_ns)) == 0, "line C");
_Static_assert(CONN_AT(__builtin_offsetof(struct conn, h)) == 24, "the handler's begins in line C");
_Static_assert(CONN_AT(__builtin_offsetof(struct conn, replay)) == 0,
	       "most answers fill two lines");

/* Whether fast bytes may be sent again: the socket still speaks. They all lie below its FIN, which
 * the client cannot take before it has them. Lock held, view loaded. */
INLINE bool conn_may_resend(const struct conn *conn, const struct sock_view *v)
{
	return v->speaks && !(conn->flags & CONN_F_RESET) && !(conn->spoke & ABSORBING); /* I9 */
}

/* Largest payload that reaches the client, as far as is known. */
INLINE u32 conn_mss(const struct conn *conn, const struct sock_view *v)
{
	return conn->mss_limit && conn->mss_limit < v->mss_cache ? conn->mss_limit : v->mss_cache;
}

/* Unacknowledged fast-path bytes at the client's acknowledgement. */
INLINE u32 conn_unacked(const struct conn *conn, u32 ack)
{
	u32 end = conn->edge + conn->out_delta, from = seq_max(ack, conn->replay_from);

	return seq_before(from, end) ? end - from : 0;
}

#define RTT_MOST_US 60000000U /* an echo that is older, or of a time to come, says nothing */

/* Smoothed RTT (RFC 6298) from the client's timestamp echo. */
INLINE void conn_rtt(struct conn *conn, const struct pkt *p, const struct sock_view *v, u64 now)
{
	u32 age = sock_tsval(v, now) - p->tsecr, rtt, diff;

	if (!p->ts_off || !p->tsecr || age > (v->fixed.usec_ts ? RTT_MOST_US : RTT_MOST_US / 1000))
		return;
	rtt = v->fixed.usec_ts ? age : age * 1000;
	if (!conn->rtt_us) {
		conn->rtt_us = rtt | 1;
		conn->rttvar_us = rtt / 2;
		return;
	}
	diff = rtt > conn->rtt_us ? rtt - conn->rtt_us : conn->rtt_us - rtt;
	conn->rttvar_us += (diff >> 2) - (conn->rttvar_us >> 2);
	conn->rtt_us += (rtt >> 3) - (conn->rtt_us >> 3);
}

/* T8: gigabytes may pass between two fast answers. What lies below snd_una is acknowledged, fast
 * bytes before it included, and what lies below rcv_nxt is TCP's, so both bounds may rise to there.
 * They stay behind, for old acknowledgements and copies that TCP takes. Behind an answer of the TC
 * tier snd_una may be below edge for a moment. Lock held, view loaded. */
INLINE void conn_follow(struct conn *conn, const struct sock_view *v)
{
	u32 acked = v->snd_una - conn->edge, got = v->rcv_nxt + conn->in_delta;

	if (acked >= FAR_BYTES && !(conn->out_delta && acked >> 31)) {
		conn->edge = v->snd_una - FAR_BYTES / 2;
		conn->replay_from = conn->recover = conn->edge + conn->out_delta;
	}
	if (got - conn->in_edge >= FAR_BYTES)
		conn->in_edge = got - FAR_BYTES / 2;
}

/* Notes when the oldest unacknowledged fast byte was sent, 0 = there is none: what had asked for it to
 * be sent again has it now, or needs it no more. Lock held. */
INLINE void sent_note(struct conn *conn, u64 at_ns)
{
	conn->sent_ns = at_ns;
	conn->resend_due = 0;
}

/* Takes the packet's acknowledgement into account. Lock held, segment_counts(). */
INLINE void conn_ack(struct conn *conn, const struct pkt *p, const struct sock_view *v, u64 now)
{
	u32 before, after;

	conn_follow(conn, v);
	if (!conn->out_delta) { /* nothing of ours is under way; pure ACKs passed unseen */
		conn->ack_max = seq_max(p->ack, v->snd_una);
		return;
	}
	before = conn_unacked(conn, conn->ack_max);
	if (seq_after(p->ack, conn->ack_max)) {
		conn->ack_max = p->ack;
		conn->dup_acks = 0;
		after = conn_unacked(conn, p->ack);
		if (before != after) {
			conn->tries = 0;
			conn_rtt(conn, p, v, now);
			if (!seq_before(p->ack, conn->recover))
				conn->flight_max += before - after;
			if (conn->flight_max > REPLAY_BYTES)
				conn->flight_max = REPLAY_BYTES;
		}
		sent_note(conn, after ? now : 0);
	} else if (p->ack == conn->ack_max && !p->payload_len && before && conn->dup_acks < 255) {
		conn->dup_acks++;
	}
}

/* Sets up the fields of the segment that the fast path is about to send; TSval never goes back. */
INLINE void conn_stamp(struct conn *conn, const struct sock_view *v, struct work *w)
{
	w->out_window = sock_receive_window(v) >> v->fixed.rcv_wscale;
	if (w->out_window > 0xffff)
		w->out_window = 0xffff;
	w->out_tsval = seq_max(sock_tsval(v, w->now), conn->last_tsval);
	conn->last_tsval = w->out_tsval;
	w->out_tsecr = conn->in_delta ? conn->ts_recent : v->ts_recent;
}

/* The last bytes of the source address. */
INLINE u32 link_source(const struct work *w)
{
	return *(u32 *)(w->head + 8);
}

/* 0 if the packet comes from where the kernel's last one went. Lock held. */
INLINE u32 link_apart(const struct conn *conn, const struct work *w)
{
	return (*(u32 *)conn->link ^ *(u32 *)(w->head + 6)) |
	       (*(u16 *)(conn->link + 4) ^ *(u16 *)(w->head + 10));
}

/* T9: 0 if the kernel has sent something since packets come as this one does. Lock held. */
INLINE u32 link_strays(const struct conn *conn, const struct work *w)
{
	return link_apart(conn, w) && conn->strayed != link_source(w);
}

/* What goes up: if it comes otherwise than the kernel's packets lead, T9 waits for the next of these.
 * Lock held. */
INLINE void link_note(struct conn *conn, const struct work *w)
{
	if (w->p.l3_off < ETH_BYTES || !link_strays(conn, w))
		return;
	conn->strayed = link_source(w);
	conn->flags &= ~CONN_F_EGRESS_SEEN;
}

/* The packet's addresses the other way round. */
INLINE void link_turn(const struct work *w, u32 *way)
{
	way[0] = *(u32 *)(w->head + 6);
	way[1] = *(u16 *)(w->head + 10) | (u32) * (u16 *)w->head << 16;
	way[2] = *(u32 *)(w->head + 2);
}

/* Sets w->way: to the kernel's where mask has bits, else back to who sent the packet. Lock held. */
INLINE void link_take(const struct conn *conn, struct work *w, u32 mask)
{
	u32 turned[3];

	link_turn(w, turned);
	for (u32 i = 0; i < 3; i++) /* in bits: branches cost the verifier */
		w->way[i] = turned[i] ^ ((turned[i] ^ *(u32 *)(conn->link + i * 4)) & mask);
}

/* For what is sent again: by the kernel's way if the packet at hand has come as before, else back
 * as it came. The timer's copies go by the kernel's in any case, so one of them arrives. Lock held. */
INLINE void link_again(const struct conn *conn, struct work *w)
{
	bool known = (conn->flags & CONN_F_EGRESS_SEEN) && !link_strays(conn, w);

	link_take(conn, w, -(u32)known);
}

/* The quiescence rule: 0 if the packet may be consumed now, else the reason, or STAT_TO_TC if all
 * holds but the kernel has not seen the acknowledgement that the packet carries. Lock held. */
INLINE u32 commit_check(const struct conn *conn, const struct sock_view *v, const struct work *w)
{
	const struct pkt *p = &w->p;
	u32 sent_end = conn_sent_end(conn, v), unacked = 0, window, known, room, kernel_ack, reason;

	if (conn->state != CONN_FAST)
		return conn->state == CONN_NEW ? STAT_REFUSE_NEW : STAT_REFUSE_BYPASS;
	if ((conn->flags & CONN_F_CLOSING) || !v->established)
		return STAT_REFUSE_CLOSING;
	if (!(conn->flags & CONN_F_EGRESS_SEEN) || link_strays(conn, w))
		return STAT_REFUSE_NO_EGRESS;
	if (conn->flags & CONN_F_AHEAD) /* O3 */
		return STAT_REFUSE_ORDER;
	if (conn->spoke & ABSORBING) /* I9 */
		return STAT_REFUSE_ORDER;
	if (p->seq != conn->next || p->seq != conn->up_max || conn->in_at != STREAM_BETWEEN)
		return STAT_REFUSE_ORDER;
	reason = handler_answer_still(conn, w);
	if (reason)
		return reason;
	if (v->rcv_nxt != p->seq - conn->in_delta)
		return STAT_REFUSE_KERNEL_BEHIND;
	if (conn->requests != conn->replies)
		return STAT_REFUSE_UNANSWERED;
	if (conn->egress_max != v->write_seq)
		return STAT_REFUSE_OWED;
	if (seq_after(p->ack, sent_end) || seq_before(p->ack, conn->ack_max))
		return STAT_REFUSE_ACK;
	if (v->write_seq == conn->edge) {
		if (seq_before(p->ack, conn->replay_from))
			return STAT_REFUSE_OWED;
		unacked = sent_end - p->ack;
	} else if (p->ack != sent_end) {
		return STAT_REFUSE_OWED;
	}
	if (!conn_paws_ok(conn, p, v, w->now) || !!p->ts_off != v->fixed.tstamp_ok)
		return STAT_REFUSE_PAWS;
	window = (u32)p->window << v->fixed.snd_wscale;
	if (unacked + w->reply_len > window)
		return STAT_REFUSE_WINDOW_CLIENT;
	if (w->reply_len > conn_mss(conn, v))
		return STAT_REFUSE_MSS;
	room = conn->flight_max < REPLAY_BYTES - REPLAY_SLACK ? conn->flight_max
							      : REPLAY_BYTES - REPLAY_SLACK;
	if (unacked + w->reply_len > room)
		return STAT_REFUSE_REPLAY_FULL;
	kernel_ack = seq_max(p->ack - conn->out_delta, conn->edge);
	/* T10. An acknowledgement that is news brings its window along. */
	known = kernel_ack == v->snd_una ? v->snd_wnd : window;
	if (known + unacked + w->reply_len > window + (window >> 4))
		return STAT_REFUSE_WINDOW_STALE;
	return kernel_ack == v->snd_una ? 0 : STAT_TO_TC;
}

/* The rest of replay_put(): the block that crosses the ring's end goes word by word, and those after it lie at the
 * ring's begin. The word that crosses the end lands in the padding after it and is carried over to the begin. */
INLINE void replay_wrap(struct conn *conn, const struct work *w, u32 at)
{
	u32 crossing = (REPLAY_BYTES - at) / COPY_BLOCK * COPY_BLOCK, over;
	u64 carry, *start = (u64 *)conn->replay;

	opaque(crossing);
	if (crossing > REPLY_BYTES_MAX)
		return;
	for (u32 k = 0; k < COPY_BLOCK; k += 8)
		*(u64 *)(conn->replay + ((at + crossing + k) & (REPLAY_BYTES - 1))) =
		    *(const u64 *)(w->reply + crossing + k);
	for (u32 i = 1; i < REPLAY_BLOCKS; i++) {
		u32 next = crossing + i * COPY_BLOCK, to = at + next - REPLAY_BYTES;

		if (next >= read_once(w->reply_len))
			break;
		opaque(next);
		opaque(to);
		if (next > REPLY_BYTES_MAX || to > REPLAY_BYTES - COPY_BLOCK)
			break;
		for (u32 k = 0; k < COPY_BLOCK; k += 8)
			*(u64 *)(conn->replay + to + k) = *(const u64 *)(w->reply + next + k);
	}
	if (!(at & 7) || at + read_once(w->reply_len) <= REPLAY_BYTES)
		return;
	/* The crossing word began (at & 7) bytes after a multiple of 8. */
	carry = *(u64 *)(conn->replay + REPLAY_BYTES);
	over = (at & 7) * 8;
	*start = (*start & ~((1ULL << over) - 1)) | (carry & ((1ULL << over) - 1));
}

/* Copies w->reply into replay for the bytes of client space from seq on. In blocks, so up to
 * REPLAY_SLACK bytes run over. */
INLINE void replay_put(struct conn *conn, const struct work *w, u32 seq)
{
	u32 at = (seq - conn->replay_base) & (REPLAY_BYTES - 1);

	for (u32 i = 0; i < REPLAY_BLOCKS; i++) {
		u32 to = at + i * COPY_BLOCK;
		const u64 *from = (const u64 *)(w->reply + i * COPY_BLOCK);
		u64 *dst;

		if (i * COPY_BLOCK >= read_once(w->reply_len))
			return;
		opaque(to);
		if (to > REPLAY_BYTES - COPY_BLOCK)
			break;
		dst = (u64 *)(conn->replay + to);
		for (u32 k = 0; k < COPY_BLOCK / 8; k++)
			dst[k] = from[k];
	}
	replay_wrap(conn, w, at);
}

/* Copies at most want bytes of replay from client-space sequence number seq into w->reply, not
 * across the ring's wrap; sets reply_len. */
INLINE void replay_get(const struct conn *conn, struct work *w, u32 seq, u32 want)
{
	u32 at = (seq - conn->replay_base) & (REPLAY_BYTES - 1);

	if (want > REPLAY_BYTES - at)
		want = REPLAY_BYTES - at;
	if (want > REPLY_BYTES_MAX)
		want = REPLY_BYTES_MAX;
	w->reply_len = want;
	for (u32 i = 0; i < REPLAY_BLOCKS; i++) {
		if (i * COPY_BLOCK >= read_once(w->reply_len))
			break;
		for (u32 k = i * COPY_BLOCK; k < (i + 1) * COPY_BLOCK; k += 8)
			*(u64 *)(w->reply + k) =
			    *(u64 *)(conn->replay + ((at + k) & (REPLAY_BYTES - 1)));
	}
}

/* Puts the packet's tag by, for the timer's copies. Lock held. */
INLINE void conn_tag(struct conn *conn, const struct work *w)
{
	conn->tag = w->p.l3_off == L2_BYTES_MAX ? *(u32 *)(w->head + ETH_ADDRESSES) : w->tag;
}

/* T1: consumes the packet at hand and sends w->reply in its place. Lock held, check passed. */
INLINE void commit(struct conn *conn, const struct sock_view *v, struct work *w)
{
	const struct pkt *p = &w->p;
	u32 start = conn_sent_end(conn, v);

	conn_ack(conn, p, v, w->now);
	if (v->write_seq != conn->edge || seq_before(conn->replay_from, p->ack))
		conn->replay_from = p->ack;
	if (conn->replay_from == start)
		conn->replay_base = start; /* empty: begin where the lines are warm */
	replay_put(conn, w, start);
	if (!conn->in_delta) { /* from here on the entry keeps a record of its own */
		conn->ts_recent = v->ts_recent;
		conn->ts_recent_s = v->ts_recent_s;
	}
	conn->edge = v->write_seq;
	conn->out_delta += read_once(w->reply_len);
	conn->in_delta += p->payload_len;
	conn->next = conn->up_max = conn->in_edge = p->seq + p->payload_len;
	if (!conn->sent_ns)
		sent_note(conn, w->now);
	place_note(conn, w, PLACES_TIMER);
	conn_tag(conn, w);
	link_take(conn, w, ~0U);
	conn_ts_recent(conn, p, v, w->now);
	conn_stamp(conn, v, w);
	w->out_seq = start;
	w->out_ack = v->rcv_nxt + conn->in_delta;
}

/* Takes what translation needs out of the entry. Lock held. */
INLINE void translation_take(const struct conn *conn, struct work *w)
{
	w->in_delta = conn->in_delta;
	w->out_delta = conn->out_delta;
	w->edge = conn->edge;
	w->translate = conn->in_delta || conn->out_delta;
}

/* For an acknowledgement that the kernel is to refuse, of a packet without new bytes (N2): a challenge
 * ACK is its answer, whatever it acknowledges and sends meanwhile. View loaded. */
INLINE void translation_refused(struct work *w)
{
	w->edge = w->view.snd_una - ACK_REFUSED;
	w->out_delta = w->p.ack - w->edge;
	w->translate = 1;
}

/* SACK blocks of the client: kernel space, only wholly above the edge and only if the
 * acknowledgement is not below it; else NOPs. Lengths never change. */
INLINE void translate_sack_up(struct work *w, u8 *tcp, bool below)
{
	u32 off = w->p.sack_off, first = w->edge + w->out_delta;

	for (u32 i = 0; i < 4; i++) {
		u32 at = off + i * 8;

		if (i >= w->p.sack_blocks)
			break;
		opaque(at);
		if (at > TCP_BYTES_MAX - 8)
			break;
		if (below || seq_before(load_be32(tcp + at), first))
			below = true;
		else {
			store_be32(tcp + at, load_be32(tcp + at) - w->out_delta);
			store_be32(tcp + at + 4, load_be32(tcp + at + 4) - w->out_delta);
		}
	}
	if (!below || off < 2)
		return;
	for (u32 i = 0; i < 34; i++) {
		u32 at = off - 2 + i;

		if (i >= w->p.sack_blocks * 8U + 2)
			break;
		opaque(at);
		if (at > TCP_BYTES_MAX - 1)
			break;
		tcp[at] = 1;
	}
}

/* Rewrites the copy of the TCP header from client to kernel space; old_tcp keeps the original.
 * The caller stores it into the packet. Global: verified by itself. */
__noinline int translate_up(void)
{
	struct work *w = work_get();
	u32 off, ack, len, window, floor = 0;
	u8 *tcp;
	u16 field;

	if (!w)
		return 0;
	off = w->p.l4_off;
	len = w->p.tcp_bytes;
	opaque(off);
	if (off > HEAD_BYTES - TCP_BYTES_MAX)
		return 0;
	tcp = w->head + off;
	for (u32 i = 0; i < TCP_BYTES_MAX; i += 4)
		*(u32 *)(w->old_tcp + i) = *(u32 *)(tcp + i);
	store_be32(tcp + 4, w->p.seq - w->in_delta);
	ack = w->p.ack - w->out_delta;
	if (w->p.flags & TCP_ACK) {
		if (seq_before(ack, w->edge)) {
			floor = w->edge - ack;
			ack = w->edge;
			window = (u32)w->p.window << w->snd_wscale;
			window = window > floor ? (window - floor) >> w->snd_wscale : 0;
			store_be16(tcp + 14, window);
		}
		store_be32(tcp + 8, ack);
		if (w->p.sack_off)
			translate_sack_up(w, tcp, floor != 0);
	}
	if (w->bare) /* lengths did not change */
		return 0;
	field = *(u16 *)(tcp + 16);
	opaque(len);
	len &= 0x3c;
	*(u16 *)(tcp + 16) =
	    csum_update(field, bpf_csum_diff((__be32 *)w->old_tcp, len, (__be32 *)tcp, len, 0));
	return 0;
}
