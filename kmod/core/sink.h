/* SPDX-License-Identifier: GPL-2.0 */
/* sink.h - from fifos to a file: what is in a batch, what was written, what is synced, and whether more is taken.
 * Does no I/O: who calls writes what sink_fill gathered, and syncs between sink_sync_begin and sink_sync_done.
 *
 * Invariants:
 *  S1. A program's record is taken iff there is room, and the gate is open or room was reserved while it was.
 *  S2. The gate opens with a file alone, and keeps the first reason for which it was shut. From then on each CPU
 *      takes one record more at most: what it had reserved.
 *  S3. What was pushed stays in its fifo until a sync behind its write succeeded.
 *  S4. Numbers in a file have no gaps. After a failure the next file begins with the first that was not synced.
 *  S5. The flush flag is cleared before a sync asks what was written: what is written later sets it again.
 *  S6. Records of one journal are never written to a file of another.
 *
 * Whose: fifos' heads are their CPUs'. Merge and batch are the write thread's while a file is at work, else the
 * device's. `lock` below is the caller's, and is never held while a disk is waited for.
 */
#pragma once
#include "core/fifo.h"
#include "core/gate.h"
#include "core/merge.h"
#include "core/record.h"
#include "core/seam.h"

struct sink {
	u32 *gate; /* in memory that the daemon sees */
	u32 asleep;
	u32 flush; /* something was written since the last sync began */
	u32 seed;
	struct merge merge;
	u8 *batch;
	u32 batch_size; /* at least the largest record */
	u32 batch_bytes;
	u32 batch_records;
	u64 at; /* the file's bytes */
	u64 written_lsn;
	u64 syncing_lsn;
	u64 synced_lsn;
	u8 journal[16];
};

/* Whether a record of so many bytes can be pushed next by this CPU: 0, or why not. */
CORE_INLINE int sink_reserve(struct sink *s, struct fifo *fifo, u32 bytes)
{
	fifo->reserved = 0;
	if (core_load(s->gate) != GATE_OPEN)
		return -ESHUTDOWN;
	if (!bytes || bytes > RECORD_BYTES_MAX)
		return -EINVAL;
	if (!fifo_room(fifo, bytes)) {
		core_store(&fifo->refused, fifo->refused + 1);
		return -EAGAIN;
	}
	fifo->reserved = bytes;
	return 0;
}

/* Takes a record: 0, or why not. */
CORE_INLINE int sink_push(struct sink *s, struct fifo *fifo, const void *record, u32 bytes)
{
	struct log_front front;
	int refused;
	u8 *to;

	if (bytes < sizeof(front))
		return -EINVAL;
	memcpy(&front, record, sizeof(front));
	if (!record_sound(&front, bytes))
		return -EINVAL;
	if (bytes > fifo->reserved) {
		refused = sink_reserve(s, fifo, bytes);
		if (refused)
			return refused;
	}
	fifo->reserved = 0;
	to = fifo_at(fifo, fifo->head);
	memcpy(to, &front, sizeof(front));
	memcpy(to + sizeof(front), (const u8 *)record + sizeof(front), bytes - sizeof(front));
	core_store(&fifo->pushed, fifo->pushed + 1);
	core_release(&fifo->head, fifo->head + fifo_rounded(bytes));
	return 0;
}

/* Behind a push: whether the write thread is to be woken by this CPU. The barrier is the other half of that in
 * sink_sleep: one of the two sees the other's store. */
CORE_INLINE bool sink_wakes(struct sink *s, struct fifo *fifo)
{
	core_full_barrier();
	if (!core_load(&s->asleep) || !core_exchange(&s->asleep, 0))
		return false;
	core_store(&fifo->wakes, fifo->wakes + 1);
	return true;
}

/* The write thread is about to sleep until it is woken. Returns whether it may: nothing has come. */
CORE_INLINE bool sink_sleep(struct sink *s)
{
	core_store(&s->asleep, 1);
	core_full_barrier();
	if (merge_find(&s->merge) == MERGE_EMPTY)
		return true;
	core_store(&s->asleep, 0);
	return false;
}

/* Gathers what comes next, as far as there is room; says what stopped it. */
CORE_INLINE enum merge_found sink_fill(struct sink *s)
{
	enum merge_found found = MERGE_READY;

	s->batch_bytes = 0;
	s->batch_records = 0;
	while (s->batch_size - s->batch_bytes >= RECORD_BYTES_MAX) {
		found = merge_find(&s->merge);
		if (found != MERGE_READY)
			break;
		s->batch_bytes +=
		    record_encode(s->seed, merge_front(&s->merge), s->batch + s->batch_bytes);
		s->batch_records++;
		merge_take(&s->merge);
	}
	return found;
}

