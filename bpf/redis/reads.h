/* SPDX-License-Identifier: GPL-2.0 */
/* reads.h - whether what a packet of nothing but fast commands reads may not be in Redis yet: splice/order.h,
 * Y7. Asked while anything is not drained, of a packet that goes up. It was read once, for an answer; that it is
 * read again costs nobody anything while all is drained.
 *
 * Why such a read may pass what is not drained, of other sets: nobody can tell. Who writes one of its keys and was
 * not made to wait for all of that has gone up before that was given, so he is answered, or his mark or his share
 * of the fence stands. Who comes later waits. So until all of that is drained the keys stay as they are read, and
 * the read might as well have run behind it. */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/drained.h"
#include "net/work.h"
#include "redis/get.h"
#include "redis/strings.h"

/* Whether the set of the key at hand is drained and unmarked. */
INLINE bool reads_settled(const struct work *w, const struct control *c)
{
	const struct cache_set *set = set_get(set_of(c, w->h.look.hash));

	return set && !read_once(set->marks) && !set_undrained(&c->order, set);
}

/* The next argument of the command at hand; key: is one. Returns 0 if it is none such in the packet, or not
 * settled. Global: verified by itself. */
__noinline int reads_arg(u32 key)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 off = 0, len = 0;

	if (!w || !c || !more_arg(w, &off, &len))
		return 0;
	if (!key)
		return 1;
	fast_key(w, c, off, len);
	return reads_settled(w, c);
}

/* Reads the command at w->pos. Returns 0 if a set that it reads is not settled. Global: verified by itself. */
__noinline int reads_next(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	enum fast_kind kind;
	int i;

	if (!w || !c)
		return 0;
	kind = fast_parse_one(w, c);
	if (kind == FAST_KIND_PING)
		return 1;
	if (kind == FAST_KIND_GET)
		return reads_settled(w, c);
	w->h.more.kind = more_begin(w, c);
	if (w->h.more.kind == FAST_NONE)
		return 0;
	bpf_for(i, 0, KEYS_PER_PACKET)
	{
		if (i >= w->h.more.args)
			break;
		if (!reads_arg(!i || more_many(&w->h.more)))
			return 0;
	}
	w->pos = w->h.more.at;
	return 1;
}

/* Whether all that the packet reads is settled. Global: verified by itself. */
__noinline int reads_pass(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	int i;

	if (!w || !c)
		return 0;
	w->pos = 0;
	bpf_for(i, 0, COMMANDS_PER_PACKET)
	{
		if (w->pos >= w->p.payload_len)
			break;
		if (!reads_next())
			return 0;
	}
	load_barrier(); /* who gives a mark away for a share has taken that before */
	return !read_once(c->fence);
}
