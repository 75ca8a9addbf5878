/* SPDX-License-Identifier: GPL-2.0 */
/* sock.h - the kernel's own view of a connection.
 *
 * A look-up finds more than connections (LISTEN has a tcp_sock that looks idle, TIME_WAIT and
 * request sockets have none): only a full socket in ESTABLISHED whose cookie is the entry's counts
 * for answers; any state with the entry's cookie counts for translation. */
#pragma once
#include "base/seam.h"

#define SOCK_STATES_SPEAKING                                                                       \
	(1U << TCP_ESTABLISHED | 1U << TCP_CLOSE_WAIT | 1U << TCP_FIN_WAIT1 |                      \
	 1U << TCP_FIN_WAIT2 | 1U << TCP_CLOSING | 1U << TCP_LAST_ACK)

struct sock_ref {
	struct bpf_sock *sk; /* to be released; NULL: found by sock_known() */
	struct tcp_sock *tp; /* full sockets but LISTEN, else NULL */
	u64 cookie;
	u32 rcv_isn; /* TCP_NEW_SYN_RECV */
	u32 snt_isn;
	u32 ts_recent;		 /* TCP_NEW_SYN_RECV: the SYN's timestamp, 0 = none */
	struct sock_fixed fixed; /* sk is NULL */
	u8 state;		 /* TCP_* */
	u8 transparent;
};

/* Fields that change while we look, loaded under the connection's lock. */
struct sock_view {
	u32 rcv_nxt;
	u32 rcv_wup;
	u32 rcv_wnd;
	u32 snd_una;
	u32 snd_nxt;
	u32 write_seq;
	u32 snd_wnd;	/* as the kernel has it, from snd_una on, bytes */
	u32 max_window; /* largest the client has offered, bytes */
	u32 mss_cache;
	u32 ts_recent;	 /* client's newest timestamp that the kernel knows */
	u32 ts_recent_s; /* when it learnt it: seconds, CLOCK_MONOTONIC */
	struct sock_fixed fixed;
	u8 established;
	u8 speaks; /* a connection of which each side may still have to repeat something */
};

INLINE u64 sock_cookie(const struct tcp_sock *tp)
{
	return read_once(tp->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter);
}

INLINE u8 sock_state(const struct tcp_sock *tp)
{
	return read_once(tp->inet_conn.icsk_inet.sk.__sk_common.skc_state);
}

/* What the handshake has settled. Three bit fields and a look at the kernel's layout: half a view's
 * cost, so the entry keeps it. */
INLINE void sock_fixed_load(const struct tcp_sock *tp, struct sock_fixed *f)
{
	const struct tcp_sock___usec *usec = (const void *)tp;

	f->tsoffset = tp->tsoffset;
	f->snd_wscale = BPF_CORE_READ_BITFIELD(tp, rx_opt.snd_wscale);
	f->rcv_wscale = BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale);
	f->tstamp_ok = BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok);
	f->usec_ts = 0;
	if (bpf_core_field_exists(usec->tcp_usec_ts))
		f->usec_ts = BPF_CORE_READ_BITFIELD(usec, tcp_usec_ts);
}

/* Loads what moves; the rest of v is of the same socket, by a load for the same packet. Plain loads
 * only: no helper may be called under a BPF lock. Returns false if the socket that sock_known()
 * found is gone: the cookie, read last, is another's or the state is no connection's, and the view
 * must not be used. In this order: memory that has a new owner is CLOSE or LISTEN before anything
 * else of it changes, and bears the new cookie before it is ESTABLISHED again; so ESTABLISHED, and
 * behind it the old cookie, prove all that was loaded before. */
INLINE bool sock_view_again(const struct sock_ref *r, struct sock_view *v)
{
	const struct tcp_sock *tp = r->tp;
	u8 state;

	v->rcv_nxt = tp->rcv_nxt;
	v->rcv_wup = tp->rcv_wup;
	v->rcv_wnd = tp->rcv_wnd;
	v->snd_una = tp->snd_una;
	v->snd_nxt = tp->snd_nxt;
	v->write_seq = tp->write_seq;
	v->snd_wnd = tp->snd_wnd;
	v->max_window = tp->max_window;
	v->mss_cache = tp->mss_cache;
	v->ts_recent = tp->rx_opt.ts_recent;
	v->ts_recent_s = tp->rx_opt.ts_recent_stamp;
	load_order();
	state = sock_state(tp);
	load_order();
	v->established = state == TCP_ESTABLISHED;
	v->speaks = state < 16 && (1U << state & SOCK_STATES_SPEAKING);
	return r->sk || (v->established && sock_cookie(tp) == r->cookie);
}

/* Loads the whole view, as sock_view_again() does. */
INLINE bool sock_view_load(const struct sock_ref *r, struct sock_view *v)
{
	if (r->sk)
		sock_fixed_load(r->tp, &v->fixed);
	else
		v->fixed = r->fixed;
	return sock_view_again(r, v);
}

/* Window to advertise, bytes: tcp_receive_window() of include/net/tcp.h. */
INLINE u32 sock_receive_window(const struct sock_view *v)
{
	s32 window = v->rcv_wup + v->rcv_wnd - v->rcv_nxt;

	return window < 0 ? 0 : window;
}

