/* SPDX-License-Identifier: GPL-2.0 */
/* absorb.h - the write that is answered in Redis's place: one SET alone in its packet, plain or with EX, PX, EXAT or
 * PXAT. It replaces whatever the key had, so nothing of that need be known. All other SETs go up.
 *
 * Invariants:
 *  K4. What the record says is what Redis would have made of the SET: key, value, database, and the expiry counted from
 *      the exact clock. Whatever Redis might refuse is not absorbed.
 *  K5. A CPU's records lie one behind the other in its ring, and their LSNs grow: only it writes there, and packets do
 *      not interrupt each other on one CPU.
 *  K6. Under one lock the set gets the LSN, loses the key's entries, and perhaps gains the new one. So a reader finds
 *      the entry, or a set that is undrained (K1).
 *  K7. The entry is one like any other: it may be gone at any time, and never says what is absorbed.
 */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/interest.h"
#include "cache/marks.h"
#include "net/work.h"
#include "redis/get.h"
#include "redis/keep.h"
#include "redis/log.h"
#include "redis/maps.h"
#include "redis/resp.h"
#include "redis/through.h"
#include "splice/handler.h"

#define RESP_ARRAY5_BULK3 (RESP_ARRAY3_BULK3 + 0x200) /* "*5\r\n$3\r\n" */
#define ABSORB_EX	  0x7865		      /* "ex" */
#define ABSORB_PX	  0x7870
#define ABSORB_EXAT	  0x74617865
#define ABSORB_PXAT	  0x74617870
#define ABSORB_DIGITS	  15 /* of a time: more is thousands of years, and nears Redis's bounds */

_Static_assert(LOG_BYTES % LOG_ALIGN == 0 && LOG_OVERRUN_BYTES >= LOG_RECORD_BYTES_MAX,
	       "a record lies in one piece");
_Static_assert(SLOT_HEADER_BYTES + REPLY_BYTES_MAX + KEY_BYTES_MAX + 8 <= CLASS3_BYTES,
	       "whatever comes in one packet has a slot");

INLINE struct log_ring *log_get(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&erb_log, &cpu);
}

INLINE bool handler_may_absorb(const u8 *body)
{
	u64 first = *(const u64 *)body;

	return (first == RESP_ARRAY3_BULK3 || first == RESP_ARRAY5_BULK3) && through_named(body);
}

/* Where the bulk string at this offset of the payload has its bytes, and in the upper half how many; 0: there is none
 * that is whole and in its usual spelling. */
INLINE u64 absorb_arg(const struct work *w, u32 at)
{
	u32 len = 0, digits, end;
	u64 word;

	opaque(at);
	if (at > PAYLOAD_BYTES)
		return 0;
	word = *(u64 *)(w->payload + at);
	digits = (u8)word == '$' ? resp_header_digits(word, w->p.payload_len - at, &len) : 0;
	at += digits + 3;
	end = at + len;
	opaque(end);
	if (!digits || end > PAYLOAD_BYTES || end + 2 > w->p.payload_len ||
	    *(u16 *)(w->payload + end) != RESP_CRLF)
		return 0;
	return (u64)len << 32 | at;
}

/* The number that these bytes of the payload say, 0: none, or one that Redis might read otherwise. Global: verified by
 * itself. */
__noinline u64 absorb_number(u32 at, u32 len)
{
	struct work *w = work_get();
	u64 number = 0;
	int i;

	if (!w || !len || len > ABSORB_DIGITS)
		return 0;
	bpf_for(i, 0, ABSORB_DIGITS)
	{
		u32 place = at + i, digit;

		if (i >= len)
			break;
		opaque(place);
		if (place > PAYLOAD_BYTES)
			return 0;
		digit = w->payload[place] - '0';
		if (digit > 9 || (!number && !digit))
			return 0;
		number = number * 10 + digit;
	}
	return number;
}

/* When the SET's option at this offset lets the key expire, wall clock, ms; 0: none that is known, or not in time to
 * come. Sets w->pos behind it. Global: verified by itself. */
__noinline u64 absorb_expiry(u32 at)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u64 arg = w ? absorb_arg(w, at) : 0, number, unit, now_ms;
	u32 place = arg, len = arg >> 32, word;

	opaque(place);
	if (!w || !c || !arg || (len != 2 && len != 4) || place > PAYLOAD_BYTES)
		return 0;
	word = *(u32 *)(w->payload + place) | 0x20202020;
	if (len == 2)
		word &= 0xffff;
	unit = word == ABSORB_EX || word == ABSORB_EXAT	  ? 1000
	       : word == ABSORB_PX || word == ABSORB_PXAT ? 1
							  : 0;
	arg = absorb_arg(w, (u32)arg + len + 2);
	number = arg && unit ? absorb_number((u32)arg, arg >> 32) : 0;
	if (!number)
		return 0;
	w->pos = (u32)arg + (u32)(arg >> 32) + 2;
	now_ms = (now_exact_ns() + c->wall_minus_mono_ns) / 1000000;
	number *= unit;
	if (len == 2)
		return now_ms + number;
	return number > now_ms ? number : 0;
}

