/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* abi.h - everything shared between the data path and user space, declared once.
 *
 * The Rust mirror (crates/abi) is generated from this file; the loader compares each map's value
 * size with the mirror's. Names carry unit and byte order: _be is network order, everything else
 * host order. Sequence numbers are 32-bit and wrap; "client space" is what the client's TCP counts,
 * "kernel space" what the server's kernel counts (fast-path design, TCP splice). */
#pragma once
#include "limits.h"

#define REASON(name, kind, text) STAT_##name,
enum erb_stat {
#include "reasons.def"
	STAT_MAX
};
#undef REASON

enum erb_cmd_class {
	CMD_FENCE = 0, /* may change what Redis reports to nobody: global fence until answered, then
			    the cache is empty */
	CMD_GET,       /* fast; no effect when it goes up */
	CMD_PING,      /* fast; no effect when it goes up */
	CMD_HARMLESS,  /* cannot change a string or a hash */
	CMD_MARK,      /* writes the keys that its row names, and no other string or hash */
	CMD_SETTLE,   /* keys unknown, but Redis reports what it writes: global fence until answered
			    and settled */
	CMD_STATEFUL, /* connection to BYPASS, no effect on keys */
	CMD_EXEC,     /* connection to BYPASS and global fence, settled; ends MULTI and WATCH */
	CMD_UNCOUNTABLE, /* connection to BYPASS, replies can no longer be counted */
	CMD_GATE,	 /* global fence, serving off until Redis's state is read again */
	CMD_CONFIG,	 /* the same, but Redis reports what it writes */
	CMD_CONTAINER,	 /* class depends on the sub-command */
	CMD_HELLO,	 /* RESP version; stateful with more than that argument */
	CMD_SELECT,	 /* harmless for the connection's database, else stateful */
	CMD_MONITOR,	 /* its client must see every command: uncountable, and a gate; the class of
			      what may be any command */
	CMD_AUTH,	 /* stateful like those that follow: see modes.h */
	CMD_MULTI,
	CMD_DISCARD,
	CMD_WATCH,
	CMD_UNWATCH,
	CMD_RESET,
	CMD_BARRED, /* stateful, and the connection is never taken back */
	CMD_SILENT, /* uncountable, and never taken back */
	CMD_CLASS_MAX
};

/* Commands that the fast path answers: fast.def. */
enum fast_kind {
	FAST_NONE = 0,
#define FAST(KIND, name, least, most) FAST_KIND_##KIND,
#include "fast.def"
	FAST_KIND_MAX
};
#undef FAST

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
#define CONN_F_AHEAD	0x40 /* it has a buffer of erb_ahead: see ahead.h */
#define CONN_F_RESET	0x80 /* egress saw RST leave */

/* What a connection's commands said of it, and what became of them: see modes.h. The first six
 * follow from the request stream alone. */
#define CONN_K_NEVER	 0x01 /* never taken back: replies off, tracking, replication, unreadable */
#define CONN_K_WATCH	 0x02 /* a WATCH may stand */
#define CONN_K_WATCHED	 0x04 /* there was one since the last admission */
#define CONN_K_MULTI	 0x08 /* there was a MULTI since the last admission */
#define CONN_K_IN_MULTI	 0x10 /* its EXEC or DISCARD has not come yet */
#define CONN_K_GATE	 0x20 /* behind that MULTI a command of the gate may be queued */
#define CONN_K_SCANNED	 0x43f
#define CONN_K_STUCK	 0x40 /* an error was answered after a WATCH */
#define CONN_K_AUTHED	 0x80 /* Redis has authenticated it */
#define CONN_K_TRIAL	 0x100 /* older than ERB, scanned from a boundary that an answer must prove */
#define CONN_K_RECOUNTED 0x200	/* its requests and replies are counted from an admission on */
#define CONN_K_LISTENS	 0x800	/* older than ERB; what it says by rote closes nothing: A7 */
#define CONN_K_LET_IN	 0x1000 /* it may have been let in: see modes.h, M5 */
#define CONN_K_HIDDEN	 0x400	/* behind that MULTI a CMD_FENCE or CMD_GATE may be queued */

