/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What bindgen reads: the integer types the kernel gives to BPF, then the shared headers. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
#define HANDLER_ABI "redis/abi.h"
#include "nagle.h"
#include "redis/log.h"
#include "trace/trace.h"
