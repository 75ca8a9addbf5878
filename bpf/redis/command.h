/* SPDX-License-Identifier: GPL-2.0 */
/* command.h - what a command means: name and sub-command to class, by the table commands.def. */
#pragma once
#include "base/seam.h"
#include "redis/maps.h"

INLINE u8 lower(u8 ch)
{
	return ch >= 'A' && ch <= 'Z' ? ch | 0x20 : ch;
}

/* The same of eight bytes at once: the upper bit of each says whether it is such a letter. */
INLINE u64 lower_word(u64 word)
{
	u64 low = word & 0x7f7f7f7f7f7f7f7fULL;
	u64 from_a = low + 0x3f3f3f3f3f3f3f3fULL, above_z = low + 0x2525252525252525ULL;

	return word | (from_a & ~above_z & ~word & 0x8080808080808080ULL) >> 2;
}

INLINE struct command_row *command_row(const struct command_key *key)
{
	return bpf_map_lookup_elem(&erb_commands, key);
}

/* A container's sub-command, else its "*"; 0 if there is neither. */
INLINE struct command_row *command_sub(struct command_key *key, const struct scan_request *s)
{
	struct command_row *row;

	if (s->sub_len && s->sub_len <= NAME_BYTES_MAX) {
		__builtin_memcpy(key->sub, s->sub, NAME_BYTES_MAX);
		row = command_row(key);
		if (row)
			return row;
		__builtin_memset(key->sub, 0, NAME_BYTES_MAX);
	}
	key->sub[0] = '*';
	return command_row(key);
}

/* Notes the keys that the command writes from argument first on, n of them at most. Returns
 * CMD_MARK, or CMD_SETTLE if they are too many. */
INLINE u32 command_range(struct scan_request *s, u32 first, u32 last, u32 step)
{
	if (!step || !first)
		return CMD_SETTLE;
	if (last >= s->args_total)
		last = s->args_total - 1;
	if (first > last) /* Redis misses arguments and says so */
		return CMD_MARK;
	if ((last - first) / step >= KEYS_MARKED_MAX)
		return CMD_SETTLE;
	s->key_next = first;
	s->key_last = last;
	s->key_step = step;
	return CMD_MARK;
}

/* Where the keys are that the command writes. Returns its class. */
INLINE u32 command_keys(struct scan_request *s, const struct command_row *row)
{
	s32 last = row->last;

	if (row->keynum) {
		if (row->keynum >= s->args_total || row->first <= row->keynum)
			return CMD_SETTLE;
		s->key_next = row->keynum;
		s->key_first = row->first;
		s->key_step = row->step;
		return CMD_MARK;
	}
	if (last < 0)
		last += s->args_total;
	return last < 0 ? CMD_MARK : command_range(s, row->first, last, row->step);
}

/* The number of keys has been read, as Redis would: no sign, no leading zero. Returns CMD_MARK, or
 * CMD_SETTLE for what is no number or too many. */
INLINE u32 command_keynum(struct scan_request *s)
{
	u32 first = s->key_first, n = s->sub[0] - '0';

	s->key_next = s->key_first = 0;
	if (!s->sub_len || s->sub_len > 2 || n - 1 > 8)
		return CMD_SETTLE;
	if (s->sub_len == 2) {
		u32 d = s->sub[1] - '0';

		if (d > 9)
			return CMD_SETTLE;
		n = n * 10 + d;
	}
	return command_range(s, first, first + (n - 1) * s->key_step, s->key_step);
}

/* Beside a class: ORDER_* of the command. */
#define CLASS_ORDER_AT 8
#define CLASS_MASK     0xff

_Static_assert(CMD_CLASS_MAX <= CLASS_MASK, "they are no part of a class");

/* A class and its order. What may be any command, or a module's, may repeat its arguments. */
INLINE u32 command_says(const struct control *c, u32 class, u32 order)
{
	if ((order & ORDER_CURES) && read_once(c->order.refused))
		order |= ORDER_NEVER_HELD;
	if (class == CMD_FENCE)
		order |= ORDER_REPEATS;
	if (read_once(c->one_line))
		order &= ~ORDER_REPEATS;
	return class | order << CLASS_ORDER_AT;
}

/* Class of the command whose name and first argument the scanner holds, and where its keys are.
 * name_len or sub_len above NAME_BYTES_MAX: longer than kept. With its order (CLASS_ORDER_AT). Global:
 * verified by itself. */
__noinline int command_class(struct scan_request *s)
{
	struct command_key key = {};
	struct control *c = control_get();
	struct command_row *row;
	u32 class;

	if (!s || !c)
		return CMD_FENCE;
	s->key_next = s->key_first = 0;
	if (!s->name_len || s->name_len > NAME_BYTES_MAX)
		return command_says(c, c->unknown_class, 0);
	__builtin_memcpy(key.name, s->name, NAME_BYTES_MAX);
	row = command_row(&key);
	if (!row)
		return command_says(c, c->unknown_class, 0);
	if (row->cmd_class == CMD_CONTAINER)
		row = command_sub(&key, s);
	if (!row)
		return command_says(c, CMD_FENCE, 0);
	class = row->cmd_class;
	if (row->argc && row->argc != s->args_total)
		class = class == CMD_GET || class == CMD_PING ? CMD_HARMLESS : CMD_SETTLE;
	else if (class == CMD_MARK)
		return command_keys(s, row);
	return command_says(c, class, row->order);
}
