/* SPDX-License-Identifier: GPL-2.0 */
/* stages.h - programs of one tier that go on with each other's packet, by a tail call: the verifier's limit counts a
 * program and all that it calls, and one alone has no room for all. What the one has read the next finds in the
 * scratch (net/work.h), which is private to their object. An object whose stages nobody has filled calls none, and drops
 * what it would hand on: those of a trace are such, so writes are not answered while somebody traces (absorb.h, I10). */
#pragma once
#include "base/seam.h"

enum stage {
	STAGE_WHOLE = 0, /* erb_xdp, erb_tc_ingress: what every packet meets first */
	STAGE_ABSORB,	 /* erb_xdp_absorb, erb_tc_absorb; or erb_xdp_keep, erb_tc_keep */
	STAGES,
};

/* stage -> program; who loads the object fills it. Not pinned: each object has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STAGES);
	__type(key, __u32);
	__type(value, __u32);
} erb_stages SEC(".maps");

/* Goes on with that program. Comes back only if there is none: then the packet is dropped. */
#define stage_go(ctx, stage)                                                                       \
	do {                                                                                       \
		bpf_tail_call(ctx, &erb_stages, stage);                                            \
		count(STAT_DROP_RACE);                                                             \
	} while (0)
