// SPDX-License-Identifier: Apache-2.0 OR MIT
/* streams.c - what is read in words, or by lengths alone, against the same read byte by byte.
 *
 * Requests: a stream in pieces of any size gives what it gives in pieces of one byte. Replies: what a word tells of
 * a packet is what the scanner tells. Sums: the fold against the remainder that it stands for.
 *
 * Prints "requests <n> effects <n> lost <n> replies <n> folds <n> wrong <n>". */
#define HANDLER_ABI  "redis/abi.h"
#define HANDLER_WORK "redis/work.h"
#include "base/seam.h"
#include "net/tier_skb.h"
#include "splice/entry_tc.h"
#include "redis/handler.h"
#include "redis/proofs.h"
#include "redis/replies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS	      60000
#define STREAM_BYTES  16384
#define EFFECTS_MAX   64
#define REPLY_LETTERS 12
#define REPLY_LEN     6
#define FOLDS	      2000000

struct sim_ops sim_ops;

/* No packet passes here. */
int sim_tc_stage(__u32 stage, struct __sk_buff *ctx)
{
	return TCX_NEXT;
}

static struct control control;
static struct work work;
static u8 stream[STREAM_BYTES + SCAN_CHUNK];
static u32 stream_len;
static u64 wrong, requests, effects, lost, replies, folds;

static u64 random_state = 0x9e3779b97f4a7c15ULL;

static u32 random_below(u32 n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (random_state >> 11) % n;
}

