/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* echo/abi.h - the echo handler's part of a connection: HANDLER_ABI. */
#pragma once

#define ECHO_HEAD 4 /* 'E', kind, bytes of the body: two, big endian */

/* The end of what was scanned of a stream of frames. */
struct echo_at {
	__u32 body; /* bytes of the frame's body still to come */
	__u8 got;   /* bytes of its head */
	__u8 lost;  /* it does not begin as a frame does */
	__u8 head[ECHO_HEAD];
	__u8 pad[2];
};

/* As long as Redis's: so tests read the splice's part by the same mirror. */
struct handler_conn {
	struct echo_at in;
	struct echo_at out;
	__u8 pad[680];
};
