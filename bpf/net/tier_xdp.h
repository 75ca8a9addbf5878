/* SPDX-License-Identifier: GPL-2.0 */
/* tier_xdp.h - packet access of the XDP tier: room, stores, verdicts. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/work.h"

#define TIER_XDP 1
typedef struct xdp_md ctx_t;

/* XDP metadata: one of two constants for the TC tier, never a value per packet (GRO merges and
 * orders by it). */
#define HEAD_SURE   80	/* a frame of at least this many bytes is copied without a call */
#define STORE_SHORT 256 /* a reply frame of at most this many bytes is written without a call */

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

/* The frame's first len bytes. Not by the helper, if it can be helped: it is three calls deep, and
 * where returns are protected against speculation (SRSO) each costs about 7 ns. The last word is
 * copied twice in part, which saves a copy by bytes. */
INLINE long tier_load_head(ctx_t *ctx, u8 *to, u32 len)
{
	u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	u32 last = len - 8;

	if (at + HEAD_SURE > end)
		return bpf_xdp_load_bytes(ctx, 0, to, len);
	for (u32 i = 0; i < HEAD_SURE; i += 8)
		*(u64 *)(to + i) = *(u64 *)(at + i);
#pragma unroll
	for (u32 i = HEAD_SURE; i < HEAD_BYTES; i += 8) {
		if (at + i + 8 > end)
			break;
		*(u64 *)(to + i) = *(u64 *)(at + i);
	}
	opaque(last);
	if (last > HEAD_BYTES - 8 || at + last + 8 > end)
		return -1;
	*(u64 *)(to + last) = *(u64 *)(at + last);
	return 0;
}

INLINE long tier_store(ctx_t *ctx, u32 off, void *from, u32 len)
{
	return bpf_xdp_store_bytes(ctx, off, from, len);
}

/* A frame says nothing of its checksum. */
INLINE bool tier_csum_partial(ctx_t *ctx)
{
	return false;
}

INLINE u32 tier_l3(ctx_t *ctx)
{
	return ETH_BYTES;
}

/* The offset that the parser kept: one of two, which the verifier sees. */
INLINE u32 tier_l3_kept(const struct work *w)
{
	return w->p.l3_off == L2_BYTES_MAX ? L2_BYTES_MAX : ETH_BYTES;
}

INLINE bool tier_merged(ctx_t *ctx)
{
	return false;
}

INLINE u32 tier_ifindex(ctx_t *ctx)
{
	return ctx->ingress_ifindex;
}

/* The tag is in the frame. */
INLINE u32 tier_tag(ctx_t *ctx)
{
	return 0;
}

/* Tells the TC tier what has been done. Fails where the driver has no metadata: TC then runs the
 * whole path on the unchanged packet. */
INLINE bool tier_note(ctx_t *ctx, u32 meta)
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

/* Takes the note back: the frame is as it arrived. Cannot fail. */
INLINE void tier_unnote(ctx_t *ctx)
{
	bpf_xdp_adjust_meta(ctx, sizeof(u32));
}

/* Leaves the packet to the TC tier, which treats it alike if it cannot be marked. */
INLINE int tier_to_tc(ctx_t *ctx)
{
	count(STAT_TO_TC);
	tier_note(ctx, META_TO_TC);
	return XDP_PASS;
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

/* The frame's bytes, len of 16 to STORE_SHORT: without the helper for the reason of tier_load_head,
 * and with its last word twice. */
INLINE long tier_store_short(ctx_t *ctx, const u8 *from, u32 len)
{
	u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	u32 last = len - 4;

	/* In two steps, before the loop: of len less one number the verifier would learn what the loop's ends say of len,
	 * and follow each end by itself. */
	opaque(last);
	last -= 4;
	opaque(last);
#pragma unroll
	for (u32 i = 0; i < STORE_SHORT; i += 8) {
		if (i + 8 > len || at + i + 8 > end)
			break;
		*(u64 *)(at + i) = *(const u64 *)(from + i);
	}
	/* Read anew, for the same reason: the loop's ends differ in the bytes that are known to follow at. */
	at = (void *)(long)read_once(ctx->data);
	end = (void *)(long)read_once(ctx->data_end);
	opaque(last);
	if (last > STORE_SHORT - 8 || at + last + 8 > end)
		return -1;
	*(u64 *)(at + last) = *(const u64 *)(from + last);
	return 0;
}

/* Writes headers and payload over the frame, len bytes in all, and sends it back. */
INLINE int tier_send(ctx_t *ctx, struct work *w, u32 header_len)
{
	u32 len = header_len + w->reply_len, from = sizeof(w->out) - header_len;
	s32 shrink = len - tier_len(ctx);

	if (shrink < 0 && bpf_xdp_adjust_tail(ctx, shrink))
		return XDP_DROP;
	opaque(from);
	if (from > sizeof(w->out) || !sized(len, sizeof(w->out) + REPLY_BYTES_MAX))
		return XDP_DROP;
	if (len <= STORE_SHORT)
		return tier_store_short(ctx, w->out + from, len) ? XDP_DROP : XDP_TX;
	return bpf_xdp_store_bytes(ctx, 0, w->out + from, len) ? XDP_DROP : XDP_TX;
}
