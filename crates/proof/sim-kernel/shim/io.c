// SPDX-License-Identifier: Apache-2.0 OR MIT
/* io.c - see io.h. One task runs at a time, and none is switched away in here: races of the core are its own tests'
 * (crates/proof/kmod). What is played is how programs call it. */
#include "core/fifo.h"
#include "core/gate.h"
#include "core/merge.h"
#include "core/record.h"
#include "core/sink.h"
#include "io.h"

#define CPUS_MAX    8
#define FIFO_BYTES  (8 << 10) /* so little that a scenario fills it */
#define BATCH_BYTES (16 << 10)

struct sim_io {
	struct fifo fifos[CPUS_MAX];
	struct sink sink;
	struct fifo *list[CPUS_MAX];
	struct merge_place heap[CPUS_MAX];
	struct erb_io_status page;
	u8 batch[BATCH_BYTES];
	u8 bytes[CPUS_MAX][FIFO_BYTES + RECORD_BYTES_MAX + FIFO_ALIGN];
};

_Static_assert(sizeof(struct sim_io) <= SIM_IO_BYTES, "a world has as much");

static struct fifo *fifo_of(struct sim_io *io, unsigned int cpu)
{
	return cpu < io->sink.merge.count ? &io->fifos[cpu] : NULL;
}

int sim_io_reserve(void *at, unsigned int cpu, unsigned int bytes)
{
	struct sim_io *io = at;
	struct fifo *fifo = fifo_of(io, cpu);

	return fifo ? sink_reserve(&io->sink, fifo, bytes) : -ENODEV;
}

int sim_io_push(void *at, unsigned int cpu, const void *record, unsigned int bytes)
{
	struct sim_io *io = at;
	struct fifo *fifo = fifo_of(io, cpu);

	return fifo ? sink_push(&io->sink, fifo, record, bytes) : -ENODEV;
}

static void sim_io_make(struct sim_io *io, unsigned int cpus)
{
	unsigned int cpu;

	io->sink.page = &io->page;
	io->page.gate = GATE_NO_FILE;
	io->sink.batch = io->batch;
	io->sink.batch_size = BATCH_BYTES;
	io->sink.merge.fifos = io->list;
	io->sink.merge.heap = io->heap;
	for (cpu = 0; cpu < cpus && cpu < CPUS_MAX; cpu++) {
		io->fifos[cpu].size = FIFO_BYTES;
		io->fifos[cpu].bytes = io->bytes[cpu];
		io->list[cpu] = &io->fifos[cpu];
	}
	io->sink.merge.count = cpu;
}

int sim_io_file(void *at, unsigned int cpus, const void *bytes)
{
	struct segment_header header;
	struct sim_io *io = at;
	int refused;

	if (!io->sink.merge.count)
		sim_io_make(io, cpus);
	memcpy(&header, bytes, sizeof(header));
	if (io->page.gate != GATE_OPEN)
		sink_end(&io->sink);
	refused = sink_accepts(&io->sink, &header, false);
	if (!refused)
		sink_begin(&io->sink, &header);
	return refused;
}

unsigned int sim_io_write(void *at, void *to, unsigned int room)
{
	struct sim_io *io = at;
	enum merge_found found = sink_fill(&io->sink);
	u32 bytes = io->sink.batch_bytes;

	if (found == MERGE_BACKWARD)
		gate_shut(&io->page.gate, GATE_BACKWARD);
	if (!bytes || bytes > room)
		return 0;
	memcpy(to, io->batch, bytes);
	sink_written(&io->sink);
	return bytes;
}

void sim_io_sync(void *at)
{
	struct sim_io *io = at;

	if (sink_sync_begin(&io->sink))
		sink_sync_done(&io->sink);
}

void sim_io_shut(void *at)
{
	struct sim_io *io = at;

	gate_shut(&io->page.gate, GATE_WRITE);
}
