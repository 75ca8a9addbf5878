/* SPDX-License-Identifier: GPL-2.0 */
/* packet.h - one packet's headers, parsed from a copy.
 *
 * The head of the packet is copied once into per-CPU memory and parsed there: the same code serves
 * XDP, TC (whose payload is not linear) and the simulator, and no pointer into the packet lives
 * across a helper that moves it. Copying 160 bytes costs about 9 ns. */
#pragma once
#include "base/seam.h"

#define HEAD_BYTES	   160 /* Ethernet 14 + VLAN 4 + IPv6 40 + extension headers + TCP 60 */
#define ETH_BYTES	   14
#define L2_BYTES_MAX	   18
#define ETH_ADDRESSES	   12
#define L3_OFF_MAX	   31 /* of any link layer: what lies behind it fits the head */
#define HEADERS_MIN	   40 /* IPv4 and TCP, without a link layer's */
#define FRAGMENT_BYTES_MIN 28 /* IPv4 and the least that a first fragment has, without it */
#define TCP_BYTES_MAX	   60
#define TCP_BYTES_STAMPED  32	      /* a header with timestamps and no other option */
#define TCP_STAMPED	   0x0101080a /* how Linux begins them: two NOPs, kind, length */
#define ETH_P_IP	   0x0800
#define ETH_P_IPV6	   0x86dd
#define ETH_P_8021Q	   0x8100
#define ETH_P_8021AD	   0x88a8
#define IPPROTO_ICMP	   1
#define IPPROTO_TCP	   6
#define IPPROTO_FRAGMENT   44
#define IPPROTO_ICMPV6	   58
#define IPV6_EXT_MAX	   4

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20
#define TCP_ECE 0x40
#define TCP_CWR 0x80
#define TCP_AE	0x100 /* AccECN */

enum parse_result { PARSE_TCP = 0, PARSE_ICMP, PARSE_OTHER };

/* Bits of pkt.odd: what makes a packet unfit for a fast answer. Each has its reason code. */
#define ODD_F_IP       0x01
#define ODD_F_FRAGMENT 0x02
#define ODD_F_FLAGS    0x04
#define ODD_F_ECN      0x08
#define ODD_F_OPTIONS  0x10
#define ODD_F_URGENT   0x20
#define ODD_F_CHAIN    0x40 /* IPv6 extension headers: see hidden.h */
#define ODD_F_MORE     0x80 /* a first fragment: the rest of the packet is in others */
/* Bytes of these are not what the server's program reads: no stream can be followed over them. */
#define ODD_F_UNREAD   (ODD_F_FRAGMENT | ODD_F_URGENT)

struct pkt {
	struct conn_key key;
	u32 seq;
	u32 ack;
	u32 tsval;
	u32 tsecr;
	u32 payload_len; /* by the IP header: the frame may be padded */
	u32 sack_first;	 /* client space: start of the first SACK block */
	u16 window;
	u16 flags; /* TCP_* */
	u16 l3_off;
	u16 l4_off;
	u16 payload_off;
	u16 sack_off; /* of the first SACK block within the TCP header, 0 = none */
	u8 sack_blocks;
	u8 ts_off; /* of TSval within the TCP header, 0 = none */
	u8 family;
	u8 odd; /* ODD_F_* */
	u8 proto;
	u8 tcp_bytes; /* TCP header with options */
	u8 option_off;
};

INLINE u16 load_be16(const u8 *p)
{
	/* Loaded at once the verifier would take a tenth more. */
	return (u16)p[0] << 8 | p[1];
}

INLINE u32 load_be32(const u8 *p)
{
	return bpf_ntohl(*(const u32 *)p);
}

INLINE void store_be16(u8 *p, u16 v)
{
	p[0] = v >> 8;
	p[1] = (u8)v;
}

INLINE void store_be32(u8 *p, u32 v)
{
	*(u32 *)p = bpf_htonl(v);
}

INLINE bool seq_before(u32 a, u32 b)
{
	return (s32)(a - b) < 0;
}

INLINE bool seq_after(u32 a, u32 b)
{
	return (s32)(a - b) > 0;
}

INLINE u32 seq_max(u32 a, u32 b)
{
	return seq_before(a, b) ? b : a;
}

INLINE void address_v4(u8 to[16], const u8 *from)
{
	*(u64 *)to = 0;
	*(u32 *)(to + 8) = bpf_htonl(0xffff);
	*(u32 *)(to + 12) = *(const u32 *)from;
}

INLINE void address_v6(u8 to[16], const u8 *from)
{
	*(u32 *)to = *(const u32 *)from;
	*(u32 *)(to + 4) = *(const u32 *)(from + 4);
	*(u32 *)(to + 8) = *(const u32 *)(from + 8);
	*(u32 *)(to + 12) = *(const u32 *)(from + 12);
}

