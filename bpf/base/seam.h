/* SPDX-License-Identifier: GPL-2.0 */
/* seam.h - the one place where the data path touches helpers, locks, clocks and maps. The simulator
 * compiles it too: crates/proof/sim-kernel/shim stands in for libbpf's headers below it. */
#pragma once
#include "base/kernel_types.h"
#include "base/abi.h"
#include "base/maps.h"

#define INLINE static __always_inline

/* Keeps the compiler from merging a bounds check away from the access it guards (the verifier
 * wants to see both on the same register). */
#define opaque(x) asm volatile("" : "+r"(x))

/* Whether 1 <= n <= max, in two comparisons that the compiler cannot merge: of `n - 1 < max` in 32
 * bits Linux 6.12 learns nothing about n. */
#define sized(n, max)                                                                              \
	(({                                                                                        \
		 opaque(n);                                                                        \
		 (n) != 0;                                                                         \
	 }) &&                                                                                     \
	 ({                                                                                        \
		 opaque(n);                                                                        \
		 (n) <= (max);                                                                     \
	 }))

/* 1 if any bit is set, else 0: no branch, of which the verifier follows both sides. Opaque: the compiler would make
 * a comparison of it, and a branch. */
INLINE u32 any_bit(u32 bits)
{
	u32 spread = bits | -bits;

	opaque(spread);
	return spread >> 31;
}

/* The kernel module's (kmod/kfuncs.c): has the processor fetch the lines of some memory, and waits for none. Weak: there
 * is none where the loader left it out (`without_prefetch` in crates/product/datapath/src/load.rs). */
extern void erb_prefetch(const void *memory, u32 memory__sz) __ksym __weak;

/* CLOCK_MONOTONIC, up to CLOCK_LAG_MS behind: costs 6 ns where the exact one costs 31. */
INLINE u64 now_ns(void)
{
	return bpf_ktime_get_coarse_ns();
}

/* The exact one: syscall programs may not ask for the other. */
INLINE u64 now_exact_ns(void)
{
	return bpf_ktime_get_ns();
}

INLINE void lock_take(struct bpf_spin_lock *lock)
{
	bpf_spin_lock(lock);
}

INLINE void lock_release(struct bpf_spin_lock *lock)
{
	bpf_spin_unlock(lock);
}

/* Uses a result that nobody wants. Of an atomic without user clang makes one that does not fetch,
 * and on arm64 that orders nothing (STADD: "neither acquire nor release", emit_lse_atomic() of
 * arch/arm64/net/bpf_jit_comp.c); one that fetches is LDADDAL there, or ends with a DMB. */
#define used(x) asm volatile("" ::"r"(x))

/* Both are full barriers on all machines: what stands before is seen before, what stands behind is
 * seen behind. A test of crates/product/datapath looks at the objects. */
INLINE void atomic_add(u64 *to, u64 n)
{
	u64 before = __sync_fetch_and_add(to, n);

	used(before);
}

INLINE void atomic_add32(u32 *to, u32 n)
{
	u32 before = __sync_fetch_and_add(to, n);

	used(before);
}

/* The value before. */
INLINE u64 atomic_add_before(u64 *to, u64 n)
{
	return __sync_fetch_and_add(to, n);
}

/* Puts n in place of what it was, if it still is that. Returns what was there. A full barrier. */
INLINE u64 atomic_swap(u64 *to, u64 was, u64 n)
{
	return __sync_val_compare_and_swap(to, was, n);
}

INLINE void atomic_set(u64 *to, u64 n)
{
	u64 before = __sync_lock_test_and_set(to, n);

	used(before);
}

INLINE void atomic_set32(u32 *to, u32 n)
{
	u32 before = __sync_lock_test_and_set(to, n);

	used(before);
}

INLINE u32 atomic_add32_before(u32 *to, u32 n)
{
	return __sync_fetch_and_add(to, n);
}

/* What stands before is seen before, what stands behind is read behind: a store too, which no load barrier keeps in
 * front of a load. */
INLINE void full_barrier(void)
{
	u64 here = 0;

	atomic_add(&here, 1);
}

/* Loads of what the other CPUs change: the compiler must not cache or tear them. */
#define read_once(x)	 (*(volatile typeof(x) *)&(x))
#define write_once(x, v) (*(volatile typeof(x) *)&(x) = (v))

/* No load moves over it. x86 keeps loads in order itself (SDM 8.2.3.2); elsewhere an atomic that
 * fetches is the one full barrier that BPF has. */
INLINE void load_order(void)
{
#ifdef __TARGET_ARCH_x86
	asm volatile("" ::: "memory");
#else
	u64 here = 0;

	atomic_add(&here, 1);
#endif
}

/* The same, and a point at which the simulator lets others run. */
INLINE void load_barrier(void)
{
#ifdef __TARGET_ARCH_x86
	barrier();
#else
	load_order();
#endif
}

INLINE struct control *control_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&erb_control, &zero);
}

INLINE void count_n(enum erb_stat stat, u64 n)
{
	u32 key = stat;
	u64 *value = bpf_map_lookup_elem(&erb_stats, &key);

	if (value)
		*value += n;
}

INLINE void count(enum erb_stat stat)
{
	count_n(stat, 1);
}

/* enum erb_listener of a listening socket. */
INLINE u32 listener_get(u64 cookie)
{
	u32 *whose = bpf_map_lookup_elem(&erb_listeners, &cookie);

	return whose ? *whose : LISTENER_UNKNOWN;
}

INLINE struct cache_set *set_get(u32 index)
{
	return bpf_map_lookup_elem(&erb_sets, &index);
}

INLINE struct cache_digest *digest_get(u32 index)
{
	return bpf_map_lookup_elem(&erb_digests, &index);
}

INLINE struct cache_large *large_get(u32 index)
{
	return bpf_map_lookup_elem(&erb_large, &index);
}

INLINE struct conn *conn_get(const struct conn_key *key)
{
	return bpf_map_lookup_elem(&erb_conns, key);
}

/* Places in erb_conns of the addresses with this hash. */
INLINE u32 *client_count_get(u64 hash)
{
	u32 index = hash & (CLIENT_COUNTS - 1);

	return bpf_map_lookup_elem(&erb_clients, &index);
}

/* When payload of the connections with this hash last passed unseen. */
INLINE u32 *unseen_time_get(u64 hash)
{
	u32 index = hash & (UNSEEN_TIMES - 1);

	return bpf_map_lookup_elem(&erb_unseen, &index);
}

INLINE u32 *interest_get(u64 hash)
{
	u32 zero = 0;
	struct interests *all = bpf_map_lookup_elem(&erb_interests, &zero);

	return all ? &all->of[hash & (INTERESTS - 1)] : 0;
}
