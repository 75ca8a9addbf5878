/* SPDX-License-Identifier: GPL-2.0 */
/* redis/work.h - scratch of the Redis handler, part of the splice's: HANDLER_WORK. */
#pragma once
#include "base/seam.h"
#include "cache/marks.h"
#include "redis/scan_reply.h"
#include "redis/scan_request.h"

/* The command at hand beside GET and PING: strings.h. */
struct fast_more {
	u32 kind;
	u32 at;		 /* end of what was read of it */
	u32 args;	 /* arguments behind the name */
	u32 keys;	 /* keys read */
	u32 absent;	 /* of these: absent */
	u32 reply_from;	 /* where its reply begins */
	u32 reason;	 /* first reason against it, 0 = none */
	u32 value_len;	 /* of the last key */
	u32 packet_keys; /* of all such commands of the packet */
	u64 expiry_ms;	 /* of the last key; 0: never */
	u32 sets[KEYS_PER_PACKET];
	u32 changes[KEYS_PER_PACKET]; /* cache_set.changes when the key was read */
	u32 counts[FAST_KIND_MAX];    /* whole commands of the packet, by kind */
};

/* A SET that is to be absorbed: redis/absorb.h. Offsets are of the payload. */
struct absorbed {
	u32 set;
	u32 way; /* where its entry is put, with WRITTEN_EVICTS if another's goes; WAYS: nowhere */
	u32 key_at;
	u32 key_len;
	u32 value_at;
	u32 value_len;
	u32 bytes;     /* of the slot's image in its record */
	u32 read;      /* all of this but the way is known: it can be absorbed */
	u64 expiry_ms; /* wall clock; 0: none */
};

/* Why a share of the fence is held. */
enum hold { HOLD_RING = 0, HOLD_SHARE_OLD, HOLD_SHARE_NEW };

struct handler_work {
	/* fast answer */
	u32 first;     /* enum fast_kind of the first command, read ahead by handler_peek */
	u32 first_end; /* w->pos behind it */
	u32 gets;
	u32 pings;
	u32 usual;	  /* that of handler_usual(): GET or HGETALL */
	u32 unseen;	  /* why handler_peek() did not look for its key, 0 = it did */
	u32 closed;	  /* why nothing may be answered now, 0 = allowed */
	u32 rights;	  /* control's, read behind the gate */
	u32 written_over; /* of an entry that has ended: it was what a SET said */
	u32 look_mask;	  /* control's, or what the connection may look up */
	/* up path */
	u32 shut; /* nobody may do anything without a password: M5 */
	u32 kept; /* conn.kept and db where scanning began */
	u32 db;
	u32 alone; /* it is in FAST, at a command's begin */
	u32 late;  /* the packet makes a counted command whole: S3 */
	u32 half;  /* conn.half, and where in the ring they begin */
	u32 half_at;
	u32 begins;  /* a command begins with its first byte */
	u32 by_rote; /* what a listener says: A7 */
	u32 share;   /* a share of the fence was taken for what the entry asks for: U2 */
	u32 gate;    /* the gate was shut for the packet */
	u32 hold;    /* enum hold */
	struct written written;
	struct absorbed absorbed;
	struct lookup look;
	struct scan_request scan;
	struct scan_found found;
	struct fast_more more;
};

#define USUAL_REPLY_BYTES 2048 /* of a reply that the express lane takes whole; a power of two */

/* What becomes of a connection's OVERFLOW share with a packet from Redis. */
enum overflow { OVERFLOW_STAYS = 0, OVERFLOW_DONE, OVERFLOW_TO_PROOF };

struct handler_out {
	struct reply_found found;
	u32 whole;    /* the packet is one whole reply: the scanner's state stays as it is */
	u32 released; /* marks to release, in marks[] */
	u32 overflow; /* enum overflow */
	u32 hidden;   /* that of the share given back */
	u32 rights;   /* control's, read before open */
	u32 open;     /* without a password everything may be done */
	u32 shut;     /* nothing may */
	u32 gate;     /* Redis refused what access rules as we know them allow */
	u32 said_ok;  /* the packet is "+OK\r\n" */
	u32 ok;	      /* number of the SET whose value is shown, 0: none */
	u32 auth_at;  /* the entry's */
	struct mark marks[MARKS_IN_FLIGHT];
	struct scan_reply scan;
	u32 left; /* elements of the aggregate in usual[] still to come */
	u8 usual[USUAL_REPLY_BYTES + SCAN_WORD] __attribute__((aligned(8)));
};
