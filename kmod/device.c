// SPDX-License-Identifier: GPL-2.0
/* device.c - the daemon's calls, see erb_io.h. Each takes `lock`, and so waits for nothing but another call (I1). */
#include <linux/cleanup.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
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
	return xchg(&erb_io.is_open, 1) ? -EBUSY : 0;
}

/* Also at the death of the daemon. */
static int device_release(struct inode *inode, struct file *device)
{
	gate_shut(&erb_io.sink.page->gate, GATE_CLOSED);
	io_wake_writer();
	smp_store_release(&erb_io.is_open, 0);
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

/* Takes it over, if it is taken. */
static int file_take(struct file *file, const struct segment_header *header, bool beside)
{
	struct io *io = &erb_io;
	int refused;

	guard(mutex)(&io->lock);
	refused = sink_accepts(&io->sink, header, beside);
	if (refused)
		return refused;
	if (io->file && file_inode(file) == file_inode(io->file))
		return -EEXIST;
	if (io->file) {
		io->sink.next = *header;
		WRITE_ONCE(io->next_file, file);
		return 0;
	}
	if (!io->pinned)
		__module_get(THIS_MODULE);
	io->pinned = true;
	io->file = file;
	sink_begin(&io->sink, header);
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
	memcpy(&header, asked.header, sizeof(header));
	file = fget(asked.fd);
	if (!file)
		return -EBADF;
	refused = asked.pad ? -EINVAL : file_suits(file);
	refused = refused ?: file_take(file, &header, beside);
	if (refused)
		fput(file);
	else
		io_wake_writer();
	return refused;
}

static long device_status(void __user *argument)
{
	struct erb_io_status status;

	scoped_guard(mutex, &erb_io.lock) {
		sink_count(&erb_io.sink);
		status = *erb_io.sink.page;
	}
	return copy_to_user(argument, &status, sizeof(status)) ? -EFAULT : 0;
}

static long device_forget(const void __user *argument)
{
	u64 lsn;

	if (copy_from_user(&lsn, argument, sizeof(lsn)))
		return -EFAULT;
	guard(mutex)(&erb_io.lock);
	if (erb_io.file)
		return -EBUSY;
	sink_forget(&erb_io.sink, lsn);
	io_settle();
	return 0;
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

/* Whole records, as many as there is room for. That memory is fetched first: who has `lock` waits for none (I1). */
static ssize_t device_read(struct file *device, char __user *to, size_t room, loff_t *position)
{
	struct sink *sink = &erb_io.sink;
	const struct log_record *record;
	size_t done = 0;
	u32 bytes;

	if (room && fault_in_writeable(to, room) == room)
		return -EFAULT;
	guard(mutex)(&erb_io.lock);
	if (erb_io.file)
		return -EBUSY;
	if (!*position) /* from the first one on, whoever read before */
		sink_rewind(sink);
	while ((record = sink_read(sink))) {
		bytes = fifo_rounded(record->bytes);
		if (bytes > room - done || copy_to_user_nofault(to + done, record, bytes))
			break;
		done += bytes;
		merge_take(&sink->merge);
	}
	*position += done;
	return !record || done ? done : bytes > room ? -EMSGSIZE : -EFAULT;
}

static int device_mmap(struct file *device, struct vm_area_struct *area)
{
	if (area->vm_flags & VM_WRITE)
		return -EPERM;
	vm_flags_clear(area, VM_MAYWRITE);
	return remap_vmalloc_range(area, erb_io.sink.page, area->vm_pgoff);
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

struct miscdevice erb_io_device = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "erb_io",
    .mode = 0600,
    .fops = &device_calls,
};
