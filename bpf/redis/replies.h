/* SPDX-License-Identifier: GPL-2.0 */
/* replies.h - what leaves Redis: replies counted, what they release and say of their connection. */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/marks.h"
#include "net/chunk.h"
#include "net/chunk_load.h"
#include "net/packet.h"
#include "net/work.h"
#include "redis/effects.h"
#include "redis/modes.h"
#include "redis/resp.h"
#include "redis/scan_reply.h"
#include "redis/through.h"
#include "redis/usual_reply.h"
#include "splice/handler.h"
#include "splice/out_work.h"

/* Takes what can be taken in one step at ow->pos. Global: verified by itself. */
__noinline int scan_replies_step(void)
{
	struct out_work *ow = out_work_get();
	u32 pos, at, left, used = 0;

	if (!ow)
		return 0;
	pos = ow->pos;
	left = ow->p.payload_len - pos;
	if (ow->h.scan.state == RP_TYPE) {
		at = pos - ow->chunk.at;
		opaque(at);
		if (at < SCAN_CHUNK)
			used = scan_reply_header(&ow->h.scan, &ow->h.found,
						 *(u64 *)(ow->chunk.bytes + at), left);
	}
	if (ow->h.scan.state == RP_BLOB) {
		u32 n = ow->h.scan.skip < left - used ? ow->h.scan.skip : left - used;

		scan_reply_skip(&ow->h.scan, &ow->h.found, n);
		used += n;
	} else if (!used) {
		scan_reply_byte(&ow->h.scan, &ow->h.found,
				ow->chunk.bytes[(pos - ow->chunk.at) & (SCAN_CHUNK - 1)]);
		used = 1;
	}
	ow->pos = pos + used;
	return 0;
}

/* The bytes of the bulk string or nil that begins with word, if all of it lies in the next left bytes;
 * else 0. word is of these. */
INLINE u32 bulk_bytes(u64 word, u32 left)
{
	u32 n, digits;

	if ((word & RESP_NIL_MASK) == RESP_NIL)
		return 5;
	if ((u8)word != '$')
		return 0;
	digits = resp_header_digits(word, SCAN_WORD, &n);
	return digits && digits + n + 5 <= left ? digits + n + 5 : 0;
}

/* Takes the bulk strings of an aggregate that begin in the piece at hand and lie whole in the packet, but
 * for its last one, as so many steps would: 30 instructions each, not 180. Returns whether there was one.
 * Global: verified by itself. */
__noinline int scan_replies_bulks(void)
{
	struct out_work *ow = out_work_get();
	u32 began;
	int i;

	if (!ow)
		return 0;
	began = ow->pos;
	bpf_for(i, 0, SCAN_CHUNK)
	{
		u32 pos = read_once(ow->pos), at = pos - ow->chunk.at, bytes;

		opaque(at);
		if (read_once(ow->h.scan.left) < 2 || pos + SCAN_WORD > ow->chunk.end ||
		    at >= SCAN_CHUNK)
			break;
		bytes = bulk_bytes(*(u64 *)(ow->chunk.bytes + at), ow->p.payload_len - pos);
		if (!bytes)
			break;
		ow->h.scan.left--;
		ow->pos = pos + bytes;
	}
	return ow->pos != began;
}

/* Scans the payload from scan_from on with ow->h.scan into ow->h.found. The position is in memory: the
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

		if (pos >= end || ow->h.scan.state == RP_LOST)
			break;
		if (ow->h.scan.state != RP_BLOB &&
		    !chunk_load(ctx, &ow->chunk, ow->p.payload_off, pos, end)) {
			ow->h.scan.state = RP_LOST;
			break;
		}
		if (ow->h.scan.state != RP_TYPE || ow->h.scan.left < 2 || !scan_replies_bulks())
			scan_replies_step();
	}
	if (read_once(ow->pos) < end)
		ow->h.scan.state = RP_LOST;
	return 0;
}

/* Whether a mark's command has been executed. Redis makes the reply of a command that is settled
 * when it has run, so its first byte says so; that of EXEC may leave in parts. Lock held. */
INLINE bool reply_executed(const struct conn *conn, const struct mark *m, bool begun)
{
	u32 early = begun & ~any_bit(m->set ^ EFFECT_SETTLE);

	return !seq_after(m->request, conn->replies + early);
}

/* Whether all that the connection ever asked for was refused, as it has shown no password: M5. Lock
 * held. */
INLINE bool reply_refused(const struct conn *conn, const struct out_work *ow)
{
	return ow->h.shut && !(conn->h.kept & (CONN_K_LET_IN | CONN_K_RECOUNTED)) &&
	       conn->h.rights == ow->h.rights;
}

