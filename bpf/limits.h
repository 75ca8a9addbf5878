/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* limits.h - every bound of the data path, with its reason. Included by C and mirrored into Rust.
 */
#pragma once

#define ERB_ABI_VERSION 11 /* raised on any change of abi.h; a daemon adopts only its own */

#define KEY_BYTES_MAX	    256 /* longer keys are rare and would need a second load and compare */
#define NAME_BYTES_MAX	    24	/* longest command or sub-command name of Redis 7 is 20 bytes */
#define COMMANDS_PER_PACKET 64	/* bounds the time one packet may hold a softirq: about 15 us */
#define KEYS_PER_PACKET	    64	/* keys and fields of commands other than GET: bounds time too */
#define HASH_FIELDS_MAX	    64	/* of a cached hash; more of them have 1.4 KB as a rule */
#define CONNS_MIN	    64	/* places in the table of connections; the boost says how many */
#define CONNS_DEFAULT	    16384   /* 80 MiB; more where Redis's maxclients asks for it */
#define CONNS_MAX	    1048576 /* 5 GiB */
#define CLIENT_SHARE	    2	    /* one client address has one place in so many at most */
#define CLIENT_COUNTS	    65536 /* counts of places by address; power of two; two may share one */
#define UNSEEN_TIMES	    65536 /* times by connection; power of two; two may share one */
#define REPLAY_BYTES	    4096 /* unacknowledged fast-path bytes kept per connection; power of two */
#define AHEAD_BYTES	    65536 /* kept of one connection beyond a hole: a window; power of two */
#define AHEAD_SLACK	    256	  /* behind it, for reads that are longer than what is asked for */
#define AHEAD_BUFFERS	    128	  /* connections with a hole at one time; power of two: 8 MiB */
#define AHEAD_RANGES	    8	  /* holes of one connection: more are seldom within a window */
#define MARKS_IN_FLIGHT	    64	  /* unanswered marks per connection; what does not fit is fenced */
#define DEVICES_MAX	    16	 /* boosted at once: compared one by one when a connection begins */
#define COMMANDS_MAX	    1024 /* rows: Redis 8 has 450 with sub-commands, modules some hundred */
#define KEYS_MARKED_MAX	    32 /* of one command: half of them, that others find room; else fence */
#define REPLY_BYTES_MAX	    1460 /* one Ethernet MTU less the smallest IPv4 and TCP headers */
#define VALUE_BYTES_MAX	    (REPLY_BYTES_MAX - 9) /* "$1234\r\n" and "\r\n" around it */
#define LEASE_MS	    100 /* bound on stale answers after changes that no packet shows */
#define EXPIRY_GUARD_MS	    5	/* an entry stops being answered this long before Redis's expiry */
#define UNSEEN_NS	    1000000000ULL  /* a packet takes less from the device to TCP */
#define UNSEEN_CALM_NS	    10000000000ULL /* so long the table must have had room: L3 */
#define PURE_ACK_UP_NS	    1000000000ULL /* at least one ACK a second reaches the kernel's timers */
#define NARROW_MSS	    536		  /* RFC 9293 3.7.1, what every way must carry */
#define NARROW_TRIES	    2		  /* 1.4 s without an acknowledgement at RTO_MIN_NS */
#define FAR_BYTES	    (1U << 30)	  /* half of what sequence numbers can tell apart */
#define PAWS_WRAP_S	    2147	  /* TCP_PAWS_WRAP of Linux 6.7 and newer: 2^31 us */
#define RTO_MIN_NS	    200000000ULL  /* TCP_RTO_MIN of Linux; RFC 6298 would ask for 1 s */
#define RTO_MAX_NS	    120000000000ULL /* TCP_RTO_MAX of Linux */
#define REXMIT_TRIES_MAX    15 /* tcp_retries2: then the connection is left to the kernel's timers */
#define MISS_COUNTS	    65536 /* bytes; power of two; saturating miss counts by key hash */
#define MISS_FILL_AT	    2	  /* a key is filled when it is missed more than once */
#define FILL_BATCH	    32	  /* keys per fill transaction */
#define TOUCH_SETS	    1024  /* cache sets looked at per run: bounds it to about 0.1 ms */
#define IPV6_WALK_MAX	    16	  /* extension headers; a chain that is longer is dropped */
#define ABSENT_NS	    500000000ULL /* a socket must be gone this long before its entry goes */
#define SCAN_STEPS_MAX	    600000	 /* per packet: more than its bytes, at most GSO_MAX_SIZE */
#define HELD_NS		    100000000ULL /* then a reply is late, and proof is asked for instead */
#define HELD_SHOWN_NS	    1000000000ULL /* then status shows who holds it */
#define HELD_ROWS	    16		  /* of these, per run of the sweep; nobody reads more */
#define WALK_PLACES	    128 /* entries per run of timer or sweep: bounds it to about 0.1 ms */
#define PLACE_LINE	    64	/* places whose bytes lie side by side; power of two: a line */
#define LISTENERS_MAX	    64	/* listeners on the port; of more it is not known whose they are */

/* Cache set: 16 ways in four size classes. 8/5/2/1 gives half of the ways to entries of up to
 * 116 bytes (the common small value) and still keeps replies of one MTU. */
#define WAYS	     16
#define CLASSES	     4
#define CLASS0_BYTES 128
#define CLASS1_BYTES 256
#define CLASS2_BYTES 512
#define CLASS3_BYTES 2048
#define CLASS0_WAYS  8
#define CLASS1_WAYS  5
#define CLASS2_WAYS  2
#define CLASS3_WAYS  1
#define SMALL_BYTES  (CLASS0_BYTES * CLASS0_WAYS)
#define LARGE_BYTES                                                                                \
	(CLASS1_BYTES * CLASS1_WAYS + CLASS2_BYTES * CLASS2_WAYS + CLASS3_BYTES * CLASS3_WAYS)
#define CLOCK_LAG_MS 10 /* the coarse clock lags by up to a jiffy; HZ is 100 or more */
