/* SPDX-License-Identifier: GPL-2.0 */
/* tier_skb.h - packet access of the TC tier: the same interface over an skb. It sends by clone and
 * keeps the original, which goes up as the pure ACK that the kernel must get. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/work.h"

#define TIER_XDP 0
typedef struct __sk_buff ctx_t;

#define META_TRANSLATED 0x45524254
#define META_TO_TC	0x45524243
#define SKB_MARK_CLONE	0x45524243 /* skb->mark of a segment that tcx egress must leave alone */

INLINE u32 tier_len(ctx_t *ctx)
{
	return ctx->len;
}

INLINE long tier_load(ctx_t *ctx, u32 off, void *to, u32 len)
{
	return bpf_skb_load_bytes(ctx, off, to, len);
}

INLINE long tier_load_head(ctx_t *ctx, u8 *to, u32 len)
{
	return bpf_skb_load_bytes(ctx, 0, to, len);
}

INLINE long tier_store(ctx_t *ctx, u32 off, void *from, u32 len)
{
	return bpf_skb_store_bytes(ctx, off, from, len, 0);
}

/* The checksum field then holds the bare pseudo-header sum and the device or the stack completes
 * it: so must what we write. */
INLINE bool tier_csum_partial(ctx_t *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	return BPF_CORE_READ_BITFIELD(skb, ip_summed) == CHECKSUM_PARTIAL;
}

/* Offset of the IP header. Not that of Ethernet on devices that have another link layer or none
 * (tun, wireguard, ipip). */
INLINE u32 tier_l3(ctx_t *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	return skb->network_header - (u32)((u64)skb->data - (u64)skb->head);
}

/* The offset that the parser kept. */
INLINE u32 tier_l3_kept(const struct work *w)
{
	u32 l3 = w->p.l3_off;

	opaque(l3);
	return l3 & L3_OFF_MAX;
}

INLINE bool tier_merged(ctx_t *ctx)
{
	return ctx->gso_segs > 1;
}

INLINE u32 tier_ifindex(ctx_t *ctx)
{
	return ctx->ifindex;
}

/* The VLAN tag that the kernel has taken off before TC, as it was on the wire; 0 = none. What TC
 * sends by a clone of the packet is tagged by the kernel. */
INLINE u32 tier_tag(ctx_t *ctx)
{
	return ctx->vlan_present ? (ctx->vlan_proto & 0xffff) | (u32)bpf_htons(ctx->vlan_tci) << 16
				 : 0;
}

INLINE bool tier_note(ctx_t *ctx, u32 meta)
{
	return true;
}

/* What XDP left: 0 = nothing. */
INLINE u32 tier_meta(ctx_t *ctx)
{
	u32 *at = (void *)(long)ctx->data_meta;

	if ((void *)(at + 1) > (void *)(long)ctx->data)
		return 0;
	return *at;
}

enum grown { GROWN_NOT = 0, GROWN_TAIL, GROWN_HEAD, GROWN_FAILED };

/* Room is made when the clone is built; failing there is a lost segment, which replay covers. */
INLINE enum grown tier_grow(ctx_t *ctx, s32 n)
{
	return GROWN_NOT;
}

INLINE void tier_ungrow(ctx_t *ctx, s32 n, enum grown how)
{
}

/* Turns the skb into headers (w->out) and payload (w->reply) and sends a clone by the device. */
INLINE bool tier_clone(ctx_t *ctx, struct work *w, u32 header_len, u32 ifindex)
{
	u32 len = header_len + w->reply_len, from = sizeof(w->out) - header_len;
	u32 mark = ctx->mark;
	long err;

	if (bpf_skb_change_tail(ctx, len, 0))
		return false;
	opaque(from);
	if (from > sizeof(w->out) || !sized(len, sizeof(w->out) + REPLY_BYTES_MAX) ||
	    bpf_skb_store_bytes(ctx, 0, w->out + from, len, 0))
		return false;
	ctx->mark = SKB_MARK_CLONE;
	err = bpf_clone_redirect(ctx, ifindex, 0);
	ctx->mark = mark;
	return !err;
}
