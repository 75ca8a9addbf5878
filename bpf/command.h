/* SPDX-License-Identifier: GPL-2.0 */
/* command.h - what a command means: name and sub-command to class, by the table commands.def. */
#pragma once
#include "seam.h"

INLINE u8 lower(u8 ch)
{
	return ch >= 'A' && ch <= 'Z' ? ch | 0x20 : ch;
}

INLINE struct command_row *command_row(const struct command_key *key)
{
	return bpf_map_lookup_elem(&erb_commands, key);
}

/* A container's sub-command, else what its "*" says; a sub-command of neither is CMD_FENCE. */
INLINE u32 command_sub_class(struct command_key *key, const struct scan_request *s)
{
	struct command_row *row;

	if (s->sub_len && s->sub_len <= NAME_BYTES_MAX) {
		__builtin_memcpy(key->sub, s->sub, NAME_BYTES_MAX);
		row = command_row(key);
		if (row)
			return row->cmd_class;
		__builtin_memset(key->sub, 0, NAME_BYTES_MAX);
	}
	key->sub[0] = '*';
	row = command_row(key);
	return row ? row->cmd_class : CMD_FENCE;
}

/* Class of the command whose name and first argument the scanner holds. name_len or sub_len above
 * NAME_BYTES_MAX: longer than kept. Global: verified by itself. */
__noinline int command_class(struct scan_request *s)
{
	struct command_key key = {};
	struct command_row *row;
	u32 class;

	if (!s || !s->name_len || s->name_len > NAME_BYTES_MAX)
		return CMD_FENCE;
	__builtin_memcpy(key.name, s->name, NAME_BYTES_MAX);
	row = command_row(&key);
	if (!row)
		return CMD_FENCE;
	class = row->cmd_class;
	if (row->argc && row->argc != s->args_total)
		return class == CMD_GET || class == CMD_PING ? CMD_HARMLESS : CMD_FENCE;
	if (class == CMD_CONTAINER)
		return command_sub_class(&key, s);
	if (class == CMD_HELLO)
		return s->args_total <= 2 ? CMD_HARMLESS : CMD_STATEFUL;
	if (class == CMD_SELECT)
		return s->sub_len == 1 && s->sub[0] == '0' ? CMD_HARMLESS : CMD_STATEFUL;
	return class;
}
