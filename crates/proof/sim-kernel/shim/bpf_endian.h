/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* bpf_endian.h - stands in for libbpf's header of this name. Hosts are little-endian, as the BPF
 * objects are built. */
#pragma once

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the data path is built little-endian");

#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_ntohl(x) __builtin_bswap32(x)
#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_ntohs(x) __builtin_bswap16(x)
