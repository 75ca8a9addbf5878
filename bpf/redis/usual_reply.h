/* SPDX-License-Identifier: GPL-2.0 */
/* usual_reply.h - what the express lane for replies knows of Redis's: one bulk string or nil, one aggregate of
 * them, as GET, MGET and HGETALL are answered, or "+OK" and small numbers, as writes are; alone in its packet
 * and whole. The scanner (scan_reply.h) would say the same of them. */
#pragma once
#include "base/seam.h"
#include "net/work.h"
#include "redis/effects.h"
#include "redis/resp.h"
#include "splice/handler.h"
#include "splice/out_work.h"

/* A bulk string that fills the packet, or nil, is told by its header: true if the len bytes that begin with
 * word are one whole reply. */
INLINE bool reply_bulk_whole(u64 word, u32 len)
{
	u32 n, digits;

	if ((word & RESP_NIL_MASK) == RESP_NIL)
		return len == 5;
	digits = resp_header_digits(word, len, &n);
	return digits && len == digits + 3 + n + 2;
}

/* The same of "+OK" and of a number of one or two digits, as writes are answered. */
INLINE bool reply_line_whole(u64 word, u32 len)
{
	if ((word & RESP_OK_MASK) == RESP_OK)
		return len == RESP_OK_BYTES;
	if ((u8)word != ':' || (u8)((word >> 8) - '0') > 9)
		return false;
	if ((u16)(word >> 16) == RESP_CRLF)
		return len == 4;
	return (u8)((word >> 16) - '0') <= 9 && (u16)(word >> 24) == RESP_CRLF && len == 5;
}

/* Whether the payload at body_at is one aggregate of bulk strings, without a step for each byte or piece:
 * it is loaded whole. The position is in memory: the verifier must not count it. Global: verified by itself. */
__noinline int reply_aggregate(struct __sk_buff *ctx, u32 body_at, u32 len)
{
	struct out_work *ow = out_work_get();
	u32 n, digits;
	u64 word;
	int i;

	if (!ow || !sized(len, USUAL_REPLY_BYTES) ||
	    bpf_skb_load_bytes(ctx, body_at, ow->h.usual, len))
		return 0;
	word = *(u64 *)ow->h.usual;
	digits = resp_header_digits(word, len, &n);
	if (!digits)
		return 0;
	ow->h.left = (u8)word == '%' ? 2 * n : n;
	ow->pos = digits + 3;
	bpf_for(i, 0, USUAL_REPLY_BYTES / 5)
	{
		u32 pos = read_once(ow->pos), bytes;

		if (pos >= len || !read_once(ow->h.left))
			break;
		bytes =
		    resp_bulk_bytes(*(u64 *)(ow->h.usual + (pos & (USUAL_REPLY_BYTES - 1))), true);
		if (!bytes)
			break;
		ow->h.left--;
		ow->pos = pos + bytes;
	}
	return read_once(ow->pos) == len && !read_once(ow->h.left);
}

/* The same of a reply to a write. */
INLINE enum reply_usual reply_ends(u64 word, u32 len)
{
	struct out_work *ow = out_work_get();

	if (!ow || !reply_line_whole(word, len))
		return REPLY_ODD;
	ow->h.said_ok = (u8)word == '+';
	return REPLY_ENDS;
}

INLINE enum reply_usual handler_reply_usual(struct __sk_buff *ctx, u32 body_at, u32 len)
{
	u64 word = 0;

	if (len < 8) {
		if (len == 5 ? bpf_skb_load_bytes(ctx, body_at, &word, 5)
			     : len != 4 || bpf_skb_load_bytes(ctx, body_at, &word, 4))
			return REPLY_ODD;
		if ((u8)word != '$')
			return reply_ends(word, len);
	} else if (bpf_skb_load_bytes(ctx, body_at, &word, 8)) {
		return REPLY_ODD;
	}
	if ((u8)word == '$')
		return reply_bulk_whole(word, len) ? REPLY_PLAIN : REPLY_ODD;
	return ((u8)word == '*' || (u8)word == '%') && reply_aggregate(ctx, body_at, len)
		   ? REPLY_PLAIN
		   : REPLY_ODD;
}

/* The first mark that the ring holds. */
INLINE const struct mark *reply_mark(const struct conn *conn)
{
	return &conn->h.marks[conn->h.mark_tail & (MARKS_IN_FLIGHT - 1)];
}

/* Whether the ring holds one mark or share, and the next reply is its request's. */
INLINE bool reply_ends_mark(const struct conn *conn)
{
	const struct mark *m = reply_mark(conn);

	return hold_used(conn) == 1 && m->request == conn->replies + 1;
}

/* Such a reply of a connection that waits for nothing else, be it a password's or HELLO's, says nothing new of it. */
INLINE bool handler_down_usual(const struct conn *conn, bool ends)
{
	return conn->state == CONN_FAST && (conn->h.kept & CONN_K_LET_IN) &&
	       !(conn->h.kept & CONN_K_TRIAL) && !(conn->flags & CONN_F_OVERFLOW) &&
	       (conn->h.mark_tail == conn->h.mark_head || (ends && reply_ends_mark(conn))) &&
	       conn->h.resp >= 2 && conn->h.auth_at != conn->replies + 1;
}
