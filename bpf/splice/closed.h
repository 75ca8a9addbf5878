/* SPDX-License-Identifier: GPL-2.0 */
/* closed.h - the cache is closed by an operator's word (crates/product/redis/src/closing.rs): a load that no
 * cache helps does not pay for having its requests read. What needs translation goes on as in a detach.
 *
 * Invariants:
 * L5. A packet passes unread only if its connection has no entry, or one without deltas. While any may pass
 *     so nothing is answered, and what was being answered before is done. So no delta appears later.
 * L6. Meanwhile no entry is made, and those without deltas go. So when reading begins again there is none
 *     whose stream went on without it.
 * L7. What an entry holds needs no proof to be given back then: nothing is in the cache, nor gets there. */
#pragma once
#include "base/seam.h"

/* Whether packets may pass unread. */
INLINE bool closed(const struct control *c)
{
	return read_once(c->stopping) >= STOPPING_UNREAD;
}

/* Whether all do: asked before anything is fetched. */
INLINE bool closed_to_all(const struct control *c)
{
	return read_once(c->stopping) == STOPPING_ALL_UNREAD;
}

/* Whether those of this connection do; NULL: it has no entry. Without the lock: L5. */
INLINE bool closed_to(const struct control *c, const struct conn *conn)
{
	return closed(c) && (!conn || !(conn->in_delta | conn->out_delta));
}
