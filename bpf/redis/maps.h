/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* redis/maps.h - the maps of the Redis handler beside those of base/maps.h; pinned and shared like them.
 */
#pragma once
#include "base/seam.h"
#include "redis/log.h"

/* command name -> class; loaded from commands.def by the loader, then from Redis's own table by the
 * daemon while nothing is served. Full: loader's error; the daemon does not serve. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, COMMANDS_MAX);
	__type(key, struct command_key);
	__type(value, struct command_row);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_commands SEC(".maps");

/* CPU -> its log ring: who answers writes there appends, the daemon drains; mapped by it. The loader makes as many as
 * there are CPUs, and none while no write is to be answered. Full: ABSORB_FULL. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct log_ring);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_log SEC(".maps");
