/* SPDX-License-Identifier: GPL-2.0 */
/* table.h - the table of connections, run by the daemon through BPF_PROG_RUN on the TC program type
 * (syscall programs may not look sockets up): retransmission timer and sweep, on the places that the
 * daemon gives them (place.h), and release. */
#pragma once
#include "segment.h"
#include "conn.h"
#include "admit.h"
#include "fast.h"

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
		conn->sent_ns = 0;
		return false;
	}
	sock_view_load(r, &w->view);
	if (!conn_may_resend(conn, &w->view) || conn->tries >= REXMIT_TRIES_MAX) {
		w->refusal = conn_may_resend(conn, &w->view) ? STAT_REXMIT_GAVE_UP : 0;
		conn->sent_ns = 0;
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
	conn->sent_ns = w->now;
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
	tier_clone(ctx, w, segment_build(w->view.tstamp_ok, false), ifindex);
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
		conn->sent_ns = 0;
	}
	sent_ns = conn->sent_ns;
	due = sent_ns && (w->now - sent_ns >= conn_rto_ns(conn) || sent_ns == 1);
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
	return !conn->in_delta && !conn->out_delta && !conn_holds(conn);
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

/* How long it has held what it holds, in 2^20 ns: no less than since a sweep first saw it. Lock
 * held. */
INLINE u32 held_for(struct conn *conn, u64 now)
{
	u32 oldest = conn->marks[conn->mark_tail & (MARKS_IN_FLIGHT - 1)].request;
	bool same = conn->flags & CONN_F_FENCE_PROOF;

	if (conn->mark_head != conn->mark_tail)
		same |= !seq_after(oldest, conn->held_request);
	if (conn->flags & CONN_F_OVERFLOW)
		same |= seq_before(conn->replies, conn->held_request);
	if (conn->held_at && same)
		return (u32)(now >> 20) - conn->held_at;
	conn->held_at = conn_holds(conn) ? now >> 20 : 0;
	conn->held_request = conn->requests;
	return 0;
}

/* Whether TCP has handed Redis all that went up, and replies are counted: then a list can show that
 * it was executed, although no reply comes. Lock held. */
INLINE bool held_provable(const struct conn *conn, u32 copied_seq)
{
	return conn_counted(conn) && !(conn->kept & CONN_K_TRIAL) &&
	       !(conn->flags & CONN_F_FENCE_PROOF) &&
	       !seq_before(copied_seq, conn->up_max - conn->in_delta);
}

/* Whether what it holds closes more than single sets. Read without the lock: for people. */
INLINE bool held_fence(const struct conn *conn)
{
	u32 tail = conn->mark_tail, n = conn->mark_head - tail;
	u32 fence = conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW);
	int i;

	bpf_for(i, 0, MARKS_IN_FLIGHT)
	{
		u32 at = tail + i;

		if (at - tail >= n)
			break;
		fence |= mark_is_share(conn->marks[at & (MARKS_IN_FLIGHT - 1)].set);
		opaque(fence);
	}
	return fence;
}

INLINE void held_report(struct sweep_io *io, const struct conn *conn, u32 why, u32 held)
{
	u32 n = io->helds++;

	opaque(n);
	if (n >= HELD_ROWS)
		return;
	__builtin_memcpy(&io->held[n].key, &conn->key, sizeof(conn->key));
	io->held[n].ms = ((u64)held << 20) / 1000000;
	io->held[n].why = why;
	io->held[n].fence = held_fence(conn);
}

/* What held_look() is told of the entry's socket. */
#define HELD_SOCKET 0x1 /* there is one, and Redis has not closed it */
#define HELD_SENDS  0x2 /* not all that it sent is acknowledged */

INLINE u32 held_socket(const struct tcp_sock *tp, bool closed)
{
	return (!closed * HELD_SOCKET) | ((tp->snd_una != tp->write_seq) * HELD_SENDS);
}

/* The entry at the walk's place n holds something: whether a list could prove that it may go. Returns flags of
 * its row, and in the upper half for how many requests. Whoever has held it for long is reported.
 * copied_seq was read before. Global: verified by itself. */
