// SPDX-License-Identifier: Apache-2.0 OR MIT
/* core.c - the module's core (kmod/core/) in user space, over a disk that is a buffer.
 *
 *   core encode                       records of redis/log.h from the input, as a segment, to the output
 *   core random SEED ROUNDS FOLDER    one thread does what CPUs, threads and daemon do, in any order
 *   core race SEED RECORDS FOLDER     CPUs and threads as threads of this process
 *
 * The last two write what the disk had synced to FOLDER, a file for each segment; who started them reads these with
 * another reader. They print what was pushed, and end with 1 if a rule was broken. */
#include <linux/types.h>
#define HANDLER_ABI "redis/abi.h"
#include "base/abi.h"
#include "core/sink.h"
#include "../../../kmod-vm/guest/header.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CPUS	    5
#define FIFO_BYTES  (4 << 10)
#define BATCH_BYTES 8192
#define FILE_BYTES  (256 << 10) /* then the disk is full */
#define FILES	    4096
#define STUCK_MAX   300000 /* looks without a record, half a minute of them */

/* The module knows a slot's header by itself, as it cannot include all of base/abi.h. */
#define SAME_IN_SLOT(field) offsetof(struct log_image, field) == offsetof(struct slot, field)
_Static_assert(SAME_IN_SLOT(value_len) && SAME_IN_SLOT(key_len) && SAME_IN_SLOT(db),
	       "as in struct slot");
_Static_assert(sizeof(struct log_image) == offsetof(struct slot, data), "as in struct slot");

struct disk_file {
	u8 *bytes;
	u64 count;
	u64 synced;
};

static struct sink sink;
static struct fifo fifos[CPUS];
static struct erb_io_status page = {.gate = GATE_NO_FILE};
static struct disk_file files[FILES];
static u32 file_count;
static u64 last_lsn;
static u64 random_state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void need(bool is_so, const char *what)
{
	if (is_so)
		return;
	printf("broken: %s\n", what);
	exit(1);
}

static u32 random_below(u64 *state, u32 bound)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (u32)(*state >> 33) % bound;
}

static void sink_make(void)
{
	u32 at;

	sink.page = &page;
	sink.batch_size = BATCH_BYTES;
	sink.batch = malloc(BATCH_BYTES);
	sink.merge.count = CPUS;
	sink.merge.fifos = calloc(CPUS, sizeof(*sink.merge.fifos));
	sink.merge.heap = calloc(CPUS, sizeof(*sink.merge.heap));
	for (at = 0; at < CPUS; at++) {
		fifos[at].size = FIFO_BYTES;
		fifos[at].bytes = aligned_alloc(64, FIFO_BYTES + fifo_rounded(RECORD_BYTES_MAX));
		sink.merge.fifos[at] = &fifos[at];
	}
}

static void sink_free(void)
{
	u32 at;

	for (at = 0; at < CPUS; at++)
		free(fifos[at].bytes);
	for (at = 0; at < file_count; at++)
		free(files[at].bytes);
	free(sink.batch);
	free(sink.merge.fifos);
	free(sink.merge.heap);
}

/* A record's key is its number, its value so many bytes of that. */
static u32 record_make(u8 *to, u64 lsn, u32 value_len)
{
	struct log_front front = {.record = {.lsn = lsn, .kind = LOG_SET}};

	front.image.value_len = value_len;
	front.image.key_len = sizeof(lsn);
	front.image.db = lsn % 16;
	front.record.expiry_ms = lsn % 3 ? lsn : 0;
	front.record.bytes = sizeof(front) + value_len + sizeof(lsn);
	memcpy(to, &front, sizeof(front));
	memset(to + sizeof(front), (int)lsn, value_len);
	memcpy(to + sizeof(front) + value_len, &lsn, sizeof(lsn));
	return front.record.bytes;
}

static void file_make(const struct segment_header *header)
{
	struct disk_file *file = &files[file_count++];

	need(file_count < FILES, "too many files");
	file->bytes = malloc(FILE_BYTES);
	memcpy(file->bytes, header, sizeof(*header));
	file->count = sizeof(*header);
	file->synced = sizeof(*header);
}

