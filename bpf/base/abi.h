/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* abi.h - everything shared between the data path and user space, declared once.
 *
 * The Rust mirror (crates/product/abi) is generated from this file; the loader compares each map's value
 * size with the mirror's. Names carry unit and byte order: _be is network order, everything else
 * host order. Sequence numbers are 32-bit and wrap; "client space" is what the client's TCP counts,
 * "kernel space" what the server's kernel counts (splice.h). */
#pragma once
#include "base/limits.h"

#ifndef HANDLER_ABI
#error "each object names the ABI of the handler that it is compiled with: HANDLER_ABI"
#endif

#define REASON(name, kind, text) STAT_##name,
enum erb_stat {
#include "base/reasons.def"
	STAT_MAX
};
#undef REASON

#define LATENCY(NAME, name, text) LATENCY_##NAME,
enum latency_path {
#include "base/latency.def"
	LATENCY_MAX
};
#undef LATENCY

enum erb_conn_state { CONN_NEW = 0, CONN_FAST, CONN_BYPASS, CONN_OLD, CONN_STATE_MAX };

/* Flags of a connection; set under its lock, never cleared except FENCE_PROOF, OVERFLOW, AHEAD
 * and EGRESS_SEEN, and by an admission SCAN_LOST and UNCOUNTABLE. */
#define CONN_F_CLOSING	   0x01 /* FIN or RST seen by either half: never answers again */
#define CONN_F_SCAN_LOST   0x02 /* request stream cannot be parsed any more */
#define CONN_F_UNCOUNTABLE 0x04 /* replies cannot be counted any more */
#define CONN_F_EGRESS_SEEN 0x08 /* the kernel's last packet left by ifindex, as link says: T9 */
#define CONN_F_FENCE_PROOF                                                                         \
	0x10		     /* holds one share of the global fence until proof up to proof_pos */
#define CONN_F_OVERFLOW 0x20 /* holds one share of the global fence until nothing is unanswered */
#define CONN_F_HANDLER	0x30 /* both: what the handler holds of a former owner of the entry */
#define CONN_F_AHEAD	0x40 /* it has a buffer of erb_ahead: see ahead.h */
#define CONN_F_RESET	0x80 /* egress saw RST leave */

/* What the kernel sends, to line A. No bit field: the kernel takes no struct with one beside a lock. */
#define SPOKE_SINCE 0x01 /* it sent something since an ACK last went up */
#define SPOKE_TIMED 0x02 /* a reply of it is waited for: conn.timed_ns */
#define ABSORBING   0x04 /* beside these: a write was consumed and has no LSN yet: splice/absorb.h */
#define ABSORBED    0x08 /* writes of it were answered since it last asked who has them: order.h, Y8 */
#define WAITS_SYNC  0x10 /* nothing of it goes up before waits_for is synced, by asking waits_sync */
#define ABSORBS_NOT 0x20 /* it asks who has its writes: the server is to know of all further ones */

/* What a connection that has shown no password may do. */
enum door {
	DOOR_UNKNOWN = 0, /* something, or not known (yet) */
	DOOR_OPEN,	  /* everything */
	DOOR_SHUT,	  /* nothing: Redis answers it errors only, but to RESET and QUIT */
};

/* What goes on no more: control.stopping. Each has all that stand before it. */
enum stopping {
	STOPPING_NOT = 0,
	STOPPING_ANSWERS,    /* answers, fills and new entries: a detach is under way */
	STOPPING_CLOSING,    /* the same, as the cache is being closed: splice/closed.h */
	STOPPING_UNREAD,     /* it is: what needs no translation passes unread */
	STOPPING_ALL_UNREAD, /* and nothing needs any */
};

/* Whose a listening socket on the port is: value of erb_listeners; none: not known (yet). */
enum erb_listener {
	LISTENER_UNKNOWN = 0, /* connections are tracked, but never believed to be new */
	LISTENER_REDIS,	      /* of the process that the feed speaks to */
	LISTENER_FOREIGN,     /* another server's: its packets are not our business */
};

struct conn_key {
	__u8 client_addr[16]; /* IPv4 as ::ffff:a.b.c.d */
	__u8 server_addr[16];
	__u16 client_port_be;
	__u16 server_port_be;
	__u32 pad;
};

