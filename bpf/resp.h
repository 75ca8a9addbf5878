/* SPDX-License-Identifier: GPL-2.0 */
/* resp.h - what the scanners of both streams share: the header of a bulk string or an aggregate in
 * its usual form, and the piece of a packet that they have at hand. */
#pragma once
#include "seam.h"

#define RESP_CRLF	  0x0a0d
#define RESP_HEADER_BYTES 8		    /* one word: type, at most four digits, CRLF */
#define SCAN_CHUNK	  256		    /* a power of two; one load holds most requests whole */
#define SCAN_CHUNK_PAD	  RESP_HEADER_BYTES /* behind it: a word is read where a byte is left */

/* The piece of a payload at hand; see chunk.h. */
struct chunk {
	u32 at;	 /* offset of bytes[0] in the payload */
	u32 end; /* of what is loaded; 0: nothing is */
	u8 bytes[SCAN_CHUNK + SCAN_CHUNK_PAD] __attribute__((aligned(8)));
};

/* Digits of the header in word, 1 to 4 and none too many in front; 0 if it is no such header, or
 * does not lie whole in the avail bytes of word that are the stream's. The header has three bytes
 * more. */
INLINE u32 resp_header_digits(u64 word, u32 avail, u32 *number)
{
	u64 rest = word >> 8;
	u32 n = 0, digits = 0;

#pragma unroll
	for (; digits < 4; digits++) {
		u32 digit = (u8)rest - '0';

		if (digit > 9 || (digits && !n))
			break;
		n = n * 10 + digit;
		rest >>= 8;
	}
	*number = n;
	return (u16)rest == RESP_CRLF && digits + 3 <= avail ? digits : 0;
}
