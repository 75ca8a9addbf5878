/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* bpf_core_read.h - stands in for libbpf's header of this name. Types are the mirrors' own, so
 * nothing has to be relocated, but tcp_sock___usec, whose field the kernel has inside tcp_sock and
 * a mirror beside it. */
#pragma once

#define SIM_USEC(p)                                                                                \
	((const struct tcp_sock___usec *)((const struct tcp_sock *)(const void *)(p) + 1))
#define SIM_AT(p)                                                                                  \
	_Generic((p),                                                                              \
	    struct tcp_sock___usec *: SIM_USEC(p),                                                 \
	    const struct tcp_sock___usec *: SIM_USEC(p),                                           \
	    default: (p))

#define BPF_CORE_READ_BITFIELD(p, field) (SIM_AT(p)->field)
#define bpf_core_field_exists(field)	 1
/* What is cast: 0 = a socket, whose address the simulator checks; 1 = a route, which is the
 * context's own. */
#define bpf_core_type_id_kernel(type)	 _Generic((type *)0, struct dst_entry *: 1, default: 0)
