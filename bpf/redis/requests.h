/* SPDX-License-Identifier: GPL-2.0 */
/* requests.h - packets that go up, as Redis will read them: scanned, and their effects taken. */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"
#include "net/packet.h"
#include "net/work.h"
#include "redis/effects.h"
#include "redis/get.h"
#include "redis/modes.h"
#include "redis/reads.h"
#include "redis/resp.h"
#include "redis/scan_request.h"
#include "redis/through.h"
#include "splice/accept.h"
#include "splice/busy.h"
#include "splice/handler.h"
#include "splice/order.h"
#include "splice/piece.h"

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
	w->scan_pos = pos + scan_request_step(&w->h.scan, &w->h.found, c, w->chunk.bytes,
					      pos - w->chunk.at, w->chunk.end - pos);
	return 0;
}

/* Takes the arguments that are not kept, lie whole in the packet and begin in the piece at hand, but for a
 * command's last one, as so many steps would: their lengths alone are read. Returns whether there was one. The
 * position is in memory, as in scan_packet(), so a plain loop of so many turns is verified in as many. Global:
 * verified by itself. */
__noinline int scan_packet_args(void)
{
	struct work *w = work_get();
	u32 began, left, stop, i;

	if (!w)
		return 0;
	began = w->scan_pos;
	left = w->h.scan.args_left;
	stop = w->h.scan.args_total - w->h.scan.key_next; /* what is left at the next key */
	if (!stop || stop > left)			  /* none comes: then at the last one */
		stop = 1;
	for (i = 0; i < ARGS_AT_ONCE && left > stop; i++, left--) {
		u32 pos = read_once(w->scan_pos), at = pos - w->chunk.at, bytes;

		opaque(at);
		if (pos + SCAN_WORD > w->chunk.end || at >= SCAN_CHUNK)
			break;
		bytes = resp_bulk_bytes(*(u64 *)(w->chunk.bytes + at), false);
		if (!bytes || pos + bytes > w->scan_len)
			break;
		w->scan_pos = pos + bytes;
	}
	w->h.scan.args_left = left;
	return w->scan_pos != began;
}

/* Whether scan_packet_args() is worth a call. */
INLINE bool scan_many_left(const struct scan_request *s)
{
	u32 left = read_once(s->args_left);

	return s->state == RQ_BULK && left > 1 && s->args_total - left > 1;
}

/* What is due with this packet of a command that was counted before it was whole: S3. Nothing if it
 * was answered before: by a protocol error, behind which Redis reads no more. */
INLINE u32 late_due(const struct conn *conn, const struct work *w)
{
	return conn->h.late && conn->requests != conn->replies &&
		       !seq_before(w->end, conn->h.in.late_end)
		   ? conn->h.late
		   : 0;
}

/* The keys that wait in the entry for their command's last byte. Read without the lock: who moves
 * them moves conn.next or conn.late too, and the commit sees it. */
INLINE void half_note(const struct conn *conn, struct work *w)
{
	w->h.half = read_once(conn->h.half);
	w->h.half_at = read_once(conn->h.mark_head);
}

INLINE void found_half(struct work *w, const struct conn *conn)
{
	int i;

	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 n = i, at = (w->h.half_at + n) & (MARKS_IN_FLIGHT - 1);

		if (n >= w->h.half || n >= MARKS_IN_FLIGHT)
			break;
		w->h.found.marks[n].request = w->h.found.done + 1;
		w->h.found.marks[n].set = conn->h.marks[at].set;
		w->h.found.hashes[n] = (u64)conn->h.marks[at].request << 48;
		w->h.found.effects = n + 1;
	}
}

/* But for the modes, which begin with a packet, not with its late commands. */
INLINE void found_nothing(struct scan_found *f)
{
	f->effects = f->due = f->done = f->never_held = f->named = f->repeats = 0;
	f->overflow = f->late = f->uncountable = f->gate = f->hidden = f->written = f->synced = 0;
}

/* Nothing is found but what is left of a command that began before: keys of the one at hand, or all
 * that the last one counted takes, if it is whole with the packet (w->h.late). Global: verified by
 * itself. */
__noinline int found_begin(void)
{
	struct work *w = work_get();
	struct conn *conn;

	if (!w)
		return 0;
	found_nothing(&w->h.found);
	w->h.found.done = w->h.late ? -1U : 0; /* whose number is one more */
	conn = w->h.half ? conn_get(&w->p.key) : 0;
	if (conn)
		found_half(w, conn);
	if (w->h.late & ~PENDING_MARKS)
		found_whole(&w->h.found, w->h.late);
	if (w->h.late)
		w->h.found.due = w->h.found.effects;
	w->h.found.done = 0;
	return 0;
}

