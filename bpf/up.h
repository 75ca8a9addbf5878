/* SPDX-License-Identifier: GPL-2.0 */
/* up.h - packets that go up: scanned, their effects on keys held until executed, translated.
 *
 * Invariant U1: marks and shares of the fence for what a packet says are taken before it goes up,
 * and each is held by exactly one of: the connection's ring, its OVERFLOW share, its FENCE_PROOF
 * share. */
#pragma once
#include "answer.h"
#include "chunk.h"

/* Takes what can be taken in one step at w->scan_pos. Global: verified by itself, or the loop of
 * scan_packet does not converge on Linux 6.12. */
__noinline int scan_packet_step(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 pos;

	if (!w || !c)
		return 0;
	pos = w->scan_pos;
	w->scan_pos = pos + scan_request_step(&w->scan, &w->found, c, w->chunk.bytes,
					      pos - w->chunk.at, w->chunk.end - pos);
	return 0;
}

/* What is due with this packet of a command that was counted before it was whole: S3. Nothing if it
 * was answered before: by a protocol error, behind which Redis reads no more. */
INLINE u32 late_due(const struct conn *conn, const struct work *w)
{
	return conn->late && conn->requests != conn->replies && !seq_before(w->end, conn->late_end)
		   ? conn->late
		   : 0;
}

/* The keys that wait in the entry for their command's last byte. Read without the lock: who moves
 * them moves conn.next or conn.late too, and the commit sees it. */
INLINE void half_note(const struct conn *conn, struct work *w)
{
	w->half = read_once(conn->half);
	w->half_at = read_once(conn->mark_head);
}

INLINE void found_half(struct work *w, const struct conn *conn)
{
	int i;

	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 n = i, at = (w->half_at + n) & (MARKS_IN_FLIGHT - 1);

		if (n >= w->half || n >= MARKS_IN_FLIGHT)
			break;
		w->found.marks[n].request = w->found.done + 1;
		w->found.marks[n].set = conn->marks[at].set;
		w->found.hashes[n] = (u64)conn->marks[at].request << 48;
		w->found.effects = n + 1;
	}
}

/* Nothing is found but what is left of a command that began before: keys of the one at hand, or all
 * that the last one counted takes, if it is whole with the packet (w->late). Global: verified by
 * itself. */
__noinline int found_begin(void)
{
	struct work *w = work_get();
	struct conn *conn;

	if (!w)
		return 0;
	w->found.effects = w->found.due = w->found.late = 0;
	w->found.overflow = w->found.uncountable = w->found.gate = w->found.hidden = 0;
	w->found.done = w->late ? -1U : 0; /* whose number is one more */
	conn = w->half ? conn_get(&w->p.key) : 0;
	if (conn)
		found_half(w, conn);
	if (w->late & ~PENDING_MARKS)
		found_whole(&w->found, w->late);
	if (w->late)
		w->found.due = w->found.effects;
	w->found.done = 0;
	return 0;
}

/* The piece at hand of what is scanned: of the packet, or of the buffer that it is in. */
INLINE bool piece_load(ctx_t *ctx, struct work *w, u32 pos)
{
#if !TIER_XDP
	if (w->ring)
		return ahead_chunk(pos);
#endif
	return chunk_load(ctx, &w->chunk, w->p.payload_off, pos, w->scan_len);
}

/* Scans what begins at scan_seq from scan_from on with w->scan into w->found. The position is in memory: the
 * verifier must not count it. Global: verified by itself.
 * S2: what is left of a skipped body counts as scanned; scan_next is moved over it. */
