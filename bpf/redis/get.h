/* SPDX-License-Identifier: GPL-2.0 */
/* get.h - reads a packet of whole fast commands and, where the cache knows
 * every answer, makes the reply. It changes nothing but per-CPU memory (and SIEVE bits): the splice
 * decides afterwards whether the packet may be consumed. Here are GET and PING; strings.h has the
 * others. */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/interest.h"
#include "cache/marks.h"
#include "net/work.h"
#include "redis/resp.h"
#include "splice/handler.h"

#define RESP_ARRAY1_BULK4 0x0a0d34240a0d312aULL /* "*1\r\n$4\r\n" */
#define RESP_ARRAY2_BULK3 0x0a0d33240a0d322aULL /* "*2\r\n$3\r\n" */
#define RESP_ARRAY2_BULK7 0x0a0d37240a0d322aULL /* "*2\r\n$7\r\n" */
#define RESP_GET_DOLLAR	  0x0000240a0d746567ULL /* "get\r\n$" */
#define RESP_ARRAY3_BULK4 0x0a0d34240a0d332aULL /* "*3\r\n$4\r\n" */
#define RESP_HGET	  0x00240a0d74656768ULL /* "hget\r\n$" */
#define RESP_HGETALL	  0x0d6c6c6174656768ULL /* "hgetall\r" */
#define RESP_PING	  0x676e6970U		/* "ping" */
#define VALUE_BLOCKS	  (REPLY_BYTES_MAX / COPY_BLOCK + 1)
#define SMALL_VALUE_WORDS 14 /* a value of class 0 has at most 128 - 12 - 8 bytes */

/* The key at off of the payload, for the look-up. */
INLINE void fast_key(struct work *w, const struct control *c, u32 off, u32 len)
{
	opaque(off);
	opaque(len);
	if (off <= PAYLOAD_BYTES - KEY_BYTES_MAX && len <= KEY_BYTES_MAX)
		lookup_key(&w->h.look, w->payload + off, len, &c->hash);
}

/* "$<digits>\r\n" of the key at b; returns the bytes it takes and the key's length. */
INLINE u32 fast_key_len(const u8 *b, u32 *key_len)
{
	u32 n = b[0] - '0', used = 1;

	if (n == 0 || n > 9)
		return 0;
	if (b[used] != '\r') {
		u32 d = b[used++] - '0';

		if (d > 9)
			return 0;
		n = n * 10 + d;
	}
	if (used == 2 && b[used] != '\r') {
		u32 d = b[used++] - '0';

		if (d > 9)
			return 0;
		n = n * 10 + d;
	}
	*key_len = n;
	return b[used] == '\r' && b[used + 1] == '\n' ? used + 2 : 0;
}

/* Reads the one key of a command that begins at pos; its length's digits are at bytes behind that. Moves
 * w->pos behind the command. */
INLINE bool fast_one_key(struct work *w, const struct control *c, u32 pos, u32 at)
{
	u32 left = w->p.payload_len - pos, key_len = 0, used, key_off;

	used = fast_key_len(w->payload + pos + at, &key_len);
	if (!used || key_len > KEY_BYTES_MAX)
		return false;
	key_off = pos + at + used;
	if (at + used + key_len + 2 > left)
		return false;
	used = key_off + key_len;
	opaque(used);
	if (used > PAYLOAD_BYTES || *(u16 *)(w->payload + used) != RESP_CRLF)
		return false;
	fast_key(w, c, key_off, key_len);
	w->pos = used + 2;
	return true;
}

/* Reads one command at pos in its usual spelling and moves pos behind it. Anything else, also a
 * command that is cut off, is FAST_NONE: the scanner of the up path understands the rest. */
INLINE enum fast_kind fast_parse_one(struct work *w, const struct control *c)
{
	u32 pos = w->pos, left = w->p.payload_len - pos;
	const u8 *b;
	u64 word;

	opaque(pos);
	if (pos > PAYLOAD_BYTES - 1 || left > PAYLOAD_BYTES)
		return FAST_NONE;
	b = w->payload + pos;
	word = *(const u64 *)b;
	if (left >= 14 && word == RESP_ARRAY1_BULK4 &&
	    (*(const u32 *)(b + 8) | 0x20202020) == RESP_PING &&
	    *(const u16 *)(b + 12) == RESP_CRLF) {
		w->pos = pos + 14;
		return FAST_KIND_PING;
	}
	if (left >= 6 && ((u32)word | 0x20202020) == RESP_PING && (u16)(word >> 32) == RESP_CRLF) {
		w->pos = pos + 6;
		return FAST_KIND_PING;
	}
	if (left < 20 || word != RESP_ARRAY2_BULK3 ||
	    ((*(const u64 *)(b + 8) & 0xffffffffffffULL) | 0x202020) != RESP_GET_DOLLAR)
		return FAST_NONE;
	return fast_one_key(w, c, pos, 14) ? FAST_KIND_GET : FAST_NONE;
}

