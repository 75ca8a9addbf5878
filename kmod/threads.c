// SPDX-License-Identifier: GPL-2.0
/* threads.c - the write thread merges, writes a batch, and lets the file go; the sync thread syncs each second, and when
 * it is asked to. Both wait for disks, and nobody waits for them.
 *
 * Invariants:
 *  T1. A batch is one write. A short one is a failure: what follows a torn record would never be read.
 *  T2. While records come the write thread looks each millisecond, and no CPU wakes it. It is woken from rest alone.
 *  T3. Files are written and synced with the rights of who opened them.
 *  T4. A file is let go when no program can still be between a reservation and its push.
 */
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/freezer.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/wait.h>
#include "io.h"

#define POLL_US                                                                                    \
	1000 /* records that wait together; and the most that one waits for the write thread */
#define POLLS_MAX   20 /* idle looks before it rests */
#define GAP_JIFFIES HZ /* a number that has not come by then does not come */

void io_wake_writer(void)
{
	WRITE_ONCE(erb_io.called, true);
	wake_up(&erb_io.write_wait);
}

void io_ask_sync(void)
{
	WRITE_ONCE(erb_io.sync_asked, true);
	wake_up(&erb_io.sync_wait);
}

static void io_fail(enum gate why, int error)
{
	struct erb_io_status *page = erb_io.page;

	if (!gate_shut(&page->gate, why) && READ_ONCE(page->gate) != GATE_CLOSED)
		return;
	/* Of a file whose daemon has gone the failure says more. */
	WRITE_ONCE(page->gate, why);
	WRITE_ONCE(page->error, error);
	WRITE_ONCE(page->failures, page->failures + 1);
	pr_warn("erb_io: gate shut (%d), error %d\n", why, error);
	io_wake_writer();
}

/* The file can still be written: what shut the gate, if anything, is that the daemon has gone. */
static bool io_sound(void)
{
	u32 gate = READ_ONCE(erb_io.page->gate);

	return gate == GATE_OPEN || gate == GATE_CLOSED;
}

static void io_sync(void)
{
	struct io *io = &erb_io;
	const struct cred *own;
	bool due;
	int error;

	mutex_lock(&io->sync_mutex);
	mutex_lock(&io->lock);
	due = io->file && io_sound() && sink_sync_begin(&io->sink);
	mutex_unlock(&io->lock);
	if (due) {
		own = override_creds(io->file->f_cred);
		error = vfs_fsync(io->file, 1);
		revert_creds(own);
		mutex_lock(&io->lock);
		if (error) {
			io_fail(GATE_SYNC, error);
		} else {
			sink_sync_done(&io->sink);
			WRITE_ONCE(io->page->synced_lsn, io->sink.synced_lsn);
			WRITE_ONCE(io->page->syncs, io->page->syncs + 1);
		}
		mutex_unlock(&io->lock);
	}
	mutex_unlock(&io->sync_mutex);
}

int io_sync_thread(void *unused)
{
	struct io *io = &erb_io;

	set_freezable();
	while (!kthread_should_stop()) {
		wait_event_freezable_timeout(
		    io->sync_wait, READ_ONCE(io->sync_asked) || kthread_should_stop(), HZ);
		WRITE_ONCE(io->sync_asked, false);
		io_sync();
	}
	return 0;
}

/* Under lock. */
static void io_tell_written(void)
{
	struct erb_io_status *page = erb_io.page;

	WRITE_ONCE(page->written_lsn, erb_io.sink.written_lsn);
	WRITE_ONCE(page->file_bytes, erb_io.sink.at);
	WRITE_ONCE(page->records, page->records + erb_io.sink.batch_records);
	WRITE_ONCE(page->batches, page->batches + 1);
}

static void io_write(void)
{
	struct io *io = &erb_io;
	const struct cred *own = override_creds(io->file->f_cred);
	loff_t at = io->sink.at;
	bool pressed;
	ssize_t wrote;

	wrote = kernel_write(io->file, io->sink.batch, io->sink.batch_bytes, &at);
	revert_creds(own);
	if (wrote != io->sink.batch_bytes) {
		io_fail(GATE_WRITE, wrote < 0 ? wrote : 0);
		return;
	}
	mutex_lock(&io->lock);
	pressed = sink_written(&io->sink);
	io_tell_written();
	mutex_unlock(&io->lock);
	if (pressed)
		io_ask_sync();
}