__noinline int scan_packet(ctx_t *ctx)
{
	struct work *w = work_get();
	u32 end;
	int i;

	if (!w)
		return 0;
	found_begin();
	w->scan_pos = w->scan_from - w->scan_seq;
	w->chunk.end = 0;
	end = w->scan_len;
	bpf_for(i, 0, SCAN_STEPS_MAX)
	{
		u32 pos = read_once(w->scan_pos), n = end - pos;

		if (pos >= end || w->scan.state == RQ_LOST)
			break;
		if (w->scan.skip && w->scan.state == RQ_BULK) {
			if (n > w->scan.skip)
				n = w->scan.skip;
			w->scan.skip -= n;
			w->scan_pos = pos + n;
			if (!w->scan.skip)
				scan_request_settle(&w->scan, &w->found);
			continue;
		}
		if (!piece_load(ctx, w, pos)) {
			w->scan.state = RQ_LOST;
			break;
		}
		scan_packet_step();
	}
	if (read_once(w->scan_pos) < end)
		w->scan.state = RQ_LOST;
	w->scan_next = w->scan_seq + end;
	if (w->scan.skip && w->scan.state == RQ_BULK) {
		w->scan_next += w->scan.skip;
		w->scan.skip = 0;
		if (!w->scan.args_left) { /* S4, but not whole */
			w->found.late = w->scan.pending;
			if (w->found.effects != w->found.due)
				w->found.late |= PENDING_MARKS;
			w->scan.pending = 0;
			w->scan.state = RQ_IDLE;
			w->found.done++;
		}
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

/* Gives back what was taken for a packet that does not go up after all, or whose effects a share
 * of the fence holds instead. */
__noinline int effects_release(void)
{
	struct work *w = work_get();
	struct control *c = control_get();

	if (w && c)
		marks_release(c, w->found.marks, w->found.due, false);
	return 0;
}

/* Takes marks and shares of the fence for what is due with the packet, before it goes up; of what
 * is not, only the key's tag is kept. Global. */
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
		if (n >= w->found.due)
			w->found.marks[n].request = tag_of(w->found.hashes[n]);
		else if (mark_is_share(w->found.marks[n].set))
			fence_take(c);
		else
			mark_take(w->found.marks[n].set, w->found.hashes[n]);
	}
	return 0;
}

enum hold { HOLD_RING = 0, HOLD_SHARE_OLD, HOLD_SHARE_NEW, HOLD_RACE };

/* The keys of a command that is not whole cannot wait: it takes a share of the fence instead. */
INLINE void half_settle(struct work *w)
{
	if (w->found.late)
		w->found.late |= PENDING_SETTLE;
	else
		w->scan.pending |= PENDING_SETTLE;
}

/* Decides who holds the packet's effects until they are executed: the ring of the connection, or
 * one share of the fence. Lock held; scan results are valid. */
INLINE enum hold hold_effects(struct conn *conn, struct work *w)
{
	u32 n = w->found.due, all = w->found.effects, used = conn->mark_head - conn->mark_tail;
	u32 end = w->end + w->proof_ahead - conn->in_delta;
	bool proof = (conn->flags & CONN_F_UNCOUNTABLE) || (conn->kept & CONN_K_TRIAL);
	u8 flag = CONN_F_OVERFLOW, had;

	if (!TIER_XDP && (conn->flags & CONN_F_AHEAD) && (conn->flags & CONN_F_SCAN_LOST))
		end = seq_max(end, conn->ahead_end - conn->in_delta); /* O5 */
	conn->half = 0;
	if (all != n && (proof || w->found.overflow || used + all > MARKS_IN_FLIGHT)) {
		half_settle(w);
		all = n;
	}
	if (proof) {
		flag = CONN_F_FENCE_PROOF;
		if (!n && !w->found.overflow && !used &&
		    !(conn->flags & (CONN_F_SCAN_LOST | CONN_F_OVERFLOW)) &&
		    !(conn->kept & CONN_K_TRIAL))
			return HOLD_RING; /* nothing to hold */
	} else if (!w->found.overflow && used + n <= MARKS_IN_FLIGHT) {
		for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
			u32 at = (conn->mark_head + i) & (MARKS_IN_FLIGHT - 1);
			u32 due =
			    (s32)(i - n) >> 31; /* a branch costs the verifier twice as much */

			if (i >= all)
				break;
			conn->marks[at].request =
			    (conn->requests & due) + w->found.marks[i].request;
			conn->marks[at].set = w->found.marks[i].set;
		}
		conn->mark_head += n;
		conn->half = all - n;
		return HOLD_RING;
	}
	if (!(conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW)) ||
	    seq_after(end, conn->proof_pos))
		conn->proof_pos = end;
	had = conn->flags & flag;
	conn->flags |= flag;
	if (w->found.hidden || (conn->flags & CONN_F_SCAN_LOST) || (conn->kept & CONN_K_TRIAL))
		conn->hidden |= flag;
	return had ? HOLD_SHARE_OLD : HOLD_SHARE_NEW;
}

