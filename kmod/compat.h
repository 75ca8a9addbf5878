/* SPDX-License-Identifier: GPL-2.0 */
/* compat.h - what differs between the kernels that the module is built for, 6.12 and later. Nothing else asks for a
 * version. */
#pragma once
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#error "erb_io needs Linux 6.12 or newer"
#endif
#if BITS_PER_LONG != 64
#error "positions are words that are read at once: erb_io needs a 64-bit processor"
#endif
#ifdef CONFIG_PREEMPT_RT
#error "two programs may interleave on one CPU there: erb_io does not know such kernels"
#endif

/* Moved to <linux/crc32.h> in 6.14; the old header stayed for a while. */
#if __has_include(<linux/crc32c.h>)
#include <linux/crc32c.h>
#else
#include <linux/crc32.h>
#endif

static inline u32 core_crc32c(u32 crc, const void *bytes, size_t count)
{
	return crc32c(crc, bytes, count);
}
