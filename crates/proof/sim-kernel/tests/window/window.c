// SPDX-License-Identifier: Apache-2.0 OR MIT
/* window.c - set_undrained() of cache/drained.h as it is, against every history of so many steps and with every
 * number of steps between any two of its reads. Where it has a barrier the world goes on.
 *
 * Prints "asked <n> undrained <n> wrong <n> slow <n>": wrong says that an acknowledged write is in Redis which
 * is not; slow, though nothing moves, that one is not which is. */
#define HANDLER_WORK "redis/work.h"
#define HANDLER_ABI  "redis/abi.h"
#include "cache/drained.h"

#include <stdio.h>

#define STEPS 7

struct sim_ops sim_ops;

/* What a step does: a write to the set gets its LSN, and notes it (then it is acknowledged); a write to another
 * set; a batch is drained. */
enum { GIVE, NOTE, OTHER, DRAIN, ACTS };

static struct log_order order;
static struct cache_set set;
static u64 noted; /* the set's LSN, whole */
static u64 owed;  /* given to a write of the set and not noted yet */
static u32 history, at, until[2], barriers;

/* One step; false: it cannot be taken now. */
static bool step(void)
{
	u32 act = history >> 2 * at & 3;

	switch (act) {
	case GIVE:
		if (owed)
			return false;
		owed = ++order.lsn;
		break;
	case NOTE:
		if (!owed)
			return false;
		noted = owed;
		set.lsn = owed;
		owed = 0;
		break;
	case OTHER:
		order.lsn++;
		break;
	case DRAIN:
		/* A write that has no note yet is in no ring. */
		if (order.drained == order.lsn || order.drained + 1 == owed)
			return false;
		order.drained++;
		break;
	}
	at++;
	return true;
}

static void go_to(u32 end)
{
	while (at < end)
		if (!step())
			at = end; /* the rest of this history is another one */
}

static void point(void)
{
	go_to(until[barriers++ & 1]);
}

/* As the world was when so many LSNs were drained, and the set's last one was so far back. */
static void begin(u64 base, u64 behind, u64 outstanding)
{
	order.drained = base;
	order.lsn = base + outstanding;
	noted = base - behind;
	set.lsn = noted;
	owed = at = barriers = 0;
}

int main(void)
{
	/* Around where halves wrap, and where their signs turn. */
	static const u64 bases[] = {5, 1ULL << 31, (1ULL << 32) - 3,
				    (1ULL << 32) + (1ULL << 31) - 2, 7ULL << 32};
	/* The set's last one: the newest that is drained, some before, nearly half and nearly all that can be told
	 * apart. */
	static const u64 behinds[] = {0, 1, 3, (1ULL << 31) - 1, 1ULL << 31, (1ULL << 32) - 16};
	u64 asked = 0, undrained = 0, wrong = 0, slow = 0;

	sim_ops.point = point;
	for (history = 0; history < 1U << 2 * STEPS; history++)
		for (u32 which = 0; which < 5 * 6 * 3; which++)
			for (u32 i = 0; i <= STEPS; i++)
				for (u32 j = i; j <= STEPS; j += 2)
					for (u32 k = j; k <= STEPS; k += 3) {
						u64 last, base = bases[which % 5];
						u64 behind = behinds[which / 5 % 6];
						bool said;

						if (behind > base)
							continue;
						begin(base, behind, which / 30);
						go_to(i);
						last = noted;
						until[0] = j;
						until[1] = k;
						said = set_undrained(&order, &set);
						asked++;
						undrained += said;
						wrong += !said && last > order.drained;
						slow += said && i == k && last <= order.drained;
					}
	printf("asked %llu undrained %llu wrong %llu slow %llu\n", asked, undrained, wrong, slow);
	return 0;
}