/* Reads the SET that is all of the payload. Returns whether it can be absorbed. Global: verified by itself. */
__noinline int absorb_read(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	struct absorbed *a;
	u64 key, value;

	if (!w || !c)
		return 0;
	a = &w->h.absorbed;
	key = absorb_arg(w, THROUGH_KEY_AT);
	a->key_at = key;
	a->key_len = key >> 32;
	if (!a->key_len || a->key_len > KEY_BYTES_MAX)
		return 0;
	value = absorb_arg(w, a->key_at + a->key_len + 2);
	if (!value)
		return 0;
	a->value_at = value;
	a->value_len = value >> 32;
	a->expiry_ms = 0;
	w->pos = a->value_at + a->value_len + 2;
	if (*(const u64 *)w->payload == RESP_ARRAY5_BULK3) {
		a->expiry_ms = absorb_expiry(w->pos);
		if (!a->expiry_ms)
			return 0;
	}
	if (w->pos != w->p.payload_len)
		return 0;
	a->bytes = SLOT_HEADER_BYTES + a->value_len + ((a->key_len + 7) & ~7U);
	fast_key(w, c, a->key_at, a->key_len);
	a->set = set_of(c, w->h.look.hash);
	return 1;
}

/* Copies bytes of the payload into the ring, so far behind its head, padded with zeros to whole words. A loop of calls
 * (bpf_for) would take longer for each word than for a block. Global: verified by itself. */
__noinline int absorb_copy(u32 to, u32 from, u32 len)
{
	struct log_ring *log = log_get();
	struct work *w = work_get();
	u32 head;

	if (!log || !w)
		return 0;
	head = log->head & (LOG_BYTES - 1);
	for (u32 i = 0; i < REPLY_BYTES_MAX / COPY_BLOCK && len >= COPY_BLOCK; i++) {
		opaque(from);
		opaque(to);
		if (from > PAYLOAD_BYTES || to > LOG_RECORD_BYTES_MAX)
			return 0;
		for (u32 k = 0; k < COPY_BLOCK; k += 8)
			*(u64 *)(log->bytes + head + to + k) = *(u64 *)(w->payload + from + k);
		from += COPY_BLOCK;
		to += COPY_BLOCK;
		len -= COPY_BLOCK;
	}
	opaque(from);
	opaque(to);
	if (from > PAYLOAD_BYTES || to > LOG_RECORD_BYTES_MAX)
		return 0;
	for (u32 k = 0; k < COPY_BLOCK; k += 8) {
		u64 word = *(u64 *)(w->payload + from + k);
		u32 left = len - k;

		if (k >= len)
			break;
		if (left < 8)
			word &= (1ULL << left * 8) - 1;
		*(u64 *)(log->bytes + head + to + k) = word;
	}
	return 1;
}

#define ABSORB_DATA (sizeof(struct log_record) + SLOT_HEADER_BYTES)

/* The record, whole but for its LSN, behind the ring's head: nobody reads there. Returns whether there is room.
 * Global: verified by itself. */
__noinline int absorb_record(void)
{
	struct log_ring *log = log_get();
	struct work *w = work_get();
	struct log_record *record;
	struct absorbed *a;
	struct slot *slot;
	u32 head;

	if (!log || !w || log->head - read_once(log->tail) > LOG_BYTES - LOG_RECORD_BYTES_MAX)
		return 0;
	a = &w->h.absorbed;
	head = log->head & (LOG_BYTES - 1);
	record = (struct log_record *)(log->bytes + head);
	record->expiry_ms = a->expiry_ms;
	record->bytes = sizeof(*record) + a->bytes;
	record->kind = LOG_SET;
	record->pad = 0;
	slot = (struct slot *)(record + 1);
	slot_head(slot, 0, a->value_len, a->key_len, 0, w->h.look.db);
	return absorb_copy(ABSORB_DATA, a->value_at, a->value_len) &&
	       absorb_copy(ABSORB_DATA + a->value_len, a->key_at, a->key_len);
}