/* What the key hash is keyed with: key_hash.h. */
#define HASH_WORDS (KEY_BYTES_MAX / 8)
struct hash_secret {
	__u64 begin;
	__u64 odd; /* used as such whatever it is */
	__u64 words[HASH_WORDS];
};

/* What orders the writes that were answered in Redis's place, over all CPUs: redis/log.h. The first line is
 * the daemon's, the second the data path's, which every absorbed write moves. */
struct log_order {
	__u64 drained; /* records up to this LSN are in Redis, and its reply was handled */
	__u64 synced; /* and these were where WAIT would count them: on all replicas of that time */
	__u64 fresh_ns; /* CLOCK_MONOTONIC; what was answered until then is in Redis */
	__u32 absorb;	/* 1: writes may be answered: splice/absorb.h */
	__u32 watch;	/* words of erb_busy to be looked at; 0: nobody answers writes */
	__u32 refused;	/* 1: Redis has refused a drain for long: what may cure it is not held */
	/* Numbers of askings where all is that was drained when each began: the last that began, and that was answered. */
	__u32 sync_begun;
	__u32 sync_done;
	__u32 pad1;
	__u64 pad2[2];
	__u64 lsn; /* the last one given */
	__u64 pad3[7];
};

/* What a CPU that answers a write does: splice/busy.h. */
#define BUSY_SET 0xffffffffU /* 1 + the set's index, 0: none; a count above */
struct busy_line {
	__u64 word; /* its CPU's; on a line of its own */
	__u64 pad[7];
};

/* One per ERB: what the daemon tells the data path and what the data path tells the daemon.
 * The first part is written by the daemon only, the second by the data path only (atomics). */
struct control {
	__u32 abi_version;
	__u16 port_be; /* Redis's port, network order */
	/* A read looks into a cache set only if (set ^ look_at) & look_mask is 0: all sets, or the one of
	 * so many that shows what looking into all would bring. The others are kept true all the same. */
	__u8 look_mask;
	__u8 look_at;
	__u32 serving;	/* 1: fast answers allowed; 0: daemon has a reason, see its status */
	__u32 stopping; /* enum stopping; 0: nothing is */
	__u16
	    admit; /* 1: new connections may be tracked from their first byte; else they are OLD */
	__u16
	    one_line; /* 1: an error or a status is one line, whatever it repeats: ORDER_REPEATS */
	__u32 fills;  /* 1: misses are counted and reported, fills are inserted */
	__u64 lease_until_ns;	  /* CLOCK_MONOTONIC; hits need now < lease_until_ns */
	__s64 wall_minus_mono_ns; /* CLOCK_REALTIME - CLOCK_MONOTONIC, for expiry */
	__u64 heartbeat_up_ns;	  /* each connection sends a command up this often; 0 = never */
	__u64 gate_ack;		  /* value of gate_seen up to which Redis's state was read again */
	__u64 set_mask;		  /* number of cache sets - 1 */
	__u32 fast_off; /* bit 1 << FAST_KIND_x: this Redis has the command not as we know it */
	__u32 unknown_class; /* of names that erb_commands lacks: CMD_FENCE, or CMD_MONITOR */
	__u32 rights;	     /* moves when access rules change: FAST needs conn.rights to be this */
	__u32 open;	     /* enum door: what a new connection may do without a password */
	struct hash_secret hash;    /* its first words share a line with what is above */
	__u32 devices[DEVICES_MAX]; /* indexes of the boosted ones, 0: none */
	__u64 settle_to;	    /* erb_settle: in */
	__u32 conns_max;	    /* places in erb_conns; written once, by the loader */
	__u32 client_conns_max;	    /* those that one client address may have */
	__u32 miss_fill_at;	    /* misses of a key until it is reported: 1, 2 or 4 */
	__u32 miss_one_of; /* not 0: one of so many misses is reported, and none is counted */
	__u16 fill_mask;   /* as look_mask, for keys that are read again when they were written */
	__u8 absent;	   /* 1: absences are answered: Redis tells nobody of such reads */
	__u8
	    write_through; /* 1: what a SET says is believed once Redis has said OK: cache/marks.h */
	__u32 vain_mask;   /* as look_mask, for a connection that has missed again and again */
	/* written by the data path */
	__u64 fence;	      /* commands with unknown keys on their way; fast answers need 0 */
	__u64 global_version; /* moves when the fence opens or closes and at every clear */
	__u64 fence_answered; /* shares of it, ever, that wait or waited for erb_settle */
	__u64 fence_settled;  /* of these: given back */
	__u64 gate_seen;      /* CMD_GATE commands seen; fast answers need gate_seen == gate_ack */
	__u32 cache_epoch;    /* entries of another epoch are absent */
	/* Written by the daemon; here, as no program asks for it. 1: no operator has closed the cache: stopping */
	__u32 closed_by_itself;
	__u64 no_room_ns; /* when a connection last found no room in erb_conns; 0: never */
	/* written by the daemon; here, as one packet of SAMPLE_ONE_OF asks for them */
	__u32 sampling; /* 1: what such a packet took is counted: splice/latency.h */
	__u32 heat;	/* 1: and its key is reported: redis/heat.h */
	/* a line of its own: each connection moves it. Places taken and given back, ever: place.h */
	__u64 places_taken;
	__u64 places_given;
	__u64 pad4[6];
	struct log_order order; /* both its lines are lines of their own */
	/* Since when SETs of such sets are not delayed behind a mark, in 2^20 ns; 0: they are. By set % STUCK_WORDS. */
	__u32 stuck_at[STUCK_WORDS];
};

