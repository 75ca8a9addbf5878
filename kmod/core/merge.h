/* SPDX-License-Identifier: GPL-2.0 */
/* merge.h - the records of all fifos in the order of their numbers.
 *
 * Invariants:
 *  M1. A fifo that had a front when it was last looked at is in the heap, by that front's number.
 *  M2. Heads are looked at when the lowest known number is not the next one, not for each record: there may be 128.
 *  M3. What is taken is the next number. A number that is missing is waited for, not passed over.
 */
#pragma once
#include "core/fifo.h"
#include "core/seam.h"

enum merge_found {
	MERGE_READY,	/* the next record is there */
	MERGE_EMPTY,	/* no record is */
	MERGE_MISSING,	/* later ones are */
	MERGE_BACKWARD, /* an earlier one is: it was taken before, or its fifo is not in order */
};

struct merge_place {
	u64 lsn;
	struct fifo *fifo;
};

struct merge {
	struct merge_place *heap; /* room for all fifos */
	struct fifo **fifos;
	u32 count; /* of fifos */
	u32 known; /* of those in the heap */
	u64 next;
};

CORE_INLINE void merge_down(struct merge *m, u32 at, struct merge_place place)
{
	for (;;) {
		u32 child = 2 * at + 1;

		if (child >= m->known)
			break;
		if (child + 1 < m->known && m->heap[child + 1].lsn < m->heap[child].lsn)
			child++;
		if (m->heap[child].lsn >= place.lsn)
			break;
		m->heap[at] = m->heap[child];
		at = child;
	}
	m->heap[at] = place;
}

CORE_INLINE void merge_up(struct merge *m, struct merge_place place)
{
	u32 at = m->known++;

	while (at && m->heap[(at - 1) / 2].lsn > place.lsn) {
		m->heap[at] = m->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	m->heap[at] = place;
}

/* Looks at all heads. */
CORE_INLINE void merge_look(struct merge *m)
{
	u32 at;

	m->known = 0;
	for (at = 0; at < m->count; at++) {
		const struct log_record *front = fifo_front(m->fifos[at]);

		if (front)
			merge_up(m, (struct merge_place){front->lsn, m->fifos[at]});
	}
}

/* What comes next, which is then the heap's first. */
CORE_INLINE enum merge_found merge_find(struct merge *m)
{
	if (!m->known || m->heap[0].lsn != m->next)
		merge_look(m);
	if (!m->known)
		return MERGE_EMPTY;
	if (m->heap[0].lsn == m->next)
		return MERGE_READY;
	return m->heap[0].lsn > m->next ? MERGE_MISSING : MERGE_BACKWARD;
}

/* The heap's first record. */
CORE_INLINE const struct log_record *merge_front(const struct merge *m)
{
	return fifo_at(m->heap[0].fifo, m->heap[0].fifo->read);
}

/* Takes the heap's first record. */
CORE_INLINE void merge_take(struct merge *m)
{
	struct fifo *fifo = m->heap[0].fifo;
	const struct log_record *front;

	m->next = m->heap[0].lsn + 1;
	fifo_take(fifo);
	front = fifo_front(fifo);
	if (front)
		merge_down(m, 0, (struct merge_place){front->lsn, fifo});
	else if (--m->known)
		merge_down(m, 0, m->heap[m->known]);
}

/* Forgets what it knows of the fifos: their positions were moved. */
CORE_INLINE void merge_restart(struct merge *m, u64 next)
{
	m->known = 0;
	m->next = next;
}
