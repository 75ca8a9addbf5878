/* SPDX-License-Identifier: GPL-2.0 */
/* generator.bpf.c - closed-loop load generator on the client's end of a veth.
 *
 * Connections are opened by real sockets. While mode is LEARN their packets pass and the numbers
 * are read off what the server sends. In RUN each in-order reply is checked and turned into the
 * next request of its connection, in the same frame; the client's kernel sees nothing any more. In
 * PAUSE a reply is acknowledged and the connection is parked, so that nothing is outstanding.
 *
 * `generator` and `kick` send GET, whose request never changes its length; `generator_shaped` and
 * `kick_shaped` send what a struct bench_shape says. They share all but that, by a parameter which
 * the compiler folds away: GET pays nothing for the others.
 *
 * Connections are dealt out to lanes, BENCH_LANES_MAX of them or one for each connection. A lane has
 * one request in flight and asks on its connections in turn; the others rest, parked. What came last
 * on them is acknowledged with their next request, or by a kick when all loops have ended.
 *
 * Invariants
 * 1. At most one request per lane is in flight: only payload at conn->ack of a connection that is
 *    not parked starts another.
 * 2. conn->{seq, ack, digits} always describe the outstanding (or, parked, the next) request, so
 *    that a kick may send it, or send it again, at any time.
 * 3. Only the client's one NAPI thread runs `generator` or `generator_shaped`; the counters need no
 *    atomics, and digits may be written into its shape. The kick has a shape of its own.
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
	__uint(max_entries, 1); /* as many as there are connections: user space, before the load */
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
	__uint(max_entries, 1); /* as conns */
	__type(key, __u32);
	__type(value, __u32);
} kicks SEC(".maps"); /* index -> enum bench_kick; user space sets, the kick clears */

enum shape_owner { SHAPE_GENERATOR = 0, SHAPE_KICK = 1, SHAPE_OWNERS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SHAPE_OWNERS);
	__type(key, __u32);
	__type(value, struct bench_shape);
} shapes SEC(".maps"); /* enum shape_owner -> shape; user space writes, its owner the digits */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* as conns */
	__type(key, __u32);
	__type(value, struct bench_batch);
} batches SEC(".maps"); /* index -> keys of its request; as conn->digits */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BENCH_DRAWN);
	__type(key, __u32);
	__type(value, __u32);
} drawn SEC(".maps"); /* number -> key; user space writes, if the distribution is not uniform */

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

static __always_inline void choose_key(struct bench_conn *conn, __u32 index,
				       const struct bench_config *config)
{
	__u32 keys = config->keys;
	__u32 random = conn->random;
	random ^= random << 13;
	random ^= random >> 17;
	random ^= random << 5;
	conn->random = random;
	if (config->draw == BENCH_DRAW_UNIQUE && keys) {
		conn->digits = digits_of((conn->replies * config->conns + index) % keys);
		return;
	}
	if (config->draw == BENCH_DRAW_TABLE) {
		__u32 number = random % BENCH_DRAWN;
		__u32 *key = bpf_map_lookup_elem(&drawn, &number);

		conn->digits = digits_of(key ? *key : 0);
		return;
	}
	conn->digits = digits_of((__u64)random * keys >> 32);
}

