/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* nagle.h - what nagle.bpf.c and the daemon share, mirrored into Rust like abi.h. Both are of one build and
 * leave together, so it is no part of the layout by which programs replace each other. */
#pragma once

/* The connection, as Redis's end has it. IPv4 addresses are mapped ones (RFC 4291, 2.5.5.2), as the kernel
 * keeps them of sockets that listen for both. */
struct nagle_pair {
	__u8 local[16] __attribute__((aligned(8))); /* network order */
	__u8 peer[16];
	__u16 local_port; /* host order */
	__u16 peer_port_be;
	__u32 done; /* sockets changed: 1, or 0 if none was found or the kernel refused */
};
