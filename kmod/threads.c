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
#include <linux/cleanup.h>
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/freezer.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/minmax.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/wait.h>
#include "io.h"

#define POLL_US	    1000 /* what waits together; the most that a record waits for the thread */
#define POLLS_MAX   20	 /* idle looks before it rests */
#define GAP_JIFFIES HZ	 /* a number that has not come by then does not come */

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
	if (!sink_fail(&erb_io.sink, why, error))
		return;
	pr_warn("erb_io: gate shut (%d), error %d\n", why, error);
	io_wake_writer();
}

static void io_sync(void)
{
	struct io *io = &erb_io;
	const struct cred *own;
	int error;

	guard(mutex)(&io->sync_mutex);
	scoped_guard(mutex, &io->lock) {
		if (!sink_sync_begin(&io->sink))
			return;
	}
	own = override_creds(io->file->f_cred);
	error = vfs_fsync(io->file, 1);
	revert_creds(own);
	guard(mutex)(&io->lock);
	if (error)
		io_fail(GATE_SYNC, error);
	else
		sink_sync_done(&io->sink);
}

int io_sync_thread(void *unused)
{
	set_freezable();
	while (!kthread_should_stop()) {
		wait_event_freezable_timeout(
		    erb_io.sync_wait, READ_ONCE(erb_io.sync_asked) || kthread_should_stop(), HZ);
		WRITE_ONCE(erb_io.sync_asked, false);
		io_sync();
	}
	return 0;
}

static void io_write(void)
{
	struct io *io = &erb_io;
	loff_t at = io->sink.page->file_bytes;
	const struct cred *own = override_creds(io->file->f_cred);
	ssize_t wrote = kernel_write(io->file, io->sink.batch, io->sink.batch_bytes, &at);

	revert_creds(own);
	if (wrote != io->sink.batch_bytes) {
		io_fail(GATE_WRITE, min(wrote, 0));
		return;
	}
	guard(mutex)(&io->lock);
	if (sink_written(&io->sink))
		io_ask_sync();
}

/* The file is nobody's from here on. What it does not have for certain is retained. */
static void io_let_go(void)
{
	struct io *io = &erb_io;

	guard(mutex)(&io->sync_mutex);
	guard(mutex)(&io->lock);
	fput(io->file);
	if (io->next_file)
		fput(io->next_file);
	io->file = NULL;
	io->next_file = NULL;
	sink_end(&io->sink);
	io_settle();
}

/* All that was written is synced, and the next file takes this one's place. */
static void io_exchange(void)
{
	struct io *io = &erb_io;

	io_sync();
	guard(mutex)(&io->sync_mutex);
	guard(mutex)(&io->lock);
	if (!sink_continue(&io->sink))
		return;
	fput(io->file);
	io->file = io->next_file;
	io->next_file = NULL;
}

/* The daemon has gone, or the file has failed, and no record can come any more: a number that is missing never comes. */
static void io_finish(void)
{
	synchronize_rcu();
	sink_unreserve(&erb_io.sink);
	while (gate_sound(&erb_io.sink.page->gate)) {
		sink_fill(&erb_io.sink);
		if (!erb_io.sink.batch_bytes)
			break;
		io_write();
	}
	io_sync();
	io_let_go();
}

/* One round; whether there was anything to do. */
static bool io_turn(void)
{
	struct sink *sink = &erb_io.sink;
	enum merge_found found;
	enum gate wrong;

	if (!sink_works(sink))
		return false;
	if (core_load(&sink->page->gate) != GATE_OPEN) {
		io_finish();
		return true;
	}
	if (READ_ONCE(erb_io.next_file))
		io_exchange();
	found = sink_fill(sink);
	if (sink->batch_bytes)
		io_write();
	wrong = sink_judge(sink, found, get_jiffies_64(), GAP_JIFFIES);
	if (wrong != GATE_OPEN)
		io_fail(wrong, 0);
	return found != MERGE_EMPTY || sink->batch_records;
}

int io_write_thread(void *unused)
{
	struct sink *sink = &erb_io.sink;
	int idle = 0;

	set_freezable();
	while (!kthread_should_stop()) {
		WRITE_ONCE(erb_io.called, false);
		idle = io_turn() ? 0 : idle + 1;
		if (sink_works(sink) && idle < POLLS_MAX) {
			usleep_range(POLL_US, POLL_US + POLL_US / 4);
		} else if (sink_sleep(sink)) {
			wait_event_freezable(erb_io.write_wait, !core_load(&sink->asleep) ||
								    READ_ONCE(erb_io.called) ||
								    kthread_should_stop());
			core_store(&sink->asleep, 0);
		}
		try_to_freeze();
	}
	return 0;
}