/* What a slot's value is; of the first two, what a miss asks for. */
enum slot_type {
	SLOT_STRING = 0,
	SLOT_HASH,
	SLOT_ABSENT, /* there is no such key; no value, no expiry */
};

/* One size class slot: header, then the value, then the key at the next byte. */
struct slot {
	__u32 cache_epoch;
	__u16 value_len; /* bytes; the key follows, zero padded to a multiple of 8 */
	__u16
	    key_len; /* with SLOT_AWAITED: of a SET that Redis has not answered; nobody finds it */
	__u8 flags;  /* SLOT_F_* */
	__u8 type;   /* enum slot_type */
	__u16 db;    /* set index and tag do not depend on it: what removes a key does so in all */
	__u8 data[];
};
#define SLOT_F_EXPIRES	  0x01 /* the last 8 bytes of the slot are the expiry, wall clock, ms */
#define SLOT_F_WRITTEN	  0x02 /* the last 16 bytes of the slot are struct written_end */
#define SLOT_AWAITED	  0x8000
#define SLOT_HEADER_BYTES 12

/* How long what a SET said is answered: cache/marks.h. */
struct written_end {
	__u64 global_version; /* while it is this */
	__u64 until_ns;	      /* and until then, CLOCK_MONOTONIC */
};

struct erb_spin_lock {
	__u32 val;
};

#ifndef ERB_LOCK
#define ERB_LOCK struct erb_spin_lock
#endif

/* A set's header and its small slots, side by side: most hits touch one page. */
struct cache_set {
	ERB_LOCK lock;
	__u32 marks;	  /* write marks standing: no hit, no fill */
	__u64 version;	  /* moves with every mark taken or released and every invalidation */
	__u16 tags[WAYS]; /* 0: way free */
	__u16 visited;	  /* SIEVE bits, one per way */
	__u16 touched;	  /* the same bits, taken each second where Redis evicts by use */
	__u8 hands[CLASSES];
	__u32 changes;		 /* odd while the set is being changed: readers take no lock */
	__u32 lsn;		 /* lower half of the last absorbed write's: cache/drained.h */
	__u8 slots[SMALL_BYTES]; /* class 0 */
};

/* What a miss reads in place of its set: 16 bytes of an array that stays near the processor, where
 * the set's lines are far away and cold. A byte of each way's tag; what a way held last. */
struct cache_digest {
	__u8 tags[WAYS];
};

/* The same set's larger slots, classes 1 to 3; guarded by the header's lock. */
struct cache_large {
	__u8 slots[LARGE_BYTES];
};

struct mark {
	__u32
	    request; /* released when this many replies have left; of a conn.half: the key's tag */
	__u32 set;   /* set index, MARK_* in the upper bits, or EFFECT_* */
};
#define MARK_SET       0x07ffffffU
#define MARK_WAY_AT    27	   /* MARK_WRITTEN: the way with what its SET says */
#define MARK_WRITTEN   0x80000000U /* of a SET whose value awaits its reply: cache/marks.h */
/* skb->mark of the daemon's own connection where that passes a boosted device (lo). Its PINGs and
 * reads prove what Redis says now: nobody else may answer them. */