/* The value of a slot, copied to reply + to. A small slot's is copied whole, without a branch; a
 * large one's in blocks. */
INLINE void fast_copy_value(struct work *w, struct slot *slot, u32 to, u32 len, bool small)
{
	if (small) {
		u64 *from = (u64 *)slot->data, *dst = (u64 *)(w->reply + to);

		for (u32 k = 0; k < SMALL_VALUE_WORDS; k++)
			dst[k] = from[k];
		return;
	}
	for (u32 i = 0; i < VALUE_BLOCKS; i++) {
		u64 *from = (u64 *)(slot->data + i * COPY_BLOCK);
		u64 *dst = (u64 *)(w->reply + to + i * COPY_BLOCK);

		if (i * COPY_BLOCK >= len)
			break;
		for (u32 k = 0; k < COPY_BLOCK / 8; k++)
			dst[k] = from[k];
	}
}

INLINE u32 decimal_digits(u32 n)
{
	return n < 10 ? 1 : n < 100 ? 2 : n < 1000 ? 3 : 4;
}

/* Writes "$<len>\r\n" at to; bytes is its length and the value's together. */
INLINE void fast_bulk_header(u8 *to, u32 bytes)
{
	u32 digits = bytes < 14 ? 1 : bytes < 105 ? 2 : bytes < 1006 ? 3 : 4;
	u32 len = bytes - 3 - digits;
	u8 *p = to + 1;

	to[0] = '$';
	if (digits >= 4)
		*p++ = '0' + len / 1000;
	if (digits >= 3)
		*p++ = '0' + len / 100 % 10;
	if (digits >= 2)
		*p++ = '0' + len / 10 % 10;
	*p++ = '0' + len % 10;
	p[0] = '\r';
	p[1] = '\n';
}

/* Whether an entry that ends is not answered any more: its expiry is not far enough, or what a SET said is
 * over. Global: verified by itself. */
__noinline int fast_over(u64 global_version, u64 until, u32 flags)
{
	struct written_end end = {global_version, until};
	struct control *c = control_get();
	struct work *w = work_get();

	if (!w || !c)
		return 1;
	w->h.written_over = flags & SLOT_F_WRITTEN;
	if (flags & SLOT_F_WRITTEN)
		return !written_lives(c, &end, w->now);
	return w->h.look.now_wall_ms + EXPIRY_GUARD_MS + CLOCK_LAG_MS >= until;
}

/* Whether the entry is answered still. *expiry_ms: 0 = none. What it reads may be torn. */
INLINE bool fast_alive(struct slot *slot, u32 slot_bytes, bool small, u64 *expiry_ms)
{
	const struct written_end *end;

	*expiry_ms = 0;
	if (!slot->flags)
		return true;
	end = slot_written(slot, slot_bytes, small);
	if (!end)
		return false;
	*expiry_ms = end->until_ns & -(u64)(slot->flags & SLOT_F_EXPIRES); /* the same bytes */
	return !fast_over(end->global_version, end->until_ns, slot->flags);
}

/* Reads a found slot into the reply at w->reply_len. Returns 0 or the reason against it, or
 * STAT_FOUND_ABSENT; *end is where the value ends. What it reads may be torn. */
INLINE u32 fast_read_slot(struct work *w, struct slot *slot, u32 slot_bytes, bool small, u32 *end)
{
	u32 len = read_once(slot->value_len), to = w->reply_len;
	u64 expiry_ms;

	if (slot->type != SLOT_STRING)
		return slot->type == SLOT_ABSENT ? STAT_FOUND_ABSENT : STAT_REFUSE_MISS;
	if (!fast_alive(slot, slot_bytes, small, &expiry_ms))
		return STAT_REFUSE_EXPIRED;
	if (to + len + 9 > REPLY_BYTES_MAX)
		return STAT_REFUSE_MSS;
	to += 3 + decimal_digits(len);
	*end = to + len;
	opaque(to);
	if (to > PAYLOAD_BYTES)
		return STAT_INVARIANT;
	fast_copy_value(w, slot, to, len, small);
	return 0;
}

