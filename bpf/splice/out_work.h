/* SPDX-License-Identifier: GPL-2.0 */
/* out_work.h - per-CPU scratch of TC egress: the packet at hand, and the handler's. */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"
#include "net/packet.h"
#include "net/work.h"
#include HANDLER_WORK

struct out_work {
	struct pkt p;
	u32 ifindex; /* the packet's device */
	u32 nobodys; /* a reset of no socket: E3 */
	u32 in_delta;
	u32 out_delta;
	u32 tsval;
	u32 tsecr;
	u32 scan_from;
	u32 replies;   /* whole ones that the handler found */
	u32 out_at;    /* enum stream_at behind them */
	u32 scan_lost; /* they cannot be counted */
	u32 drop;
	u64 timed_ns; /* when the request arrived that the packet answers, if it was sampled; else 0 */
	u32 became; /* enum erb_stat of a state change, 0 = none */
	u32 pos;    /* offset in the payload */
	struct chunk chunk;
	struct handler_out h;
	u8 head[256] __attribute__((aligned(8)));
	u8 old_tcp[64] __attribute__((aligned(8)));
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct out_work);
} out_work_map SEC(".maps");

INLINE struct out_work *out_work_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&out_work_map, &zero);
}
