// SPDX-License-Identifier: GPL-2.0
/* push.bpf.c - pushes one record for each packet, as the data path would: room, then a number, then the record. Its
 * kfuncs are weak, so it loads with and without the module. */
#include "push.h"
#include "record.h"

/* 0 -> counters; mapped by who runs this */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct push_state);
} push_states SEC(".maps");

RECORD_OF(push_scratch, PUSH_VALUE_BYTES_MAX);

/* 0 -> the record that is being made; of each CPU */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct push_scratch);
} push_scratches SEC(".maps");

/* The key is the record's number, the value so many bytes of whatever was there. */
static __always_inline void push(void)
{
	__u32 zero = 0, value_len = bpf_get_prandom_u32() & PUSH_VALUE_BYTES_MAX;
	struct push_scratch *scratch = bpf_map_lookup_elem(&push_scratches, &zero);
	struct push_state *state = bpf_map_lookup_elem(&push_states, &zero);
	__u32 bytes = RECORD_HEAD + value_len + RECORD_KEY_LEN;
	__u64 lsn;
	int refused;

	if (!scratch || !state)
		return;
	if (!bpf_ksym_exists(erb_io_push)) {
		__sync_fetch_and_add(&state->without, 1);
		return;
	}
	erb_prefetch(state, sizeof(*state));
	refused = erb_io_reserve(bytes);
	if (refused) {
		__sync_fetch_and_add(refused == -11 ? &state->full : &state->shut, 1);
		return;
	}
	lsn = __sync_fetch_and_add(&state->lsn, 1) + 1;
	record_fill(scratch, lsn, value_len);
	if (erb_io_push(scratch, bytes))
		__sync_fetch_and_add(&state->lost, 1);
	else
		__sync_fetch_and_add(&state->pushed, 1);
}

SEC("xdp")
int push_xdp(struct xdp_md *packet)
{
	push();
	return XDP_PASS;
}

SEC("tcx/ingress")
int push_tc(struct __sk_buff *packet)
{
	push();
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
