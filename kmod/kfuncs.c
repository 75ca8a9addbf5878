// SPDX-License-Identifier: GPL-2.0
/* kfuncs.c - what XDP and TC programs call. They run with bottom halves off, so those of one CPU come one behind the
 * other (F2). A part of a program that does not, as a work queue's callback, is refused: -EPERM.
 *
 * Programs declare these weak: an object loads with and without the module. Which one it is, is decided when a
 * program is loaded, and a program that was loaded with the module keeps it. */
#include <linux/align.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/cache.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/prefetch.h>
#include "io.h"

#define PREFETCH_BYTES_MAX 512 /* more would push out what it is to help */

__bpf_kfunc_start_defs();

/* Makes sure that the record of so many bytes which this CPU pushes next will be taken. To be asked before the record
 * has a number. 0; -ESHUTDOWN: the gate is shut; -EAGAIN: full; -EINVAL: no record is so long; -ENODEV: a late CPU. */
__bpf_kfunc int erb_io_reserve(u32 bytes)
{
	return sink_reserve(&erb_io.sink, this_cpu_ptr(&erb_io_fifo), bytes);
}

/* Takes a record of redis/log.h. What was reserved is always taken, if it is sound. 0, or as above. */
__bpf_kfunc int erb_io_push(const void *record, u32 record__sz)
{
	struct fifo *fifo = this_cpu_ptr(&erb_io_fifo);
	int refused = sink_push(&erb_io.sink, fifo, record, record__sz);

	if (!refused && sink_wakes(&erb_io.sink, fifo))
		wake_up(&erb_io.write_wait);
	return refused;
}

/* Has the processor fetch the first lines of some memory, without waiting for it. */
__bpf_kfunc void erb_prefetch(const void *memory, u32 memory__sz)
{
	const u8 *at = PTR_ALIGN_DOWN((const u8 *)memory, L1_CACHE_BYTES);
	const u8 *end = (const u8 *)memory + min_t(u32, memory__sz, PREFETCH_BYTES_MAX);

	for (; at < end; at += L1_CACHE_BYTES)
		prefetch(at);
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(erb_io_kfuncs)
BTF_ID_FLAGS(func, erb_io_reserve)
BTF_ID_FLAGS(func, erb_io_push)
BTF_ID_FLAGS(func, erb_prefetch)
BTF_KFUNCS_END(erb_io_kfuncs)

static const struct btf_kfunc_id_set io_kfunc_set = {
    .owner = THIS_MODULE,
    .set = &erb_io_kfuncs,
};

int io_kfuncs_register(void)
{
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_XDP, &io_kfunc_set)
		   ?: register_btf_kfunc_id_set(BPF_PROG_TYPE_SCHED_CLS, &io_kfunc_set);
}
