// SPDX-License-Identifier: GPL-2.0
/* aof.bpf.c - the source paper's own way, for study: the module erb_aof (kmod/study) gets what the module erb_io takes,
 * and finds the file in which it writes that. */
#include "base/kernel_types.h"
#include "redis/log.h"

extern int erb_find_fd(void) __ksym;
extern int erb_aof_append(const void *record, __u32 record__sz) __ksym;

struct aof_record {
	__u8 bytes[LOG_RECORD_BYTES_MAX];
};

/* 0 -> a copy of the record; of each CPU, whose bottom halves are off from its push on */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct aof_record);
} aof_records SEC(".maps");

/* Redis opens a file each tenth of a second, to see how much memory it has: so its log is found soon. */
SEC("uretprobe.s")
int aof_find(void *registers)
{
	erb_find_fd();
	return 0;
}

/* int erb_io_push(const void *record, u32 record__sz): what it took. The verifier knows no pointer to what is const and
 * of no type, so arguments are asked for. */
SEC("fexit/erb_io_push")
int aof_append(void *of)
{
	__u32 zero = 0, size;
	__u64 from, bytes, refused;
	struct aof_record *record = bpf_map_lookup_elem(&aof_records, &zero);

	if (!record || bpf_get_func_arg(of, 0, &from) || bpf_get_func_arg(of, 1, &bytes) ||
	    bpf_get_func_ret(of, &refused))
		return 0;
	size = bytes;
	/* Else it would be read again from where it was told, and be anything. */
	asm volatile("" : "+r"(size));
	if ((int)refused || size > sizeof(record->bytes))
		return 0;
	if (!bpf_probe_read_kernel(record->bytes, size, (const void *)from))
		erb_aof_append(record->bytes, size);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
