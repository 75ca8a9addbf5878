/* SPDX-License-Identifier: GPL-2.0 */
/* sink.bpf.c - a far end that takes TCP payload without touching it, at the ingress of a veth's other end.
 *
 * A network card reads a page by DMA and is done. A veth hands the very pages to the receiver's kernel,
 * which copies them before any socket sees them: so MSG_ZEROCOPY would be measured with a copy. This
 * program drops the payload before that point, and tells user space what a receiver would acknowledge. It
 * cannot turn the buffer into the acknowledgement: who receives that would count as having copied.
 *
 * Segments come in order and none is lost on a veth. The namespaces have timestamps off, so headers have no
 * options. What has no payload passes: handshake and end of a connection are the kernels'. */
#include "packet.h"

enum { TC_ACT_OK = 0, TC_ACT_SHOT = 2 };
/* include/uapi/linux/bpf.h; only the first field is used. */
struct __sk_buff {
	__u32 len;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} port SEC(".maps"); /* 0 -> destination port whose payload is dropped; user space writes */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps"); /* 0 -> bytes of payload; this program adds, user space reads */

/* 0 -> the sender's port in the upper half, the next byte that is expected in the lower. This program writes,
 * of one connection at a time; one word, so that a reader sees both of one segment. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} expected SEC(".maps");

/* 0 -> the next byte of the peer, as the sender has acknowledged it. This program writes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} acknowledged SEC(".maps");

#define SINK_HEADER_BYTES 54
#define TCP_BYTES	  20

SEC("tc")
int sink(struct __sk_buff *skb)
{
	/* Two bytes before Ethernet's 14 align the words behind them, as the stack needs it. */
	__u8 room[2 + SINK_HEADER_BYTES] __attribute__((aligned(8)));
	__u8 *header = room + 2;
	__u32 zero = 0;
	__u64 *wanted = bpf_map_lookup_elem(&port, &zero);
	__u64 *bytes = bpf_map_lookup_elem(&dropped, &zero);
	__u64 *next = bpf_map_lookup_elem(&expected, &zero);
	__u64 *ack = bpf_map_lookup_elem(&acknowledged, &zero);

	if (!wanted || !bytes || !next || !ack || skb->len <= SINK_HEADER_BYTES ||
	    bpf_skb_load_bytes(skb, 0, header, SINK_HEADER_BYTES))
		return TC_ACT_OK;
	if (U16(header, AT_ETH_PROTO) != ETH_PROTO_IPV4_BE ||
	    header[AT_IP_VERSION] != IPV4_NO_OPTIONS || header[AT_IP_PROTO] != IPPROTO_TCP ||
	    header[AT_DATA_OFFSET] >> 4 != TCP_BYTES / 4 ||
	    U16(header, AT_PORTS + 2) != bpf_htons((__u16)*wanted))
		return TC_ACT_OK;
	__u32 payload = skb->len - SINK_HEADER_BYTES;
	__u32 end = bpf_ntohl(U32(header, AT_SEQ)) + payload;
	*ack = bpf_ntohl(U32(header, AT_ACK));
	*(volatile __u64 *)next = (__u64)bpf_ntohs(U16(header, AT_PORTS)) << 32 | end;
	__sync_fetch_and_add(bytes, payload);
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "GPL";
