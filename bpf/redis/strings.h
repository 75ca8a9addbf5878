/* SPDX-License-Identifier: GPL-2.0 */
/* strings.h - the fast commands beside GET and PING (fast.def), here those on strings. They are
 * read after GET's and PING's own patterns have failed, and by global functions: the way of a GET
 * does not know them.
 *
 * Invariants:
 *  F1. A command counts when it was read to its end. Cut off, in another spelling, with
 *      arguments that Redis refuses or takes in some versions only, it is none: it goes up.
 *  F2. A command of several keys is answered as of one moment: no set of them has changed from
 *      before its first key was read until its last one was (more_still).
 *  F3. That a key is absent is answered only of an entry that says so, and while control.absent is 1:
 *      what is not cached is not known.
 *  F4. Only who reads a value reports a miss. EXISTS, TTL and PTTL say neither that they want it nor
 *      of what type it is: they are answered of what others have had filled.
 */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "net/work.h"
#include "redis/get.h"
#include "redis/resp.h"

#define SCRATCH_AT	 PAYLOAD_BYTES /* the half of w->reply that no reply reaches: whole values */
#define INTEGER_BYTES	 24	       /* ":-9223372036854775808\r\n", with some slack */
#define INTEGER_DIGITS	 9	       /* of an argument; more go up */
#define INTEGER_ARG_MAX	 (INTEGER_DIGITS + 1)
#define NAME_LEAST	 3 /* letters of the names in fast.def */
#define NAME_MOST	 8
#define ARRAY_HEAD_BYTES 8 /* "*64\r\n" in whole words */

_Static_assert(SCRATCH_AT >= REPLY_BYTES_MAX + COPY_BLOCK, "a reply ends below the scratch");
_Static_assert(sizeof(((struct work *)0)->reply) - SCRATCH_AT >= VALUE_BLOCKS * COPY_BLOCK,
	       "a value fits the scratch");
#define FAST(KIND, name, least, most)                                                              \
	_Static_assert(STAT_FAST_##KIND - STAT_FAST_GET == FAST_KIND_##KIND - FAST_KIND_GET,       \
		       "counters stand in the order of fast.def");
#include "redis/fast.def"
#undef FAST

/* All arguments are keys. */
INLINE bool more_many(const struct fast_more *m)
{
	return m->kind == FAST_KIND_MGET || m->kind == FAST_KIND_EXISTS;
}

/* The same for values of all types. */
INLINE bool more_typeless(const struct fast_more *m)
{
	return m->kind == FAST_KIND_EXISTS || m->kind == FAST_KIND_TTL || m->kind == FAST_KIND_PTTL;
}

/* Commands on hashes: the last of fast.def. */
INLINE bool more_hashed(const struct fast_more *m)
{
	return m->kind >= FAST_KIND_HGET;
}

/* Two integers stand behind the key. */
INLINE bool more_ranged(const struct fast_more *m)
{
	return m->kind == FAST_KIND_GETRANGE || m->kind == FAST_KIND_SUBSTR;
}

/* hashes.h */
__noinline int hash_each_field(void);
__noinline int hash_answer(void);

INLINE u64 name_word(const char *name, u32 len)
{
	u64 word = 0;

	for (u32 i = 0; i < len; i++)
		word |= (u64)(u8)name[i] << i * 8;
	return word;
}

/* The command of this name with so many arguments; never GET or PING, which have failed. */
INLINE u32 more_kind(u64 name, u32 args)
{
	u32 kind = FAST_NONE;

#define FAST(KIND, text, least, most)                                                              \
	if (FAST_KIND_##KIND > FAST_KIND_PING && name == name_word(text, sizeof(text) - 1) &&      \
	    args >= least && args <= most)                                                         \
		kind = FAST_KIND_##KIND;
#include "redis/fast.def"
#undef FAST
	return kind;
}

