/* SPDX-License-Identifier: GPL-2.0 */
/* entry_xdp.h - the XDP tier's program, of whatever handler the object is compiled with. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/packet.h"
#include "net/work.h"
#include "splice/absorb.h"
#include "splice/closed.h"
#include "splice/hidden.h"
#include "splice/icmp.h"
#include "splice/ingress.h"
#include "splice/lane.h"
#include "splice/stages.h"

/* closed_to(), before anything but the headers is read. Global: verified by itself. */
__noinline int closed_look(ctx_t *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();

	if (!c || !w || ingress_parse(ctx) != PARSE_TCP || !closed_to(c, conn_get(&w->p.key)))
		return 0;
	count(STAT_UP_UNREAD);
	return 1;
}

SEC("xdp")
int erb_xdp(struct xdp_md *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	bool back = w && w->laned == LANED_BACK; /* Q3, before anybody else parses */
	int action;

	if (w)
		w->laned = 0;
	if (c && closed(c)) {
		if (closed_to_all(c))
			return XDP_PASS;
		if (closed_look(ctx)) {
			tier_note(ctx, META_TRANSLATED);
			return XDP_PASS;
		}
	}
	action = back ? LANE_LEFT : lane(ctx);
	if (action == LANE_ABSORB) {
		stage_go(ctx, STAGE_ABSORB);
		return XDP_DROP;
	}
	if (action != LANE_LEFT)
		return action;
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
		return tier_to_tc(ctx);
	case V_ABSORB:
		stage_go(ctx, STAGE_ABSORB);
		return XDP_DROP;
	case V_PLAIN:
		tier_note(ctx, META_TRANSLATED);
		return XDP_PASS;
	default:
		return XDP_PASS;
	}
}

/* A packet that erb_xdp has looked at, and that may be a write to be answered: splice/absorb.h. */
INLINE int xdp_absorb(struct xdp_md *ctx, bool keeps)
{
	struct work *w = work_get();

	if (!w)
		return XDP_DROP;
	switch (w->laned ? lane_absorb(ctx, keeps) : absorb(ctx, keeps)) {
	case V_SENT:
		return XDP_TX;
	case V_TO_TC:
		return tier_to_tc(ctx);
	case V_REFUSED:
		w->laned = LANED_BACK;
		stage_go(ctx, STAGE_WHOLE);
		return XDP_DROP;
	default:
		return XDP_DROP;
	}
}

SEC("xdp")
int erb_xdp_absorb(struct xdp_md *ctx)
{
	return xdp_absorb(ctx, false);
}

/* In its place where a module keeps every write. */
SEC("xdp")
int erb_xdp_keep(struct xdp_md *ctx)
{
	return xdp_absorb(ctx, true);
}
