/* SPDX-License-Identifier: GPL-2.0 */
/* io.h - the module's one object, and which file has what of it.
 *
 *   kfuncs.c   what programs call: any CPU, bottom halves off, never sleeps, takes no lock
 *   threads.c  the write thread and the sync thread: all that waits for a disk
 *   device.c   the daemon's calls
 *   main.c     memory, begin and end
 *
 * States, and what moves them:
 *
 *            ERB_IO_FILE                   the daemon closes, or a failure
 *     IDLE ---------------> WORK  gate open  ---------------------------> WORK, gate shut
 *      ^                     ^      |                                        |
 *      |                     +------+ ERB_IO_FILE, all synced; ERB_IO_NEXT   |
 *      +---------------------------------------------------------------------+
 *                    io_let_go: the write thread, when nobody uses the file
 *
 * Invariants:
 *  I1. `lock` is held for moments, never while a disk is waited for. So no call of the daemon's waits for one.
 *  I2. `sync_mutex` is held over a sync, and by who exchanges the file. Only threads take it. It comes before `lock`.
 *  I3. While a file is at work the merge and the batch are the write thread's; else they belong to who has `lock`.
 *  I4. After a failed write or sync nothing is asked of that file any more, and it is let go.
 *  I5. From the first file on, the module cannot be removed until no file is at work and nothing is retained.
 *  I6. Only the module syncs the file: an error of writing back is told once to each description. The daemon asks.
 */
#pragma once
#include <linux/fs.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/wait.h>
#include "core/gate.h"
#include "core/record.h"
#include "core/sink.h"
#include "erb_io.h"

struct io {
	struct sink sink;
	struct erb_io_status *page; /* the gate is in it */
	struct mutex lock;
	struct mutex sync_mutex;
	struct file *file;	/* at work; under both to change, under one to read */
	struct file *next_file; /* takes its place; under lock */
	struct segment_header next_header;
	bool is_open; /* under lock, as the next two */
	bool closing;
	bool pinned;
	bool called; /* the write thread has something to do that no record tells */
	bool sync_asked;
	wait_queue_head_t write_wait;
	wait_queue_head_t sync_wait;
	struct task_struct *writer;
	struct task_struct *syncer;
};

extern struct io erb_io;
DECLARE_PER_CPU(struct fifo *, erb_io_fifo);

int io_kfuncs_register(void);

int io_write_thread(void *unused);
int io_sync_thread(void *unused);
void io_wake_writer(void);
void io_ask_sync(void);

int io_device_register(void);
void io_device_deregister(void);
void io_settle(void);
void io_begun(u64 before_lsn);
