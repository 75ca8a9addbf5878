// SPDX-License-Identifier: Apache-2.0 OR MIT
/* load.c - loads every program of the given BPF objects by itself, so that one refusal does not
 * hide another, and says for each how many instructions were verified or why it was refused.
 *
 *   load PINS OBJECT...      PINS: empty folder on a bpffs, the objects share their maps there
 *
 * Exit: 0 all programs loaded, 1 some were refused, 2 an object could not be opened. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>

/* The log of a refused program is what the verifier walked until then: megabytes. */
#define LOG_BYTES	(16 << 20)
/* Its end names the instruction, the state of the registers and the line of the source. */
#define LOG_LINES_SHOWN 45

static char log_buf[LOG_BYTES];

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	/* The verifier's log goes to log_buf; of libbpf only what is said about maps and BTF. */
	if (level == LIBBPF_WARN && !strstr(format, "BEGIN PROG LOAD LOG"))
		vfprintf(stdout, format, args);
	return 0;
}

static void show_log_end(void)
{
	char *at = log_buf + strlen(log_buf);
	int lines = 0;

	while (at > log_buf && lines <= LOG_LINES_SHOWN)
		lines += *--at == '\n';
	printf("%s\n", at);
}

static unsigned verified_insns(int fd)
{
	struct bpf_prog_info info = {};
	__u32 len = sizeof(info);

	return bpf_prog_get_info_by_fd(fd, &info, &len) ? 0 : info.verified_insns;
}

static struct bpf_object *open_object(const char *path, const char *pins)
{
	LIBBPF_OPTS(bpf_object_open_opts, opts, .pin_root_path = pins);
	struct bpf_object *object = bpf_object__open_file(path, &opts);

	if (!object)
		printf("could not open %s: %s\n", path, strerror(errno));
	return object;
}

/* Loads the one program; 0 if the kernel took it. */
static int load_one(const char *path, const char *pins, const char *name)
{
	struct bpf_object *object = open_object(path, pins);
	struct bpf_program *program;
	int error;

	if (!object)
		return -1;
	bpf_object__for_each_program(program, object)
	    bpf_program__set_autoload(program, !strcmp(bpf_program__name(program), name));
	program = bpf_object__find_program_by_name(object, name);
	log_buf[0] = 0;
	bpf_program__set_log_buf(program, log_buf, sizeof(log_buf));
	error = bpf_object__load(object);
	if (error) {
		printf("REFUSED  %s: %s\n", name, strerror(-error));
		show_log_end();
	} else {
		printf("loaded   %-20s %7u instructions verified\n", name,
		       verified_insns(bpf_program__fd(program)));
	}
	bpf_object__close(object);
	return error;
}

int main(int argc, char **argv)
{
	int refused = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	libbpf_set_print(quiet);
	for (int i = 2; i < argc; i++) {
		struct bpf_object *object = open_object(argv[i], argv[1]);
		struct bpf_program *program;

		if (!object)
			return 2;
		bpf_object__for_each_program(program, object) refused +=
		    load_one(argv[i], argv[1], bpf_program__name(program)) != 0;
		bpf_object__close(object);
	}
	printf("%d refused\n", refused);
	return refused != 0;
}
