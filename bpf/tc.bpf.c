// SPDX-License-Identifier: GPL-2.0
/* tc.bpf.c - the TC tiers in front of Redis. */
#define HANDLER_ABI  "redis/abi.h"
#define HANDLER_WORK "redis/work.h"
#include "base/seam.h"
#include "net/tier_skb.h"
#include "splice/entry_tc.h"
#include "redis/admit.h"
#include "redis/handler.h"
#include "redis/proofs.h"
#include "redis/replies.h"

char LICENSE[] SEC("license") = "GPL";

SEC("tc")
int erb_admit(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	struct admit_io *io;
	u32 zero = 0;

	io = bpf_map_lookup_elem(&erb_admit_io, &zero);
	return c && io ? admit(ctx, io, c) : 0;
}
