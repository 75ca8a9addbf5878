/* SPDX-License-Identifier: GPL-2.0 */
/* accept.h - what TCP will make of a segment, judged before it gets there: tcp_validate_incoming()
 * and tcp_ack() of net/ipv4/tcp_input.c.
 *
 * The kernel judges later than we do. What only grows meanwhile: rcv_nxt, rcv_wup, the right edge
 * of its window, snd_una, snd_nxt, max_window. An honest client's segment is judged alike at both
 * moments; of others the invariants hold.
 *
 * Invariants:
 *  N1. What the kernel throws away changes nothing in the entry: the end of the bytes, the
 *      acknowledgement, the timestamp, FIN and RST count only for what it looks at.
 *  N2. New bytes go up unscanned only if the kernel cannot take them: the segment acknowledges nothing.
 *      What the kernel may take or refuse, as things go meanwhile, is dropped. So is what acknowledges
 *      too much or too little: an acknowledgement that is refused at any time does not exist, for
 *      header prediction queues bytes before it looks at one that is too old. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"

#define ACK_REFUSED (1U << 30) /* older than any window: 65535 << 14 is less */

/* Client space: end of all bytes that the fast path or the kernel has sent. */
INLINE u32 conn_sent_end(const struct conn *conn, const struct sock_view *v)
{
	return v->write_seq + conn->out_delta;
}

/* Whether the packet acknowledges bytes that Redis has written and nobody has sent yet: neither
 * egress saw them nor does TCP know them as sent (it says so a moment later than they are). */
INLINE u32 ack_of_unsent(const struct conn *conn, const struct pkt *p, const struct sock_view *v)
{
	return (v->snd_nxt + conn->out_delta - p->ack) >> 31 &
	       (conn->egress_max + conn->out_delta - p->ack) >> 31;
}

/* Whether TCP takes the acknowledgement for a blind guess (RFC 5961 5.2, tcp_ack()): older than
 * what was acknowledged by more than any window the client has offered. By the kernel's record as
 * well as by ours: what it would take must not be treated as refused. */
INLINE u32 ack_too_old(const struct conn *conn, const struct pkt *p, const struct sock_view *v)
{
	return (p->ack - conn->ack_max + v->max_window) >> 31 &
	       (p->ack - conn->out_delta - v->snd_una + v->max_window) >> 31;
}

/* Whether the packet acknowledges less than the first byte of the replies: older than all that was ever acknowledged,
 * by this record of both streams. The kernel refuses that since Linux 6.7 (tcp_ack(), bytes_acked), and before takes
 * the bytes if it is within a window. acked: the kernel's bytes_acked, read before the view. */
INLINE bool ack_before_first(const struct conn *conn, const struct pkt *p,
			     const struct sock_view *v, u64 acked)
{
	u32 first = v->snd_una - (u32)acked;

	return acked < ACK_REFUSED && conn->ack_max - first < v->max_window &&
	       seq_before(p->ack, first);
}

/* PAWS by one record (tcp_paws_check()): one tick back is allowed, and a record that is too old or
 * 0 says nothing. */
INLINE bool paws_ok(u32 recent, u32 recent_s, u32 tsval, u64 now)
{
	return (s32)(recent - tsval) <= 1 || !recent ||
	       (s32)((u32)(now / 1000000000) - recent_s) >= PAWS_WRAP_S;
}

/* Whether the packet's timestamp is new enough (RFC 7323 5.3). While nothing was consumed the
 * kernel has seen all and its record alone decides. */
INLINE bool conn_paws_ok(const struct conn *conn, const struct pkt *p, const struct sock_view *v,
			 u64 now)
{
	if (!p->ts_off || !v->fixed.tstamp_ok)
		return true;
	return paws_ok(v->ts_recent, v->ts_recent_s, p->tsval, now) &&
	       (!conn->in_delta || paws_ok(conn->ts_recent, conn->ts_recent_s, p->tsval, now));
}

/* Notes the timestamp of a packet that TCP looks at, or that was consumed. Not of one beyond a hole:
 * nor does TCP (RFC 7323 4.3). Lock held. */
INLINE void conn_ts_recent(struct conn *conn, const struct pkt *p, const struct sock_view *v,
			   u64 now)
{
	u32 now_s = now / 1000000000;

	if (!conn->in_delta || !p->ts_off || seq_after(p->seq - conn->in_delta, v->rcv_nxt))
		return;
	if (seq_before(p->tsval, conn->ts_recent) && (s32)(now_s - conn->ts_recent_s) < PAWS_WRAP_S)
		return;
	conn->ts_recent = p->tsval;
	conn->ts_recent_s = now_s;
}

/* Kernel space: end of what the client was allowed to send, tcp_sequence()'s limit. */
INLINE u32 sock_right_edge(const struct sock_view *v)
{
	return seq_max(v->rcv_nxt, v->rcv_wup + v->rcv_wnd);
}

/* Whether TCP looks at the segment at all: sequence number, PAWS and acknowledgement are such that
 * it does not throw it away. RST and SYN it judges by other rules, and takes nothing else of them.
 */
INLINE bool segment_counts(const struct conn *conn, const struct pkt *p, const struct sock_view *v,
			   u64 now)
{
	u32 seq = p->seq - conn->in_delta, end = seq + p->payload_len + (p->flags & TCP_FIN);
	u32 bad = (p->flags & (TCP_ACK | TCP_RST | TCP_SYN)) ^ TCP_ACK;

	/* Sums of sign bits: each branch would cost the verifier a tenth more. */
	bad |= (end - v->rcv_wup) >> 31;
	bad |= (v->rcv_nxt - seq) >> 31 & (v->rcv_wup + v->rcv_wnd - seq) >> 31;
	bad |= (conn_sent_end(conn, v) - p->ack) >> 31;
	bad |= ack_of_unsent(conn, p, v) | ack_too_old(conn, p, v);
	return !bad && conn_paws_ok(conn, p, v, now);
}

/* Whether the kernel will believe the packet's RST (exact number only, RFC 5961 3.2) or FIN, which
 * it keeps for later if it does not come in order. A blind one must not take the fast path from a
 * connection. Lock held; viewed: the view is loaded; counts: segment_counts(). */
INLINE bool ends_connection(const struct conn *conn, const struct work *w, bool viewed, bool counts)
{
	u32 end = w->p.seq + w->p.payload_len - conn->in_delta;

	if (w->p.flags & TCP_RST)
		return w->p.seq == conn->next ||
		       (viewed && w->p.seq - conn->in_delta == w->view.rcv_nxt);
	return counts && (w->p.flags & TCP_FIN) && !seq_before(end, w->view.rcv_nxt);
}
