// SPDX-License-Identifier: Apache-2.0 OR MIT
/* header.h - a segment's header, as the daemon makes it: for the checks in the guest, and for those of the core. */
#pragma once
#include <string.h>
#include "core/record.h"

static inline struct segment_header header_make(u64 segment, u64 first_lsn)
{
	struct segment_header header = {.version = SEGMENT_VERSION,
					.journal = "the journal's 16",
					.boot = "the boot's 16 by",
					.segment = segment,
					.first_lsn = first_lsn};

	memcpy(header.magic, SEGMENT_MAGIC, sizeof(header.magic));
	header.crc = segment_crc(0, &header, sizeof(header));
	return header;
}
