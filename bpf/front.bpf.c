// SPDX-License-Identifier: GPL-2.0
/* front.bpf.c - the XDP program of a device with more than one handler: finds whose a packet is, and
 * hands over by a tail call. Each handler's program has its own copy of the splice: the verifier's limit
 * counts the sum of a program and all that it calls, so two handlers in one would not pass.
 *
 * With one handler its program is attached itself. At TC no front is needed: the kernel calls one tcx
 * program after the other, and each leaves alone what is not for its port.
 *
 * Invariants:
 *  D1. It changes nothing. What it cannot assign (fragments, other headers than IP and TCP, ICMP, a slot
 *      without program) passes to TC, where every handler looks at it. */
#include "base/kernel_types.h"

char LICENSE[] SEC("license") = "GPL";

#define HANDLERS_MAX 8	  /* members of erb_handlers */
#define PORTS_MAX    64	  /* ports that have a handler */
#define FRONT_TCP    6	  /* IANA protocol number */
#define FRONT_VLAN   0x81 /* first byte of 802.1Q's type, as on the wire */

/* slot -> a handler's XDP program; user space writes. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, HANDLERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} erb_handlers SEC(".maps");

/* port / 64, host order -> which of the 64 have a handler: most packets are nobody's, and leave after
 * one bit of 8 KiB. User space writes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536 / 64);
	__type(key, __u32);
	__type(value, __u64);
} erb_port_bits SEC(".maps");

/* port, network order -> slot. User space writes; full: the port cannot be added. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u16);
	__type(value, __u32);
} erb_port_slots SEC(".maps");

/* Destination port of a TCP segment whose headers lie plainly, network order; 0: D1. */
static __always_inline __u16 front_port_be(const struct xdp_md *ctx)
{
	const __u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 tcp;

	if (at + 18 > end)
		return 0;
	if (at[12] == FRONT_VLAN && !at[13])
		at += 4;
	if (at + 14 + 20 > end)
		return 0;
	if (at[12] == 0x08 && !at[13]) {
		tcp = (at[14] & 0x0f) * 4;
		if (at[14] >> 4 != 4 || tcp < 20 || at[14 + 9] != FRONT_TCP ||
		    (at[14 + 6] & 0x3f) || at[14 + 7])
			return 0;
	} else if (at[12] == 0x86 && at[13] == 0xdd) {
		tcp = 40;
		if (at[14 + 6] != FRONT_TCP)
			return 0;
	} else {
		return 0;
	}
	at += 14 + tcp;
	return at + 4 <= end ? *(__u16 *)(at + 2) : 0;
}

SEC("xdp")
int erb_front(struct xdp_md *ctx)
{
	__u16 port_be = front_port_be(ctx), port = bpf_ntohs(port_be);
	__u32 word = port / 64, *slot;
	__u64 *bits;

	bits = bpf_map_lookup_elem(&erb_port_bits, &word);
	if (!port_be || !bits || !(*bits >> (port % 64) & 1))
		return XDP_PASS;
	slot = bpf_map_lookup_elem(&erb_port_slots, &port_be);
	if (slot)
		bpf_tail_call(ctx, &erb_handlers, *slot);
	return XDP_PASS;
}