static const struct {
	const char *name;
	struct command_row row;
} commands[] = {
    {"get", {.cmd_class = CMD_GET, .argc = 2}},
    {"set", {.cmd_class = CMD_MARK, .first = 1, .last = 1, .step = 1}},
    {"mset", {.cmd_class = CMD_MARK, .first = 1, .last = -1, .step = 2}},
    {"unlink", {.cmd_class = CMD_MARK, .first = 1, .last = -1, .step = 1}},
    {"hset", {.cmd_class = CMD_MARK, .first = 1, .last = 1, .step = 1}},
    {"bitop", {.cmd_class = CMD_MARK, .first = 2, .last = 3, .step = 1}},
    {"zunionstore", {.cmd_class = CMD_MARK, .first = 3, .step = 1, .keynum = 2}},
    {"keys", {.cmd_class = CMD_SETTLE}},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* Numbers of the maps that are asked; all others have none. */
enum { NO_MAP, CONTROL_MAP, WORK_MAP, COMMANDS_MAP };

static void *lookup(__u64 map, const void *key)
{
	const struct command_key *name = key;

	if (map == CONTROL_MAP)
		return &control;
	if (map == WORK_MAP)
		return &work;
	for (u32 i = 0; map == COMMANDS_MAP && i < COMMANDS; i++)
		if (!strncmp((const char *)name->name, commands[i].name, NAME_BYTES_MAX))
			return (void *)&commands[i].row;
	return NULL;
}

static u32 piece_at; /* in the stream */

static long skb_load(const void *ctx, u32 off, void *to, u32 len)
{
	memcpy(to, stream + piece_at + off, len);
	return 0;
}

static void nothing(void)
{
}

static void put(const char *format, u32 number)
{
	stream_len += sprintf((char *)stream + stream_len, format, number);
}

static void put_argument(const u8 *bytes, u32 len)
{
	put(random_below(2000) ? "$%u\r\n" : "$0%u\r\n", len); /* which Redis does not take */
	for (u32 i = 0; i < len; i++)
		stream[stream_len++] = bytes ? bytes[i] : (u8)random_below(256);
	put("\r\n", 0);
}

static u32 some_length(void)
{
	static const u16 lengths[] = {0,  1,  3,  7,   8,   9,	 15,  16,  17,	23,   24,
				      25, 31, 99, 100, 101, 255, 256, 257, 999, 1000, 1100};

	return lengths[random_below(sizeof(lengths) / sizeof(lengths[0]))];
}

static void put_command(void)
{
	u32 which = random_below(COMMANDS + 1), args = 1 + random_below(3), len;
	u8 name[NAME_BYTES_MAX];

	if (!random_below(4))
		args = random_below(50);
	if (which < COMMANDS &&
	    commands[which].row.last < 0) /* its keys are to fit into one packet's effects */
		args = 1 + random_below(2);
	put("*%u\r\n", 1 + args);
	if (which == COMMANDS) {
		put_argument(NULL, some_length() % 300);
	} else {
		len = strlen(commands[which].name);
		for (u32 i = 0; i < len; i++)
			name[i] = commands[which].name[i] & (random_below(2) ? 0xff : 0xdf);
		put_argument(name, len);
	}
	for (u32 i = 0; i < args; i++)
		if (i == 1 && which < COMMANDS && commands[which].row.keynum)
			put_argument((const u8 *)"2", 1);
		else
			put_argument(NULL, args > 10 ? some_length() % 110 : some_length());
}

static void make_stream(void)
{
	stream_len = 0;
	for (u32 n = 1 + random_below(3); n; n--)
		put_command();
	if (!random_below(8)) /* what Redis would not take, somewhere */
		stream[random_below(stream_len)] ^= 1 + random_below(255);
}

struct outcome {
	u32 done;
	u32 effects;
	u32 state;
	u32 pending;
	struct {
		u32 request;
		u32 set;
		u64 hash;
	} effect[EFFECTS_MAX];
};

static void note(struct outcome *to, u32 request, u32 set, u64 hash)
{
	if (to->effects == EFFECTS_MAX)
		abort();
	to->effect[to->effects].request = request;
	to->effect[to->effects].set = set;
	to->effect[to->effects++].hash = hash;
}

/* Scans the stream in pieces: of one byte, or of some. */
static void scan(struct outcome *to, bool by_bytes)
{
	struct scan_found *found = &work.h.found;
	u32 next = 0, len;

	memset(to, 0, sizeof(*to));
	memset(&work, 0, sizeof(work));
	for (u32 at = 0; at < stream_len; at += len) {
		len = by_bytes ? 1 : 1 + random_below(random_below(2) ? stream_len : 40);
		if (len > stream_len - at)
			len = stream_len - at;
		if (next >= at + len || work.h.scan.state == RQ_LOST)
			continue; /* of a body that is skipped: S2 */
		piece_at = at;
		work.scan_seq = at;
		work.scan_from = next > at ? next : at;
		work.scan_len = len;
		scan_packet(NULL);
		next = work.scan_next;
		for (u32 i = 0; i < found->effects; i++)
			note(to, to->done + found->marks[i].request, found->marks[i].set,
			     found->hashes[i]);
		to->done += found->done;
		if (found->late & ~PENDING_MARKS)
			note(to, to->done, EFFECT_SETTLE, 0);
	}
	to->state = work.h.scan.state;
	to->pending = work.h.scan.pending;
}

static void ask_requests(void)
{
	struct outcome by_bytes, by_pieces;

	make_stream();
	scan(&by_bytes, true);
	requests += by_bytes.done;
	effects += by_bytes.effects;
	lost += by_bytes.state == RQ_LOST;
	for (u32 i = 0; i < 3; i++) {
		scan(&by_pieces, false);
		if (memcmp(&by_bytes, &by_pieces, sizeof(by_bytes))) {
			if (!wrong++)
				fprintf(stderr, "%.*s\ndone %u, %u; effects %u, %u; state %u, %u\n",
					(int)stream_len, stream, by_bytes.done, by_pieces.done,
					by_bytes.effects, by_pieces.effects, by_bytes.state,
					by_pieces.state);
		}
	}
}

/* Whether the scanner takes these bytes as one reply that is no error, and no byte more. */
static bool reply_by_bytes(const u8 *bytes, u32 len)
{
	struct reply_found found = {};
	struct scan_reply s = {};

	for (u32 i = 0; i < len; i++) {
		if (found.done || s.state == RP_LOST)
			return false;
		if (s.state == RP_BLOB)
			scan_reply_skip(&s, &found, 1);
		else
			scan_reply_byte(&s, &found, bytes[i]);
	}
	return found.done == 1 && found.success && s.state == RP_TYPE && !s.left;
}

/* Whether the bytes that begin one of these strings are said to be one, and are not; any text behind them. */
static void ask_reply(const u8 *bytes, u32 len)
{
	u8 word[8] = {'$', '1', '\r', '\n', 'x', '\r', '\n', '9'};
	u32 bulk;
	u64 value;
	bool whole;

	memcpy(word, bytes, len);
	memcpy(&value, word, 8);
	whole = word[0] == '$' ? reply_bulk_whole(value, len) : reply_line_whole(value, len);
	bulk = resp_bulk_bytes(value, true);
	replies += whole;
	if (whole && !reply_by_bytes(bytes, len))
		wrong++;
	if (bulk && bulk <= 8 && !reply_by_bytes(word, bulk))
		wrong++;
	if (!whole && bulk == len)
		wrong++;
}

static void ask_replies(void)
{
	static const u8 letters[REPLY_LETTERS + 1] = "+OK:$-019\r\nx";
	u8 bytes[8];

	for (u32 len = 1, all = REPLY_LETTERS; len <= REPLY_LEN; len++, all *= REPLY_LETTERS)
		for (u32 number = 0; number < all; number++) {
			for (u32 i = 0, left = number; i < len; i++, left /= REPLY_LETTERS)
				bytes[i] = letters[left % REPLY_LETTERS];
			ask_reply(bytes, len);
		}
}

/* One's complement: the sum's remainder by 65,535, and 0 for nothing but 0. */
static void ask_fold(u64 sum)
{
	u64 remainder = sum % 0xffff;

	folds++;
	wrong += csum_fold(sum) != (sum && !remainder ? 0xffff : remainder);
}

static void ask_sums(void)
{
	static const u64 parts[] = {0,	     1,		 0x7fff,     0x8000,	 0xfffe,    0xffff,
				    0x10000, 0x7fffffff, 0x80000000, 0xfffeffff, 0xffffffff};
	const u32 n = sizeof(parts) / sizeof(parts[0]);

	for (u32 i = 0; i < n * n; i++)
		ask_fold(parts[i / n] << 32 | parts[i % n]);
	for (u32 i = 0; i < FOLDS && !wrong; i++) {
		random_below(2);
		ask_fold(random_state >> (random_state & 63));
	}
}

static void ask_letters(void)
{
	for (u32 i = 0; i < 256 * 8 * 16; i++) {
		u8 bytes[8];
		u64 word;

		for (u32 k = 0; k < 8; k++)
			bytes[k] = random_below(256);
		bytes[i / 256 & 7] = i;
		memcpy(&word, bytes, 8);
		word = lower_word(word);
		for (u32 k = 0; k < 8; k++)
			wrong += (u8)(word >> k * 8) != lower(bytes[k]);
	}
}

int main(void)
{
	sim_ops.map_lookup = lookup;
	sim_ops.skb_load = skb_load;
	sim_ops.point = nothing;
	*(u64 *)&erb_control = CONTROL_MAP;
	*(u64 *)&work_map = WORK_MAP;
	*(u64 *)&erb_commands = COMMANDS_MAP;
	control.set_mask = 0xffff;
	control.unknown_class = CMD_HARMLESS;
	for (u32 i = 0; i < sizeof(control.hash) / 8; i++) {
		random_below(2);
		((u64 *)&control.hash)[i] = random_state;
	}
	ask_letters();
	ask_sums();
	ask_replies();
	for (u32 i = 0; i < STREAMS && !wrong; i++)
		ask_requests();
	printf("requests %llu effects %llu lost %llu replies %llu folds %llu wrong %llu\n",
	       requests, effects, lost, replies, folds, wrong);
	return 0;
}
