// SPDX-License-Identifier: Apache-2.0 OR MIT
/* main.c - checks of the module on the kernel that runs.
 *
 * Each check is a process of its own, so the device is closed behind it. What the guest's shell script does not do before
 * and after is done here. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <linux/fs.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "guest.h"

static const char *module_file;
static char path[2][4096];

static void check_without(void)
{
	struct push_state *state = programs_load(0);

	programs_attach("lo");
	need(system(
		 "ping -c 1 127.0.0.1 >/dev/null 2>&1 || busybox ping -c 1 127.0.0.1 >/dev/null") ==
		 0,
	     "a packet");
	need(state->without && !state->lsn, "programs go on without the module");
}

/* How many allocations from here on the kernel lets this thread have, the last of which fails; 0: all. */
static void fail_after(int fd, int count)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", count);

	need(pwrite(fd, text, length, 0) == length, "the kernel is told to fail");
}

static int fail_left(int fd)
{
	char text[16] = "";

	need(pread(fd, text, sizeof(text) - 1, 0) > 0, "the kernel says whether it has failed");
	return atoi(text);
}

/* Each allocation of its insertion fails once, and nothing is left of it. */
static void check_insert(void)
{
	int fails = open("/proc/thread-self/fail-nth", O_RDWR),
	    module = open(module_file, O_RDONLY);
	int count = 0, refused = 0, left, error;

	if (fails < 0) {
		printf("skipped: this kernel cannot be told to fail\n");
		return;
	}
	do {
		fail_after(fails, ++count);
		error = syscall(SYS_finit_module, module, "fifo_bytes=65536", 0) ? errno : 0;
		left = fail_left(fails);
		fail_after(fails, 0);
		refused += error != 0;
		need(error || syscall(SYS_delete_module, "erb_io", O_NONBLOCK) == 0, "it goes");
	} while (left == 0);
	need(!error && refused, "without a failure it is inserted, with one not always");
	printf("%d allocations failed, and %d times it was not inserted\n", count - 1, refused);
}

static void refused_file(int device, const char *what, int flags, int wanted)
{
	int fd = segment_make(path[0], 0, 1, 1), again = open(path[0], flags), error;

	error = device_give(device, again, 1, 1);
	printf("%s: %s\n", what, strerror(error));
	need(again >= 0 && error == wanted, what);
	close(fd);
	close(again);
}

static void check_refused(void)
{
	int device = device_open(), pipes[2], fd;
	struct erb_io_file bad = {.fd = -1};

	need(device >= 0, "the device opens");
	need(device_open() < 0 && errno == EBUSY, "one has the device");
	need(device_give(device, -1, 1, 1) == EBADF, "no descriptor");
	need(pipe(pipes) == 0 && device_give(device, pipes[1], 1, 1) == EINVAL, "a pipe");
	need(device_give(device, device, 1, 1) == EINVAL, "the device itself");
	refused_file(device, "read-only", O_RDONLY, EBADF);
	refused_file(device, "O_DIRECT", O_WRONLY | O_DIRECT, EINVAL);
	refused_file(device, "O_APPEND", O_WRONLY | O_APPEND, EINVAL);
	bad.fd = fd = segment_make(path[0], 0, 1, 1);
	need(ioctl(device, ERB_IO_FILE, &bad) < 0 && errno == EINVAL, "no header");
	need(device_give(device, fd, 1, 0) == EINVAL, "no first number");
	need(write(fd, "x", 1) == 1 && device_give(device, fd, 1, 1) == EEXIST,
	     "a file with content");
	need(device_status(device).gate == GATE_NO_FILE, "the gate is shut");
	need(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0) == MAP_FAILED,
	     "the page is read-only");
	need(mmap(NULL, 4096, PROT_READ, MAP_SHARED, device, 0) != MAP_FAILED, "the page is there");
}

