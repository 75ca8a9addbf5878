/* SPDX-License-Identifier: GPL-2.0 */
/* conn.h - how a connection begins: entries are made from sockets, never from packets alone.
 *
 * Invariants:
 * L1. Payload for the server has an entry, or passes unseen, as it came. Nothing of what is unseen is
 *     answered, and it closes nothing for others. What it writes is a change that no packet shows: the
 *     server reports it before the lease is renewed. Payload for another server on the same port
 *     passes like that too.
 * L2. Whose a connection is follows from the listener where it arrives (erb_listeners, written by the
 *     daemon). LISTENER_REDIS is said only of a listener all of whose connections are Redis's,
 *     LISTENER_FOREIGN only where none is. A transparent socket is a proxy's. Of any other listener's nothing is
 *     answered before a list shows whose the connection is. Where it was seen from its first byte its requests are
 *     read all the same: what is never held (order.h, Y6) is not held while no daemon knows a new listener.
 * L3. A connection that found no room is not believed to be new while bytes of it may be on their way to
 *     TCP unseen: for UNSEEN_NS, by its own time in erb_unseen. Nothing is taken up as older than ERB
 *     before the table has had room for UNSEEN_CALM_NS. Each of these closes the fence for a while, and a
 *     crowd of them would do so for ever.
 * L4. erb_clients counts the entries of each address: up before an entry is made, down when it was not
 *     made, or is deleted. An address has at most control.client_conns_max. */
#pragma once
#include "base/seam.h"
#include "base/verdict.h"
#include "cache/key_hash.h"
#include "net/packet.h"
#include "net/sock.h"
#include "net/work.h"
#include "splice/ahead.h"
#include "splice/handler.h"
#include "splice/order.h"
#include "splice/place.h"
#include "splice/splice.h"

/* What the kernel says about a connection that has no entry yet, or one of another socket. */
struct conn_start {
	u32 next;      /* client space = kernel space: first byte that was not seen yet */
	u32 edge;      /* kernel space: oldest byte that may still be acknowledged */
	u32 write_seq; /* kernel space: first byte of the next reply */
	bool read;     /* the stream is seen from its first byte */
	bool known;    /* and it is the server's: L2 */
};

/* Starts the entry's fields over. Lock held. What the handler holds of a former owner stays: only proof
 * releases it, and such an entry is never fast. */
INLINE void conn_init(struct conn *conn, const struct work *w, const struct conn_start *s,
		      u64 cookie, u32 ifindex)
{
	bool holds = handler_holds(conn);

	conn->state = !s->read ? CONN_OLD : s->known && !holds ? CONN_NEW : CONN_BYPASS;
	conn->flags = holds ? conn->flags & CONN_F_HANDLER : 0;
	if (!s->known || holds)
		conn->flags |= CONN_F_UNCOUNTABLE;
	if (!s->read)
		conn->flags |= CONN_F_SCAN_LOST;
	conn->absent = ABSENT_NOT;
	__builtin_memcpy(&conn->key, &w->p.key, sizeof(conn->key));
	conn->ifindex = ifindex;
	conn->family = w->p.family;
	conn->next = conn->up_max = conn->in_edge = s->next;
	conn->in_delta = conn->out_delta = 0;
	conn->edge = conn->replay_from = conn->replay_base = conn->ack_max = s->edge;
	conn->ts_recent = 0;
	conn->requests = conn->replies = 0;
	conn->replay_ns = 0;
	sent_note(conn, 0);
	conn->rtt_us = conn->rttvar_us = 0;
	conn->flight_max = REPLAY_BYTES;
	conn->recover = s->edge;
	conn->dup_acks = conn->tries = conn->spoke = 0;
	conn->held_ns = 0;
	conn->mss_limit = 0;
	conn->egress_max = conn->scan_next = s->write_seq;
	conn->last_tsval = 0;
	conn->ack_up_ns = conn->request_up_ns = w->now;
	conn->in_at = conn->out_at = STREAM_BETWEEN;
	handler_begin(conn, w, s->known);
	/* The next socket may lie where the former one lay: sock_known() would take what was fixed of that. */
	write_once(conn->tcp_sock, 0);
	conn->cookie = cookie;
}

