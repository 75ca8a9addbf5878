// SPDX-License-Identifier: GPL-2.0
/* erb_aof.c - the source paper's own way, for study: Redis's append-only file is found among the descriptors of Redis, and SETs
 * that were answered in Redis's place are appended there, behind its back. What that breaks is in docs/internals/module.md
 * ("The paper's own way"). It is built on demand alone (`make STUDY=1`), and no part of a boost: a program on
 * erb_io_push() hands over what the module erb_io takes anyway.
 *
 * Invariants:
 *  A1. One file, found once, is held until the module goes. It stays the same one when Redis begins another.
 *  A2. Bytes go to the file at its own position and under its lock, as those of Redis's do: a batch is never within
 *      one of Redis's writes, nor over it.
 *  A3. A record that finds no room is refused, and counted. So is one that came before the file was found.
 *  A4. Nothing of a record is believed but as a copy (R1 of core/record.h).
 */
#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/cleanup.h>
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kfifo.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sprintf.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include "core/record.h"

#define FIFO_BYTES	  (4 << 20)
#define BATCH_RECORDS	  64
#define RESP_OVERHEAD_MAX 128 /* of a command beside key and value */
#define COMMAND_BYTES_MAX (RECORD_BYTES_MAX + RESP_OVERHEAD_MAX)
#define BATCH_BYTES	  (BATCH_RECORDS * COMMAND_BYTES_MAX)
#define LOG_NAME_END	  ".aof"
#define WARNING                                                                                    \
	"for study: appends to Redis's own log behind its back. Redis executes each SET once "     \
	"more "                                                                                    \
	"from it, in an order that it never had and in whatever database it chose last; what is "  \
	"appended behind its next rewrite is lost\n"

static struct {
	struct file *file;
	spinlock_t lock; /* who pushes */
	struct kfifo_rec_ptr_2 fifo;
	wait_queue_head_t wait;
	struct task_struct *writer;
	struct delayed_work sync;
	bool unsynced;
	u8 record[RECORD_BYTES_MAX];
	u8 batch[BATCH_BYTES];
} aof;

static ulong appended, refused, failed;
module_param(appended, ulong, 0444);
MODULE_PARM_DESC(appended, "SETs that are in Redis's log");
module_param(refused, ulong, 0444);
MODULE_PARM_DESC(refused, "SETs that found no room, or no file yet");
module_param(failed, ulong, 0444);
MODULE_PARM_DESC(failed, "SETs of batches that the file did not take");

static bool ends_so(struct dentry *dentry)
{
	struct name_snapshot name;
	size_t end = sizeof(LOG_NAME_END) - 1;
	bool is_so;

	take_dentry_name_snapshot(&name, dentry);
	is_so = name.name.len >= end &&
		!memcmp(name.name.name + name.name.len - end, LOG_NAME_END, end);
	release_dentry_name_snapshot(&name);
	return is_so;
}

/* Under the lock of the table of descriptors. */
static int take_log(const void *to, struct file *file, unsigned int fd)
{
	if (!S_ISREG(file_inode(file)->i_mode) || !(file->f_mode & FMODE_WRITE) ||
	    !file->f_op->fsync || !ends_so(file->f_path.dentry))
		return 0;
	**(struct file * *const *)to = get_file(file);
	return fd + 1;
}

__bpf_kfunc_start_defs();

/* Holds the first file that this process may write and whose name ends in ".aof". For programs that may sleep, so for
 * uprobes: all others may have interrupted who holds a lock of the table. Its descriptor; -ENOENT: there is none;
 * -EEXIST: one is held already. */
__bpf_kfunc int erb_find_fd(void)
{
	struct file *file = NULL, **to = &file;
	int found;

	if (READ_ONCE(aof.file))
		return -EEXIST;
	found = current->files ? iterate_fd(current->files, 0, take_log, &to) : 0;
	if (!found)
		return -ENOENT;
	if (cmpxchg(&aof.file, NULL, file)) {
		fput(file);
		return -EEXIST;
	}
	pr_info("erb_aof: %s (%d) has %pD as descriptor %d\n", current->comm, current->tgid, file,
		found - 1);
	return found - 1;
}

/* Takes a record of redis/log.h, as erb_io_push() does. 0; -EINVAL: it is none; -ENOENT: no file is held; -EAGAIN: no
 * room. */
