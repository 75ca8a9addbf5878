/* SPDX-License-Identifier: GPL-2.0 */
/* io.h - the module's one object, and which file has what of it. States and what moves them: core/sink.h.
 *
 *   kfuncs.c   what programs call: any CPU, bottom halves off, never sleeps, takes no lock
 *   threads.c  the write thread and the sync thread: all that waits for a disk
 *   device.c   the daemon's calls
 *   main.c     memory, begin and end
 *
 * Invariants:
 *  I1. `lock` is held for moments, never while a disk is waited for. So no call of the daemon's waits for one.
 *  I2. `sync_mutex` is held over a sync, and by who exchanges the file. Only threads take it. It comes before `lock`.
 *  I3. While a file is at work the merge and the batch are the write thread's; else they belong to who has `lock`.
 *  I4. A file is at work iff the sink says so. While the gate is open one is.
 *  I5. From the first file on, the module cannot be removed until no file is at work and nothing is retained.
 *  I6. Only the module syncs the file: an error of writing back is told once to each description. The daemon asks.
 */
#pragma once
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/wait.h>
#include "core/fifo.h"
#include "core/sink.h"

struct io {
	struct sink sink;
	struct mutex lock;
	struct mutex sync_mutex;
	struct file *file;	/* at work; under both to change, under one to read */
	struct file *next_file; /* takes its place; under lock */
	bool pinned;		/* under lock */
	bool called;		/* the write thread has something to do that no record tells */
	bool sync_asked;
	u32 is_open;
	wait_queue_head_t write_wait;
	wait_queue_head_t sync_wait;
	struct task_struct *writer;
	struct task_struct *syncer;
};

extern struct io erb_io;
extern struct miscdevice erb_io_device;
DECLARE_PER_CPU_ALIGNED(struct fifo, erb_io_fifo);

int io_kfuncs_register(void);
int io_write_thread(void *unused);
int io_sync_thread(void *unused);
void io_wake_writer(void);
void io_ask_sync(void);
void io_settle(void);
