/* SPDX-License-Identifier: GPL-2.0 */
/* admit.h - how a connection becomes FAST, again or although it is older than ERB: by what Redis
 * itself says of it in CLIENT LIST.
 *
 * The sweep reports who could be admitted; then CLIENT LIST is sent; of those whose line is right
 * (crates/product/redis/src/admit.rs) erb_admit takes in who is still what it was.
 *
 * Invariants:
 *  A1. FAST is answered only while conn.rights == control.rights, read behind the gate. The
 *      daemon moves control.rights when access rules change, before it opens the gate: so no answer
 *      comes under rules that a command which was answered has changed.
 *  A2. Counted streams: when the list was sent, every command that moves modes_moved (M1) had been
 *      answered, and none has come since: it is what it was. So what the list says of the
 *      connection (db, resp, user, MULTI) still holds, whatever ordinary commands came in between.
 *  A3. Streams that cannot be counted: when the list was sent the connection was quiet
 *      (conn_quiet), and is again, with the same end of the bytes that went up. So Redis had
 *      executed all that it was sent, and all its answers have left: counting begins anew behind
 *      them. That they were acknowledged is not asked for: a client that is at work acknowledges
 *      an answer with its next request, and would never be quiet.
 *  A4. A stream older than ERB is taken up at such a moment, if the list shows no argument of
 *      an unfinished command. What the list cannot show (a command of which only "*n" or the length
 *      of its name was read) makes Redis answer the next command by an error: until an answer that
 *      is none, with as many answers as requests, all it sends is fenced by proof (CONN_K_TRIAL).
 *      That answer also excludes CLIENT REPLY OFF and SKIP. The rest of such a command is answered
 *      without an error, but counts as other requests than it is: a trial whose numbers differ while
 *      nothing is under way has failed, too.
 *  A5. What the list hides is known from the stream: WATCH (M4), and CONN_K_NEVER for CLIENT
 *      REPLY. An unknown WATCH of an older connection is harmless: it was executed before the list,
 *      so every change before it had been taken out of the cache before the connection was
 *      answered, and every later one makes its EXEC fail.
 *  A7. A connection older than ERB that the list shows as a replica or a subscriber, with no
 *      argument of an unfinished command, listens: packets that are, byte for byte, its PING or
 *      REPLCONF ACK take no share and shut no gate. Wherever in a command Redis may be, such
 *      bytes make no command that touches a key. Anything else it says ends that, and is held
 *      by proof like all that is not read.
 *  A8. A trial may also begin while the client waits in a command that blocks, if that is all that Redis has read
 *      and it makes no key but as the daemon knows (crates/product/redis/src/movers.rs): its reply is the
 *      first of the trial. Nothing was written to the client since the sweep, so it has not come.
 *  A6. The entry's socket is the list's line: the socket lived all the time (its cookie), Redis
 *      has accepted it (it answered, or a later list shows that it did), and only one line has its
 *      addresses.
 */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/sock.h"
#include "redis/effects.h"
#include "redis/modes.h"
#include "splice/splice.h"

INLINE bool conn_counted(const struct conn *conn)
{
	return !(conn->flags & (CONN_F_UNCOUNTABLE | CONN_F_SCAN_LOST));
}

/* Whether TCP has all bytes that went up and Redis has read them. Lock held, view loaded. */
INLINE bool conn_heard(const struct conn *conn, const struct tcp_sock *tp,
		       const struct sock_view *v)
{
	return v->rcv_nxt == conn->up_max - conn->in_delta && tp->copied_seq == v->rcv_nxt &&
	       !tp->out_of_order_queue.rb_node && !tp->urg_data; /* J2 */
}

/* Whether nothing is under way: Redis has read all, what TCP had to send has left or was acknowledged,
 * and so were all fast bytes. Lock held, view loaded. */
