/* SPDX-License-Identifier: GPL-2.0 */
/* chunk_load.h - how a scanner gets the next piece of a packet. */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"

/* Loads the piece at pos unless a word there lies whole in the one at hand. len: the payload's,
 * above pos. Returns false if it cannot be read. */
INLINE bool chunk_load(ctx_t *ctx, struct chunk *chunk, u32 payload_off, u32 pos, u32 len)
{
	u32 loaded = read_once(chunk->end), n = len - pos;

	if (pos + SCAN_WORD <= loaded || loaded >= len)
		return true;
	if (n > SCAN_CHUNK)
		n = SCAN_CHUNK;
	opaque(n);
	n = ((n - 1) & (SCAN_CHUNK - 1)) + 1;
	if (tier_load(ctx, payload_off + pos, chunk->bytes, n))
		return false;
	chunk->at = pos;
	chunk->end = pos + n;
	return true;
}