#define SKB_MARK_FEED  0x45524246
#define EFFECT_FENCE   0xffffffffU /* a share of the fence; the cache is emptied when it goes */
#define EFFECT_SETTLE  0xfffffffeU /* a share of the fence; settled when its reply begins to leave */
#define EFFECT_EXEC    0xfffffffdU	     /* the same, when its reply has left whole */
#define COOKIE_UNKNOWN 0xffffffffffffffffULL /* OLD entry made before its socket had a cookie */
/* Whether an entry's socket is there. */
enum absence {
	ABSENT_NOT = 0,
	ABSENT_SINCE, /* not found since conn.absent_at */
	ABSENT_LONG,  /* none, and will not come back: the entry goes */
};

#include HANDLER_ABI

/* Of a socket: what does not change behind its handshake. */
struct sock_fixed {
	__u32 tsoffset;
	__u8 snd_wscale;
	__u8 rcv_wscale;
	__u8 tstamp_ok;
	__u8 usec_ts;
};

/* Where the end of what was scanned of a stream is. */
enum stream_at {
	STREAM_BETWEEN = 0, /* no request or reply has begun that is not whole */
	STREAM_WITHIN,
};

/* How often a connection's reads have missed in a row, and since which answer: conn.vain. */
enum vain {
	VAIN_MISSES = 0x7f,  /* up to VAIN_MOST */
	VAIN_SINCE = 0xff80, /* of a hash of in_delta: an answer moves it */
};

/* A tracked connection: the splice's part, and in it the handler's. Who writes what: see splice.h, which also asserts the lines. Cold cache
 * lines decide what a packet costs: what every request and every reply needs fills three of them.
 */
