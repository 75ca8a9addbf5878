/* SPDX-License-Identifier: GPL-2.0 */
/* trace_frame.h - what the traced programs (trace_xdp.bpf.c, trace_tc.bpf.c) do before and behind
 * the data path's own. Compiled for XDP and for TC, loaded only while somebody traces.
 *
 * Before it the packet's head is parsed and the counters of this CPU are noted; behind it those
 * that moved are the packet's reasons, for nothing else counts on this CPU meanwhile: the programs
 * run with bottom halves off, and the only one inside another is egress under a clone of TC
 * ingress.
 *
 * Invariants:
 *  X1. Nothing here writes to a packet, to a map of the data path, or changes what its program
 *      returns.
 *  X2. What an inner program counts is taken from the outer one's difference.
 *  X3. Who traces holds a lease of TRACE_LEASE_MS; without it a traced program is the data
 *      path's own.
 */
#pragma once
#include "trace/trace.h"

#define STATS_ROOM 256 /* power of two, so that a mask bounds the index */
#define DEPTH_MAX  2   /* egress inside ingress */

_Static_assert(STAT_MAX <= STATS_ROOM, "room for all counters");

const volatile struct trace_options options SEC(".rodata.options") = {};

/* The packet that a program has at hand. payload follows ev: both are sent as one piece. */
struct frame {
	struct pkt p;
	u32 stage;
	u32 wanted;	/* the filter lets it through */
	u32 sent_again; /* it is the timer's */
	u32 matched;
	u32 at; /* where the search stands */
	u64 before[STATS_ROOM];
	u8 head[256] __attribute__((aligned(8)));
	u8 after[64] __attribute__((aligned(8)));
	struct trace_event ev;
	u8 payload[TRACE_SEARCH_BYTES + TRACE_WORD_BYTES] __attribute__((aligned(8)));
};

/* depth -> frame. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DEPTH_MAX);
	__type(key, __u32);
	__type(value, struct frame);
} trace_frames SEC(".maps");

/* 0 -> how many frames are in use on this CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} trace_depth SEC(".maps");

/* These three are one for all traced programs; the loader sees to it. */

/* 0 -> lease of the one who traces, who alone writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_lease);
} trace_leases SEC(".maps");

/* enum trace_miss -> count. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRACE_MISS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} trace_misses SEC(".maps");

/* struct trace_event with payload. Full: TRACE_LOST. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TRACE_RING_BYTES);
} trace_ring SEC(".maps");

INLINE struct frame *frame_get(u32 depth)
{
	return bpf_map_lookup_elem(&trace_frames, &depth);
}

INLINE u32 *depth_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&trace_depth, &zero);
}

INLINE void miss(u32 what)
{
	u64 *count = bpf_map_lookup_elem(&trace_misses, &what);

	if (count)
		*count += 1;
}

INLINE bool lease_holds(void)
{
	u32 zero = 0;
	struct trace_lease *lease = bpf_map_lookup_elem(&trace_leases, &zero);

	return lease && now_ns() < read_once(lease->until_ns);
}

/* Notes the counters of this CPU in the frame. Global: verified by itself. */
__noinline int counters_note(u32 depth)
{
	struct frame *f = frame_get(depth);
	int i;

	if (!f)
		return 0;
	bpf_for(i, 0, STAT_MAX)
	{
		u32 key = i;
		u64 *now = bpf_map_lookup_elem(&erb_stats, &key);

		if (!now)
			break;
		f->before[key & (STATS_ROOM - 1)] = *now;
	}
	return 0;
}

/* A counter has moved by so much: a reason of the packet. */
INLINE void reason_add(struct frame *f, u32 stat, u64 moved)
{
	u32 n = f->ev.reasons_len;

	if (n >= TRACE_REASONS_MAX) {
		f->ev.reasons_more++;
		return;
	}
	f->ev.reasons[n].stat = stat;
	f->ev.reasons[n].count = moved > 65535 ? 65535 : moved;
	f->ev.reasons_len = n + 1;
}

/* Compares the counters with those noted: X2. Global. */
__noinline int counters_compare(u32 depth)
{
	/* Without an outer one its own, where nobody looks any more. */
	struct frame *f = frame_get(depth), *outer = frame_get(depth ? depth - 1 : 0);
	int i;

	if (!f || !outer)
		return 0;
	f->ev.reasons_len = 0;
	f->ev.reasons_more = 0;
	bpf_for(i, 0, STAT_MAX)
	{
		u32 key = i;
		u64 *now = bpf_map_lookup_elem(&erb_stats, &key), moved;

		if (!now)
			break;
		moved = *now - f->before[key & (STATS_ROOM - 1)];
		if (!moved)
			continue;
		outer->before[key & (STATS_ROOM - 1)] += moved;
		reason_add(f, key, moved);
	}
	return 0;
}