/* Moves marks whose replies have left into ow->h.marks. Lock held. */
INLINE void reply_take_marks(struct conn *conn, struct out_work *ow)
{
	/* out_at is in line C, the scanner's state is not. */
	bool begun = conn->out_at == STREAM_WITHIN && conn->h.out.left && !conn->h.out.push;
	u32 turned = reply_refused(conn, ow) ? EFFECT_FENCE ^ EFFECT_SETTLE : 0;

	for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
		struct mark *m = &conn->h.marks[conn->h.mark_tail & (MARKS_IN_FLIGHT - 1)];

		if (conn->h.mark_tail == conn->h.mark_head || !reply_executed(conn, m, begun))
			break;
		ow->h.marks[i].request = m->request;
		ow->h.marks[i].set = m->set ^ (turned & (any_bit(m->set ^ EFFECT_FENCE) - 1));
		ow->h.released = i + 1;
		conn->h.mark_tail++;
	}
}

/* Whether the first answer does not prove that a stream older than ERB was taken up at a command's
 * begin: Redis would have answered anything else by an error. */
INLINE bool reply_trial_failed(const struct conn *conn, const struct out_work *ow)
{
	return (conn->h.kept & CONN_K_TRIAL) && ow->h.found.errors;
}

/* What counted replies say of the connection itself: M2 to M4, and the end of a trial. Lock held.
 */
INLINE void reply_modes(struct conn *conn, const struct out_work *ow)
{
	if (ow->h.found.success || ow->h.found.ran)
		conn->h.kept |= CONN_K_LET_IN;
	if (ow->h.found.map && conn->h.resp == RESP_IF_MAP)
		conn->h.resp = 3;
	if (ow->h.found.authed && conn->h.auth_at == ow->h.auth_at)
		conn->h.kept |= CONN_K_AUTHED;
	if (ow->h.found.errors && (conn->h.kept & CONN_K_WATCHED))
		conn->h.kept |= CONN_K_STUCK;
	if (ow->h.found.success && conn->replies == conn->requests)
		conn->h.kept &= ~CONN_K_TRIAL;
}

/* Notes whether the packet is one whole reply that its first word tells, and "+OK". AUTH's is left to the scanner. */
INLINE void reply_whole(const struct conn *conn, struct out_work *ow)
{
	u32 at = ow->p.payload_off;
	u64 word;

	ow->h.whole = ow->h.said_ok = 0;
	opaque(at);
	if (at > HEAD_BYTES - RESP_HEADER_BYTES || ow->scan_from != ow->p.seq ||
	    conn->out_at != STREAM_BETWEEN || ow->h.found.auth_at == 1)
		return;
	word = *(const u64 *)(ow->head + at);
	if ((u8)word == '$') {
		ow->h.whole = reply_bulk_whole(word, ow->p.payload_len);
		return;
	}
	ow->h.whole = reply_line_whole(word, ow->p.payload_len);
	ow->h.said_ok = ow->h.whole && (u8)word == '+';
}

/* The SET to which Redis has said OK, if what it says is to be shown; 0: none. W2. Lock held, replies
 * has moved. */
INLINE u32 reply_ok(const struct conn *conn, const struct out_work *ow)
{
	bool ok = ow->h.said_ok && ow->h.found.done == 1 && conn->state == CONN_FAST &&
		  (conn->h.kept & CONN_K_THROUGH) && conn->requests == conn->replies;

	return ok ? conn->replies : 0;
}

INLINE void handler_down_end(struct conn *conn, struct out_work *ow)
{
	if (conn->h.mark_tail == conn->h.mark_head)
		return;
	ow->h.marks[0] = *reply_mark(conn);
	ow->h.released = 1;
	conn->h.mark_tail++;
	ow->h.found.done = 1;
	ow->h.ok = reply_ok(conn, ow);
}

INLINE void handler_down_begin(struct out_work *ow, const struct control *c)
{
	u32 open;

	ow->h.released = ow->h.overflow = ow->h.gate = ow->h.ok = 0;
	ow->h.rights = read_once(c->rights);
	load_barrier();
	open = read_once(c->open);
	ow->h.open = open == DOOR_OPEN;
	ow->h.shut = open == DOOR_SHUT;
}

