/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* redis/log.h - the log rings: a write that was answered in Redis's place (redis/absorb.h) waits here until the daemon
 * has brought it to Redis. Mirrored into Rust like abi.h. The daemon's side reads these rings (drain). What orders them,
 * struct log_order, is part of struct control.
 *
 * One ring for each CPU. A position counts bytes since the boost and never goes back; the byte is at
 * position % LOG_BYTES. A record that begins before the end runs over it, into LOG_OVERRUN_BYTES: none is
 * in two parts. The next one begins at the position behind it all the same, so the first bytes of the ring
 * are then skipped.
 *
 * Each record has a number, its LSN. They begin with 1, have no gaps, and grow within a ring; over all
 * rings they tell the order in which the writes were answered. */
#pragma once
#include "base/limits.h"

#define LOG_BYTES	  (4 << 20) /* 20 ms of 1 M/s records of 192 bytes; power of two */
#define LOG_OVERRUN_BYTES 4096	    /* a page, more than the longest record */
#define LOG_ALIGN	  64	    /* a record begins with a cache line, and nobody shares it */
#define LOG_RECORD_BYTES_MAX                                                                       \
	(CLASS3_BYTES + LOG_ALIGN) /* the largest slot and a header, rounded up */

enum log_kind {
	LOG_NONE = 0, /* zeros are no record */
	LOG_SET,      /* the key has this string from now on, whatever it had */
};

/* A record's head. The slot's image follows: its header, value and key, as in struct slot; cache epoch and
 * expiry of that are not looked at. */
struct log_record {
	__u64 lsn;
	__u64 expiry_ms; /* wall clock; 0 = none */
	__u32 bytes;	 /* of head and image; the next record begins at the next LOG_ALIGN */
	__u16 kind;	 /* enum log_kind */
	__u16 pad;
};

/* A CPU's ring. Each of the two is written by another one, at another pace: a line for each. */
struct log_ring {
	__u64 head; /* its CPU: records before this position are whole */
	__u64 pad1[7];
	__u64 tail; /* daemon: records before this position are in Redis, their room is free */
	__u64 pad2[7];
	__u8 bytes[LOG_BYTES + LOG_OVERRUN_BYTES];
};