/* How the connection's answers stand: VAIN_SINCE. */
INLINE u32 vain_since(const struct conn *conn)
{
	return (conn->in_delta * 0x9e3779b1U >> 16) & VAIN_SINCE; /* Knuth's multiplier */
}

/* Whether its last VAIN_MOST reads have missed, with no answer between them. */
INLINE bool is_vain(const struct conn *conn)
{
	u32 vain = read_once(conn->vain);

	return (vain & VAIN_MISSES) >= VAIN_MOST && (vain & VAIN_SINCE) == vain_since(conn);
}

/* A read of it has missed. Hits note nothing. Lock held. */
INLINE void vain_note(struct conn *conn)
{
	u32 since = vain_since(conn), misses = conn->vain & VAIN_MISSES;

	if ((conn->vain & VAIN_SINCE) != since)
		misses = 0;
	if (misses < VAIN_MOST)
		conn->vain = since | (misses + 1);
}

/* Whether the key is surely not cached. Where keys are missed the digest saves most of what a miss
 * costs, the first touch of its set (350 ns behind all that Redis does in between); where they are
 * hit it would be one line more, and is not asked. */
INLINE bool fast_absent(struct work *w, const struct control *c)
{
	struct cache_digest *digest = 0;

	if (w->unlikely)
		digest = digest_get(set_of(c, w->h.look.hash));
	return digest && digest_lacks(digest, w->h.look.hash);
}

/* Whether the key is looked up at all: 0 or the reason against it. To say that it is not cached is
 * always allowed, so nothing else depends on this, and no step of it needs an order. */
INLINE u32 fast_unseen(struct work *w, const struct control *c)
{
	if (set_aside(c, set_of(c, w->h.look.hash), w->h.look_mask))
		return STAT_REFUSE_ASIDE;
	return fast_absent(w, c) ? STAT_REFUSE_MISS : 0;
}

/* Finds the key and reads it, while others may change the set. */
INLINE u32 fast_read_set(struct work *w, struct cache_set *set, struct cache_large *large, u32 *way,
			 u32 *end)
{
	struct slot *slot;

	if (read_once(set->marks))
		return STAT_REFUSE_MARKED;
	*way = set_find(set, large, &w->h.look);
	load_barrier(); /* not needed, and free: here the simulator changes the set */
	if (*way >= WAYS)
		return STAT_REFUSE_MISS;
	if (*way < CLASS0_WAYS) {
		slot = slot_small(set, *way);
		return slot ? fast_read_slot(w, slot, CLASS0_BYTES, true, end) : STAT_INVARIANT;
	}
	slot = slot_large(large, *way);
	return slot ? fast_read_slot(w, slot, class_bytes(way_class(*way)), false, end)
		    : STAT_INVARIANT;
}

/* A value was read behind where its header goes: from at on the reply is whole. Returns 0 or the reason
 * against it. */
INLINE u32 fast_frame(struct work *w, u32 at, u32 end)
{
	opaque(at);
	opaque(end);
	if (at > REPLY_BYTES_MAX || end > REPLY_BYTES_MAX)
		return STAT_INVARIANT;
	fast_bulk_header(w->reply + at, end - at);
	*(u16 *)(w->reply + end) = RESP_CRLF;
	w->reply_len = end + 2;
	return 0;
}

/* Appends nil, in the version of the connection's replies; while that is not known, whatever depends on
 * it goes up. */
INLINE u32 fast_nil(struct work *w)
{
	u32 at = w->reply_len;

	opaque(at);
	if (at > REPLY_BYTES_MAX - 8)
		return STAT_REFUSE_MSS;
	if (w->h.look.resp == 2) {
		*(u64 *)(w->reply + at) = 0x0a0d312d24; /* "$-1\r\n" */
		w->reply_len = at + 5;
		return 0;
	}
	*(u64 *)(w->reply + at) = 0x0a0d5f; /* "_\r\n" */
	w->reply_len = at + 3;
	return w->h.look.resp == 3 ? 0 : STAT_REFUSE_COMMAND;
}

/* The entry says that its key is absent: 0 if that may be answered. Where Redis tells somebody of such
 * reads, it must see them: read behind the gate (fast_closed). */
