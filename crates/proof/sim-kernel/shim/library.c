// SPDX-License-Identifier: Apache-2.0 OR MIT
/* library.c - the one symbol by which the simulator finds the programs and maps of a build. */
#define SIM_OBJECT  "library"
#define HANDLER_ABI "redis/abi.h"
#include "base/seam.h"
#include "io.h"
#include "redis/maps.h"
#include "splice/stages.h"

#include <errno.h>

#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif

struct sim_ops sim_ops;

extern const struct sim_map_def __start_sim_maps[], __stop_sim_maps[];

int erb_xdp(struct xdp_md *ctx);
int erb_xdp_absorb(struct xdp_md *ctx);
int erb_xdp_keep(struct xdp_md *ctx);
int erb_tc_ingress(struct __sk_buff *ctx);
int erb_tc_absorb(struct __sk_buff *ctx);
int erb_tc_keep(struct __sk_buff *ctx);
int erb_tc_egress(struct __sk_buff *ctx);
int erb_tick(struct __sk_buff *ctx);
int erb_sweep(struct __sk_buff *ctx);
int erb_release(struct __sk_buff *ctx);
int erb_admit(struct __sk_buff *ctx);
int erb_inject(struct __sk_buff *ctx);
int erb_fill_begin(void *ctx);
int erb_fill_insert(void *ctx);
int erb_invalidate(void *ctx);
int erb_clear(void *ctx);
int erb_settle(void *ctx);
int erb_touched(void *ctx);
int erb_io_reserve(u32 bytes);
int erb_io_push(const void *record, u32 record__sz);
void erb_prefetch(const void *memory, u32 memory__sz);

_Static_assert(__builtin_offsetof(struct sim_mirror, full.usec) ==
		   __builtin_offsetof(struct sim_mirror, full.tp) + sizeof(struct tcp_sock),
	       "SIM_AT finds it there");

int sim_xdp_stage(__u32 stage, struct xdp_md *ctx)
{
	if (stage != STAGE_ABSORB)
		return erb_xdp(ctx);
	return sim_ops.keeps() ? erb_xdp_keep(ctx) : erb_xdp_absorb(ctx);
}

int sim_tc_stage(__u32 stage, struct __sk_buff *ctx)
{
	if (stage != STAGE_ABSORB)
		return erb_tc_ingress(ctx);
	return sim_ops.keeps() ? erb_tc_keep(ctx) : erb_tc_absorb(ctx);
}

/* The module's functions. */
int erb_io_reserve(u32 bytes)
{
	u32 cpu = sim_ops.cpu();
	void *io = sim_ops.io();

	return io ? sim_io_reserve(io, cpu, bytes) : -ENODEV;
}

int erb_io_push(const void *record, u32 record__sz)
{
	u32 cpu = sim_ops.cpu();
	void *io = sim_ops.io();

	return io ? sim_io_push(io, cpu, record, record__sz) : -ENODEV;
}

/* Only the read of its end tells: AddressSanitizer sees that all of it is there. */
void erb_prefetch(const void *memory, u32 memory__sz)
{
	(void)((const volatile u8 *)memory)[memory__sz - 1];
}

/* Maps that programs of a handler need not name. The loader makes them all the same. */
__attribute__((used)) static void name_maps(void)
{
	{
		SIM_TYPED(&erb_commands);
	}
	{
		SIM_TYPED(&erb_log);
	}
	{
		SIM_TYPED(&erb_interests);
	}
	{
		SIM_TYPED(&erb_admit_io);
	}
	{
		SIM_DEF(&erb_misses, 0, 0);
	}
	{
		SIM_DEF(&erb_wakes, 0, 0);
	}
	{
		SIM_DEF(&erb_heat, 0, 0);
	}
}

