/* SPDX-License-Identifier: GPL-2.0 */
/* heat.h - which keys are asked for most: the keys of sampled packets, while the daemon wants to hear of
 * them. It counts. Of a packet with several keys it hears of the last one that was looked up; of what only
 * the scanner has read, and of keys that are too long for the cache, of none. */
#pragma once
#include "base/seam.h"
#include "net/work.h"
#include "redis/get.h"
#include "splice/handler.h"

/* Global: verified by itself. */
__noinline int heat_note(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	struct miss *heat;

	if (!c || !w || !c->heat || !w->h.look.key_len)
		return 0;
	heat = bpf_ringbuf_reserve(&erb_heat, sizeof(*heat), 0);
	if (heat)
		key_tell(heat, w, SLOT_STRING);
	return 0;
}

INLINE void handler_sample_begin(struct work *w)
{
	w->h.look.key_len = 0;
}

INLINE void handler_sample_end(struct work *w)
{
	heat_note();
}
