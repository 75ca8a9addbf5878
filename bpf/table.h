/* SPDX-License-Identifier: GPL-2.0 */
/* table.h - walks over the table of connections, run by the daemon through BPF_PROG_RUN on the TC
 * program type (syscall programs may not look sockets up): retransmission timer, sweep, release. */
#pragma once
#include "segment.h"
#include "conn.h"
#include "admit.h"
#include "fast.h"

struct due_list {
	u32 count;
	u32 unacked;
	struct conn_key keys[DUE_ROWS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct due_list);
} due_map SEC(".maps");

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

struct due_walk {
	struct due_list *due;
	u64 now;
};

static long due_one(void *map, const void *key, struct conn *conn, struct due_walk *walk)
{
	struct due_list *due = walk->due;
	u32 n;

	if (!conn->sent_ns)
		return 0;
	due->unacked++;
	if (walk->now - conn->sent_ns < conn_rto_ns(conn) && conn->sent_ns != 1)
		return 0;
	n = due->count;
	opaque(n);
	if (n >= DUE_ROWS)
		return 0;
	__builtin_memcpy(&due->keys[n], &conn->key, sizeof(conn->key));
	due->count = n + 1;
	return 0;
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
	__builtin_memcpy(w->head, conn->l2, sizeof(conn->l2));
	w->p.l3_off = conn->l2_len;
	return true;
}

/* Retransmits for row n of the due list. Global: verified by itself, or the loop of tick does not
 * converge on Linux 6.12. */
__noinline int rexmit_one(struct __sk_buff *ctx, u32 n)
{
	struct work *w = work_get();
	const struct conn_key *key;
	struct due_list *due;
	struct sock_ref r;
	struct conn *conn;
	u32 ifindex, zero = 0;
	bool send;

	due = bpf_map_lookup_elem(&due_map, &zero);
	if (!w || !due || n >= DUE_ROWS)
		return 0;
	key = &due->keys[n];
	conn = conn_get(key);
	if (!conn)
		return 0;
	__builtin_memset(&w->p, 0, sizeof(w->p));
	__builtin_memcpy(&w->p.key, key, sizeof(*key));
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
	*(u32 *)(w->head + 14) = w->p.l3_off == 18 ? *(u32 *)(w->head + 14) : 0;
	count(STAT_REPLAY_TIMEOUT);
	tier_clone(ctx, w, segment_build(w->view.tstamp_ok, false), ifindex);
	return 0;
}

/* Retransmits what is due; returns how many connections have unacknowledged fast bytes. */
INLINE int tick(struct __sk_buff *ctx)
{
	struct work *w = work_get();
	struct due_walk walk = {};
	u32 zero = 0;
	int i;

	walk.due = bpf_map_lookup_elem(&due_map, &zero);
	if (!w || !walk.due)
		return 0;
	walk.now = w->now = now_ns();
	walk.due->count = walk.due->unacked = 0;
	bpf_for_each_map_elem(&erb_conns, due_one, &walk, 0);
	bpf_for(i, 0, DUE_ROWS)
	{
		if (i >= walk.due->count)
			break;
		rexmit_one(ctx, i);
	}
	return walk.due->unacked;
}

struct sweep_walk {
	u64 now;
	u32 rights;
	u32 skip; /* admissions still to be left out */
	struct __sk_buff *ctx;
	struct sweep_io *io;
	struct work *w;
};

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
	if (n >= SWEEP_ROWS) {
		io->more++;
		return;
	}
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

/* The entry of w->p.key holds something: whether a list could prove that it may go. Returns flags of
 * its row, and in the upper half for how many requests. Whoever has held it for long is reported.
 * copied_seq was read before. Global: verified by itself. */