/* Reads "*<n>\r\n$<n>\r\n<name>\r\n" at w->pos. */
INLINE u32 more_begin(struct work *w, const struct control *c)
{
	u32 pos = w->pos, words = 0, len, used, kind;
	struct fast_more *m = &w->h.more;
	const u8 *b;
	u64 name;

	opaque(pos);
	if (pos > PAYLOAD_BYTES - 1)
		return FAST_NONE;
	b = w->payload + pos;
	if (b[0] != '*')
		return FAST_NONE;
	used = fast_key_len(b + 1, &words);
	if (!used)
		return FAST_NONE;
	b += 1 + used;
	len = b[1] - '0';
	/* Two comparisons that the compiler cannot merge, as in sized(). */
	opaque(len);
	if (len > NAME_MOST)
		return FAST_NONE;
	opaque(len);
	if (len < NAME_LEAST || b[0] != '$' || *(u16 *)(b + 2) != RESP_CRLF ||
	    *(u16 *)(b + 4 + len) != RESP_CRLF)
		return FAST_NONE;
	name = *(u64 *)(b + 4) | 0x2020202020202020ULL;
	if (len < 8)
		name &= (1ULL << len * 8) - 1;
	kind = more_kind(name, words - 1);
	if (kind == FAST_NONE || c->fast_off & 1U << kind)
		return FAST_NONE;
	m->at = pos + 1 + used + 4 + len + 2;
	m->args = words - 1;
	m->keys = m->absent = m->reason = 0;
	m->reply_from = w->reply_len;
	return kind;
}

/* The next argument, of 1 to KEY_BYTES_MAX bytes; false if there is none such in the packet. */
INLINE bool more_arg(struct work *w, u32 *off, u32 *len)
{
	u32 at = w->h.more.at, end, used;

	opaque(at);
	if (at >= w->p.payload_len || at > PAYLOAD_BYTES - 1 || w->payload[at] != '$')
		return false;
	used = fast_key_len(w->payload + at + 1, len);
	if (!used || *len > KEY_BYTES_MAX)
		return false;
	*off = at + 1 + used;
	end = *off + *len;
	opaque(end);
	if (end + 2 > w->p.payload_len || end > PAYLOAD_BYTES ||
	    *(u16 *)(w->payload + end) != RESP_CRLF)
		return false;
	w->h.more.at = end + 2;
	return true;
}

/* An argument that is an integer as all versions of Redis take it (string2ll), of few digits. */
INLINE bool more_integer_arg(struct work *w, s32 *number)
{
	u32 off, len = 0, minus, n = 0;
	const u8 *b;

	if (!more_arg(w, &off, &len) || len > INTEGER_ARG_MAX)
		return false;
	opaque(off);
	if (off > PAYLOAD_BYTES)
		return false;
	b = w->payload + off;
	minus = b[0] == '-';
	if (len - minus - 1 >= INTEGER_DIGITS || (b[minus] == '0' && len > 1))
		return false;
	for (u32 i = 0; i < INTEGER_ARG_MAX; i++) {
		u32 digit = b[i] - '0';

		if (i >= len)
			break;
		if (i == 0 && minus)
			continue;
		if (digit > 9)
			return false;
		n = n * 10 + digit;
	}
	*number = minus ? -(s32)n : (s32)n;
	return true;
}

/* What the command wants of a found slot: as fast_read_slot(). What it reads may be torn. */
INLINE u32 more_read_slot(struct work *w, struct slot *slot, u32 slot_bytes, bool small)
{
	struct fast_more *m = &w->h.more;
	u32 len = read_once(slot->value_len);

	if (slot->type == SLOT_ABSENT)
		return STAT_FOUND_ABSENT;
	if (slot->type != (more_hashed(m) ? SLOT_HASH : SLOT_STRING) && !more_typeless(m))
		return STAT_REFUSE_MISS;
	m->value_len = len;
	if (!fast_alive(slot, slot_bytes, small, &m->expiry_ms))
		return STAT_REFUSE_EXPIRED;
	if (more_ranged(m) || more_hashed(m))
		fast_copy_value(w, slot, SCRATCH_AT, len, small);
	return 0;
}

