/* SPDX-License-Identifier: GPL-2.0 */
/* sink.h - from fifos to a file: what is in a batch, what was written, what is synced, and whether more is taken.
 * Does no I/O: who calls writes what sink_fill gathered, and syncs between sink_sync_begin and sink_sync_done. What the
 * daemon is to see is in a page of its own (erb_io.h).
 *
 * States, and what moves them:
 *
 *            sink_begin                    the daemon closes, or a failure
 *     IDLE ---------------> WORK, gate open ---------------------------> WORK, gate shut
 *      ^                     ^      |                                        |
 *      |                     +------+ sink_continue                          |
 *      +---------------------------------------------------------------------+
 *                    sink_end: the write thread, when nobody uses the file
 *
 * Invariants:
 *  S1. A program's record is taken iff there is room, and the gate is open or room was reserved while it was.
 *  S2. The gate opens with a file alone, and keeps the first reason for which it was shut. From then on each CPU
 *      takes one record more at most: what it had reserved. With the file that ends, too.
 *  S3. What was pushed stays in its fifo until a sync behind its write succeeded.
 *  S4. Numbers in a file have no gaps. After a failure the next file begins with the first that was not synced.
 *  S5. The flush flag is cleared before a sync asks what was written: what is written later sets it again.
 *  S6. Records of one journal are never written to a file of another.
 *  S7. After a failed write or sync nothing is asked of that file any more.
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
#include "erb_io.h"

struct sink {
	struct erb_io_status *page; /* the gate is in it */
	u32 asleep;
	u32 flush; /* something was written since the last sync began */
	u32 seed;
	struct merge merge;
	u8 *batch;
	u32 batch_size; /* at least SEGMENT_RECORD_BYTES_MAX */
	u32 batch_bytes;
	u32 batch_records;
	u64 syncing_lsn;
	u64 missing_since;	    /* when a number was first missed; 0: none is */
	struct segment_header next; /* of the file that comes next; a first LSN of 0: none does */
};

/* Whether a file is at work. Then the merge is the write thread's. */
CORE_INLINE bool sink_works(const struct sink *s)
{
	return core_acquire(&s->page->state) == ERB_IO_WORK;
}

/* Whether a record of so many bytes can be pushed next by this CPU: 0, or why not. */
CORE_INLINE int sink_reserve(struct sink *s, struct fifo *fifo, u32 bytes)
{
	if (!core_undisturbed())
		return -EPERM;
	core_store(&fifo->reserved, 0);
	if (!fifo->size)
		return -ENODEV;
	if (core_load(&s->page->gate) != GATE_OPEN)
		return -ESHUTDOWN;
	if (!bytes || bytes > RECORD_BYTES_MAX)
		return -EINVAL;
	if (!fifo_room(fifo, bytes)) {
		core_add(&fifo->refused, 1);
		return -EAGAIN;
	}
	core_store(&fifo->reserved, bytes);
	return 0;
}

/* Takes a record: 0, or why not. */
CORE_INLINE int sink_push(struct sink *s, struct fifo *fifo, const void *record, u32 bytes)
{
	struct log_front front;
	int refused;
	u8 *to;

	if (!core_undisturbed())
		return -EPERM;
	if (!record || bytes < sizeof(front))
		return -EINVAL;
	memcpy(&front, record, sizeof(front));
	if (!record_sound(&front, bytes))
		return -EINVAL;
	if (bytes > fifo->reserved) {
		refused = sink_reserve(s, fifo, bytes);
		if (refused)
			return refused;
	}
	core_store(&fifo->reserved, 0);
	to = fifo_at(fifo, fifo->head);
	memcpy(to, &front, sizeof(front));
	memcpy(to + sizeof(front), (const u8 *)record + sizeof(front), bytes - sizeof(front));
	core_add(&fifo->pushed, 1);
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
	core_add(&fifo->wakes, 1);
	return true;
}

