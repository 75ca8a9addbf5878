/* SPDX-License-Identifier: GPL-2.0 */
/* packet.h - reading and writing the one packet shape of the bench: Ethernet, IPv4 without options,
 * TCP with timestamps only. Unaligned words are used on purpose: byte-wise copies cost more than
 * all the rest of these programs. */
#pragma once
#include "kernel.h"
#include "bench.h"

#define ETH_PROTO_IPV4_BE     0x0008
#define IPV4_NO_OPTIONS	      0x45
#define IPPROTO_TCP	      6
#define TCP_DATA_OFFSET_BYTES 32
#define OPTIONS_TIMESTAMP_BE                                                                       \
	0x0a080101 /* NOP NOP TIMESTAMP 10, loaded on a little-endian machine */

#define AT_ETH_PROTO   12
#define AT_IP_VERSION  14
#define AT_IP_TOTAL    16
#define AT_IP_PROTO    23
#define AT_PORTS       34
#define AT_SEQ	       38
#define AT_ACK	       42
#define AT_DATA_OFFSET 46
#define AT_CSUM	       50
#define AT_OPTIONS     54
#define AT_TSVAL       58
#define AT_TSECR       62

#define U8(p, at)  (*(__u8 *)((void *)(p) + (at)))
#define U16(p, at) (*(__u16 *)((void *)(p) + (at)))
#define U32(p, at) (*(__u32 *)((void *)(p) + (at)))
#define U64(p, at) (*(__u64 *)((void *)(p) + (at)))

struct bench_view {
	__u32 seq, ack; /* host order */
	__u32 tsval_be, tsecr_be;
	__u16 source_be, dest_be;
	__u32 payload_bytes;
};

enum view_result { VIEW_FOREIGN, VIEW_ODD, VIEW_TCP };

static __always_inline __u64 now_ms(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000;
}

static __always_inline enum view_result read_packet(void *data, void *data_end,
						    struct bench_view *view)
{
	if (data + BENCH_HEADER_BYTES > data_end)
		return VIEW_FOREIGN;
	if (U16(data, AT_ETH_PROTO) != ETH_PROTO_IPV4_BE ||
	    U8(data, AT_IP_VERSION) != IPV4_NO_OPTIONS || U8(data, AT_IP_PROTO) != IPPROTO_TCP)
		return VIEW_FOREIGN;
	view->source_be = U16(data, AT_PORTS);
	view->dest_be = U16(data, AT_PORTS + 2);
	if (U8(data, AT_DATA_OFFSET) >> 4 != TCP_DATA_OFFSET_BYTES / 4 ||
	    U32(data, AT_OPTIONS) != OPTIONS_TIMESTAMP_BE)
		return VIEW_ODD;
	view->seq = bpf_ntohl(U32(data, AT_SEQ));
	view->ack = bpf_ntohl(U32(data, AT_ACK));
	view->tsval_be = U32(data, AT_TSVAL);
	view->tsecr_be = U32(data, AT_TSECR);
	view->payload_bytes = bpf_ntohs(U16(data, AT_IP_TOTAL)) - (BENCH_HEADER_BYTES - 14);
	return VIEW_TCP;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The whole header; `extra` is the sum of payload that the template does not know. The caller has
 * checked that BENCH_HEADER_BYTES are there. */
static __always_inline void write_header(void *data, const struct bench_template *template,
					 __u32 ports_be, __u32 seq_be, __u32 ack_be, __u32 tsval_be,
					 __u32 tsecr_be, __u64 extra)
{
	for (int i = 0; i < 8; i++)
		U64(data, 8 * i) = template->words[i];
	U16(data, 64) = template->tail;
	U32(data, AT_PORTS) = ports_be;
	U32(data, AT_SEQ) = seq_be;
	U32(data, AT_ACK) = ack_be;
	U32(data, AT_TSVAL) = tsval_be;
	U32(data, AT_TSECR) = tsecr_be;
	U16(data, AT_CSUM) =
	    fold((__u64) template->sum + ports_be + seq_be + ack_be + tsval_be + tsecr_be + extra);
}