/* Neither what comes too late, nor what is another journal's, nor what is no header. */
static void refused(u64 first_lsn, bool retains)
{
	struct segment_header late = header_make(file_count + 1, first_lsn + 1);
	struct segment_header other = header_make(file_count + 1, first_lsn);
	struct segment_header broken = other;

	broken.crc ^= 1;
	other.journal[0] ^= 1;
	other.crc = 0;
	other.crc = segment_crc(0, &other, sizeof(other));
	need(sink_accepts(&sink, &broken, true) == -EINVAL, "a wrong sum");
	need(!retains || sink_accepts(&sink, &late, true) == -EINVAL, "a number would be lost");
	need(!retains || sink_accepts(&sink, &other, true) == -ESTALE, "another journal");
}

/* A new file for what is not synced. As the daemon: it knows what was synced, and which number came last. */
static void file_begin(void)
{
	struct segment_header header = header_make(file_count + 1, page.synced_lsn + 1);

	refused(page.synced_lsn + 1, sink_retains(&sink));
	need(sink_accepts(&sink, &header, false) == 0, "the next file is accepted");
	file_make(&header);
	sink_begin(&sink, &header);
}

static struct disk_file *file_now(void)
{
	return &files[file_count - 1];
}

/* So many bytes of the batch are written. */
static bool file_write(struct disk_file *file, u32 bytes)
{
	u64 room = FILE_BYTES - file->count;

	need(page.file_bytes == file->count, "the place in the file is its length");
	if (bytes > room)
		bytes = room;
	memcpy(file->bytes + file->count, sink.batch, bytes);
	file->count += bytes;
	return bytes == sink.batch_bytes;
}

/* What no sync has promised may be there after a loss of power, or not: here it is not. */
static void files_save(const char *folder)
{
	char name[4096];
	u32 at;

	for (at = 0; at < file_count; at++) {
		FILE *to;

		snprintf(name, sizeof(name), "%s/%08u", folder, at);
		to = fopen(name, "w");
		need(to && fwrite(files[at].bytes, files[at].synced, 1, to) == 1,
		     "a file is saved");
		fclose(to);
	}
}

static void push(u32 cpu, u32 value_len, bool is_ahead)
{
	u8 record[RECORD_BYTES_MAX];
	u32 bytes = record_make(record, last_lsn + 1, value_len);
	int refused = sink_reserve(&sink, &fifos[cpu], bytes);

	need(!refused || !is_ahead, "what is left of a reservation");
	if (refused)
		return;
	last_lsn++;
	need(sink_push(&sink, &fifos[cpu], record, bytes) == 0, "what was reserved is taken");
}

/* One round of the write thread; 0: all of it is written. Else so many bytes are. */
static void write_round(u32 bytes)
{
	enum merge_found found = sink_fill(&sink);

	need(found != MERGE_MISSING && found != MERGE_BACKWARD, "numbers are dense");
	if (!sink.batch_bytes)
		return;
	need(sink_judge(&sink, found, 1, 0) == GATE_OPEN, "nothing is wrong");
	if (file_write(file_now(), bytes ? bytes % sink.batch_bytes : sink.batch_bytes))
		sink_written(&sink);
	else
		need(sink_fail(&sink, GATE_WRITE, 0), "the gate was open");
}

static void sync_round(bool fails)
{
	if (!sink_sync_begin(&sink))
		return;
	need(gate_sound(&page.gate), "nothing is asked of a file that failed");
	if (fails) {
		need(sink_fail(&sink, GATE_SYNC, -EIO), "the gate was open");
		return;
	}
	file_now()->synced = file_now()->count;
	sink_sync_done(&sink);
}

/* Reads out all that is retained: it is what comes behind the last that was synced. */
static void read_out(void)
{
	u64 lsn = page.synced_lsn;
	const struct log_record *record;

	sink_rewind(&sink);
	while ((record = sink_read(&sink))) {
		need(record->lsn == ++lsn, "what is retained is in order and dense");
		merge_take(&sink.merge);
	}
	need(lsn == last_lsn, "nothing is lost");
}

