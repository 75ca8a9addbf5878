/* SPDX-License-Identifier: GPL-2.0 */
/* scan_request.h - streaming scanner of the request stream (RESP arrays of bulk strings and inline
 * commands, Redis src/networking.c processMultibulkBuffer and processInlineBuffer, 7.0).
 *
 * It counts complete requests and says what each means for keys: marks, fences, what turns the
 * connection to BYPASS. It is stricter than Redis: what Redis would answer with a protocol error,
 * or accept although it is no RESP, is LOST.
 *
 * Invariants:
 *  S1. The state describes the stream up to conn.next exactly; scanning is by bytes in order.
 *  S2. The body of a bulk string that is neither name nor a key counts as scanned as soon as
 *      its length is known (skip), the CRLF behind it included: Redis does not look at it either.
 *  S3. What a command takes (marks of its keys, shares of the fence, the gate) is due with its last
 *      byte: before Redis can execute it, and half a command closes nothing for others. Until
 *      then its keys wait in the connection: conn.half. Of a last argument that is skipped (S2)
 *      that byte goes up behind the count: conn.late.
 *  S4. A request is counted when its last argument's length is known.
 */
#pragma once
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/key_hash.h"
#include "net/chunk.h"
#include "redis/command.h"
#include "redis/modes.h"
#include "redis/resp.h"

#define BULK_BYTES_MAX (512U << 20) /* Redis's default proto-max-bulk-len */
#define ARGS_MAX       (1U << 20)
#define ARGS_AT_ONCE   32 /* that scan_packet_args() takes; YCSB's HSET has 22 */

/* What scanning one packet found; per-CPU memory. Effects carry the request's number, counted from
 * the packet's first (1 = the first to complete). */
struct scan_found {
	u32 done;	/* requests completed */
	u32 never_held; /* commands named in the packet that are never held: order.h, Y6 */
	u32 named;	/* number of the last one whose name the packet shows; 0: of none */
	u32 repeats; /* number of the first one whose reply may repeat its arguments: scan_reply.h, R4 */
	u32 effects;
	u32 due;	/* the first so many effects are of whole commands: S3 */
	u8 overflow;	/* more effects than fit */
	u8 late;	/* what the last command takes with a byte behind the packet: S3 */
	u8 hidden;	/* one of them may change what Redis reports to nobody */
	u8 uncountable; /* replies can no longer be counted */
	u8 gate;
	u8 synced;  /* one of them tells who has its connection's writes: order.h, Y8 */
	u8 written; /* the packet is one SET, whose image is in struct handler_work */
	struct modes_found modes;
	struct mark marks[MARKS_IN_FLIGHT];
	u64 hashes[MARKS_IN_FLIGHT];
};

/* False: there is no room. */
INLINE bool found_effect(struct scan_found *f, u32 set, u64 hash)
{
	u32 n = f->effects;

	opaque(n);
	if (n >= MARKS_IN_FLIGHT)
		return false;
	f->marks[n].request = f->done + 1;
	f->marks[n].set = set;
	f->hashes[n] = hash;
	f->effects = n + 1;
	return true;
}

/* A command is whole: the share that it takes. Global: verified by itself. */
__noinline int found_whole(struct scan_found *f, u32 pending)
{
	u32 set = pending & PENDING_HIDDEN ? EFFECT_FENCE
		  : pending & PENDING_EXEC ? EFFECT_EXEC
					   : EFFECT_SETTLE;

	if (!f)
		return 0;
	f->hidden |= set == EFFECT_FENCE;
	f->gate |= !!(pending & PENDING_GATE);
	if (!found_effect(f, set, 0))
		f->overflow = 1;
	return 0;
}

/* The last command is whole and counted. */
INLINE void found_done(struct scan_found *f, struct scan_request *s)
{
	if (s->pending)
		found_whole(f, s->pending);
	s->pending = 0;
	f->due = f->effects;
	f->done++;
}

/* The command takes a share of the fence. What is queued behind MULTI runs with EXEC. */
INLINE void found_share(struct scan_found *f, struct scan_request *s, u32 class)
{
	bool hidden = class == CMD_FENCE || class == CMD_GATE || class == CMD_MONITOR;

	if (hidden && (f->modes.kept & CONN_K_MULTI))
		f->modes.kept |= CONN_K_HIDDEN;
	if (class == CMD_EXEC)
		hidden = f->modes.kept & CONN_K_HIDDEN;
	s->pending |= hidden ? PENDING_HIDDEN : class == CMD_EXEC ? PENDING_EXEC : PENDING_SETTLE;
}

INLINE bool class_shares(u32 class)
{
	return class == CMD_FENCE || class == CMD_SETTLE || class == CMD_EXEC ||
	       class == CMD_GATE || class == CMD_CONFIG;
}