static void mirror_fill(void *at, const struct sim_sock *s)
{
	struct sim_mirror *m = at;
	struct tcp_sock *tp = &m->full.tp;

	m->sk.state = s->state;
	m->sk.family = s->family == 4 ? 2 : 10; /* AF_INET, AF_INET6 */
	tp->inet_conn.icsk_inet.sk.__sk_common.skc_state = s->state;
	tp->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter = s->cookie;
	tp->rcv_nxt = s->rcv_nxt;
	tp->copied_seq = s->copied_seq;
	tp->out_of_order_queue.rb_node = s->out_of_order ? (void *)1 : 0;
	tp->rcv_wup = s->rcv_wup;
	tp->rcv_wnd = s->rcv_wnd;
	tp->snd_una = s->snd_una;
	tp->snd_nxt = s->snd_nxt;
	tp->write_seq = s->write_seq;
	tp->snd_wnd = s->snd_wnd;
	tp->max_window = s->max_window;
	tp->tsoffset = s->tsoffset;
	tp->mss_cache = s->mss_cache;
	tp->data_segs_in = s->data_segs_in;
	tp->bytes_acked = s->bytes_acked;
	tp->urg_data = s->urg_data;
	tp->rx_opt.ts_recent = s->ts_recent;
	tp->rx_opt.ts_recent_stamp = s->ts_recent_s;
	tp->inet_conn.icsk_accept_queue.fastopenq.max_qlen = s->fastopen;
	tp->rx_opt.tstamp_ok = s->tstamp_ok;
	tp->rx_opt.snd_wscale = s->snd_wscale;
	tp->rx_opt.rcv_wscale = s->rcv_wscale;
	m->full.usec.tcp_usec_ts = s->usec_ts;
	m->tw.tw_sk.__tw_common.skc_state = s->state;
	m->tw.tw_sk.__tw_common.skc_cookie.counter = s->cookie;
	m->req.req.req.__req_common.skc_state = s->state;
	m->req.req.req.__req_common.skc_cookie.counter = s->cookie;
	m->req.req.req.ts_recent = s->ts_recent;
	tp->inet_conn.icsk_inet.inet_flags = (unsigned long)s->transparent
					     << INET_FLAGS_TRANSPARENT;
	m->req.req.no_srccheck = s->transparent;
	m->req.rcv_isn = s->rcv_isn;
	m->req.snt_isn = s->snt_isn;
}

static void guard(const void *from, __u64 bytes)
{
#if __has_feature(address_sanitizer)
	__asan_poison_memory_region(from, bytes);
#endif
}

static void unguard(const void *from, __u64 bytes)
{
#if __has_feature(address_sanitizer)
	__asan_unpoison_memory_region(from, bytes);
#endif
}

__attribute__((visibility("default"))) const struct sim_library sim_library = {
    .ops = &sim_ops,
    .maps = __start_sim_maps,
    .maps_end = __stop_sim_maps,
    .mirror_fill = mirror_fill,
    .guard = guard,
    .unguard = unguard,
    .sizes = {sizeof(struct sim_xdp), sizeof(struct sim_skb), sizeof(struct sim_sock),
	      sizeof(struct sim_mirror), __builtin_offsetof(struct sim_mirror, full),
	      __builtin_offsetof(struct sim_mirror, tw), __builtin_offsetof(struct sim_mirror, req),
	      sizeof(struct sim_ops)},
    .erb_xdp = erb_xdp,
    .erb_tc_ingress = erb_tc_ingress,
    .erb_tc_egress = erb_tc_egress,
    .erb_tick = erb_tick,
    .erb_sweep = erb_sweep,
    .erb_release = erb_release,
    .erb_admit = erb_admit,
    .erb_inject = erb_inject,
    .erb_fill_begin = erb_fill_begin,
    .erb_fill_insert = erb_fill_insert,
    .erb_invalidate = erb_invalidate,
    .erb_clear = erb_clear,
    .erb_settle = erb_settle,
    .erb_touched = erb_touched,
    .io_bytes = SIM_IO_BYTES,
    .io_file = sim_io_file,
    .io_write = sim_io_write,
    .io_sync = sim_io_sync,
    .io_shut = sim_io_shut,
};
