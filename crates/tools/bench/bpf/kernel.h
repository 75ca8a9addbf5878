/* SPDX-License-Identifier: GPL-2.0 */
/* kernel.h - the few kernel types and constants these two programs use (all of them stable ABI). */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

/* include/uapi/linux/bpf.h */
enum { BPF_MAP_TYPE_ARRAY = 2 };
enum { XDP_ABORTED = 0, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };
struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
