// SPDX-License-Identifier: Apache-2.0 OR MIT
/* wrong.c - checks with programs and a daemon that do what they should not, or cannot help doing. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "guest.h"
#include "wrong.h"

#define LARGEST	    (RECORD_BYTES_MAX - sizeof(struct log_front) - 8) /* value of the largest record */
#define BATCH_BYTES (1 << 20) /* as in main.c of the module */
#define LATE_US	    400000
#define BEGUN_US    2000000 /* by then a thread that has something to write waits for its disk */

static const void *object_bytes;
static size_t object_count;
static struct wrong_one *one;
static int programs[2]; /* wrong_one, and the one that is asked for */

void wrong_programs_are(const void *bytes, size_t count)
{
	object_bytes = bytes;
	object_count = count;
}

/* Whether the verifier lets this program through, beside wrong_one. */
static bool load(const char *name)
{
	struct bpf_object *object = bpf_object__open_mem(object_bytes, object_count, NULL);
	struct bpf_program *program;
	int fd;

	need(object, "the object opens");
	if (strcmp(name, "wrong_one"))
		libbpf_set_print(NULL); /* it may be refused */
	bpf_object__for_each_program(program, object)
	{
		const char *its = bpf_program__name(program);

		bpf_program__set_autoload(program, !strcmp(its, name) || !strcmp(its, "wrong_one"));
	}
	if (bpf_object__load(object)) {
		printf("%s: the verifier refuses it\n", name);
		need(strcmp(name, "wrong_one"), "what calls as it should is loaded");
		return false;
	}
	fd = bpf_object__find_map_fd_by_name(object, "wrong_ones");
	one = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	need(one != MAP_FAILED, "what is to be done is mapped");
	programs[0] = bpf_program__fd(bpf_object__find_program_by_name(object, "wrong_one"));
	programs[1] = bpf_program__fd(bpf_object__find_program_by_name(object, name));
	return true;
}

static u32 run(int program, int cpu)
{
	static char packet[64];
	LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = packet, .data_size_in = sizeof(packet),
		    .repeat = 1);
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	need(bpf_prog_test_run_opts(program, &options) == 0, "a program runs");
	return options.retval;
}

static int reserve(int cpu, u32 bytes)
{
	*one = (struct wrong_one){.reserve_only = bytes};
	run(programs[0], cpu);
	return one->refused;
}

static int push(int cpu, u64 lsn, u32 value_len)
{
	*one = (struct wrong_one){.lsn = lsn, .value_len = value_len, .refused = 1};
	run(programs[0], cpu);
	return one->refused;
}

void check_null(const char *path)
{
	int device = device_begin(1, 1, path);

	need(!load("wrong_null") || run(programs[1], 0) == EINVAL, "no memory is no record");
	need(device_status(device).pushed == 0, "nothing was pushed");
}

/* A program's callback from a work queue, where packets' programs may come between. */
void check_later(const char *path)
{
	int device = device_begin(1, 1, path);

	if (!load("wrong_later"))
		return;
	*one = (struct wrong_one){.lsn = 1, .value_len = 8};
	need(run(programs[1], 0) == 2, "the work is queued");
	for (int tries = 0; !__atomic_load_n(&one->called_back, __ATOMIC_ACQUIRE); tries++) {
		need(tries < 6000, "it is called back");
		usleep(10000);
	}
	need(one->refused == -EPERM, "it may not push");
	need(push(0, 1, 8) == 0, "packets' programs may");
	device_wait_synced(device, 1);
}

/* Each number is a bit late, so that one is missing all the time, and none for long. */
void check_late(const char *path)
{
	int device = device_begin(1, 1, path);
	u64 last, lsn;

	load("wrong_one");
	need(push(0, 2, 8) == 0, "the second comes first");
	for (lsn = 1; lsn < 16; lsn += 2) {
		usleep(LATE_US);
		need(push(0, lsn + 3, 8) == 0 && push(1, lsn, 8) == 0, "the gate is open");
	}
	need(push(1, lsn, 8) == 0, "the last one");
	device_wait_synced(device, lsn + 1);
	need(segment_read(path, 1, &last) == lsn + 1, "all is in the file");
}

