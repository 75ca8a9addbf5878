/* SPDX-License-Identifier: GPL-2.0 */
/* hidden.h - bytes that would reach Redis where nobody looks: behind headers that are not read, or
 * in a SYN, or in fragments of which the first has none of them. Such packets are dropped. Nobody sends them
 * in earnest: RFC 1858 and RFC 7112 forbid first fragments without all headers, no link is so narrow that
 * the first one ends with them, extension headers in front of TCP are at home in no network
 * that has a Redis in it, and a client whose SYN with data is lost sends one without. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"

/* IPv4 that parse_packet() took for nothing of ours: whether it is a first fragment for Redis's port
 * that does not hold the TCP header whole, and a byte behind it. */
INLINE bool ipv4_hidden(const struct work *w, const struct control *c, u32 frame)
{
	u32 off = w->p.l4_off, l3 = tier_l3_kept(w), len;

	opaque(off);
	if (w->p.proto != IPPROTO_TCP || off > L3_OFF_MAX + 60 || frame < off + 8)
		return false;
	len = load_be16(w->head + l3 + 2) + l3 - off;
	return *(u16 *)(w->head + off + 2) == c->port_be &&
	       (len < 20 || (w->head[off + 12] >> 4) * 4U >= len);
}

/* The same of IPv6 with extension headers: whether TCP for Redis's port is behind them, which are
 * too many for us or do not end in a first fragment; or, in such a one, what nobody can tell. */
INLINE bool ipv6_hidden(ctx_t *ctx, const struct work *w, const struct control *c)
{
	u32 off = tier_l3_kept(w), next, fragment = 0;
	u16 port = 0;
	u8 ext[8];
	int i;

	next = w->head[off + 6];
	off += 40;
	bpf_for(i, 0, IPV6_WALK_MAX)
	{
		if (next == IPPROTO_TCP)
			return tier_load(ctx, off + 2, &port, 2) ? fragment : port == c->port_be;
		if (!ipv6_extension(next))
			return false;
		if (tier_load(ctx, off, ext, 8))
			return fragment;
		if (next == IPPROTO_FRAGMENT && (ext[2] || ext[3] & 0xf8))
			return false; /* without its first fragment it is nothing */
		fragment |= next == IPPROTO_FRAGMENT;
		off += next == IPPROTO_FRAGMENT ? 8 : (ext[1] + 1) * 8;
		next = ext[0];
	}
	return true;
}

/* Global: verified by itself. */
__noinline int hidden_look(ctx_t *ctx)
{
	struct work *w = work_get();
	struct control *c = control_get();
	bool hidden;

	if (!w || !c)
		return 0;
	hidden = w->p.family == 4 ? ipv4_hidden(w, c, tier_len(ctx)) : ipv6_hidden(ctx, w, c);
	if (hidden)
		count(STAT_DROP_HIDDEN);
	return hidden;
}

/* Whether a packet that ingress_parse() took for nothing of ours must not pass. */
INLINE bool hidden_bytes(ctx_t *ctx, const struct work *w)
{
	return (w->p.odd & (ODD_F_FRAGMENT | ODD_F_CHAIN)) && hidden_look(ctx);
}

/* A SYN that brings data. TCP takes them only with Fast Open: if the listener has a queue for it
 * (TCP_FASTOPEN, which Redis does not set, or tcp_fastopen with 0x400). Behind TIME_WAIT the
 * listener is not seen. */
INLINE bool syn_data_taken(ctx_t *ctx, struct work *w)
{
	struct bpf_sock_tuple t = {};
	struct tcp_sock *tp;
	struct bpf_sock *sk;
	bool taken = false;

	if (sock_tuple(&t, &w->p.key, w->p.family) == sizeof(t.ipv4))
		sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	if (sk->state == TCP_TIME_WAIT) {
		taken = true;
	} else if (sk->state == TCP_LISTEN) {
		tp = bpf_skc_to_tcp_sock(sk);
		taken = tp && tp->inet_conn.icsk_accept_queue.fastopenq.max_qlen;
	}
	bpf_sk_release(sk);
	return taken;
}
