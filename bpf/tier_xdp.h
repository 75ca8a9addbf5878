/* SPDX-License-Identifier: GPL-2.0 */
/* tier_xdp.h - packet access of the XDP tier: room, stores, verdicts. */
#pragma once
#include "work.h"

#define TIER_XDP 1
typedef struct xdp_md ctx_t;

/* XDP metadata: one of two constants for the TC tier, never a value per packet (GRO merges and
 * orders by it). */
#define META_TRANSLATED 0x45524254
#define META_TO_TC	0x45524243

INLINE u32 tier_len(ctx_t *ctx)
{
	return ctx->data_end - ctx->data;
}

INLINE long tier_load(ctx_t *ctx, u32 off, void *to, u32 len)
{
	return bpf_xdp_load_bytes(ctx, off, to, len);
}

INLINE long tier_store(ctx_t *ctx, u32 off, void *from, u32 len)
{
	return bpf_xdp_store_bytes(ctx, off, from, len);
}

INLINE bool tier_merged(ctx_t *ctx)
{
	return false;
}

INLINE u32 tier_ifindex(ctx_t *ctx)
{
	return ctx->ingress_ifindex;
}

/* Tells the TC tier what has been done. Fails where the driver has no metadata: TC then runs the
 * whole path on the unchanged packet. */
INLINE bool tier_mark(ctx_t *ctx, u32 meta)
{
	u32 *at;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(u32)))
		return false;
	at = (void *)(long)ctx->data_meta;
	if ((void *)(at + 1) > (void *)(long)ctx->data)
		return false;
	*at = meta;
	return true;
}

enum grown { GROWN_NOT = 0, GROWN_TAIL, GROWN_HEAD, GROWN_FAILED };

/* Makes the frame n bytes longer: at the head, else at the tail. Everything is rewritten anyway,
 * and veth, whose frames are sized to the packet, has about 200 bytes of head room and no tail
 * room. */
INLINE enum grown tier_grow(ctx_t *ctx, s32 n)
{
	if (n <= 0)
		return GROWN_NOT;
	if (!bpf_xdp_adjust_head(ctx, -n))
		return GROWN_HEAD;
	if (!bpf_xdp_adjust_tail(ctx, n))
		return GROWN_TAIL;
	return GROWN_FAILED;
}

/* Undoes tier_grow: the frame is as it arrived, nothing has been written to it. Cannot fail. */
INLINE void tier_ungrow(ctx_t *ctx, s32 n, enum grown how)
{
	if (how == GROWN_TAIL)
		bpf_xdp_adjust_tail(ctx, -n);
	else if (how == GROWN_HEAD)
		bpf_xdp_adjust_head(ctx, n);
}

/* Writes headers and payload over the frame, len bytes in all, and sends it back. */
INLINE int tier_send(ctx_t *ctx, struct work *w, u32 header_len)
{
	u32 len = header_len + w->reply_len, from = sizeof(w->out) - header_len;
	s32 shrink = len - tier_len(ctx);

	if (shrink < 0 && bpf_xdp_adjust_tail(ctx, shrink))
		return XDP_DROP;
	opaque(from);
	if (from > sizeof(w->out) || !sized(len, sizeof(w->out) + REPLY_BYTES_MAX) ||
	    bpf_xdp_store_bytes(ctx, 0, w->out + from, len))
		return XDP_DROP;
	return XDP_TX;
}
