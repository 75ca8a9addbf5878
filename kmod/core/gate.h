/* SPDX-License-Identifier: GPL-2.0 */
/* gate.h - whether records are taken. One word: programs look at it for each record, the daemon sees it without a call.
 * Its first reason stays: what follows from a failure does not hide it. */
#pragma once
#include "core/seam.h"

enum gate {
	GATE_OPEN = 0,
	GATE_NO_FILE,  /* none was handed over */
	GATE_CLOSED,   /* the daemon has gone: what was pushed is written */
	GATE_WRITE,    /* a write failed, or was short */
	GATE_SYNC,     /* a sync failed */
	GATE_GAP,      /* a number did not come */
	GATE_BACKWARD, /* a number came twice, or too late */
};

/* Returns whether it was open. */
CORE_INLINE bool gate_shut(u32 *gate, enum gate why)
{
	return core_swap(gate, GATE_OPEN, why);
}

/* Whether the file can be written: what shut the gate, if anything, is that the daemon has gone. */
CORE_INLINE bool gate_sound(const u32 *gate)
{
	u32 now = core_load(gate);

	return now == GATE_OPEN || now == GATE_CLOSED;
}
