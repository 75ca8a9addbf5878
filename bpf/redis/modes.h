/* SPDX-License-Identifier: GPL-2.0 */
/* modes.h - what a connection's commands say of the connection itself: user, database, RESP
 * version, MULTI, WATCH. It is not followed, only found to have changed: then Redis is asked
 * (admit.h).
 *
 * Invariants:
 *  M1. Every command that may change what later ones of its connection mean, or who may send
 *      them, moves conn.h.modes_moved in the packet that shows its name, and conn.h.stateful_at is its
 *      number: while fewer replies have left, Redis may not have executed it.
 *  M2. conn.resp is not 0 only if Redis has this version: proved by CLIENT LIST, or 2 since the
 *      connection began, and no HELLO of another version was scanned since; or 3 by a map among the
 *      replies, if every HELLO scanned since a proved 2 named 3 (RESP2 has no maps).
 *  M3. CONN_K_AUTHED: AUTH, or HELLO with options, was answered without an error outside MULTI,
 *      and no RESET was scanned since: Redis keeps the connection authenticated (src/networking.c).
 *  M4. CONN_K_WATCH falls only with commands that end every WATCH if they succeed; an error
 *      reply after any WATCH makes that doubtful (CONN_K_STUCK).
 *  M5. Without CONN_K_LET_IN: the entry was made under conn.rights when nobody could do anything
 *      without a password, and since then nothing was answered but errors by which Redis refuses
 *      before a command runs. So no command of the connection has changed anything. Both are
 *      needed: a module may spell such errors too, and rights may have changed unseen.
 */
#pragma once
#include "base/seam.h"

#define HELLO_ODD 1 /* a HELLO that names neither 2 nor 3, or HELLOs of both */

/* What the commands of one packet say of their connection. */
struct modes_found {
	u16 kept;    /* in: CONN_K_* of the entry; out: those of the scanner behind the packet */
	u16 db;	     /* in: the database if the connection is FAST or NEW, else DB_UNKNOWN */
	u8 stateful; /* the connection leaves FAST: why, enum slow_why; 0: it does not */
	u8 reset;    /* RESET */
	u8 hello;    /* 0 none, 2, 3, HELLO_ODD */
	u8 gate;     /* EXEC of what may be queued */
	u32 stateful_at; /* number of the last such command or HELLO, counted from the packet's
			    first */
	u32 auth_at;	 /* number of the last AUTH or HELLO with options; 0: none */
};

#define DB_UNKNOWN 0xffff

INLINE void modes_begin(struct modes_found *m, u16 kept, u16 db)
{
	__builtin_memset(m, 0, sizeof(*m));
	m->kept = kept & CONN_K_SCANNED;
	m->db = db;
}

/* Whether SELECT names the database that the connection is in. */
INLINE bool modes_same_db(const struct modes_found *m, const struct scan_request *s)
{
	u32 n = 0;

	if (!s->sub_len || s->sub_len > 5 || m->stateful || (s->sub_len > 1 && s->sub[0] == '0'))
		return false;
	for (u32 i = 0; i < 5; i++) {
		u32 digit = (u32)s->sub[i] - '0';

		if (i >= s->sub_len)
			break;
		if (digit > 9)
			return false;
		n = n * 10 + digit;
	}
	return n == m->db;
}

INLINE void modes_hello(struct modes_found *m, const struct scan_request *s, u32 number)
{
	u8 version =
	    s->sub_len == 1 && (s->sub[0] == '2' || s->sub[0] == '3') ? s->sub[0] - '0' : HELLO_ODD;

	if (s->args_total < 2)
		return; /* tells, changes nothing */
	m->hello = m->hello && m->hello != version ? HELLO_ODD : version;
	m->stateful_at = number;
	if (s->args_total == 2)
		return;
	m->stateful = CMD_HELLO;
	if (!(m->kept & CONN_K_MULTI))
		m->auth_at = number;
}

/* A command of this class is the packet's request of this number. Global: verified by itself. */
__noinline int modes_command(struct modes_found *m, const struct scan_request *s, u32 class,
			     u32 number)
{
	if (!m || !s)
		return 0;
	if ((class == CMD_GATE || class == CMD_CONFIG) && (m->kept & CONN_K_MULTI))
		m->kept |= CONN_K_GATE;
	switch (class) {
	case CMD_HELLO:
		modes_hello(m, s, number);
		return 0;
	case CMD_SELECT:
		if (modes_same_db(m, s))
			return 0;
		break;
	case CMD_AUTH:
		if (!(m->kept & CONN_K_MULTI)) /* else only queued */
			m->auth_at = number;
		break;
	case CMD_MULTI:
		m->kept |= CONN_K_MULTI | CONN_K_IN_MULTI;
		break;
	case CMD_WATCH:
		m->kept |= CONN_K_WATCH | CONN_K_WATCHED;
		break;
	case CMD_UNWATCH:
		if (!(m->kept & CONN_K_IN_MULTI)) /* else only queued */
			m->kept &= ~CONN_K_WATCH;
		break;
	case CMD_EXEC:
		m->gate |= !!(m->kept & CONN_K_GATE);
		/* fallthrough */
	case CMD_DISCARD:
		if (m->kept & CONN_K_IN_MULTI)
			m->kept &= ~(CONN_K_WATCH | CONN_K_IN_MULTI);
		break;
	case CMD_RESET:
		m->reset = 1;
		m->auth_at = 0;
		m->kept &= ~(CONN_K_WATCH | CONN_K_IN_MULTI);
		break;
	case CMD_BARRED:
	case CMD_SILENT:
	case CMD_MONITOR:
		m->kept |= CONN_K_NEVER;
		break;
	case CMD_STATEFUL:
	case CMD_UNCOUNTABLE:
		break;
	default:
		return 0;
	}
	m->stateful = class; /* of it: slow.def */
	m->stateful_at = number;
	return 0;
}

/* Something of the connection has changed that only Redis can tell: no list made before it counts.
 * Lock held. */
INLINE void modes_move(struct conn *conn)
{
	conn->h.modes_moved++;
	conn->h.judged = 0;
}

/* A stream older than ERB was not at a command's begin: it is what it was before, and what it has sent
 * was misread (A4). Lock held. */
INLINE void conn_trial_failed(struct conn *conn)
{
	conn->flags |= CONN_F_UNCOUNTABLE | CONN_F_SCAN_LOST;
	conn->h.kept &= ~CONN_K_TRIAL;
	conn->h.slow = SLOW_TRIAL_FAILED;
	conn->handler_bits |= CONN_F_FENCE_PROOF;
}

/* Takes over what a packet said, before its requests are counted. Lock held. */
INLINE void modes_commit(struct conn *conn, const struct modes_found *m)
{
	bool other = m->hello && m->hello != conn->h.resp;
	bool of_3 = m->hello == 3 && (conn->h.resp == 2 || conn->h.resp == RESP_IF_MAP);

	conn->h.kept = (conn->h.kept & ~CONN_K_SCANNED) | (m->kept & CONN_K_SCANNED);
	if (m->reset) {
		conn->h.kept &= ~CONN_K_AUTHED;
		conn->h.auth_at = 0;
	}
	if (other || m->reset)
		conn->h.resp = of_3 && !m->reset ? RESP_IF_MAP : 0;
	if (m->auth_at)
		conn->h.auth_at = conn->requests + m->auth_at;
	if (m->stateful)
		conn->h.slow = m->stateful;
	if (m->stateful || other) {
		conn->h.stateful_at = conn->requests + m->stateful_at;
		modes_move(conn);
	}
}
