/* SPDX-License-Identifier: GPL-2.0 */
/* resp.h - what the scanners of both streams share: the header of a bulk string or an aggregate in
 * its usual form. */
#pragma once
#include "base/seam.h"
#include "net/chunk.h"

#define RESP_CRLF	  0x0a0d
#define RESP_HEADER_BYTES 8		  /* one word: type, at most four digits, CRLF */
#define RESP_OK		  0x0a0d4b4f2bULL /* "+OK\r\n" */
#define RESP_OK_MASK	  0xffffffffffULL
#define RESP_OK_BYTES	  5
#define RESP_NIL	  0x0a0d312d24ULL /* "$-1\r\n" */
#define RESP_NIL_MASK	  0xffffffffffULL
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

/* The bytes of the bulk string, or nil if asked for, that begins with word, header and CRLF included; 0: something
 * else does, or its length has more than three digits. A third of the instructions of resp_header_digits(). */
INLINE u32 resp_bulk_bytes(u64 word, bool or_nil)
{
	u32 a = (u8)(word >> 8) - '0', b = (u8)(word >> 16) - '0', c = (u8)(word >> 24) - '0';

	if ((u8)word != '$')
		return 0;
	if (a > 9)
		return or_nil && (word & RESP_NIL_MASK) == RESP_NIL ? 5 : 0;
	if ((u16)(word >> 16) == RESP_CRLF)
		return a + 6;
	if (!a || b > 9)
		return 0;
	if ((u16)(word >> 24) == RESP_CRLF)
		return a * 10 + b + 7;
	return c <= 9 && (u16)(word >> 32) == RESP_CRLF ? a * 100 + b * 10 + c + 8 : 0;
}