INLINE u32 more_read_set(struct work *w, struct cache_set *set, struct cache_large *large, u32 *way)
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
		return slot ? more_read_slot(w, slot, CLASS0_BYTES, true) : STAT_INVARIANT;
	}
	slot = slot_large(large, *way);
	return slot ? more_read_slot(w, slot, class_bytes(way_class(*way)), false) : STAT_INVARIANT;
}

/* The key at hand is absent: noted as an empty value. Returns 0 or the reason against it. */
INLINE u32 more_absent(struct work *w, const struct control *c, struct cache_set *set, u32 way)
{
	w->h.more.absent++;
	w->h.more.value_len = 0;
	((struct hash_head *)(w->reply + SCRATCH_AT))->fields = 0;
	return fast_absence(c, set, way);
}

/* Looks the key up and notes in w->h.more what is asked of it. Returns 0 or the reason against it. */
INLINE u32 more_look(struct work *w, const struct control *c, struct cache_set *set, u32 changes)
{
	struct cache_large *large = large_get(set_of(c, w->h.look.hash));
	u32 way = 0, reason;

	if (!large)
		return STAT_INVARIANT;
	reason = more_read_set(w, set, large, &way);
	if (!set_read_valid(set, changes))
		return STAT_REFUSE_SET_CHANGED;
	if (reason == STAT_FOUND_ABSENT)
		return more_absent(w, c, set, way);
	if (reason)
		return reason;
	if (!more_typeless(&w->h.more))
		set_visit(set, way);
	else if (!(set->visited &
		   1U << way)) /* for SIEVE alone: Redis does not count them as use */
		write_once(set->visited, set->visited | 1U << way);
	return 0;
}

/* Looks the key at hand up; for MGET appends its value. */
INLINE u32 more_look_up(struct work *w, struct control *c)
{
	struct fast_more *m = &w->h.more;
	u32 index = set_of(c, w->h.look.hash), n = m->keys, reason, changes;
	struct cache_set *set;

	if (w->h.closed)
		return w->h.closed;
	reason = fast_unseen(w, c);
	if (reason)
		return reason;
	set = set_get(index);
	opaque(n);
	if (!set || n >= KEYS_PER_PACKET)
		return STAT_INVARIANT;
	if (!more_hashed(m))
		fast_fetch(set, w->h.look.hash);
	changes = set_read_begin(set);
	m->sets[n] = index;
	m->changes[n] = changes;
	return m->kind == FAST_KIND_MGET ? fast_get(w, c) : more_look(w, c, set, changes);
}

/* The next argument is a key. Returns 0 if it is not to be had. Global: verified by itself. */
__noinline int more_key(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 off = 0, len = 0, reason;

	if (!w || !c || !more_arg(w, &off, &len))
		return 0;
	fast_key(w, c, off, len);
	reason = more_look_up(w, c);
	fast_looked(w, c, reason, more_hashed(&w->h.more) ? SLOT_HASH : SLOT_STRING,
		    !more_typeless(&w->h.more));
	if (reason && !w->h.more.reason)
		w->h.more.reason = reason;
	w->h.more.keys++;
	return 1;
}

/* Whether key n's set is as it was when it was read: F2. Global: verified by itself. */
__noinline int more_still(u32 n)
{
	struct work *w = work_get();
	struct cache_set *set;

	opaque(n);
	if (!w || n >= KEYS_PER_PACKET)
		return 0;
	set = set_get(w->h.more.sets[n]);
	return set && set_read_valid(set, w->h.more.changes[n]);
}

/* Appends ":<n>\r\n", minus: of -n. Global: verified by itself. */
__noinline int more_integer(u64 n, u32 minus)
{
	struct work *w = work_get();
	u32 at, from = INTEGER_BYTES;
	u8 *text;

	if (!w)
		return STAT_INVARIANT;
	at = w->reply_len;
	opaque(at);
	if (at > REPLY_BYTES_MAX - INTEGER_BYTES)
		return STAT_REFUSE_MSS;
	text = w->chunk.bytes;
	text[--from] = '\n';
	text[--from] = '\r';
	for (u32 i = 0; i < 20; i++) {
		text[--from] = '0' + n % 10;
		n /= 10;
		if (!n)
			break;
	}
	opaque(from);
	if (from > INTEGER_BYTES - 3)
		return STAT_INVARIANT;
	opaque(from);
	if (from < 2)
		return STAT_INVARIANT;
	if (minus)
		text[--from] = '-';
	text[--from] = ':';
	for (u32 i = 0; i < INTEGER_BYTES; i += 8)
		*(u64 *)(w->reply + at + i) = *(u64 *)(text + from + i);
	w->reply_len = at + INTEGER_BYTES - from;
	return 0;
}

