// SPDX-License-Identifier: GPL-2.0
/* xdp.bpf.c - the XDP tier in front of an echo server. */
#define HANDLER_ABI  "echo/abi.h"
#define HANDLER_WORK "echo/work.h"
#include "base/seam.h"
#include "net/tier_xdp.h"
#include "splice/entry_xdp.h"
#include "echo/handler.h"

char LICENSE[] SEC("license") = "GPL";
