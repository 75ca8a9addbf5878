/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* bpf_helpers.h - the simulator's header of this name, with what the torture runs on real threads put
 * back: atomics and barriers as the compiler makes them, a lock that is one, maps that are memory. */
#pragma once
#include "../../shim/bpf_helpers.h"

#undef barrier
#undef __sync_fetch_and_add
#undef __sync_lock_test_and_set
#undef __sync_val_compare_and_swap
#undef bpf_spin_lock
#undef bpf_spin_unlock
#undef bpf_map_lookup_elem
#undef bpf_ktime_get_ns

#define barrier()		     asm volatile("" ::: "memory")
#define bpf_spin_lock(lock)	     torture_lock((__u32 *)(lock))
#define bpf_spin_unlock(lock)	     __atomic_store_n((__u32 *)(lock), 0, __ATOMIC_RELEASE)
#define bpf_map_lookup_elem(map, at) torture_value((const void *)(map), *(const __u32 *)(at))
#define bpf_ktime_get_ns()	     1

void *torture_value(const void *map, __u32 at);

static inline void torture_lock(__u32 *lock)
{
	while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
		;
}