/* Milliseconds until the entry expires, by the exact clock: Redis's own mstime(). */
INLINE u64 more_ttl_ms(const struct work *w, const struct control *c)
{
	u64 now_ms = (now_exact_ns() + c->wall_minus_mono_ns) / 1000000;

	return w->h.more.expiry_ms > now_ms ? w->h.more.expiry_ms - now_ms : 0;
}

/* Copies len bytes of w->reply from from to to, which is not behind it. Global: verified by itself.
 */
__noinline int more_copy(u32 to, u32 from, u32 len)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	for (u32 i = 0; i < REPLY_BYTES_MAX; i += 8) {
		u32 a = to + i, b = from + i;

		if (i >= len)
			break;
		opaque(a);
		opaque(b);
		if (a > REPLY_BYTES_MAX || b > sizeof(w->reply) - 8)
			break;
		*(u64 *)(w->reply + a) = *(u64 *)(w->reply + b);
	}
	return 0;
}

/* GETRANGE (getrangeCommand of 7.0). Where the last index lies before the first byte, versions
 * differ: 7.4-rc1 says "", all others the first byte. */
INLINE u32 more_range(struct work *w, s32 from, s32 to)
{
	u32 at = w->reply_len, n = 0, head;
	s32 len = w->h.more.value_len;

	if (from >= 0 || to >= 0 || from <= to) {
		if (from < 0)
			from = from + len < 0 ? 0 : from + len;
		if (to < 0)
			to += len;
		if (to < 0 && len)
			return STAT_REFUSE_COMMAND;
		if (to >= len)
			to = len - 1;
		n = from > to || !len ? 0 : to - from + 1;
	}
	head = 3 + decimal_digits(n);
	opaque(at);
	opaque(n);
	if (at > REPLY_BYTES_MAX || n > VALUE_BYTES_MAX || at + head + n + 2 > REPLY_BYTES_MAX)
		return STAT_REFUSE_MSS;
	fast_bulk_header(w->reply + at, head + n);
	more_copy(at + head, SCRATCH_AT + from, n);
	at += head + n;
	opaque(at);
	if (at > REPLY_BYTES_MAX)
		return STAT_INVARIANT;
	*(u16 *)(w->reply + at) = RESP_CRLF;
	w->reply_len = at + 2;
	return 0;
}

/* Answers the command, which is read. Returns 0 or the reason against it. */
INLINE u32 more_answer(struct work *w, const struct control *c, s32 from, s32 to)
{
	struct fast_more *m = &w->h.more;

	switch (m->kind) {
	case FAST_KIND_MGET:
	case FAST_KIND_HGET: /* fields are answered where they are read */
	case FAST_KIND_HMGET:
	case FAST_KIND_HEXISTS:
	case FAST_KIND_HSTRLEN:
		return 0;
	case FAST_KIND_EXISTS:
		return more_integer(m->keys - m->absent, 0);
	case FAST_KIND_STRLEN:
		return more_integer(m->value_len, 0);
	case FAST_KIND_TTL:
	case FAST_KIND_PTTL:
		if (m->absent)
			return more_integer(2, 1);
		if (!m->expiry_ms)
			return more_integer(1, 1);
		if (m->kind == FAST_KIND_TTL)
			return more_integer((more_ttl_ms(w, c) + 500) / 1000, 0);
		return more_integer(more_ttl_ms(w, c), 0);
	case FAST_KIND_GETRANGE:
	case FAST_KIND_SUBSTR:
		return more_range(w, from, to);
	default:
		return hash_answer();
	}
}

