// SPDX-License-Identifier: GPL-2.0
/* device.c - the daemon's calls, see erb_io.h. Each takes `lock`, and so waits for nothing but another call (I1). */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "io.h"

/* Under lock: the module may go when nothing is retained and no file is at work. */
void io_settle(void)
{
	struct io *io = &erb_io;

	if (!io->pinned || io->file || sink_retains(&io->sink))
		return;
	io->pinned = false;
	module_put(THIS_MODULE);
}

static int device_open(struct inode *inode, struct file *device)
{
	struct io *io = &erb_io;
	int refused = 0;

	mutex_lock(&io->lock);
	if (io->is_open)
		refused = -EBUSY;
	else
		io->is_open = true;
	mutex_unlock(&io->lock);
	return refused;
}

/* Also at the death of the daemon. */
static int device_release(struct inode *inode, struct file *device)
{
	struct io *io = &erb_io;

	mutex_lock(&io->lock);
	io->is_open = false;
	if (io->file) {
		gate_shut(&io->page->gate, GATE_CLOSED);
		WRITE_ONCE(io->closing, true);
	}
	mutex_unlock(&io->lock);
	io_wake_writer();
	return 0;
}

/* What is written at one place, by one write at a time, and can be synced. */
static int file_suits(struct file *file)
{
	if (!S_ISREG(file_inode(file)->i_mode))
		return -EINVAL;
	if (!(file->f_mode & FMODE_WRITE) || !(file->f_mode & FMODE_CAN_WRITE))
		return -EBADF;
	if (file->f_flags & (O_DIRECT | O_APPEND) || !file->f_op->fsync)
		return -EINVAL;
	return i_size_read(file_inode(file)) == sizeof(struct segment_header) ? 0 : -EEXIST;
}

/* Under lock: a file was begun, which has what comes behind this number. */
void io_begun(u64 before_lsn)
{
	struct erb_io_status *page = erb_io.page;

	WRITE_ONCE(page->file_bytes, erb_io.sink.at);
	WRITE_ONCE(page->before_lsn, before_lsn);
	WRITE_ONCE(page->files, page->files + 1);
}

/* Under lock. `beside`: the file at work may have what is not synced. */
static int file_take(struct file *file, const struct segment_header *header, bool beside)
{
	struct io *io = &erb_io;
	int refused;

	if (io->file && (io->next_file || io->closing || io->page->gate != GATE_OPEN ||
			 (!beside && sink_retains(&io->sink))))
		return -EBUSY;
	refused = segment_header_sound(header) ? 0 : -EINVAL;
	if (!refused && !(io->file && beside))
		refused = sink_accepts(&io->sink, header);
	if (refused)
		return refused;
	if (io->file) {
		if (memcmp(io->sink.journal, header->journal, sizeof(header->journal)) ||
		    header->first_lsn > io->sink.written_lsn + 1)
			return -EINVAL;
		io->next_header = *header;
		WRITE_ONCE(io->next_file, file);
		return 0;
	}
	if (!io->pinned)
		__module_get(THIS_MODULE);
	io->pinned = true;
	io->file = file;
	sink_begin(&io->sink, header);
	WRITE_ONCE(io->page->error, 0);
	WRITE_ONCE(io->page->written_lsn, io->sink.written_lsn);
	WRITE_ONCE(io->page->synced_lsn, io->sink.synced_lsn);
	memcpy(io->page->journal, io->sink.journal, sizeof(io->page->journal));
	io_begun(io->sink.synced_lsn);
	/* From here on the merge is the write thread's. */
	smp_store_release(&io->page->state, ERB_IO_WORK);
	return 0;
}