/* Whether the kernel would make a connection of a packet that found only the listener: what it says
 * itself. Without a SYN cookie that is right it answers with a reset, and nothing of the payload
 * reaches anybody. */
INLINE bool listener_believes(struct bpf_sock *listener, struct work *w)
{
	u32 l3 = w->p.l3_off, l4 = w->p.l4_off;

	opaque(l3);
	opaque(l4);
	if (l3 > L2_BYTES_MAX || l4 > HEAD_BYTES - TCP_BYTES_MAX)
		return false;
	if (w->p.family == 4)
		return !bpf_tcp_check_syncookie(listener, w->head + l3, 20, (void *)(w->head + l4),
						20);
	return !bpf_tcp_check_syncookie(listener, w->head + l3, 40, (void *)(w->head + l4), 20);
}

/* Finds out who takes connections to the packet's destination: w->listener, and whether it takes
 * this one by a SYN cookie: w->by_cookie. Looked up from port 0, from which no connection comes.
 * Global: verified by itself. */
__noinline int listener_look(ctx_t *ctx)
{
	struct work *w = work_get();
	struct bpf_sock_tuple t = {};
	struct tcp_sock *tp;
	struct bpf_sock *sk;

	if (!w)
		return 0;
	w->listener = LISTENER_UNKNOWN;
	w->by_cookie = 0;
	if (sock_tuple(&t, &w->p.key, w->p.family) == sizeof(t.ipv4)) {
		t.ipv4.sport = 0;
		sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		t.ipv6.sport = 0;
		sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	if (sk->state == TCP_LISTEN) {
		w->by_cookie = listener_believes(sk, w);
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp)
			w->listener = listener_get(sock_cookie(tp));
	}
	bpf_sk_release(sk);
	return 0;
}

/* Fills s from the socket, behind listener_look(). Returns 0, or the reason for which no entry can
 * be made. */
INLINE u32 conn_start_of(const struct control *c, const struct work *w, struct sock_ref *r,
			 struct conn_start *s)
{
	bool ours = w->listener == LISTENER_REDIS;

	if (r->state == TCP_TIME_WAIT)
		return STAT_SOCK_TIME_WAIT;
	if (r->state == TCP_LISTEN) {
		if (!w->by_cookie)
			return STAT_SOCK_LISTEN;
		s->next = w->p.seq;
		s->edge = s->write_seq = w->p.ack;
		return 0;
	}
	if (r->state == TCP_NEW_SYN_RECV) {
		s->next = r->rcv_isn + 1;
		s->edge = s->write_seq = r->snt_isn + 1;
		s->read = c->admit && r->cookie;
		s->known = s->read && ours;
		return 0;
	}
	if (!r->tp)
		return STAT_SOCK_CLOSING;
	s->next = r->tp->rcv_nxt;
	s->edge = r->tp->snd_una;
	s->write_seq = r->tp->write_seq;
	s->read = c->admit && r->cookie && !r->tp->urg_data && /* J2 */
		  r->state == TCP_ESTABLISHED && !r->tp->data_segs_in;
	s->known = s->read && ours;
	return 0;
}

/* Where the count of the client's address is: of IPv4 the address, of IPv6 the network of 64 bits
 * that one client has all of. */
INLINE u32 *client_count_of(const struct control *c, const struct conn_key *key, u8 family)
{
	u64 first, second, hash;

	__builtin_memcpy(&first, key->client_addr, 8);
	__builtin_memcpy(&second, key->client_addr + 8, 8);
	hash = hash_word(&c->hash, hash_begin(&c->hash, 16), first, 0);
	hash = hash_word(&c->hash, hash, family == 4 ? second : 0, 1);
	return client_count_get(hash_end(&c->hash, hash));
}

