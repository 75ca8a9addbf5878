/* SPDX-License-Identifier: GPL-2.0 */
/* handler.h - a second handler, which proves the wall: each frame is answered by itself, of kind 'f'
 * at the card, of kind 's' by the server alone. It has no cache, no marks and no daemon. */
#pragma once
#include "base/seam.h"
#include "net/chunk_load.h"
#include "net/work.h"
#include "splice/handler_plain.h"
#include "splice/out_work.h"
#include "splice/piece.h"

#define ECHO_FRAMES_MAX 16 /* of one packet */

/* Takes a byte of a head, or as much of a body as is among the n bytes there. Returns how many. */
INLINE u32 echo_step(struct echo_at *at, u8 byte, u32 n, u32 *done)
{
	u32 used = 1;

	if (at->got == ECHO_HEAD) {
		used = at->body < n ? at->body : n;
		at->body -= used;
	} else {
		at->head[at->got & (ECHO_HEAD - 1)] = byte;
		at->got++;
		at->lost |= at->got == 1 && byte != 'E';
		at->body = at->got == ECHO_HEAD ? at->head[2] << 8 | at->head[3] : 0;
	}
	if (at->got == ECHO_HEAD && !at->body) {
		at->got = 0;
		*done += 1;
	}
	return used;
}

INLINE u32 echo_stream(const struct echo_at *at)
{
	return at->got || at->lost ? STREAM_WITHIN : STREAM_BETWEEN;
}

/* Reads the frame at w->pos. Returns 0 or the reason against an answer. */
INLINE u32 echo_read(struct work *w)
{
	u32 at = w->pos, left = w->p.payload_len - at, body;

	opaque(at);
	if (at > PAYLOAD_BYTES - ECHO_HEAD || left < ECHO_HEAD)
		return STAT_REFUSE_INCOMPLETE;
	body = w->payload[at + 2] << 8 | w->payload[at + 3];
	if (w->payload[at] != 'E' || left < ECHO_HEAD + body)
		return STAT_REFUSE_INCOMPLETE;
	w->pos = at + ECHO_HEAD + body;
	w->commands++;
	return w->payload[at + 1] == 'f' ? 0 : STAT_REFUSE_COMMAND;
}

/* Global: verified by itself. */
__noinline int echo_answer(void)
{
	struct work *w = work_get();
	u32 reason;
	int i;

	if (!w)
		return 0;
	w->pos = w->commands = w->refusal = 0;
	bpf_for(i, 0, ECHO_FRAMES_MAX)
	{
		if (read_once(w->pos) >= w->p.payload_len)
			break;
		reason = echo_read(w);
		if (reason && !w->refusal)
			w->refusal = reason;
		if (reason == STAT_REFUSE_INCOMPLETE)
			break;
	}
	w->whole = w->pos == w->p.payload_len;
	if (!w->whole && !w->refusal)
		w->refusal = STAT_REFUSE_COMMANDS;
	w->reply_len = w->p.payload_len;
	bpf_for(i, 0, PAYLOAD_BYTES / 8)
	{
		*(u64 *)(w->reply + i * 8) = *(u64 *)(w->payload + i * 8);
	}
	return 0;
}

INLINE u32 handler_answer(struct work *w, struct control *c, const struct conn *conn)
{
	echo_answer();
	return w->refusal;
}

INLINE void handler_begin(struct conn *conn, const struct work *w, bool known)
{
	__builtin_memset(&conn->h, 0, 2 * sizeof(struct echo_at));
}

INLINE void handler_up_load(struct work *w, const struct conn *conn)
{
	w->h.at = conn->h.in;
}

/* Global: verified by itself. */
__noinline int echo_scan_up(ctx_t *ctx)
{
	struct work *w = work_get();
	int i;

	if (!w)
		return 0;
	w->scan_pos = w->scan_from - w->scan_seq;
	w->chunk.end = 0;
	bpf_for(i, 0, SCAN_STEPS_MAX)
	{
		u32 pos = read_once(w->scan_pos);

		if (pos >= w->scan_len || w->h.at.lost || !piece_load(ctx, w, pos))
			break;
		pos += echo_step(&w->h.at, w->chunk.bytes[(pos - w->chunk.at) & (SCAN_CHUNK - 1)],
				 w->scan_len - pos, &w->requests);
		w->scan_pos = pos;
	}
	w->scan_lost = read_once(w->scan_pos) < w->scan_len || w->h.at.lost;
	return 0;
}

INLINE void handler_up_scan(ctx_t *ctx, struct work *w, struct conn *conn, enum up_how how)
{
	w->scan_lost = 0;
	w->requests = how == UP_WHOLE ? w->commands : 0;
	w->in_at = STREAM_BETWEEN;
	if (how != UP_SCAN)
		return;
	echo_scan_up(ctx);
	w->h.at.lost |= w->scan_lost;
	w->in_at = echo_stream(&w->h.at);
	w->scan_next = w->scan_seq + w->scan_len;
}

INLINE enum up_taken handler_up_commit(struct conn *conn, struct work *w, enum up_how how)
{
	if (how == UP_SCAN)
		conn->h.in = w->h.at;
	if (w->scan_lost)
		conn->flags |= CONN_F_SCAN_LOST | CONN_F_UNCOUNTABLE;
	if ((conn->flags & CONN_F_UNCOUNTABLE) && conn->state != CONN_OLD)
		conn->state = CONN_BYPASS;
	return UP_TAKEN;
}

#if !TIER_XDP
/* Global: verified by itself. */
__noinline int echo_scan_down(struct __sk_buff *ctx)
{
	struct out_work *ow = out_work_get();
	u32 end, pos;
	int i;

	if (!ow)
		return 0;
	ow->pos = ow->scan_from - ow->p.seq;
	ow->chunk.end = 0;
	end = ow->p.payload_len;
	bpf_for(i, 0, SCAN_STEPS_MAX)
	{
		pos = read_once(ow->pos);
		if (pos >= end || ow->h.at.lost ||
		    !chunk_load(ctx, &ow->chunk, ow->p.payload_off, pos, end))
			break;
		ow->pos = pos + echo_step(&ow->h.at,
					  ow->chunk.bytes[(pos - ow->chunk.at) & (SCAN_CHUNK - 1)],
					  end - pos, &ow->replies);
	}
	ow->scan_lost = read_once(ow->pos) < end || ow->h.at.lost;
	return 0;
}

INLINE void handler_down_scan(struct __sk_buff *ctx, struct out_work *ow, struct conn *conn)
{
	ow->h.at = conn->h.out;
	ow->replies = 0;
	if (!ow->scan_lost)
		echo_scan_down(ctx);
	ow->h.at.lost |= ow->scan_lost;
	ow->out_at = echo_stream(&ow->h.at);
}

INLINE void handler_down_take(struct conn *conn, const struct out_work *ow)
{
	conn->h.out = ow->h.at;
}

INLINE void handler_replied(struct conn *conn, struct out_work *ow)
{
	if (conn->state == CONN_NEW && ow->replies && !(conn->flags & CONN_F_CLOSING)) {
		conn->state = CONN_FAST;
		ow->became = STAT_CONN_FAST;
	}
}
#endif
