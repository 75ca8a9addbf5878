/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* maps.h - the maps of the data path. All are pinned by name in ERB's bpffs folder, so that the
 * objects (XDP, TC, control programs) share them and a restarted daemon adopts them. */
#pragma once

/* 0 -> struct control; daemon and data path write their own part; mapped by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_control SEC(".maps");

/* address pair -> connection; ingress makes, erb_release deletes; max_entries is set by the loader.
 * Preallocated, never LRU: an evicted entry is a broken connection. Full: CONN_TABLE_FULL, that
 * connection is not seen. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNS_DEFAULT);
	__type(key, struct conn_key);
	__type(value, struct conn);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_conns SEC(".maps");

/* place - 1 -> whose it is; ingress and erb_release write; as many as erb_conns has. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONNS_DEFAULT);
	__type(key, __u32);
	__type(value, struct place);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_places SEC(".maps");

/* (place - 1) / PLACE_LINE -> lists that these places are on; all programs write, the daemon reads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CONNS_DEFAULT / PLACE_LINE);
	__type(key, __u32);
	__type(value, struct place_line);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_place_lines SEC(".maps");

/* number -> bytes beyond a hole of one connection; TC ingress writes. None free: what comes beyond a
 * hole is dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AHEAD_BUFFERS);
	__type(key, __u32);
	__type(value, struct ahead);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_ahead SEC(".maps");

/* 0 -> an entry of zeros, the value new connections are made from (too big for the stack; of a type
 * without a lock, which may not be read as memory). */
struct conn_zero {
	__u8 bytes[sizeof(struct conn)];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct conn_zero);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_conn_zero SEC(".maps");

/* hash of a client's address -> places in erb_conns that it has; who makes and deletes entries counts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLIENT_COUNTS);
	__type(key, __u32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_clients SEC(".maps");

/* hash of an address pair -> when payload of it last passed unseen, 2^20 ns, CLOCK_MONOTONIC; 0:
 * never. Ingress writes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNSEEN_TIMES);
	__type(key, __u32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_unseen SEC(".maps");

/* set index -> cache set; max_entries of all three is set by the loader (a power of two). MMAPABLE
 * aligns the sets to cache lines; nobody maps them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct cache_set);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_sets SEC(".maps");

/* set index -> the set's digest. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct cache_digest);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_digests SEC(".maps");

/* set index -> the set's larger slots. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct cache_large);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_large SEC(".maps");

/* cookie of a listening socket on the port -> enum erb_listener; the daemon writes. Full: unknown. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LISTENERS_MAX);
	__type(key, __u64);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_listeners SEC(".maps");

/* enum erb_stat -> count, per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STAT_MAX);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_stats SEC(".maps");

/* 0 -> how long sampled packets took, per CPU; who sends or drops them writes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latency);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_latency SEC(".maps");

/* key hash -> what is known of its use (enum interest); the daemon lets it fade. Lost updates are
 * harmless. */
struct interests {
	__u32 of[INTERESTS];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct interests);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_interests SEC(".maps");

/* struct miss records, data path -> daemon, no wake-up. Full: MISS_RING_FULL, the key waits. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_misses SEC(".maps");

/* Keys of sampled packets as struct miss records, while control.heat, no wake-up. Full: not counted. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_heat SEC(".maps");

/* Empty records that only wake the daemon: a share of the fence waits to be settled, or the first write after a
 * rest to be drained. Full: it is awake, or finds out with its next tick. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_wakes SEC(".maps");

/* CPU -> what it does, as far as writes are answered. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BUSY_CPUS);
	__type(key, __u32);
	__type(value, struct busy_line);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_busy SEC(".maps");

/* struct held_packet records, with room for HELD_FRAME_SHORT bytes or for all; data path -> daemon, which each
 * wakes. Full: HELD_UNCOPIED, the client sends it again. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, HELD_RING_BYTES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_held SEC(".maps");

/* Requests of the daemon to the control programs, answered in place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk_io);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_walk_io SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fill_io);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_fill_io SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sweep_io);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_sweep_io SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct release_io);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_release_io SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct admit_io);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_admit_io SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct inject_io);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} erb_inject_io SEC(".maps");
