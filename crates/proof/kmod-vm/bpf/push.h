/* SPDX-License-Identifier: GPL-2.0 */
/* push.h - what push.bpf.c and who runs it both see. */
#pragma once

#define PUSH_VALUE_BYTES_MAX 255

struct push_state {
	unsigned long long lsn; /* last number that was taken */
	unsigned long long pushed;
	unsigned long long full;    /* refused: no room */
	unsigned long long shut;    /* refused: the gate, or no module's fifo */
	unsigned long long lost;    /* reserved, and refused all the same */
	unsigned long long without; /* there is no module */
};
