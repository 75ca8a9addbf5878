// SPDX-License-Identifier: GPL-2.0
/* nagle.bpf.c - turns Nagle's algorithm (RFC 896) on at Redis's end of the feed's connection. Redis turns
 * it off for every client (anetEnableTcpNoDelay(), Redis src/networking.c), and writes a report in each
 * turn of its event loop in which a key has changed. With the algorithm a report waits in the kernel while
 * an earlier one is not acknowledged, and the daemon acknowledges when it has read: so one segment carries
 * all reports between two reads, and Redis need not send, wake and be interrupted for each.
 *
 * An iterator over the TCP sockets of the caller's network namespace, read once for each connection.
 *
 * Invariants:
 *  G1. The socket of no other connection is touched: both addresses and both ports are compared. */
#include "base/kernel_types.h"
#include "nagle.h"

char LICENSE[] SEC("license") = "GPL";

#define NAGLE_TCP     6 /* IPPROTO_TCP, level of the option */
#define NAGLE_NODELAY 1 /* TCP_NODELAY, include/uapi/linux/tcp.h */
#define NAGLE_INET    2 /* AF_INET */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct in6_addr {
	u8 s6_addr[16];
};
struct sock_common___ends { /* include/net/sock.h */
	u16 skc_family;
	u16 skc_num;
	__be16 skc_dport;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct bpf_iter__tcp {
	struct sock_common *sk_common;
};
#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nagle_pair);
} erb_nagle_pair SEC(".maps");

/* Whether the address is the wanted one. */
static __always_inline bool nagle_is(const u8 *wanted, u16 family, __be32 v4,
				     const struct in6_addr *v6)
{
	const u64 *want = (const u64 *)wanted;
	u64 at[2] = {0, (u64)bpf_htonl(0xffff) | (u64)v4 << 32};

	if (family != NAGLE_INET)
		bpf_core_read(at, sizeof(at), v6);
	return want[0] == at[0] && want[1] == at[1];
}

SEC("iter/tcp")
int erb_nagle(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct sock_common___ends *ends;
	u32 zero = 0;
	int off = 0;
	struct nagle_pair *pair = bpf_map_lookup_elem(&erb_nagle_pair, &zero);
	struct tcp_sock *tp;

	/* The compiler must not read it again: to the verifier that would be one more that may be NULL. */
	barrier_var(sk);
	ends = (void *)sk;
	if (!ends || !pair || ends->skc_num != pair->local_port ||
	    ends->skc_dport != pair->peer_port_be)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!nagle_is(pair->local, ends->skc_family, ends->skc_rcv_saddr,
		      &ends->skc_v6_rcv_saddr) ||
	    !nagle_is(pair->peer, ends->skc_family, ends->skc_daddr, &ends->skc_v6_daddr))
		return 0;
	if (tp && !bpf_setsockopt(tp, NAGLE_TCP, NAGLE_NODELAY, &off, sizeof(off)))
		pair->done++;
	return 0;
}
