/* SPDX-License-Identifier: GPL-2.0 */
/* piece.h - the piece at hand of what a handler scans, of the packet or of the buffer that it is in. */
#pragma once
#include "base/seam.h"
#include "net/chunk_load.h"
#include "net/work.h"
#include "splice/ahead.h"

/* Loads the piece of what is scanned at pos. */
INLINE bool piece_load(ctx_t *ctx, struct work *w, u32 pos)
{
#if !TIER_XDP
	if (w->ring)
		return ahead_chunk(pos);
#endif
	return chunk_load(ctx, &w->chunk, w->p.payload_off, pos, w->scan_len);
}