/* The gate is shut: what can still be written is, and the file is let go. */
static void finish(void)
{
	struct segment_header header = header_make(file_count + 1, page.synced_lsn + 1);

	need(sink_accepts(&sink, &header, true) == -EBUSY, "no other file while one ends");
	while (gate_sound(&page.gate) && sink_fill(&sink) < MERGE_MISSING && sink.batch_bytes) {
		if (file_write(file_now(), sink.batch_bytes))
			sink_written(&sink);
		else
			need(sink_fail(&sink, GATE_WRITE, 0), "a failure says more");
	}
	sync_round(false);
	sink_unreserve(&sink);
	sink_end(&sink);
	need(page.gate != GATE_CLOSED || !sink_retains(&sink), "all that was pushed is written");
	need(!sink_fail(&sink, GATE_SYNC, -EIO) || page.gate == GATE_SYNC, "one reason");
}

/* Another file takes the place of the one at work, which has what is not synced. More comes until then. */
static void exchange(bool fails)
{
	struct segment_header header = header_make(file_count + 1, page.written_lsn + 1);

	refused(page.written_lsn + 1, true);
	need(sink_accepts(&sink, &header, false) == (sink_retains(&sink) ? -EBUSY : 0), "FILE");
	need(sink_accepts(&sink, &header, true) == 0, "the next file is accepted");
	sink.next = header;
	need(sink_accepts(&sink, &header, true) == -EBUSY, "one comes next");
	push(0, 10, false);
	write_round(0);
	sync_round(fails);
	if (!sink_continue(&sink)) {
		need(page.gate != GATE_OPEN, "a file that failed is not continued");
		return;
	}
	file_make(&header);
	need(page.before_lsn == page.synced_lsn, "it says what the former files have");
	need(!sink_continue(&sink), "it comes once");
}

/* A CPU has a number and has not pushed yet, while another one pushes the next, and all is written that can be. A sync
 * may fail meanwhile. */
static void push_late(u32 cpu, u32 other, bool fails)
{
	u8 record[RECORD_BYTES_MAX];
	u32 bytes = record_make(record, last_lsn + 1, 10);
	u64 lsn;

	if (cpu == other || sink_reserve(&sink, &fifos[cpu], bytes))
		return;
	lsn = ++last_lsn;
	push(other, 10, false);
	while (page.gate == GATE_OPEN) {
		sink_fill(&sink);
		if (!sink.batch_bytes)
			break;
		if (file_write(file_now(), sink.batch_bytes))
			sink_written(&sink);
		else
			sink_fail(&sink, GATE_WRITE, 0);
	}
	need(page.gate != GATE_OPEN || sink.merge.next == lsn, "what is missing is waited for");
	if (page.gate == GATE_OPEN && last_lsn > lsn) {
		need(sink_fill(&sink) == MERGE_MISSING, "it is missed");
		need(sink_judge(&sink, MERGE_MISSING, 100, 10) == GATE_OPEN, "as of now");
		need(sink_judge(&sink, MERGE_MISSING, 110, 10) == GATE_OPEN, "it may come");
		need(sink_judge(&sink, MERGE_MISSING, 111, 10) == GATE_GAP, "not for ever");
		sink.batch_records = 1;
		need(sink_judge(&sink, MERGE_MISSING, 111, 10) == GATE_OPEN, "it is another one");
		need(sink_judge(&sink, MERGE_READY, 112, 10) == GATE_OPEN, "it has come");
		sink.batch_records = 0;
	}
	need(sink_judge(&sink, MERGE_BACKWARD, 1, 10) == GATE_BACKWARD, "a number comes once");
	if (fails)
		sink_fail(&sink, GATE_SYNC, -EIO);
	need(sink_push(&sink, &fifos[cpu], record, bytes) == 0, "what was reserved is taken");
}

/* What was reserved while a file was at work, and was never pushed, is nothing once it was let go. */
static void push_unreserved(u32 cpu)
{
	u8 record[RECORD_BYTES_MAX];
	u32 bytes = record_make(record, last_lsn + 1, 10);

	need(sink_push(&sink, &fifos[cpu], record, bytes) == -ESHUTDOWN, "it was let go");
}

static void random_shut(u64 *state)
{
	u32 kind = random_below(state, 100);
	u64 before = last_lsn;

	push(random_below(state, CPUS), 10, false);
	need(last_lsn == before, "nothing is taken while the gate is shut");
	if (sink_works(&sink)) {
		finish();
		for (kind = 0; kind < CPUS; kind++)
			push_unreserved(kind);
	} else if (kind < 30)
		read_out();
	else if (kind < 40)
		sink_forget(&sink, page.synced_lsn);
	else if (kind < 70)
		file_begin();
}

