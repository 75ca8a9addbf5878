/* SPDX-License-Identifier: GPL-2.0 */
/* fifo.h - records of one CPU on their way to the disk.
 *
 * Positions count bytes and never go back; the byte is at position & mask. A record that begins before the end runs
 * over it, as in redis/log.h: none is in two parts.
 *
 *     tail ............ written ............ read ............ head
 *       on the disk? ask      written, not        not yet
 *       the sync thread       yet written back    taken
 *
 * Invariants:
 *  F1. tail <= syncing, written <= read <= head, and head - tail <= size.
 *  F2. Only its CPU moves head, behind the bytes (release). Programs do not interrupt each other on one CPU: all of
 *      them run with bottom halves off. Who calls with bottom halves on is refused.
 *  F3. Only what was synced is free: tail moves behind a sync that succeeded. So a failed write or sync loses nothing.
 *  F4. What was reserved stays: room only grows until the CPU pushes. So a number that is taken between the two is
 *      always pushed, and leaves no gap.
 */
#pragma once
#include "core/record.h"
#include "core/seam.h"

#define FIFO_ALIGN 8
#define FIFO_LINE  64

struct fifo {
	/* Its CPU's. */
	u64 head;
	u64 tail_seen;
	u32 reserved; /* bytes of the record that must be taken */
	u32 pad1;
	u64 pushed;
	u64 refused;
	u64 wakes;
	u8 *bytes;
	u64 size; /* power of two; behind it there is room for the largest record */
	/* The write thread's, or the device's while no file is at work. */
	u64 read __attribute__((aligned(FIFO_LINE)));
	u64 head_seen;
	u64 written; /* under the sink's lock, as the next */
	u64 syncing;
	/* The sync thread's. */
	u64 tail __attribute__((aligned(FIFO_LINE)));
} __attribute__((aligned(FIFO_LINE)));

CORE_INLINE u32 fifo_rounded(u32 bytes)
{
	return (bytes + FIFO_ALIGN - 1) & ~(FIFO_ALIGN - 1);
}

CORE_INLINE void *fifo_at(const struct fifo *fifo, u64 position)
{
	return fifo->bytes + (position & (fifo->size - 1));
}

/* Whether there is room for a record of so many bytes. Its CPU alone. */
CORE_INLINE bool fifo_room(struct fifo *fifo, u32 bytes)
{
	u64 end = fifo->head + fifo_rounded(bytes);

	if (end - fifo->tail_seen <= fifo->size)
		return true;
	fifo->tail_seen = core_acquire(&fifo->tail);
	return end - fifo->tail_seen <= fifo->size;
}

/* The record that is not taken yet; null: none. The front's position is `read`. */
CORE_INLINE const struct log_record *fifo_front(struct fifo *fifo)
{
	if (fifo->read == fifo->head_seen)
		fifo->head_seen = core_acquire(&fifo->head);
	return fifo->read == fifo->head_seen ? NULL : fifo_at(fifo, fifo->read);
}

/* Takes the front, which is there. */
CORE_INLINE void fifo_take(struct fifo *fifo)
{
	const struct log_record *record = fifo_at(fifo, fifo->read);

	fifo->read += fifo_rounded(record->bytes);
}

/* Goes back to what is not synced: the write thread and the sync thread are at rest. */
CORE_INLINE void fifo_rewind(struct fifo *fifo)
{
	fifo->read = fifo->tail;
	fifo->written = fifo->tail;
	fifo->head_seen = fifo->tail;
}

/* Whether it has what is not synced. */
CORE_INLINE bool fifo_retains(const struct fifo *fifo)
{
	return core_acquire(&fifo->head) != core_load(&fifo->tail);
}