/* The way of its entry, if that is small, and worth a way: the key is cached, or wanted, or nothing has to go for it.
 * Global: verified by itself. */
__noinline int absorb_entry(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	struct cache_large *large;
	struct absorbed *a;
	u32 bytes, off;

	if (!w || !c)
		return 0;
	a = &w->h.absorbed;
	a->way = WAYS;
	bytes = a->bytes + (a->expiry_ms ? 8 : 0);
	if (bytes > CLASS1_BYTES || !c->fills || set_aside(c, a->set, c->look_mask))
		return 0;
	a->way =
	    written_choose(a->set, w->h.look.hash, w->h.look.cache_epoch, bytes > CLASS0_BYTES);
	if ((a->way & WRITTEN_EVICTS) && !written_wanted(a->set, w->h.look.hash)) {
		a->way = WAYS;
		return 0;
	}
	large = large_get(a->set);
	off = ((a->way & (WAYS - 1)) - CLASS0_WAYS) * CLASS1_BYTES;
	opaque(off);
	if (large && off <= (CLASS1_WAYS - 1) * CLASS1_BYTES)
		for (u32 k = 0; k < CLASS1_BYTES - 8; k += 64) /* its lines are fetched */
			read_once(large->slots[off + k]);
	return 0;
}

/* Puts the record's image into the way as the key's entry: K7. Lock held. */
INLINE void absorb_put(const struct work *w, const struct log_ring *log, struct cache_set *set,
		       struct cache_large *large, struct cache_digest *digest, u32 way)
{
	u32 head = log->head & (LOG_BYTES - 1), off = (way - CLASS0_WAYS) * CLASS1_BYTES, tail;
	const u64 *image = (const u64 *)(log->bytes + head + sizeof(struct log_record));
	u64 expiry_ms = w->h.absorbed.expiry_ms;
	struct slot *slot;

	if (way < CLASS0_WAYS) {
		slot = slot_small(set, way);
		if (!slot)
			return;
		slot_write(slot, image, CLASS0_BYTES);
		tail = CLASS0_BYTES;
	} else {
		opaque(off);
		if (off > (CLASS1_WAYS - 1) * CLASS1_BYTES)
			return;
		slot = (struct slot *)(large->slots + off);
		slot_write_some(slot, image, w->h.absorbed.bytes, CLASS1_BYTES);
		tail = CLASS1_BYTES;
	}
	slot->cache_epoch = w->h.look.cache_epoch;
	if (expiry_ms) {
		slot->flags = SLOT_F_EXPIRES;
		*(u64 *)((u8 *)slot + tail - sizeof(u64)) = expiry_ms;
	}
	written_enter(set, digest, w->h.look.hash, way);
}

/* Whether what waits has done so for too long: more of it would only wait, too. */
INLINE bool absorb_late(const struct work *w, const struct control *c)
{
	u64 drained = read_once(c->order.drained), fresh_ns = read_once(c->order.fresh_ns);

	return drained != read_once(c->order.lsn) && (s64)(w->now - fresh_ns) > (s64)ABSORB_AGE_NS;
}

/* Where it is remembered that commands on such sets wait themselves. */
INLINE u32 *stuck_of(struct control *c, u32 set)
{
	return &c->stuck_at[set & (STUCK_WORDS - 1)];
}

INLINE bool is_stuck(const struct work *w, struct control *c)
{
	u32 at = read_once(*stuck_of(c, w->h.absorbed.set));

	return at && (u32)(w->now >> 20) - at < (u32)(STUCK_NS >> 20);
}

INLINE u32 handler_absorb_delay(const struct work *w, struct control *c, u32 reason, u32 *marked_ns)
{
	if (reason == STAT_ABSORB_LATE || reason == STAT_ABSORB_FULL)
		return HELD_LATE;
	*marked_ns = DELAY_MARK_NS;
	return reason == STAT_ABSORB_MARKED && !is_stuck(w, c) ? HELD_MARKED : 0;
}

INLINE void handler_absorb_overdue(const struct work *w, struct control *c, u32 reason)
{
	u32 now = w->now >> 20;

	if (reason == STAT_ABSORB_MARKED)
		write_once(*stuck_of(c, w->h.absorbed.set), now + !now);
}

/* What stands in the write's way at this moment, 0: nothing. */
INLINE u32 absorb_shut(const struct work *w, const struct control *c)
{
	const struct cache_set *set = set_get(w->h.absorbed.set);

	if (!set || read_once(c->fence) || read_once(c->gate_seen) != read_once(c->gate_ack))
		return STAT_ABSORB_SHUT;
	return read_once(set->marks) ? STAT_ABSORB_MARKED : 0;
}