static void random_round(u64 *state)
{
	u32 kind = random_below(state, 100);

	if (page.gate != GATE_OPEN)
		random_shut(state);
	else if (kind < 5)
		push_late(random_below(state, CPUS), random_below(state, CPUS),
			  !random_below(state, 20));
	else if (kind < 68)
		push(random_below(state, CPUS), random_below(state, 1400), false);
	else if (kind < 70)
		sink_reserve(&sink, &fifos[random_below(state, CPUS)], RECORD_BYTES_MAX);
	else if (kind < 97)
		write_round(random_below(state, 50) ? 0 : 1 + random_below(state, BATCH_BYTES));
	else if (kind < 98 && !random_below(state, 3))
		need(gate_shut(&page.gate, GATE_CLOSED), "the daemon goes once");
	else if (kind < 98)
		exchange(!random_below(state, 20));
	else
		sync_round(!random_below(state, 50));
}

/* A batch is full to the byte but for the largest record, which is longer in a segment than in a fifo. */
static void fill_batch(void)
{
	u32 largest = RECORD_BYTES_MAX - sizeof(struct log_front) - 8;

	push(0, largest, false);
	push(1, largest, false);
	push(2, BATCH_BYTES - RECORD_BYTES_MAX - 2 * SEGMENT_RECORD_BYTES_MAX - 48, false);
	push(3, largest, false);
	while (last_lsn != page.written_lsn)
		write_round(0);
	need(last_lsn == 4 && sink_push(&sink, fifos, NULL, 64) == -EINVAL, "no memory");
}

static int run_random(u32 rounds, const char *folder)
{
	u64 state = random_state;

	sink_make();
	file_begin();
	fill_batch();
	while (rounds--) {
		random_round(&state);
		need(page.synced_lsn <= page.written_lsn && page.written_lsn <= last_lsn,
		     "synced, written, pushed");
	}
	if (sink_works(&sink)) {
		gate_shut(&page.gate, GATE_CLOSED);
		finish();
	}
	read_out();
	files_save(folder);
	printf("pushed %llu synced %llu files %u\n", last_lsn, page.synced_lsn, file_count);
	sink_free();
	return 0;
}

/* Of the threads below. */
static u64 wanted;
static u64 woken;
static int race_over;

