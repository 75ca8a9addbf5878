// SPDX-License-Identifier: GPL-2.0
/* tc.bpf.c - the TC tiers in front of an echo server. */
#define HANDLER_ABI  "echo/abi.h"
#define HANDLER_WORK "echo/work.h"
#include "base/seam.h"
#include "net/tier_skb.h"
#include "splice/entry_tc.h"
#include "echo/handler.h"

char LICENSE[] SEC("license") = "GPL";

/* The loader asks for it. Nobody is older than the handler, and nobody is taken back. */
SEC("tc")
int erb_admit(struct __sk_buff *ctx)
{
	return 0;
}
