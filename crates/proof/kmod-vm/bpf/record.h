/* SPDX-License-Identifier: GPL-2.0 */
/* record.h - a record as the data path makes it, and the kfuncs that take it: for programs that push. */
#pragma once
#include "base/kernel_types.h"
#include "redis/log.h"

extern int erb_io_reserve(__u32 bytes) __ksym __weak;
extern int erb_io_push(const void *record, __u32 record__sz) __ksym __weak;
extern void erb_prefetch(const void *memory, __u32 memory__sz) __ksym __weak;

#define RECORD_HEAD    (sizeof(struct log_record) + 12) /* and a slot's header */
#define RECORD_KEY_LEN 8				/* the key is the record's number */

/* struct NAME: a record whose value has so many bytes at most. No struct of its own for the head, which would be rounded up. */
#define RECORD_OF(NAME, VALUE_LEN_MAX)                                                             \
	struct NAME {                                                                              \
		struct log_record record;                                                          \
		__u32 cache_epoch;                                                                 \
		__u16 value_len;                                                                   \
		__u16 key_len;                                                                     \
		__u8 flags;                                                                        \
		__u8 type;                                                                         \
		__u16 db;                                                                          \
		__u8 data[(VALUE_LEN_MAX) + RECORD_KEY_LEN];                                       \
	}

/* All but the value, which is whatever was there. The caller has bounded its length. */
#define record_fill(to, number, length)                                                            \
	({                                                                                         \
		(to)->record.lsn = (number);                                                       \
		(to)->record.bytes = RECORD_HEAD + (length) + RECORD_KEY_LEN;                      \
		(to)->record.kind = LOG_SET;                                                       \
		(to)->value_len = (length);                                                        \
		(to)->key_len = RECORD_KEY_LEN;                                                    \
		*(__u64 *)((to)->data + (length)) = (number);                                      \
	})
