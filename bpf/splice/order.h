/* SPDX-License-Identifier: GPL-2.0 */
/* order.h - what goes up comes behind what was answered in the server's place before it came (splice/absorb.h). While
 * no write is answered, all of that is always there (cache/drained.h), and nothing is held.
 *
 * A packet that may not go up yet is held: it is committed as one that went up and got lost. Its requests
 * count, what they do is taken, and it is dropped. Its client sends it again.
 *
 * Invariants:
 *  Y1. What begins a request, or takes effect, goes up only when all LSNs are drained that were given
 *      before, but for Y6 and Y7. The question is asked behind the effects (U2): who is given one later has
 *      seen them.
 *  Y2. It is asked once for each byte, when that is committed: conn.waits_for is the answer, and never goes
 *      back. Repetitions wait for that alone; with each a new question they would wait for ever.
 *  Y3. Nothing of a connection goes up before what it waits for. So what comes behind a held packet is held,
 *      too. What has no bytes for the server passes: acknowledgements, FIN, RST.
 *  Y4. The kernel did not get a held packet: not its acknowledgement either (ack_goes_up()).
 *  Y5. conn.waits_for is at most lsn. So while all is drained it need not be looked at: its line is cold.
 *  Y6. A packet of nothing but requests that are never held asks nothing: they tell of the server, or cure it. The
 *      handler knows them. Y3 binds them like all others. Where it is not known where requests begin, a packet that is
 *      one of a few of them, byte for byte, asks nothing either: handler_probes().
 *  Y7. Nor does a packet of nothing but reads of which nobody can tell that they pass what is not drained:
 *      redis/reads.h.
 *  Y8. A request that tells who else has its connection's writes, as WAIT does, goes up when all that was answered is
 *      with all of these, if writes of its connection were answered. The server counts from what it has executed
 *      for the connection itself, and knows of none of these. From then on it gets the connection's writes itself.
 *      That is found out by asking, and by no asking that began before the request came: who has come back since
 *      then may have less.
 */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "net/work.h"
#include "splice/handler.h"

/* Whether anything that was answered may not be in the server yet. */
INLINE bool order_open(const struct control *c)
{
	return read_once(c->order.lsn) != read_once(c->order.drained);
}

/* Whether somebody may be answering a write at this moment: then who takes effects looks at erb_busy before he asks for
 * the order (busy.h). Whoever lets writes be answered sets it before, with a full barrier in between. */
INLINE bool order_watched(const struct control *c)
{
	return read_once(c->order.watch);
}

/* Whether anything of the two is so: what most packets ask. */
INLINE bool order_stirs(const struct control *c)
{
	return (read_once(c->order.lsn) ^ read_once(c->order.drained)) | read_once(c->order.watch);
}

/* What a packet asks of the order; bits. */
enum asks {
	ASKS_NOTHING = 0,
	ASKS_DRAINED = 1, /* it comes behind all that was answered: Y1 */
	ASKS_SYNCED = 2,  /* and behind that all of that is where it is to be: Y8 */
};

/* 1 if the first number is before the other one, of those that only grow. In bits, like all of this: each branch under
 * the entry's lock doubles what the verifier has to look at behind it. */
INLINE u32 order_before(u64 at, u64 wanted)
{
	return (at - wanted) >> 63;
}

/* 1 if not all is where the connection waits for it to be; syncs: 1, it waits for more than the drain. Both numbers of
 * the last asking only grow: where one is seen older than the other, that only costs time. */
INLINE u32 order_late(const struct control *c, const struct conn *conn, u32 syncs)
{
	u64 waits_for = read_once(conn->waits_for);
	u32 undrained = order_before(read_once(c->order.drained), waits_for);
	u32 unasked = (read_once(c->order.sync_done) - read_once(conn->waits_sync)) >> 31;
	u32 unsynced = order_before(read_once(c->order.synced), waits_for) | unasked;

	return undrained | (unsynced & syncs);
}

/* Whether all is where the connection waits for it to be. */
INLINE bool order_reached(const struct control *c, const struct conn *conn)
{
	return !order_late(c, conn, !!(read_once(conn->spoke) & WAITS_SYNC));
}

/* Whether the connection waits; asks: enum asks, of what is at hand: Y2. Lock held, which orders this behind the
 * effects on all machines: Y1. */
INLINE bool order_waits(const struct control *c, struct conn *conn, u32 asks)
{
	u64 lsn = read_once(c->order.lsn), drained = read_once(c->order.drained);
	u32 spoke = conn->spoke, begins, syncs, late;

	begins = !!(asks & ASKS_SYNCED) & !!(spoke & ABSORBED);
	syncs = !!(spoke & WAITS_SYNC) | begins;
	opaque(syncs);
	if (lsn == drained && !syncs)
		return false;
	if (asks)
		conn->waits_for = lsn;
	opaque(begins);
	conn->waits_sync += (read_once(c->order.sync_begun) + 1 - conn->waits_sync) * begins;
	late = order_late(c, conn, syncs);
	spoke &= ~(ABSORBED * begins);
	spoke |= (WAITS_SYNC | ABSORBS_NOT) * begins;
	spoke &= ~(WAITS_SYNC * (late ^ 1));
	conn->spoke = spoke;
	return late;
}

/* Payload that no entry counts (L1) may be any request, and it is not known what it waits for. */
INLINE enum verdict order_unseen(const struct work *w, const struct control *c)
{
	if (!order_open(c) || handler_probes(w))
		return V_PLAIN;
	count(STAT_HELD_UNSEEN);
	return V_DROP;
}
