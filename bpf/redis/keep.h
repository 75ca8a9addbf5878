/* SPDX-License-Identifier: GPL-2.0 */
/* keep.h - the kernel module that keeps every write which is answered (kmod/), as the keep programs see it. Its functions
 * are weak: the object loads without it, and these programs then answer no write. Which it is, is decided when a
 * program is loaded.
 *
 * Invariants:
 *  K8. Room is reserved before the write is committed, and so before it has an LSN. A reservation that is not used is
 *      as good as none: the next one of this CPU takes its place.
 *  K9. What was reserved is pushed once, when it has its LSN, before the head of the log ring moves and before the
 *      word of erb_busy is taken back. So who waits for the words finds all with the module that has an LSN.
 */
#pragma once
#include "base/seam.h"
#include "net/work.h"
#include "redis/log.h"
#include "splice/handler.h"

#define KEEP_FULL (-11) /* EAGAIN: its memory is full of what is not synced */

extern int erb_io_reserve(u32 bytes) __ksym __weak;
extern int erb_io_push(const void *record, u32 record__sz) __ksym __weak;

/* Of the record at hand. */
INLINE u32 keep_bytes(const struct work *w)
{
	return sizeof(struct log_record) + w->h.absorbed.bytes;
}

INLINE u32 handler_keep_reserve(const struct work *w)
{
	int refused;

	if (!bpf_ksym_exists(erb_io_reserve))
		return STAT_ABSORB_SHUT;
	refused = erb_io_reserve(keep_bytes(w));
	if (!refused)
		return 0;
	return refused == KEEP_FULL ? STAT_ABSORB_FULL : STAT_ABSORB_SHUT;
}

/* Pushes the record behind the ring's head, which is whole: it was reserved, and so is taken. */
INLINE void keep_push(const struct work *w, const struct log_ring *log)
{
	u32 head = log->head & (LOG_BYTES - 1), bytes = keep_bytes(w);

	opaque(bytes);
	if (bytes <= LOG_RECORD_BYTES_MAX && bpf_ksym_exists(erb_io_push))
		erb_io_push(log->bytes + head, bytes);
}
