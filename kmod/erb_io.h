/* SPDX-License-Identifier: GPL-2.0 */
/* erb_io.h - the module's device, as the daemon sees it. Only one process has it open at a time.
 *
 *   ioctl ERB_IO_FILE    from here on records go to this new segment, whose header is written and synced
 *   ioctl ERB_IO_NEXT    the same beside a file at work that has records which are not synced: the write thread goes on
 *                        with this one behind a sync, between two batches; `files` says when
 *   ioctl ERB_IO_STATUS  all counters
 *   ioctl ERB_IO_SYNC    asks for a sync; synced_lsn says when it was done
 *   ioctl ERB_IO_FORGET  what is retained up to this number is nobody's any more; only while no file is at work
 *   mmap of a page       struct erb_io_status, read-only; what CPUs count is as of the last ERB_IO_STATUS
 *   read                 what is retained, in order: records of redis/log.h, each rounded up to 8 bytes
 *   close                no more is taken; what was pushed is written and synced, and the file let go
 *
 * No call waits for a disk. */
#pragma once
#include <linux/ioctl.h>
#include <linux/types.h>

struct erb_io_file {
	__s32 fd;
	__u32 pad;
	__u8 header[64]; /* as it is in the file, which has nothing else */
};

enum erb_io_state {
	ERB_IO_IDLE = 0, /* no file is at work */
	ERB_IO_WORK,
};

struct erb_io_status {
	__u32 gate;  /* enum gate; 0 = open */
	__u32 state; /* enum erb_io_state */
	__s32 error; /* of the last failure, negative; 0 = a short write, or none */
	__u32 fifos; /* CPUs that can push */
	__u64 written_lsn;
	__u64 synced_lsn;
	__u64 file_bytes;
	__u64 records; /* written, again after a failure */
	__u64 batches;
	__u64 syncs;
	__u64 failures;
	__u64 pushed;
	__u64 refused; /* a fifo was full */
	__u64 wakes;
	__u64 retained_bytes; /* pushed and not synced */
	__u64 files;	      /* that were begun */
	__u64 before_lsn;     /* the last number of former files */
	__u8 journal[16];     /* whose records these are */
};

#define ERB_IO_FILE   _IOW(0xEB, 1, struct erb_io_file)
#define ERB_IO_STATUS _IOR(0xEB, 2, struct erb_io_status)
#define ERB_IO_SYNC   _IO(0xEB, 3)
#define ERB_IO_FORGET _IOW(0xEB, 4, __u64)
#define ERB_IO_NEXT   _IOW(0xEB, 5, struct erb_io_file)
