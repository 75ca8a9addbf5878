/* SPDX-License-Identifier: GPL-2.0 */
/* hold.h - copies of packets that wait (order.h), so that they need not wait for their client's timer as well. The
 * daemon takes them, and when what they wait for is drained brings them up: inject.h.
 *
 * Invariants:
 *  Z1. A copy is of a packet that was committed and dropped, and is made behind the lock: nothing hangs on it. Where
 *      there is none (the ring is full, the frame is too long, the daemon dies with it), the client sends it again.
 *  Z2. It has the bytes as the client sent them, without translation. Brought up, it is one more repetition by the
 *      client, which a program at the device's ingress looks at like any other.
 *  Z3. The same bytes are copied once in HELD_COPY_NS, unless a copy has come again in between: who repeats what waits
 *      all the time fills no ring.
 *  Z4. Of what cannot be copied there is a record without bytes: the daemon knows who waits, and how long.
 */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/work.h"

#define HELD_HEADER_BYTES __builtin_offsetof(struct held_packet, frame)

/* Whether what is at hand is to be copied: Z3; notes that it is. Lock held. */
INLINE bool hold_begin(struct conn *conn, const struct work *w)
{
	u32 from = w->p.seq, end = from + w->p.payload_len;
	bool fresh = w->now - conn->copied_ns < HELD_COPY_NS;
	bool joins =
	    fresh && !seq_before(from, conn->copied_from) && !seq_after(from, conn->copied_end);

	if (joins && !seq_after(end, conn->copied_end))
		return false;
	if (!joins)
		conn->copied_from = from;
	conn->copied_end = end;
	conn->copied_ns = w->now;
	return true;
}

/* There is no copy after all, or none any more: of what waits again there may be one. */
INLINE void hold_forget(struct conn *conn)
{
	lock_take(&conn->lock);
	conn->copied_ns = 0;
	lock_release(&conn->lock);
}

/* How much of the frame can be copied: all or nothing. Not what has no Ethernet header, for the kernel gives a program
 * of ours no other packet; nor a fragment, or urgent bytes, of which more is to be known than the frame says. */
INLINE u32 hold_bytes(ctx_t *ctx, const struct work *w)
{
	u32 len = tier_len(ctx);
	bool odd = tier_l3(ctx) != ETH_BYTES || (w->p.odd & ODD_F_UNREAD);

	return odd || len > HELD_FRAME_BYTES ? 0 : len;
}

INLINE void hold_describe(ctx_t *ctx, const struct work *w, const struct conn *conn,
			  struct held_packet *held, u32 len)
{
	__builtin_memcpy(&held->key, &w->p.key, sizeof(held->key));
	held->cookie = conn->cookie;
	held->waits_for = read_once(conn->waits_for);
	held->seq = w->p.seq;
	held->payload_len = w->p.payload_len;
	held->ifindex = tier_ifindex(ctx);
	held->tag = w->tag;
	held->l4_off = w->p.l4_off;
	held->payload_off = w->p.payload_off;
	held->bytes = len;
	held->why = read_once(conn->spoke) & WAITS_SYNC ? HELD_SYNC : 0;
	held->why |= w->delayed;
}

/* A record with room for so many bytes of the frame, a constant where this is inlined. Returns whether it is
 * written. */
INLINE bool hold_write(ctx_t *ctx, const struct work *w, const struct conn *conn, u32 len,
		       const u32 most)
{
	struct held_packet *held = bpf_ringbuf_reserve(&erb_held, HELD_HEADER_BYTES + most, 0);

	if (!held)
		return false;
	hold_describe(ctx, w, conn, held, len);
	if (sized(len, most) && tier_load(ctx, 0, held->frame, len)) {
		bpf_ringbuf_discard(held, 0);
		return false;
	}
	bpf_ringbuf_submit(held, 0);
	return true;
}

/* The packet at hand waits: its copy goes to the daemon. Returns whether there is one now, or a record of who waits.
 * Global: verified by itself, and nobody pays for it while nothing waits. */
__noinline int hold_copy(ctx_t *ctx)
{
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;
	bool begun, written;
	u32 len;

	if (!conn)
		return 0;
	lock_take(&conn->lock);
	/* It is no longer delayed: the daemon is to know that it waits for something else. */
	if (!w->delayed && conn->delayed_at && conn->delayed_seq == w->p.seq)
		conn->copied_ns = conn->delayed_at = 0;
	begun = hold_begin(conn, w);
	lock_release(&conn->lock);
	if (!begun)
		return 1;
	len = hold_bytes(ctx, w);
	written = len <= HELD_FRAME_SHORT ? hold_write(ctx, w, conn, len, HELD_FRAME_SHORT)
					  : hold_write(ctx, w, conn, len, HELD_FRAME_BYTES);
	if (!written)
		hold_forget(conn);
	count(written && len ? STAT_HELD_COPIED : STAT_HELD_UNCOPIED);
	return written;
}