__noinline u64 held_look(u32 n, u32 socket, u32 copied_seq)
{
	u32 zero = 0, flags = 0, held, requests, why = HELD_GONE;
	struct work *w = work_get();
	struct sweep_io *io;
	struct conn *conn;

	io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	conn = walk_conn(walk_place(n));
	if (!conn || !w || !io)
		return 0;
	lock_take(&conn->lock);
	held = held_for(conn, w->now);
	requests = conn->requests - !!conn->late; /* that one is not whole */
	if (held > HELD_NS >> 20 && (socket & HELD_SOCKET) && held_provable(conn, copied_seq))
		flags = SWEEP_F_EXECUTED | SWEEP_F_COUNTED;
	if (conn->late || conn->in.state != RQ_IDLE || seq_after(conn->next, conn->up_max))
		flags |= SWEEP_F_HALF;
	if ((socket & HELD_SOCKET) && seq_before(copied_seq, conn->up_max - conn->in_delta))
		why = HELD_UNREAD;
	else if (socket & HELD_SOCKET)
		why = socket & HELD_SENDS ? HELD_UNSENT : HELD_UNANSWERED;
	lock_release(&conn->lock);
	if (held > HELD_SHOWN_NS >> 20)
		held_report(io, conn, why, held);
	return (u64)requests << 32 | flags;
}