/* IPv4 header at l3_off: fills addresses (client = source unless reply), l4_off, proto, odd.
 * frame: its length, which a merged one does not say itself when it is longer than 64 KB. Returns the length of what follows the header, or 0 if the header is unusable. */
INLINE u32 parse_ipv4(struct pkt *p, const u8 *head, u32 frame, bool merged, bool reply)
{
	const u8 *ip = head + p->l3_off;
	u32 header_len = (ip[0] & 0x0f) * 4, total_len = load_be16(ip + 2);

	p->family = 4;
	if (!total_len && merged)
		total_len = frame - p->l3_off;
	if (ip[0] >> 4 != 4 || header_len < 20 || total_len < header_len)
		return 0;
	if (header_len != 20)
		p->odd |= ODD_F_IP;
	if (load_be16(ip + 6) & 0x3fff) { /* MF or offset */
		p->odd |= ODD_F_FRAGMENT | ODD_F_MORE;
		if (load_be16(ip + 6) & 0x1fff)
			return 0; /* no ports in here */
	}
	if ((ip[1] & 3) == 3)
		p->odd |= ODD_F_ECN;
	p->proto = ip[9];
	p->l4_off = p->l3_off + header_len;
	address_v4(reply ? p->key.server_addr : p->key.client_addr, ip + 12);
	address_v4(reply ? p->key.client_addr : p->key.server_addr, ip + 16);
	return total_len - header_len;
}

INLINE bool ipv6_extension(u8 next)
{
	return next == 0 || next == 43 || next == IPPROTO_FRAGMENT || next == 60;
}

/* IPv6 header at l3_off, walking at most IPV6_EXT_MAX extension headers. As parse_ipv4; of a length
 * of 0 before hop-by-hop options the kernel takes the whole frame, too (ip6_rcv_core()). */
INLINE u32 parse_ipv6(struct pkt *p, const u8 *head, u32 frame, bool merged, bool reply)
{
	const u8 *ip = head + p->l3_off;
	u32 len = load_be16(ip + 4), off = p->l3_off + 40;
	u8 next = ip[6];

	p->family = 6;
	if (!len && (merged || !next))
		len = frame - p->l3_off - 40;
	if (ip[0] >> 4 != 6)
		return 0;
	if (((ip[0] << 4 | ip[1] >> 4) & 3) == 3)
		p->odd |= ODD_F_ECN;
	address_v6(reply ? p->key.server_addr : p->key.client_addr, ip + 8);
	address_v6(reply ? p->key.client_addr : p->key.server_addr, ip + 24);
	for (int i = 0; i < IPV6_EXT_MAX; i++) {
		u32 ext_len;

		if (!ipv6_extension(next))
			break;
		p->odd |= ODD_F_IP | ODD_F_CHAIN;
		if (off > HEAD_BYTES - 8)
			return 0;
		ext_len = next == IPPROTO_FRAGMENT ? 8 : (head[off + 1] + 1) * 8;
		if (next == IPPROTO_FRAGMENT) {
			p->odd |= ODD_F_FRAGMENT;
			if (load_be16(head + off + 2) & 0xfff8)
				return 0;
			if (head[off + 3] & 1)
				p->odd |= ODD_F_MORE;
		}
		next = head[off];
		if (ext_len > len)
			return 0;
		off += ext_len;
		len -= ext_len;
	}
	p->proto = next;
	p->l4_off = off;
	return len;
}

/* One step over the TCP options: p->option_off moves on. Returns false at their end. */
INLINE bool parse_option(struct pkt *p, const u8 *tcp)
{
	u32 len, off = p->option_off;
	u8 kind;

	opaque(off);
	if (off >= p->tcp_bytes || off > TCP_BYTES_MAX - 1)
		return false;
	kind = tcp[off];
	if (kind == 0)
		return false;
	if (kind == 1) {
		p->option_off = off + 1;
		return true;
	}
	len = off + 1 < p->tcp_bytes ? tcp[off + 1] : 0;
	if (len < 2 || off + len > p->tcp_bytes) {
		p->odd |= ODD_F_OPTIONS;
		return false;
	}
	if (kind == 8 && len == 10) {
		p->ts_off = off + 2;
		p->tsval = load_be32(tcp + off + 2);
		p->tsecr = load_be32(tcp + off + 6);
	} else if (kind == 5 && len >= 10 && len <= 34 && (len - 2) % 8 == 0) {
		p->sack_off = off + 2;
		p->sack_blocks = (len - 2) / 8;
		p->sack_first = load_be32(tcp + off + 2);
	} else {
		p->odd |= ODD_F_OPTIONS;
	}
	p->option_off = off + len;
	return true;
}

