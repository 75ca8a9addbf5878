/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* trace.h - what `erb trace` and its programs share, mirrored into Rust like abi.h. Both are of one
 * build and leave together, so it is no part of the layout by which programs replace each other. */
#pragma once
#include "base/abi.h"

#define TRACE_RING_BYTES    (4 << 20) /* about 20,000 events: user space empties it each 10 ms */
#define TRACE_REASONS_MAX   16	      /* of one packet; a merged one may count more */
#define TRACE_PAYLOAD_BYTES 320	      /* sent with an event: name and first key of a command */
#define TRACE_SEARCH_BYTES  2048      /* of a payload; power of two, more than one MTU */
#define TRACE_LEASE_MS	    2000      /* a reader of the trace may stand still this long */
#define TRACE_WORD_BYTES    272 /* a key as an argument is on the wire: "$256\r\n", key, "\r\n" */

enum trace_stage { TRACE_XDP = 0, TRACE_INGRESS, TRACE_EGRESS, TRACE_TIMER, TRACE_STAGE_MAX };

/* Set before the programs are loaded: the verifier takes them for constants. */
struct trace_options {
	__u8 client_addr[16]; /* as in struct conn_key */
	__u16 client_port_be; /* 0: any */
	__u8 by_client;	      /* 1: only packets of client_addr */
	__u8 pad;
	__u32 word_len;		     /* bytes of word; 0: packets are not chosen by what they say */
	__u8 word[TRACE_WORD_BYTES]; /* zero padded */
};

/* Written by the one who traces, over and over: nobody is traced for one who is gone. */
struct trace_lease {
	__u64 until_ns; /* CLOCK_MONOTONIC */
};

struct trace_reason {
	__u16 stat;  /* enum erb_stat */
	__u16 count; /* by how much it moved; 65535: that or more */
};

/* One packet that met one program. The first bytes of its payload follow. */
struct trace_event {
	__u64 time_ns; /* CLOCK_MONOTONIC, when the program began */
	struct conn_key key;
	__u32 cpu;
	__u32 ifindex;
	__u32 seq; /* as it came */
	__u32 ack;
	__u32 payload_len;
	__u32 held;	 /* bytes of the payload that follow */
	__u32 seq_after; /* as it went on, valid with TRACE_F_READ_AFTER */
	__u32 ack_after;
	__u32 reply_len; /* payload of what was sent in its place, valid with TRACE_F_REPLY */
	__s32 action;	 /* what the program returned */
	__u16 flags;	 /* TCP_* of packet.h */
	__u8 stage;	 /* enum trace_stage */
	__u8 bits;	 /* TRACE_F_* */
	__u8 pad[3];
	__u8 reasons_len;
	struct trace_reason reasons[TRACE_REASONS_MAX];
	__u32 reasons_more; /* how many did not fit */
	__u32 pad1;
};
#define TRACE_F_TRANSLATED 0x01 /* XDP marked it as done: TC leaves it alone */
#define TRACE_F_READ_AFTER 0x02 /* its header was read again behind the program */
#define TRACE_F_CHANGED	   0x04 /* and is another */
#define TRACE_F_REPLY	   0x08 /* the frame became the answer */

/* What was not shown, and why. */
enum trace_miss {
	TRACE_LOST = 0,	  /* the ring was full */
	TRACE_UNSEARCHED, /* not all of the payload could be searched, and what was has no match */
	TRACE_MISS_MAX
};
