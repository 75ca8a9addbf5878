/* SPDX-License-Identifier: GPL-2.0 */
/* wrong.h - what wrong.bpf.c and who runs it both see. */
#pragma once

/* What a run of wrong_one does, and what came of it. */
struct wrong_one {
	unsigned long long lsn; /* of the record that is pushed */
	unsigned int value_len; /* and bytes of its value */
	unsigned int
	    reserve_only; /* so many bytes are reserved, and nothing is pushed; 0: pushed, and nothing reserved */
	int refused;
	unsigned int
	    called_back; /* runs of wrong_later, which leaves what came of its push in `refused` */
};