/* 10^5 records, and a second file once all is synced. */
static void check_log(void)
{
	struct push_state *state = programs_load(0);
	int device = device_begin(1, 1, path[0]), fd;
	const struct erb_io_status *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, device, 0);
	struct erb_io_status status;
	char byte;
	u64 last;

	need(page != MAP_FAILED && page->gate == GATE_OPEN, "the gate is seen without a call");
	need(read(device, &byte, 1) < 0 && errno == EBUSY,
	     "nothing is read out while a file is at work");
	programs_run(50000);
	device_wait_synced(device, state->lsn);
	fd = segment_make(path[1], 0, 2, state->lsn + 1);
	need(device_give(device, fd, 2, state->lsn + 1) == 0, "another file takes its place");
	last = state->lsn;
	programs_run(50000);
	device_wait_synced(device, state->lsn);
	status = device_status(device);
	printf("%llu records, %llu batches, %llu syncs, %llu wakes, %llu times full\n",
	       status.pushed, status.batches, status.syncs, status.wakes, status.refused);
	need(status.wakes * 100 <= status.pushed * 2, "at most two wakes for a hundred records");
	need(segment_read(path[0], 1, &last) + segment_read(path[1], last + 1, &last) ==
		 state->pushed,
	     "all is in the files");
	need(last == state->lsn && state->pushed >= 100000, "each number is there");
}

#define FILES	    6 /* that take each other's place while records come */
#define FILE_US	    50000
#define SLOW_FACTOR 20 /* where somebody says of each state what it is */
#define NAME_BYTES  (sizeof(path[0]) + 16)

static void file_path(char *to, int number)
{
	snprintf(to, NAME_BYTES, "%s.%d", path[0], number);
}

static bool marks, marks_end;

static void *give_files(void *at)
{
	int device = *(int *)at, fd, error;
	char name[NAME_BYTES];

	for (int number = 2; number <= FILES; number++) {
		u64 first = device_status(device).written_lsn + 1;

		file_path(name, number);
		fd = segment_make(name, 0, number, first);
		do {
			usleep(marks ? SLOW_FACTOR * FILE_US : FILE_US);
			error = device_give_next(device, fd, number, first);
		} while (error == EBUSY);
		need(error == 0, "the next file is taken while records come");
		close(fd);
	}
	return NULL;
}

static void mark(int mapper, const char *what, u64 lsn)
{
	struct {
		struct dm_ioctl head;
		u64 sector; /* with the text struct dm_target_msg */
		char text[64];
	} call = {.head = {.version = {DM_VERSION_MAJOR},
			   .data_size = sizeof(call),
			   .data_start = offsetof(typeof(call), sector),
			   .name = "logged"}};

	snprintf(call.text, sizeof(call.text), "mark %s-%llu", what, lsn);
	need(ioctl(mapper, DM_TARGET_MSG, &call) == 0, "the disk's log is told");
}

/* What the module says of itself is said to the disk's log, as soon as it is known. */
static void *mark_all(void *at)
{
	int mapper = open("/dev/mapper/control", O_RDWR);
	u64 synced = 0, written = 0;

	while (!__atomic_load_n(&marks_end, __ATOMIC_RELAXED)) {
		struct erb_io_status status = device_status(*(int *)at);

		if (status.synced_lsn != synced)
			mark(mapper, "synced", synced = status.synced_lsn);
		if (status.written_lsn != written)
			mark(mapper, "written", written = status.written_lsn);
		usleep(1000);
	}
	return NULL;
}

/* Files take each other's place while records come. */
static void check_beside(void)
{
	struct push_state *state = programs_load(0);
	char name[NAME_BYTES];
	struct erb_io_status status;
	u64 last = 0, count = 0;
	pthread_t giver, marker;
	int device;

	file_path(name, 1);
	device = device_begin(1, 1, name);
	need(!marks || !pthread_create(&marker, NULL, mark_all, &device), "a thread begins");
	need(!pthread_create(&giver, NULL, give_files, &device), "a thread begins");
	do {
		programs_run(marks ? 100 : 20000);
		usleep(marks ? FILE_US : 0);
		status = device_status(device);
		need(status.gate == GATE_OPEN, "the gate stays open");
	} while (status.files < FILES);
	pthread_join(giver, NULL);
	device_wait_synced(device, state->lsn);
	__atomic_store_n(&marks_end, true, __ATOMIC_RELAXED);
	if (marks)
		pthread_join(marker, NULL);
	for (int number = 1; number <= FILES; number++) {
		if (number == FILES)
			need(device_status(device).before_lsn == last,
			     "it says where the last file begins");
		file_path(name, number);
		count += segment_read(name, last + 1, &last);
	}
	printf("%llu records in %d files\n", count, FILES);
	need(count == state->pushed && last == state->lsn, "all is in the files");
}

/* The same on a disk that logs writes and flushes: src/cuts.rs judges what it has behind each of them. */
static void check_flushes(void)
{
	marks = true;
	check_beside();
}

