/* SPDX-License-Identifier: GPL-2.0 */
/* chunk.h - the piece of a payload that a scanner has at hand. */
#pragma once
#include "base/seam.h"

#define SCAN_CHUNK 256 /* a power of two; one load holds most requests whole */
#define SCAN_WORD  8   /* behind it: a word is read where a byte is left */

struct chunk {
	u32 at;	 /* offset of bytes[0] in the payload */
	u32 end; /* of what is loaded; 0: nothing is */
	u8 bytes[SCAN_CHUNK + SCAN_WORD] __attribute__((aligned(8)));
};