/* Whether this is the header of nearly all packets: ACK, perhaps with PSH, and timestamps alone. */
INLINE bool tcp_is_usual(const u8 *tcp)
{
	return tcp[12] == (TCP_BYTES_STAMPED / 4) << 4 && (tcp[13] & ~TCP_PSH) == TCP_ACK &&
	       *(const u32 *)(tcp + 20) == bpf_htonl(TCP_STAMPED);
}

/* TCP header at l4_off; l4_len is what the IP header says. Returns false if it does not fit. */
INLINE bool parse_tcp(struct pkt *p, const u8 *head, u32 l4_len, bool reply)
{
	const u8 *tcp;
	u32 l4_off = p->l4_off, header_len;
	int i;

	opaque(l4_off);
	if (l4_off > HEAD_BYTES - TCP_BYTES_MAX || l4_len < 20)
		return false;
	tcp = head + l4_off;
	header_len = (tcp[12] >> 4) * 4;
	if (header_len < 20 || header_len > l4_len)
		return false;
	if (header_len == l4_len && (p->odd & ODD_F_MORE))
		return false; /* all its bytes are where nobody looks: hidden.h */
	p->key.client_port_be = *(const u16 *)(tcp + (reply ? 2 : 0));
	p->key.server_port_be = *(const u16 *)(tcp + (reply ? 0 : 2));
	p->seq = load_be32(tcp + 4);
	p->ack = load_be32(tcp + 8);
	p->flags = tcp[13] | (tcp[12] & 1) << 8;
	p->window = load_be16(tcp + 14);
	p->tcp_bytes = header_len;
	p->payload_off = l4_off + header_len;
	p->payload_len = l4_len - header_len;
	if (p->flags & TCP_URG)
		p->odd |= ODD_F_URGENT;
	if (p->flags & (TCP_ECE | TCP_CWR | TCP_AE))
		p->odd |= ODD_F_ECN;
	if ((p->flags & ~(TCP_PSH | TCP_ECE | TCP_CWR | TCP_AE | TCP_URG)) != TCP_ACK)
		p->odd |= ODD_F_FLAGS;
	if (header_len == 20)
		return true;
	/* What every current stack sends: NOP NOP TS. */
	if (header_len == TCP_BYTES_STAMPED && *(const u32 *)(tcp + 20) == bpf_htonl(TCP_STAMPED)) {
		p->ts_off = 24;
		p->tsval = load_be32(tcp + 24);
		p->tsecr = load_be32(tcp + 28);
		return true;
	}
	p->option_off = 20;
	bpf_for(i, 0, TCP_BYTES_MAX - 20)
	{
		if (!parse_option(p, tcp))
			break;
	}
	return true;
}

/* Where the IP header is and which, on a device without Ethernet's. Such a packet is translated,
 * never answered: who sends there writes another link layer. Returns ETH_P_*, 0 = none. */
INLINE u32 parse_bare(struct pkt *p, const u8 *head, u32 l3)
{
	u8 version;

	opaque(l3);
	if (l3 > L3_OFF_MAX)
		return 0;
	p->l3_off = l3;
	p->odd = ODD_F_IP;
	version = head[l3] >> 4;
	return version == 4 ? ETH_P_IP : version == 6 ? ETH_P_IPV6 : 0;
}

/* head holds the first bytes of a frame. l3: as tier_l3() has it. frame: as for parse_ipv4. reply:
 * the server is the source. */
INLINE enum parse_result parse_packet(struct pkt *p, const u8 *head, u32 l3, u32 frame, bool merged,
				      bool reply)
{
	u32 proto = load_be16(head + 12), l4_len;

	__builtin_memset(p, 0, sizeof(*p));
	p->l3_off = ETH_BYTES;
	if (l3 != ETH_BYTES && l3 != L2_BYTES_MAX) {
		proto = parse_bare(p, head, l3);
	} else if (proto == ETH_P_8021Q || proto == ETH_P_8021AD) {
		proto = load_be16(head + 16);
		p->l3_off = L2_BYTES_MAX;
	}
	if (proto == ETH_P_IP)
		l4_len = parse_ipv4(p, head, frame, merged, reply);
	else if (proto == ETH_P_IPV6)
		l4_len = parse_ipv6(p, head, frame, merged, reply);
	else
		return PARSE_OTHER;
	if (!l4_len)
		return PARSE_OTHER;
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6)
		return PARSE_ICMP;
	if (p->proto != IPPROTO_TCP)
		return PARSE_OTHER;
	return parse_tcp(p, head, l4_len, reply) ? PARSE_TCP : PARSE_OTHER;
}
