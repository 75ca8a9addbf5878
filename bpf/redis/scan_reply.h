/* SPDX-License-Identifier: GPL-2.0 */
/* scan_reply.h - streaming scanner of the reply stream: counts complete RESP2 and RESP3 replies.
 *
 * Nested aggregates need no stack: an aggregate of n elements adds n to the elements still to come
 * (maps and attributes 2n). An attribute belongs to the reply behind it; a push (RESP3) is no
 * reply. Streamed types ($?, *?) are not sent by Redis: LOST.
 *
 * Invariants:
 *  R1. The state describes the kernel-space stream up to conn.scan_next exactly.
 *  R2. left > 0 iff inside an aggregate or an element; a reply is counted when left returns to
 *      0, that is with its last byte: a reply of which Redis has yet to write a part is not
 *      answered.
 *  R4. Of a command that repeats its arguments (ORDER_REPEATS) an error or a status may have line ends of theirs, on
 *      servers that leave these in it (control.one_line): it counts as several replies. So no reply counts that may come
 *      after such lines: a request that begins after such a command, and before all that the server has ever written is
 *      with the client and counts as all replies, makes its connection uncountable. CONN_K_REPEATS: the next request is
 *      one that begins after such a command.
 *  R3. Between two replies conn.h.out is zeros: a line that most replies need not touch.
 */
#pragma once
#include "base/seam.h"
#include "redis/resp.h"

struct reply_found {
	u32 done;    /* replies completed */
	u32 pushes;  /* pushes completed */
	u32 auth_at; /* in: the reply of this number, counted from the next, is AUTH's; 0: none */
	u8 authed;   /* out: it came, and was no error */
	u8 errors;   /* a top-level error was completed */
	u8 noauth;   /* one of them says that the client must authenticate */
	u8 noperm;   /* one of them says that its user may not */
	u8 map;	     /* a top-level map has begun: RESP3 */
	u8 bars;     /* a top-level error that bars the connection (NOAUTH, DENIED, LOADING, max) */
	u8 success;  /* a reply that is no error was completed */
	u8 ran;	     /* a top-level error that only a command says that ran: error_refuses() */
};

#define REPLY_ELEMENTS_MAX (1ULL << 32)
#define REPLY_BLOB_MAX	   (1ULL << 33)

/* First bytes of errors that bar a connection, little endian, the type byte left out. */
#define TEXT_6	     0x0000ffffffffffffULL
#define TEXT_7	     0x00ffffffffffffffULL
#define TEXT_NOAUTH  0x0000485455414f4eULL /* NOAUTH */
#define TEXT_NOPERM  0x00004d5245504f4eULL /* NOPERM */
#define TEXT_DENIED  0x00004445494e4544ULL /* DENIED (protected mode) */
#define TEXT_LOADING 0x00474e4944414f4cULL /* LOADING */
#define TEXT_ERR_MAX 0x0078616d20525245ULL /* ERR max number of clients reached */

/* Those by which Redis refuses before a command runs, to whom has shown no password (src/server.c,
 * processCommand(); src/acl.c). */
#define TEXT_WRONGPASS	 0x534150474e4f5257ULL /* WRONGPASS */
#define TEXT_ERR_UNKNOWN 0x6e6b6e7520525245ULL /* ERR unknown command */
#define TEXT_ERR_WRONG	 0x6e6f727720525245ULL /* ERR wrong number of arguments */
#define TEXT_ERR_DEBUG	 0x5542454420525245ULL /* ERR DEBUG command not allowed */
#define TEXT_ERR_MODULE	 0x55444f4d20525245ULL /* ERR MODULE command not allowed */

INLINE bool error_refuses(u64 text)
{
	return (text & TEXT_6) == TEXT_NOAUTH || text == TEXT_WRONGPASS ||
	       text == TEXT_ERR_UNKNOWN || text == TEXT_ERR_WRONG || text == TEXT_ERR_DEBUG ||
	       text == TEXT_ERR_MODULE;
}

/* One element is complete. */
INLINE void reply_element_done(struct scan_reply *s, struct reply_found *f)
{
	s->state = RP_TYPE;
	if (s->left && --s->left)
		return;
	if (s->push) {
		s->push = 0;
		f->pushes++;
		return;
	}
	if (s->is_error) {
		u64 text = *(u64 *)s->text;

		if ((text & TEXT_6) == TEXT_NOAUTH || (text & TEXT_6) == TEXT_DENIED ||
		    (text & TEXT_7) == TEXT_LOADING || (text & TEXT_7) == TEXT_ERR_MAX)
			f->bars = 1;
		s->is_error = 0;
		f->errors = 1;
		f->noauth |= (text & TEXT_6) == TEXT_NOAUTH;
		f->noperm |= (text & TEXT_6) == TEXT_NOPERM;
		f->ran |= !error_refuses(text);
	} else {
		f->success = 1;
		if (f->auth_at == f->done + 1)
			f->authed = 1;
	}
	f->done++;
}