INLINE u32 fast_absence(const struct control *c, struct cache_set *set, u32 way)
{
	count(STAT_FOUND_ABSENT);
	set_visit(set, way);
	return read_once(c->absent) ? 0 : STAT_REFUSE_ABSENT;
}

/* Looks the key up and appends its reply. Returns 0 or the reason against it. */
INLINE u32 fast_get(struct work *w, const struct control *c)
{
	u32 at = w->reply_len, index = set_of(c, w->h.look.hash), end = 0, way = 0, reason, changes;
	struct cache_set *set;
	struct cache_large *large;

	reason = fast_unseen(w, c);
	if (reason)
		return reason;
	set = set_get(index);
	large = large_get(index);
	if (!set || !large)
		return STAT_INVARIANT;
	changes = set_read_begin(set);
	reason = fast_read_set(w, set, large, &way, &end);
	if (!set_read_valid(set, changes))
		return STAT_REFUSE_SET_CHANGED;
	if (reason == STAT_FOUND_ABSENT) {
		reason = fast_absence(c, set, way);
		return reason ? reason : fast_nil(w);
	}
	if (reason)
		return reason;
	set_visit(set, way);
	return fast_frame(w, at, end);
}

INLINE u32 fast_ping(struct work *w)
{
	u32 at = w->reply_len;

	opaque(at);
	if (at > REPLY_BYTES_MAX - 7)
		return STAT_REFUSE_MSS;
	*(u32 *)(w->reply + at) = 0x4e4f502b;	  /* "+PON" */
	*(u32 *)(w->reply + at + 4) = 0x000a0d47; /* "G\r\n" */
	w->reply_len = at + 7;
	return 0;
}

/* The record of the look-up's key, for the daemon. */
INLINE void key_tell(struct miss *miss, const struct work *w, enum slot_type type)
{
	miss->key_len = w->h.look.key_len;
	miss->db = w->h.look.db;
	miss->type = type;
	__builtin_memcpy(miss->key, w->h.look.key, KEY_BYTES_MAX);
	__builtin_memset(miss->pad, 0, sizeof(miss->pad));
	bpf_ringbuf_submit(miss, BPF_RB_NO_WAKEUP);
}

/* A key that is missed is reported to the daemon, if it is worth a fill. */
INLINE void fast_miss(struct work *w, const struct control *c, enum slot_type type)
{
	struct miss *miss;

	if (!c->fills || !interest_missed(c, w->h.look.hash))
		return;
	miss = bpf_ringbuf_reserve(&erb_misses, sizeof(*miss), 0);
	if (!miss) {
		count(STAT_MISS_RING_FULL);
		return;
	}
	key_tell(miss, w, type);
	count(STAT_MISS_REPORTED);
}

/* What came of a key's look-up; wanted: a miss may fill it. */
INLINE void fast_looked(struct work *w, const struct control *c, u32 reason, enum slot_type type,
			bool wanted)
{
	w->unlikely = reason == STAT_REFUSE_MISS || reason == STAT_REFUSE_ASIDE;
	if (c->look_mask && reason != STAT_REFUSE_ASIDE && !w->h.closed)
		count(reason ? STAT_SAMPLE_MISSED : STAT_SAMPLE_FOUND);
	/* Of what a SET said no report tells that it is over: a fill is to replace it. */
	if (((reason == STAT_REFUSE_MISS) |
	     ((reason == STAT_REFUSE_EXPIRED) & !!w->h.written_over)) &&
	    wanted)
		fast_miss(w, c, type);
}

/* The time that expiries are compared with. */
INLINE void fast_wall(struct work *w, const struct control *c)
{
	w->h.look.now_wall_ms = (w->now + c->wall_minus_mono_ns) / 1000000;
}

/* Why nothing may be answered at this moment, 0 = allowed. PING neither: behind a script that runs for
 * long Redis answers it -BUSY. Read before the cache is: first what opens, then what moved before it
 * was opened. fence_release() moves the epoch before the count; the daemon clears before it renews the
 * lease or acknowledges the gate, and moves rights before the gate (A1). */
INLINE u32 fast_closed(struct work *w, struct control *c, const struct conn *conn)
{
	bool fenced = read_once(c->fence);
	u64 lease_until_ns = read_once(c->lease_until_ns);

	if (read_once(c->gate_seen) != read_once(c->gate_ack))
		fenced = true;
	load_barrier();
	w->h.look.cache_epoch = read_once(c->cache_epoch);
	w->h.rights = read_once(c->rights);
	w->h.look.db = conn->h.db;
	w->h.look.resp = conn->h.resp;
	if (w->now >= lease_until_ns)
		return STAT_REFUSE_LEASE;
	return fenced ? STAT_REFUSE_FENCE : 0;
}