/* Packets of a network, not of a test call. */
static void check_packets(void)
{
	struct push_state *state = programs_load(0);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
	int device = device_begin(1, 1, path[0]), from = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	u64 last;

	programs_attach("far");
	inet_pton(AF_INET, "10.9.0.255", &to.sin_addr);
	setsockopt(from, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on));
	for (int sent = 0; sent < 5000; sent++)
		sendto(from, "packet", 6, 0, (void *)&to, sizeof(to));
	usleep(200000);
	device_wait_synced(device, state->lsn);
	need(segment_read(path[0], 1, &last) == state->pushed, "all is in the file");
	printf("%llu records of 5000 packets by XDP and by TC\n", state->pushed);
	need(state->pushed >= 9000, "most packets were seen by both");
}

/* The folder's file system fails; the next file is elsewhere, and gets first what is not synced. */
static void check_failure(u32 gate)
{
	struct push_state *state = programs_load(0);
	int device = device_begin(1, 1, path[0]), fd;
	u64 in_first, last, retained;
	struct erb_io_status status;

	do {
		programs_run(2000);
		status = device_status(device);
		printf("pushed %llu, written %llu, synced %llu\n", status.pushed,
		       status.written_lsn, status.synced_lsn);
	} while (status.gate == GATE_OPEN);
	device_wait_state(device, ERB_IO_IDLE);
	status = device_status(device);
	printf("gate %u, error %d, pushed %llu, synced to %llu\n", status.gate, status.error,
	       state->pushed, status.synced_lsn);
	need(status.gate == gate, "the gate says why");
	retained = device_read_out(device, status.synced_lsn + 1);
	need(status.synced_lsn + retained == state->lsn, "all that is not synced can be read out");
	in_first = segment_read(path[0], 1, &last);
	need(in_first >= status.synced_lsn || gate == GATE_SYNC, "what is synced is in the file");
	fd = segment_make(path[1], 0, 2, status.synced_lsn + 1);
	need(device_give(device, fd, 2, status.synced_lsn + 2) == EINVAL, "a number would be lost");
	need(device_give(device, fd, 2, status.synced_lsn + 1) == 0, "the next file is taken");
	state->shut = 0;
	programs_run(1000);
	device_wait_synced(device, state->lsn);
	need(segment_read(path[1], status.synced_lsn + 1, &last) == state->lsn - status.synced_lsn,
	     "what was retained is first in the next file");
}

/* Whoever holds the device is killed while records come. */
static void check_killed(void)
{
	struct push_state *state = programs_load(0);
	int pipes[2], status, device;
	pid_t daemon, killer;
	u64 last;

	need(pipe(pipes) == 0, "a pipe");
	daemon = fork();
	if (!daemon) {
		device_begin(1, 1, path[0]);
		need(write(pipes[1], "x", 1) == 1, "the daemon is ready");
		pause();
	}
	close(pipes[1]);
	need(read(pipes[0], &status, 1) == 1, "the daemon is ready");
	killer = fork();
	if (!killer) {
		usleep(500000);
		kill(daemon, SIGKILL);
		_exit(0);
	}
	programs_run(100000000);
	waitpid(daemon, &status, 0);
	waitpid(killer, &status, 0);
	need(state->shut, "the gate is shut");
	device = device_open();
	need(device >= 0, "the next daemon opens the device");
	device_wait_state(device, ERB_IO_IDLE);
	need(device_status(device).gate == GATE_CLOSED, "it says that the daemon has gone");
	need(device_status(device).retained_bytes == 0, "nothing is retained");
	need(segment_read(path[0], 1, &last) == state->pushed,
	     "all that was pushed is in the file");
	printf("%llu records were pushed until the gate was shut\n", state->pushed);
}

static u64 now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

