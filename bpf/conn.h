/* SPDX-License-Identifier: GPL-2.0 */
/* conn.h - how a connection begins: entries are made from sockets, never from packets alone. */
#pragma once
#include "splice.h"

/* What the kernel says about a connection that has no entry yet, or one of another socket. */
struct conn_start {
	u32 next;      /* client space = kernel space: first byte that was not seen yet */
	u32 edge;      /* kernel space: oldest byte that may still be acknowledged */
	u32 write_seq; /* kernel space: first byte of the next reply */
	bool known;    /* the stream is seen from its first byte */
};

/* Starts the entry's fields over. Lock held. Shares of the fence and marks of a former owner stay:
 * only proof releases them, and such an entry is never fast. */
INLINE void conn_init(struct conn *conn, const struct work *w, const struct conn_start *s,
		      u64 cookie, u32 ifindex)
{
	bool holds = conn_holds(conn);

	conn->state = !s->known ? CONN_OLD : holds ? CONN_BYPASS : CONN_NEW;
	conn->flags = holds ? conn->flags & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW) : 0;
	if (!s->known || holds)
		conn->flags |= CONN_F_UNCOUNTABLE;
	if (!s->known)
		conn->flags |= CONN_F_SCAN_LOST;
	conn->reset = 0;
	conn->absent = 0;
	__builtin_memcpy(&conn->key, &w->p.key, sizeof(conn->key));
	conn->ifindex = ifindex;
	conn->family = w->p.family;
	conn->next = conn->up_max = conn->in_edge = s->next;
	conn->in_delta = conn->out_delta = 0;
	conn->edge = conn->replay_from = conn->replay_base = conn->ack_max = s->edge;
	conn->ts_recent = w->p.tsval;
	conn->requests = conn->replies = 0;
	conn->sent_ns = conn->replay_ns = 0;
	conn->rtt_us = conn->rttvar_us = 0;
	conn->flight_max = REPLAY_BYTES;
	conn->recover = s->edge;
	conn->dup_acks = conn->tries = conn->spoke = 0;
	conn->mss_limit = 0;
	conn->db = 0;
	conn->resp = s->known ? 2 : 0;
	conn->hellos = s->known ? 0 : 2;
	conn->kept = 0;
	conn->stateful_at = conn->auth_at = 0;
	conn_epoch_move(conn);
	conn->egress_max = conn->scan_next = s->write_seq;
	conn->last_tsval = 0;
	conn->ack_up_ns = conn->request_up_ns = w->now;
	conn->proof_pos = s->next;
	__builtin_memset(&conn->in, 0, sizeof(conn->in));
	__builtin_memset(&conn->out, 0, sizeof(conn->out));
	conn->cookie = cookie;
}

/* Fills s from the socket. Returns 0, or the reason for which no entry can be made; *untracked says
 * that its payload may still reach Redis: the fence must close. */
INLINE u32 conn_start_of(const struct control *c, struct sock_ref *r, struct conn_start *s,
			 bool *untracked)
{
	*untracked = false;
	if (r->state == TCP_TIME_WAIT)
		return STAT_SOCK_TIME_WAIT;
	if (r->state == TCP_LISTEN) {
		*untracked = true; /* perhaps the end of a handshake by SYN cookie */
		return STAT_SOCK_LISTEN;
	}
	if (r->state == TCP_NEW_SYN_RECV) {
		s->next = r->rcv_isn + 1;
		s->edge = s->write_seq = r->snt_isn + 1;
		s->known = c->admit && r->cookie;
		return 0;
	}
	if (!r->tp)
		return STAT_SOCK_CLOSING;
	s->next = r->tp->rcv_nxt;
	s->edge = r->tp->snd_una;
	s->write_seq = r->tp->write_seq;
	s->known = c->admit && r->cookie && r->state == TCP_ESTABLISHED && !r->tp->data_segs_in;
	return 0;
}

/* Payload that nobody tracks goes to Redis and may be any command: the fence closes, and the gate
 * behind it. In this order: the daemon opens the gate up to a count that it read before the fence.
 */
INLINE void untracked_seen(struct control *c)
{
	write_once(c->untracked, 1);
	atomic_add(&c->gate_seen, 1);
	count(STAT_GATE_SHUT);
}

/* Whether payload that no entry counted may still be between the device and TCP, which alone counts
 * it (data_segs_in). */
INLINE bool table_was_full(const struct control *c, u64 now)
{
	u64 full = read_once(c->table_full_ns);

	return full && now < full + UNTRACKED_NS;
}

/* Makes or re-makes the entry for the socket in r. Returns NULL if there can be none. */
INLINE struct conn *conn_track(struct work *w, struct control *c, struct conn *conn,
			       struct sock_ref *r, u32 ifindex)
{
	struct conn_start s = {};
	bool untracked;
	u32 zero = 0, reason;
	u64 cookie = r->cookie ? r->cookie : COOKIE_UNKNOWN;
	struct conn_zero *empty;

	if (c->stopping)
		return 0;
	reason = conn_start_of(c, r, &s, &untracked);
	if (reason) {
		count(reason);
		if (untracked)
			untracked_seen(c);
		return 0;
	}
	if (!conn) {
		empty = bpf_map_lookup_elem(&erb_conn_zero, &zero);
		if (empty)
			bpf_map_update_elem(&erb_conns, &w->p.key, empty, BPF_NOEXIST);
		conn = conn_get(&w->p.key);
		if (!conn) {
			untracked_seen(c);
			write_once(c->table_full_ns, w->now);
			count(STAT_CONN_TABLE_FULL);
			return 0;
		}
	}
	if (table_was_full(c, w->now))
		s.known = false;
	lock_take(&conn->lock);
	if (conn->cookie != cookie) /* another CPU may have been faster */
		conn_init(conn, w, &s, cookie, ifindex);
	lock_release(&conn->lock);
	if (!r->cookie)
		count(STAT_SOCK_COOKIE_ZERO);
	count(s.known ? STAT_CONN_CREATED : STAT_CONN_OLD);
	return conn;
}