/* The whole batch was written. Under the lock. Returns whether a fifo is half full of what is not synced. */
CORE_INLINE bool sink_written(struct sink *s)
{
	bool pressed = false;
	u32 at;

	for (at = 0; at < s->merge.count; at++) {
		struct fifo *fifo = s->merge.fifos[at];

		fifo->written = fifo->read;
		pressed |= fifo->written - core_load(&fifo->tail) > fifo->size / 2;
	}
	s->written_lsn = s->merge.next - 1;
	s->at += s->batch_bytes;
	s->batch_bytes = 0;
	core_store(&s->flush, 1);
	return pressed;
}

/* Under the lock: whether a sync is due. Behind it all that was written until now is synced, if it succeeds. */
CORE_INLINE bool sink_sync_begin(struct sink *s)
{
	u32 at;

	if (!core_exchange(&s->flush, 0))
		return false;
	for (at = 0; at < s->merge.count; at++)
		s->merge.fifos[at]->syncing = s->merge.fifos[at]->written;
	s->syncing_lsn = s->written_lsn;
	return true;
}

/* Under the lock: it succeeded. */
CORE_INLINE void sink_sync_done(struct sink *s)
{
	u32 at;

	for (at = 0; at < s->merge.count; at++)
		core_release(&s->merge.fifos[at]->tail, s->merge.fifos[at]->syncing);
	s->synced_lsn = s->syncing_lsn;
}

/* Whether there is what is not synced. */
CORE_INLINE bool sink_retains(const struct sink *s)
{
	u32 at;

	for (at = 0; at < s->merge.count; at++)
		if (fifo_retains(s->merge.fifos[at]))
			return true;
	return false;
}

struct sink_counts {
	u64 pushed;
	u64 refused; /* for want of room */
	u64 wakes;
	u64 retained_bytes;
};

/* What the CPUs have counted. */
CORE_INLINE struct sink_counts sink_count(const struct sink *s)
{
	struct sink_counts counts = {0};
	u32 at;

	for (at = 0; at < s->merge.count; at++) {
		const struct fifo *fifo = s->merge.fifos[at];

		counts.pushed += core_load(&fifo->pushed);
		counts.refused += core_load(&fifo->refused);
		counts.wakes += core_load(&fifo->wakes);
		counts.retained_bytes += core_load(&fifo->head) - core_load(&fifo->tail);
	}
	return counts;
}

/* Both threads have left the file: back to what is not synced. */
CORE_INLINE void sink_rewind(struct sink *s)
{
	u32 at;

	for (at = 0; at < s->merge.count; at++)
		fifo_rewind(s->merge.fifos[at]);
	core_store(&s->flush, 0);
	s->written_lsn = s->synced_lsn;
	merge_restart(&s->merge, s->synced_lsn + 1);
}

/* Whether records may go on into this new segment: 0, or why not. */
CORE_INLINE int sink_accepts(const struct sink *s, const struct segment_header *header)
{
	if (!segment_header_sound(header))
		return -EINVAL;
	if (!sink_retains(s))
		return 0;
	if (memcmp(s->journal, header->journal, sizeof(s->journal)))
		return -ESTALE;
	return header->first_lsn > s->synced_lsn + 1 ? -EINVAL : 0;
}

/* No file is at work, and this segment is accepted: what was retained goes first into it. Opens the gate. */
CORE_INLINE void sink_begin(struct sink *s, const struct segment_header *header)
{
	if (!sink_retains(s))
		s->synced_lsn = header->first_lsn - 1;
	memcpy(s->journal, header->journal, sizeof(s->journal));
	s->seed = segment_seed(header);
	s->at = sizeof(*header);
	sink_rewind(s);
	core_store(s->gate, GATE_OPEN);
}

/* A file is at work, and all that was written to it is synced: the next batch goes into another segment. */
CORE_INLINE void sink_continue(struct sink *s, const struct segment_header *header)
{
	s->seed = segment_seed(header);
	s->at = sizeof(*header);
}

/* No file is at work: the next of what is retained, in order, whatever is missing; null: there is no more. */
CORE_INLINE const struct log_record *sink_read(struct sink *s)
{
	if (!s->merge.known)
		merge_look(&s->merge);
	return s->merge.known ? merge_front(&s->merge) : NULL;
}

/* No file is at work: what has this number or a lower one is nobody's any more. */
CORE_INLINE void sink_forget(struct sink *s, u64 lsn)
{
	u32 at;

	sink_rewind(s);
	for (at = 0; at < s->merge.count; at++) {
		struct fifo *fifo = s->merge.fifos[at];
		const struct log_record *front = fifo_front(fifo);

		for (; front && front->lsn <= lsn; front = fifo_front(fifo))
			fifo_take(fifo);
		core_release(&fifo->tail, fifo->read);
	}
	if (s->synced_lsn < lsn)
		s->synced_lsn = lsn;
	sink_rewind(s);
}
