// SPDX-License-Identifier: GPL-2.0
/* xdp.bpf.c - the XDP tier in front of Redis. Read splice/ingress.h from its end upward for one
 * packet's life. */
#define HANDLER_ABI  "redis/abi.h"
#define HANDLER_WORK "redis/work.h"
#include "base/seam.h"
#include "net/tier_xdp.h"
#include "splice/entry_xdp.h"
#include "redis/handler.h"

char LICENSE[] SEC("license") = "GPL";
