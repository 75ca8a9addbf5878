/* SPDX-License-Identifier: GPL-2.0 */
/* generator.bpf.c - closed-loop load generator on the client's end of a veth.
 *
 * Connections are opened by real sockets. While mode is LEARN their packets pass and the numbers
 * are read off what the server sends. In RUN each in-order reply is checked and turned into the
 * next request of its connection, in the same frame; the client's kernel sees nothing any more. In
 * PAUSE a reply is acknowledged and the connection is parked, so that nothing is outstanding.
 *
 * Invariants
 * 1. At most one request per connection is in flight: only payload at conn->ack starts another.
 * 2. conn->{seq, ack, digits} always describe the outstanding (or, parked, the next) request, so
 *    that a kick may send it, or send it again, at any time.
 * 3. Only the client's one NAPI thread runs `generator`; the counters need no atomics.
 */
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench_config);
} config SEC(".maps"); /* 0 -> settings; user space writes (kick_next: the kick) */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BENCH_CONNS_MAX);
	__type(key, __u32);
	__type(value, struct bench_conn);
} conns SEC(".maps"); /* index -> connection; see struct bench_conn */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench_totals);
} totals SEC(".maps"); /* 0 -> sums; programs write, user space reads */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BENCH_CONNS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} kicks SEC(".maps"); /* index -> 1: send its request (again); user space sets, the kick clears */

/* Eight decimal digits as text, first digit in the lowest byte: halves, then pairs, then digits,
 * each step on all lanes of one word. */
static __always_inline __u64 digits_of(__u32 number)
{
	__u64 high = number / 10000;
	__u64 quads = high | (number - high * 10000) << 32;
	__u64 hundreds = (quads * 10486 >> 20) & 0x7f0000007fULL;
	__u64 pairs = hundreds | (quads - 100 * hundreds) << 16;
	__u64 tens = (pairs * 103 >> 10) & 0x000f000f000f000fULL;
	return (tens | (pairs - 10 * tens) << 8) + 0x3030303030303030ULL;
}

static __always_inline void choose_key(struct bench_conn *conn, __u32 keys)
{
	__u32 random = conn->random;
	random ^= random << 13;
	random ^= random >> 17;
	random ^= random << 5;
	conn->random = random;
	conn->digits = digits_of((__u64)random * keys >> 32);
}

static __always_inline __u32 ports_of(const struct bench_config *config, __u32 index)
{
	return (__u32)config->server_port_be << 16 | bpf_htons(BENCH_PORT_BASE + index);
}

/* The caller has checked that header and request fit. */
static __always_inline void write_request(void *data, const struct bench_config *config,
					  const struct bench_conn *conn, __u32 index)
{
	__u64 digits = conn->digits;

	write_header(data, &config->request, ports_of(config, index), bpf_htonl(conn->seq),
		     bpf_htonl(conn->ack), bpf_htonl(now_ms() + conn->ts_offset), conn->ts_echo,
		     (digits & 0xffffffff) + (digits >> 32));
	for (int i = 0; i < 4; i++)
		U64(data, BENCH_HEADER_BYTES + 8 * i) = config->request_words[i];
	U32(data, BENCH_HEADER_BYTES + 32) = config->request_tail;
	U64(data, BENCH_HEADER_BYTES + BENCH_REQUEST_DIGITS_AT) = digits;
}

#define HEAD_ROOM_MAX 256 /* XDP_PACKET_HEADROOM */

static __always_inline int resize(struct xdp_md *ctx, __u32 bytes, struct bench_totals *sums)
{
	__u32 now = ctx->data_end - ctx->data;

	if (now != bytes && bpf_xdp_adjust_tail(ctx, (int)bytes - (int)now)) {
		sums->no_room++;
		return -1;
	}
	return 0;
}

/* Gives the frame the head room back that the server took for a longer reply: each request comes
 * with the same room, as from a card, and not with less each time round. */
static __noinline int give_back(struct xdp_md *ctx, struct bench_conn *conn)
{
	conn->came_at = (__u64)(long)ctx->data;
	__u64 taken = *(volatile __u64 *)&conn->sent_at - *(volatile __u64 *)&conn->came_at;
	return taken && taken <= HEAD_ROOM_MAX ? bpf_xdp_adjust_head(ctx, (int)taken) : 0;
}

