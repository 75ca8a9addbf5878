/* SPDX-License-Identifier: GPL-2.0 */
/* icmp.h - ICMP errors that quote a segment of a spliced connection.
 *
 * They quote what was on the wire, so client space; the kernel would take the number for one
 * outside its window and ignore the error: large replies would vanish for ever behind a small path
 * MTU (T-12). An error for bytes of the fast path is given the kernel's oldest number, so
 * that the kernel learns the path MTU for both. */
#pragma once
#include "base/seam.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"

#define ICMP_UNREACH	  3
#define ICMP_FRAG_NEEDED  4 /* code of ICMP_UNREACH */
#define ICMPV6_PKT_TOOBIG 2
#define ICMPV6_PARAM	  4
#define PMTU_V4_MIN	  552 /* net.ipv4.route.min_pmtu */
#define PMTU_V6_MIN	  1280
#define TCP_TS_BYTES	  32 /* header of a fast reply */

/* Reads the quoted headers at off into w->p.key. Returns the offset of the quoted TCP header, or 0.
 */
INLINE u32 icmp_quoted(struct work *w, u32 off)
{
	const u8 *ip = w->head + off;
	u32 header_len = 40;

	if (w->p.family == 4) {
		header_len = (ip[0] & 0x0f) * 4;
		if (ip[0] >> 4 != 4 || ip[9] != IPPROTO_TCP || header_len < 20 ||
		    (load_be16(ip + 6) & 0x1fff))
			return 0;
		address_v4(w->p.key.server_addr, ip + 12);
		address_v4(w->p.key.client_addr, ip + 16);
	} else {
		if (ip[0] >> 4 != 6 || ip[6] != IPPROTO_TCP)
			return 0;
		address_v6(w->p.key.server_addr, ip + 8);
		address_v6(w->p.key.client_addr, ip + 24);
	}
	return off + header_len;
}

/* The path MTU that the error announces, 0 if it is none. */
INLINE u32 icmp_mtu(const struct work *w, const u8 *icmp)
{
	u32 mtu = 0;

	if (w->p.family == 4 && icmp[0] == ICMP_UNREACH && icmp[1] == ICMP_FRAG_NEEDED)
		mtu = load_be16(icmp + 6);
	if (w->p.family == 6 && icmp[0] == ICMPV6_PKT_TOOBIG)
		mtu = load_be32(icmp + 4);
	return mtu < (w->p.family == 4 ? PMTU_V4_MIN : PMTU_V6_MIN) || mtu > 65535 ? 0 : mtu;
}

/* Kernel-space number for the quoted one; drops the limit for fast bytes. Lock held. */
INLINE u32 icmp_translate(struct conn *conn, struct work *w, const struct sock_ref *r, u32 seq,
			  u32 mtu)
{
	u32 headers = (w->p.family == 4 ? 20 : 40) + TCP_TS_BYTES;

	sock_view_load(r, &w->view);
	if (seq_before(seq, conn->replay_from) || !seq_before(seq, conn->edge + conn->out_delta))
		return seq - conn->out_delta;
	if (mtu) {
		conn->mss_limit = mtu - headers;
		if (conn->sent_ns)
			conn->resend_due = 1; /* the timer cuts the replay anew */
	}
	return w->view.snd_una;
}

/* The packet at hand is ICMP; it always goes up. Global: verified by itself. */
__noinline int ingress_icmp(ctx_t *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	u32 off, tcp, seq, new_seq, mtu;
	struct sock_ref r;
	struct conn *conn;
	bool ours = false;
	u8 type;

	if (!c || !w)
		return 0;
	off = w->p.l4_off;
	opaque(off);
	if (off > L2_BYTES_MAX + 60)
		return 0;
	type = w->head[off];
	if (w->p.family == 4 ? type != 3 && type != 11 && type != 12
			     : type < 1 || type > ICMPV6_PARAM)
		return 0;
	tcp = icmp_quoted(w, off + 8);
	opaque(tcp);
	if (!tcp || tcp > HEAD_BYTES - 8)
		return 0;
	w->p.key.server_port_be = *(u16 *)(w->head + tcp);
	w->p.key.client_port_be = *(u16 *)(w->head + tcp + 2);
	if (w->p.key.server_port_be != c->port_be)
		return 0;
	conn = conn_get(&w->p.key);
	if (!conn || !conn->out_delta || !sock_get(ctx, &w->p.key, w->p.family, &r))
		return 0;
	seq = new_seq = load_be32(w->head + tcp + 4);
	mtu = icmp_mtu(w, w->head + off);
	if (r.tp) {
		lock_take(&conn->lock);
		ours = conn->cookie == r.cookie;
		if (ours)
			new_seq = icmp_translate(conn, w, &r, seq, mtu);
		lock_release(&conn->lock);
	}
	sock_put(&r);
	if (!ours || !tier_note(ctx, META_TRANSLATED))
		return 0;
	*(u32 *)w->old_tcp = bpf_htonl(seq);
	*(u32 *)(w->old_tcp + 4) = bpf_htonl(new_seq);
	*(u16 *)(w->old_tcp + 8) =
	    csum_update(*(u16 *)(w->head + off + 2),
			bpf_csum_diff((__be32 *)w->old_tcp, 4, (__be32 *)(w->old_tcp + 4), 4, 0));
	tier_store(ctx, tcp + 4, w->old_tcp + 4, 4);
	tier_store(ctx, off + 2, w->old_tcp + 8, 2);
	count(STAT_ICMP_TRANSLATED);
	return 0;
}