/* Scans what begins at scan_seq from scan_from on with w->h.scan into w->h.found. The position is in memory: the
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

		if (pos >= end || w->h.scan.state == RQ_LOST)
			break;
		if (w->h.scan.skip && w->h.scan.state == RQ_BULK) {
			if (n > w->h.scan.skip)
				n = w->h.scan.skip;
			w->h.scan.skip -= n;
			w->scan_pos = pos + n;
			if (!w->h.scan.skip)
				scan_request_settle(&w->h.scan, &w->h.found);
			continue;
		}
		if (!piece_load(ctx, w, pos)) {
			w->h.scan.state = RQ_LOST;
			break;
		}
		if (!scan_many_left(&w->h.scan) || !scan_packet_args())
			scan_packet_step();
	}
	if (read_once(w->scan_pos) < end)
		w->h.scan.state = RQ_LOST;
	w->scan_next = w->scan_seq + end;
	if (w->h.scan.skip && w->h.scan.state == RQ_BULK) {
		w->scan_next += w->h.scan.skip;
		w->h.scan.skip = 0;
		if (!w->h.scan.args_left) { /* S4, but not whole */
			w->h.found.late = w->h.scan.pending;
			if (w->h.found.effects != w->h.found.due)
				w->h.found.late |= PENDING_MARKS;
			w->h.scan.pending = 0;
			w->h.scan.state = RQ_IDLE;
			w->h.found.done++;
		}
	}
	return 0;
}

#define ROTE_PING     0x0a0d34240a0d312aULL /* "*1\r\n$4\r\n" */
#define ROTE_UPPER    0xffffdfdfdfdfULL /* four letters in upper case, and the end of their line */
#define ROTE_PING_END 0x0a0d474e4950ULL /* "PING\r\n" */
#define ROTE_INFO_END 0x0a0d4f464e49ULL /* "INFO\r\n" */
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
		return (words[1] & ROTE_UPPER) == ROTE_PING_END;
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

/* Whether the payload is, byte for byte, one PING or INFO without arguments, in RESP or as a line: what asks whether the
 * server is there. Global: verified by itself. */
__noinline int probe_by_rote(void)
{
	struct work *w = work_get();
	const u64 *words;
	u64 name;
	u32 len;

	if (!w)
		return 0;
	words = (const u64 *)w->payload;
	len = w->p.payload_len;
	if (len > w->loaded || (len != 6 && len != 14))
		return 0;
	if (len == 14 && words[0] != ROTE_PING)
		return 0;
	name = words[len == 14] & ROTE_UPPER;
	return name == ROTE_PING_END || name == ROTE_INFO_END;
}

INLINE bool handler_probes(const struct work *w)
{
	return probe_by_rote();
}

INLINE void handler_up_load(struct work *w, const struct conn *conn)
{
	bool known = conn->state == CONN_FAST || conn->state == CONN_NEW;

	w->h.scan = conn->h.in;
	w->h.kept = conn->h.kept;
	w->h.db = known ? conn->h.db : DB_UNKNOWN;
}

/* Whether what goes up may be any command: it cannot be read, or nobody is sure that it is read right. */
INLINE u32 up_unread(const struct work *w, enum up_how how, u32 trial)
{
	u32 lost = (how == UP_LOST) & !w->h.by_rote;

	return lost | w->scan_lost | trial;
}

/* U2: takes what is due with the packet, as the entry now stands. shuts: the gate, too. */
INLINE void up_take(const struct conn *conn, struct work *w, u32 trial, u32 shuts)
{
	effects_take(hold_flags(conn, w), trial, hold_used(conn), shuts);
}

/* Number of the last request whose name the packet shows; 0: of none. */
INLINE u32 up_named(const struct work *w, enum up_how how)
{
	return how == UP_WHOLE ? w->commands : w->h.found.named;
}

/* Whether the packet shows the name of a request of which it cannot be known where its reply begins: R4. Nothing of a request
 * counts before its name. */
INLINE u32 up_follows_repeats(const struct conn *conn, const struct work *w, enum up_how how)
{
	u32 owed = (conn->requests ^ conn->replies) | (conn->egress_max ^ w->view.write_seq) |
		   (w->p.ack ^ conn_sent_end(conn, &w->view));
	u32 flag = any_bit(read_once(conn->h.kept) & CONN_K_REPEATS);
	u32 first = how == UP_SCAN ? w->h.found.repeats : 0;

	return (flag & any_bit(up_named(w, how)) & any_bit(owed)) |
	       (any_bit(first) & (first < up_named(w, how)));
}

