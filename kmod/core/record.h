/* SPDX-License-Identifier: GPL-2.0 */
/* record.h - bytes of a segment, for the sink that is a kernel module. The other sink's are
 * crates/product/journal/src/format.rs; crates/proof/kmod holds both together, byte by byte.
 *
 * What comes in is a record of a log ring (redis/log.h): its head, then a slot's image. What goes out has a checksum
 * that is seeded with journal and segment. So only who knows the segment can make it: the write thread.
 *
 * Invariants:
 *  R1. A record is looked at once, as a copy that nobody else can change, before any length of it is believed.
 *  R2. What a sound record says fits into SEGMENT_RECORD_BYTES_MAX bytes of a segment: its head there is longer.
 */
#pragma once
#include "core/seam.h"
#include "redis/log.h"

#define SEGMENT_MAGIC	"ERBJRNL\n"
#define SEGMENT_VERSION 1
#define SEGMENT_SET	1 /* kind of a record */

/* Numbers are little-endian, as of all processors that ERB is built for. */
struct segment_header {
	u8 magic[8];
	u32 version;
	u32 crc; /* of the header, with zeros here */
	u8 journal[16];
	u8 boot[16];
	u64 segment;
	u64 first_lsn; /* no record has a lower one */
};

struct segment_record {
	u32 bytes; /* of the whole record */
	u32 crc;   /* of all else of it */
	u64 lsn;
	u64 effects; /* nobody counts them yet */
	u16 kind;
	u16 db;
	u32 key_len;
	u64 expiry_ms;
	/* key, value */
};

/* A slot's header as it follows struct log_record; value and key come behind it. */
struct log_image {
	u32 cache_epoch;
	u16 value_len;
	u16 key_len;
	u8 flags;
	u8 type;
	u16 db;
};

/* What is looked at before anything is copied. */
struct log_front {
	struct log_record record;
	struct log_image image;
} __attribute__((packed));

#define RECORD_BYTES_MAX LOG_RECORD_BYTES_MAX

#define SEGMENT_RECORD_BYTES_MAX                                                                   \
	(RECORD_BYTES_MAX + sizeof(struct segment_record) - sizeof(struct log_front))

_Static_assert(sizeof(struct segment_header) == 64, "as in format.rs");
_Static_assert(sizeof(struct segment_record) == 40, "as in format.rs");
_Static_assert(sizeof(struct log_front) == 36, "as in redis/log.h and struct slot");

/* Continues a checksum as it is written down: begun with ones, and inverted at its end. */
CORE_INLINE u32 segment_crc(u32 crc, const void *bytes, size_t count)
{
	return ~core_crc32c(~crc, bytes, count);
}

/* Whether this is the header of a segment that this module can write. */
CORE_INLINE bool segment_header_sound(const struct segment_header *header)
{
	struct segment_header copy = *header;

	copy.crc = 0;
	return !memcmp(header->magic, SEGMENT_MAGIC, sizeof(header->magic)) &&
	       header->version == SEGMENT_VERSION && header->first_lsn &&
	       header->crc == segment_crc(0, &copy, sizeof(copy));
}

/* What the checksums of its records begin with. */
CORE_INLINE u32 segment_seed(const struct segment_header *header)
{
	u32 seed = segment_crc(0, header->journal, sizeof(header->journal));

	return segment_crc(seed, &header->segment, sizeof(header->segment));
}

/* Whether a record that begins so, and has so many bytes, is one. */
CORE_INLINE bool record_sound(const struct log_front *front, u32 bytes)
{
	u32 key_bytes = (front->image.key_len + 7U) & ~7U;

	return front->record.bytes == bytes && bytes <= RECORD_BYTES_MAX && front->record.lsn &&
	       front->record.kind == LOG_SET &&
	       bytes == sizeof(*front) + front->image.value_len + key_bytes;
}

/* The record as a segment has it; how many bytes. `log` is sound, and `to` has room for the largest. In a segment records
 * begin at any byte. */
CORE_INLINE u32 record_encode(u32 seed, const void *log, u8 *to)
{
	const u8 *data = (const u8 *)log + sizeof(struct log_front);
	struct segment_record record = {.kind = SEGMENT_SET};
	struct log_front front;
	u8 *key = to + sizeof(record);

	memcpy(&front, log, sizeof(front));
	record.bytes = sizeof(record) + front.image.key_len + front.image.value_len;
	record.lsn = front.record.lsn;
	record.db = front.image.db;
	record.key_len = front.image.key_len;
	record.expiry_ms = front.record.expiry_ms;
	memcpy(key, data + front.image.value_len, front.image.key_len);
	memcpy(key + front.image.key_len, data, front.image.value_len);
	seed = segment_crc(seed, &record.bytes, sizeof(record.bytes));
	seed =
	    segment_crc(seed, &record.lsn, sizeof(record) - offsetof(struct segment_record, lsn));
	record.crc = segment_crc(seed, key, record.bytes - sizeof(record));
	memcpy(to, &record, sizeof(record));
	return record.bytes;
}
