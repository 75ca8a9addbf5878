/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* io.h - the kernel module erb_io, as the simulator has it: its core (kmod/core), and files that are the world's. Its types
 * and those of kernel_types.h are each other's doubles, so only io.c sees the core. All return 0 or what the module's
 * functions of these names do. */
#pragma once

/* Memory of a world's module, zeros at first. */
#define SIM_IO_BYTES (128 << 10)

/* The kfuncs, of a CPU. */
int sim_io_reserve(void *io, unsigned int cpu, unsigned int bytes);
int sim_io_push(void *io, unsigned int cpu, const void *record, unsigned int bytes);

/* What device and threads do: a file with this header; a batch for it; a sync; the gate shut. */
int sim_io_file(void *io, unsigned int cpus, const void *header);
unsigned int sim_io_write(void *io, void *to, unsigned int room);
void sim_io_sync(void *io);
void sim_io_shut(void *io);
