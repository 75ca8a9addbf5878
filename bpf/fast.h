/* SPDX-License-Identifier: GPL-2.0 */
/* fast.h - the Redis handler: reads a packet of whole GET and PING commands and, where the cache
 * knows every answer, makes the reply. It changes nothing but per-CPU memory (and SIEVE bits): the
 * splice decides afterwards whether the packet may be consumed. */
#pragma once
#include "work.h"

#define RESP_ARRAY1_BULK4 0x0a0d34240a0d312aULL /* "*1\r\n$4\r\n" */
#define RESP_ARRAY2_BULK3 0x0a0d33240a0d322aULL /* "*2\r\n$3\r\n" */
#define RESP_GET_DOLLAR	  0x0000240a0d746567ULL /* "get\r\n$" */
#define RESP_PING	  0x676e6970U		/* "ping" */
#define RESP_CRLF	  0x0a0d
#define VALUE_BLOCKS	  (REPLY_BYTES_MAX / COPY_BLOCK + 1)

enum fast_kind { FAST_NONE = 0, FAST_KIND_GET, FAST_KIND_PING };

/* The key at off of the payload, for the look-up. Global: verified by itself. */
__noinline int fast_key(u32 off, u32 len)
{
	struct work *w = work_get();
	struct control *c = control_get();

	if (!w || !c || off > PAYLOAD_BYTES - KEY_BYTES_MAX || len > KEY_BYTES_MAX)
		return 0;
	lookup_key(&w->look, w->payload + off, len, c->hash_seed);
	return 0;
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

/* Reads one command at pos in its usual spelling and moves pos behind it. Anything else, also a
 * command that is cut off, is FAST_NONE: the scanner of the up path understands the rest. */
INLINE enum fast_kind fast_parse_one(struct work *w)
{
	u32 pos = w->pos, left = w->p.payload_len - pos, key_len = 0, used, key_off;
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
	used = fast_key_len(b + 14, &key_len);
	if (!used || key_len > KEY_BYTES_MAX)
		return FAST_NONE;
	key_off = pos + 14 + used;
	if (14 + used + key_len + 2 > left)
		return FAST_NONE;
	used = key_off + key_len;
	opaque(used);
	if (used > PAYLOAD_BYTES || *(u16 *)(w->payload + used) != RESP_CRLF)
		return FAST_NONE;
	fast_key(key_off, key_len);
	w->pos = used + 2;
	return FAST_KIND_GET;
}

/* The value of a way, copied to reply + to. Caller holds the set's lock. */
INLINE void fast_copy_value(struct work *w, struct slot *slot, u32 to, u32 len)
{
	for (u32 i = 0; i < VALUE_BLOCKS; i++) {
		u64 *from = (u64 *)(slot->data + i * COPY_BLOCK);
		u64 *dst = (u64 *)(w->reply + to + i * COPY_BLOCK);

		if (i * COPY_BLOCK >= len)
			break;
		dst[0] = from[0];
		dst[1] = from[1];
		dst[2] = from[2];
		dst[3] = from[3];
		dst[4] = from[4];
		dst[5] = from[5];
		dst[6] = from[6];
		dst[7] = from[7];
	}
}

INLINE u32 decimal_digits(u32 n)
{
	return n < 10 ? 1 : n < 100 ? 2 : n < 1000 ? 3 : 4;
}

/* Writes "$<len>\r\n" at to. */
INLINE void fast_bulk_header(u8 *to, u32 len)
{
	u32 digits = decimal_digits(len);
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

/* Looks the key up and appends its reply. Returns 0 or the reason against it. Global: verified by
 * itself. */
__noinline int fast_get(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 at, way, len = 0, to = 0, reason = 0;
	struct cache_set *set;
	struct slot *slot;

	if (!w || !c)
		return STAT_INVARIANT;
	set = set_get(set_of(c, w->look.hash));
	at = w->reply_len;
	if (!set)
		return STAT_INVARIANT;
	lock_take(&set->lock);
	way = set_find(set, &w->look);
	slot = way < WAYS ? slot_at(set, way) : 0;
	if (set->marks) {
		reason = STAT_REFUSE_MARKED;
	} else if (!slot) {
		reason = STAT_REFUSE_MISS;
	} else {
		len = slot->value_len;
		if (slot->flags & SLOT_F_EXPIRES) {
			u32 end = class_bytes(way_class(way)) - 8 - SLOT_HEADER_BYTES;

			opaque(end);
			if (end > CLASS3_BYTES - 8 - SLOT_HEADER_BYTES ||
			    w->look.now_wall_ms + EXPIRY_GUARD_MS >= *(u64 *)(slot->data + end))
				reason = STAT_REFUSE_EXPIRED;
		}
		if (at + len + 9 > REPLY_BYTES_MAX)
			reason = STAT_REFUSE_MSS;
		if (!reason) {
			to = at + 3 + decimal_digits(len);
			opaque(to);
			if (to <= PAYLOAD_BYTES)
				fast_copy_value(w, slot, to, len);
			if (!(set->visited & 1U << way))
				set->visited |= 1U << way;
		}
	}
	lock_release(&set->lock);
	if (reason)
		return reason;
	opaque(at);
	if (at > REPLY_BYTES_MAX)
		return STAT_INVARIANT;
	fast_bulk_header(w->reply + at, len);
	to += len;
	opaque(to);
	if (to > REPLY_BYTES_MAX)
		return STAT_INVARIANT;
	*(u16 *)(w->reply + to) = RESP_CRLF;
	w->reply_len = to + 2;
	return 0;
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

/* A key that is missed more than once is reported to the daemon. */
INLINE void fast_miss(struct work *w, const struct control *c)
{
	struct miss *miss;
	u8 *seen;

	if (!c->fills)
		return;
	seen = miss_count_get(w->look.hash);
	if (!seen || *seen > MISS_FILL_AT)
		return;
	if (++*seen < MISS_FILL_AT)
		return;
	miss = bpf_ringbuf_reserve(&erb_misses, sizeof(*miss), 0);
	if (!miss) {
		count(STAT_MISS_RING_FULL);
		return;
	}
	miss->key_len = w->look.key_len;
	__builtin_memcpy(miss->key, w->look.key, KEY_BYTES_MAX);
	__builtin_memset(miss->pad, 0, sizeof(miss->pad));
	bpf_ringbuf_submit(miss, BPF_RB_NO_WAKEUP);
	count(STAT_MISS_REPORTED);
}

/* Why no key may be answered at this moment, 0 = allowed; *ping the same for PING, which only the
 * fence lets through. Read before the cache is: fence first, then the epoch (fence_release moves
 * the epoch before the count). */
INLINE u32 fast_closed(struct work *w, struct control *c, u32 *ping)
{
	bool fenced = read_once(c->fence) || read_once(c->untracked);

	*ping = 0;
	if (read_once(c->gate_seen) != read_once(c->gate_ack))
		*ping = STAT_REFUSE_FENCE;
	w->look.cache_epoch = read_once(c->cache_epoch);
	if (w->now >= read_once(c->lease_until_ns))
		*ping = STAT_REFUSE_LEASE;
	return *ping ? *ping : fenced ? STAT_REFUSE_FENCE : 0;
}

/* Reads the whole payload (at most PAYLOAD_BYTES, already copied) and answers it into w->reply.
 * Sets commands, whole, refusal, reply_len. A global function: verified once, by itself. */
__noinline int fast_packet(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 closed, closed_ping;
	int i;

	if (!w || !c)
		return 0;
	w->pos = w->reply_len = w->commands = w->gets = w->pings = w->whole = w->refusal = 0;
	w->look.now_wall_ms = w->now / 1000000 + c->wall_minus_mono_ms;
	closed = fast_closed(w, c, &closed_ping);
	bpf_for(i, 0, COMMANDS_PER_PACKET)
	{
		enum fast_kind kind;
		u32 reason;

		if (w->pos >= w->p.payload_len)
			break;
		kind = fast_parse_one(w);
		if (kind == FAST_NONE)
			break;
		w->commands++;
		if (kind == FAST_KIND_PING) {
			w->pings++;
			reason = closed_ping ? closed_ping : fast_ping(w);
		} else {
			w->gets++;
			reason = closed ? closed : fast_get();
			if (reason == STAT_REFUSE_MISS)
				fast_miss(w, c);
		}
		if (reason && !w->refusal)
			w->refusal = reason;
	}
	w->whole = w->pos == w->p.payload_len;
	if (!w->whole && !w->refusal)
		w->refusal = w->commands >= COMMANDS_PER_PACKET ? STAT_REFUSE_COMMANDS
			     : w->commands			? STAT_REFUSE_INCOMPLETE
								: STAT_REFUSE_COMMAND;
	return 0;
}
