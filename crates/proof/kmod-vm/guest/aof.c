// SPDX-License-Identifier: Apache-2.0 OR MIT
/* aof.c - the source paper's own way, for study: see bpf/aof.bpf.c. */
#include <bpf/libbpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "guest.h"

static struct bpf_program *program(struct bpf_object *object, const char *name)
{
	struct bpf_program *found = bpf_object__find_program_by_name(object, name);

	need(found != NULL, name);
	return found;
}

int guest_aof(const char *const *words, const void *programs, size_t bytes)
{
	LIBBPF_OPTS(bpf_uprobe_opts, probe, .retprobe = true, .func_name = "open64");
	struct bpf_object *object = bpf_object__open_mem(programs, bytes, NULL);
	int redis = atoi(words[0]);

	need(object && bpf_object__load(object) == 0,
	     "the programs load: erb_io and erb_aof are inserted");
	need(bpf_program__attach_uprobe_opts(program(object, "aof_find"), redis, words[1], 0,
					     &probe),
	     "Redis is looked at when it opens a file");
	need(bpf_program__attach(program(object, "aof_append")), "erb_io_push is looked at");
	printf("guest: appends to the log of %d\n", redis);
	fflush(stdout);
	for (;;)
		pause();
}
