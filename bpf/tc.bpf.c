// SPDX-License-Identifier: GPL-2.0
/* tc.bpf.c - the TC tiers: ingress for what XDP leaves to it, egress for all that the kernel sends,
 * and the programs that the daemon runs against the table of connections. */
#include "seam.h"
#include "tier_skb.h"
#include "ingress.h"
#include "egress.h"
#include "table.h"

#define LOOPBACK_IFINDEX 1 /* include/net/flow.h, in every network namespace */

char LICENSE[] SEC("license") = "GPL";

SEC("tcx/ingress")
int erb_tc_ingress(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();

	if (!c || !w || tier_meta(ctx) == META_TRANSLATED)
		return TCX_NEXT;
	if (ctx->mark == MARK_FEED) {
		count(STAT_UP_FEED);
		return TCX_NEXT;
	}
	switch (ingress_parse(ctx)) {
	case PARSE_ICMP:
		ingress_icmp(ctx);
		return TCX_NEXT;
	case PARSE_TCP:
		break;
	default:
		return hidden_bytes(ctx, w) ? TCX_DROP : TCX_NEXT;
	}
	if (ctx->ifindex == LOOPBACK_IFINDEX && w->p.key.client_port_be == c->port_be) {
		/* Both directions pass: this may be Redis's reply as well as a request. */
		count(STAT_UP_UNTRACKED);
		return TCX_NEXT;
	}
	w->now = now_ns();
	return ingress_tcp(ctx, w, c) == V_DROP ? TCX_DROP : TCX_NEXT;
}

SEC("tcx/egress")
int erb_tc_egress(struct __sk_buff *ctx)
{
	if (ctx->mark == MARK_CLONE && ctx->ingress_ifindex) {
		ctx->mark = 0;
		count(STAT_EGRESS_CLONE);
		return TCX_NEXT;
	}
	return egress_packet(ctx);
}

SEC("tc")
int erb_tick(struct __sk_buff *ctx)
{
	return tick(ctx);
}

SEC("tc")
int erb_sweep(struct __sk_buff *ctx)
{
	return sweep(ctx);
}

SEC("tc")
int erb_release(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	struct release_io *io;
	u32 zero = 0;

	io = bpf_map_lookup_elem(&erb_release_io, &zero);
	return c && w && io ? release(io, w, c) : 0;
}

SEC("tc")
int erb_admit(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	struct admit_io *io;
	u32 zero = 0;

	io = bpf_map_lookup_elem(&erb_admit_io, &zero);
	return c && io ? admit(ctx, io, c) : 0;
}