struct conn {
	/* line A */
	ERB_LOCK lock;
	__u8 state; /* enum erb_conn_state */
	__u8 flags;
	__u8 family; /* 4 or 6 */
	__u8 spoke;  /* SPOKE_* */
	__u64
	    cookie; /* socket the entry belongs to; 0: being made; COOKIE_UNKNOWN: not known yet */
	__u64 tcp_sock;	 /* where the kernel keeps that socket, 0 = not known; see sock_known() */
	__u32 next;	 /* client space: end of the bytes scanned */
	__u32 up_max;	 /* client space: highest byte passed up or consumed */
	__u32 in_delta;	 /* request bytes consumed */
	__u32 out_delta; /* reply bytes inserted */
	/* line B */
	__u32 edge;	   /* kernel space: write_seq at the last edit of out_delta */
	__u32 in_edge;	   /* client space: end of the last consumed bytes */
	__u32 ack_max;	   /* client space: highest acknowledgement of the client */
	__u32 ts_recent;   /* client's newest timestamp, RFC 7323; valid once spliced */
	__u32 requests;	   /* complete requests that went up */
	__u32 replies;	   /* complete replies that left (egress) */
	__u32 egress_max;  /* kernel space: highest byte that left (egress) */
	__u32 last_tsval;  /* highest TSval sent to the client */
	__u32 scan_next;   /* kernel space: end of the reply bytes scanned */
	__u32 ifindex;	   /* boosted device by which the client's packets come; link is of it */
	__u32 replay_from; /* client space: first byte kept in replay */
	__u16 flight_max;  /* bound on unacknowledged fast bytes; halves per loss */
	__u16 vain;	   /* the handler's: enum vain */
	__u64 sent_ns;	   /* when the oldest unacknowledged fast byte was last sent; 0 = none */
	__u64 ack_up_ns;   /* when an ACK last went up */
	/* line C */
	__u64 request_up_ns; /* when a request last went up */
	__u8 link[12]; /* Ethernet addresses of the kernel's last packet by ifindex, as it left */
	__u8 dup_acks;
	__u8 tries;
	__u8 in_at;  /* enum stream_at: where next is */
	__u8 out_at; /* enum stream_at: where scan_next is */
	struct handler_conn h;
	/* fast answers */
	struct sock_fixed fixed; /* of tcp_sock */
	__u32 recover;		 /* client space: end of the flight when a loss was found */
	__u32 ahead_end;	 /* client space: end of what is in its buffer */
	__u32 rtt_us;		 /* smoothed, 0 = unknown */
	__u32 rttvar_us;
	__u32 replay_base; /* client space: the byte at replay[0] */
	__u16 mss_limit;   /* by Packet Too Big, or NARROW_MSS; 0 = none */
	__u8 called;	   /* 1 << PLACES_*: lists that its place is on, but for PLACES_USED */
	__u8 ahead_busy;   /* a CPU is at its buffer: see ahead.h */
	__u32 tag;	   /* VLAN tag of the last consumed packet, as on the wire; 0 = none */
	__u32 strayed; /* source of the client's last packet that came otherwise than link leads:
			    its address's last bytes */
	/* seldom used */
	struct conn_key key;
	__u64 replay_ns;   /* when an ACK last provoked a replay */
	__u32 absent_at;   /* ABSENT_SINCE: when a sweep first found no socket, in 2^20 ns */
	__u32 ts_recent_s; /* when ts_recent was learnt: seconds, CLOCK_MONOTONIC */
	__u32 place;	   /* its number among the places, from 1 on; 0: being made */
	__u8 ahead;	   /* number of its buffer, from 1 on; valid with CONN_F_AHEAD */
	__u8 absent;	   /* enum absence */
	__u8 resend_due; /* the timer sends the oldest unacknowledged fast byte at its next tick */
	__u8
	    handler_bits; /* the handler's, of its CONN_F_HANDLER: Redis's say which share may stand
			      for a change without report */
	__u8
	    replay[REPLAY_BYTES + 8]; /* byte s of client space: (s - replay_base) % REPLAY_BYTES */
	/* The write that was last delayed, client space; since when, and since when behind a mark, in 2^20 ns; 0: it is
	 * not. splice/absorb.h */
	__u32 delayed_seq;
	__u16 delayed_at;
	__u16 marked_at;
	__u64 waits_for; /* nothing of it goes up before this is drained, or synced: WAITS_SYNC */
	/* what of it was copied while it waits, client space, and when; 0: nothing. splice/hold.h */
	__u64 copied_ns;
	__u32 copied_from;
	__u32 copied_end;
	/* splice/latency.h */
	__u64 held_ns;	/* when the first packet that is held was dropped; 0: none is */
	__u64 timed_ns; /* when the request arrived that is waited for; valid with SPOKE_TIMED */
	__u32 timed_request; /* its number */
	__u32 waits_sync; /* and this asking is answered; valid with WAITS_SYNC: splice/order.h */
};

/* What a packet waits for beside the drain of waits_for; bits. */
enum wait_for {
	HELD_SYNC = 1,	 /* it is to be synced: WAITS_SYNC */
	HELD_LATE = 2,	 /* a write that is delayed, until there is room for it: splice/absorb.h */
	HELD_MARKED = 4, /* or for a moment, until a command has its reply */
};

/* A packet that waits, for the daemon: splice/hold.h. The frame is as it came; what of it is left out (bytes is 0)
 * comes again by its client alone. */
struct held_packet {
	struct conn_key key;
	__u64 cookie;	 /* of the entry */
	__u64 waits_for; /* conn.waits_for */
	__u32 seq;	 /* client space */
	__u32 payload_len;
	__u32 ifindex; /* device by which it came */
	__u32 tag;     /* VLAN tag that is not among the bytes, as on the wire; 0 = none */
	__u16 l4_off;
	__u16 payload_off;
	__u16 bytes;
	__u16 why; /* enum wait_for */
	__u8 frame[HELD_FRAME_BYTES];
};

/* Bytes beyond a hole: see ahead.h. Client space; byte s is at s % AHEAD_BYTES. */
struct ahead_range {
	__u32 from;
	__u32 end;
};
struct ahead {
	__u64 owner; /* cookie of the socket that it is for; 0: free */
	__u32 count; /* ranges; no two touch */
	__u32 pad;
	struct ahead_range ranges[AHEAD_RANGES];
	__u8 bytes[AHEAD_BYTES + AHEAD_SLACK];
};

/* What is known of a key's use: a word of erb_interests, see cache/interest.h. Above these: which key
 * kind and credit are of. */