INLINE void handler_down_scan(struct __sk_buff *ctx, struct out_work *ow, struct conn *conn)
{
	struct reply_found *found = &ow->h.found;

	found->done = found->pushes = 0;
	found->bars = found->success = 0;
	found->authed = found->errors = found->map = 0;
	found->noauth = found->noperm = found->ran = 0;
	ow->h.auth_at = read_once(conn->h.auth_at);
	found->auth_at = ow->h.auth_at ? ow->h.auth_at - conn->replies : 0;
	reply_whole(conn, ow);
	if (ow->h.whole) {
		ow->h.scan.state = RP_TYPE;
		found->done = found->success = 1;
	} else {
		if (conn->out_at == STREAM_BETWEEN)
			__builtin_memset(&ow->h.scan, 0, sizeof(ow->h.scan));
		else
			ow->h.scan = conn->h.out;
		if (ow->scan_lost)
			ow->h.scan.state = RP_LOST;
		else
			scan_replies(ctx);
	}
	ow->replies = found->done;
	ow->scan_lost = ow->h.scan.state == RP_LOST;
	ow->out_at = !ow->h.whole && (ow->h.scan.state != RP_TYPE || ow->h.scan.left)
			 ? STREAM_WITHIN
			 : STREAM_BETWEEN;
}

INLINE void handler_down_take(struct conn *conn, const struct out_work *ow)
{
	if (ow->out_at != STREAM_BETWEEN)
		conn->h.out = ow->h.scan;
	else if (conn->out_at != STREAM_BETWEEN) /* else it is: R3 */
		__builtin_memset(&conn->h.out, 0, sizeof(conn->h.out));
}

INLINE bool handler_doubts(const struct conn *conn, const struct out_work *ow)
{
	return reply_trial_failed(conn, ow);
}

INLINE void handler_uncounted(struct conn *conn, struct out_work *ow)
{
	modes_move(conn);
	conn->h.slow = ow->scan_lost ? SLOW_REPLIES : SLOW_EXTRA;
	if (conn->h.kept & CONN_K_TRIAL) {
		conn_trial_failed(conn);
		ow->became = STAT_TRIAL_FAILED;
	}
	if ((conn->h.mark_head != conn->h.mark_tail || (conn->flags & CONN_F_OVERFLOW)) &&
	    !(conn->flags & CONN_F_FENCE_PROOF)) {
		/* from now on only proof releases what the ring holds */
		conn->flags |= CONN_F_FENCE_PROOF;
		conn->h.proof_pos = conn->up_max - conn->in_delta;
		ow->h.overflow = OVERFLOW_TO_PROOF;
	}
}

INLINE void handler_replied(struct conn *conn, struct out_work *ow)
{
	if (ow->h.whole && handler_down_usual(conn, false))
		return;
	reply_modes(conn, ow);
	ow->h.gate =
	    (ow->h.open && ow->h.found.noauth) ||
	    (conn->state == CONN_FAST && conn->h.rights == ow->h.rights && ow->h.found.noperm);
	ow->h.ok = reply_ok(conn, ow);
	reply_take_marks(conn, ow);
	if (conn->replies == conn->requests && (conn->flags & CONN_F_OVERFLOW)) {
		conn->flags &= ~CONN_F_OVERFLOW;
		ow->h.hidden = (conn->handler_bits & CONN_F_OVERFLOW) && !reply_refused(conn, ow);
		conn->handler_bits &= ~CONN_F_OVERFLOW;
		ow->h.overflow = OVERFLOW_DONE;
	}
	if (conn->state != CONN_NEW)
		return;
	if (ow->h.found.bars) {
		conn->h.slow = SLOW_REFUSED;
		conn->state = CONN_BYPASS;
		ow->became = STAT_CONN_BYPASS;
	} else if (ow->h.found.success && !ow->h.open) {
		conn->h.slow = SLOW_DOOR; /* only a list can tell */
		conn->state = CONN_BYPASS;
		ow->became = STAT_CONN_BYPASS;
	} else if (ow->h.found.success && !(conn->flags & CONN_F_CLOSING)) {
		conn->h.rights = ow->h.rights;
		conn->state = CONN_FAST;
		ow->became = STAT_CONN_FAST;
	}
}

INLINE void handler_down_done(struct out_work *ow, struct control *c)
{
	if (ow->h.ok && !through_believed(c)) /* nor behind its reply: Redis ran it in between */
		ow->h.ok = 0;
	if (ow->h.released)
		marks_release(c, ow->h.marks, ow->h.released, true, ow->h.ok);
	if (ow->h.overflow == OVERFLOW_DONE)
		fence_end(c, ow->h.hidden);
	if (ow->h.overflow == OVERFLOW_TO_PROOF) {
		fence_take(c);
		count(STAT_FENCE_PROOF);
	}
	if (ow->h.gate)
		gate_shut(c);
}
