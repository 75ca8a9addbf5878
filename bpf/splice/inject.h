/* SPDX-License-Identifier: GPL-2.0 */
/* inject.h - brings up a copy of a packet that waited (hold.h): as one more repetition by its client, at the ingress of
 * the device by which it came. The daemon runs it on the copy's frame, whose checksum it has made whole. TC's ingress
 * meets it, native XDP does not.
 *
 * Invariants:
 *  Z5. Nothing here decides that the packet may go up: order.h is asked again, as of any repetition. What is looked at
 *      here saves the copy from being held once more.
 *  Z6. Only while its socket lives. Behind the socket its bytes are an old duplicate, as the network may have one.
 */
#pragma once
#include "base/seam.h"
#include "net/sock.h"
#include "splice/hold.h"
#include "splice/order.h"

/* Whether the entry's socket is the one that the copy was for. */
INLINE bool inject_lives(struct __sk_buff *ctx, const struct conn *conn, const struct inject_io *io)
{
	struct sock_ref r;
	bool lives;

	if (!sock_get(ctx, &conn->key, conn->family, &r))
		return false;
	lives = r.state != TCP_LISTEN && (r.cookie == io->cookie || io->cookie == COOKIE_UNKNOWN);
	sock_put(&r);
	return lives;
}

INLINE enum inject inject(struct __sk_buff *ctx, struct inject_io *io, const struct control *c)
{
	struct conn_key key;
	struct conn *conn;

	__builtin_memcpy(&key, &io->key, sizeof(key));
	conn = conn_get(&key);
	if (!conn || conn->cookie != io->cookie)
		return INJECT_GONE;
	io->waits_for = read_once(conn->waits_for);
	if (!order_reached(c, conn))
		return INJECT_WAITS;
	if (!inject_lives(ctx, conn, io))
		return INJECT_GONE;
	hold_forget(conn); /* if it is held once more, it is copied once more */
	if (bpf_clone_redirect(ctx, io->ifindex, BPF_F_INGRESS))
		return INJECT_FULL;
	count(STAT_HELD_INJECTED);
	return INJECT_DONE;
}
