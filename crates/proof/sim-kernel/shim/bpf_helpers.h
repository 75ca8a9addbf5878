/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* bpf_helpers.h - stands in for libbpf's header of this name when the data path is compiled for
 * user space: every helper is a call through sim_ops. A helper that is missing here does not
 * compile. */
#pragma once
#include "sim.h"

/* Weak: what several objects define under one name is one (sim.h). */
#define SEC(name) __attribute__((weak, used))
#define __ksym
#define __weak			  __attribute__((weak))
/* Where nothing is linked with the module's core (io.c) there is none. */
#define bpf_ksym_exists(function) (!!(function))
#define __always_inline		  inline __attribute__((always_inline))
/* Several objects define global programs of one name; each has its own. */
#define __noinline		  static __attribute__((noinline))
#define __uint(name, value)	  int(*name)[value]
#define __type(name, value)	  typeof(value) *name
#define LIBBPF_PIN_BY_NAME	  1
#define SIM_MAP_NUMBER(map)	  (*(const __u64 *)(map))
#define SIM_ENTRIES(map)	  (sizeof(*(map)->max_entries) / sizeof(int))
#define SIM_DEF(map, key, value)                                                                   \
	static const struct sim_map_def sim_def                                                    \
	    __attribute__((section("sim_maps"), used, retain, no_sanitize("address"))) = {         \
		(void *)(map), #map,  SIM_OBJECT,	sizeof(*(map)->type) / sizeof(int),        \
		key,	       value, SIM_ENTRIES(map),                                            \
	}
#define SIM_TYPED(map) SIM_DEF(map, sizeof(*(map)->key), sizeof(*(map)->value))

#define bpf_map_lookup_elem(map, at)                                                               \
	({                                                                                         \
		SIM_TYPED(map);                                                                    \
		sim_ops.map_lookup(SIM_MAP_NUMBER(map), at);                                       \
	})
#define bpf_map_update_elem(map, at, from, flags)                                                  \
	({                                                                                         \
		SIM_TYPED(map);                                                                    \
		sim_ops.map_update(SIM_MAP_NUMBER(map), at, from, flags);                          \
	})
#define bpf_map_delete_elem(map, at)                                                               \
	({                                                                                         \
		SIM_TYPED(map);                                                                    \
		sim_ops.map_delete(SIM_MAP_NUMBER(map), at);                                       \
	})
#define bpf_for_each_map_elem(map, callback, callback_ctx, flags)                                  \
	({                                                                                         \
		SIM_TYPED(map);                                                                    \
		sim_ops.map_each(SIM_MAP_NUMBER(map), map, callback, callback_ctx, flags);         \
	})
#define bpf_ringbuf_reserve(map, bytes, flags)                                                     \
	({                                                                                         \
		SIM_DEF(map, 0, 0);                                                                \
		sim_ops.ring_reserve(SIM_MAP_NUMBER(map), bytes, flags);                           \
	})
#define bpf_ringbuf_submit  sim_ops.ring_submit
#define bpf_ringbuf_discard sim_ops.ring_discard

#define bpf_ktime_get_ns	sim_ops.ktime_ns
#define bpf_ktime_get_coarse_ns sim_ops.ktime_coarse_ns
#define bpf_get_prandom_u32	sim_ops.random
#define bpf_spin_lock(at)	sim_ops.lock(at)
#define bpf_spin_unlock(at)	sim_ops.unlock(at)

#define bpf_get_smp_processor_id sim_ops.cpu

/* Another program of the object goes on, and its verdict is the caller's. */
#define bpf_tail_call(at, map, stage)                                                              \
	do {                                                                                       \
		(void)(map);                                                                       \
		return _Generic((at),                                                              \
		    struct xdp_md *: sim_xdp_stage,                                                \
		    struct __sk_buff *: sim_tc_stage)((stage), (at));                              \
	} while (0)

#define bpf_csum_diff	      sim_ops.csum_diff
#define bpf_xdp_load_bytes    sim_ops.xdp_load
#define bpf_xdp_store_bytes   sim_ops.xdp_store
#define bpf_xdp_adjust_head   sim_ops.xdp_head
#define bpf_xdp_adjust_tail   sim_ops.xdp_tail
#define bpf_xdp_adjust_meta   sim_ops.xdp_meta
#define bpf_skb_load_bytes    sim_ops.skb_load
#define bpf_skb_store_bytes   sim_ops.skb_store
#define bpf_skb_change_tail   sim_ops.skb_change_tail
#define bpf_l4_csum_replace   sim_ops.skb_l4_csum
#define bpf_clone_redirect    sim_ops.skb_clone_redirect
#define bpf_get_socket_cookie sim_ops.skb_cookie

#define bpf_skc_lookup_tcp	     sim_ops.sk_lookup
#define bpf_sk_release		     sim_ops.sk_release
#define bpf_tcp_check_syncookie	     sim_ops.sk_check_cookie
#define bpf_skc_to_tcp_sock	     sim_ops.sk_to_tcp
#define bpf_skc_to_tcp_timewait_sock sim_ops.sk_to_timewait
#define bpf_skc_to_tcp_request_sock  sim_ops.sk_to_request

/* The kernel's numeric iterator: i keeps its last value behind the loop. Of more turns than BPF_MAX_LOOPS it makes
 * none (kernel/bpf/bpf_iter.c). */
#define SIM_LOOPS_MAX (8 << 20)
#define bpf_for(i, start, end)                                                                     \
	for (int sim_n = (start),                                                                  \
		 sim_end = (long)(end) - (start) > SIM_LOOPS_MAX ? sim_n : (int)(end);             \
	     sim_n < sim_end && ((i) = sim_n, 1); sim_n++)

/* Atomics are points at which another CPU may run. Names of functions are not expanded again. */
#define barrier()			 sim_ops.point()
#define __sync_fetch_and_add(...)	 (sim_ops.point(), __sync_fetch_and_add(__VA_ARGS__))
#define __sync_val_compare_and_swap(...) (sim_ops.point(), __sync_val_compare_and_swap(__VA_ARGS__))
#define __sync_lock_test_and_set(...)	 (sim_ops.point(), __sync_lock_test_and_set(__VA_ARGS__))

/* Declared again by kernel_types.h as external functions of the kernel. Of sockets and
 * routes addresses are cast. */
static __attribute__((unused)) void *bpf_rdonly_cast(const void *at, __u32 btf_id)
{
	return btf_id ? (void *)at : sim_ops.sk_cast(at);
}

static __attribute__((unused)) void *bpf_cast_to_kern_ctx(void *ctx)
{
	struct sim_skb *skb = ctx;

	skb->route_dev.ifindex = skb->route;
	skb->route_dst.dev = &skb->route_dev;
	skb->skb._skb_refdst = skb->route ? (unsigned long)&skb->route_dst | 1 : 0;
	return &skb->skb;
}
