// SPDX-License-Identifier: GPL-2.0
/* main.c - the module's memory, its begin and its end. It ends when no program uses it, the device is closed, and
 * nothing is retained (I5): so the end waits for no disk. */
#include <linux/cpumask.h>
#include <linux/cpu.h>
#include <linux/kthread.h>
#include <linux/log2.h>
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
DEFINE_PER_CPU(struct fifo *, erb_io_fifo);

static struct fifo *fifo_make(int node)
{
	struct fifo *fifo = kzalloc_node(sizeof(*fifo), GFP_KERNEL, node);

	if (!fifo)
		return NULL;
	fifo->size = fifo_bytes;
	fifo->bytes = vzalloc_node(fifo_bytes + RECORD_BYTES_MAX + FIFO_ALIGN, node);
	if (fifo->bytes)
		return fifo;
	kfree(fifo);
	return NULL;
}

static void memory_free(void)
{
	struct merge *merge = &erb_io.sink.merge;
	u32 at;

	for (at = 0; at < merge->count; at++) {
		vfree(merge->fifos[at]->bytes);
		kfree(merge->fifos[at]);
	}
	kfree(merge->fifos);
	kfree(merge->heap);
	vfree(erb_io.sink.batch);
	vfree(erb_io.page);
}

/* CPUs that come later have no fifo: what they ask is refused. */
static int memory_make(void)
{
	struct merge *merge = &erb_io.sink.merge;
	struct fifo *fifo;
	int cpu;

	merge->fifos = kcalloc(nr_cpu_ids, sizeof(*merge->fifos), GFP_KERNEL);
	merge->heap = kcalloc(nr_cpu_ids, sizeof(*merge->heap), GFP_KERNEL);
	erb_io.sink.batch_size = BATCH_BYTES;
	erb_io.sink.batch = vmalloc(BATCH_BYTES);
	erb_io.page = vmalloc_user(PAGE_SIZE);
	if (!merge->fifos || !merge->heap || !erb_io.sink.batch || !erb_io.page)
		return -ENOMEM;
	erb_io.sink.gate = &erb_io.page->gate;
	erb_io.page->gate = GATE_NO_FILE;
	for_each_online_cpu(cpu)
	{
		fifo = fifo_make(cpu_to_node(cpu));
		if (!fifo)
			return -ENOMEM;
		merge->fifos[merge->count++] = fifo;
		per_cpu(erb_io_fifo, cpu) = fifo;
	}
	erb_io.page->fifos = merge->count;
	return 0;
}

static int thread_begin(struct task_struct **thread, int (*function)(void *), const char *name)
{
	struct task_struct *begun = kthread_run(function, NULL, "%s", name);

	if (IS_ERR(begun))
		return PTR_ERR(begun);
	*thread = begun;
	return 0;
}

static void io_end(void)
{
	if (erb_io.writer)
		kthread_stop(erb_io.writer);
	if (erb_io.syncer)
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
	cpus_read_lock();
	failed = memory_make();
	cpus_read_unlock();
	failed = failed ?: thread_begin(&erb_io.writer, io_write_thread, "erb_io_write");
	failed = failed ?: thread_begin(&erb_io.syncer, io_sync_thread, "erb_io_sync");
	failed = failed ?: io_kfuncs_register();
	failed = failed ?: io_device_register();
	if (failed)
		io_end();
	return failed;
}

static void __exit io_exit(void)
{
	io_device_deregister();
	io_end();
}

module_init(io_init);
module_exit(io_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("ERB: writes what was answered in Redis's place to a journal's segments");
