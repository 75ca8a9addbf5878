/* SPDX-License-Identifier: GPL-2.0 */
/* kernel_types.h - the kernel's types that the data path uses and no more: fixed-width integers,
 * the programs' contexts (stable ABI) and, relocated at load time by CO-RE, the few socket fields
 * that are read. Offsets and missing fields are the loader's business, not ours. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true  1
#define false 0

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_MMAPABLE = 1 << 10 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };
#define BPF_F_CURRENT_NETNS (-1L)
#define BPF_F_INGRESS	    1 /* of bpf_clone_redirect() */
enum { XDP_ABORTED = 0, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };
enum { TCX_NEXT = -1, TCX_PASS = 0, TCX_DROP = 2 };

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

struct bpf_sock;
struct bpf_flow_keys;
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};

struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4;
	__u32 src_ip6[4];
	__u32 src_port;
	__be16 dst_port;
	__u32 dst_ip4;
	__u32 dst_ip6[4];
	__u32 state;
	__s32 rx_queue_mapping;
};

struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr;
			__be32 daddr;
			__be16 sport;
			__be16 dport;
		} ipv4;
		struct {
			__be32 saddr[4];
			__be32 daddr[4];
			__be16 sport;
			__be16 dport;
		} ipv6;
	};
};

struct bpf_spin_lock {
	__u32 val;
};
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));

/* include/net/tcp_states.h */
enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT,
	TCP_SYN_RECV,
	TCP_FIN_WAIT1,
	TCP_FIN_WAIT2,
	TCP_TIME_WAIT,
	TCP_CLOSE,
	TCP_CLOSE_WAIT,
	TCP_LAST_ACK,
	TCP_LISTEN,
	TCP_CLOSING,
	TCP_NEW_SYN_RECV
};

/* include/linux/skbuff.h */
enum { CHECKSUM_NONE = 0, CHECKSUM_UNNECESSARY, CHECKSUM_COMPLETE, CHECKSUM_PARTIAL };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common {
	volatile unsigned char skc_state;
	struct {
		s64 counter;
	} skc_cookie;
};
struct sock {
	struct sock_common __sk_common;
};
struct inet_sock {
	struct sock sk;
	unsigned long inet_flags;
};
#define INET_FLAGS_TRANSPARENT                                                                     \
	15 /* include/net/inet_sock.h, an enumerator without a name of its own */
struct fastopen_queue {
	int max_qlen;
};
struct request_sock_queue {
	struct fastopen_queue fastopenq;
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
};
struct tcp_options_received {
	int ts_recent_stamp;
	u32 ts_recent;
	u16 tstamp_ok : 1, snd_wscale : 4, rcv_wscale : 4;
};
struct rb_node;
struct rb_root {
	struct rb_node *rb_node;
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 rcv_nxt;
	u32 copied_seq;
	u32 rcv_wup;
	u32 rcv_wnd;
	u32 snd_una;
	u32 snd_nxt;
	u32 write_seq;
	u32 snd_wnd;
	u32 max_window;
	u32 tsoffset;
	u32 mss_cache;
	u32 data_segs_in;
	u64 bytes_acked;
	u16 urg_data; /* 0: no urgent byte is awaited or unread */
	struct rb_root out_of_order_queue;
	struct tcp_options_received rx_opt;
};
struct tcp_sock___usec { /* Linux 6.7 and newer */
	u8 tcp_usec_ts : 1;
};
struct inet_timewait_sock {
	struct sock_common __tw_common;
};
struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
};
struct request_sock {
	struct sock_common __req_common;
	u32 ts_recent;
};
struct inet_request_sock {
	struct request_sock req;
	u16 no_srccheck : 1; /* its listener is transparent (tcp_conn_request()) */
};
struct tcp_request_sock {
	struct inet_request_sock req;
	u32 rcv_isn;
	u32 snt_isn;
};
struct net_device {
	int ifindex;
};
struct dst_entry {
	struct net_device *dev;
};
struct sk_buff {
	unsigned long _skb_refdst; /* address, and in bit 0 whether it is held */
	__u16 network_header;	   /* offset from head */
	unsigned char *head;
	unsigned char *data;
	__u8 ip_summed : 2;
};
#pragma clang attribute pop

#define ERB_LOCK struct bpf_spin_lock
#include "bpf_helpers.h"
#include "bpf_endian.h"
#include "bpf_core_read.h"

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;
extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __ksym;