/* The write thread is about to sleep until it is woken. Returns whether it may: nothing has come, or none is its. */
CORE_INLINE bool sink_sleep(struct sink *s)
{
	core_store(&s->asleep, 1);
	core_full_barrier();
	if (!sink_works(s) || merge_find(&s->merge) == MERGE_EMPTY)
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
	while (s->batch_size - s->batch_bytes >= SEGMENT_RECORD_BYTES_MAX) {
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

/* What is wrong with what sink_fill found; GATE_OPEN: nothing. A gap is none while the CPU with that number is just about
 * to push it. `now` counts from 1 on. */
CORE_INLINE enum gate sink_judge(struct sink *s, enum merge_found found, u64 now, u64 patience)
{
	if (found == MERGE_BACKWARD)
		return GATE_BACKWARD;
	if (found != MERGE_MISSING)
		s->missing_since = 0;
	else if (!s->missing_since || s->batch_records)
		s->missing_since = now; /* another number than before, if some were gathered */
	else if (now - s->missing_since > patience)
		return GATE_GAP;
	return GATE_OPEN;
}

/* The file has failed, or its records are not as they should be. Returns whether nobody has said so before. Of a file
 * whose daemon has gone the failure says more. */
CORE_INLINE bool sink_fail(struct sink *s, enum gate why, int error)
{
	u32 *gate = &s->page->gate;

	if (!gate_shut(gate, why) && !core_swap(gate, GATE_CLOSED, why))
		return false;
	core_store(&s->page->error, error);
	core_add(&s->page->failures, 1);
	return true;
}

/* The whole batch was written. Under the lock. Returns whether a fifo is half full of what is not synced. */
CORE_INLINE bool sink_written(struct sink *s)
{
	struct erb_io_status *page = s->page;
	bool pressed = false;
	u32 at;

	for (at = 0; at < s->merge.count; at++) {
		struct fifo *fifo = s->merge.fifos[at];

		fifo->written = fifo->read;
		pressed |= fifo->written - core_load(&fifo->tail) > fifo->size / 2;
	}
	core_store(&page->written_lsn, s->merge.next - 1);
	core_add(&page->file_bytes, s->batch_bytes);
	core_add(&page->records, s->batch_records);
	core_add(&page->batches, 1);
	s->batch_bytes = 0;
	core_store(&s->flush, 1);
	return pressed;
}

/* Under the lock: whether a sync is due. Behind it all that was written until now is synced, if it succeeds. */
CORE_INLINE bool sink_sync_begin(struct sink *s)
{
	u32 at;

	if (!gate_sound(&s->page->gate) || !core_exchange(&s->flush, 0))
		return false;
	for (at = 0; at < s->merge.count; at++)
		s->merge.fifos[at]->syncing = s->merge.fifos[at]->written;
	s->syncing_lsn = s->page->written_lsn;
	return true;
}

/* Under the lock: it succeeded. */
CORE_INLINE void sink_sync_done(struct sink *s)
{
	u32 at;

	for (at = 0; at < s->merge.count; at++)
		core_release(&s->merge.fifos[at]->tail, s->merge.fifos[at]->syncing);
	core_store(&s->page->synced_lsn, s->syncing_lsn);
	core_add(&s->page->syncs, 1);
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

/* Under the lock: what the CPUs have counted. */
CORE_INLINE void sink_count(struct sink *s)
{
	struct erb_io_status *page = s->page;
	u32 at;

	page->pushed = 0;
	page->refused = 0;
	page->wakes = 0;
	page->retained_bytes = 0;
	for (at = 0; at < s->merge.count; at++) {
		const struct fifo *fifo = s->merge.fifos[at];

		page->pushed += core_load(&fifo->pushed);
		page->refused += core_load(&fifo->refused);
		page->wakes += core_load(&fifo->wakes);
		page->retained_bytes += core_load(&fifo->head) - core_load(&fifo->tail);
	}
}

/* Neither thread has a file: back to what is not synced. */
CORE_INLINE void sink_rewind(struct sink *s)
{
	u64 synced_lsn = s->page->synced_lsn;
	u32 at;

	for (at = 0; at < s->merge.count; at++)
		fifo_rewind(s->merge.fifos[at]);
	core_store(&s->flush, 0);
	core_store(&s->page->written_lsn, synced_lsn);
	merge_restart(&s->merge, synced_lsn + 1);
}

/* The gate is shut, and no program is between a reservation and its push: what was reserved and not used ends. */
CORE_INLINE void sink_unreserve(struct sink *s)
{
	u32 at;

	for (at = 0; at < s->merge.count; at++)
		core_store(&s->merge.fifos[at]->reserved, 0);
}

/* Under the lock: both threads have left the file. What it does not have for certain is retained. */
CORE_INLINE void sink_end(struct sink *s)
{
	sink_rewind(s);
	s->next.first_lsn = 0;
	core_store(&s->page->state, ERB_IO_IDLE);
}

/* Under the lock: whether a new segment may begin, or follow the one at work: 0, or why not. `beside`: while that one has
 * what is not synced. */
CORE_INLINE int sink_accepts(const struct sink *s, const struct segment_header *header, bool beside)
{
	const struct erb_io_status *page = s->page;
	bool retains = sink_retains(s), works = sink_works(s);

	if (works && (core_load(&page->gate) != GATE_OPEN || s->next.first_lsn))
		return -EBUSY;
	if (works && retains && !beside)
		return -EBUSY;
	if (!segment_header_sound(header))
		return -EINVAL;
	if (!works && !retains)
		return 0;
	if (memcmp(page->journal, header->journal, sizeof(page->journal)))
		return -ESTALE;
	return header->first_lsn > page->written_lsn + 1 ? -EINVAL : 0;
}

/* From here on records go to this segment, behind this number. */
CORE_INLINE void sink_segment(struct sink *s, const struct segment_header *header, u64 before_lsn)
{
	s->seed = segment_seed(header);
	s->missing_since = 0;
	core_store(&s->page->file_bytes, sizeof(*header));
	core_store(&s->page->before_lsn, before_lsn);
	core_add(&s->page->files, 1);
}

/* Under the lock: no file is at work, and this segment is accepted. What was retained goes first into it. Opens the gate,
 * and from here on the merge is the write thread's. */
CORE_INLINE void sink_begin(struct sink *s, const struct segment_header *header)
{
	struct erb_io_status *page = s->page;

	if (!sink_retains(s))
		core_store(&page->synced_lsn, header->first_lsn - 1);
	memcpy(page->journal, header->journal, sizeof(page->journal));
	sink_rewind(s);
	sink_segment(s, header, page->synced_lsn);
	core_store(&page->error, 0);
	core_store(&page->gate, GATE_OPEN);
	core_release(&page->state, ERB_IO_WORK);
}

/* Under the lock: the file that comes next is there, and all that was written to the one at work is synced. Returns whether
 * records go on there. */
CORE_INLINE bool sink_continue(struct sink *s)
{
	if (!gate_sound(&s->page->gate) || !s->next.first_lsn)
		return false;
	sink_segment(s, &s->next, s->page->written_lsn);
	s->next.first_lsn = 0;
	return true;
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
	if (s->page->synced_lsn < lsn)
		core_store(&s->page->synced_lsn, lsn);
	sink_rewind(s);
}