enum interest {
	INTEREST_MISSES = 0x07, /* since it was filled, saturating */
	INTEREST_STRING = 0x08, /* database 0 had it as such in the cache */
	INTEREST_HASH = 0x10,	/* or so; never both */
	INTEREST_KIND = 0x18,
	INTEREST_CREDIT = 0xe0, /* what being read between writes has earned */
	INTEREST_CREDIT_ONE = 0x20,
	INTEREST_DOUBT = 0x100, /* an entry of it went unread, and little was earned since */
	INTEREST_WHOSE_AT = 9,	/* bits below */
};

/* Miss reported to the daemon. */
struct miss {
	__u16 key_len;
	__u16 db;
	__u8 type; /* enum slot_type: what was asked for */
	__u8 pad[3];
	__u8 key[KEY_BYTES_MAX] __attribute__((aligned(8))); /* copied by words */
};

#define LATENCY_BUCKETS (((LATENCY_MOST_LOG2 - LATENCY_LEAST_LOG2) << LATENCY_STEPS_LOG2) + 2)

/* How long requests took, by their way, of the packets that were sampled on one CPU. Bucket 0 is below
 * 2^LATENCY_LEAST_LOG2 ns. Behind it each doubling has LATENCY_STEPS of one size, up to the last
 * bucket: 2^LATENCY_MOST_LOG2 ns and more. */
struct latency {
	__u64 sum_ns[LATENCY_MAX];
	__u64 counts[LATENCY_MAX][LATENCY_BUCKETS];
};

/* Fill and invalidation batches: the daemon writes, a program answers in place.
 * erb_fill_begin: in key; out set, version, global_version, cache_epoch, status.
 * erb_fill_insert: in all of that plus database, type, absence, value and expiry; out status.
 * erb_invalidate: in key; out status, database and type.
 * erb_touched: out keys and databases of entries that were answered since it last looked. */
struct fill_slot {
	__u16 key_len;
	__u16 value_len;
	__u16 db;
	__u8 type;    /* enum slot_type: what was asked for */
	__u8 absent;  /* 1: there is no such key */
	__u32 status; /* enum fill_status */
	__u32 set;
	__u32 cache_epoch;
	__u32 pad1;
	__u64 version;
	__u64 global_version;
	__u64 expiry_ms; /* wall clock; 0 = none */
	__u8 key[KEY_BYTES_MAX];
	__u8 value[CLASS3_BYTES];
};
enum fill_status {
	FILL_OK = 0,
	FILL_BUSY,  /* a mark or the fence stands, or serving is off: try later */
	FILL_MOVED, /* the version moved: value may be old */
	FILL_BIG,   /* no slot class holds it */
	FILL_NO_LEASE,
	FILL_WANTED,  /* of an invalidation: the key is worth reading again, as type says */
	FILL_WRITTEN, /* what a SET said is answered a while longer: not yet */
	FILL_SELDOM,  /* the same of a key without credit: only if it was answered */
	FILL_UNREAD,  /* as FILL_OK; what a SET said was not answered so far */
};
struct fill_io {
	__u32 count;
	__u32 set; /* erb_touched: where to begin, and where to go on */
	struct fill_slot slots[FILL_BATCH];
};

/* Lists of places: see place.h. */
enum place_list {
	PLACES_USED = 0, /* an entry has it */
	PLACES_TIMER,	 /* its entry may have unacknowledged fast bytes */
	PLACES_HELD,	 /* its entry may hold marks or a share of the fence */
	PLACE_LISTS,
};
struct place_line {
	__u8 on[PLACE_LISTS][PLACE_LINE]; /* 1: the place is on the list */
};
struct place {
	struct conn_key key; /* of the entry that has it, while one does */
	__u32 free;	     /* in the order of returns, whatever this place is: see place.h */
	__u32 pad;
};

/* What timer and sweep are to look at. */
struct walk_io {
	__u32 count;
	__u32 places[WALK_PLACES];
};

/* What a sweep found at the places that it was given. */
struct sweep_row {
	struct conn_key key;
	__u64 cookie;
	__u32 flags;	 /* SWEEP_F_* */
	__u32 proof_pos; /* as read by this sweep: hand it back to erb_release */
	__u32 requests;	 /* SWEEP_F_COUNTED: as many were whole; the same */
	__u32 pad;
};
#define SWEEP_F_GONE  0x01 /* no socket of this cookie for two sweeps; or closed.h, L6 */
#define SWEEP_F_HOLDS 0x02 /* it holds marks or a share of the fence */
#define SWEEP_F_EXECUTED                                                                           \
	0x04 /* copied_seq is past proof_pos: a CLIENT LIST sent now can prove it */