/* Notes whether its socket is gone. Lock held; found: there is one, in that state. */
INLINE void sweep_absent(struct conn *conn, bool found, u8 state, u64 now)
{
	u32 at = now >> 20;

	if (found && state == TCP_TIME_WAIT && conn_ended(conn)) {
		conn->absent_at = ABSENT_LONG;
	} else if (found) {
		conn->absent_at = 0;
	} else if (!conn->absent_at) {
		conn->absent_at = at | ABSENT_SINCE;
	} else if ((s32)(at - conn->absent_at) > (s32)(ABSENT_NS >> 20)) {
		conn->absent_at = ABSENT_LONG;
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
	u32 flags = 0, state, proof_pos, copied_seq = 0, socket = 0, zero = 0;
	bool found = false, executed = false, closed = false, waits = false, vain;
	u32 place = walk_place(n);
	struct conn *conn = walk_conn(place);
	struct control *c = control_get();
	u64 looked = 0;
	struct sock_ref r = {};
	struct sweep_io *io;
	struct conn_key key;
	u32 candidate = 0;

	io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	if (!conn || !c || !io)
		return 0;
	proof_pos = conn->proof_pos;
	__builtin_memcpy(&key, &conn->key, sizeof(key));
	place_set(place, PLACES_HELD, 0);
	if (sock_get(ctx, &key, conn->family, &r)) {
		found = r.state != TCP_LISTEN &&
			(r.cookie == conn->cookie || conn->cookie == COOKIE_UNKNOWN);
		closed = found && sock_closed_by_server(r.state);
		if (found && r.tp) {
			copied_seq = r.tp->copied_seq;
			executed = !seq_before(copied_seq, proof_pos);
			socket = held_socket(r.tp, closed);
		}
	}
	lock_take(&conn->lock);
	sweep_absent(conn, found, r.state, io->now_ns);
	if (conn->absent_at == ABSENT_LONG)
		flags |= SWEEP_F_GONE;
	if (conn_holds(conn)) {
		flags |= SWEEP_F_HOLDS;
	} else {
		conn->held_at = 0;
		conn->called &= ~(1 << PLACES_HELD);
	}
	flags |= closed * SWEEP_F_CLOSED; /* a branch costs the verifier a tenth more */
	if ((closed && conn_holds(conn)) || (executed && (conn->flags & CONN_F_FENCE_PROOF)))
		flags |= SWEEP_F_EXECUTED;
	if (conn->in_delta || conn->out_delta)
		flags |= SWEEP_F_TRANSLATED;
	state = conn->state;
	vain = found && trial_give_up(conn, &r);
	if (found)
		candidate = admit_candidate(conn, &r, read_once(c->rights), &waits);
	if (candidate)
		admit_report(io, conn, candidate);
	lock_release(&conn->lock);
	sock_put(&r);
	if (vain)
		count(STAT_TRIAL_FAILED);
	if (flags & SWEEP_F_HOLDS) {
		place_set(place, PLACES_HELD, 1);
		looked = held_look(n, socket, copied_seq);
		flags |= looked;
	}
	io->waiting += waits;
	sweep_count(io, conn, state, flags);
	if (flags & (SWEEP_F_GONE | SWEEP_F_EXECUTED))
		sweep_report(io, conn, flags, proof_pos, looked >> 32);
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

/* Whether proof up to proof_pos covers everything that the entry holds. Not while its replies are
 * counted: what it has sent since a trial ended well is in the ring, and is not proved. Lock held.
 */
INLINE bool release_covers(const struct conn *conn, const struct release_io *io)
{
	return io->remove || io->closed || !conn_counted(conn) || (conn->kept & CONN_K_TRIAL);
}

/* Takes what the entry's first requests hold into w->found, and the share of those that had no room
 * in the ring if none has come to it since the sweep. Returns that share's flag. Lock held. */
INLINE u32 release_counted(struct conn *conn, struct work *w, const struct release_io *io)
{
	u32 share = conn->flags & CONN_F_OVERFLOW;

	for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
		struct mark *m = &conn->marks[conn->mark_tail & (MARKS_IN_FLIGHT - 1)];

		if (conn->mark_tail == conn->mark_head || seq_after(m->request, io->requests))
			break;
		w->found.marks[i] = *m;
		w->found.effects = i + 1;
		conn->mark_tail++;
	}
	if (seq_after(conn->proof_pos, io->proof_pos))
		return 0;
	conn->flags &= ~share;
	return share;
}

/* Takes what the entry holds into w->found: all, or the share that waited for proof. Returns the
 * flags of the shares of the fence. Lock held. */
INLINE u32 release_take(struct conn *conn, struct work *w, bool all)
{
	u32 shares = conn->flags & CONN_F_FENCE_PROOF;
	u32 n = conn->mark_head - conn->mark_tail;

	conn->flags &= ~CONN_F_FENCE_PROOF;
	if (!all)
		return shares;
	shares |= conn->flags & CONN_F_OVERFLOW;
	for (u32 i = 0; i < MARKS_IN_FLIGHT; i++) {
		if (i >= n)
			break;
		w->found.marks[i] = conn->marks[(conn->mark_tail + i) & (MARKS_IN_FLIGHT - 1)];
	}
	w->found.effects = n;
	conn->mark_tail = conn->mark_head;
	conn->flags &= ~CONN_F_OVERFLOW;
	return shares;
}

/* Whether the proof is of what the entry holds still. Lock held. */
INLINE bool release_holds(const struct conn *conn, const struct release_io *io)
{
	if (conn->cookie != io->cookie)
		return false;
	if (io->remove)
		return conn->absent_at == ABSENT_LONG && !conn->ahead_busy;
	if (io->counted)
		return conn_counted(conn) && !(conn->kept & CONN_K_TRIAL) &&
		       !seq_after(io->requests, conn->requests);
	return !seq_after(conn->proof_pos, io->proof_pos);
}

/* The daemon has proof that all up to io->proof_pos was executed, or that the owner is gone. */
INLINE int release(struct release_io *io, struct work *w, struct control *c)
{
	struct conn_key key;
	struct conn *conn;
	u32 shares = 0, hidden = 0, ahead = 0, place = 0;
	u8 family = 0;

	io->done = 0;
	w->found.effects = 0;
	__builtin_memcpy(&key, &io->key, sizeof(key));
	conn = conn_get(&key);
	if (!conn)
		return 0;
	lock_take(&conn->lock);
	if (release_holds(conn, io)) {
		hidden = conn->hidden;
		shares = io->counted && !io->remove && !io->closed
			     ? release_counted(conn, w, io)
			     : release_take(conn, w, release_covers(conn, io));
		conn->hidden &= ~shares;
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
	marks_release(c, w->found.marks, w->found.effects, true);
	if (shares & CONN_F_FENCE_PROOF)
		fence_end(c, hidden & CONN_F_FENCE_PROOF);
	if (shares & CONN_F_OVERFLOW)
		fence_end(c, hidden & CONN_F_OVERFLOW);
	if (io->done && io->remove)
		place_give(c, place);
	if (io->done && io->remove && !bpf_map_delete_elem(&erb_conns, &key)) {
		client_left(c, &key, family);
		count(STAT_CONN_DELETED);
	}
	return io->done;
}
