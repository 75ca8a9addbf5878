/* SPDX-License-Identifier: GPL-2.0 */
/* handler.h - the Redis handler: what splice/handler.h asks, put together. */
#pragma once
#include "redis/hashes.h"
#include "redis/requests.h"
#include "base/seam.h"
#include "net/work.h"
#include "redis/absorb.h"
#include "redis/effects.h"
#include "redis/get.h"
#include "redis/heat.h"
#include "redis/modes.h"
#include "redis/strings.h"
#include "redis/usual.h"
#include "splice/handler.h"

INLINE u32 handler_answer(struct work *w, struct control *c, const struct conn *conn)
{
	fast_packet(w, c, conn);
	if (w->h.rights != conn->h.rights)
		return STAT_REFUSE_RIGHTS;
	return w->refusal;
}

INLINE u32 handler_answer_still(const struct conn *conn, const struct work *w)
{
	return conn->h.db != w->h.look.db || conn->h.rights != w->h.rights ? STAT_REFUSE_RACE : 0;
}

INLINE void handler_answered(struct work *w)
{
	count_n(STAT_FAST_GET, w->h.gets);
	if (w->h.pings)
		count_n(STAT_FAST_PING, w->h.pings);
	if (w->commands != w->h.gets + w->h.pings)
		more_count();
}

/* First the rights, then what may be done under them: M5. */
INLINE void handler_judge(struct work *w, const struct control *c)
{
	w->h.rights = read_once(c->rights);
	load_barrier();
	w->h.shut = read_once(c->open) == DOOR_SHUT;
}

INLINE void handler_begin(struct conn *conn, const struct work *w, bool known)
{
	struct handler_conn *h = &conn->h;

	h->db = 0;
	h->resp = known ? 2 : 0;
	h->kept = known && w->h.shut ? 0 : CONN_K_LET_IN;
	h->rights = w->h.rights;
	h->late = h->half = 0;
	h->slow = conn->state == CONN_BYPASS ? SLOW_FORMER : SLOW_NONE;
	if (!known)
		h->slow = conn->state == CONN_OLD ? SLOW_OLDER : SLOW_LISTENER;
	h->stateful_at = h->auth_at = 0;
	h->held_at = 0;
	conn->vain = 0;
	h->proof_pos = conn->next;
	modes_move(conn);
	__builtin_memset(&h->in, 0, sizeof(h->in));
	__builtin_memset(&h->out, 0, sizeof(h->out));
}

INLINE u32 handler_refusal(const struct conn *conn)
{
	return conn->h.slow == SLOW_USER ? STAT_REFUSE_USER : STAT_REFUSE_BYPASS;
}

INLINE bool handler_holds(const struct conn *conn)
{
	return conn_holds(conn);
}

INLINE void handler_lost(struct conn *conn)
{
	conn->h.kept |= CONN_K_NEVER;
	conn->h.slow = SLOW_UNSEEN;
	modes_move(conn);
}