/* Whether the word stands at f->at. Global: the loop around it does not converge otherwise. */
__noinline int word_here(u32 depth)
{
	struct frame *f = frame_get(depth);
	u32 len = options.word_len;
	int i;

	if (!f)
		return 0;
	f->matched = 1;
	bpf_for(i, 0, TRACE_WORD_BYTES)
	{
		u32 n = i, at = f->at & (TRACE_SEARCH_BYTES - 1);

		if (n >= len || n >= TRACE_WORD_BYTES)
			break;
		if (f->payload[at + n] != options.word[n]) {
			f->matched = 0;
			break;
		}
	}
	return 0;
}

/* Searches the held payload for the word. Global. */
__noinline int word_search(u32 depth)
{
	struct frame *f = frame_get(depth);
	u32 len = options.word_len;
	int i;

	if (!f)
		return 0;
	f->matched = 0;
	bpf_for(i, 0, TRACE_SEARCH_BYTES)
	{
		u32 at = i;

		if (at + len > f->ev.held || at >= TRACE_SEARCH_BYTES)
			break;
		if (f->payload[at] != '$' || f->payload[at + 1] != options.word[1])
			continue;
		f->at = at;
		word_here(depth);
		if (f->matched)
			break;
	}
	return 0;
}

INLINE bool client_wanted(const struct conn_key *key)
{
	const volatile u64 *addr = (const volatile u64 *)options.client_addr;
	const u64 *found = (const u64 *)key->client_addr;

	if (!options.by_client)
		return true;
	return found[0] == addr[0] && found[1] == addr[1] &&
	       (!options.client_port_be || options.client_port_be == key->client_port_be);
}

/* Whether the packet says the word, if there is one. Only requests are searched. */
INLINE bool word_wanted(struct frame *f, u32 at)
{
	if (!options.word_len)
		return true;
	if (f->stage == TRACE_EGRESS)
		return false;
	word_search(at);
	if (!f->matched && f->ev.held < f->p.payload_len)
		miss(TRACE_UNSEARCHED);
	return f->matched;
}

/* Reads the packet into the frame. Returns whether it is one that may be shown. */
INLINE bool frame_read(ctx_t *ctx, struct frame *f, u32 port_be)
{
	u32 len = tier_len(ctx), off, n = len;
	bool out = f->stage == TRACE_EGRESS;

	if (n > HEAD_BYTES)
		n = HEAD_BYTES;
	opaque(n);
	n &= 0xff; /* the verifier's bound: head is 256 bytes long */
	if (n < HEADERS_MIN || tier_load(ctx, 0, f->head, n))
		return false;
	if (parse_packet(&f->p, f->head, tier_l3(ctx), len, tier_merged(ctx), out) != PARSE_TCP ||
	    f->p.key.server_port_be != port_be || !client_wanted(&f->p.key))
		return false;
	f->ev.held = 0;
	if (out)
		return true;
	off = f->p.payload_off;
	n = f->p.payload_len;
	if (n > TRACE_SEARCH_BYTES)
		n = TRACE_SEARCH_BYTES;
	if (sized(n, TRACE_SEARCH_BYTES) && !tier_load(ctx, off, f->payload, n))
		f->ev.held = n;
	return true;
}

#if TIER_XDP
INLINE bool not_ours(ctx_t *ctx, u32 stage)
{
	return false;
}

INLINE bool of_timer(ctx_t *ctx, u32 stage, u32 depth)
{
	return false;
}
#else
/* XDP has handled it, or it is the daemon's own. */
INLINE bool not_ours(ctx_t *ctx, u32 stage)
{
	return stage == TRACE_INGRESS && (tier_meta(ctx) == META_TRANSLATED ||
					  (ctx->mark == SKB_MARK_FEED && !options.by_client));
}

/* A clone outside of TC ingress. */
INLINE bool of_timer(ctx_t *ctx, u32 stage, u32 depth)
{
	return stage == TRACE_EGRESS && !depth && ctx->mark == SKB_MARK_CLONE &&
	       ctx->ingress_ifindex;
}
#endif

