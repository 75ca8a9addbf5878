/* SPDX-License-Identifier: GPL-2.0 */
/* csum.h - Internet checksums (RFC 1071, RFC 1624) over per-CPU copies. */
#pragma once
#include "base/seam.h"
#include "net/packet.h"

#define CSUM_CHUNK 512 /* bpf_csum_diff takes at most MAX_BPF_STACK bytes before Linux 6.13 */
#define CSUM_SHORT 128 /* up to here adding in place costs less than the helper's calls */

/* The halves of a sum added to it crosswise: the carry of the lower ones ends in the upper ones, where it
 * belongs. So once for each width. */
INLINE u16 csum_fold(u64 sum)
{
	u32 half;

	sum += sum << 32 | sum >> 32;
	half = sum >> 32;
	half += half << 16 | half >> 16;
	return half >> 16;
}

/* Sum of n 32-bit words, added in place: for headers a helper call costs more than the adds. */
INLINE u64 csum_words(const u8 *data, u32 n)
{
	u64 sum = 0;

	for (u32 i = 0; i < n; i++)
		sum += *(const u32 *)(data + i * 4);
	return sum;
}

/* Zeroes the 16 bytes behind what csum_short is to sum. */
INLINE void csum_short_pad(u8 *end)
{
	((u64 *)end)[0] = 0;
	((u64 *)end)[1] = 0;
}

/* Sum of at most CSUM_SHORT bytes, padded by csum_short_pad. */
INLINE u64 csum_short(const u8 *data, u32 len)
{
	u64 sum = 0;

	for (u32 i = 0; i < CSUM_SHORT; i += 16) {
		if (i >= len)
			break;
		for (u32 k = 0; k < 16; k += 4)
			sum += *(const u32 *)(data + i + k);
	}
	return sum;
}

/* One's complement sum of len bytes (at most 2,048) at a buffer that is zero padded to a multiple
 * of four, as the kernel's csum_partial counts it. */
INLINE u32 csum_bytes(u8 *data, u32 len, u32 sum)
{
	u32 off = 0;

	for (int i = 0; i < 4; i++) {
		u32 n = len - off;

		if (off >= len)
			break;
		if (n > CSUM_CHUNK)
			n = CSUM_CHUNK;
		n = (n + 3) & ~3U;
		opaque(n);
		if (n > CSUM_CHUNK)
			break;
		sum = bpf_csum_diff(0, 0, (__be32 *)(data + i * CSUM_CHUNK), n, sum);
		off += CSUM_CHUNK;
	}
	return sum;
}

/* Sum of the TCP pseudo-header (RFC 9293 3.1, RFC 8200 8.1), unfolded; both directions alike. */
INLINE u64 csum_pseudo(const struct pkt *p, u32 tcp_len)
{
	const u32 *a = (const u32 *)p->key.client_addr, *b = (const u32 *)p->key.server_addr;
	u64 sum = (u64)bpf_htonl(tcp_len) + bpf_htonl(IPPROTO_TCP);

	if (p->family == 4)
		return sum + a[3] + b[3];
	return sum + a[0] + a[1] + a[2] + a[3] + b[0] + b[1] + b[2] + b[3];
}

/* Updates a folded checksum field for a change of summed words: RFC 1624, eqn. 3. diff is
 * csum(new) - csum(old) as bpf_csum_diff gives it. */
INLINE u16 csum_update(u16 field, u32 diff)
{
	return ~csum_fold((u64)(u16)~field + diff);
}

/* IPv4 header checksum over header_len bytes with the field itself counted: 0xffff if right. */
INLINE u16 csum_ipv4(u8 *ip, u32 header_len)
{
	opaque(header_len);
	header_len &= 0x3c;
	return csum_fold(bpf_csum_diff(0, 0, (__be32 *)ip, header_len, 0));
}