/* P2. Lock held, behind hold_effects(). */
INLINE void held_note(struct conn *conn, struct work *w)
{
	if (conn_holds(conn))
		place_note(conn, w, PLACES_HELD);
}

/* What every packet that goes up leaves in the entry; counts: segment_counts(), viewed: the view is
 * loaded. Lock held. */
INLINE void up_account(struct conn *conn, struct work *w, bool viewed, bool counts)
{
	if (counts) {
		if (!w->acked)
			conn_ack(conn, &w->p, &w->view, w->now);
		conn_ts_recent(conn, &w->p, &w->view, w->now);
		ack_goes_up(conn, w);
	}
	if ((counts || (!viewed && !(w->p.flags & TCP_RST))) && w->p.payload_len &&
	    seq_after(w->end, conn->up_max))
		conn->up_max = w->end;
	if (ends_connection(conn, w, viewed, counts))
		conn->flags |= CONN_F_CLOSING;
	if (w->moved && counts) {
		conn->ifindex = w->moved;
		conn->flags &= ~CONN_F_EGRESS_SEEN; /* until a reply has left there */
		link_turn(w, (u32 *)conn->link);
		conn_tag(conn, w);
	} else if (counts || !viewed) {
		link_note(conn, w);
	}
	translation_take(conn, w);
	if (viewed) {
		w->snd_wscale = w->view.snd_wscale;
		if (ack_too_old(conn, &w->p, &w->view))
			translation_refused(w);
	}
}

/* Behind ingress_unacceptable(), which has loaded the view. */
INLINE bool up_counts(const struct conn *conn, struct work *w, const struct sock_ref *r)
{
	return sock_view_again(r, &w->view) && segment_counts(conn, &w->p, &w->view, w->now);
}

#define ROTE_PING     0x0a0d34240a0d312aULL /* "*1\r\n$4\r\n" */
#define ROTE_REPLCONF 0x0a0d38240a0d332aULL /* "*3\r\n$8\r\n", or of five arguments */
#define ROTE_ACK_AT   28
#define ROTE_BYTES    96

/* Whether the payload is, byte for byte, PING, or REPLCONF ACK with numbers as replicas say it (the
 * second one of Redis 7.2: FACK). Global: verified by itself. */
__noinline int listener_by_rote(void)
{
	struct work *w = work_get();
	const u64 *words;
	u32 len;
	int i;

	if (!w)
		return 0;
	words = (const u64 *)w->payload;
	len = w->p.payload_len;
	if (len > w->loaded || len > ROTE_BYTES)
		return 0;
	if (len == 14 && words[0] == ROTE_PING)
		return (words[1] & 0xffffdfdfdfdfULL) == 0x0a0d474e4950ULL; /* PING */
	if (len < ROTE_ACK_AT + 6 ||
	    (words[0] != ROTE_REPLCONF && words[0] != ROTE_REPLCONF + 0x200) ||
	    words[1] != 0x464e4f434c504552ULL ||	   /* REPLCONF */
	    words[2] != 0x43410a0d33240a0dULL ||	   /* "\r\n$3\r\nAC" */
	    *(const u32 *)(w->payload + 24) != 0x240a0d4b) /* "K\r\n$" */
		return 0;
	bpf_for(i, ROTE_ACK_AT, ROTE_BYTES)
	{
		u32 at = i;
		u8 ch;

		if (at >= len || at >= ROTE_BYTES)
			break;
		ch = w->payload[at];
		if ((ch < '0' || ch > '9') && ch != '\r' && ch != '\n' && ch != '$' && ch != 'F' &&
		    ch != 'A' && ch != 'C' && ch != 'K')
			return 0;
	}
	return 1;
}

