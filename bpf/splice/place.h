/* SPDX-License-Identifier: GPL-2.0 */
/* place.h - each entry of the table has a place, a number by which the daemon finds it. So timer and sweep
 * run in pieces of WALK_PLACES, and on those entries alone that need them.
 *
 * Invariants:
 *  P1. Whoever makes an entry takes a place for it, behind the insertion; erb_release gives it back before
 *      the deletion. So one of conns_max places is always free. Of those that were given back the oldest
 *      is taken: a ring, for which no two ever compete.
 *  P2. An entry with unacknowledged fast bytes is on PLACES_TIMER, one that holds something on PLACES_HELD,
 *      or is about to be put there. conn.called says so under the entry's lock; the list's byte is set
 *      behind the lock. The walk clears the byte first. Then it looks at the entry under its lock, and
 *      sets the byte again if the entry still belongs there. One thread walks.
 *  P3. A new entry is on all lists: so what was done to it before it had a place is found. */
#pragma once
#include "base/seam.h"
#include "net/work.h"

INLINE struct place *place_get(u32 place)
{
	u32 index = place - 1;

	return bpf_map_lookup_elem(&erb_places, &index);
}

/* Puts a place on a list or takes it off. Global: verified by itself. */
__noinline int place_set(u32 place, u32 list, u32 on)
{
	u32 index = (place - 1) / PLACE_LINE;
	struct place_line *line = bpf_map_lookup_elem(&erb_place_lines, &index);

	if (line && list < PLACE_LISTS)
		write_once(line->on[list][(place - 1) & (PLACE_LINE - 1)], (u8)on);
	return 0;
}

/* P2: notes that the entry's place belongs on the list. Lock held. */
INLINE void place_note(struct conn *conn, struct work *w, u32 list)
{
	if (conn->called & 1 << list)
		return;
	conn->called |= 1 << list;
	w->call = conn->place;
}

/* Puts it there. Behind the lock. */
INLINE void place_call(struct work *w, u32 list)
{
	u32 place = read_once(w->call);

	if (!place)
		return;
	w->call = 0;
	place_set(place, list, 1);
}

/* P1: for an entry that was made just now. */
INLINE void place_take(struct control *c, const struct conn_key *key)
{
	struct conn *conn = conn_get(key);
	u32 most = c->conns_max, turn, place;
	struct place *row;

	if (!conn || !most)
		return;
	turn = atomic_add_before(&c->places_taken, 1) % most;
	row = place_get(turn + 1);
	place = row && row->free ? row->free : turn + 1; /* 0: was never given back */
	row = place_get(place);
	if (!row)
		return;
	__builtin_memcpy(&row->key, key, sizeof(row->key));
	lock_take(&conn->lock);
	conn->place = place;
	conn->called = 1 << PLACES_TIMER | 1 << PLACES_HELD;
	lock_release(&conn->lock);
	load_barrier();
	for (u32 list = 0; list < PLACE_LISTS; list++)
		place_set(place, list, 1);
}

/* P1: before its entry is deleted. */
INLINE void place_give(struct control *c, u32 place)
{
	u32 most = c->conns_max;
	struct place *row;

	if (!place || !most)
		return;
	for (u32 list = 0; list < PLACE_LISTS; list++)
		place_set(place, list, 0);
	row = place_get(c->places_given % most + 1);
	if (!row)
		return;
	row->free = place;
	atomic_add(&c->places_given, 1);
}
