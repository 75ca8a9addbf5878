/* SPDX-License-Identifier: GPL-2.0 */
/* latency.h - how long requests take, by their way (base/latency.def), of one packet in SAMPLE_ONE_OF.
 *
 * The exact clock costs as much as a tenth of a hit, so it is asked for sampled packets alone. All others
 * count down, in memory that is at hand. Of a sampled packet that goes up the entry keeps when it came, one
 * request at a time. What is held is rare: it is always timed, by the coarse clock.
 *
 * Invariants:
 *  Z7. Nothing that the splice decides depends on what is here: with control.sampling or without, the same
 *      packets leave.
 *  Z8. The entry times one request: the first sampled one that goes up while none is. It ends with the
 *      reply of its number, and with the entry.
 *  Z9. What is held is timed from the first packet that was dropped for it until one goes up again. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/work.h"
#include "splice/handler.h"

/* Whether the packet at hand is timed. */
INLINE bool sampled(const struct work *w)
{
	return w->sample_left == SAMPLE_ONE_OF;
}

/* A packet has arrived: first of all. */
INLINE void sample_begin(struct work *w, const struct control *c)
{
	s32 left = w->sample_left - 1;

	w->sample_left = left;
	if (left > 0)
		return;
	if (!c->sampling) {
		w->sample_left = SAMPLE_ONE_OF - 1;
		return;
	}
	w->sample_left = SAMPLE_ONE_OF;
	handler_sample_begin(w);
	w->arrived_ns = now_exact_ns();
}

/* The bucket of a time. */
INLINE u32 latency_bucket(u64 ns)
{
	u64 rest = ns;
	u32 log = 0;

	if (!(ns >> LATENCY_LEAST_LOG2))
		return 0;
	if (ns >> LATENCY_MOST_LOG2)
		return LATENCY_BUCKETS - 1;
#pragma unroll
	for (u32 step = 32; step; step /= 2) {
		if (rest >> step) {
			rest >>= step;
			log += step;
		}
	}
	rest = ns >> (log - LATENCY_STEPS_LOG2) & ((1 << LATENCY_STEPS_LOG2) - 1);
	return 1 + ((log - LATENCY_LEAST_LOG2) << LATENCY_STEPS_LOG2) + rest;
}

/* Counts a time. Global: verified by itself. */
__noinline int latency_add(u32 path, u64 ns)
{
	u32 zero = 0, bucket = latency_bucket(ns);
	struct latency *latency = bpf_map_lookup_elem(&erb_latency, &zero);

	opaque(path);
	opaque(bucket);
	if (!latency || path >= LATENCY_MAX || bucket >= LATENCY_BUCKETS)
		return 0;
	latency->sum_ns[path] += ns;
	latency->counts[path][bucket]++;
	return 0;
}

/* The sampled packet was answered. */
INLINE void latency_hit(struct work *w)
{
	latency_add(LATENCY_HIT, now_exact_ns() - w->arrived_ns);
	handler_sample_end(w);
}

/* The sampled packet goes up; it is counted, and has not gone yet. If whole requests came with it, the last one's
 * reply is waited for. Global, as here are few words left on the stack: a lock of its own costs samples alone. */
__noinline int latency_up(void)
{
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;

	if (!conn)
		return 0;
	lock_take(&conn->lock);
	if (conn->next == w->end && conn->in_at == STREAM_BETWEEN && !(conn->spoke & SPOKE_TIMED) &&
	    !(conn->flags & CONN_F_UNCOUNTABLE)) {
		conn->spoke |= SPOKE_TIMED;
		conn->timed_ns = w->arrived_ns;
		conn->timed_request = conn->requests;
	}
	lock_release(&conn->lock);
	handler_sample_end(w);
	return 0;
}

/* conn.replies has moved. Returns when the request arrived whose reply leaves, 0: none that is timed. Lock
 * held. */
INLINE u64 latency_replied(struct conn *conn)
{
	if (!(conn->spoke & SPOKE_TIMED) || seq_before(conn->replies, conn->timed_request))
		return 0;
	conn->spoke &= ~SPOKE_TIMED;
	return conn->timed_ns;
}

/* The reply leaves. */
INLINE void latency_down(u64 timed_ns)
{
	if (timed_ns)
		latency_add(LATENCY_UP, now_exact_ns() - timed_ns);
}

/* The packet is held, and dropped. */
__noinline int latency_hold(void)
{
	struct work *w = work_get();
	struct conn *conn = w ? conn_get(&w->p.key) : 0;

	if (!conn)
		return 0;
	lock_take(&conn->lock);
	if (!conn->held_ns)
		conn->held_ns = w->now;
	lock_release(&conn->lock);
	return 0;
}

/* Bytes that may have been held go up. Lock held. */
INLINE void latency_let_up(struct conn *conn, struct work *w)
{
	w->held_ns = conn->held_ns;
	conn->held_ns = 0;
}

/* Behind the lock. */
INLINE void latency_held(const struct work *w)
{
	if (w->held_ns)
		latency_add(LATENCY_HELD, w->now - w->held_ns);
}
