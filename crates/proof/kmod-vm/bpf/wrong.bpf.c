// SPDX-License-Identifier: GPL-2.0
/* wrong.bpf.c - calls the module as no program should. What the verifier lets through must do no harm. Each program is
 * loaded by itself: some kernels refuse some of them. */
#include "record.h"
#include "wrong.h"

/* Of the kernel, by name. */
struct bpf_wq {
	__u64 __opaque[2];
} __attribute__((aligned(8)));
extern int bpf_wq_init(struct bpf_wq *wq, void *p__map, unsigned int flags) __ksym __weak;
extern int bpf_wq_start(struct bpf_wq *wq, unsigned int flags) __ksym __weak;
extern int bpf_wq_set_callback_impl(struct bpf_wq *wq, int (*callback)(void *, int *, void *),
				    unsigned int flags, void *aux__ign) __ksym __weak;
/* The same by its newer name. */
extern int bpf_wq_set_callback(struct bpf_wq *wq, int (*callback)(void *, int *, void *),
			       unsigned int flags) __ksym __weak;

#define VALUE_LEN_MAX (LOG_RECORD_BYTES_MAX - RECORD_HEAD - RECORD_KEY_LEN)

RECORD_OF(wrong_record, VALUE_LEN_MAX);

/* 0 -> what is to be done; mapped by who runs this */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wrong_one);
} wrong_ones SEC(".maps");

/* 0 -> the record that is being made; one runs at a time */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wrong_record);
} wrong_records SEC(".maps");

/* has nothing */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wrong_record);
} wrong_nothing SEC(".maps");

struct wrong_work {
	struct bpf_wq work;
};

/* 0 -> what is to be called back */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, int);
	__type(value, struct wrong_work);
} wrong_works SEC(".maps");

static __always_inline void push(struct wrong_one *one)
{
	__u32 zero = 0, value_len = one->value_len;
	struct wrong_record *to = bpf_map_lookup_elem(&wrong_records, &zero);

	if (!to || value_len > VALUE_LEN_MAX)
		return;
	record_fill(to, one->lsn, value_len);
	one->refused = erb_io_push(to, RECORD_HEAD + value_len + RECORD_KEY_LEN);
}

SEC("xdp")
int wrong_one(struct xdp_md *packet)
{
	__u32 zero = 0;
	struct wrong_one *one = bpf_map_lookup_elem(&wrong_ones, &zero);

	if (one && one->reserve_only)
		one->refused = erb_io_reserve(one->reserve_only);
	else if (one)
		push(one);
	return XDP_PASS;
}

/* Whether there is memory nobody has asked. */
SEC("xdp")
int wrong_null(struct xdp_md *packet)
{
	__u32 zero = 0;
	struct wrong_record *record = bpf_map_lookup_elem(&wrong_nothing, &zero);

	erb_prefetch(record, sizeof(*record));
	return -erb_io_push(record, sizeof(*record));
}

/* With bottom halves on. */
static int call_back(void *map, int *key, void *value)
{
	__u32 zero = 0;
	struct wrong_one *one = bpf_map_lookup_elem(&wrong_ones, &zero);

	if (one) {
		push(one);
		__sync_fetch_and_add(&one->called_back, 1);
	}
	return 0;
}

SEC("xdp")
int wrong_later(struct xdp_md *packet)
{
	int zero = 0, refused;
	struct wrong_work *later = bpf_map_lookup_elem(&wrong_works, &zero);

	if (!later || bpf_wq_init(&later->work, &wrong_works, 0))
		return XDP_ABORTED;
	if (bpf_ksym_exists(bpf_wq_set_callback))
		refused = bpf_wq_set_callback(&later->work, call_back, 0);
	else
		refused = bpf_wq_set_callback_impl(&later->work, call_back, 0, NULL);
	if (refused)
		return XDP_ABORTED;
	return bpf_wq_start(&later->work, 0) ? XDP_ABORTED : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