/* Applies a scan to the entry; lost: there was none. Lock held. */
INLINE enum hold up_commit(struct conn *conn, struct work *w, struct sock_ref *r, bool lost)
{
	enum hold hold;

	if (lost != !!(conn->flags & CONN_F_SCAN_LOST)) /* a fragment, or an admission */
		return HOLD_RACE;
	if (conn->cookie != r->cookie || (!lost && conn->next != w->scan_from))
		return HOLD_RACE;
	if ((conn->flags & CONN_F_AHEAD) && !w->ring && (TIER_XDP || !lost)) /* O2 */
		return HOLD_RACE;
	if (r->tp && !up_counts(conn, w, r)) /* N2: it did when it was looked at first */
		return HOLD_RACE;
	if (w->whole && (lost || conn->in.state != RQ_IDLE))
		return HOLD_RACE;
	w->by_rote = lost && w->by_rote && (conn->kept & CONN_K_LISTENS);
	if (w->by_rote) {
		up_account(conn, w, r->tp, r->tp);
		return HOLD_RING;
	}
	conn->kept &= ~CONN_K_LISTENS;
	if (!lost && w->late != late_due(conn, w))
		return HOLD_RACE;
	if (!lost && !w->whole)
		modes_commit(conn, &w->found.modes);
	if (!w->whole && !lost && w->scan.state == RQ_LOST) {
		conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
		conn->kept |= CONN_K_NEVER;
	}
	if (w->found.uncountable)
		conn->flags |= CONN_F_UNCOUNTABLE;
	if (conn->flags & CONN_F_UNCOUNTABLE)
		conn_epoch_move(conn);
	if ((w->found.modes.stateful || (conn->flags & CONN_F_UNCOUNTABLE)) &&
	    conn->state != CONN_OLD)
		conn->state = CONN_BYPASS;
	hold = hold_effects(conn, w);
	held_note(conn, w);
	if (!lost) {
		if (!w->whole)
			conn->in = w->scan;
		conn->next = w->scan_next;
		conn->late = w->found.late;
		conn->late_end = w->scan_next;
		conn->requests += w->found.done;
		conn->request_up_ns = w->now;
	}
	up_account(conn, w, r->tp, r->tp);
	return hold;
}

/* Finds out what the payload says: w->found, and the state behind it in w->scan. Returns false if
 * the packet must be dropped. */
INLINE bool up_scan(ctx_t *ctx, struct work *w, struct conn *conn, bool *lost)
{
	u16 kept, db;

	w->found.effects = w->found.due = w->found.overflow = w->found.hidden = 0;
	w->found.uncountable = w->found.gate = w->found.done = 0;
	w->found.modes.stateful = w->found.modes.gate = w->found.late = 0;
	w->late = late_due(conn, w);
	*lost = false;
	if (w->whole) { /* read by the handler already, nothing but reads */
		if (w->late) {
			half_note(conn, w);
			found_begin();
			effects_take();
		}
		w->found.done = w->commands;
		w->scan_from = w->p.seq;
		w->scan_next = w->p.seq + w->p.payload_len;
		return true;
	}
	lock_take(&conn->lock);
	*lost = conn->flags & CONN_F_SCAN_LOST;
	w->scan_from = conn->next;
	w->scan = conn->in;
	kept = conn->kept;
	db = conn->state == CONN_FAST || conn->state == CONN_NEW ? conn->db : DB_UNKNOWN;
	lock_release(&conn->lock);
	modes_begin(&w->found.modes, kept, db);
	w->late = *lost ? 0 : w->late;
	if (*lost)
		return true;
	if (!w->ring) {
		w->scan_seq = w->p.seq;
		w->scan_len = w->p.payload_len;
	}
	if (seq_after(w->scan_seq, w->scan_from)) /* another CPU was faster */
		return false;
	half_note(conn, w);
	scan_packet(ctx);
	effects_take();
	return true;
}

/* Outside of the lock: the daemon finds the entry, a new share is taken, what is held otherwise is given back. */
INLINE void hold_done(struct work *w, struct control *c, struct conn *conn, enum hold hold)
{
	place_call(w, PLACES_HELD);
	if (hold == HOLD_SHARE_NEW) {
		fence_take(c);
		if (conn->flags & CONN_F_FENCE_PROOF)
			count(STAT_FENCE_PROOF);
	}
	if (hold != HOLD_RING)
		effects_release();
}

