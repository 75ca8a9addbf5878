/* SPDX-License-Identifier: GPL-2.0 */
/* echo.bpf.c - the bare responder on the server's end: whatever payload comes is answered with one
 * fixed reply in the same frame. No parsing, no state; TCP numbers and checksum are right. It shows
 * what the machine can do at most. */
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench_echo_config);
} config SEC(".maps"); /* 0 -> settings; user space writes */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} answered SEC(".maps"); /* 0 -> answered packets; the server's one NAPI thread writes */

/* The size that comparisons use; a constant lets the compiler unroll the copy. */
#define COMMON_REPLY_BYTES 108

SEC("xdp")
int echo(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct bench_echo_config *settings = bpf_map_lookup_elem(&config, &zero);
	__u64 *count = bpf_map_lookup_elem(&answered, &zero);
	struct bench_view view = {};

	if (!settings || !count || !settings->enabled ||
	    read_packet(data, data_end, &view) != VIEW_TCP ||
	    view.dest_be != settings->server_port_be)
		return XDP_PASS;
	/* Nothing but acknowledgements of the responder's own bytes, unknown to the kernel. */
	if (view.payload_bytes == 0)
		return XDP_DROP;
	__u32 reply_bytes = settings->reply_bytes;
	if (reply_bytes == 0 || reply_bytes > BENCH_REPLY_BYTES_MAX)
		return XDP_PASS;
	int growth = BENCH_HEADER_BYTES + reply_bytes - (int)(data_end - data);
	if (bpf_xdp_adjust_tail(ctx, growth))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (data + BENCH_HEADER_BYTES > data_end)
		return XDP_DROP;
	/* TSval: the request's TSecr is our last one; constant is legal, as time may stand still.
	 */
	write_header(data, &settings->reply, (__u32)view.source_be << 16 | view.dest_be,
		     bpf_htonl(view.ack), bpf_htonl(view.seq + view.payload_bytes), view.tsecr_be,
		     view.tsval_be, 0);
	if (reply_bytes == COMMON_REPLY_BYTES) {
		if (data + BENCH_HEADER_BYTES + COMMON_REPLY_BYTES > data_end)
			return XDP_DROP;
		for (int i = 0; i < COMMON_REPLY_BYTES / 8; i++)
			U64(data, BENCH_HEADER_BYTES + 8 * i) = settings->payload[i];
		U32(data, BENCH_HEADER_BYTES + COMMON_REPLY_BYTES - 4) =
		    settings->payload[COMMON_REPLY_BYTES / 8];
	} else if (bpf_xdp_store_bytes(ctx, BENCH_HEADER_BYTES, settings->payload, reply_bytes)) {
		return XDP_DROP;
	}
	(*count)++;
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
