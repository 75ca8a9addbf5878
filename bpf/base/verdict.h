/* SPDX-License-Identifier: GPL-2.0 */
/* verdict.h - what becomes of a packet. */
#pragma once

/* What becomes of a packet from a client. */
enum verdict {
	V_PLAIN = 0, /* up as it came; nothing left to do */
	V_UP,	     /* up, translated and marked */
	V_DROP,
	V_SENT,	    /* answered in place */
	V_TO_TC,    /* the TC tier must see it */
	V_UNMARKED, /* no room for the mark: the TC tier runs the whole path */
	V_REFUSED,  /* no answer; try the next way */
	V_ABSORB,   /* another program may answer it: splice/absorb.h */
};