INLINE void gate_shut(struct control *c)
{
	atomic_add(&c->gate_seen, 1);
	count(STAT_GATE_SHUT);
}

/* Bytes that were counted before go up; a command is whole with them: S3. */
INLINE void late_take(struct work *w, struct control *c, struct conn *conn, u64 cookie)
{
	enum hold hold = HOLD_RACE;

	half_note(conn, w);
	found_begin();
	effects_take();
	lock_take(&conn->lock);
	if (conn->cookie == cookie && w->late == late_due(conn, w)) {
		hold = hold_effects(conn, w);
		held_note(conn, w);
		conn->late = 0;
	}
	lock_release(&conn->lock);
	hold_done(w, c, conn, hold);
	if (hold != HOLD_RACE && w->found.gate)
		gate_shut(c);
}

/* Payload goes up: scanned, its effects taken, translated. */
INLINE enum verdict ingress_up(ctx_t *ctx, struct work *w, struct control *c, struct conn *conn,
			       struct sock_ref *r)
{
	enum hold hold;
	bool lost, unread, trial, was_bypass, is_bypass;

	if (!tier_mark(ctx, META_TRANSLATED))
		return V_UNMARKED;
	if (!up_scan(ctx, w, conn, &lost))
		return V_DROP;
	w->by_rote = lost && (conn->kept & CONN_K_LISTENS) && listener_by_rote();
	lock_take(&conn->lock);
	was_bypass = conn->state == CONN_BYPASS;
	trial = conn->kept & CONN_K_TRIAL;
	hold = up_commit(conn, w, r, lost);
	is_bypass = conn->state == CONN_BYPASS;
	lock_release(&conn->lock);
	if (hold == HOLD_RACE) {
		effects_release();
		count(STAT_DROP_RACE);
		return V_DROP;
	}
	hold_done(w, c, conn, hold);
	unread = (lost && !w->by_rote) || trial || (!w->whole && w->scan.state == RQ_LOST);
	if (w->found.gate || w->found.modes.gate ||
	    unread) /* what cannot be read may be any command */
		gate_shut(c);
	if (is_bypass && !was_bypass)
		count(STAT_CONN_BYPASS);
	if (w->found.modes.stateful)
		count(STAT_STATEFUL);
	if (!lost && !w->whole && w->scan.state == RQ_LOST)
		count(STAT_SCAN_LOST);
	count(STAT_UP_TRANSLATED);
	return pass_up(ctx, w);
}

/* New bytes that the kernel is sure to throw away, because the segment acknowledges what nobody
 * sent, or what was acknowledged long ago: up, for its challenge ACK, but nothing of it counts; the
 * same numbers may come with other bytes. */
INLINE enum verdict ingress_reject(ctx_t *ctx, struct work *w, struct conn *conn,
				   struct sock_ref *r)
{
	if (!tier_mark(ctx, META_TRANSLATED))
		return V_UNMARKED;
	lock_take(&conn->lock);
	if (conn->cookie == r->cookie) {
		translation_take(conn, w);
		translation_refused(w);
	}
	lock_release(&conn->lock);
	count(STAT_REFUSE_ACK);
	return pass_up(ctx, w);
}

/* Bytes that went up before, or no bytes at all: up again, unscanned and uncounted. */
INLINE enum verdict ingress_up_again(ctx_t *ctx, struct work *w, struct conn *conn,
				     struct sock_ref *r)
{
	bool viewed;

	if (!tier_mark(ctx, META_TRANSLATED))
		return V_UNMARKED;
	lock_take(&conn->lock);
	viewed = r->tp && sock_view_load(r, &w->view);
	if (conn->cookie == r->cookie)
		up_account(conn, w, viewed,
			   viewed && segment_counts(conn, &w->p, &w->view, w->now));
	else
		w->translate = 0;
	lock_release(&conn->lock);
	count(w->p.payload_len ? STAT_UP_TRANSLATED : STAT_PURE_ACK_UP);
	return pass_up(ctx, w);
}
