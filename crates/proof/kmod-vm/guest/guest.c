// SPDX-License-Identifier: Apache-2.0 OR MIT
/* guest.c - see guest.h. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "guest.h"

#define WAIT_MS_MAX 60000 /* of what takes milliseconds where nothing is emulated */
#define RUNS	    100	  /* packets of one call */

static const void *programs;
static size_t programs_bytes;
static struct bpf_object *object;
static struct push_state *state;
static u64 wanted;

void need(bool is_so, const char *what)
{
	if (is_so)
		return;
	printf("guest: FAILED: %s (%s)\n", what, strerror(errno));
	exit(1);
}

int segment_make(const char *path, int flags, u64 segment, u64 first_lsn)
{
	struct segment_header header = header_make(segment, first_lsn);
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | flags, 0600);

	need(fd >= 0, path);
	need(write(fd, &header, sizeof(header)) == sizeof(header), "a header is written");
	need(fsync(fd) == 0, "a header is synced");
	return fd;
}

u64 segment_read(const char *path, u64 from, u64 *last)
{
	static u8 bytes[SEGMENT_RECORD_BYTES_MAX];
	struct segment_record *record = (struct segment_record *)bytes;
	struct segment_header header;
	FILE *file = fopen(path, "r");
	u64 count = 0;

	need(file && fread(&header, sizeof(header), 1, file) == 1, path);
	need(segment_header_sound(&header), "the header is sound");
	*last = from - 1;
	while (fread(record, sizeof(*record), 1, file) == 1) {
		u32 seed = segment_seed(&header), rest = record->bytes - sizeof(*record);

		/* What a short write left is the end. */
		if (record->bytes > sizeof(bytes) || fread(record + 1, rest, 1, file) != 1)
			break;
		seed = segment_crc(seed, bytes, 4);
		need(record->crc == segment_crc(seed, bytes + 8, record->bytes - 8), "a checksum");
		need(record->lsn == ++*last, "numbers are dense");
		need(!memcmp(record + 1, last, sizeof(*last)), "the key is the number");
		count++;
	}
	fclose(file);
	return count;
}

int device_open(void)
{
	return open("/dev/erb_io", O_RDWR | O_CLOEXEC);
}

int device_begin(u64 segment, u64 first_lsn, const char *at)
{
	int device = device_open(), fd = segment_make(at, 0, segment, first_lsn);

	need(device >= 0, "the device opens");
	need(device_give(device, fd, segment, first_lsn) == 0, "the file is taken");
	close(fd);
	return device;
}

static int device_hand(int device, unsigned long call, int fd, u64 segment, u64 first_lsn)
{
	struct segment_header header = header_make(segment, first_lsn);
	struct erb_io_file file = {.fd = fd};

	memcpy(file.header, &header, sizeof(header));
	return ioctl(device, call, &file) ? errno : 0;
}

int device_give(int device, int fd, u64 segment, u64 first_lsn)
{
	return device_hand(device, ERB_IO_FILE, fd, segment, first_lsn);
}

int device_give_next(int device, int fd, u64 segment, u64 first_lsn)
{
	return device_hand(device, ERB_IO_NEXT, fd, segment, first_lsn);
}

struct erb_io_status device_status(int device)
{
	struct erb_io_status status;

	need(ioctl(device, ERB_IO_STATUS, &status) == 0, "the status is told");
	return status;
}

void device_wait_synced(int device, u64 lsn)
{
	for (int ms = 0; device_status(device).synced_lsn != lsn; ms++) {
		need(ms < WAIT_MS_MAX && device_status(device).gate == GATE_OPEN,
		     "all is synced in time");
		usleep(1000);
	}
}

void device_wait_state(int device, u32 wanted_state)
{
	for (int ms = 0; device_status(device).state != wanted_state; ms++) {
		need(ms < WAIT_MS_MAX, "the state comes in time");
		usleep(1000);
	}
}

u64 device_read_out(int device, u64 from)
{
	static u8 bytes[1 << 16] __attribute__((aligned(8)));
	ssize_t got, at;
	u64 count = 0;

	while ((got = read(device, bytes, sizeof(bytes))) > 0) {
		for (at = 0; at < got; count++) {
			const struct log_record *record = (const struct log_record *)(bytes + at);

			need(record->lsn == from + count, "what is retained is dense");
			at += (record->bytes + 7) & ~7U;
		}
		need(at == got, "whole records are read");
	}
	need(got == 0, "all is read");
	return count;
}

static int quiet(enum libbpf_print_level level, const char *format, va_list arguments)
{
	return level == LIBBPF_WARN ? vprintf(format, arguments) : 0;
}

void programs_are(const void *bytes, size_t count)
{
	programs = bytes;
	programs_bytes = count;
}

struct push_state *programs_load(u64 lsn)
{
	int fd;

	libbpf_set_print(quiet);
	object = bpf_object__open_mem(programs, programs_bytes, NULL);
	need(object && bpf_object__load(object) == 0, "the programs load");
	fd = bpf_object__find_map_fd_by_name(object, "push_states");
	state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	need(state != MAP_FAILED, "the counters are mapped");
	state->lsn = lsn;
	return state;
}

void programs_attach(const char *name)
{
	struct bpf_program *xdp = bpf_object__find_program_by_name(object, "push_xdp");
	struct bpf_program *tc = bpf_object__find_program_by_name(object, "push_tc");
	int device = if_nametoindex(name);

	need(bpf_program__attach_xdp(xdp, device), "XDP attaches");
	need(bpf_program__attach_tcx(tc, device, NULL), "TC attaches");
}

static void *run_cpu(void *at)
{
	static char packet[64];
	bool is_second = at;
	const char *names[] = {"push_xdp", "push_tc"};
	LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = packet, .data_size_in = sizeof(packet),
		    .repeat = RUNS);
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(is_second, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	for (int turn = is_second; __atomic_load_n(&state->pushed, __ATOMIC_RELAXED) < wanted;
	     turn++) {
		struct bpf_program *program =
		    bpf_object__find_program_by_name(object, names[turn % 2]);
		u64 full = state->full;

		need(bpf_prog_test_run_opts(bpf_program__fd(program), &run) == 0, "a program runs");
		if (state->shut)
			break;
		if (state->full != full)
			usleep(1000);
	}
	return NULL;
}

void programs_run(u64 records)
{
	pthread_t cpus[2];

	wanted = state->pushed + records;
	for (long at = 0; at < 2; at++)
		need(!pthread_create(&cpus[at], NULL, run_cpu, (void *)at), "a thread begins");
	for (int at = 0; at < 2; at++)
		pthread_join(cpus[at], NULL);
	need(state->lost == 0, "what was reserved is taken");
	need(state->pushed == state->lsn || !state->shut || state->lsn, "counters");
}