/* The command's name and first argument are known; class: with its order. */
INLINE void found_command(struct scan_found *f, struct scan_request *s, u32 class)
{
	u32 order = class >> CLASS_ORDER_AT;

	class &= CLASS_MASK;
	f->never_held += order & ORDER_NEVER_HELD;
	f->named = f->done + 1;
	if ((order & ORDER_REPEATS) && !f->repeats)
		f->repeats = f->named;
	f->synced |= !!(order & ORDER_SYNCED) | (class == CMD_MONITOR);
	if (class >= CMD_STATEFUL)
		modes_command(&f->modes, s, class, f->done + 1);
	if (class == CMD_MONITOR) {
		/* Its client must see every command: serving stops until the daemon has looked for
		 * monitors. */
		f->uncountable = 1;
		s->pending |= PENDING_GATE;
		found_share(f, s, class);
		return;
	}
	if (class == CMD_UNCOUNTABLE || class == CMD_SILENT)
		f->uncountable = 1;
	if (class == CMD_GATE || class == CMD_CONFIG)
		s->pending |= PENDING_GATE;
	if (class_shares(class))
		found_share(f, s, class);
}

/* The key at key_next is known, or the number of keys. A key longer than KEY_BYTES_MAX is never
 * cached and needs no mark. */
INLINE void found_key(struct scan_found *f, struct scan_request *s, const struct control *c)
{
	if (s->key_first) {
		found_command(f, s, command_keynum(s));
		return;
	}
	if (s->has_key && !found_effect(f, set_of(c, s->hash), s->hash))
		s->pending |= PENDING_SETTLE;
	s->key_next += s->key_step;
	if (s->key_next > s->key_last)
		s->key_next = 0;
}

/* An inline command's line has ended. Only its first word is understood: where the meaning depends
 * on the rest (CLIENT REPLY OFF, CONFIG SET, SELECT 1), the worst is assumed. */
INLINE void found_inline(struct scan_found *f, struct scan_request *s, const struct control *c)
{
	struct command_key key = {};
	struct command_row *row;
	u32 class, order = 0;

	s->args_total = 1;
	s->sub_len = s->pending = 0;
	s->has_key = 0;
	__builtin_memcpy(key.name, s->name, NAME_BYTES_MAX);
	row = command_row(&key);
	class = row && s->name_len <= NAME_BYTES_MAX ? row->cmd_class : c->unknown_class;
	if (class == CMD_CONTAINER || class == CMD_SELECT || class == CMD_HELLO) {
		f->uncountable = f->gate = 1;
		f->modes.stateful = SLOW_INLINE;
		f->modes.kept |= CONN_K_NEVER; /* perhaps CLIENT REPLY OFF */
		class = CMD_FENCE;
	} else if (class == CMD_MARK) {
		class = CMD_SETTLE;
	} else if (row && class == row->cmd_class) {
		order = row->order;
	}
	found_command(f, s, command_says(c, class, order));
	found_done(f, s);
}

/* A digit or sign of a length. Returns false if Redis would not take it (string2ll). */
INLINE bool scan_digit(struct scan_request *s, u8 ch)
{
	if (ch == '-' && !s->number_len && !s->number_neg) {
		s->number_neg = 1;
		return true;
	}
	if (ch < '0' || ch > '9' || s->number_len >= 10)
		return false;
	if (s->number_len && !s->number) /* leading zero */
		return false;
	if (s->number_neg && !s->number_len && ch == '0')
		return false;
	if (s->number > (BULK_BYTES_MAX - 9) / 10)
		return false;
	s->number = s->number * 10 + (ch - '0');
	s->number_len++;
	return true;
}

INLINE void scan_number_begin(struct scan_request *s, u8 state)
{
	s->state = state;
	s->number = 0;
	s->number_len = 0;
	s->number_neg = 0;
}

/* An argument that is kept is known in full, or is too long for that. */
INLINE void scan_kept(struct scan_request *s, struct scan_found *f, const struct control *c,
		      u32 index)
{
	s->args_left--;
	if (index == 1 || s->args_total == 1)
		found_command(f, s, command_class(s));
	if (index && index == s->key_next)
		found_key(f, s, c);
}

/* Whether the bytes of an argument are kept: those of a name, and of keys. */
INLINE bool arg_kept(const struct scan_request *s, u32 index)
{
	return index < 2 || index == s->key_next;
}