/* L4: an entry of the client's is deleted. */
INLINE void client_left(const struct control *c, const struct conn_key *key, u8 family)
{
	u32 *held = client_count_of(c, key, family);

	if (held)
		atomic_add32(held, -1);
}

/* Where the time of the connection's last unseen payload is. */
INLINE u32 *unseen_time_of(const struct control *c, const struct conn_key *key)
{
	u64 first, second, hash;

	__builtin_memcpy(&first, key->client_addr, 8);
	__builtin_memcpy(&second, key->client_addr + 8, 8);
	hash = hash_word(&c->hash, hash_begin(&c->hash, 20), first, 0);
	hash = hash_word(&c->hash, hash, second, 1);
	hash = hash_word(&c->hash, hash, key->client_port_be | (u64)key->server_port_be << 16, 2);
	return unseen_time_get(hash_end(&c->hash, hash));
}

/* L3: whether payload that no entry counted may still be between the device and TCP, which alone
 * counts it (data_segs_in). Whoever passes payload unseen marks it first and looks for the entry
 * behind that; whoever makes the entry looks for the mark behind that. */
INLINE bool unseen_lately(const struct control *c, const struct work *w)
{
	u32 *time = unseen_time_of(c, &w->p.key), last;

	last = time ? atomic_add32_before(time, 0) : 0;
	return last && (u32)(w->now >> 20) - last + 1 <= (UNSEEN_NS >> 20) + 1;
}

/* Whether the table lately had no room for somebody. */
INLINE bool room_lacked(const struct control *c, u64 now)
{
	u64 last = read_once(c->no_room_ns);

	return last && now < last + UNSEEN_CALM_NS;
}

/* The packet is to pass unseen: L1, L3. */
INLINE void unseen_mark(struct control *c, const struct work *w, u32 reason)
{
	u32 *time = unseen_time_of(c, &w->p.key);

	if (time)
		atomic_set32(time, (u32)(w->now >> 20) | 1);
	if (reason != STAT_CONN_UNSEEN)
		write_once(c->no_room_ns, w->now);
}

/* Makes an empty entry. Returns 0, or for which reason there is no room. */
INLINE u32 conn_room(struct control *c, const struct work *w)
{
	u32 *held = client_count_of(c, &w->p.key, w->p.family);
	struct conn_zero *empty;
	u32 zero = 0;

	empty = bpf_map_lookup_elem(&erb_conn_zero, &zero);
	if (!held || !empty)
		return STAT_CONN_TABLE_FULL;
	if (atomic_add32_before(held, 1) >= c->client_conns_max) {
		atomic_add32(held, -1);
		return STAT_CONN_SHARE_FULL;
	}
	if (bpf_map_update_elem(&erb_conns, &w->p.key, empty, BPF_NOEXIST))
		client_left(c, &w->p.key, w->p.family); /* full, or another CPU was faster */
	else
		place_take(c, &w->p.key);
	return 0;
}

/* The entry for the packet's connection, made if there is none. NULL: there is no room, or it is
 * better not made, and the packet passes unseen. */
INLINE struct conn *conn_make(struct control *c, const struct work *w, struct conn_start *s,
			      u64 cookie)
{
	struct conn *conn = conn_get(&w->p.key);
	u32 reason = 0;

	if (s->read && unseen_lately(c, w))
		s->read = s->known = false;
	if (!s->known && room_lacked(c, w->now))
		reason = STAT_CONN_UNSEEN;
	else if (!conn)
		reason = conn_room(c, w);
	if (!reason && conn)
		return conn;
	if (reason)
		unseen_mark(c, w, reason);
	conn = conn_get(&w->p.key);
	if (conn && (!reason || !read_once(conn->cookie) || read_once(conn->cookie) == cookie))
		return conn; /* made here, or by another CPU meanwhile */
	if (!reason)
		unseen_mark(c, w, STAT_CONN_TABLE_FULL);
	count(reason ? reason : STAT_CONN_TABLE_FULL);
	return 0;
}

/* Whether connections that come by this device are ours. The TC programs are on others too, for
 * connections that move there. XDP is not. */
