/* SPDX-License-Identifier: GPL-2.0 */
/* resp.h - what the scanners of both streams share: the header of a bulk string or an aggregate in
 * its usual form. */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"

#define RESP_CRLF	  0x0a0d
#define RESP_HEADER_BYTES 8 /* one word: type, at most four digits, CRLF */
_Static_assert(RESP_HEADER_BYTES <= SCAN_WORD, "a header at hand lies whole in the piece");

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