/* Before the program. Returns whether trace_leave is wanted behind it. Global, and all that differs
 * is decided in here: the verifier walks through the program behind it but once. */
__noinline int trace_enter(ctx_t *ctx, u32 stage)
{
	struct control *c = control_get();
	u32 *depth = depth_get(), at;
	struct frame *f;

	if (!c || !depth || !lease_holds() || not_ours(ctx, stage))
		return 0;
	at = *depth;
	f = frame_get(at);
	if (!f)
		return 0;
	f->stage = stage;
	f->sent_again = of_timer(ctx, stage, at);
	f->wanted = frame_read(ctx, f, c->port_be) && word_wanted(f, at);
	if (!f->wanted && !at) /* an outer frame is always one that counts */
		return 0;
	*depth = at + 1;
	f->ev.ifindex = tier_ifindex(ctx);
	f->ev.time_ns = now_exact_ns();
	counters_note(at);
	return 1;
}

/* What became of the header: the same place of the packet, behind the program. Global. */
__noinline int header_after(ctx_t *ctx, u32 at)
{
	struct frame *f = frame_get(at);
	u32 off, len, total = tier_len(ctx);
	u8 *now;

	opaque(total);
	if (!f)
		return 0;
	off = f->p.l4_off;
	len = f->p.tcp_bytes;
	now = f->after;
	opaque(off);
	if (off > HEAD_BYTES - TCP_BYTES_MAX || tier_load(ctx, off, now, 20))
		return 0;
	f->ev.seq_after = load_be32(now + 4);
	f->ev.ack_after = load_be32(now + 8);
	if (f->ev.bits & TRACE_F_REPLY) {
		f->ev.reply_len = total - off - (now[12] >> 4) * 4;
		return 0;
	}
	f->ev.bits |= TRACE_F_READ_AFTER;
	if (!sized(len, TCP_BYTES_MAX) || tier_load(ctx, off, now, len))
		return 0;
	for (u32 i = 4; i < TCP_BYTES_MAX; i += 4) {
		if (i >= len)
			break;
		if (*(u32 *)(now + i) != *(u32 *)(f->head + off + i))
			f->ev.bits |= TRACE_F_CHANGED;
	}
	return 0;
}

INLINE void emit(struct frame *f)
{
	u32 len = f->ev.held;

	if (len > TRACE_PAYLOAD_BYTES)
		len = TRACE_PAYLOAD_BYTES;
	f->ev.held = len;
	opaque(len);
	if (len > TRACE_PAYLOAD_BYTES)
		return;
	if (bpf_ringbuf_output(&trace_ring, &f->ev, sizeof(f->ev) + len, BPF_RB_NO_WAKEUP))
		miss(TRACE_LOST);
}

/* Behind the program, which returned action; bits: TRACE_F_* that the caller knows. Global. */
__noinline int trace_leave(ctx_t *ctx, s32 action, u32 bits)
{
	u32 *depth = depth_get(), at;
	struct frame *f;

	if (!depth || !*depth)
		return 0;
	at = *depth - 1;
	*depth = at;
	f = frame_get(at);
	if (!f)
		return 0;
	counters_compare(at);
	/* Egress has nothing to do with most of what leaves: the daemon's own connection, other
	 * sockets, what was not tracked. */
	if (!f->wanted || (f->stage == TRACE_EGRESS && !f->ev.reasons_len && !options.by_client))
		return 0;
	if (f->sent_again)
		reason_add(f, STAT_REPLAY_TIMEOUT, 1); /* counted by it, before the clone */
	f->ev.stage = f->sent_again ? TRACE_TIMER : f->stage;
	f->ev.cpu = bpf_get_smp_processor_id();
	f->ev.action = action;
	f->ev.bits = bits;
	__builtin_memcpy(&f->ev.key, &f->p.key, sizeof(f->ev.key));
	f->ev.seq = f->p.seq;
	f->ev.ack = f->p.ack;
	f->ev.payload_len = f->p.payload_len;
	f->ev.flags = f->p.flags;
	f->ev.seq_after = f->ev.ack_after = f->ev.reply_len = 0;
	header_after(ctx, at);
	emit(f);
	return 0;
}

/* What follows is the data path's own source, its programs become parts of the traced ones. Inline:
 * a call more would be one too deep for the verifier. */
#undef SEC
#define SEC(name) __attribute__((always_inline))
#define LICENSE	  traced_license
#pragma clang diagnostic ignored "-Wignored-attributes" /* of that licence */