static __always_inline int send_ack(struct xdp_md *ctx, const struct bench_config *config,
				    const struct bench_conn *conn, __u32 index, __u32 seq,
				    struct bench_totals *sums)
{
	if (resize(ctx, BENCH_HEADER_BYTES, sums))
		return XDP_DROP;
	void *data = (void *)(long)ctx->data;
	if (data + BENCH_HEADER_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_header(data, &config->ack, ports_of(config, index), bpf_htonl(seq),
		     bpf_htonl(conn->ack), bpf_htonl(now_ms() + conn->ts_offset), conn->ts_echo, 0);
	return XDP_TX;
}

static __always_inline int begins_right(void *data, void *data_end,
					const struct bench_config *config)
{
	void *payload = data + BENCH_HEADER_BYTES;

	return payload + 8 <= data_end && (U64(payload, 0) & config->prefix_mask) == config->prefix;
}

/* Of a reply in one packet: type and length line, the key that leads every value, and the end. */
static __always_inline int reply_is_right(void *data, void *data_end,
					  const struct bench_config *config,
					  const struct bench_conn *conn)
{
	void *payload = data + BENCH_HEADER_BYTES;
	void *key = payload + (config->prefix_bytes & 7);
	void *end = payload + ((config->reply_bytes - 2) & 0x7ff);

	if (!begins_right(data, data_end, config) || end + 2 > data_end || key + 16 > data_end ||
	    U16(end, 0) != 0x0a0d)
		return 0;
	return !config->check_key ||
	       (U64(key, 0) == config->key_head && U64(key, 8) == conn->digits);
}

static __always_inline void learn(const struct bench_view *view, struct bench_conn *conn)
{
	if (conn->learned && (__s32)(view->seq + view->payload_bytes - conn->ack) < 0)
		return;
	conn->seq = view->ack;
	conn->ack = view->seq + view->payload_bytes;
	conn->ts_echo = view->tsval_be;
	conn->ts_offset = bpf_ntohl(view->tsecr_be) - now_ms();
	conn->parked = 1;
	conn->learned = 1;
}

static __always_inline int next_request(struct xdp_md *ctx, const struct bench_config *config,
					struct bench_conn *conn, __u32 index,
					struct bench_totals *sums)
{
	give_back(ctx, conn);
	if (resize(ctx, BENCH_HEADER_BYTES + BENCH_REQUEST_BYTES, sums))
		return XDP_DROP;
	void *data = (void *)(long)ctx->data;
	if (data + BENCH_HEADER_BYTES + BENCH_REQUEST_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
	conn->parked = 0;
	conn->sent_at = (__u64)(long)data;
	write_request(data, config, conn, index);
	return XDP_TX;
}

/* Retransmitted replies may come in parts; each is acknowledged, the last one ends the reply. */
static __always_inline int take_piece(struct xdp_md *ctx, const struct bench_view *view,
				      const struct bench_config *config, struct bench_conn *conn,
				      __u32 index, struct bench_totals *sums)
{
	sums->pieces++;
	conn->got += view->payload_bytes;
	conn->ack += view->payload_bytes;
	conn->ts_echo = view->tsval_be;
	return send_ack(ctx, config, conn, index, conn->seq + BENCH_REQUEST_BYTES, sums);
}

static __always_inline int on_reply(struct xdp_md *ctx, const struct bench_view *view,
				    const struct bench_config *config, struct bench_conn *conn,
				    __u32 index, struct bench_totals *sums)
{
	if (view->payload_bytes == 0)
		return XDP_DROP;
	if (view->seq != conn->ack || conn->parked) {
		sums->repeated++;
		return conn->parked ? send_ack(ctx, config, conn, index, conn->seq, sums)
				    : XDP_DROP;
	}
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 got = conn->got + view->payload_bytes;
	int right = view->ack == conn->seq + BENCH_REQUEST_BYTES && got == config->reply_bytes;
	if (right && conn->got == 0)
		right = reply_is_right(data, data_end, config, conn);
	else if (got < config->reply_bytes && (conn->got || begins_right(data, data_end, config)))
		return take_piece(ctx, view, config, conn, index, sums);
	if (!right)
		sums->mismatches++;
	conn->got = 0;
	sums->replies++;
	conn->replies++;
	conn->seq += BENCH_REQUEST_BYTES;
	conn->ack += view->payload_bytes;
	conn->ts_echo = view->tsval_be;
	choose_key(conn, config->keys);
	if (config->mode == BENCH_RUN)
		return next_request(ctx, config, conn, index, sums);
	conn->parked = 1;
	return send_ack(ctx, config, conn, index, conn->seq, sums);
}

SEC("xdp")
int generator(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct bench_config *settings = bpf_map_lookup_elem(&config, &zero);
	struct bench_totals *sums = bpf_map_lookup_elem(&totals, &zero);
	struct bench_view view = {};
	enum view_result result = read_packet(data, data_end, &view);

	if (!settings || !sums || result == VIEW_FOREIGN ||
	    view.source_be != settings->server_port_be)
		return XDP_PASS;
	__u32 index = (__u32)bpf_ntohs(view.dest_be) - BENCH_PORT_BASE;
	struct bench_conn *conn = bpf_map_lookup_elem(&conns, &index);
	if (!conn)
		return XDP_PASS;
	if (result == VIEW_ODD) {
		if (settings->mode == BENCH_LEARN)
			return XDP_PASS;
		sums->odd++;
		return XDP_DROP;
	}
	if (settings->mode == BENCH_LEARN) {
		learn(&view, conn);
		return XDP_PASS;
	}
	return on_reply(ctx, &view, settings, conn, index, sums);
}

/* On the server's end where nothing else is: Linux does not wake a veth for XDP_TX without one. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Run by BPF_PROG_RUN with live frames of request size, once per connection. */
SEC("xdp")
int kick(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct bench_config *settings = bpf_map_lookup_elem(&config, &zero);

	if (!settings)
		return XDP_DROP;
	__u32 index = settings->kick_next++;
	struct bench_conn *conn = bpf_map_lookup_elem(&conns, &index);
	__u32 *wanted = bpf_map_lookup_elem(&kicks, &index);
	if (!conn || !wanted || !*wanted ||
	    data + BENCH_HEADER_BYTES + BENCH_REQUEST_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
	*wanted = 0;
	conn->parked = 0;
	conn->sent_at = (__u64)(long)data;
	write_request(data, settings, conn, index);
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
