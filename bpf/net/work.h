/* SPDX-License-Identifier: GPL-2.0 */
/* work.h - per-CPU scratch of one program: the packet at hand and what is made of it. Each program
 * that can run inside another (egress under a clone of the TC tier) has a map of its own. */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"
#include "net/packet.h"
#include "net/sock.h"
#include HANDLER_WORK

#define PAYLOAD_SHORT 64   /* a GET of a 40-byte key */
#define PAYLOAD_BYTES 2048 /* copy of a request packet; power of two above REPLY_BYTES_MAX */

struct work {
	struct pkt p;
	struct sock_view view;
	u64 now; /* ns, CLOCK_MONOTONIC */
	/* splice/latency.h */
	u64 arrived_ns;	 /* of a sampled packet, exact */
	u64 held_ns;	 /* since when what goes up now was held; 0: it was not */
	u32 sample_left; /* packets until the next sample; SAMPLE_ONE_OF: the one at hand is it */
	/* fast answer */
	u32 pos;
	u32 loaded; /* bytes of payload copied so far */
	u32 reply_len;
	u32 commands; /* whole requests that the handler knows an answer to, or why there is none */
	u32 whole;    /* the payload is nothing but them */
	u32 unlikely; /* the last request, perhaps of the packet before, was not answered */
	u32 refusal;  /* first reason against answering, 0 = none */
	/* splice/absorb.h: why a packet was not absorbed, and which; 0: none */
	u32 unabsorbed;
	u32 unabsorbed_seq;
	u32 laned;   /* enum laned: splice/lane.h */
	u32 delayed; /* enum wait_for of the copy at hand, 0 but for one that is delayed */
	/* up path */
	u32 scan_from; /* client space */
	u32 scan_next;
	u32 scan_pos; /* offset in what is scanned */
	u32 scan_seq; /* client space: where that begins */
	u32 scan_len;
	u32 requests;  /* whole ones that the handler found */
	u32 in_at;     /* enum stream_at behind them */
	u32 scan_lost; /* the stream cannot be read any more */
	u32 asks;      /* enum asks: splice/order.h */
	u32 held;      /* it is not to go up yet */
	u32 end;      /* client space: end of what the packet makes complete, kept bytes included */
	u32 listener; /* enum erb_listener of who takes connections to the packet's destination */
	u32 by_cookie; /* the packet ends a handshake by SYN cookie */
	/* segment to send */
	u32 out_seq;
	u32 out_ack;
	u32 out_window;
	u32 out_tsval;
	u32 out_tsecr;
	u32 way[3]; /* its Ethernet addresses, as they leave */
	/* translation, copied under the connection's lock */
	u32 in_delta;
	u32 out_delta;
	u32 edge;
	u32 translate;
	u32 call; /* place to be put on a list: place.h */
	u32 bare; /* the checksum field is the bare pseudo-header sum and stays so */
	u32 snd_wscale;
	u32 acked; /* the packet's acknowledgement was taken into account */
	u32 moved; /* the boosted device by which the packet came, if it is not the entry's */
	u32 tag;   /* TC: the VLAN tag that the kernel has taken off, as on the wire; 0 = none */
	/* TC: payload beside a buffer of erb_ahead, see ahead.h. All in client space. */
	u64 cookie;
	u32 ring;	/* number of the buffer; 0: none */
	u32 ring_floor; /* TCP has what lies before */
	u32 ring_from;	/* of the packet */
	u32 ring_end;
	u32 ring_first; /* from where on the buffer holds it without a hole */
	u32 ring_pos;
	u32 ring_piece;
	u32 ring_count;
	u32 ring_touch;
	u32 ring_other;	 /* some bytes were others before */
	u32 proof_ahead; /* bytes behind the packet that may have passed unseen */
	u8 head[256] __attribute__((aligned(8)));
	u8 old_tcp[64] __attribute__((aligned(8)));
	struct chunk chunk;
	u8 payload[PAYLOAD_BYTES + 64] __attribute__((aligned(8)));
	u8 out[128]
	    __attribute__((aligned(8))); /* headers, ending where the reply begins: one copy */
	u8 reply[2 * PAYLOAD_BYTES + 64] __attribute__((aligned(8)));
	struct handler_work h;
};

_Static_assert(__builtin_offsetof(struct work, reply) ==
		   __builtin_offsetof(struct work, out) + sizeof(((struct work *)0)->out),
	       "headers and reply are one piece");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} work_map SEC(".maps");

INLINE struct work *work_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&work_map, &zero);
}