INLINE bool conn_quiet(const struct conn *conn, const struct tcp_sock *tp,
		       const struct sock_view *v)
{
	if (!(conn->flags & CONN_F_SCAN_LOST) &&
	    (conn->next != conn->up_max || conn->in_at != STREAM_BETWEEN))
		return false;
	if (!conn_heard(conn, tp, v))
		return false;
	if (conn_unacked(conn, conn->ack_max))
		return false;
	if (conn->egress_max == v->write_seq)
		return true;
	return !(conn->flags & CONN_F_EGRESS_SEEN) && v->write_seq == v->snd_una;
}

/* Whether a list could change what the connection is. Lock held. */
INLINE bool admit_wanted(const struct conn *conn, u32 rights)
{
	if (conn->state == CONN_FAST && conn->h.rights == rights && conn->h.resp >= 2)
		return false;
	if (conn->state == CONN_NEW || !conn->cookie || conn->cookie == COOKIE_UNKNOWN)
		return false;
	if ((conn->flags & CONN_F_SCAN_LOST) && conn->state != CONN_OLD)
		return false;
	return !(conn->flags & CONN_F_CLOSING) && conn->h.judged != rights &&
	       !(conn->h.kept & CONN_K_LISTENS) &&
	       !(conn->h.kept & (CONN_K_NEVER | CONN_K_WATCH | CONN_K_STUCK));
}

/* A2 or A3, of this moment. Lock held, view loaded. */
INLINE bool admit_ready(const struct conn *conn, const struct tcp_sock *tp,
			const struct sock_view *v)
{
	if (!v->established || (conn->h.kept & CONN_K_TRIAL))
		return false;
	if (conn_counted(conn))
		return !seq_after(conn->h.stateful_at, conn->replies);
	if (conn->flags & CONN_F_SCAN_LOST) /* A7: a replica is never quiet */
		return conn_heard(conn, tp, v);
	return conn_quiet(conn, tp, v);
}

/* What a list can make of a connection that is ready. Lock held, view loaded. */
INLINE u32 admit_act_of(const struct conn *conn, const struct tcp_sock *tp,
			const struct sock_view *v)
{
	if (!(conn->flags & CONN_F_SCAN_LOST))
		return ADMIT_FAST;
	return conn_quiet(conn, tp, v) ? ADMIT_TRIAL : ADMIT_LISTEN;
}

/* The sweep's row for it. Lock held. */
INLINE void admit_report(struct sweep_io *io, const struct conn *conn, u32 written, u32 act)
{
	u32 n = io->admits;
	struct admit_row *row;

	opaque(n);
	if (n >= WALK_PLACES)
		return;
	row = &io->admit[n];
	__builtin_memcpy(&row->key, &conn->key, sizeof(conn->key));
	row->cookie = conn->cookie;
	row->modes_moved = conn->h.modes_moved;
	row->next = conn->up_max;
	row->written = written;
	row->authed = !!(conn->h.kept & CONN_K_AUTHED);
	row->act = act;
	io->admits = n + 1;
}

/* Ends a trial that no answer can end any more. Redis may be at work on what it has read: then a trial is
 * given up that could have ended well, and is made again. Lock held. */
INLINE bool trial_give_up(struct conn *conn, const struct sock_ref *r)
{
	struct sock_view v;

	if (!(conn->h.kept & CONN_K_TRIAL) || conn->replies == conn->requests ||
	    ((conn->h.kept & CONN_K_OWES) && !conn->replies)) /* A8 */
		return false;
	if (!r->tp || r->cookie != conn->cookie || !sock_view_load(r, &v) ||
	    !conn_quiet(conn, r->tp, &v))
		return false;
	conn_trial_failed(conn);
	return true;
}

/* What a list could make of the connection now, 0 = nothing; *waits: not yet. Lock held. */
INLINE u32 admit_candidate(const struct conn *conn, const struct sock_ref *r, u32 rights,
			   bool *waits)
{
	struct sock_view v;

	*waits = false;
	if (!r->tp || r->cookie != conn->cookie || !admit_wanted(conn, rights))
		return 0;
	*waits = !sock_view_load(r, &v) || !admit_ready(conn, r->tp, &v);
	return *waits ? 0 : admit_act_of(conn, r->tp, &v);
}