/* A file system that is frozen blocks the module's threads, and nobody else. */
static void check_frozen(const char *folder)
{
	struct push_state *state = programs_load(0);
	int device = device_begin(1, 1, path[0]), at = open(folder, O_RDONLY), fd;
	u64 began, last;

	fd = segment_make(path[1], 0, 2, 1);
	need(ioctl(at, FIFREEZE, 0) == 0, "the file system freezes");
	began = now_ms();
	programs_run(2000);
	need(device_give(device, fd, 2, 1) == EBUSY,
	     "a second file while the first has unwritten records");
	need(device_status(device).retained_bytes, "records wait");
	close(device);
	device = device_open();
	need(device >= 0 && now_ms() - began < 10000, "no call waits");
	need(device_give(device, fd, 2, 1) == EBUSY, "the last file is not let go");
	need(system("rmmod erb_io 2>/dev/null") != 0, "the module stays");
	need(ioctl(at, FITHAW, 0) == 0, "the file system thaws");
	device_wait_state(device, ERB_IO_IDLE);
	need(segment_read(path[0], 1, &last) == state->pushed,
	     "all that was pushed is in the file");
}

/* A number that is taken and never pushed. */
static void check_gap(void)
{
	struct push_state *state = programs_load(0);
	int device = device_begin(1, 1, path[0]), fd;
	u64 lsn, last;

	programs_run(10);
	device_wait_synced(device, state->lsn);
	lsn = ++state->lsn;
	programs_run(10);
	device_wait_state(device, ERB_IO_IDLE);
	need(device_status(device).gate == GATE_GAP, "the gate says why");
	need(system("rmmod erb_io 2>/dev/null") != 0,
	     "the module stays while something is retained");
	need(ioctl(device, ERB_IO_FORGET, &lsn) == 0, "the gap is passed over");
	need(device_read_out(device, lsn + 1) == state->lsn - lsn, "what is behind it is there");
	need(ioctl(device, ERB_IO_FORGET, &state->lsn) == 0, "the rest is nobody's");
	need(device_status(device).retained_bytes == 0, "nothing is retained");
	fd = segment_make(path[1], 0, 2, state->lsn + 1);
	need(device_give(device, fd, 2, state->lsn + 1) == 0, "the next file is taken");
	lsn = state->lsn;
	state->shut = 0;
	programs_run(5000);
	device_wait_synced(device, state->lsn);
	need(segment_read(path[1], lsn + 1, &last) == state->lsn - lsn, "all is in the file");
}

/* A program keeps the module; pushes some. */
static void check_cycle(void)
{
	struct push_state *state = programs_load(0);
	int device = device_begin(1, 1, path[0]);
	u64 last;

	programs_run(500);
	need(system("rmmod erb_io 2>/dev/null") != 0, "a program keeps the module");
	device_wait_synced(device, state->lsn);
	need(segment_read(path[0], 1, &last) == state->pushed, "all is in the file");
}

/* Of wrong.c. */
static bool check_wrong(const char *check, const char *folder)
{
	if (!strcmp(check, "null"))
		check_null(path[0]);
	else if (!strcmp(check, "later"))
		check_later(path[0]);
	else if (!strcmp(check, "late"))
		check_late(path[0]);
	else if (!strcmp(check, "largest"))
		check_largest(path[0], folder);
	else if (!strcmp(check, "reserved"))
		check_reserved(path[0]);
	else if (!strcmp(check, "twice"))
		check_twice(path[0], folder);
	else if (!strcmp(check, "reader"))
		check_reader(path[0]);
	else
		return false;
	return true;
}

int guest_check(const char *const *words, const void *programs, size_t bytes)
{
	const char *check = words[0];

	setvbuf(stdout, NULL, _IOLBF, 0);
	programs_are(programs, bytes);
	module_file = words[1];
	snprintf(path[0], sizeof(path[0]), "%s/%s-1", words[2], check);
	snprintf(path[1], sizeof(path[1]), "%s/%s-2", words[3], check);
	if (!strcmp(check, "without"))
		check_without();
	else if (!strcmp(check, "insert"))
		check_insert();
	else if (!strcmp(check, "refused"))
		check_refused();
	else if (!strcmp(check, "log"))
		check_log();
	else if (!strcmp(check, "beside"))
		check_beside();
	else if (!strcmp(check, "flushes"))
		check_flushes();
	else if (!strcmp(check, "packets"))
		check_packets();
	else if (!strcmp(check, "full"))
		check_failure(GATE_WRITE);
	else if (!strcmp(check, "unsynced"))
		check_failure(GATE_SYNC);
	else if (!strcmp(check, "killed"))
		check_killed();
	else if (!strcmp(check, "frozen"))
		check_frozen(words[2]);
	else if (!strcmp(check, "gap"))
		check_gap();
	else if (!strcmp(check, "cycle"))
		check_cycle();
	else
		need(check_wrong(check, words[2]), "a check");
	return 0;
}
