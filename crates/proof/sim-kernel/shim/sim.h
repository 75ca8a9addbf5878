/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* sim.h - what the data path's C and the simulator (crates/proof/sim-kernel) share: the table of helpers,
 * the list of maps, the programs, the mirror of a socket. Included behind the types of
 * kernel_types.h.
 *
 * The three objects are one library: maps are weak, so that those of one name are one map, as their
 * pins make them in the kernel. A map private to an object must have a name of its own (build.rs).
 * A map's first word holds its number, which the simulator writes when the library is loaded. */
#pragma once

/* A map as one place of use knows it; many name the same map. */
struct sim_map_def {
	void *map;
	const char *name;   /* as written at the place of use: "&erb_conns" */
	const char *object; /* the object that uses it */
	__u32 type;
	__u32 key_bytes;
	__u32 value_bytes;
	__u32 max_entries;
};

struct sim_xdp {
	struct xdp_md ctx;
	void *packet;
};

struct sim_skb {
	struct __sk_buff ctx;
	struct sk_buff skb;
	void *packet;
	__u32 route; /* device that its route names, 0: it has none */
	struct net_device route_dev;
	struct dst_entry route_dst;
};

/* A socket in the simulator's terms, from which its mirrors are filled. */
struct sim_sock {
	__u64 cookie;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u32 rcv_nxt;
	__u32 data_segs_in;
	__u32 copied_seq;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 snd_wnd;
	__u32 max_window;
	__u32 tsoffset;
	__u32 mss_cache;
	__u32 ts_recent;
	__u32 ts_recent_s; /* when it was learnt, seconds */
	__u32 fastopen;	   /* TCP_LISTEN: length of its queue for Fast Open */
	__u32 rcv_isn;
	__u32 snt_isn;
	__u16 urg_data; /* an urgent byte is awaited, or unread */
	__u8 state;
	__u8 tstamp_ok;
	__u8 snd_wscale;
	__u8 rcv_wscale;
	__u8 usec_ts;
	__u8 family;
	__u8 out_of_order; /* segments wait for what is before them */
	__u8 transparent;  /* of a listener with IP_TRANSPARENT */
};

/* One socket as helpers show it: the same socket as each of its types. */
struct sim_mirror {
	struct bpf_sock sk;
	struct {
		struct tcp_sock tp;
		struct tcp_sock___usec usec; /* another view of tcp_sock: see SIM_AT */
	} full;
	struct tcp_timewait_sock tw;
	struct tcp_request_sock req;
};

struct sim_ops {
	void *(*map_lookup)(__u64 map, const void *key);
	long (*map_update)(__u64 map, const void *key, const void *value, __u64 flags);
	long (*map_delete)(__u64 map, const void *key);
	long (*map_each)(__u64 map, void *map_at, void *callback, void *callback_ctx, __u64 flags);
	void *(*ring_reserve)(__u64 map, __u64 bytes, __u64 flags);
	void (*ring_submit)(void *record, __u64 flags);
	void (*ring_discard)(void *record, __u64 flags);
	__u64 (*ktime_ns)(void);
	__u64 (*ktime_coarse_ns)(void);
	__u32 (*random)(void);
	__u32 (*cpu)(void);
	void (*lock)(void *lock);
	void (*unlock)(void *lock);
	void (*point)(void);
	__s64 (*csum_diff)(const void *from, __u32 from_bytes, const void *to, __u32 to_bytes,
			   __u32 seed);
	long (*xdp_load)(void *ctx, __u32 off, void *to, __u32 len);
	long (*xdp_store)(void *ctx, __u32 off, const void *from, __u32 len);
	long (*xdp_head)(void *ctx, int delta);
	long (*xdp_tail)(void *ctx, int delta);
	long (*xdp_meta)(void *ctx, int delta);
	long (*skb_load)(const void *ctx, __u32 off, void *to, __u32 len);
	long (*skb_store)(void *ctx, __u32 off, const void *from, __u32 len, __u64 flags);
	long (*skb_change_tail)(void *ctx, __u32 len, __u64 flags);
	long (*skb_l4_csum)(void *ctx, __u32 off, __u64 from, __u64 to, __u64 flags);
	long (*skb_clone_redirect)(void *ctx, __u32 ifindex, __u64 flags);
	__u64 (*skb_cookie)(void *ctx);
	void *(*sk_lookup)(void *ctx, const void *tuple, __u32 bytes, __u64 netns, __u64 flags);
	long (*sk_release)(void *sk);
	long (*sk_check_cookie)(void *sk, const void *ip, __u32 ip_bytes, const void *tcp,
				__u32 tcp_bytes);
	void *(*sk_to_tcp)(void *sk);
	void *(*sk_to_timewait)(void *sk);
	void *(*sk_to_request)(void *sk);
	void *(*sk_cast)(const void *at);
	__u32 (*keeps)(
	    void); /* the keep programs are at work; no point at which another CPU may run */
	void *(*io)(void); /* memory of the module, null: it is not there */
};
extern struct sim_ops sim_ops;

/* The program of a stage (splice/stages.h). */
int sim_xdp_stage(__u32 stage, struct xdp_md *ctx);
int sim_tc_stage(__u32 stage, struct __sk_buff *ctx);

struct sim_library {
	struct sim_ops *ops;
	const struct sim_map_def *maps;
	const struct sim_map_def *maps_end;
	void (*mirror_fill)(void *mirror, const struct sim_sock *sock);
	void (*guard)(const void *from, __u64 bytes);	/* no access from now on (sanitizer) */
	void (*unguard)(const void *from, __u64 bytes); /* access again */
	__u32 sizes[8]; /* of sim_xdp, sim_skb, sim_sock, sim_mirror, of the mirror's parts' offsets
			 */
	int (*erb_xdp)(struct xdp_md *ctx);
	int (*erb_tc_ingress)(struct __sk_buff *ctx);
	int (*erb_tc_egress)(struct __sk_buff *ctx);
	int (*erb_tick)(struct __sk_buff *ctx);
	int (*erb_sweep)(struct __sk_buff *ctx);
	int (*erb_release)(struct __sk_buff *ctx);
	int (*erb_admit)(struct __sk_buff *ctx);
	int (*erb_inject)(struct __sk_buff *ctx);
	int (*erb_fill_begin)(void *ctx);
	int (*erb_fill_insert)(void *ctx);
	int (*erb_invalidate)(void *ctx);
	int (*erb_clear)(void *ctx);
	int (*erb_settle)(void *ctx);
	int (*erb_touched)(void *ctx);
	__u64 io_bytes;
	int (*io_file)(void *io, unsigned int cpus, const void *header);
	unsigned int (*io_write)(void *io, void *to, unsigned int room);
	void (*io_sync)(void *io);
	void (*io_shut)(void *io);
};