/* An argument's length is known: decide whether to keep its bytes. */
INLINE void scan_body_begin(struct scan_request *s, struct scan_found *f, const struct control *c)
{
	u32 index = s->args_total - s->args_left;
	bool kept = arg_kept(s, index);

	s->skip = s->number;
	if (index == 0) {
		s->name_len = s->number > NAME_BYTES_MAX ? NAME_BYTES_MAX + 1 : 0;
		s->sub_len = s->pending = 0;
		s->has_key = 0;
		s->key_next = 0;
		__builtin_memset(s->name, 0, NAME_BYTES_MAX);
	} else if (kept) {
		s->sub_len = s->number > NAME_BYTES_MAX ? NAME_BYTES_MAX + 1 : 0;
		s->has_key = s->number <= KEY_BYTES_MAX;
		s->hash = hash_begin(&c->hash, s->number);
		s->word = 0;
		s->word_len = 0;
		__builtin_memset(s->sub, 0, NAME_BYTES_MAX);
	}
	if (kept && s->skip <= KEY_BYTES_MAX) {
		s->state = s->skip ? RQ_BODY : RQ_BODY_CR;
		return;
	}
	s->skip += 2; /* S2 */
	s->state = RQ_BULK;
	if (kept)
		scan_kept(s, f, c, index);
	else
		s->args_left--;
}

/* The next n bytes of an argument that is kept: a word of it, or what is left; word has zeros behind them. As so
 * many bytes would be taken, at a word's begin. */
INLINE void scan_body_word(struct scan_request *s, const struct control *c, u64 word, u32 n)
{
	bool named = s->args_left == s->args_total;
	u32 at = named ? s->name_len : s->sub_len;

	opaque(at);
	if (at <= NAME_BYTES_MAX - 8) {
		*(u64 *)((named ? s->name : s->sub) + at) = lower_word(word);
		if (named)
			s->name_len = at + n;
		else
			s->sub_len = at + n;
	}
	if (!named && s->has_key) {
		s->word = n < 8 ? word : 0;
		s->word_len = n & 7;
		if (n == 8)
			s->hash = hash_word(&c->hash, s->hash, word, (s->number - s->skip) / 8);
	}
	s->skip -= n;
	if (!s->skip)
		s->state = RQ_BODY_CR;
}

/* A byte of an argument that is kept. */
INLINE void scan_body_byte(struct scan_request *s, const struct control *c, u8 ch)
{
	if (s->args_left == s->args_total) {
		u32 n = s->name_len;

		opaque(n);
		if (n < NAME_BYTES_MAX) {
			s->name[n] = lower(ch);
			s->name_len = n + 1;
		}
	} else {
		u32 n = s->sub_len;

		opaque(n);
		if (n < NAME_BYTES_MAX) {
			s->sub[n] = lower(ch);
			s->sub_len = n + 1;
		}
		if (s->has_key) {
			s->word |= (u64)ch << (s->word_len & 7) * 8;
			if (++s->word_len == 8) {
				s->hash = hash_word(&c->hash, s->hash, s->word,
						    (s->number - s->skip) / 8);
				s->word = 0;
				s->word_len = 0;
			}
		}
	}
	if (--s->skip == 0)
		s->state = RQ_BODY_CR;
}

/* The CRLF behind an argument that is kept has come. */
INLINE void scan_body_end(struct scan_request *s, struct scan_found *f, const struct control *c)
{
	u32 index = s->args_total - s->args_left;

	if (index && s->has_key) {
		if (s->word_len)
			s->hash = hash_word(&c->hash, s->hash, s->word, s->number / 8);
		s->hash = hash_end(&c->hash, s->hash);
	}
	s->state = RQ_BULK;
	scan_kept(s, f, c, index);
}

INLINE void scan_inline_byte(struct scan_request *s, struct scan_found *f, const struct control *c,
			     u8 ch)
{
	bool space = ch == ' ' || (ch >= 9 && ch <= 13);

	if (ch == 0 || ch == '"' || ch == '\'') {
		s->state = RQ_LOST;
		return;
	}
	if (ch == '\n') {
		if (s->state != RQ_INLINE_SPACE)
			found_inline(f, s, c);
		s->state = RQ_IDLE;
		return;
	}
	if (s->state == RQ_INLINE_SPACE && !space) {
		s->state = RQ_INLINE_NAME;
		s->name_len = 0;
		__builtin_memset(s->name, 0, NAME_BYTES_MAX);
	}
	if (s->state != RQ_INLINE_NAME)
		return;
	if (space) {
		s->state = RQ_INLINE_REST;
	} else if (s->name_len < NAME_BYTES_MAX) {
		u32 n = s->name_len;

		opaque(n);
		if (n < NAME_BYTES_MAX)
			s->name[n] = lower(ch);
		s->name_len++;
	} else {
		s->name_len = NAME_BYTES_MAX + 1;
	}
}