/* Lock held. */
INLINE void up_repeats_note(struct conn *conn, const struct work *w, enum up_how how)
{
	if (how == UP_LOST)
		return;
	if (up_named(w, how))
		conn->h.kept &= ~CONN_K_REPEATS;
	if (how == UP_SCAN && w->h.found.repeats)
		conn->h.kept |= CONN_K_REPEATS;
}

/* Packets of nothing but reads take what a command that began before them is due; and, should the entry
 * be one that is not answered, or become one, what that one asks for. */
INLINE void whole_take(const struct conn *conn, struct work *w, u32 trial)
{
	u32 follows = up_follows_repeats(conn, w, UP_WHOLE);

	if (!(w->h.late | trial | follows | (read_once(conn->flags) & CONN_F_UNCOUNTABLE)))
		return;
	half_note(conn, w);
	found_begin();
	w->h.found.uncountable = follows;
	up_take(conn, w, trial, trial);
}

INLINE void handler_up_scan(ctx_t *ctx, struct work *w, struct conn *conn, enum up_how how)
{
	u32 trial = read_once(conn->h.kept) & CONN_K_TRIAL;

	found_nothing(&w->h.found);
	w->h.found.modes.stateful = 0;
	w->h.late = how == UP_LOST ? 0 : late_due(conn, w);
	w->h.by_rote = w->h.share = w->h.gate = 0;
	w->scan_lost = 0;
	w->in_at = STREAM_BETWEEN;
	if (how == UP_WHOLE) {
		whole_take(conn, w, trial);
		w->h.found.done = w->requests = w->commands;
		return;
	}
	/* in bits: a branch costs the verifier twice as much */
	w->h.begins = w->h.scan.state == RQ_IDLE;
	w->h.alone = (conn->state == CONN_FAST) & (w->h.db != DB_UNKNOWN) & !w->h.late;
	w->h.alone &= w->h.begins;
	modes_begin(&w->h.found.modes, w->h.kept, w->h.db);
	if (how == UP_LOST) {
		w->h.by_rote = (conn->h.kept & CONN_K_LISTENS) && listener_by_rote();
	} else {
		half_note(conn, w);
		scan_packet(ctx);
		through_look();
		w->requests = w->h.found.done;
		w->scan_lost = w->h.scan.state == RQ_LOST;
		w->in_at = w->h.scan.state == RQ_IDLE ? STREAM_BETWEEN : STREAM_WITHIN;
		w->h.found.uncountable |= up_follows_repeats(conn, w, how);
	}
	if (!w->h.by_rote)
		up_take(conn, w, trial, up_unread(w, how, trial) | w->h.found.modes.gate);
}

/* Whether all that the packet brings is of commands that are never held, all of which were named in it: Y6. On trial
 * it is not known where they begin. */
INLINE bool up_never_held(const struct work *w)
{
	u32 touched = w->h.found.done + (w->h.scan.state != RQ_IDLE);

	if (w->h.kept & CONN_K_TRIAL)
		return probe_by_rote();
	return w->h.found.never_held && w->h.found.never_held == touched && !w->h.late &&
	       !w->scan_lost;
}

/* Whether the packet may make Redis refuse what was promised: a setting, rights, a role. It waits like others while
 * writes may be answered. Else it may be the cure of a Redis that refuses them. */
INLINE bool up_may_refuse(const struct work *w)
{
	const struct control *c = control_get();

	return w->h.gate && (!c || read_once(c->order.absorb));
}

INLINE bool handler_up_asks(struct work *w, enum up_how how)
{
	u32 takes = w->h.late | w->h.found.due | w->h.share | w->h.gate;

	if (how == UP_WHOLE)
		return takes || !reads_pass(); /* Y6, Y7 */
	if (how == UP_LOST)
		return !probe_by_rote();
	return (w->h.begins || w->h.found.done || takes) && (!up_never_held(w) || up_may_refuse(w));
}

INLINE bool handler_up_syncs(const struct work *w, enum up_how how)
{
	if (how == UP_LOST)
		return !probe_by_rote();
	return (how == UP_SCAN && w->h.found.synced) || w->scan_lost;
}

