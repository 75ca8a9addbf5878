// SPDX-License-Identifier: GPL-2.0
/* trace_tc.bpf.c - the TC tiers while somebody traces: tc.bpf.c unchanged, watched from outside.
 * The timer and the other programs of the daemon are not traced; what they send passes egress. */
#define HANDLER_ABI  "redis/abi.h"
#define HANDLER_WORK "redis/work.h"
#include "base/seam.h"
#include "net/tier_skb.h"
#include "splice/egress.h"
#include "splice/hidden.h"
#include "splice/icmp.h"
#include "splice/ingress.h"
#include "splice/stages.h"
#include "splice/table.h"
#include "redis/admit.h"
#include "redis/handler.h"
#include "redis/proofs.h"
#include "redis/replies.h"

char traced_by[] SEC("license") = "GPL";

#include "trace/trace_frame.h"
#include "tc.bpf.c"

__attribute__((section("tcx/ingress"), used)) int trace_ingress(struct __sk_buff *ctx)
{
	int traced = trace_enter(ctx, TRACE_INGRESS), action = erb_tc_ingress(ctx);

	if (traced)
		trace_leave(ctx, action, 0);
	return action;
}

__attribute__((section("tcx/egress"), used)) int trace_egress(struct __sk_buff *ctx)
{
	int traced = trace_enter(ctx, TRACE_EGRESS), action = erb_tc_egress(ctx);

	if (traced)
		trace_leave(ctx, action, 0);
	return action;
}