/* A batch that is full to the byte but for the largest record, of which a segment has more bytes than a fifo. */
void check_largest(const char *path, const char *folder)
{
	const u32 head = sizeof(struct segment_record) + 8, rest = BATCH_BYTES - RECORD_BYTES_MAX,
		  count = rest / (head + LARGEST);
	int device = device_begin(1, 1, path), at = open(folder, O_RDONLY);
	u64 lsn = 0, last;

	load("wrong_one");
	need(ioctl(at, FIFREEZE, 0) == 0, "the file system freezes");
	need(push(0, ++lsn, 8) == 0, "one waits for it");
	usleep(BEGUN_US);
	for (u32 done = 0; done < count; done++)
		need(push(0, ++lsn, LARGEST) == 0, "there is room");
	need(push(0, ++lsn, rest % (head + LARGEST) - head) == 0, "there is room");
	need(push(0, ++lsn, LARGEST) == 0, "there is room");
	need(ioctl(at, FITHAW, 0) == 0, "the file system thaws");
	device_wait_synced(device, lsn);
	need(segment_read(path, 1, &last) == lsn, "all is in the file");
}

/* What is reserved and not pushed ends with the file. */
void check_reserved(const char *path)
{
	int device = device_begin(1, 1, path);

	load("wrong_one");
	need(reserve(0, RECORD_BYTES_MAX) == 0, "there is room");
	close(device);
	device = device_open();
	need(device >= 0, "the device opens");
	device_wait_state(device, ERB_IO_IDLE);
	need(push(0, 1, 8) == -ESHUTDOWN, "no file is at work");
	need(device_status(device).retained_bytes == 0, "nothing is retained");
}

/* A file is handed over a second time while it has its header alone, and records wait for it. */
void check_twice(const char *path, const char *folder)
{
	int device = device_begin(1, 1, path), at = open(folder, O_RDONLY),
	    fd = open(path, O_WRONLY);

	load("wrong_one");
	need(ioctl(at, FIFREEZE, 0) == 0, "the file system freezes");
	for (u64 lsn = 1; lsn <= 10; lsn++)
		need(push(0, lsn, 8) == 0, "there is room");
	need(device_give_next(device, fd, 1, 1) == EEXIST, "it is at work");
	need(ioctl(at, FITHAW, 0) == 0, "the file system thaws");
	device_wait_synced(device, 10);
}

struct reader {
	int device;
	void *memory;
};

static void *reader_read(void *at)
{
	const struct reader *reader = at;

	need(read(reader->device, reader->memory, 4096) > 0, "it reads when its memory has come");
	return NULL;
}

/* A reader's memory does not come. Nobody else waits for it. */
static void reader_waits(int device)
{
	struct reader reader = {
	    device, mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
	struct uffdio_register area = {.range = {(u64)reader.memory, 4096},
				       .mode = UFFDIO_REGISTER_MODE_MISSING};
	struct uffdio_api api = {.api = UFFD_API};
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC), tries;
	pthread_t thread;
	pid_t other;

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api)) {
		printf("skipped: this kernel has no userfaultfd\n");
		return;
	}
	need(ioctl(faults, UFFDIO_REGISTER, &area) == 0, "faults wait");
	need(!pthread_create(&thread, NULL, reader_read, &reader), "a thread begins");
	usleep(BEGUN_US);
	other = fork();
	if (!other) {
		device_status(device);
		_exit(0);
	}
	for (tries = 0; tries < 100 && waitpid(other, NULL, WNOHANG) != other; tries++)
		usleep(100000);
	close(faults);
	pthread_join(thread, NULL);
	need(tries < 100, "another call does not wait");
}

/* Of a reader's memory only the first page is there. */
void check_reader(const char *path)
{
	u8 *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int device = device_begin(1, 1, path);
	u64 last = ~0ULL;
	ssize_t got;

	load("wrong_one");
	for (u64 lsn = 2; lsn <= 11; lsn++)
		need(push(0, lsn, 468) == 0, "there is room");
	device_wait_state(device, ERB_IO_IDLE);
	need(munmap(memory + 4096, 4096) == 0, "half of it goes");
	need(read(device, memory + 4096, 4096) < 0 && errno == EFAULT, "no memory");
	need(read(device, memory, 0) < 0 && errno == EMSGSIZE, "no room");
	need(read(device, memory, 8) < 0 && errno == EMSGSIZE, "too little memory");
	got = read(device, memory, 8192);
	need(got == 8 * 512 || got == 7 * 512, "what there was room for");
	need(((struct log_record *)memory)->lsn == 2, "from the first one on");
	need(read(device, memory, 4096) == 10 * 512 - got, "the rest");
	need(((struct log_record *)memory)->lsn == 2 + (u64)got / 512, "none is passed over");
	need(lseek(device, 0, SEEK_SET) == 0, "from the first one on");
	reader_waits(device);
	need(ioctl(device, ERB_IO_FORGET, &last) == 0, "they are nobody's");
}
