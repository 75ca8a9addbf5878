// SPDX-License-Identifier: Apache-2.0 OR MIT
/* guest.h - what the checks in the guest do with module, programs and segments. */
#pragma once
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include "core/gate.h"
#include "core/record.h"
#include "erb_io.h"
#include "header.h"
#include "push.h"

/* CHECK, the module's file, two folders. 0: it holds. */
int guest_check(const char *const *words, const void *programs, size_t bytes);

/* Redis's process, the C library that it has. Hands over what is pushed until it is killed. */
int guest_aof(const char *const *words, const void *programs, size_t bytes);

/* Checks of wrong.c, and what pushes there. */
void wrong_programs_are(const void *object, size_t bytes);
void check_null(const char *path);
void check_later(const char *path);
void check_late(const char *path);
void check_largest(const char *path, const char *folder);
void check_reserved(const char *path);
void check_twice(const char *path, const char *folder);
void check_reader(const char *path);

/* Prints what is wrong and ends this process, unless it is so. */
void need(bool is_so, const char *what);

/* Segments. */
int segment_make(const char *path, int flags, u64 segment, u64 first_lsn);
u64 segment_read(const char *path, u64 from,
		 u64 *last); /* records; each LSN from `from` on, no gap */

/* The device. */
int device_open(void);
int device_begin(u64 segment, u64 first_lsn, const char *at); /* with its first file */
int device_give(int device, int fd, u64 segment, u64 first_lsn);
int device_give_next(int device, int fd, u64 segment, u64 first_lsn);
struct erb_io_status device_status(int device);
void device_wait_synced(int device, u64 lsn);
void device_wait_state(int device, u32 state);
u64 device_read_out(int device, u64 from); /* records, dense from `from` on */

/* Programs. */
void programs_are(const void *object, size_t bytes);
struct push_state *programs_load(u64 lsn);
void programs_attach(const char *device_name);
void programs_run(
    u64 records); /* as many as are taken, by two CPUs, XDP and TC in turn; stops at a shut gate */