/* Takes one byte of the stream. */
INLINE void scan_request_byte(struct scan_request *s, struct scan_found *f, const struct control *c,
			      u8 ch)
{
	switch (s->state) {
	case RQ_IDLE:
		if (ch == '*') {
			scan_number_begin(s, RQ_ARGC);
		} else {
			s->state = RQ_INLINE_SPACE;
			scan_inline_byte(s, f, c, ch);
		}
		return;
	case RQ_ARGC:
	case RQ_LEN:
		if (ch == '\r' && s->number_len)
			s->state++;
		else if (!scan_digit(s, ch))
			s->state = RQ_LOST;
		return;
	case RQ_ARGC_LF:
		s->args_total = s->args_left = s->number;
		if (ch != '\n' || s->number > ARGS_MAX)
			s->state = RQ_LOST;
		else /* *0 and negative counts are no request and get no reply */
			s->state = s->number_neg || !s->number ? RQ_IDLE : RQ_BULK;
		return;
	case RQ_BULK:
		if (ch == '$')
			scan_number_begin(s, RQ_LEN);
		else
			s->state = RQ_LOST;
		return;
	case RQ_LEN_LF:
		if (ch != '\n' || s->number_neg)
			s->state = RQ_LOST;
		else
			scan_body_begin(s, f, c);
		return;
	case RQ_BODY:
		scan_body_byte(s, c, ch);
		return;
	case RQ_BODY_CR:
		s->state = ch == '\r' ? RQ_BODY_LF : RQ_LOST;
		return;
	case RQ_BODY_LF:
		if (ch == '\n')
			scan_body_end(s, f, c);
		else
			s->state = RQ_LOST;
		return;
	case RQ_INLINE_SPACE:
	case RQ_INLINE_NAME:
	case RQ_INLINE_REST:
		scan_inline_byte(s, f, c, ch);
		return;
	}
}

/* A command whose arguments are all accounted for is done: S4. */
INLINE void scan_request_settle(struct scan_request *s, struct scan_found *f)
{
	if (s->state == RQ_BULK && !s->args_left) {
		s->state = RQ_IDLE;
		found_done(f, s);
	}
}

/* "*<n>\r\n" or "$<n>\r\n" of one to four digits that lies whole in the next bytes, as nearly all
 * do. Takes it as scan_request_byte() would, byte by byte, and returns its length, or 0 and takes
 * nothing. avail: how many bytes of word are the stream's. */
INLINE u32 scan_request_header(struct scan_request *s, struct scan_found *f,
			       const struct control *c, u64 word, u32 avail)
{
	u32 n, digits;

	if ((u8)word != (s->state == RQ_IDLE ? '*' : '$') ||
	    (s->state != RQ_IDLE && s->state != RQ_BULK))
		return 0;
	digits = resp_header_digits(word, avail, &n);
	if (!digits)
		return 0;
	scan_number_begin(s, s->state == RQ_IDLE ? RQ_ARGC_LF : RQ_LEN_LF);
	s->number = n;
	s->number_len = digits;
	scan_request_byte(s, f, c, '\n');
	return digits + 3;
}

/* Bytes of an argument that is kept, and the CRLF behind it if that is there. State RQ_BODY. */
INLINE u32 scan_request_body(struct scan_request *s, struct scan_found *f, const struct control *c,
			     const u8 *chunk, u32 at, u32 avail)
{
	u64 word = *(const u64 *)(chunk + (at & (SCAN_CHUNK - 1)));
	u32 n = s->skip < 8 ? s->skip : 8;

	if ((s->number - s->skip) % 8 || n > avail) { /* a packet or a piece has ended in a word */
		scan_body_byte(s, c, word);
		n = 1;
	} else {
		scan_body_word(s, c, n < 8 ? word & ((1ULL << n * 8) - 1) : word, n);
	}
	if (s->state != RQ_BODY_CR || n + 2 > avail ||
	    *(const u16 *)(chunk + ((at + n) & (SCAN_CHUNK - 1))) != RESP_CRLF)
		return n;
	scan_body_end(s, f, c);
	return n + 2;
}

/* Takes what can be taken at once of the avail bytes at chunk + at, at least one, and settles.
 * Returns how many that were. */
INLINE u32 scan_request_step(struct scan_request *s, struct scan_found *f, const struct control *c,
			     const u8 *chunk, u32 at, u32 avail)
{
	const u8 *first = chunk + (at & (SCAN_CHUNK - 1));
	u32 used = scan_request_header(s, f, c, *(const u64 *)first, avail);

	if (s->state == RQ_BODY && used < avail)
		used += scan_request_body(s, f, c, chunk, at + used, avail - used);
	if (!used) {
		scan_request_byte(s, f, c, *first);
		used = 1;
	}
	if (!s->skip || s->state != RQ_BULK)
		scan_request_settle(s, f);
	return used;
}