static __always_inline void choose_batch(struct bench_conn *conn, __u32 index,
					 const struct bench_config *config,
					 const struct bench_shape *shape)
{
	struct bench_batch *batch = bpf_map_lookup_elem(&batches, &index);

	for (__u32 i = 0; batch && i < BENCH_BATCH_MAX && i < shape->batch; i++) {
		choose_key(conn, index, config);
		batch->digits[i] = conn->digits;
	}
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

/* Writes eight digits at a place of a request or reply. */
static __always_inline void put_digits(__u64 *bytes, __u32 at, __u64 digits)
{
	barrier_var(at);
	if (at <= BENCH_REPLY_BYTES_MAX - 8)
		U64(bytes, at) = digits;
}

/* Completes the shape's request for a connection; the sum of its digits. What stands at an odd
 * place counts with its bytes exchanged. */
static __noinline __u64 fill_request(struct bench_shape *shape, const struct bench_batch *batch)
{
	__u64 even = 0, odd = 0;
	__u32 at = shape->digits_at;

	for (__u32 i = 0; i < BENCH_BATCH_MAX && i < shape->batch; i++) {
		__u64 digits = batch->digits[i], sum = (digits & 0xffffffff) + (digits >> 32);

		put_digits(shape->request, at, digits);
		if (at & 1)
			odd += sum;
		else
			even += sum;
		at += shape->digits_step;
	}
	odd = (__u16)~fold(odd);
	return even + (odd >> 8) + ((odd & 0xff) << 8);
}

/* The frame has the request's length. Returns 0 if it was written. */
static __always_inline int write_shaped(struct xdp_md *ctx, const struct bench_config *config,
					const struct bench_conn *conn, __u32 index,
					struct bench_shape *shape)
{
	const struct bench_batch *batch = bpf_map_lookup_elem(&batches, &index);
	void *data = (void *)(long)ctx->data;
	__u32 bytes = shape->request_bytes;

	if (!batch || data + BENCH_HEADER_BYTES > (void *)(long)ctx->data_end)
		return -1;
	write_header(data, &config->request, ports_of(config, index), bpf_htonl(conn->seq),
		     bpf_htonl(conn->ack), bpf_htonl(now_ms() + conn->ts_offset), conn->ts_echo,
		     fill_request(shape, batch));
	barrier_var(bytes);
	if (bytes == 0 || bytes > BENCH_REPLY_BYTES_MAX)
		return -1;
	return bpf_xdp_store_bytes(ctx, BENCH_HEADER_BYTES, shape->request, bytes);
}

static __always_inline __u32 request_bytes(const struct bench_shape *shape)
{
	return shape ? shape->request_bytes : BENCH_REQUEST_BYTES;
}

#define HEAD_ROOM_MAX 256 /* XDP_PACKET_HEADROOM */

/* At the tail; at the head where a reply that was far too short has left no room. */
static __always_inline int resize(struct xdp_md *ctx, __u32 bytes, struct bench_totals *sums)
{
	int growth = (int)bytes - (int)(ctx->data_end - ctx->data);

	if (growth && bpf_xdp_adjust_tail(ctx, growth) &&
	    (growth < 0 || bpf_xdp_adjust_head(ctx, -growth))) {
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

/* Writes the digits of the keys that are asked for into the shape's reply. */
static __always_inline void fill_reply(struct bench_shape *shape, const struct bench_batch *batch,
				       const struct bench_config *config)
{
	__u32 at = shape->reply_digits_at;

	for (__u32 i = 0; i < BENCH_PLACES_MAX && i < shape->reply_places; i++) {
		__u32 of = shape->batch > 1 ? i : 0;

		barrier_var(of);
		if (of >= BENCH_BATCH_MAX)
			return;
		put_digits(shape->reply, at, config->check_key ? batch->digits[of] : digits_of(0));
		at += shape->reply_digits_step;
	}
}

/* Whether the packet holds the reply from a byte on, or a part of it: every byte is compared.
 * Global: verified by itself. */
__noinline int shaped_part_is_right(struct xdp_md *ctx, __u32 index, __u32 from, __u32 bytes)
{
	void *payload = (void *)(long)ctx->data + BENCH_HEADER_BYTES;
	void *data_end = (void *)(long)ctx->data_end;
	__u32 zero = 0, owner = SHAPE_GENERATOR, done = 0;
	const struct bench_config *settings = bpf_map_lookup_elem(&config, &zero);
	struct bench_shape *shape = bpf_map_lookup_elem(&shapes, &owner);
	const struct bench_batch *batch = bpf_map_lookup_elem(&batches, &index);

	if (!settings || !shape || !batch || from + bytes > settings->reply_bytes)
		return 0;
	fill_reply(shape, batch, settings);
	for (; done < BENCH_REPLY_BYTES_MAX && done + 8 <= bytes; done += 8) {
		__u32 at = from + done;

		barrier_var(at);
		if (at > BENCH_REPLY_BYTES_MAX - 8 || payload + done + 8 > data_end ||
		    U64(payload, done) != U64(shape->reply, at))
			return 0;
	}
	for (__u32 i = 0; i < 7 && done < bytes; i++, done++) {
		__u32 at = from + done;

		barrier_var(at);
		if (at >= BENCH_REPLY_BYTES_MAX || done >= BENCH_REPLY_BYTES_MAX ||
		    payload + done + 1 > data_end || U8(payload, done) != U8(shape->reply, at))
			return 0;
	}
	return 1;
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

/* The connection whose turn it is behind this one. */
static __always_inline __u32 next_of_lane(const struct bench_config *config, __u32 index)
{
	__u32 next = index + BENCH_LANES_MAX;

	return next < config->conns ? next : index % BENCH_LANES_MAX;
}

static __always_inline int next_request(struct xdp_md *ctx, const struct bench_config *config,
					struct bench_conn *conn, __u32 index,
					struct bench_shape *shape, struct bench_totals *sums)
{
	__u32 next = next_of_lane(config, index);

	give_back(ctx, conn);
	if (next != index) {
		conn->parked = 1;
		index = next;
		conn = bpf_map_lookup_elem(&conns, &index);
		if (!conn)
			return XDP_DROP;
	}
	if (resize(ctx, BENCH_HEADER_BYTES + request_bytes(shape), sums))
		return XDP_DROP;
	void *data = (void *)(long)ctx->data;
	if (shape) {
		conn->parked = 0;
		conn->sent_at = (__u64)(long)data;
		return write_shaped(ctx, config, conn, index, shape) ? XDP_DROP : XDP_TX;
	}
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
				      __u32 index, const struct bench_shape *shape,
				      struct bench_totals *sums)
{
	sums->pieces++;
	conn->got += view->payload_bytes;
	conn->ack += view->payload_bytes;
	conn->ts_echo = view->tsval_be;
	return send_ack(ctx, config, conn, index, conn->seq + request_bytes(shape), sums);
}

static __always_inline int on_reply(struct xdp_md *ctx, const struct bench_view *view,
				    const struct bench_config *config, struct bench_conn *conn,
				    __u32 index, struct bench_shape *shape,
				    struct bench_totals *sums)
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
	int right = view->ack == conn->seq + request_bytes(shape);
	if (shape) {
		right = right && shaped_part_is_right(ctx, index, conn->got, view->payload_bytes);
		if (right && got < config->reply_bytes)
			return take_piece(ctx, view, config, conn, index, shape, sums);
	} else {
		right = right && got == config->reply_bytes;
		if (right && conn->got == 0)
			right = reply_is_right(data, data_end, config, conn);
		else if (got < config->reply_bytes &&
			 (conn->got || begins_right(data, data_end, config)))
			return take_piece(ctx, view, config, conn, index, shape, sums);
	}
	if (!right)
		sums->mismatches++;
	conn->got = 0;
	sums->replies++;
	conn->replies++;
	conn->seq += request_bytes(shape);
	conn->ack += view->payload_bytes;
	conn->ts_echo = view->tsval_be;
	if (shape)
		choose_batch(conn, index, config, shape);
	else
		choose_key(conn, index, config);
	if (config->mode == BENCH_RUN)
		return next_request(ctx, config, conn, index, shape, sums);
	conn->parked = 1;
	return send_ack(ctx, config, conn, index, conn->seq, sums);
}

static __always_inline int generate(struct xdp_md *ctx, struct bench_shape *shape)
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
	return on_reply(ctx, &view, settings, conn, index, shape, sums);
}

SEC("xdp")
int generator(struct xdp_md *ctx)
{
	return generate(ctx, 0);
}

SEC("xdp")
int generator_shaped(struct xdp_md *ctx)
{
	__u32 owner = SHAPE_GENERATOR;
	struct bench_shape *shape = bpf_map_lookup_elem(&shapes, &owner);

	return shape ? generate(ctx, shape) : XDP_PASS;
}

/* On the server's end where nothing else is: Linux does not wake a veth for XDP_TX without one. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Run by BPF_PROG_RUN with live frames of request size, once for each connection of a range. */
static __always_inline int kick_one(struct xdp_md *ctx, struct bench_shape *shape)
{
	void *data = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct bench_config *settings = bpf_map_lookup_elem(&config, &zero);

	if (!settings)
		return XDP_DROP;
	__u32 index = settings->kick_next++;
	struct bench_conn *conn = bpf_map_lookup_elem(&conns, &index);
	__u32 *wanted = bpf_map_lookup_elem(&kicks, &index);
	struct bench_totals *sums = bpf_map_lookup_elem(&totals, &zero);
	if (!conn || !wanted || !*wanted || !sums ||
	    data + BENCH_HEADER_BYTES + BENCH_REQUEST_BYTES > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__u32 what = *wanted;
	*wanted = BENCH_KICK_NOTHING;
	if (what == BENCH_KICK_ACK)
		return send_ack(ctx, settings, conn, index, conn->seq, sums);
	conn->parked = 0;
	conn->sent_at = (__u64)(long)data;
	if (shape)
		return write_shaped(ctx, settings, conn, index, shape) ? XDP_DROP : XDP_TX;
	write_request(data, settings, conn, index);
	return XDP_TX;
}

SEC("xdp")
int kick(struct xdp_md *ctx)
{
	return kick_one(ctx, 0);
}

SEC("xdp")
int kick_shaped(struct xdp_md *ctx)
{
	__u32 owner = SHAPE_KICK;
	struct bench_shape *shape = bpf_map_lookup_elem(&shapes, &owner);

	return shape ? kick_one(ctx, shape) : XDP_DROP;
}

char _license[] SEC("license") = "GPL";