__noinline u64 held_look(u32 socket, u32 copied_seq)
{
	u32 zero = 0, flags = 0, held, requests, why = HELD_GONE;
	struct work *w = work_get();
	struct sweep_io *io;
	struct conn *conn;

	io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	conn = w && io ? conn_get(&w->p.key) : 0;
	if (!conn || !io)
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

static long sweep_one(void *map, const void *map_key, struct conn *conn, struct sweep_walk *walk)
{
	struct conn_key *key = &walk->w->p.key;
	struct sweep_io *io = walk->io;
	u32 flags = 0, state, proof_pos = conn->proof_pos, copied_seq = 0, socket = 0;
	bool found = false, executed = false, closed = false, waits = false;
	u64 looked = 0;
	u32 candidate = 0;
	struct sock_ref r = {};

	__builtin_memcpy(key, &conn->key, sizeof(*key));
	if (sock_get(walk->ctx, key, conn->family, &r)) {
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
	if (found && r.state == TCP_TIME_WAIT && conn_ended(conn)) {
		conn->absent = 2;
	} else if (found) {
		conn->absent = 0;
	} else if (!conn->absent) {
		conn->absent = 1;
		conn->absent_at = walk->now >> 20;
	} else if ((u32)(walk->now >> 20) - conn->absent_at > ABSENT_NS >> 20) {
		conn->absent = 2;
	}
	if (conn->absent == 2)
		flags |= SWEEP_F_GONE;
	if (conn_holds(conn))
		flags |= SWEEP_F_HOLDS;
	else
		conn->held_at = 0;
	flags |= closed * SWEEP_F_CLOSED; /* a branch costs the verifier a tenth more */
	if ((closed && conn_holds(conn)) || (executed && (conn->flags & CONN_F_FENCE_PROOF)))
		flags |= SWEEP_F_EXECUTED;
	if (conn->in_delta || conn->out_delta)
		flags |= SWEEP_F_TRANSLATED;
	state = conn->state;
	if (found)
		candidate = admit_candidate(conn, &r, walk->rights, &waits);
	if (candidate && walk->skip)
		walk->skip--;
	else if (candidate)
		admit_report(io, conn, candidate);
	lock_release(&conn->lock);
	sock_put(&r);
	if (flags & SWEEP_F_HOLDS) {
		looked = held_look(socket, copied_seq);
		flags |= looked;
	}
	io->waiting += waits;
	io->conns++;
	if (state < CONN_STATE_MAX)
		io->by_state[state]++;
	if (conn->flags & CONN_F_CLOSING)
		io->closing++;
	if ((flags & (SWEEP_F_TRANSLATED | SWEEP_F_GONE)) == SWEEP_F_TRANSLATED)
		io->translated++; /* where no socket is, nothing needs it */
	if (conn->sent_ns)
		io->unacked++;
	if (flags & (SWEEP_F_GONE | SWEEP_F_EXECUTED))
		sweep_report(io, conn, flags, proof_pos, looked >> 32);
	return 0;
}

INLINE int sweep(struct __sk_buff *ctx)
{
	struct sweep_walk walk = {.now = now_ns(), .ctx = ctx, .w = work_get()};
	struct control *c = control_get();
	u32 zero = 0;

	if (!c || !walk.w)
		return 0;
	walk.rights = read_once(c->rights);
	walk.w->now = walk.now;
	walk.io = bpf_map_lookup_elem(&erb_sweep_io, &zero);
	if (!walk.io)
		return 0;
	walk.skip = walk.io->skip;
	walk.io->count = walk.io->more = walk.io->conns = 0;
	walk.io->admits = walk.io->admits_more = walk.io->waiting = 0;
	walk.io->closing = walk.io->translated = walk.io->unacked = walk.io->helds = 0;
	for (u32 i = 0; i < CONN_STATE_MAX; i++)
		walk.io->by_state[i] = 0;
	bpf_for_each_map_elem(&erb_conns, sweep_one, &walk, 0);
	return walk.io->count;
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
		return conn->absent == 2 && !conn->ahead_busy;
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
	u32 shares = 0, hidden = 0, ahead = 0;
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
	if (io->done && io->remove && !bpf_map_delete_elem(&erb_conns, &key)) {
		client_left(c, &key, family);
		count(STAT_CONN_DELETED);
	}
	return io->done;
}
