/* SPDX-License-Identifier: GPL-2.0 */
/* seam.h - what the core needs of the kernel, and the same of C11 for who runs it in user space: the tests, under
 * sanitizers. Nothing else of the core knows where it runs. */
#pragma once

#ifdef __KERNEL__
#include <asm/barrier.h>
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/preempt.h>
#include <linux/string.h>
#include <linux/types.h>
#include "compat.h"

#define core_load(at)		 READ_ONCE(*(at))
#define core_store(at, value)	 WRITE_ONCE(*(at), value)
#define core_acquire(at)	 smp_load_acquire(at)
#define core_release(at, value)	 smp_store_release(at, value)
#define core_exchange(at, value) xchg(at, value)
#define core_swap(at, old, new)	 (cmpxchg(at, old, new) == (old))
#define core_full_barrier()	 smp_mb()
/* Whether no other program can begin on this CPU, and who waits for RCU waits for this one. */
#define core_undisturbed()	 (softirq_count() != 0)
#else
#include <errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define core_load(at)		 __atomic_load_n(at, __ATOMIC_RELAXED)
#define core_store(at, value)	 __atomic_store_n(at, value, __ATOMIC_RELAXED)
#define core_acquire(at)	 __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define core_release(at, value)	 __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define core_exchange(at, value) __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST)
#define core_full_barrier()	 __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define core_undisturbed()	 true

static inline bool core_swap(u32 *at, u32 old, u32 new)
{
	return __atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_RELAXED);
}

/* As the kernel's: nothing is inverted. Castagnoli's polynomial, bit by bit. */
static inline u32 core_crc32c(u32 crc, const void *bytes, size_t count)
{
	const u8 *at = bytes;
	int bit;

	while (count--) {
		crc ^= *at++;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return crc;
}
#endif

/* For who alone writes there. */
#define core_add(at, count) core_store(at, *(at) + (count))

#define CORE_INLINE static inline __attribute__((unused))
