/* SPDX-License-Identifier: GPL-2.0 */
/* entry_tc.h - the TC tiers' programs: ingress for what XDP leaves to it, egress for all that the kernel
 * sends, and those that the daemon runs against the table of connections. Of whatever handler the object
 * is compiled with. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/packet.h"
#include "net/work.h"
#include "splice/absorb.h"
#include "splice/closed.h"
#include "splice/egress.h"
#include "splice/hidden.h"
#include "splice/icmp.h"
#include "splice/ingress.h"
#include "splice/inject.h"
#include "splice/lane_down.h"
#include "splice/latency.h"
#include "splice/order.h"
#include "splice/stages.h"
#include "splice/table.h"

#define LOOPBACK_IFINDEX 1 /* include/net/flow.h, in every network namespace */

SEC("tcx/ingress")
int erb_tc_ingress(struct __sk_buff *ctx)
{
	struct control *c;
	struct work *w;

	if (tier_meta(ctx) == META_TRANSLATED) /* most packets: before anything is fetched */
		return TCX_NEXT;
	c = control_get();
	w = work_get();
	if (!c || !w || closed_to_all(c))
		return TCX_NEXT;
	sample_begin(w, c);
	if (ctx->mark == SKB_MARK_FEED) {
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
		return w->p.payload_len && order_unseen(w, c) == V_DROP ? TCX_DROP : TCX_NEXT;
	}
	w->now = now_ns();
	switch (ingress_tcp(ctx, w, c)) {
	case V_DROP:
		return TCX_DROP;
	case V_ABSORB:
		stage_go(ctx, STAGE_ABSORB);
		return TCX_DROP;
	default:
		return TCX_NEXT;
	}
}

/* A packet that erb_tc_ingress has looked at, and that may be a write to be answered: splice/absorb.h. */
INLINE int tc_absorb(struct __sk_buff *ctx, bool keeps)
{
	switch (absorb(ctx, keeps)) {
	case V_DROP:
		return TCX_DROP;
	case V_REFUSED:
		stage_go(ctx, STAGE_WHOLE);
		return TCX_DROP;
	default:
		return TCX_NEXT;
	}
}

SEC("tcx/ingress")
int erb_tc_absorb(struct __sk_buff *ctx)
{
	return tc_absorb(ctx, false);
}

/* In its place where a module keeps every write. */
SEC("tcx/ingress")
int erb_tc_keep(struct __sk_buff *ctx)
{
	return tc_absorb(ctx, true);
}

SEC("tcx/egress")
int erb_tc_egress(struct __sk_buff *ctx)
{
	int action;

	if (ctx->mark == SKB_MARK_CLONE && ctx->ingress_ifindex) {
		ctx->mark = 0;
		count(STAT_EGRESS_CLONE);
		return TCX_NEXT;
	}
	action = lane_down(ctx);
	return action != LANE_DOWN_LEFT ? action : egress_packet(ctx);
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
int erb_inject(struct __sk_buff *ctx)
{
	struct control *c = control_get();
	struct inject_io *io;
	u32 zero = 0;

	io = bpf_map_lookup_elem(&erb_inject_io, &zero);
	return c && io ? inject(ctx, io, c) : INJECT_FULL;
}