__bpf_kfunc int erb_aof_append(const void *record, u32 record__sz)
{
	int wrong = 0;

	if (record__sz < sizeof(struct log_front) || !record_sound(record, record__sz))
		return -EINVAL;
	scoped_guard(spinlock_irqsave, &aof.lock) {
		if (!READ_ONCE(aof.file))
			wrong = -ENOENT;
		else if (!kfifo_in(&aof.fifo, (const u8 *)record, record__sz))
			wrong = -EAGAIN;
		if (wrong)
			refused++;
	}
	if (!wrong)
		wake_up(&aof.wait);
	return wrong;
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(aof_kfuncs)
BTF_ID_FLAGS(func, erb_find_fd, KF_SLEEPABLE)
BTF_ID_FLAGS(func, erb_aof_append)
BTF_KFUNCS_END(aof_kfuncs)

static const struct btf_kfunc_id_set aof_kfunc_set = {
    .owner = THIS_MODULE,
    .set = &aof_kfuncs,
};

/* The command that has the same effect, as Redis would write it; how many bytes. */
static size_t command(const u8 *record, u8 *to)
{
	const u8 *value = record + sizeof(struct log_front), *key;
	struct log_front front;
	size_t bytes;

	memcpy(&front, record, sizeof(front));
	key = value + front.image.value_len;
	bytes = sprintf(to, "*%d\r\n$3\r\nSET\r\n$%u\r\n", front.record.expiry_ms ? 5 : 3,
			front.image.key_len);
	memcpy(to + bytes, key, front.image.key_len);
	bytes += front.image.key_len;
	bytes += sprintf(to + bytes, "\r\n$%u\r\n", front.image.value_len);
	memcpy(to + bytes, value, front.image.value_len);
	bytes += front.image.value_len;
	bytes += sprintf(to + bytes, "\r\n");
	if (front.record.expiry_ms)
		bytes += sprintf(to + bytes, "$4\r\nPXAT\r\n$%d\r\n%llu\r\n",
				 snprintf(NULL, 0, "%llu", front.record.expiry_ms),
				 front.record.expiry_ms);
	return bytes;
}

static void write_batch(void)
{
	struct file *file = aof.file;
	size_t bytes = 0, records = 0;
	const struct cred *own;
	ssize_t wrote;
	u32 length;

	for (; records < BATCH_RECORDS; records++) {
		length = kfifo_out(&aof.fifo, aof.record, sizeof(aof.record));
		if (!length)
			break;
		bytes += command(aof.record, aof.batch + bytes);
	}
	if (!records)
		return;
	own = override_creds(file->f_cred);
	scoped_guard(mutex, &file->f_pos_lock)
		wrote = kernel_write(file, aof.batch, bytes, &file->f_pos);
	revert_creds(own);
	*(wrote == bytes ? &appended : &failed) += records;
	WRITE_ONCE(aof.unsynced, true);
}

static int write_thread(void *unused)
{
	while (!kthread_should_stop()) {
		write_batch();
		wait_event_interruptible(aof.wait,
					 !kfifo_is_empty(&aof.fifo) || kthread_should_stop());
	}
	while (!kfifo_is_empty(&aof.fifo))
		write_batch();
	return 0;
}

/* Cleared first: what is written meanwhile is synced the next time. */
static void sync_log(struct work_struct *unused)
{
	if (xchg(&aof.unsynced, false))
		vfs_fsync(aof.file, 1);
	schedule_delayed_work(&aof.sync, HZ);
}

static int __init aof_init(void)
{
	int wrong;

	spin_lock_init(&aof.lock);
	init_waitqueue_head(&aof.wait);
	INIT_DELAYED_WORK(&aof.sync, sync_log);
	wrong = kfifo_alloc(&aof.fifo, FIFO_BYTES, GFP_KERNEL);
	if (wrong)
		return wrong;
	wrong = register_btf_kfunc_id_set(BPF_PROG_TYPE_KPROBE, &aof_kfunc_set);
	wrong = wrong ?: register_btf_kfunc_id_set(BPF_PROG_TYPE_TRACING, &aof_kfunc_set);
	if (!wrong) {
		aof.writer = kthread_run(write_thread, NULL, "erb_aof_write");
		wrong = PTR_ERR_OR_ZERO(aof.writer);
	}
	if (wrong) {
		kfifo_free(&aof.fifo);
		return wrong;
	}
	schedule_delayed_work(&aof.sync, HZ);
	pr_warn("erb_aof: " WARNING);
	return 0;
}

static void __exit aof_exit(void)
{
	kthread_stop(aof.writer);
	cancel_delayed_work_sync(&aof.sync);
	if (aof.file) {
		vfs_fsync(aof.file, 1);
		fput(aof.file);
	}
	kfifo_free(&aof.fifo);
}

module_init(aof_init);
module_exit(aof_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("ERB, for study: appends to Redis's own log what was answered in its place");
