/* SPDX-License-Identifier: GPL-2.0 */
/* checksum.h - whether a packet's bytes may be believed. */
#pragma once
#include "base/seam.h"
#include "net/csum.h"
#include "net/packet.h"
#include "net/work.h"

/* Adds the TCP header to the pseudo-header's sum and verifies IPv4's own. Returns false if that is
 * wrong; *bare: the TCP field equals the bare pseudo-header sum. */
INLINE bool headers_ok(struct work *w, u32 off, u64 *sum, bool *bare)
{
	u32 l3 = tier_l3_kept(w), tcp_len = w->p.tcp_bytes;
	u16 ip_sum;

	if (w->p.family == 4) {
		if (w->head[l3] == 0x45)
			ip_sum = csum_fold(csum_words(w->head + l3, 5));
		else
			ip_sum = csum_ipv4(w->head + l3, (w->head[l3] & 0x0f) * 4);
		if (ip_sum != 0xffff)
			return false;
	}
	*bare = *(u16 *)(w->head + off + 16) == csum_fold(*sum);
	if (tcp_len == 32) {
		*sum += csum_words(w->head + off, 8);
	} else {
		opaque(tcp_len);
		tcp_len &= 0x3c;
		*sum += bpf_csum_diff(0, 0, (__be32 *)(w->head + off), tcp_len, 0);
	}
	return true;
}

/* The usual packet's sums without a call: a short payload that is loaded already, sums in full.
 * Returns false if checksum_ok must decide. */
INLINE bool checksum_short_ok(ctx_t *ctx, struct work *w)
{
	u32 off = w->p.l4_off, len = w->p.payload_len;
	u64 sum = csum_pseudo(&w->p, w->p.tcp_bytes + len);
	bool bare;

	opaque(off);
	if (!len || len != w->loaded || len > CSUM_SHORT || w->p.tcp_bytes != 32 ||
	    off > HEAD_BYTES - TCP_BYTES_MAX || !headers_ok(w, off, &sum, &bare))
		return false;
	w->bare = 0;
	return csum_fold(sum + csum_short(w->payload, len)) == 0xffff;
}

/* Copies the payload's first PAYLOAD_BYTES into w->payload and verifies the packet's sums: TCP's
 * must be right in full, or be the bare pseudo-header sum that a local stack leaves on veth and
 * virtio (w->bare: it stays as it is); IPv4's must be right. Where ip_summed does not say it, one
 * cannot tell a right sum that equals the bare one, as one in 65,536 does, but by summing: it is
 * updated like any other. The other way round, a bare one that sums up, does no harm: the stack
 * that left it does not verify. Without it a corrupted segment, which the kernel drops, would move
 * scanner and acknowledgements. Fragments cannot be verified and are not. Global: verified by
 * itself. */
__noinline int checksum_ok(ctx_t *ctx)
{
	struct work *w = work_get();
	u32 off, len, sum = 0;
	u64 pseudo;
	bool bare, partial, right;
	int i;

	if (!w)
		return false;
	w->bare = 0;
	off = w->p.l4_off;
	len = w->p.payload_len;
	pseudo = csum_pseudo(&w->p, w->p.tcp_bytes + len);
	opaque(off);
	if (off > HEAD_BYTES - TCP_BYTES_MAX || !headers_ok(w, off, &pseudo, &bare))
		return false;
	partial = tier_csum_partial(ctx);
	if (len && len == w->loaded && !bare && !partial) { /* one chunk, the usual case */
		len = ((len - 1) & (CSUM_CHUNK - 1)) + 1;
		sum = bpf_csum_diff(0, 0, (__be32 *)w->payload, (len + 3) & ~3U, 0);
		return (w->p.odd & ODD_F_FRAGMENT) || tier_merged(ctx) ||
		       csum_fold(pseudo + sum) == 0xffff;
	}
	w->pos = 0; /* in memory: the verifier must not count it */
	bpf_for(i, 0, 65536 / CSUM_CHUNK)
	{
		u32 pos = w->pos, n = len - pos, at = pos & (PAYLOAD_BYTES - CSUM_CHUNK);

		if (pos >= len || (partial && pos >= PAYLOAD_BYTES))
			break;
		if (n > CSUM_CHUNK)
			n = CSUM_CHUNK;
		opaque(n);
		n = ((n - 1) & (CSUM_CHUNK - 1)) + 1;
		if (pos || n > w->loaded) {
			if (tier_load(ctx, w->p.payload_off + pos, w->payload + at, n))
				return false;
			if (n & 3)
				*(u32 *)(w->payload + at + n) = 0;
		}
		n = (n + 3) & ~3U;
		opaque(n);
		if (n <= CSUM_CHUNK)
			sum = bpf_csum_diff(0, 0, (__be32 *)(w->payload + at), n, sum);
		w->pos = pos + CSUM_CHUNK;
	}
	if (w->p.odd & ODD_F_FRAGMENT)
		return true;
	right = csum_fold(pseudo + sum) == 0xffff;
	w->bare = partial || (bare && !right);
	return right || w->bare || tier_merged(ctx); /* GRO has verified its parts */
}