static void *race_cpu(void *cpu)
{
	struct fifo *fifo = cpu;
	u64 state = random_state + (u64)(fifo - fifos);
	u8 record[RECORD_BYTES_MAX];

	while (core_load(&last_lsn) < wanted) {
		u32 value_len = random_below(&state, 300), bytes;
		u64 lsn;

		bytes = record_make(record, 1, value_len);
		if (sink_reserve(&sink, fifo, bytes)) {
			sched_yield();
			continue;
		}
		lsn = __atomic_add_fetch(&last_lsn, 1, __ATOMIC_RELAXED);
		record_make(record, lsn, value_len);
		need(sink_push(&sink, fifo, record, bytes) == 0, "what was reserved is taken");
		if (sink_wakes(&sink, fifo))
			__atomic_add_fetch(&woken, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* The file may be let go, and a new one come, while no sync is under way: sync_lock. */
static pthread_mutex_t sync_lock = PTHREAD_MUTEX_INITIALIZER;

static void race_sync(u64 *state)
{
	struct disk_file *file;
	bool due, fails = !random_below(state, 20);

	pthread_mutex_lock(&sync_lock);
	pthread_mutex_lock(&lock);
	due = sink_sync_begin(&sink);
	file = file_now();
	pthread_mutex_unlock(&lock);
	if (due) {
		u64 count = __atomic_load_n(&file->count, __ATOMIC_ACQUIRE);

		sched_yield();
		pthread_mutex_lock(&lock);
		if (fails) {
			sink_fail(&sink, GATE_SYNC, -EIO);
		} else {
			file->synced = count;
			sink_sync_done(&sink);
		}
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_unlock(&sync_lock);
}

static void *race_syncer(void *unused)
{
	u64 state = random_state + 1000;

	(void)unused;
	while (!core_load(&race_over)) {
		race_sync(&state);
		usleep(100);
	}
	return NULL;
}

static void race_write(u64 *state)
{
	enum merge_found found = sink_fill(&sink);
	u64 room = FILE_BYTES - file_now()->count;
	u32 bytes = random_below(state, 100) ? sink.batch_bytes : sink.batch_bytes / 2;

	need(found != MERGE_BACKWARD, "no number comes twice");
	if (!sink.batch_bytes)
		return;
	bytes = bytes > room ? room : bytes;
	memcpy(file_now()->bytes + file_now()->count, sink.batch, bytes);
	__atomic_store_n(&file_now()->count, file_now()->count + bytes, __ATOMIC_RELEASE);
	if (bytes != sink.batch_bytes) {
		sink_fail(&sink, GATE_WRITE, 0);
		return;
	}
	pthread_mutex_lock(&lock);
	sink_written(&sink);
	pthread_mutex_unlock(&lock);
}

static void race_new_file(void)
{
	pthread_mutex_lock(&sync_lock);
	pthread_mutex_lock(&lock);
	sink_end(&sink);
	file_begin();
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&sync_lock);
}

static void race_exchange(u64 *state)
{
	pthread_mutex_lock(&lock);
	sink.next = header_make(file_count + 1, page.written_lsn + 1);
	pthread_mutex_unlock(&lock);
	race_sync(state);
	pthread_mutex_lock(&sync_lock);
	pthread_mutex_lock(&lock);
	if (sink_continue(&sink)) {
		struct segment_header header = header_make(file_count + 1, page.before_lsn + 1);

		file_make(&header);
	}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&sync_lock);
}

static int run_race(u64 records, const char *folder)
{
	u64 state = random_state + 2000, calm = 0, written = 0, stuck = 0;
	pthread_t cpus[CPUS], syncer;
	u32 at;

	wanted = records;
	sink_make();
	file_begin();
	for (at = 0; at < CPUS; at++)
		pthread_create(&cpus[at], NULL, race_cpu, &fifos[at]);
	pthread_create(&syncer, NULL, race_syncer, NULL);
	while (core_load(&last_lsn) < wanted || sink_retains(&sink) || calm++ < 3) {
		if (core_load(&page.gate) != GATE_OPEN)
			race_new_file();
		else if (!random_below(&state, 200))
			race_exchange(&state);
		race_write(&state);
		sink_sleep(&sink);
		usleep(50);
		stuck = page.written_lsn == written ? stuck + 1 : 0;
		written = page.written_lsn;
		need(stuck < STUCK_MAX, "a number never came");
	}
	core_store(&race_over, 1);
	pthread_join(syncer, NULL);
	for (at = 0; at < CPUS; at++)
		pthread_join(cpus[at], NULL);
	sink_count(&sink);
	need(!sink_retains(&sink) && !page.retained_bytes, "all is synced");
	need(page.pushed == last_lsn, "all is counted");
	files_save(folder);
	printf("pushed %llu synced %llu files %u\n", last_lsn, page.synced_lsn, file_count);
	sink_free();
	return 0;
}

/* The input: a header, then records of redis/log.h, each rounded up. */
static int run_encode(void)
{
	u8 record[RECORD_BYTES_MAX], to[SEGMENT_RECORD_BYTES_MAX];
	struct segment_header header;
	struct log_front front;
	u32 rest;

	need(fread(&header, sizeof(header), 1, stdin) == 1, "a header");
	need(segment_header_sound(&header), "the header is sound");
	while (fread(&front, sizeof(front), 1, stdin) == 1) {
		rest = front.record.bytes - sizeof(front);
		need(record_sound(&front, front.record.bytes), "the record is sound");
		memcpy(record, &front, sizeof(front));
		need(!rest || fread(record + sizeof(front), rest, 1, stdin) == 1, "a whole record");
		rest = record_encode(segment_seed(&header), record, to);
		need(fwrite(to, rest, 1, stdout) == 1, "the output");
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "encode"))
		return run_encode();
	need(argc == 5, "arguments");
	random_state = strtoull(argv[2], NULL, 10);
	if (!strcmp(argv[1], "random"))
		return run_random(strtoul(argv[3], NULL, 10), argv[4]);
	need(!strcmp(argv[1], "race"), "a command");
	return run_race(strtoull(argv[3], NULL, 10), argv[4]);
}