static long device_file(const void __user *argument, bool beside)
{
	struct segment_header header;
	struct erb_io_file asked;
	struct file *file;
	int refused;

	BUILD_BUG_ON(sizeof(asked.header) != sizeof(header));
	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.pad)
		return -EINVAL;
	memcpy(&header, asked.header, sizeof(header));
	file = fget(asked.fd);
	if (!file)
		return -EBADF;
	refused = file_suits(file);
	if (!refused) {
		mutex_lock(&erb_io.lock);
		refused = file_take(file, &header, beside);
		mutex_unlock(&erb_io.lock);
	}
	if (refused)
		fput(file);
	else
		io_wake_writer();
	return refused;
}

static long device_status(void __user *argument)
{
	struct erb_io_status *page = erb_io.page, status;
	struct sink_counts counts;

	mutex_lock(&erb_io.lock);
	counts = sink_count(&erb_io.sink);
	page->pushed = counts.pushed;
	page->refused = counts.refused;
	page->wakes = counts.wakes;
	page->retained_bytes = counts.retained_bytes;
	status = *page;
	mutex_unlock(&erb_io.lock);
	return copy_to_user(argument, &status, sizeof(status)) ? -EFAULT : 0;
}

static long device_forget(const void __user *argument)
{
	struct io *io = &erb_io;
	long refused = 0;
	u64 lsn;

	if (copy_from_user(&lsn, argument, sizeof(lsn)))
		return -EFAULT;
	mutex_lock(&io->lock);
	if (io->file) {
		refused = -EBUSY;
	} else {
		sink_forget(&io->sink, lsn);
		WRITE_ONCE(io->page->written_lsn, io->sink.written_lsn);
		WRITE_ONCE(io->page->synced_lsn, io->sink.synced_lsn);
		io_settle();
	}
	mutex_unlock(&io->lock);
	return refused;
}

static long device_ioctl(struct file *device, unsigned int command, unsigned long argument)
{
	void __user *at = (void __user *)argument;

	switch (command) {
	case ERB_IO_FILE:
		return device_file(at, false);
	case ERB_IO_NEXT:
		return device_file(at, true);
	case ERB_IO_STATUS:
		return device_status(at);
	case ERB_IO_SYNC:
		io_ask_sync();
		return 0;
	case ERB_IO_FORGET:
		return device_forget(at);
	}
	return -ENOTTY;
}

/* Under lock: whole records, as many as there is room for. */
static ssize_t records_out(char __user *to, size_t room)
{
	struct sink *sink = &erb_io.sink;
	const struct log_record *record;
	size_t done = 0;
	u32 bytes;

	while ((record = sink_read(sink))) {
		bytes = fifo_rounded(record->bytes);
		if (bytes > room - done)
			return done ?: -EMSGSIZE;
		if (copy_to_user(to + done, record, bytes))
			return -EFAULT;
		done += bytes;
		merge_take(&sink->merge);
	}
	return done;
}

static ssize_t device_read(struct file *device, char __user *to, size_t room, loff_t *position)
{
	struct io *io = &erb_io;
	ssize_t done = -EBUSY;

	mutex_lock(&io->lock);
	if (!io->file) {
		/* From the first one on, whoever read before. */
		if (!*position)
			sink_rewind(&io->sink);
		done = records_out(to, min_t(size_t, room, MAX_RW_COUNT));
		if (done > 0)
			*position += done;
	}
	mutex_unlock(&io->lock);
	return done;
}

static int device_mmap(struct file *device, struct vm_area_struct *area)
{
	if (area->vm_flags & VM_WRITE)
		return -EPERM;
	vm_flags_clear(area, VM_MAYWRITE);
	return remap_vmalloc_range(area, erb_io.page, area->vm_pgoff);
}

static const struct file_operations device_calls = {
    .owner = THIS_MODULE,
    .open = device_open,
    .release = device_release,
    .read = device_read,
    .mmap = device_mmap,
    .unlocked_ioctl = device_ioctl,
    .llseek = default_llseek,
};

static struct miscdevice device = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "erb_io",
    .mode = 0600,
    .fops = &device_calls,
};

int io_device_register(void)
{
	return misc_register(&device);
}

void io_device_deregister(void)
{
	misc_deregister(&device);
}