/* A3: counting begins anew. Lock held. */
INLINE void admit_recount(struct conn *conn, const struct sock_view *v)
{
	conn->requests = conn->replies = 0;
	conn->h.held_at = 0;
	conn->h.stateful_at = conn->h.auth_at = 0;
	conn->scan_next = conn->egress_max = v->write_seq;
	__builtin_memset(&conn->h.out, 0, sizeof(conn->h.out));
	conn->out_at = STREAM_BETWEEN;
	if (conn->flags & CONN_F_SCAN_LOST) {
		__builtin_memset(&conn->h.in, 0, sizeof(conn->h.in));
		conn->in_at = STREAM_BETWEEN;
		conn->h.late = conn->h.half = 0;
		conn->next = conn->up_max;
	}
	conn->flags &= ~(CONN_F_UNCOUNTABLE | CONN_F_SCAN_LOST);
	conn->h.kept &= ~(CONN_K_OWES | CONN_K_REPEATS);
	conn->h.kept |= CONN_K_RECOUNTED;
}

/* Lock held. Returns the reason that is to be counted. */
INLINE u32 admit_apply(struct conn *conn, struct admit_io *io, const struct sock_ref *r,
		       const struct control *c)
{
	struct sock_view v;

	if (!r->tp || conn->cookie != io->row.cookie || r->cookie != conn->cookie ||
	    conn->h.modes_moved != io->row.modes_moved)
		return STAT_ADMIT_MOVED;
	if (io->act == ADMIT_JUDGED) {
		conn->h.judged = io->rights;
		if (io->slow)
			conn->h.slow = io->slow;
		return 0;
	}
	if (c->stopping || read_once(c->rights) != io->rights || !admit_wanted(conn, io->rights) ||
	    !sock_view_load(r, &v) || !admit_ready(conn, r->tp, &v))
		return STAT_ADMIT_MOVED;
	if (io->act == ADMIT_LISTEN) {
		if (!(conn->flags & CONN_F_SCAN_LOST) || conn->up_max != io->row.next)
			return STAT_ADMIT_MOVED;
		conn->h.kept |= CONN_K_LISTENS;
		return STAT_LISTENER;
	}
	if (!conn_counted(conn)) {
		if (admit_act_of(conn, r->tp, &v) == ADMIT_LISTEN)
			return STAT_ADMIT_MOVED;
		if (conn->up_max != io->row.next || conn_holds(conn))
			return STAT_ADMIT_MOVED;
		if (io->owed && v.write_seq != io->row.written)
			return STAT_ADMIT_MOVED;
		admit_recount(conn, &v);
		if (io->owed) {
			conn->requests = 1;
			conn->h.kept |= CONN_K_OWES;
		}
	}
	if (io->act == ADMIT_TRIAL) {
		conn->h.kept |= CONN_K_TRIAL;
		return STAT_TRIAL;
	}
	conn->h.db = io->db;
	conn->h.resp = io->resp;
	conn->h.kept &= ~(CONN_K_WATCHED | CONN_K_MULTI | CONN_K_IN_MULTI | CONN_K_GATE);
	conn->h.rights = io->rights;
	conn->h.slow = SLOW_NONE;
	conn->state = CONN_FAST;
	return STAT_ADMITTED;
}

/* erb_admit: takes the connection in, if it is still what it was before the list. */
INLINE int admit(struct __sk_buff *ctx, struct admit_io *io, struct control *c)
{
	struct conn_key key;
	struct conn *conn;
	struct sock_ref r;
	u32 reason;

	io->done = 0;
	__builtin_memcpy(&key, &io->row.key, sizeof(key));
	conn = conn_get(&key);
	if (!conn || !sock_get(ctx, &key, conn->family, &r))
		return 0;
	lock_take(&conn->lock);
	reason = admit_apply(conn, io, &r, c);
	lock_release(&conn->lock);
	sock_put(&r);
	io->done = reason != STAT_ADMIT_MOVED;
	if (reason)
		count(reason);
	return io->done;
}
