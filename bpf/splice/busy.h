/* SPDX-License-Identifier: GPL-2.0 */
/* busy.h - whoever takes effects for a packet that goes up lets those finish who answer a write at that moment
 * (splice/absorb.h).
 *
 * Who answers a write says so in his CPU's word of erb_busy, then looks once more whether a mark, the fence or the
 * gate stands in his way, and clears the word when his LSN is given and his record is there.
 *
 * Invariants:
 *  I1. Between an effect that is taken and the question for the order each word of erb_busy is looked at, behind a full
 *      barrier. So of two that meet one sees the other: he who answers sees the effect and leaves it, or his
 *      word is seen, and the question is asked behind his LSN. Else the command would run between two drains of one
 *      record.
 *  I2. A word that moves is as good as 0: who has begun since has seen the effect. So a wait is for one write.
 *  I3. The wait is bounded, for the other CPU may be one of a virtual machine that is not run. Then the packet is
 *      dropped, and what it took is given back: this is before the commit.
 *  I4. While nobody answers writes no word is looked at: order_watched() is 0. It is read behind the effect: who
 *      sets it later sees the effect. */
#pragma once
#include "base/seam.h"

INLINE u64 *busy_get(u32 cpu)
{
	struct busy_line *line = bpf_map_lookup_elem(&erb_busy, &cpu);

	return line ? &line->word : 0;
}

/* This CPU is about to answer a write of the set: full barriers, so what is looked at behind that is looked at behind
 * it. Returns its word, 0: nobody would look at it. */
INLINE u64 *busy_begin(const struct control *c, u32 set)
{
	u32 cpu = bpf_get_smp_processor_id();
	u64 *word = cpu < read_once(c->order.watch) ? busy_get(cpu) : 0;

	if (word)
		atomic_set(word, ((read_once(*word) | BUSY_SET) + 1) | (set + 1));
	return word;
}

/* It has, or does not. */
INLINE void busy_end(u64 *word)
{
	atomic_set(word, read_once(*word) & ~(u64)BUSY_SET);
}

/* Whether this CPU has finished, or was not at it. Global: verified by itself. */
__noinline int busy_ends(u32 cpu)
{
	u64 *word = busy_get(cpu), was;
	int i;

	if (!word)
		return 1;
	was = read_once(*word);
	if (!(was & BUSY_SET))
		return 1;
	bpf_for(i, 0, BUSY_LOOKS)
	{
		load_barrier();
		if (read_once(*word) != was)
			return 1;
	}
	return 0;
}

/* Whether all have finished that answered a write when the effects at hand were taken. Global: verified by itself. */
__noinline int busy_passed(void)
{
	struct control *c = control_get();
	u32 cpus = c ? read_once(c->order.watch) : 0;
	int i;

	full_barrier();
	bpf_for(i, 0, BUSY_CPUS)
	{
		if (i >= cpus)
			break;
		if (!busy_ends(i)) {
			count(STAT_DROP_BUSY);
			return 0;
		}
	}
	return 1;
}