/* Fetches what absorb_record() and absorb_order() will write, side by side: looked at one after the other each would be
 * waited for. */
INLINE void absorb_fetch(const struct work *w)
{
	u32 index = w->h.absorbed.set;
	const struct cache_set *set = set_get(index);
	const struct cache_digest *digest = digest_get(index);
	const struct log_ring *log = log_get();
	u32 head;

	if (!set || !digest || !log)
		return;
	read_once(set->version);
	read_once(digest->tags[0]);
	head = read_once(log->head) & (LOG_BYTES - 1);
	read_once(log->bytes[head]);
	read_once(log->bytes[head + LOG_ALIGN]);
	read_once(log->bytes[head + 2 * LOG_ALIGN]);
}

INLINE void handler_absorb_peek(struct work *w)
{
	w->h.absorbed.read = absorb_read();
	if (w->h.absorbed.read)
		absorb_fetch(w);
}

INLINE u32 handler_absorb(struct work *w, struct control *c, const struct conn *conn)
{
	u32 reason = fast_closed(w, c, conn);

	if (reason)
		return reason;
	if (w->h.rights != conn->h.rights)
		return STAT_REFUSE_RIGHTS;
	if (c->fast_off & 1U << USUAL_KIND_SET)
		return STAT_REFUSE_COMMAND;
	if (!w->h.absorbed.read)
		return STAT_ABSORB_FORM;
	reason = absorb_shut(w, c);
	if (reason)
		return reason;
	if (absorb_late(w, c))
		return STAT_ABSORB_LATE;
	if (!absorb_record())
		return STAT_ABSORB_FULL;
	absorb_entry();
	w->h.gets = w->h.pings = w->commands = 0;
	*(u64 *)w->reply = RESP_OK;
	w->reply_len = RESP_OK_BYTES;
	return 0;
}

INLINE u32 handler_absorb_set(const struct work *w)
{
	return w->h.absorbed.set;
}

INLINE bool handler_absorb_may(const struct work *w, const struct control *c)
{
	return !absorb_shut(w, c);
}

/* K6: the write has its LSN, and the key's entries say nothing else. Returns the LSN. Global: verified by itself. */
__noinline u64 absorb_order(void)
{
	struct work *w = work_get();
	struct control *c = control_get();
	u32 index = w ? w->h.absorbed.set : 0, way = w ? w->h.absorbed.way : WAYS, dropped;
	u64 hash = w ? w->h.look.hash : 0, lsn;
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	struct cache_digest *digest = digest_get(index);
	struct log_ring *log = log_get();
	bool used, put = way != WAYS;

	if (!w || !c || !log || !set || !large || !digest)
		return 0;
	set_change_begin(set);
	lsn = atomic_add_before(&c->order.lsn, 1) + 1;
	set->lsn = lsn;
	set->version++;
	dropped = set_drop_tag(set, tag_of(hash), &used);
	put &= !set->marks; /* C1, if I6 were broken */
	if (put)
		absorb_put(w, log, set, large, digest, way & (WAYS - 1));
	set_change_end(set);
	if (dropped)
		interest_written(hash, used);
	if (put && (way & WRITTEN_EVICTS))
		count(STAT_CACHE_EVICTED);
	return lsn;
}

/* Gives the write its LSN, and the record to the drain; before that to the module, if that keeps it. */
INLINE int absorb_publish(bool keeps)
{
	struct control *c = control_get();
	struct log_ring *log = log_get();
	struct work *w = work_get();
	u32 whole;
	u64 lsn;

	if (!c || !log || !w)
		return 0;
	whole =
	    (sizeof(struct log_record) + w->h.absorbed.bytes + LOG_ALIGN - 1) & ~(LOG_ALIGN - 1);
	lsn = absorb_order();
	((struct log_record *)(log->bytes + (log->head & (LOG_BYTES - 1))))->lsn = lsn;
	if (keeps)
		keep_push(w, log);
	atomic_set(&log->head, log->head + whole);
	/* The first after a rest, before which all was in Redis. While others wait the daemon looks by itself. */
	if (lsn == read_once(c->order.drained) + 1) {
		if ((s64)(w->now - read_once(c->order.fresh_ns)) > 0)
			write_once(c->order.fresh_ns, w->now);
		daemon_wake();
	}
	count(STAT_ABSORBED);
	return 0;
}

/* Global: verified by itself. */
__noinline int handler_absorb_publish(void)
{
	return absorb_publish(false);
}

/* Global: verified by itself. */
__noinline int handler_keep_publish(void)
{
	return absorb_publish(true);
}
