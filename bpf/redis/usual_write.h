/* SPDX-License-Identifier: GPL-2.0 */
/* usual_write.h - what the express lane knows of writes: one of usual.def, alone in its packet, whole and in
 * its usual spelling, of a connection that waits for nothing. What such a write takes is what the scanner
 * (requests.h) would find, and is taken, held and given back by the same functions. */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/marks.h"
#include "net/work.h"
#include "redis/effects.h"
#include "redis/get.h"
#include "redis/requests.h"
#include "redis/resp.h"
#include "redis/scan_request.h"
#include "redis/strings.h"
#include "redis/through.h"
#include "splice/handler.h"

/* "*<args + 1>\r\n$<len>\r\n" */
INLINE u64 usual_head(u32 args, u32 len)
{
	return 0x0a0d00240a0d002aULL | (u64)('1' + args) << 8 | (u64)('0' + len) << 40;
}

/* Whether a word begins with this lower-case name, in any case, and CRLF; all of it are letters. */
INLINE bool usual_named(u64 word, const char *name, u32 len)
{
	u64 all = (1ULL << (len + 2) * 8) - 1, letters = 0x2020202020202020ULL >> (8 - len) * 8;

	return ((word & all) | letters) == (name_word(name, len) | (u64)RESP_CRLF << len * 8);
}

/* The write that begins with these 16 bytes, or FAST_NONE. */
INLINE u32 usual_write_kind(u64 word, u64 next)
{
	u32 kind = FAST_NONE;

#define USUAL(KIND, text, args)                                                                    \
	if (word == usual_head(args, sizeof(text) - 1) &&                                          \
	    usual_named(next, text, sizeof(text) - 1))                                             \
		kind = USUAL_KIND_##KIND;
#include "redis/usual.def"
#undef USUAL
	return kind;
}

/* Where its key's length stands; args: arguments behind the key. */
INLINE u32 usual_write_key(u32 kind, u32 *args)
{
	u32 at = 0;

#define USUAL(KIND, text, all)                                                                     \
	if (kind == USUAL_KIND_##KIND) {                                                           \
		*args = (all) - 1;                                                                 \
		at = sizeof("*1\r\n$1\r\n" text "\r\n$") - 1;                                      \
	}
#include "redis/usual.def"
#undef USUAL
	return at;
}

#define USUAL_ARG_NONE 6 /* "$0\r\n\r\n" */

/* Moves w->pos behind the argument that stands there. */
INLINE bool usual_arg(struct work *w)
{
	u32 at = w->pos, bytes;

	opaque(at);
	if (at > PAYLOAD_BYTES)
		return false;
	bytes = resp_bulk_bytes(*(u64 *)(w->payload + at), false);
	at += bytes - 2;
	opaque(at);
	if (!bytes || at > PAYLOAD_BYTES || *(u16 *)(w->payload + at) != RESP_CRLF)
		return false;
	w->pos = at + 2;
	return true;
}

#define USUAL_ARGS_MAX 2 /* behind the key */

/* Reads the write of this kind, and begins to fetch what it will mark. */
INLINE bool usual_write_read(struct work *w, const struct control *c)
{
	u32 args = 0, at = usual_write_key(w->h.usual, &args);
	struct cache_set *set;

	if (!fast_one_key(w, c, 0, at))
		return false;
	set = set_get(set_of(c, w->h.look.hash));
	if (set)
		read_once(set->version);
	for (u32 i = 0; i < USUAL_ARGS_MAX; i++)
		if (i < args && !usual_arg(w))
			return false;
	return w->pos == w->p.payload_len;
}

/* Whether nothing of the connection but its counts says what a request of it means. */
INLINE bool usual_counts(const struct conn *conn)
{
	return !conn->h.late && !(conn->h.kept & (CONN_K_TRIAL | CONN_K_LISTENS | CONN_K_REPEATS));
}

/* Whether the connection waits for nothing that a write would have to wait behind, and its ring is what will
 * hold the write's mark: hold_choose(). */
INLINE bool usual_write_fits(const struct conn *conn, const struct work *w)
{
	return !hold_used(conn) &&
	       !(read_once(conn->flags) & (CONN_F_FENCE_PROOF | CONN_F_OVERFLOW)) &&
	       conn->h.db == w->h.db;
}

/* As handler_answer() would refuse it: by a reason that concerns no key. */
INLINE enum usual usual_write(struct work *w, const struct control *c, const struct conn *conn)
{
	w->h.db = conn->h.db;
	w->refusal = c->stopping ? STAT_REFUSE_NOT_SERVING : STAT_REFUSE_COMMAND;
	if ((c->fast_off & 1U << w->h.usual) || read_once(c->rights) != conn->h.rights ||
	    !usual_counts(conn) || !usual_write_fits(conn, w))
		return USUAL_NOT;
	return USUAL_WRITE;
}

/* The mark of the write's key is taken, as effects_take() takes it: U2. */
INLINE void usual_write_take(struct work *w, const struct control *c)
{
	struct scan_found *f = &w->h.found;
	u32 set = set_of(c, w->h.look.hash);

	found_nothing(f);
	f->done = f->effects = f->due = 1;
	f->marks[0].request = 1;
	f->marks[0].set = set;
	f->hashes[0] = w->h.look.hash;
	w->h.share = w->h.gate = w->ring = 0;
	w->h.hold = HOLD_RING;
	if (w->h.usual == USUAL_KIND_SET) {
		w->h.alone = 1;
		w->scan_from = w->p.seq;
		w->loaded = w->p.payload_len;
		through_look();
	}
	if (f->written)
		through_take();
	else
		mark_take(set, w->h.look.hash);
}

/* The ring holds it: hold_effects(). Lock held; its request is not counted yet. Returns false, and has
 * changed nothing, if the entry has moved. */
INLINE bool usual_write_hold(struct conn *conn, struct work *w)
{
	u32 at = conn->h.mark_head & (MARKS_IN_FLIGHT - 1);

	if (!usual_write_fits(conn, w))
		return false;
	conn->h.marks[at].request = conn->requests + 1;
	conn->h.marks[at].set = w->h.found.marks[0].set;
	conn->h.mark_head++;
	through_commit(conn, w);
	return true;
}
