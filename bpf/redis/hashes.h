/* SPDX-License-Identifier: GPL-2.0 */
/* hashes.h - the fast commands on hashes. A hash is cached whole (abi.h, struct hash_head): its
 * fields' places, then each field and its value as the bulk strings that they are in replies, in
 * the order in which Redis gave them. So HGETALL is one copy, HGET that of a part.
 *
 * Invariants:
 *  V1. A found hash is copied to the scratch while its set is unchanged, and only read there.
 *  V2. What a hash that is cached whole has no field for is nil (fast_nil). A key that is absent
 *      is answered as a hash without fields.
 */
#pragma once
#include "base/seam.h"
#include "net/work.h"
#include "redis/get.h"
#include "redis/strings.h"

#define HASH_PLACES_AT (SCRATCH_AT + sizeof(struct hash_head))
#define FIELD_WORDS    (KEY_BYTES_MAX / 8)
#define NO_FIELD       HASH_FIELDS_MAX

/* Place of a field of the hash in the scratch, NULL for a number out of range. */
INLINE struct hash_field *hash_field_get(struct work *w, u32 number)
{
	opaque(number);
	if (number >= HASH_FIELDS_MAX)
		return 0;
	return (struct hash_field *)(w->reply + HASH_PLACES_AT) + number;
}

INLINE u32 hash_fields(const struct work *w)
{
	return ((const struct hash_head *)(w->reply + SCRATCH_AT))->fields;
}

/* Whether the field at from of the scratch is that at off of the payload, both of len bytes: whole
 * words, of the last one the bytes that belong to it. Global: verified by itself. */
__noinline int hash_field_equal(u32 from, u32 off, u32 len)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	for (u32 i = 0; i < FIELD_WORDS; i++) {
		u32 a = SCRATCH_AT + from + i * 8, b = off + i * 8;
		u64 differ;

		if (i * 8 >= len)
			break;
		opaque(a);
		opaque(b);
		if (a > sizeof(w->reply) - 8 || b > PAYLOAD_BYTES)
			return 0;
		differ = *(u64 *)(w->reply + a) ^ *(u64 *)(w->payload + b);
		if (len - i * 8 < 8)
			differ &= (1ULL << (len - i * 8) * 8) - 1;
		if (differ)
			return 0;
	}
	return 1;
}

/* Number of the field in the payload at off, NO_FIELD if the hash has none such. Global: verified
 * by itself. */
__noinline int hash_find(u32 off, u32 len)
{
	struct work *w = work_get();
	int i;

	if (!w)
		return NO_FIELD;
	bpf_for(i, 0, HASH_FIELDS_MAX)
	{
		struct hash_field *field = hash_field_get(w, i);

		if (!field || i >= hash_fields(w))
			break;
		if (field->len == len &&
		    hash_field_equal(field->value_at - 2 - field->len, off, len))
			return i;
	}
	return NO_FIELD;
}

/* Appends bytes [from, to) of the cached hash. Inline: eight calls are the deepest. */
INLINE u32 hash_append(struct work *w, u32 from, u32 to)
{
	u32 at = w->reply_len, len = to - from;

	if (from > to || to > VALUE_BYTES_MAX)
		return STAT_INVARIANT;
	if (at + len > REPLY_BYTES_MAX)
		return STAT_REFUSE_MSS;
	more_copy(at, SCRATCH_AT + from, len);
	w->reply_len = at + len;
	return 0;
}

/* Length of a value whose bulk string has so many bytes. */
INLINE u32 bulk_value_len(u32 bytes)
{
	u32 most = bytes - 5; /* digits included */

	return most < 11 ? most - 1 : most < 102 ? most - 2 : most < 1003 ? most - 3 : most - 4;
}

/* Answers one field of the command at hand. Returns 0 or the reason against it. */
INLINE u32 hash_answer_field(struct work *w, u32 off, u32 len)
{
	u32 kind = w->h.more.kind, number = hash_find(off, len);
	struct hash_field *field = hash_field_get(w, number);

	if (kind == FAST_KIND_HEXISTS)
		return more_integer(field ? 1 : 0, 0);
	if (kind == FAST_KIND_HSTRLEN)
		return more_integer(field ? bulk_value_len(field->value_end - field->value_at) : 0,
				    0);
	return field ? hash_append(w, field->value_at, field->value_end) : fast_nil(w);
}

/* The next argument is a field. Returns 0 if it is not to be had. Global: verified by itself. */
__noinline int hash_next(void)
{
	struct work *w = work_get();
	u32 off = 0, len = 0;

	if (!w || !more_arg(w, &off, &len))
		return 0;
	if (!w->h.more.reason)
		w->h.more.reason = hash_answer_field(w, off, len);
	return 1;
}

/* Reads the fields behind the key and answers them; 0 if one is missing. Global: verified by
 * itself.
 */
__noinline int hash_each_field(void)
{
	struct work *w = work_get();
	int i;

	if (!w)
		return 0;
	bpf_for(i, 1, KEYS_PER_PACKET)
	{
		if (i >= w->h.more.args)
			break;
		if (!hash_next())
			return 0;
	}
	return 1;
}

/* Appends field number n of HKEYS, or its value of HVALS. Global: verified by itself. */
__noinline int hash_append_half(u32 n)
{
	struct work *w = work_get();
	struct hash_field *field, *before;

	if (!w)
		return STAT_INVARIANT;
	field = hash_field_get(w, n);
	before = hash_field_get(w, n - 1);
	if (!field)
		return STAT_INVARIANT;
	if (w->h.more.kind == FAST_KIND_HVALS)
		return hash_append(w, field->value_at, field->value_end);
	return hash_append(w,
			   before ? before->value_end
				  : sizeof(struct hash_head) +
					hash_fields(w) * sizeof(struct hash_field),
			   field->value_at);
}

/* HKEYS and HVALS. Global: verified by itself. */
__noinline int hash_halves(void)
{
	struct work *w = work_get();
	u32 reason = 0;
	int i;

	if (!w)
		return STAT_INVARIANT;
	bpf_for(i, 0, HASH_FIELDS_MAX)
	{
		if (i >= hash_fields(w) || reason)
			break;
		reason = hash_append_half(i);
	}
	return reason;
}

/* Answers the commands that name no field. Global: verified by itself. */
__noinline int hash_answer(void)
{
	struct work *w = work_get();
	u32 fields, reason;

	if (!w)
		return STAT_INVARIANT;
	fields = hash_fields(w);
	if ((fields == 0) != w->h.more.absent || fields > HASH_FIELDS_MAX)
		return STAT_INVARIANT;
	if (w->h.more.kind == FAST_KIND_HLEN)
		return more_integer(fields, 0);
	if (w->h.more.kind != FAST_KIND_HGETALL) {
		reason = more_array(w, '*', fields);
		return reason ? reason : hash_halves();
	}
	if (w->h.look.resp != 2 && w->h.look.resp != 3)
		return STAT_REFUSE_COMMAND;
	reason = w->h.look.resp == 3 ? more_array(w, '%', fields) : more_array(w, '*', 2 * fields);
	if (reason || !fields)
		return reason;
	return hash_append(w, sizeof(struct hash_head) + fields * sizeof(struct hash_field),
			   w->h.more.value_len);
}