/* Fetches a set's header and the predicted slot of a small entry, side by side: looked at one after
 * the other they would be waited for twice. With the kernel module nothing waits: behind a load that is
 * on its way only some hundred instructions can begin. */
INLINE void fast_fetch(struct cache_set *set, u64 hash)
{
	struct slot *slot = slot_small(set, way_predicted(hash));

	if (!slot)
		return;
	if (bpf_ksym_exists(erb_prefetch)) {
		erb_prefetch(&set->version, sizeof(set->version));
		erb_prefetch(slot, __builtin_offsetof(struct slot, data[65]));
		return;
	}
	read_once(set->version);
	read_once(slot->cache_epoch);
	read_once(slot->data[64]);
}

/* Reads the first command ahead and fetches what it will look at: a hit's cache misses start before
 * everything else is done. Changes nothing. */
INLINE void handler_peek(struct work *w, const struct control *c, bool loaded)
{
	struct cache_set *set;

	w->h.first = FAST_NONE;
	w->h.look_mask = c->look_mask;
	if (!loaded || w->p.payload_len > PAYLOAD_BYTES)
		return;
	w->pos = 0;
	w->h.first = fast_parse_one(w, c);
	w->h.first_end = w->pos;
	if (w->h.first != FAST_KIND_GET)
		return;
	w->h.unseen = fast_unseen(w, c);
	if (!w->h.unseen) {
		set = set_get(set_of(c, w->h.look.hash));
		if (set)
			fast_fetch(set, w->h.look.hash);
	}
}

/* Answers the command just read, or notes the reason against it. */
INLINE void fast_answer(struct work *w, struct control *c, enum fast_kind kind)
{
	u32 reason;

	w->commands++;
	if (kind == FAST_KIND_PING) {
		w->h.pings++;
		reason = w->h.closed ? w->h.closed : fast_ping(w);
	} else {
		w->h.gets++;
		reason = w->h.closed ? w->h.closed : fast_get(w, c);
		fast_looked(w, c, reason, SLOT_STRING, true);
	}
	if (reason && !w->refusal)
		w->refusal = reason;
}

/* The other commands: strings.h. */
__noinline int fast_more(void);

/* Reads and answers the command at w->pos; 0 if there is none. Global: verified by itself. */
__noinline int fast_next(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	enum fast_kind kind;
	u32 pos;

	if (!w || !c || w->pos >= w->p.payload_len || w->commands >= COMMANDS_PER_PACKET)
		return 0;
	pos = w->pos;
	kind = fast_parse_one(w, c);
	if (kind == FAST_NONE)
		return fast_more();
	if (c->fast_off & 1U << kind) {
		w->pos = pos;
		return 0;
	}
	fast_answer(w, c, kind);
	return 1;
}

/* All commands behind the first. Global: verified by itself. */
__noinline int fast_rest(void)
{
	int i;

	bpf_for(i, 0, COMMANDS_PER_PACKET)
	{
		if (!fast_next())
			break;
	}
	return 0;
}

/* Reads the whole payload (at most PAYLOAD_BYTES, already copied) and answers it into w->reply.
 * Sets commands, whole, refusal, reply_len. The first command is read already and answered without
 * a call: most packets have no second one. */
INLINE void fast_packet(struct work *w, struct control *c, const struct conn *conn)
{
	w->pos = w->reply_len = w->commands = w->h.gets = w->h.pings = w->refusal = 0;
	fast_wall(w, c);
	w->h.closed = fast_closed(w, c, conn);
	if (is_vain(conn))
		w->h.look_mask |= c->vain_mask;
	if (w->h.first && !(c->fast_off & 1U << w->h.first)) {
		w->pos = w->h.first_end;
		fast_answer(w, c, w->h.first);
	}
	if (w->pos < w->p.payload_len)
		fast_rest();
	w->whole = w->pos == w->p.payload_len;
	if (!w->whole && !w->refusal)
		w->refusal = w->commands >= COMMANDS_PER_PACKET ? STAT_REFUSE_COMMANDS
			     : w->commands			? STAT_REFUSE_INCOMPLETE
								: STAT_REFUSE_COMMAND;
}
