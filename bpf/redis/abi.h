/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* redis/abi.h - what the Redis handler shares with user space: classes of commands, its part of a
 * connection, the scanners' states. base/abi.h includes it as HANDLER_ABI. Numbers that lie in an entry
 * are declared here, not where they are used: so a program that counts them otherwise has another
 * fingerprint, and adopts no entry. */
#pragma once
#include "base/limits.h"

enum erb_cmd_class {
	CMD_FENCE = 0, /* may change what Redis reports to nobody: global fence until answered, then
			    the cache is empty */
	CMD_GET,       /* fast; no effect when it goes up */
	CMD_PING,      /* fast; no effect when it goes up */
	CMD_HARMLESS,  /* can neither change a string or a hash nor make a key */
	CMD_MARK,      /* writes the keys that its row names, and makes or changes no other */
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
#include "redis/fast.def"
	FAST_KIND_MAX
};
#undef FAST

/* Writes that the express lane knows: usual.def. */
enum usual_kind {
	USUAL_KIND_BEFORE = FAST_KIND_MAX - 1,
#define USUAL(KIND, name, args) USUAL_KIND_##KIND,
#include "redis/usual.def"
	USUAL_KIND_MAX
};
#undef USUAL
_Static_assert(USUAL_KIND_MAX <= 32, "each has a bit of control.fast_off");

/* Why a connection is not answered: slow.def. Those below are classes of commands. */
enum slow_why {
	SLOW_NONE = 0,
	SLOW_BEFORE = CMD_CLASS_MAX - 1,
#define SLOW_COMMAND(CLASS, name, text)
#define SLOW(NAME, name, text) SLOW_##NAME,
#include "redis/slow.def"
	SLOW_MAX
};
#undef SLOW
#undef SLOW_COMMAND
_Static_assert(SLOW_MAX <= 256, "each fits conn.h.slow");

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
#define CONN_K_THROUGH                                                                             \
	0x2000		   /* the last it said is a SET whose value its reply may show: through.h */
#define CONN_K_OWES 0x4000 /* its trial began behind a command that waits: A8 */
#define CONN_K_REPEATS                                                                             \
	0x8000 /* what its reply may repeat may look like more replies: scan_reply.h, R4 */
#define CONN_K_HIDDEN 0x400 /* behind that MULTI a CMD_FENCE or CMD_GATE may be queued */

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
	__u16 order;  /* ORDER_* */
};

/* Of a command, when it goes up: splice/order.h. */
#define ORDER_NEVER_HELD 1 /* before what was answered is drained: Y6 */
#define ORDER_CURES	 2 /* the same while Redis refuses the drain */
#define ORDER_SYNCED	 4 /* it tells who has its connection's writes: Y8 */
#define ORDER_REPEATS                                                                              \
	8 /* its error or status may repeat bytes of its arguments: scan_reply.h, R4 */

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

/* What a command takes when it is whole. */
#define PENDING_SETTLE 1
#define PENDING_HIDDEN 2
#define PENDING_EXEC   4
#define PENDING_GATE   8
#define PENDING_MARKS  16 /* conn.late only: marks of conn.half, no share */

/* State of the request scanner between packets: see scan_request.h. */
enum request_state {
	RQ_IDLE = 0, /* between commands */
	RQ_ARGC,     /* after '*' */
	RQ_ARGC_LF,
	RQ_BULK, /* '$' must come */
	RQ_LEN,	 /* after '$' */
	RQ_LEN_LF,
	RQ_BODY, /* bytes of an argument that are kept: 0, 1, keys, the number of keys */
	RQ_BODY_CR,
	RQ_BODY_LF,
	RQ_INLINE_SPACE, /* inline: before the first word */
	RQ_INLINE_NAME,
	RQ_INLINE_REST,
	RQ_LOST,
};
struct scan_request {
	__u8 state;    /* enum request_state */
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
	__u32 key_last; /* argument at which the last key stands */
	__u64 hash;	/* running hash of argument 1 or of a key */
	__u64 word;
	__u8 name[NAME_BYTES_MAX];
	__u8 sub[NAME_BYTES_MAX];
	__u16 key_step;
	__u16 key_first; /* not 0: key_next says how many keys there are from here on */
	__u32 late_end;	 /* client space: where the command of conn.h.late ends */
};

/* State of the reply scanner between packets; what is looked at before each packet comes last. */
enum reply_state {
	RP_TYPE = 0, /* type byte of an element must come */
	RP_NUMBER,   /* length or count behind the type */
	RP_NUMBER_LF,
	RP_LINE, /* simple string, error, number, ...: up to CRLF */
	RP_LINE_LF,
	RP_BLOB, /* skip > 0: bytes of a blob and its CRLF */
	RP_LOST,
};
struct scan_reply {
	__u8 text[8]; /* first bytes of a top-level error */
	__u64 number;
	__u64 skip; /* bytes of the current blob still to come */
	__u64 left; /* elements of the top-level reply still to come */
	__u8 state; /* enum reply_state */
	__u8 type;  /* type byte of the element at hand */
	__u8 number_len;
	__u8 number_neg;
	__u8 push;     /* top-level element is a push: not a reply */
	__u8 is_error; /* the top-level reply is an error */
	__u8 text_len; /* bytes of the error kept */
	__u8 pad;
};

/* Of conn.h.resp: it was 2, and all HELLOs since named 3, so a map among the replies proves 3: modes.h, M2. */
#define RESP_IF_MAP 1

/* Redis's part of a connection: what its commands say of it, what it holds until they are executed, and
 * both scanners. Begins in line C of struct conn; what every request and reply needs comes first. */
struct handler_conn {
	__u32 mark_head;   /* ingress */
	__u32 mark_tail;   /* egress */
	__u32 auth_at;	   /* number of the last AUTH, 0 = none */
	__u16 kept;	   /* CONN_K_* */
	__u16 db;	   /* database of its commands; valid while FAST */
	__u32 rights;	   /* control.rights under which it became FAST */
	__u8 resp;	   /* version of its replies: 2, 3, less: not known; RESP_IF_MAP */
	__u8 slow;	   /* enum slow_why, for people: why it left FAST, or stays out */
	__u8 late;	   /* PENDING_* of a command that is counted, but not whole: S3 */
	__u8 half;	   /* marks behind mark_head that a command takes when it is whole: S3 */
	__u32 stateful_at; /* number of the last request that moved modes_moved */
	__u32 modes_moved; /* moves with what only Redis can tell: see modes.h */
	__u32 judged;	   /* control.rights under which a list showed that it stays out */
	__u32 proof_pos;   /* kernel space: end of what its shares of the fence stand for */
	/* behind line C */
	struct scan_reply out;
	struct scan_request in;
	__u32 held_at;	    /* when a sweep first saw what it holds, in 2^20 ns; 0: nothing */
	__u32 held_request; /* number of the last request when held_at was noted */
	struct mark marks[MARKS_IN_FLIGHT];
};
