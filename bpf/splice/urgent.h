/* SPDX-License-Identifier: GPL-2.0 */
/* urgent.h - urgent data (RFC 9293 3.8.5, RFC 6093). Redis reads its socket without SO_OOBINLINE: the
 * kernel leaves the byte at the urgent pointer out of what it reads (net/ipv4/tcp_input.c
 * tcp_check_urg(), net/ipv4/tcp.c tcp_recvmsg_locked()). The byte may lie 64 KiB ahead of the
 * packet that tells of it, and that packet may be a bare acknowledgement.
 *
 * Invariants:
 *  J1. An urgent pointer goes up only in a packet with new bytes, and its connection's stream counts as lost from
 *      there on. Of any other packet it is taken away: senders repeat it in every segment up to the byte itself.
 *  J2. No stream is taken up while the kernel still waits for the byte (tcp_sock.urg_data). */
#pragma once
#include "base/seam.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/work.h"

#define URGENT_AT    12 /* in the TCP header: the words with the flags and with checksum and pointer */
#define URGENT_BYTES 8

/* Takes the urgent pointer away, in the packet and in what was parsed. Its checksum is known to be right. */
INLINE void urgent_clear(ctx_t *ctx, struct work *w)
{
	u32 off = w->p.l4_off, old[URGENT_BYTES / 4];
	u8 *words;
	u16 field;

	opaque(off);
	if (off > HEAD_BYTES - TCP_BYTES_MAX)
		return;
	words = w->head + off + URGENT_AT;
	old[0] = *(u32 *)words;
	old[1] = *(u32 *)(words + 4);
	words[1] &= ~TCP_URG;
	*(u16 *)(words + 6) = 0;
	if (!w->bare) {
		field = *(u16 *)(words + 4);
		*(u16 *)(words + 4) =
		    csum_update(field, bpf_csum_diff((__be32 *)old, URGENT_BYTES, (__be32 *)words,
						     URGENT_BYTES, 0));
	}
	tier_store(ctx, off + URGENT_AT, words, URGENT_BYTES);
	w->p.flags &= ~TCP_URG;
	w->p.odd &= ~ODD_F_URGENT;
	count(STAT_URGENT_CLEARED);
}

/* Whether the packet has an urgent pointer that TCP would look at, and no bytes. */
INLINE bool urgent_is_bare(const struct work *w)
{
	return (w->p.odd & ODD_F_URGENT) && !w->p.payload_len &&
	       !(w->p.flags & (TCP_SYN | TCP_RST));
}

/* Whether the packet's urgent pointer can be taken away: none of its bytes is new. Read without the lock:
 * conn->next only grows, so what is old stays old. */
INLINE bool urgent_is_old(const struct conn *conn, const struct work *w)
{
	return (w->p.odd & ODD_F_URGENT) && !(conn->flags & CONN_F_SCAN_LOST) &&
	       !seq_after(w->end, conn->next);
}
