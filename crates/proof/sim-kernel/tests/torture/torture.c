// SPDX-License-Identifier: Apache-2.0 OR MIT
/* torture.c - one thread fills and invalidates a key as the daemon does, others answer GETs for it
 * from the same set: cache.h, get.h and control.bpf.c as they are, on real processors. The last word
 * of each value is the sum of those before it, so a torn one shows; it ends the run.
 *
 *   torture SECONDS READERS
 *
 * Prints "fills <n> answers <n> refusals <n> torn <n>". */
#define HANDLER_WORK "redis/work.h"
#include "control.bpf.c"
#include "net/tier_xdp.h"
#include "redis/handler.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define READERS_MAX 8

struct sim_ops sim_ops;

static struct control the_control = {
    .lease_until_ns = ~0ULL, .cache_epoch = 1, .fills = 1, .hash = {.begin = 42, .odd = 43}};
static struct cache_set the_set __attribute__((aligned(64)));
static struct cache_large the_large __attribute__((aligned(64)));
static struct cache_digest the_digest __attribute__((aligned(64)));
static struct fill_work the_fill_work;
static struct fill_io the_fill_io;
static struct interests the_interests;
static __thread u64 stats[STAT_MAX];
static __thread struct work the_work;
static int stop;

struct counts {
	u64 answers, refusals, torn;
};

/* One cache set, and what is per CPU in the kernel is per thread here. */
void *torture_value(const void *map, __u32 at)
{
	if (map == &erb_control)
		return &the_control;
	if (map == &erb_sets)
		return &the_set;
	if (map == &erb_large)
		return &the_large;
	if (map == &erb_digests)
		return &the_digest;
	if (map == &fill_work_map)
		return &the_fill_work;
	if (map == &erb_fill_io)
		return &the_fill_io;
	if (map == &erb_interests)
		return &the_interests;
	if (map == &erb_stats)
		return &stats[at];
	abort();
}

/* Of every size class, and as long as its slots hold. */
static u32 value_len(u64 n)
{
	static const u16 lens[] = {32, 96, 200, 448, 1024, 1800};

	return lens[n % (sizeof(lens) / sizeof(lens[0]))];
}

static void value_make(u8 *value, u32 len, u64 n)
{
	u64 sum = 0, word;
	u32 at = 0;

	for (; at + 8 < len; at += 8) {
		word = (n + at) * 0x9e3779b97f4a7c15ULL;
		sum += word;
		__builtin_memcpy(value + at, &word, 8);
	}
	__builtin_memcpy(value + at, &sum, 8);
}

static bool value_whole(const u8 *value, u32 len)
{
	u64 sum = 0, word = 0;
	u32 at = 0;

	for (; at + 8 <= len; at += 8) {
		__builtin_memcpy(&word, value + at, 8);
		sum += word;
	}
	return at == len && sum == 2 * word;
}

static void key_fill(struct fill_slot *slot)
{
	__builtin_memcpy(slot->key, "key", 3);
	slot->key_len = 3;
}

static u64 write_for(unsigned int seconds)
{
	struct fill_slot *slot = &the_fill_io.slots[0];
	u64 n = 0, fills = 0;

	alarm(seconds);
	the_fill_io.count = 1;
	key_fill(slot);
	for (; !__atomic_load_n(&stop, __ATOMIC_RELAXED); n++) {
		if (n % 8 == 7) {
			erb_invalidate(0);
			continue;
		}
		erb_fill_begin(0);
		slot->value_len = value_len(n);
		slot->type = SLOT_STRING;
		value_make(slot->value, slot->value_len, n);
		erb_fill_insert(0);
		fills += slot->status == FILL_OK;
	}
	return fills;
}

/* One is enough. */
static void torn(struct counts *counts)
{
	counts->torn++;
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
}

static void *read_on(void *to)
{
	static const u8 key[KEY_BYTES_MAX] = "key";
	struct counts *counts = to;
	struct work *w = &the_work;
	u32 len;

	lookup_key(&w->h.look, key, 3, &the_control.hash);
	w->h.look.cache_epoch = 1;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		w->reply_len = 0;
		if (fast_get(w, &the_control)) {
			counts->refusals++;
			continue;
		}
		counts->answers++;
		len = strtoul((char *)w->reply + 1, 0, 10);
		if (!value_whole(w->reply + 3 + decimal_digits(len), len))
			torn(counts);
	}
	return 0;
}

static void time_over(int signal)
{
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
	unsigned long seconds = argc == 3 ? strtoul(argv[1], 0, 10) : 0;
	unsigned long readers = argc == 3 ? strtoul(argv[2], 0, 10) : 0;
	struct counts counts[READERS_MAX] = {}, all = {};
	pthread_t threads[READERS_MAX];
	u64 fills;

	if (!seconds || !readers || readers > READERS_MAX) {
		fprintf(stderr, "torture: wants SECONDS and READERS, at most %d\n", READERS_MAX);
		return 2;
	}
	signal(SIGALRM, time_over);
	for (u32 i = 0; i < readers; i++)
		if (pthread_create(&threads[i], 0, read_on, &counts[i]))
			return 2;
	fills = write_for(seconds);
	for (u32 i = 0; i < readers; i++) {
		pthread_join(threads[i], 0);
		all.answers += counts[i].answers;
		all.refusals += counts[i].refusals;
		all.torn += counts[i].torn;
	}
	printf("fills %llu answers %llu refusals %llu torn %llu\n", fills, all.answers,
	       all.refusals, all.torn);
	return 0;
}