/* What a connection that has shown no password may do. */
enum door {
	DOOR_UNKNOWN = 0, /* something, or not known (yet) */
	DOOR_OPEN,	  /* everything */
	DOOR_SHUT,	  /* nothing: Redis answers it errors only, but to RESET and QUIT */
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

/* Name of a command and, below a container, of its sub-command ("*": any); lower case, zero padded.
 */
struct command_key {
	__u8 name[NAME_BYTES_MAX];
	__u8 sub[NAME_BYTES_MAX];
};
struct command_row {
	__u32 cmd_class; /* enum erb_cmd_class */
	__u32 argc;	 /* exact argument count for which the class holds, 0 = any */
	/* CMD_MARK: the arguments that are keys it writes; the name is argument 0 */
	__s32 last; /* negative: from the end; with keynum not used */
	__u16 first;
	__u16 step;
	__u16 keynum; /* argument that says how many keys there are from first on; 0: none does */
	__u16 pad;
};

/* What the key hash is keyed with: hash.h. */
#define HASH_WORDS (KEY_BYTES_MAX / 8)
struct hash_secret {
	__u64 begin;
	__u64 odd; /* used as such whatever it is */
	__u64 words[HASH_WORDS];
};

/* One per ERB: what the daemon tells the data path and what the data path tells the daemon.
 * The first part is written by the daemon only, the second by the data path only (atomics). */
struct control {
	__u32 abi_version;
	__u16 port_be; /* Redis's port, network order */
	__u16 pad0;
	__u32 serving;	/* 1: fast answers allowed; 0: daemon has a reason, see its status */
	__u32 stopping; /* 1: detach under way: no answers, fills or new connections */
	__u32
	    admit; /* 1: new connections may be tracked from their first byte; else they are OLD */
	__u32 fills;		  /* 1: misses are counted and reported, fills are inserted */
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
	__u64 pad1[2];
	/* written by the data path */
	__u64 fence;	      /* commands with unknown keys on their way; fast answers need 0 */
	__u64 global_version; /* moves when the fence opens or closes and at every clear */
	__u64 fence_answered; /* shares of it, ever, that wait or waited for erb_settle */
	__u64 fence_settled;  /* of these: given back */
	__u64 gate_seen;      /* CMD_GATE commands seen; fast answers need gate_seen == gate_ack */
	__u32 cache_epoch;    /* entries of another epoch are absent */
	__u32 pad2;
	__u64 no_room_ns; /* when a connection last found no room in erb_conns; 0: never */
	__u64 pad3[1];
	/* a line of its own: each connection moves it. Places taken and given back, ever: place.h */
	__u64 places_taken;
	__u64 places_given;
	__u64 pad4[6];
};

/* What a slot's value is, and what a miss asks for. */
enum slot_type { SLOT_STRING = 0, SLOT_HASH };

/* One size class slot: header, then the value, then the key at the next byte. */
struct slot {
	__u32 cache_epoch;
	__u16 value_len; /* bytes; the key follows, zero padded to a multiple of 8 */
	__u16 key_len;
	__u8 flags; /* SLOT_F_* */
	__u8 type;  /* enum slot_type */
	__u16 db;   /* set index and tag do not depend on it: what removes a key does so in all */
	__u8 data[];
};
#define SLOT_F_EXPIRES	  0x01 /* the last 8 bytes of the slot are the expiry, wall clock, ms */
#define SLOT_HEADER_BYTES 12

/* The value of a cached hash: this, the places of its fields, then each field and behind it its
 * value, as bulk strings ("$1\r\na\r\n"). Offsets are from the head's first byte. */
struct hash_head {
	__u32 fields; /* 1 to HASH_FIELDS_MAX */
	__u32 pad;
};
struct hash_field {
	__u16 len;	 /* of the field's name, which ends 2 bytes before value_at */
	__u16 value_at;	 /* its value's bulk string */
	__u16 value_end; /* the next field's begins there */
	__u16 pad;
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
	__u32 changes; /* odd while the set is being changed: readers take no lock */
	__u8 pad1[4];
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

/* What a command takes when it is whole. */
#define PENDING_SETTLE 1
#define PENDING_HIDDEN 2
#define PENDING_EXEC   4
#define PENDING_GATE   8
#define PENDING_MARKS  16 /* conn.late only: marks of conn.half, no share */

/* State of the request scanner between packets: see scan.h. */
struct scan_request {
	__u8 state;
	__u8 name_len; /* bytes of name collected */
	__u8 sub_len;  /* bytes of argument 1, or of a key, kept in sub */
	__u8 number_neg;
	__u32 number;	 /* number being read */
	__u8 number_len; /* digits read */
	__u8 has_key;	 /* hash is the argument's */
	__u8 word_len;	 /* bytes of the current hash word */
	__u8 pending;	 /* what the command takes when it is whole: PENDING_* */
	__u32 args_left; /* bulk strings of this command still to come, the current one included */
	__u32 args_total;
	__u32 skip;	/* bytes of the current bulk string still to come */
	__u32 key_next; /* argument at which the next key stands, or the number of keys; 0: none */
	__u64 hash;	/* running hash of argument 1 or of a key */
	__u64 word;
	__u8 name[NAME_BYTES_MAX];
	__u8 sub[NAME_BYTES_MAX];
	__u32 key_last; /* argument at which the last key stands */
	__u16 key_step;
	__u16 key_first; /* not 0: key_next says how many keys there are from here on */
};

/* State of the reply scanner between packets; what is looked at before each packet comes last. */
struct scan_reply {
	__u8 text[8]; /* first bytes of a top-level error */
	__u64 number;
	__u64 skip; /* bytes of the current blob still to come */
	__u64 left; /* elements of the top-level reply still to come */
	__u8 state;
	__u8 type; /* type byte of the element at hand */
	__u8 number_len;
	__u8 number_neg;
	__u8 push;     /* top-level element is a push: not a reply */
	__u8 is_error; /* the top-level reply is an error */
	__u8 text_len; /* bytes of the error kept */
	__u8 pad;
};

struct mark {
	__u32
	    request; /* released when this many replies have left; of a conn.half: the key's tag */
	__u32 set;   /* set index, or MARK_* */
};
/* skb->mark of the daemon's own connection where that passes a boosted device (lo). Its PINGs and
 * reads prove what Redis says now: nobody else may answer them. */
#define MARK_FEED      0x45524246
#define MARK_FENCE     0xffffffffU /* a share of the fence; the cache is emptied when it goes */
#define MARK_SETTLE    0xfffffffeU /* a share of the fence; settled when its reply begins to leave */
#define MARK_EXEC      0xfffffffdU	     /* the same, when its reply has left whole */
#define COOKIE_UNKNOWN 0xffffffffffffffffULL /* OLD entry made before its socket had a cookie */
/* conn.absent_at: 0: there is a socket. */
#define ABSENT_LONG    1 /* none, and will not come back: the entry goes */
#define ABSENT_SINCE   2 /* in every time, so that none is 0 or ABSENT_LONG */

/* A tracked connection. Who writes what: see splice.h, which also asserts the lines. Cold cache
 * lines decide what a packet costs: what every request and every reply needs fills three of them.
 */
struct conn {
	/* line A */
	ERB_LOCK lock;
	__u8 state; /* enum erb_conn_state */
	__u8 flags;
	__u8 family; /* 4 or 6 */
	__u8 spoke;  /* the kernel sent something since an ACK last went up */
	__u64
	    cookie; /* socket the entry belongs to; 0: being made; COOKIE_UNKNOWN: not known yet */
	__u64 tcp_sock;	 /* where the kernel keeps that socket, 0 = not known; see sock_known() */
	__u32 next;	 /* client space: end of the bytes scanned */
	__u32 up_max;	 /* client space: highest byte passed up or consumed */
	__u32 in_delta;	 /* request bytes consumed */
	__u32 out_delta; /* reply bytes inserted */
	/* line B */
	__u32 edge;	     /* kernel space: write_seq at the last edit of out_delta */
	__u32 in_edge;	     /* client space: end of the last consumed bytes */
	__u32 ack_max;	     /* client space: highest acknowledgement of the client */
	__u32 ts_recent;     /* client's newest timestamp, RFC 7323; valid once spliced */
	__u32 requests;	     /* complete requests that went up */
	__u32 replies;	     /* complete replies that left (egress) */
	__u32 egress_max;    /* kernel space: highest byte that left (egress) */
	__u32 last_tsval;    /* highest TSval sent to the client */
	__u32 scan_next;     /* kernel space: end of the reply bytes scanned */
	__u32 ifindex;	     /* boosted device by which the client's packets come; link is of it */
	__u32 mark_head;     /* ingress */
	__u32 mark_tail;     /* egress */
	__u32 auth_at;	     /* number of the last AUTH, 0 = none */
	__u16 kept;	     /* CONN_K_* */
	__u16 db;	     /* database of its commands; valid while FAST */
	__u64 request_up_ns; /* when a request last went up */
	/* seldom used */
	struct conn_key key;
	struct scan_reply out; /* with left and state begins line C */
	__u64 sent_ns;	   /* when the oldest unacknowledged fast byte was last sent; 0 = none */
	__u64 ack_up_ns;   /* when an ACK last went up */
	__u32 replay_from; /* client space: first byte kept in replay */
	__u32 rights;	   /* control.rights under which it became FAST */
	__u8 link[12]; /* Ethernet addresses of the kernel's last packet by ifindex, as it left */
	__u8 resp;     /* version of its replies: 2, 3, 0 = not known */
	__u8 hellos;   /* 1: all HELLOs since it was 2 named 3; 2: there were others */
	__u8 dup_acks;
	__u8 tries;
	struct scan_request in; /* its first 8 bytes end line C */
	/* fast answers */
	__u32 recover;	 /* client space: end of the flight when a loss was found */
	__u32 ahead_end; /* client space: end of what is in its buffer */
	__u32 rtt_us;	 /* smoothed, 0 = unknown */
	__u32 rttvar_us;
	__u32 flight_max;  /* bound on unacknowledged fast bytes; halves per loss */
	__u32 replay_base; /* client space: the byte at replay[0] */
	__u32 epoch;	   /* moves with what only Redis can tell: see modes.h */
	__u16 mss_limit;   /* by Packet Too Big, or NARROW_MSS; 0 = none */
	__u8 called;	   /* 1 << PLACES_*: lists that its place is on, but for PLACES_USED */
	__u8 ahead_busy;   /* a CPU is at its buffer: see ahead.h */
	__u32 tag;	   /* VLAN tag of the last consumed packet, as on the wire; 0 = none */
	__u32 strayed; /* source of the client's last packet that came otherwise than link leads:
			    its address's last bytes */
	/* seldom used */
	__u64 replay_ns;    /* when an ACK last provoked a replay */
	__u32 absent_at;    /* when a sweep first found no socket, in 2^20 ns; or ABSENT_* */
	__u32 held_at;	    /* when a sweep first saw what it holds: the same; 0: nothing */
	__u32 proof_pos;    /* kernel space: end of what its shares of the fence stand for */
	__u32 stateful_at;  /* number of the last request that moved epoch */
	__u32 judged;	    /* control.rights under which a list showed that it stays out */
	__u8 hidden;	    /* CONN_F_* of its shares that may stand for a change without report */
	__u8 late;	    /* PENDING_* of a command that is counted, but not whole: S3 */
	__u8 half;	    /* marks behind mark_head that a command takes when it is whole: S3 */
	__u8 ahead;	    /* number of its buffer, from 1 on; valid with CONN_F_AHEAD */
	__u32 ts_recent_s;  /* when ts_recent was learnt: seconds, CLOCK_MONOTONIC */
	__u32 late_end;	    /* client space: where it is */
	__u32 held_request; /* number of the last request when held_at was noted */
	__u32 place;	    /* its number among the places, from 1 on; 0: being made */
	struct mark marks[MARKS_IN_FLIGHT];
	__u8
	    replay[REPLAY_BYTES + 8]; /* byte s of client space: (s - replay_base) % REPLAY_BYTES */
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

/* Miss reported to the daemon. */
struct miss {
	__u16 key_len;
	__u16 db;
	__u8 type; /* enum slot_type: what was asked for */
	__u8 pad[3];
	__u8 key[KEY_BYTES_MAX];
};

/* Fill and invalidation batches: the daemon writes, a program answers in place.
 * erb_fill_begin: in key; out set, version, global_version, cache_epoch, status.
 * erb_fill_insert: in all of that plus database, type, value and expiry; out status.
 * erb_invalidate: in key; out status.
 * erb_touched: out keys and databases of entries that were answered since it last looked. */
struct fill_slot {
	__u16 key_len;
	__u16 value_len;
	__u16 db;
	__u8 type; /* enum slot_type */
	__u8 pad;
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
#define SWEEP_F_GONE  0x01 /* no socket of this cookie for two sweeps */
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
	__u32 epoch;
	__u32 next;  /* client space: end of the bytes that went up */
	__u8 authed; /* CONN_K_AUTHED */
	__u8 act;    /* enum admit_act that a list can lead to */
	__u8 pad[6];
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
	__u32 pad;
};
