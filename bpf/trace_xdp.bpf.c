// SPDX-License-Identifier: GPL-2.0
/* trace_xdp.bpf.c - the XDP tier while somebody traces: xdp.bpf.c unchanged, watched from outside.
 * It takes the tier's place on its links, as another build would; see crates/product/datapath/src/trace.rs.
 */
#define HANDLER_ABI  "redis/abi.h"
#define HANDLER_WORK "redis/work.h"
#include "base/seam.h"
#include "net/tier_xdp.h"
#include "splice/hidden.h"
#include "splice/icmp.h"
#include "splice/ingress.h"
#include "splice/stages.h"
#include "redis/handler.h"

char traced_by[] SEC("license") = "GPL";

#include "trace/trace_frame.h"
#include "xdp.bpf.c"

__attribute__((section("xdp"), used)) int trace_xdp(struct xdp_md *ctx)
{
	int traced = trace_enter(ctx, TRACE_XDP), action = erb_xdp(ctx);
	u32 *at = (void *)(long)ctx->data_meta, bits = action == XDP_TX ? TRACE_F_REPLY : 0;

	if (!traced)
		return action;
	if ((void *)(at + 1) <= (void *)(long)ctx->data && *at == META_TRANSLATED)
		bits |= TRACE_F_TRANSLATED;
	trace_leave(ctx, action, bits);
	return action;
}