INLINE void reply_type(struct scan_reply *s, struct reply_found *f, u8 ch)
{
	if (!s->left) {
		s->left = 1;
		s->push = ch == '>';
		s->is_error = ch == '-' || ch == '!';
		s->text_len = 0;
		*(u64 *)s->text = 0;
		f->map |= ch == '%';
	}
	s->type = ch;
	s->number = 0;
	s->number_len = 0;
	s->number_neg = 0;
	switch (ch) {
	case '$':
	case '=':
	case '!':
	case '*':
	case '~':
	case '>':
	case '%':
	case '|':
		s->state = RP_NUMBER;
		return;
	case '+':
	case '-':
	case ':':
	case '_':
	case ',':
	case '#':
	case '(':
		s->state = RP_LINE;
		return;
	}
	s->state = RP_LOST;
}

INLINE void reply_number(struct scan_reply *s, u8 ch)
{
	if (ch == '\r' && s->number_len) {
		s->state = RP_NUMBER_LF;
	} else if (ch == '-' && !s->number_len && !s->number_neg) {
		s->number_neg = 1;
	} else if (ch >= '0' && ch <= '9' && s->number_len < 10) {
		s->number = s->number * 10 + (ch - '0');
		s->number_len++;
	} else {
		s->state = RP_LOST;
	}
}

/* A length or count is complete. */
INLINE void reply_number_done(struct scan_reply *s, struct reply_found *f)
{
	bool blob = s->type == '$' || s->type == '=' || s->type == '!';

	if (s->number_neg) { /* RESP2 nil */
		if (s->number == 1 && (s->type == '$' || s->type == '*'))
			reply_element_done(s, f);
		else
			s->state = RP_LOST;
		return;
	}
	if (blob) {
		s->skip = s->number + 2;
		s->state = s->skip > REPLY_BLOB_MAX ? RP_LOST : RP_BLOB;
		return;
	}
	if (s->left > REPLY_ELEMENTS_MAX || s->number > REPLY_ELEMENTS_MAX) {
		s->state = RP_LOST;
		return;
	}
	s->left += s->type == '%' || s->type == '|' ? 2 * s->number : s->number;
	if (s->type == '|') /* the attributed element follows: left still counts it */
		s->state = RP_TYPE;
	else
		reply_element_done(s, f);
}

/* Takes n <= skip bytes of a blob. */
INLINE void scan_reply_skip(struct scan_reply *s, struct reply_found *f, u32 n)
{
	s->skip -= n;
	if (!s->skip)
		reply_element_done(s, f);
}

/* The header of a bulk string or an aggregate that lies whole in the next bytes, as nearly all do:
 * one to four digits. Takes it as scan_reply_byte() would, byte by byte, and returns its length, or
 * 0 and takes nothing. State RP_TYPE; avail: how many bytes of word are the stream's. */
INLINE u32 scan_reply_header(struct scan_reply *s, struct reply_found *f, u64 word, u32 avail)
{
	u32 n, digits;
	u8 type = word;

	if (type != '$' && type != '*' && type != '%' && type != '~')
		return 0;
	if ((word & RESP_NIL_MASK) == RESP_NIL && avail >= 5) {
		reply_type(s, f, type);
		reply_element_done(s, f);
		return 5;
	}
	digits = resp_header_digits(word, avail, &n);
	if (!digits)
		return 0;
	reply_type(s, f, type);
	s->number = n;
	s->number_len = digits;
	reply_number_done(s, f);
	return digits + 3;
}

/* Takes one byte of the reply stream, outside blobs. */
INLINE void scan_reply_byte(struct scan_reply *s, struct reply_found *f, u8 ch)
{
	switch (s->state) {
	case RP_TYPE:
		reply_type(s, f, ch);
		return;
	case RP_NUMBER:
		reply_number(s, ch);
		return;
	case RP_NUMBER_LF:
		if (ch == '\n')
			reply_number_done(s, f);
		else
			s->state = RP_LOST;
		return;
	case RP_LINE:
		if (ch == '\r') {
			s->state = RP_LINE_LF;
		} else if (s->is_error && s->left == 1 && s->text_len < 8) {
			s->text[s->text_len & 7] = ch;
			s->text_len++;
		}
		return;
	case RP_LINE_LF:
		if (ch == '\n')
			reply_element_done(s, f);
		else
			s->state = RP_LOST;
		return;
	}
}