/* Whether the entry is as it was when the packet's effects were taken: U2. Lock held. */
INLINE bool up_foreseen(const struct conn *conn, struct work *w, enum up_how how)
{
	u32 shuts = any_bit(up_unread(w, how, conn->h.kept & CONN_K_TRIAL));
	u32 follows = how == UP_LOST ? 0 : up_follows_repeats(conn, w, how);

	if ((shuts & !w->h.gate) | (follows & !w->h.found.uncountable) | !hold_foreseen(conn, w))
		return false;
	return how == UP_LOST || w->h.late == late_due(conn, w);
}

INLINE enum up_taken handler_up_commit(struct conn *conn, struct work *w, enum up_how how)
{
	w->h.by_rote = w->h.by_rote && (conn->h.kept & CONN_K_LISTENS);
	if (w->h.by_rote) {
		w->h.hold = HOLD_RING;
		return UP_UNREAD;
	}
	if (!up_foreseen(conn, w, how))
		return UP_RACE;
	conn->h.kept &= ~CONN_K_LISTENS;
	if (how == UP_SCAN)
		modes_commit(conn, &w->h.found.modes);
	if (w->scan_lost) {
		conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
		conn->h.kept |= CONN_K_NEVER;
		conn->h.slow = SLOW_UNREADABLE;
	}
	up_repeats_note(conn, w, how);
	if (w->h.found.uncountable) {
		conn->flags |= CONN_F_UNCOUNTABLE;
		if (!w->h.found.modes.stateful)
			conn->h.slow = SLOW_LINES;
	}
	if (conn->flags & CONN_F_UNCOUNTABLE)
		modes_move(conn);
	if ((w->h.found.modes.stateful || (conn->flags & CONN_F_UNCOUNTABLE)) &&
	    conn->state != CONN_OLD)
		conn->state = CONN_BYPASS;
	hold_effects(conn, w);
	held_note(conn, w);
	through_commit(conn, w);
	/* Between commands nothing of it counts: what is there stays. */
	if (how == UP_SCAN && (w->in_at | conn->in_at) != STREAM_BETWEEN)
		conn->h.in = w->h.scan;
	if (how == UP_WHOLE && w->refusal == STAT_REFUSE_MISS)
		vain_note(conn);
	if (how != UP_LOST) {
		conn->h.late = w->h.found.late;
		if (conn->h.late) /* else nobody asks, and its line is cold */
			conn->h.in.late_end = w->scan_next;
	}
	return UP_TAKEN;
}

INLINE void handler_up_undo(struct work *w)
{
	effects_release(1, w->h.share);
}

INLINE void handler_up_done(struct work *w, struct conn *conn)
{
	hold_done(w, conn);
	if (w->h.found.modes.stateful)
		count(STAT_STATEFUL);
}

INLINE bool handler_late(const struct conn *conn)
{
	return conn->h.late;
}

/* Asks for what takes effect with bytes that were committed before: behind those effects, and before anybody sees
 * them as taken. To ask in vain only costs time. Returns 0 if it cannot be asked now (I3). Global: verified
 * by itself, and its caller has no room on its stack. */
__noinline int late_ask(void)
{
	struct control *c = control_get();
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;

	if (!c || !conn || (order_watched(c) && !busy_passed()))
		return 0;
	lock_take(&conn->lock);
	order_waits(c, conn, ASKS_DRAINED);
	lock_release(&conn->lock);
	return 1;
}

/* A command is whole with these bytes: S3. Returns whether they may go up. Global: verified by itself. */
__noinline int late_take(u64 cookie)
{
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;
	bool foreseen = true, taken = false;

	if (!conn)
		return 0;
	w->scan_lost = 0;
	half_note(conn, w);
	found_begin();
	up_take(conn, w, read_once(conn->h.kept) & CONN_K_TRIAL, 0);
	foreseen = late_ask();
	lock_take(&conn->lock);
	if (foreseen && conn->cookie == cookie && w->h.late == late_due(conn, w)) {
		foreseen = taken = hold_foreseen(conn, w);
		if (taken) {
			hold_effects(conn, w);
			held_note(conn, w);
			conn->h.late = 0;
		}
	}
	lock_release(&conn->lock);
	if (taken)
		hold_done(w, conn);
	else
		effects_release(1, w->h.share);
	return foreseen;
}

INLINE bool handler_up_again(struct work *w, struct conn *conn, u64 cookie)
{
	through_doubt(conn);
	w->h.late = late_due(conn, w);
	return !w->h.late || late_take(cookie);
}
