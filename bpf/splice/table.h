/* SPDX-License-Identifier: GPL-2.0 */
/* table.h - the table of connections, run by the daemon through BPF_PROG_RUN on the TC program type
 * (syscall programs may not look sockets up): retransmission timer and sweep, on the places that the
 * daemon gives them (place.h), and release. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"
#include "net/segment.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/ack.h"
#include "splice/ahead.h"
#include "splice/closed.h"
#include "splice/conn.h"
#include "splice/handler.h"
#include "splice/place.h"
#include "splice/splice.h"

/* RFC 6298: RTO = SRTT + 4 RTTVAR, at least RTO_MIN_NS, doubled per try. */
INLINE u64 conn_rto_ns(const struct conn *conn)
{
	u64 rto = (conn->rtt_us + 4ULL * conn->rttvar_us) * 1000;
	u32 tries = conn->tries;

	if (rto < RTO_MIN_NS)
		rto = RTO_MIN_NS;
	rto <<= tries & 15;
	return rto > RTO_MAX_NS ? RTO_MAX_NS : rto;
}

/* What the daemon has put into the walk's place n. */
INLINE u32 walk_place(u32 n)
{
	struct walk_io *io;
	u32 zero = 0;

	io = bpf_map_lookup_elem(&erb_walk_io, &zero);
	return io && n < WALK_PLACES && n < io->count ? io->places[n] : 0;
}

/* The entry that has the place. */
INLINE struct conn *walk_conn(u32 place)
{
	struct place *row = place ? place_get(place) : 0;
	struct conn *conn = row ? conn_get(&row->key) : 0;

	return conn && conn->place == place ? conn : 0;
}

/* Prepares the retransmission of the oldest unacknowledged fast bytes. Lock held. */
INLINE bool rexmit_prepare(struct conn *conn, struct work *w, struct sock_ref *r)
{
	u32 unacked = conn_unacked(conn, conn->ack_max);

	if (conn->cookie != r->cookie || !r->tp || !unacked) {
		sent_note(conn, 0);
		return false;
	}
	sock_view_load(r, &w->view);
	if (!conn_may_resend(conn, &w->view) || conn->tries >= REXMIT_TRIES_MAX) {
		w->refusal = conn_may_resend(conn, &w->view) ? STAT_REXMIT_GAVE_UP : 0;
		sent_note(conn, 0);
		return false;
	}
	w->out_seq = seq_max(conn->ack_max, conn->replay_from);
	/* Nobody tells if a way has become narrower: the kernel would find out, but sends nothing.
	 * What was lost so often goes in pieces that pass everywhere, and so does all behind it. */
	if (conn->tries >= NARROW_TRIES && conn_mss(conn, &w->view) > NARROW_MSS)
		conn->mss_limit = NARROW_MSS;
	if (unacked > conn_mss(conn, &w->view))
		unacked = conn_mss(conn, &w->view);
	replay_get(conn, w, w->out_seq, unacked);
	conn_stamp(conn, &w->view, w);
	w->out_ack = w->view.rcv_nxt + conn->in_delta;
	conn->tries++;
	sent_note(conn, w->now);
	conn_loss(conn, w->now);
	link_take(conn, w, ~0U);
	w->tag = conn->tag;
	return true;
}

/* What follows the addresses: the timer's copies leave as they are written here. */
INLINE void rexmit_type(struct work *w)
{
	u16 type = bpf_htons(w->p.family == 4 ? ETH_P_IP : ETH_P_IPV6);
	u32 at = w->tag ? ETH_ADDRESSES + 4 : ETH_ADDRESSES;

	*(u32 *)(w->head + ETH_ADDRESSES) = w->tag;
	*(u16 *)(w->head + at) = type;
	w->p.l3_off = at + 2;
}

/* Retransmits for this place. Global: verified by itself, or the loop of tick does not converge on
 * Linux 6.12. */
__noinline int rexmit_one(struct __sk_buff *ctx, u32 place)
{
	struct conn *conn = walk_conn(place);
	struct work *w = work_get();
	struct sock_ref r;
	u32 ifindex;
	bool send;

	if (!w || !conn)
		return 0;
	__builtin_memset(&w->p, 0, sizeof(w->p));
	__builtin_memcpy(&w->p.key, &conn->key, sizeof(conn->key));
	w->p.family = conn->family;
	ifindex = conn->ifindex;
	if (!sock_get(ctx, &w->p.key, w->p.family, &r)) {
		write_once(conn->sent_ns, 0);
		return 0;
	}
	w->refusal = 0;
	lock_take(&conn->lock);
	send = rexmit_prepare(conn, w, &r);
	lock_release(&conn->lock);
	sock_put(&r);
	if (w->refusal)
		count(w->refusal);
	if (!send)
		return 0;
	rexmit_type(w);
	count(STAT_REPLAY_TIMEOUT);
	tier_clone(ctx, w, segment_build(w->view.fixed.tstamp_ok, false), ifindex);
	return 0;
}

