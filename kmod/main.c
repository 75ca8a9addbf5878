// SPDX-License-Identifier: GPL-2.0
/* main.c - the module's memory, its begin and its end. It ends when no program uses it, the device is closed, and
 * nothing is retained (I5): so the end waits for no disk. */
#include <linux/cleanup.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/kthread.h>
#include <linux/log2.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/topology.h>
#include <linux/vmalloc.h>
#include "io.h"

#define FIFO_BYTES_MIN (64 << 10)
#define FIFO_BYTES_MAX (1 << 30)
#define BATCH_BYTES    (1 << 20)

static unsigned int fifo_bytes = 4 << 20;
module_param(fifo_bytes, uint, 0444);
MODULE_PARM_DESC(fifo_bytes, "memory of each CPU for what is not synced, a power of two");

struct io erb_io;
DEFINE_PER_CPU_ALIGNED(struct fifo, erb_io_fifo);

static void memory_free(void)
{
	struct sink *sink = &erb_io.sink;
	int cpu;

	for_each_possible_cpu(cpu)
		kvfree(per_cpu(erb_io_fifo, cpu).bytes);
	kfree(sink->merge.fifos);
	kfree(sink->merge.heap);
	vfree(sink->batch);
	vfree(sink->page);
}

/* CPUs that come later have no fifo: what they ask is refused. For too large fifos nobody is killed. */
static int memory_make(void)
{
	struct sink *sink = &erb_io.sink;
	struct merge *merge = &sink->merge;
	struct fifo *fifo;
	int cpu;

	merge->fifos = kcalloc(nr_cpu_ids, sizeof(*merge->fifos), GFP_KERNEL);
	merge->heap = kcalloc(nr_cpu_ids, sizeof(*merge->heap), GFP_KERNEL);
	sink->batch_size = BATCH_BYTES;
	sink->batch = vmalloc(BATCH_BYTES);
	sink->page = vmalloc_user(PAGE_SIZE);
	if (!merge->fifos || !merge->heap || !sink->batch || !sink->page)
		return -ENOMEM;
	guard(cpus_read_lock)();
	for_each_online_cpu(cpu) {
		fifo = per_cpu_ptr(&erb_io_fifo, cpu);
		fifo->bytes = kvzalloc_node(fifo_bytes + RECORD_BYTES_MAX + FIFO_ALIGN,
					    GFP_KERNEL | __GFP_RETRY_MAYFAIL, cpu_to_node(cpu));
		if (!fifo->bytes)
			return -ENOMEM;
		fifo->size = fifo_bytes;
		merge->fifos[merge->count++] = fifo;
	}
	sink->page->fifos = merge->count;
	sink->page->gate = GATE_NO_FILE;
	return 0;
}

static int threads_begin(void)
{
	erb_io.writer = kthread_run(io_write_thread, NULL, "erb_io_write");
	erb_io.syncer = kthread_run(io_sync_thread, NULL, "erb_io_sync");
	return PTR_ERR_OR_ZERO(erb_io.writer) ?: PTR_ERR_OR_ZERO(erb_io.syncer);
}

static void io_end(void)
{
	if (!IS_ERR_OR_NULL(erb_io.writer))
		kthread_stop(erb_io.writer);
	if (!IS_ERR_OR_NULL(erb_io.syncer))
		kthread_stop(erb_io.syncer);
	memory_free();
}

static int __init io_init(void)
{
	int failed;

	if (!is_power_of_2(fifo_bytes) || fifo_bytes < FIFO_BYTES_MIN ||
	    fifo_bytes > FIFO_BYTES_MAX)
		return -EINVAL;
	mutex_init(&erb_io.lock);
	mutex_init(&erb_io.sync_mutex);
	init_waitqueue_head(&erb_io.write_wait);
	init_waitqueue_head(&erb_io.sync_wait);
	failed = memory_make() ?: threads_begin() ?: io_kfuncs_register();
	failed = failed ?: misc_register(&erb_io_device);
	if (failed)
		io_end();
	return failed;
}

static void __exit io_exit(void)
{
	misc_deregister(&erb_io_device);
	io_end();
}

module_init(io_init);
module_exit(io_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("ERB: writes what was answered in Redis's place to a journal's segments");