INLINE bool device_boosted(const struct control *c, u32 ifindex)
{
	u32 found = TIER_XDP;

	for (u32 i = 0; i < DEVICES_MAX; i++)
		found |= c->devices[i] == ifindex;
	return found;
}

/* Makes or re-makes the entry for the socket in r. Returns whether there is one now. */
INLINE bool conn_track(struct work *w, struct control *c, struct sock_ref *r, u32 ifindex)
{
	struct conn_start s = {};
	u64 cookie = r->cookie ? r->cookie : COOKIE_UNKNOWN, former = 0;
	u32 ahead = 0, reason;
	struct conn *conn;

	if (c->stopping)
		return false;
	if (!TIER_XDP && !device_boosted(c, ifindex)) {
		count(STAT_UP_ELSEWHERE);
		return false;
	}
	reason = conn_start_of(c, w, r, &s);
	if (reason) {
		count(reason);
		return false;
	}
	conn = conn_make(c, w, &s, cookie);
	if (!conn)
		return false;
	handler_judge(w, c);
	lock_take(&conn->lock);
	if (conn->cookie != cookie && !conn->ahead_busy) { /* another CPU may have been faster */
		former = conn->cookie;
		ahead = ahead_leave(conn);
		conn->cookie = 0;
	}
	lock_release(&conn->lock);
	if (ahead)
		ahead_free(ahead, former);
	if (s.read && unseen_lately(c, w))
		s.read = s.known = false;
	lock_take(&conn->lock);
	if (!conn->cookie)
		conn_init(conn, w, &s, cookie, ifindex);
	lock_release(&conn->lock);
	if (!r->cookie)
		count(STAT_SOCK_COOKIE_ZERO);
	count(s.known ? STAT_CONN_CREATED : STAT_CONN_OLD);
	return true;
}

/* Payload that meets a request socket: with threaded NAPI often the first one. The right
 * acknowledgement proves that the client got our SYN-ACK. Without it, or with a timestamp older
 * than the SYN's (tcp_paws_reject()), the kernel refuses the payload, or takes it if another CPU
 * ends the handshake meanwhile: nobody can know which, so it must not go up. */
INLINE bool request_unproved(const struct work *w, const struct sock_ref *r)
{
	return r->state == TCP_NEW_SYN_RECV && w->p.payload_len &&
	       !(w->p.flags & (TCP_SYN | TCP_RST)) &&
	       (!(w->p.flags & TCP_ACK) || w->p.ack != r->snt_isn + 1 ||
		(w->p.ts_off && r->ts_recent && seq_before(w->p.tsval, r->ts_recent)));
}

/* Payload that has no entry, or one of another socket's. V_REFUSED: it has one now. Where only the
 * listener is found the look-up is made again: between a request and the connection that replaces it
 * it may see neither, but the connection was in the table before the request left it
 * (net/ipv4/inet_hashtables.c, inet_ehash_insert()). Global: verified by itself. */
__noinline int conn_begin(ctx_t *ctx)
{
	struct control *c = control_get();
	struct work *w = work_get();
	enum verdict v = V_PLAIN;
	struct sock_ref r;

	if (!w || !c)
		return V_PLAIN;
	if (!sock_get(ctx, &w->p.key, w->p.family, &r)) {
		count(STAT_SOCK_NONE);
		return V_PLAIN;
	}
	if (r.state == TCP_LISTEN) {
		sock_put(&r);
		if (!sock_get(ctx, &w->p.key, w->p.family, &r))
			return V_PLAIN;
	}
	listener_look(ctx);
	if (w->listener == LISTENER_FOREIGN || sock_transparent(&r)) {
		count(STAT_UP_FOREIGN);
		sock_put(&r);
		return V_PLAIN;
	}
	if (request_unproved(w, &r)) {
		count(STAT_SOCK_REQUEST);
		v = V_DROP;
	} else {
		v = conn_track(w, c, &r, tier_ifindex(ctx)) ? V_REFUSED : order_unseen(w, c);
	}
	sock_put(&r);
	return v;
}
