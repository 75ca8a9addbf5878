/* SPDX-License-Identifier: GPL-2.0 */
/* segment.h - builds the headers of a segment that the fast path sends, from those of the packet
 * that it answers. */
#pragma once
#include "base/seam.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/work.h"

/* Writes Ethernet and IP to out, back to where the packet came from, by the way in w->way.
 * tcp_len: TCP header + payload. */
INLINE void segment_ip(struct work *w, u8 *out, u32 l3, u32 tcp_len)
{
	u8 *ip = out + l3;

	for (int i = 0; i < 3; i++)
		*(u32 *)(out + i * 4) = w->way[i];
	*(u16 *)(out + 12) = *(u16 *)(w->head + 12);
	if (l3 == 18)
		*(u32 *)(out + 14) = *(u32 *)(w->head + 14);
	if (w->p.family == 4) {
		*(u32 *)ip = bpf_htonl(0x45000000U | (w->head[l3 + 1] & 0xfcU) << 16 | /* Not-ECT */
				       (20 + tcp_len));
		*(u32 *)(ip + 4) = bpf_htonl(0x4000); /* id 0, DF (RFC 6864) */
		*(u32 *)(ip + 8) = bpf_htonl(64U << 24 | IPPROTO_TCP << 16);
		*(u32 *)(ip + 12) = *(u32 *)(w->p.key.server_addr + 12);
		*(u32 *)(ip + 16) = *(u32 *)(w->p.key.client_addr + 12);
		*(u16 *)(ip + 10) = ~csum_fold(csum_words(ip, 5));
		return;
	}
	*(u32 *)ip = bpf_htonl(6U << 28);
	store_be16(ip + 4, tcp_len);
	ip[6] = IPPROTO_TCP;
	ip[7] = 64;
	for (int i = 0; i < 4; i++) {
		*(u32 *)(ip + 8 + i * 4) = *(u32 *)(w->p.key.server_addr + i * 4);
		*(u32 *)(ip + 24 + i * 4) = *(u32 *)(w->p.key.client_addr + i * 4);
	}
}

/* Writes TCP's header, without its sum. Whole words: narrower stores would stall the loads that sum and
 * copy them. */
INLINE void segment_tcp(const struct work *w, u8 *tcp, bool with_ts, u32 len)
{
	u32 tcp_bytes = with_ts ? 32 : 20;

	*(u32 *)tcp = w->p.key.server_port_be | (u32)w->p.key.client_port_be << 16;
	store_be32(tcp + 4, w->out_seq);
	store_be32(tcp + 8, w->out_ack);
	store_be32(tcp + 12, tcp_bytes << 26 | (len ? TCP_ACK | TCP_PSH : TCP_ACK) << 16 |
				 (w->out_window & 0xffff));
	*(u32 *)(tcp + 16) = 0;
	if (with_ts) {
		*(u32 *)(tcp + 20) = bpf_htonl(TCP_STAMPED);
		store_be32(tcp + 24, w->out_tsval);
		store_be32(tcp + 28, w->out_tsecr);
	}
}

/* Fills w->out, right before w->reply, from the out_* fields; partial: leave the bare pseudo-header
 * sum in the checksum field. Returns the length of all headers. */
INLINE u32 segment_make(struct work *w, bool with_ts, bool partial)
{
	u32 tcp_bytes = with_ts ? 32 : 20, l3, header_len, len;
	u8 *out, *tcp;
	u64 pseudo;

	len = w->reply_len;
	l3 = w->p.l3_off == 18 ? 18 : 14;
	header_len = l3 + (w->p.family == 4 ? 20 : 40) + tcp_bytes;
	out = w->out + (sizeof(w->out) - header_len);
	segment_ip(w, out, l3, tcp_bytes + len);
	tcp = w->out + (sizeof(w->out) - tcp_bytes);
	segment_tcp(w, tcp, with_ts, len);
	pseudo = csum_pseudo(&w->p, tcp_bytes + len);
	if (partial) {
		*(u16 *)(tcp + 16) = csum_fold(pseudo);
		return header_len;
	}
	if (len < sizeof(w->reply) - 16)
		csum_short_pad(w->reply + len);
	pseudo += csum_words(tcp, 5);
	if (with_ts)
		pseudo += csum_words(tcp + 20, 3);
	if (len <= CSUM_SHORT)
		pseudo += csum_short(w->reply, len);
	else
		pseudo += csum_bytes(w->reply, len, 0);
	*(u16 *)(tcp + 16) = ~csum_fold(pseudo);
	return header_len;
}

/* The same as a global function: verified by itself. */
__noinline int segment_build(u32 with_ts, u32 partial)
{
	struct work *w = work_get();

	return w ? segment_make(w, with_ts, partial) : 0;
}
