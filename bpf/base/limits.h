/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* limits.h - every bound of the data path, with its reason. Included by C and mirrored into Rust.
 */
#pragma once

#define ERB_ABI_VERSION 27 /* raised on any change of abi.h; a daemon adopts only its own */

#define KEY_BYTES_MAX	    256 /* longer keys are rare and would need a second load and compare */
#define NAME_BYTES_MAX	    24	/* longest command or sub-command name of Redis 7 is 20 bytes */
#define COMMANDS_PER_PACKET 64	/* bounds the time one packet may hold a softirq: about 15 us */
#define KEYS_PER_PACKET	    64	/* keys and fields of all commands but GET: bounds time too */
#define HASH_FIELDS_MAX	    64	/* fields of a cached hash; with more it rarely fits a slot */
#define CONNS_MIN	    64	/* fewest places of the connection table; a boost asks for more */
#define CONNS_DEFAULT	    16384 /* places of that table: 81 MiB; more if maxclients asks for it */
#define CONNS_MAX	    1048576 /* most places: 5 GiB */
#define CLIENT_SHARE	    2	    /* one client address gets one of so many places */
#define CLIENT_COUNTS	    65536   /* counters of places by address hash; power of two */
#define UNSEEN_TIMES	    65536   /* when who found no room last sent, by hash; power of two */
#define REPLAY_BYTES	    4096    /* unacknowledged answers kept per connection; power of two */
#define AHEAD_BYTES	    65536   /* kept of one connection beyond a hole; power of two */
#define AHEAD_SLACK	    256	    /* padding behind these, for reads in whole blocks */
#define AHEAD_BUFFERS	    128	    /* connections with a hole at one time: 8 MiB; power of two */
#define AHEAD_RANGES	    8	    /* pieces of one connection beyond holes; more are rare */
#define MARKS_IN_FLIGHT	    64	    /* unanswered marks per connection; more take a fence share */
#define DEVICES_MAX	    16	    /* boosted devices: compared one by one for a new connection */
#define COMMANDS_MAX	    1024    /* rows of the command table: Redis 8 has 450, modules add */
#define KEYS_MARKED_MAX	    32	 /* keys marked per command: half a ring, so that others fit too */
#define REPLY_BYTES_MAX	    1460 /* one Ethernet MTU less the smallest IPv4 and TCP headers */
#define VALUE_BYTES_MAX	    (REPLY_BYTES_MAX - 9) /* less its framing "$1234\r\n" and "\r\n" */
#define LEASE_MS	    100 /* bound on stale answers after changes that no packet shows */
#define SAMPLE_ONE_OF	    61 /* packets for each that is timed; a prime: no turn of packets hides any */
#define LATENCY_LEAST_LOG2  6  /* nothing takes less than 64 ns */
#define LATENCY_MOST_LOG2   36 /* whatever takes more than 68 s is alike */
#define LATENCY_STEPS_LOG2  2  /* four buckets for each doubling: errors of an eighth */
#define EXPIRY_GUARD_MS	    5  /* an entry stops being answered this long before Redis's expiry */
#define UNSEEN_NS	    1000000000ULL  /* longest time of a packet between device and TCP */
#define UNSEEN_CALM_NS	    10000000000ULL /* the table must have had room for so long: L3 */
#define PURE_ACK_UP_NS	    1000000000ULL /* at least one ACK a second reaches the kernel's timers */
#define NARROW_MSS	    536		  /* what every network path must carry: RFC 9293 3.7.1 */
#define NARROW_TRIES	    2		  /* repetitions before NARROW_MSS: 1.4 s at RTO_MIN_NS */
#define FAR_BYTES	    (1U << 30)	  /* half of what sequence numbers can tell apart */
#define PAWS_WRAP_S	    2147	  /* TCP_PAWS_WRAP of Linux 6.7 and newer: 2^31 us */
#define RTO_MIN_NS	    200000000ULL  /* TCP_RTO_MIN of Linux; RFC 6298 would ask for 1 s */
#define RTO_MAX_NS	    120000000000ULL /* TCP_RTO_MAX of Linux */
#define REXMIT_TRIES_MAX    15 /* tcp_retries2: then the connection is left to the kernel's timers */
#define INTERESTS	    262144 /* what is known of keys' use, a word by key hash; power of two */
#define VAIN_MOST	    64 /* misses of a connection in a row, after which it looks seldom */
#define CREDIT_MAX	    7  /* of a key for being read between its writes: cache/interest.h */
#define CREDIT_FIRST	    1  /* of a key that was filled: not earned */
#define CREDIT_READ	    2  /* what a write gives for an entry that was answered from */
#define CREDIT_UNREAD	    2  /* and takes for one that was not */
#define CREDIT_AGAIN	    1  /* what reading the key again takes */
#define CREDIT_DOUBTED	    3  /* wanted of a key that is in doubt */
#define DOUBTED_MISSES	    4  /* until a key in doubt is filled; power of two */
#define WRITTEN_NS	    50000000ULL /* what a SET itself said is answered for so long: half a lease */
#define WRITTEN_END_NS	    20000000ULL	 /* and read from Redis in the last of it */
#define FILL_BATCH	    32		 /* keys per fill transaction */
#define TOUCH_SETS	    1024	 /* cache sets looked at per run: about 0.1 ms */
#define IPV6_WALK_MAX	    16		 /* extension headers read; a longer chain is dropped */
#define ABSENT_NS	    500000000ULL /* a socket must be gone this long before its entry goes */
#define SCAN_STEPS_MAX	    600000	 /* steps per packet: more than it can have bytes */
#define HELD_NS		    100000000ULL /* a reply is late after this: proof is asked for instead */
#define HELD_SHOWN_NS	    1000000000ULL /* status shows who holds keys for longer than this */
#define HELD_ROWS	    16		  /* of these shown per run of the sweep */
#define HELD_RING_BYTES	    (1 << 20)	  /* copies until the daemon takes them: 3,200 short ones */
#define HELD_FRAME_BYTES    2048	  /* longer frames, merged ones, would fill the ring */
#define HELD_FRAME_SHORT    240		  /* most commands: a record of 320 bytes */
#define HELD_COPY_NS	    100000000ULL /* the same bytes are copied once in this: half of RTO_MIN_NS */
#define ABSORB_AGE_NS	    20000000ULL /* what is answered waits no longer, or SETs are delayed */
#define DELAY_NS	    100000000ULL /* and no longer than this, then they go up: as a lease lasts */
#define DELAY_MARK_NS	    5000000ULL	  /* behind a command that has no reply by then */
#define STUCK_NS	    1000000000ULL /* behind such a one no SET is delayed for this long */
#define STUCK_WORDS	    64		  /* remember that, for one set of so many each */
#define BUSY_CPUS	    256	 /* whose words are looked at: more CPUs do not answer writes */
#define BUSY_LOOKS	    4096 /* at one of them until the packet is dropped: some us */
#define WALK_PLACES	    128	 /* entries per run of timer or sweep: about 0.1 ms */
#define PLACE_LINE	    64	 /* places whose bytes share a cache line; power of two */
#define LISTENERS_MAX	    64	 /* listeners told apart on the port; others are unknown */

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