/* "*<n>\r\n", or with another first byte. */
INLINE u32 more_array(struct work *w, u8 lead, u32 elements)
{
	u32 at = w->reply_len;
	u8 *p;

	opaque(at);
	if (at > REPLY_BYTES_MAX - ARRAY_HEAD_BYTES)
		return STAT_REFUSE_MSS;
	p = w->reply + at;
	*p++ = lead;
	if (elements >= 100)
		*p++ = '0' + elements / 100 % 10;
	if (elements >= 10)
		*p++ = '0' + elements / 10 % 10;
	*p++ = '0' + elements % 10;
	*(u16 *)p = RESP_CRLF;
	w->reply_len = at + 3 + decimal_digits(elements);
	return 0;
}

/* Counts a whole command. */
INLINE void more_counted(struct work *w)
{
	u32 kind = w->h.more.kind;

	opaque(kind);
	if (kind < FAST_KIND_MAX)
		w->h.more.counts[kind]++;
	w->commands++;
	w->h.more.packet_keys += w->h.more.args;
}

/* Reads the keys of the command at hand; 0 if one is missing. Global: verified by itself. */
__noinline int more_keys(void)
{
	struct work *w = work_get();
	int i;

	if (!w)
		return 0;
	bpf_for(i, 0, KEYS_PER_PACKET)
	{
		if (i >= w->h.more.args || !more_key())
			break;
		if (!more_many(&w->h.more))
			break;
	}
	return w->h.more.keys == (more_many(&w->h.more) ? w->h.more.args : 1);
}

/* Whether all keys still stand as they were read. Global: verified by itself. */
__noinline int more_all_still(void)
{
	struct work *w = work_get();
	int i;

	if (!w)
		return 0;
	bpf_for(i, 0, KEYS_PER_PACKET)
	{
		if (i >= w->h.more.keys)
			return 1;
		if (!more_still(i))
			return 0;
	}
	return 1;
}

/* Reads and answers the command at w->pos, if it is one of fast.def beside GET and PING; 0 if it is
 * none. Global: verified by itself. */
__noinline int fast_more(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	struct fast_more *m;
	s32 from = 0, to = 0;
	u32 reason = 0;

	if (!w || !c)
		return 0;
	m = &w->h.more;
	if (w->commands == w->h.gets + w->h.pings) { /* the packet's first of these */
		__builtin_memset(m->counts, 0, sizeof(m->counts));
		m->packet_keys = 0;
	}
	m->kind = more_begin(w, c);
	if (m->kind == FAST_NONE)
		return 0;
	if (m->packet_keys + m->args > KEYS_PER_PACKET) {
		if (!w->refusal)
			w->refusal = STAT_REFUSE_COMMANDS;
		return 0;
	}
	if (m->kind == FAST_KIND_MGET)
		reason = more_array(w, '*', m->args);
	if (m->kind == FAST_KIND_HMGET)
		reason = more_array(w, '*', m->args - 1);
	if (!more_keys() ||
	    (more_ranged(m) && (!more_integer_arg(w, &from) || !more_integer_arg(w, &to))) ||
	    (more_hashed(m) && !hash_each_field())) {
		w->reply_len = m->reply_from;
		return 0;
	}
	if (!reason)
		reason = m->reason;
	if (!reason && m->keys > 1 && !more_all_still())
		reason = STAT_REFUSE_SET_CHANGED;
	if (!reason)
		reason = more_answer(w, c, from, to);
	if (reason && !w->refusal)
		w->refusal = reason;
	w->pos = m->at;
	more_counted(w);
	return 1;
}

/* Counts the answered commands beside GET and PING, by kind. Global: verified by itself. */
__noinline int more_count(void)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	for (u32 kind = FAST_KIND_PING + 1; kind < FAST_KIND_MAX; kind++)
		if (w->h.more.counts[kind])
			count_n(STAT_FAST_GET + kind - FAST_KIND_GET, w->h.more.counts[kind]);
	return 0;
}