/* The file is nobody's from here on. What it does not have for certain is retained. */
static void io_let_go(void)
{
	struct io *io = &erb_io;
	struct file *file, *next;

	mutex_lock(&io->sync_mutex);
	mutex_lock(&io->lock);
	file = io->file;
	next = io->next_file;
	io->file = NULL;
	io->next_file = NULL;
	sink_rewind(&io->sink);
	WRITE_ONCE(io->page->written_lsn, io->sink.written_lsn);
	io->closing = false;
	WRITE_ONCE(io->page->state, ERB_IO_IDLE);
	/* The last thing: it may let the module go. */
	mutex_unlock(&io->sync_mutex);
	fput(file);
	if (next)
		fput(next);
	io_settle();
	mutex_unlock(&io->lock);
}

/* All that was written is synced, and the next file takes this one's place. */
static void io_exchange(void)
{
	struct io *io = &erb_io;
	struct file *file = NULL;

	io_sync();
	mutex_lock(&io->sync_mutex);
	mutex_lock(&io->lock);
	if (io_sound() && io->next_file) {
		file = io->file;
		io->file = io->next_file;
		io->next_file = NULL;
		sink_continue(&io->sink, &io->next_header);
		io_begun(io->sink.written_lsn);
	}
	mutex_unlock(&io->lock);
	mutex_unlock(&io->sync_mutex);
	if (file)
		fput(file);
}

/* The daemon has gone, or the file has failed, and no record can come any more: a number that is missing never comes. */
static void io_finish(void)
{
	synchronize_rcu();
	while (io_sound()) {
		sink_fill(&erb_io.sink);
		if (!erb_io.sink.batch_bytes)
			break;
		io_write();
	}
	io_sync();
	io_let_go();
}

/* A gap that is none: the CPU with this number is just about to push it. */
static void io_missing(unsigned long *since)
{
	if (!*since)
		*since = jiffies;
	else if (time_after(jiffies, *since + GAP_JIFFIES))
		io_fail(GATE_GAP, 0);
}

/* One round; whether there was anything to do. */
static bool io_turn(unsigned long *since)
{
	enum merge_found found;

	if (READ_ONCE(erb_io.closing) || !io_sound()) {
		/* The next file waits anew for what is missing. */
		*since = 0;
		io_finish();
		return true;
	}
	if (READ_ONCE(erb_io.next_file))
		io_exchange();
	found = sink_fill(&erb_io.sink);
	if (erb_io.sink.batch_bytes)
		io_write();
	if (found == MERGE_BACKWARD)
		io_fail(GATE_BACKWARD, 0);
	if (found == MERGE_MISSING)
		io_missing(since);
	else
		*since = 0;
	return found != MERGE_EMPTY || erb_io.sink.batch_records;
}

static bool io_working(void)
{
	return smp_load_acquire(&erb_io.page->state) == ERB_IO_WORK;
}

static void io_rest(void)
{
	struct sink *sink = &erb_io.sink;

	/* While no file is at work the merge is not this thread's. */
	if (!io_working())
		core_store(&sink->asleep, 1);
	else if (!sink_sleep(sink))
		return;
	wait_event_freezable(erb_io.write_wait, !core_load(&sink->asleep) ||
						    READ_ONCE(erb_io.called) ||
						    kthread_should_stop());
	core_store(&sink->asleep, 0);
}

int io_write_thread(void *unused)
{
	unsigned long since = 0;
	int idle = 0;

	set_freezable();
	while (!kthread_should_stop()) {
		WRITE_ONCE(erb_io.called, false);
		if (io_working() && io_turn(&since))
			idle = 0;
		else
			idle++;
		if (io_working() && idle < POLLS_MAX)
			usleep_range(POLL_US, POLL_US + POLL_US / 4);
		else
			io_rest();
		try_to_freeze();
	}
	return 0;
}