#define SWEEP_F_TRANSLATED 0x08 /* one of its deltas is not zero */
#define SWEEP_F_CLOSED	   0x10 /* Redis has closed its end: nothing of it will run any more */
#define SWEEP_F_COUNTED	   0x20 /* EXECUTED, by its first requests: replies do not come */
#define SWEEP_F_HALF	   0x40 /* behind them a command has begun that is not whole */

/* Who has held marks or shares of the fence for HELD_SHOWN_NS. */
enum held_why {
	HELD_GONE = 0,	 /* the socket is gone: proof is under way */
	HELD_UNREAD,	 /* Redis has not read it yet */
	HELD_UNSENT,	 /* the client takes no replies: what is in front of its reply waits */
	HELD_UNANSWERED, /* Redis has read it and not answered: it runs, or is blocked */
};
struct held_row {
	struct conn_key key;
	__u32 ms;
	__u8 why;   /* enum held_why */
	__u8 fence; /* 1: all keys, 0: some */
	__u8 pad[2];
};
/* A connection that a list could make FAST: see admit.h. */
struct admit_row {
	struct conn_key key;
	__u64 cookie;
	__u32 modes_moved;
	__u32 next;    /* client space: end of the bytes that went up */
	__u32 written; /* end of what Redis has written to it */
	__u8 authed;   /* CONN_K_AUTHED */
	__u8 act;      /* enum admit_act that a list can lead to */
	__u8 pad[2];
};
struct sweep_io {
	__u64 now_ns;
	__u32 count; /* rows */
	__u32 admits;
	__u32 waiting; /* connections that may be admitted once they are quiet or answered */
	__u32 conns;
	__u32 by_state[CONN_STATE_MAX];
	__u32 closing;
	__u32 translated; /* entries that still need translation */
	__u32 unacked;	  /* entries with unacknowledged fast bytes */
	__u32 helds;	  /* entries that have held something for long; HELD_ROWS of them in held */
	struct sweep_row rows[WALK_PLACES];
	struct admit_row admit[WALK_PLACES];
	struct held_row held[HELD_ROWS];
};

/* erb_release: one connection whose marks and fence share the daemon has proof for. */
struct release_io {
	struct conn_key key;
	__u64 cookie;
	__u32 proof_pos; /* from the sweep; a later position keeps the share */
	__u32 remove;	 /* 1: delete the entry too */
	__u32 closed;	 /* 1: SWEEP_F_CLOSED of the row */
	__u32 done;	 /* out: 1 released */
	__u32 requests;	 /* from the sweep */
	__u32 counted;	 /* 1: SWEEP_F_COUNTED of the row: what these requests hold, no more */
};

/* erb_inject: a copy of a packet that waited comes again. */
struct inject_io {
	struct conn_key key;
	__u64 cookie;
	__u64 waits_for; /* out: conn.waits_for */
	__u32 ifindex;
	__u32 pad;
};
enum inject {
	INJECT_DONE = 0,
	INJECT_WAITS, /* something behind it waits for more, and so does it */
	INJECT_GONE,  /* the connection is over */
	INJECT_FULL,  /* the kernel does not take it now */
};

/* erb_admit: what a list said of one connection. */
enum admit_act {
	ADMIT_FAST = 1, /* it may be answered: db, resp and rights hold */
	ADMIT_TRIAL,	/* older than ERB: its stream is at a command's begin */
	ADMIT_LISTEN,	/* older than ERB: it only listens, and was at a command's begin */
	ADMIT_JUDGED,	/* it stays as it is until something of it or the rights change */
};
struct admit_io {
	struct admit_row row; /* from the sweep before the list */
	__u32 rights;	      /* control.rights when the list was judged */
	__u16 db;
	__u8 resp;
	__u8 act;   /* enum admit_act */
	__u32 done; /* out: 1 admitted */
	__u16 owed; /* of ADMIT_TRIAL: replies that it waits for, 0 or 1 */
	__u16 slow; /* of ADMIT_JUDGED: why, as conn.h.slow; 0: for what is noted there */
};
