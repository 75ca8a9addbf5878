// SPDX-License-Identifier: GPL-2.0
/* xdp.bpf.c - the XDP tier. Read ingress.h from its end upward for one packet's life. */
#include "seam.h"
#include "tier_xdp.h"
#include "ingress.h"

char LICENSE[] SEC("license") = "GPL";

SEC("xdp")
int erb_xdp(struct xdp_md *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();

	if (!c || !w)
		return XDP_PASS;
	switch (ingress_parse(ctx)) {
	case PARSE_ICMP:
		ingress_icmp(ctx);
		return XDP_PASS;
	case PARSE_TCP:
		break;
	default:
		return hidden_bytes(ctx, w) ? XDP_DROP : XDP_PASS;
	}
	w->now = now_ns();
	switch (ingress_tcp(ctx, w, c)) {
	case V_DROP:
		return XDP_DROP;
	case V_SENT:
		return XDP_TX;
	case V_TO_TC:
		count(STAT_TO_TC);
		tier_mark(ctx, META_TO_TC); /* unmarked, TC treats it alike */
		return XDP_PASS;
	case V_PLAIN:
		tier_mark(ctx, META_TRANSLATED);
		return XDP_PASS;
	default:
		return XDP_PASS;
	}
}