/* Looks at the walk's place n, and retransmits if that is due. Returns whether it has unacknowledged
 * fast bytes to be sent again. P2. Global: verified by itself. */
__noinline int tick_one(struct __sk_buff *ctx, u32 n)
{
	u32 place = walk_place(n), unacked;
	struct conn *conn = walk_conn(place);
	struct work *w = work_get();
	u64 sent_ns;
	bool due;

	if (!conn || !w)
		return 0;
	place_set(place, PLACES_TIMER, 0);
	lock_take(&conn->lock);
	unacked = conn_unacked(conn, conn->ack_max);
	if (!unacked) {
		conn->called &= ~(1 << PLACES_TIMER);
		sent_note(conn, 0);
	}
	sent_ns = conn->sent_ns;
	due = sent_ns && (w->now - sent_ns >= conn_rto_ns(conn) || conn->resend_due);
	lock_release(&conn->lock);
	if (unacked)
		place_set(place, PLACES_TIMER, 1);
	if (due)
		rexmit_one(ctx, place);
	return sent_ns != 0;
}

/* Retransmits what is due; returns how many connections have unacknowledged fast bytes. */
INLINE int tick(struct __sk_buff *ctx)
{
	struct work *w = work_get();
	u32 unacked = 0;
	int i;

	if (!w)
		return 0;
	w->now = now_ns();
	bpf_for(i, 0, WALK_PLACES)
	{
		if (!walk_place(i))
			break;
		unacked += tick_one(ctx, i);
	}
	return unacked;
}

/* Redis has closed its end: nothing of the connection will run any more, although TIME_WAIT keeps
 * the entry for a minute. */
INLINE bool sock_closed_by_server(u8 state)
{
	return state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING ||
	       state == TCP_LAST_ACK || state == TCP_TIME_WAIT;
}

/* Whether nobody needs the entry of a connection in TIME_WAIT: the kernel's numbers are the client's,
 * and it holds nothing. Where they are not, what either side repeats within that minute must be
 * translated. Lock held. */
INLINE bool conn_ended(const struct conn *conn)
{
	return !conn->in_delta && !conn->out_delta && !handler_holds(conn);
}

INLINE void sweep_report(struct sweep_io *io, const struct conn *conn, u32 flags, u32 proof_pos,
			 u32 requests)
{
	u32 n = io->count;

	opaque(n);
	if (n >= WALK_PLACES)
		return;
	__builtin_memcpy(&io->rows[n].key, &conn->key, sizeof(conn->key));
	io->rows[n].cookie = conn->cookie;
	io->rows[n].flags = flags;
	io->rows[n].proof_pos = proof_pos;
	io->rows[n].requests = requests;
	io->count = n + 1;
}

/* Notes whether its socket is gone. Lock held; found: there is one, in that state. */
INLINE void sweep_absent(struct conn *conn, bool found, u8 state, u64 now)
{
	u32 at = now >> 20;

	if (found && state == TCP_TIME_WAIT && conn_ended(conn)) {
		conn->absent = ABSENT_LONG;
	} else if (found) {
		conn->absent = ABSENT_NOT;
	} else if (conn->absent == ABSENT_NOT) {
		conn->absent = ABSENT_SINCE;
		conn->absent_at = at;
	} else if ((s32)(at - conn->absent_at) > (s32)(ABSENT_NS >> 20)) {
		conn->absent = ABSENT_LONG;
	}
}

INLINE void sweep_count(struct sweep_io *io, const struct conn *conn, u32 state, u32 flags)
{
	io->conns++;
	if (state < CONN_STATE_MAX)
		io->by_state[state]++;
	if (conn->flags & CONN_F_CLOSING)
		io->closing++;
	if ((flags & (SWEEP_F_TRANSLATED | SWEEP_F_GONE)) == SWEEP_F_TRANSLATED)
		io->translated++; /* where no socket is, nothing needs it */
	if (conn->sent_ns)
		io->unacked++;
}