/* TSval the kernel would write now: tcp_time_stamp_ts() + tsoffset. */
INLINE u32 sock_tsval(const struct sock_view *v, u64 now)
{
	return (u32)(now / (v->fixed.usec_ts ? 1000 : 1000000)) + v->fixed.tsoffset;
}

INLINE u32 sock_tuple(struct bpf_sock_tuple *t, const struct conn_key *key, u8 family)
{
	if (family == 4) {
		t->ipv4.saddr = *(const u32 *)(key->client_addr + 12);
		t->ipv4.daddr = *(const u32 *)(key->server_addr + 12);
		t->ipv4.sport = key->client_port_be;
		t->ipv4.dport = key->server_port_be;
		return sizeof(t->ipv4);
	}
	__builtin_memcpy(t->ipv6.saddr, key->client_addr, 16);
	__builtin_memcpy(t->ipv6.daddr, key->server_addr, 16);
	t->ipv6.sport = key->client_port_be;
	t->ipv6.dport = key->server_port_be;
	return sizeof(t->ipv6);
}

/* The entry's socket without a look-up, whose dozen of calls cost about 110 ns: r as sock_get()
 * would fill it, or false if only a look-up can tell. The entry remembers where its socket lies;
 * the loads are such that the kernel survives any address, and what lies there is the socket only
 * if it bears its cookie, which no two sockets share, and is established: then it is the owner of
 * the address pair. It may go at any moment, so each view that is loaded says whether it was still
 * there. (Sockets are freed by type, SLAB_TYPESAFE_BY_RCU: net/ipv4/tcp_ipv4.c, tcp_prot.) */
INLINE bool sock_known(const struct conn *conn, struct sock_ref *r)
{
	u64 at = read_once(conn->tcp_sock);

	if (!at)
		return false;
	__builtin_memset(r, 0, sizeof(*r));
	r->tp = bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct tcp_sock));
	r->fixed = conn->fixed;
	load_order(); /* it is this socket's if the entry still has its cookie: sock_note() */
	r->cookie = sock_cookie(r->tp);
	r->state = TCP_ESTABLISHED;
	return r->cookie == conn->cookie && sock_state(r->tp) == TCP_ESTABLISHED;
}

/* Remembers what a look-up found, for sock_known(). Only of the socket whose cookie the entry has: no
 * cookie comes back, so while it stands nobody puts another socket's in its place. */
INLINE void sock_note(struct conn *conn, const struct sock_ref *r)
{
	struct sock_fixed fixed;

	if (!r->tp)
		return;
	sock_fixed_load(r->tp, &fixed);
	lock_take(&conn->lock);
	if (conn->cookie == r->cookie) {
		conn->fixed = fixed;
		write_once(conn->tcp_sock, (u64)r->tp);
	}
	lock_release(&conn->lock);
}

/* Whether its listener takes connections to any address (IP_TRANSPARENT): a proxy's, to which
 * netfilter gives what is addressed to Redis (TPROXY). Redis never asks for it. */
INLINE bool sock_transparent(const struct sock_ref *r)
{
	return r->transparent ||
	       (r->tp && (r->tp->inet_conn.icsk_inet.inet_flags >> INET_FLAGS_TRANSPARENT & 1));
}

/* Looks the connection's socket up in the device's namespace. Returns false if there is none;
 * else sock_put() must follow. About 110 ns. */
INLINE bool sock_get(void *ctx, const struct conn_key *key, u8 family, struct sock_ref *r)
{
	struct bpf_sock_tuple t = {};
	u32 len = sock_tuple(&t, key, family);
	struct tcp_request_sock *req;
	struct tcp_timewait_sock *tw;
	struct tcp_sock *tp;

	__builtin_memset(r, 0, sizeof(*r));
	if (len == sizeof(t.ipv4))
		r->sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	else
		r->sk = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!r->sk)
		return false;
	r->state = r->sk->state;
	if (r->state == TCP_LISTEN)
		return true;
	if (r->state == TCP_TIME_WAIT) {
		tw = bpf_skc_to_tcp_timewait_sock(r->sk);
		if (tw)
			r->cookie = tw->tw_sk.__tw_common.skc_cookie.counter;
	} else if (r->state == TCP_NEW_SYN_RECV) {
		req = bpf_skc_to_tcp_request_sock(r->sk);
		if (req) {
			r->cookie = req->req.req.__req_common.skc_cookie.counter;
			r->rcv_isn = req->rcv_isn;
			r->snt_isn = req->snt_isn;
			r->ts_recent = req->req.req.ts_recent;
			r->transparent = BPF_CORE_READ_BITFIELD(&req->req, no_srccheck);
		}
	} else {
		tp = bpf_skc_to_tcp_sock(r->sk);
		if (tp) { /* cast: the verifier wants one kind of pointer, sock_known()'s */
			r->tp = bpf_rdonly_cast(tp, bpf_core_type_id_kernel(struct tcp_sock));
			r->cookie = sock_cookie(r->tp);
		}
	}
	return true;
}

INLINE void sock_put(struct sock_ref *r)
{
	if (r->sk)
		bpf_sk_release(r->sk);
}
