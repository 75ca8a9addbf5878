/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* bench.h - what the bench's BPF programs share with user space; the Rust mirror is generated. */
#pragma once

/* Ethernet 14 + IPv4 20 + TCP 20 + timestamps 12: the only header these programs write. */
#define BENCH_HEADER_BYTES	66
/* "*2\r\n$3\r\nGET\r\n$16\r\n" + key + "\r\n" */
#define BENCH_REQUEST_BYTES	36
/* Where the eight digits that differ between keys begin, in the request and in the key. */
#define BENCH_REQUEST_DIGITS_AT 26
#define BENCH_KEY_BYTES		16
#define BENCH_KEY_DIGITS_AT	8
/* Eight digits; more keys than that would not fit the memory of such machines either. */
#define BENCH_KEYS_MAX		100000000
/* Requests in flight at a time. A veth queue holds 256 packets; with more than this, one burst of
 * requests together with the window updates of the other side would overflow it and lose packets. */
#define BENCH_LANES_MAX		240
/* The generator has one address, so many ports of it, and a connection for each. */
#define BENCH_CONNS_MAX		60000
/* Keys drawn beforehand, which requests draw from: a power of two. */
#define BENCH_DRAWN		(1 << 18)
#define BENCH_VALUE_BYTES_MAX	1400
/* One MTU of 1500 less the headers: neither requests nor replies come in two packets. */
#define BENCH_REPLY_BYTES_MAX	1448
/* As many 16-byte keys as a request of one MTU holds. */
#define BENCH_BATCH_MAX		62
/* Keys in a reply: the fields of a hash that ERB caches, each value begins with the key. */
#define BENCH_PLACES_MAX	64
/* Local ports of the generator's connections are this + index; its namespace has no others. */
#define BENCH_PORT_BASE		5000

enum bench_mode {
	BENCH_LEARN = 0, /* packets pass to the sockets; sequence numbers are read off */
	BENCH_RUN = 1,	 /* each reply becomes the next request */
	BENCH_PAUSE = 2, /* each reply is only acknowledged */
};

/* Which key the next request is for. */
enum bench_draw {
	BENCH_DRAW_UNIFORM = 0,
	BENCH_DRAW_TABLE = 1,  /* one of the map `drawn`, at random */
	BENCH_DRAW_UNIQUE = 2, /* one that no request was for yet, until all were */
};

/* What a kick sends on a connection. */
enum bench_kick {
	BENCH_KICK_NOTHING = 0,
	BENCH_KICK_REQUEST = 1, /* its request, also if it is outstanding */
	BENCH_KICK_ACK = 2,	/* an acknowledgement of all that came */
};

/* A packet without what changes: ports' client half, numbers, timestamps, key are zero in it. */
struct bench_template {
	__u64 words[8]; /* header bytes 0..63 */
	__u32 sum;	/* one's complement sum of pseudo header, TCP header and constant payload */
	__u16 tail;	/* header bytes 64, 65 */
	__u16 pad;
};

struct bench_config {
	struct bench_template request;
	struct bench_template ack;
	__u64 request_words[4]; /* request bytes 0..31 */
	__u32 request_tail;	/* request bytes 32..35 */
	__u32 mode;		/* enum bench_mode */
	__u64 prefix;		/* "$100\r\n" as loaded by the program, and its mask */
	__u64 prefix_mask;
	__u64 key_head; /* first eight bytes of every key */
	__u32 prefix_bytes;
	__u32 reply_bytes;
	__u32 keys;
	__u32 conns;
	__u16 server_port_be;
	__u16 check_key; /* 0 if all replies are the same (bare responder) */
	__u32 kick_next; /* connection that the next packet of the kick is for; the kick counts */
	__u32 draw;	 /* enum bench_draw */
	__u32 pad;
};

/* One connection of the generator. Written by user space before the attach, then by the client's
 * NAPI thread; a kick only clears `parked`, and sets `sent_at`. */
struct bench_conn {
	__u32 seq;	 /* first byte of the outstanding or next request, host order */
	__u32 ack;	 /* next byte expected from the server, host order */
	__u32 ts_offset; /* our TSval - coarse monotonic clock in ms */
	__u32 ts_echo;	 /* the server's last TSval, network order */
	__u64 digits;	 /* last eight digits of the outstanding request's key, as in the packet */
	__u64 replies;
	__u32 random; /* xorshift32; never 0 */
	__u32 learned;
	__u32 parked;  /* 1: nothing outstanding */
	__u32 got;     /* bytes of the outstanding reply that have come already */
	__u64 sent_at; /* where the last request's frame began, see give_back() */
	__u64 came_at; /* where the last reply's frame began */
};

/* Sums over all connections. */
struct bench_totals {
	__u64 replies;
	__u64 mismatches; /* replies that are not what the server must say */
	__u64 repeated;	  /* payload out of order: retransmissions of the server */
	__u64 pieces;	  /* parts of replies that came in several packets (retransmissions) */
	__u64 odd;	  /* packets with headers the generator does not read */
	__u64 no_room;	  /* the frame could not be resized */
};

/* What the loops send and expect where it is not GET's fixed request; digits are zero in it. Each
 * program that writes digits into one has its own copy. */
struct bench_shape {
	__u64 request[(BENCH_REPLY_BYTES_MAX + 7) / 8];
	__u64 reply[(BENCH_REPLY_BYTES_MAX + 7) / 8];
	__u32 request_bytes;
	__u32 batch;	       /* keys per request */
	__u32 digits_at;       /* of the first key, in the request */
	__u32 digits_step;     /* from there to the next key's */
	__u32 reply_digits_at; /* the same of the reply */
	__u32 reply_digits_step;
	__u32 reply_places; /* keys in the reply: each of the batch once, or the only one often */
	__u32 pad;
};

/* The last eight digits of the keys of a connection's outstanding request. */
struct bench_batch {
	__u64 digits[BENCH_BATCH_MAX];
};

struct bench_echo_config {
	struct bench_template reply;
	__u64 payload[(BENCH_REPLY_BYTES_MAX + 7) / 8];
	__u32 reply_bytes;
	__u32 enabled;
	__u16 server_port_be;
	__u16 pad[3];
};

_Static_assert(sizeof(struct bench_conn) == 64, "one cache line per connection");