/* Looks at the walk's place n. Global: verified by itself. */
__noinline int sweep_one(struct __sk_buff *ctx, u32 n)
{
	u32 flags = 0, state, zero = 0;
	struct sweep_look look = {};
	u32 place = walk_place(n);
	struct conn *conn = walk_conn(place);
	struct control *c = control_get();
	struct sock_ref r = {};
	struct sweep_io *io;
	struct conn_key key;

	io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	if (!conn || !c || !io)
		return 0;
	look.proof_pos = handler_proof_pos(conn);
	__builtin_memcpy(&key, &conn->key, sizeof(key));
	place_set(place, PLACES_HELD, 0);
	if (sock_get(ctx, &key, conn->family, &r)) {
		look.found = r.state != TCP_LISTEN &&
			     (r.cookie == conn->cookie || conn->cookie == COOKIE_UNKNOWN);
		look.closed = look.found && sock_closed_by_server(r.state);
		if (look.found && r.tp) {
			look.copied_seq = r.tp->copied_seq;
			look.unsent = r.tp->snd_una != r.tp->write_seq;
			look.lives = !look.closed;
			look.executed = !seq_before(look.copied_seq, look.proof_pos);
		}
	}
	lock_take(&conn->lock);
	sweep_absent(conn, look.found, r.state, io->now_ns);
	if (conn->absent == ABSENT_LONG)
		flags |= SWEEP_F_GONE;
	flags |= look.closed * SWEEP_F_CLOSED; /* a branch costs the verifier a tenth more */
	flags |= handler_sweep(conn, io, &r, c, &look);
	if (conn->in_delta || conn->out_delta)
		flags |= SWEEP_F_TRANSLATED;
	state = conn->state;
	lock_release(&conn->lock);
	sock_put(&r);
	if (flags & SWEEP_F_HOLDS)
		place_set(place, PLACES_HELD, 1);
	flags |= handler_swept(io, n, flags, &look);
	if (closed(c)) { /* L6, L7 */
		flags &= ~(SWEEP_F_HOLDS | SWEEP_F_EXECUTED);
		flags |= closed_to(c, conn) * SWEEP_F_GONE;
	}
	sweep_count(io, conn, state, flags);
	if (flags & (SWEEP_F_GONE | SWEEP_F_EXECUTED))
		sweep_report(io, conn, flags, look.proof_pos, look.requests);
	return 0;
}

INLINE int sweep(struct __sk_buff *ctx)
{
	struct work *w = work_get();
	struct sweep_io *io;
	u32 zero = 0;
	int i;

	io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	if (!w || !io)
		return 0;
	w->now = io->now_ns = now_ns();
	io->count = io->conns = io->admits = io->waiting = 0;
	io->closing = io->translated = io->unacked = io->helds = 0;
	for (u32 state = 0; state < CONN_STATE_MAX; state++)
		io->by_state[state] = 0;
	bpf_for(i, 0, WALK_PLACES)
	{
		if (!walk_place(i))
			break;
		sweep_one(ctx, i);
	}
	return io->count;
}

/* Whether the proof is of what the entry holds still. Lock held. */
INLINE bool release_holds(const struct control *c, const struct conn *conn,
			  const struct release_io *io)
{
	if (conn->cookie != io->cookie)
		return false;
	if (io->remove)
		return (conn->absent == ABSENT_LONG || closed_to(c, conn)) && !conn->ahead_busy;
	return handler_proved(conn, io);
}

/* The daemon has proof that all up to io->proof_pos was executed, or that the owner is gone. */
INLINE int release(struct release_io *io, struct work *w, struct control *c)
{
	struct conn_key key;
	struct conn *conn;
	u32 shares = 0, ahead = 0, place = 0;
	u8 family = 0;

	io->done = 0;
	__builtin_memcpy(&key, &io->key, sizeof(key));
	conn = conn_get(&key);
	if (!conn)
		return 0;
	handler_release_begin(w);
	lock_take(&conn->lock);
	if (release_holds(c, conn, io)) {
		shares = handler_release(conn, w, io);
		io->done = 1;
		family = conn->family;
		if (io->remove) {
			ahead = ahead_leave(conn);
			place = conn->place;
			conn->cookie = 0; /* whoever still holds the entry finds another owner */
		}
	}
	lock_release(&conn->lock);
	if (ahead)
		ahead_free(ahead, io->cookie);
	handler_released(w, c, shares);
	if (io->done && io->remove)
		place_give(c, place);
	if (io->done && io->remove && !bpf_map_delete_elem(&erb_conns, &key)) {
		client_left(c, &key, family);
		count(STAT_CONN_DELETED);
	}
	return io->done;
}
