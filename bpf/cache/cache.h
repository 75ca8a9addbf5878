/* SPDX-License-Identifier: GPL-2.0 */
/* cache.h - the 16-way set-associative cache: look-up, marks, insertion, SIEVE eviction.
 *
 * A set is one map value: header (one cache line) and 16 slots in four size classes. An entry is
 * absent or clean; its slot holds header, value, key (zero padded to 8 bytes). Why this shape:
 * docs/internals/cache.md.
 *
 * Writers hold the set's lock. Readers take none: of what they read while the set was changed
 * nothing counts (set_read_begin).
 *
 * Invariants, each kept under the set's lock:
 *  C1. While set.marks > 0 nothing in the set is answered and nothing is inserted.
 *  C2. set.version moves with each mark taken or released and each invalidation; never back. An
 *      insertion needs the version noted before its read began. (Insertion and eviction do not move
 *      it: they say nothing about what Redis holds.)
 *  C3. tags[w] != 0 iff way w holds an entry; an entry's slot is never written without the
 *      lock.
 *  C4. value_len + padded key_len + header (+ 8 if it expires) <= bytes of the way's class.
 *  C5. An entry whose cache_epoch is not control.cache_epoch is absent.
 *  C6. A key of a database is in at most one way of its set.
 *  C7. set.changes is odd while anything of the set but visited and touched is written: a
 *      reader that finds it even and unmoved has read what stood there at one moment.
 *  C8. digest.tags[w] is digest_of() of the entry in way w, and anything for a free way: a key
 *      that the digest lacks is in no way.
 *  C9. The value of an entry of type SLOT_HASH is laid out as struct hash_head says. One of type
 *      SLOT_ABSENT has neither value nor expiry: Redis has no such key. What creates it is reported
 *      like any other change.
 *  C10. A share of the fence is given back only when no entry can be older than its command. Either all
 *      entries are absent by then (fence_release). Or a PING was sent behind the command's reply, and
 *      the daemon has handled all that Redis pushed before its PONG (fence_answer, fence_settle).
 *      Fills in hand are void either way: global_version moves when a share is taken and when it is
 *      given back.
 */
#pragma once
#include "base/seam.h"
#include "cache/key_hash.h"

#define KEY_WORDS  (KEY_BYTES_MAX / 8)
#define COPY_BLOCK 64

_Static_assert(CLASS0_WAYS + CLASS1_WAYS + CLASS2_WAYS + CLASS3_WAYS == WAYS, "ways add up");
_Static_assert((CLASS0_WAYS & (CLASS0_WAYS - 1)) == 0, "the predicted way is a mask");
_Static_assert(sizeof(struct cache_set) % 64 == 0, "sets start at cache lines");
_Static_assert(sizeof(struct cache_digest) == 16, "two words");
_Static_assert(sizeof(struct cache_large) % 64 == 0, "large slots start at cache lines");
_Static_assert(__builtin_offsetof(struct cache_set, slots) == 64, "header is one cache line");
_Static_assert(!((CLASS0_BYTES | CLASS1_BYTES | CLASS2_BYTES | CLASS3_BYTES) % COPY_BLOCK),
	       "a slot is written by whole blocks");
_Static_assert(sizeof(struct slot) == SLOT_HEADER_BYTES, "slot header has no padding");
_Static_assert(__builtin_offsetof(struct cache_set, visited) % 4 == 0 &&
		   __builtin_offsetof(struct cache_set, touched) ==
		       __builtin_offsetof(struct cache_set, visited) + 2,
	       "both bits of a way are written as one word");

/* What a look-up needs and what it found; lives in per-CPU memory. */
struct lookup {
	u64 hash;
	u64 now_wall_ms;
	u32 cache_epoch;
	u32 key_len;
	u32 db;
	u32 value_len;
	u32 copied_to; /* offset in reply at which the value was put */
	u32 resp;      /* version of the connection's replies, 0 = not known */
	u64 key[KEY_WORDS + 1];
};

INLINE u32 way_class(u32 way)
{
	if (way < CLASS0_WAYS)
		return 0;
	if (way < CLASS0_WAYS + CLASS1_WAYS)
		return 1;
	return way < WAYS - CLASS3_WAYS ? 2 : 3;
}

INLINE u32 class_bytes(u32 class)
{
	return class == 0   ? CLASS0_BYTES
	       : class == 1 ? CLASS1_BYTES
	       : class == 2 ? CLASS2_BYTES
			    : CLASS3_BYTES;
}

INLINE u32 class_first(u32 class)
{
	return class == 0   ? 0
	       : class == 1 ? CLASS0_WAYS
	       : class == 2 ? CLASS0_WAYS + CLASS1_WAYS
			    : WAYS - CLASS3_WAYS;
}

INLINE u32 class_ways(u32 class)
{
	return class == 0   ? CLASS0_WAYS
	       : class == 1 ? CLASS1_WAYS
	       : class == 2 ? CLASS2_WAYS
			    : CLASS3_WAYS;
}

INLINE u16 tag_of(u64 hash)
{
	u16 tag = hash >> 48;

	return tag ? tag : 1;
}

/* What the digest keeps of a key. 0 is that of a way never used. */
INLINE u8 digest_of(u64 hash)
{
	u8 byte = tag_of(hash) & 0xff;

	return byte ? byte : 1;
}

/* Whether no byte is the key's: exact for eight at a time. */
INLINE bool digest_lacks(const struct cache_digest *digest, u64 hash)
{
	const u64 ones = 0x0101010101010101ULL, *words = (const u64 *)digest->tags;
	u64 a = words[0] ^ digest_of(hash) * ones, b = words[1] ^ digest_of(hash) * ones;

	return !((((a - ones) & ~a) | ((b - ones) & ~b)) & ones << 7);
}

INLINE u32 set_of(const struct control *c, u64 hash)
{
	return (u32)(hash & c->set_mask);
}

/* Whether the set is left out under this mask of the control block's. */
INLINE bool set_aside(const struct control *c, u32 index, u32 mask)
{
	return (index ^ c->look_at) & mask;
}

/* Bit w of the result: tags[w] == tag. Four 16-bit lanes at a time (exact zero-lane test). */
INLINE u32 tags_match(const struct cache_set *set, u16 tag)
{
	u64 want = tag * 0x0001000100010001ULL;
	u32 bits = 0;

	for (int i = 0; i < WAYS / 4; i++) {
		u64 x = ((const u64 *)set->tags)[i] ^ want;
		u64 zero = ~(((x & 0x7fff7fff7fff7fffULL) + 0x7fff7fff7fff7fffULL) | x |
			     0x7fff7fff7fff7fffULL);

		zero = (zero >> 15) * 0x0001000200040008ULL >> 48;
		bits |= (u32)(zero & 0xf) << (i * 4);
	}
	return bits;
}

INLINE u32 lowest_bit(u32 bits)
{
	u32 n = 0;

	if (!(bits & 0xff)) {
		n += 8;
		bits >>= 8;
	}
	if (!(bits & 0xf)) {
		n += 4;
		bits >>= 4;
	}
	if (!(bits & 3)) {
		n += 2;
		bits >>= 2;
	}
	return n + !(bits & 1);
}

/* The slot of a way, or NULL for a way out of range. The caller may use SLOT_BYTES_SMALL bytes of a
 * small slot and all bytes of the last class of a large one. */
INLINE struct slot *slot_small(struct cache_set *set, u32 way)
{
	u32 off = way * CLASS0_BYTES;

	opaque(off);
	if (off > SMALL_BYTES - CLASS0_BYTES)
		return 0;
	return (struct slot *)(set->slots + off);
}

INLINE struct slot *slot_large(struct cache_large *large, u32 way)
{
	u32 off;

	way -= CLASS0_WAYS;
	if (way < CLASS1_WAYS)
		off = way * CLASS1_BYTES;
	else if (way < CLASS1_WAYS + CLASS2_WAYS)
		off = CLASS1_WAYS * CLASS1_BYTES + (way - CLASS1_WAYS) * CLASS2_BYTES;
	else
		off = LARGE_BYTES - CLASS3_BYTES;
	opaque(off);
	if (off > LARGE_BYTES - CLASS3_BYTES)
		return 0;
	return (struct slot *)(large->slots + off);
}

INLINE u32 slot_epoch(struct cache_set *set, struct cache_large *large, u32 way)
{
	struct slot *slot = way < CLASS0_WAYS ? slot_small(set, way) : 0;

	if (slot)
		return slot->cache_epoch;
	slot = slot_large(large, way);
	return slot ? slot->cache_epoch : 0;
}

/* Copies len <= KEY_BYTES_MAX bytes of a key into l, zero padded, and hashes it. from may be read
 * up to KEY_BYTES_MAX bytes. */
INLINE void lookup_key(struct lookup *l, const u8 *from, u32 len, const struct hash_secret *secret)
{
	u64 hash = hash_begin(secret, len), word;

	l->key_len = len;
	for (u32 i = 0; i < KEY_WORDS; i++) {
		if ((i + 1) * 8 > len)
			break;
		word = *(u64 *)(from + i * 8);
		l->key[i] = word;
		hash = hash_word(secret, hash, word, i);
	}
	if (len & 7) {
		u32 at = len & (KEY_BYTES_MAX - 8);

		word = *(u64 *)(from + at) & ((1ULL << (len & 7) * 8) - 1);
		l->key[at / 8] = word;
		hash = hash_word(secret, hash, word, at / 8);
	}
	l->hash = hash_end(secret, hash);
}

/* Whole key compared, 8 bytes at a time; both sides are zero padded. bytes: of the slot. */
INLINE bool slot_key_equal(struct slot *slot, const struct lookup *l, u32 bytes)
{
	u32 at = slot->value_len, len = l->key_len;

	if (slot->key_len != len || slot->cache_epoch != l->cache_epoch || slot->db != l->db)
		return false;
	for (u32 i = 0; i < KEY_WORDS; i++) {
		u32 off = at + i * 8;

		if (i * 8 >= len)
			break;
		opaque(off);
		if (off > bytes - SLOT_HEADER_BYTES - 8)
			return false;
		if (*(u64 *)(slot->data + off) != l->key[i])
			return false;
	}
	return true;
}

/* Way of the key or WAYS. Two candidates are tried: three equal 16-bit tags in a set are a miss. */
INLINE u32 set_find(struct cache_set *set, struct cache_large *large, const struct lookup *l)
{
	u32 bits = tags_match(set, tag_of(l->hash));

	for (int i = 0; i < 2; i++) {
		struct slot *slot;
		u32 way;

		if (!bits)
			break;
		way = lowest_bit(bits);
		bits &= bits - 1;
		if (way < CLASS0_WAYS) {
			slot = slot_small(set, way);
			if (slot && slot_key_equal(slot, l, CLASS0_BYTES))
				return way;
		} else {
			slot = slot_large(large, way);
			if (slot && slot_key_equal(slot, l, CLASS3_BYTES))
				return way;
		}
	}
	return WAYS;
}

/* Frees every way whose tag matches, in all databases, but the way keep: a false positive costs a
 * refill, never truth. Returns the number freed; *used: whether one was answered from. */
INLINE u32 set_drop_but(struct cache_set *set, u16 tag, u32 keep, bool *used)
{
	u32 bits = tags_match(set, tag) & ~(1U << (keep & 31)), n = 0;

	*used = set->visited & bits;
	for (int i = 0; i < WAYS; i++) {
		if (!(bits & 1U << i))
			continue;
		set->tags[i] = 0;
		n++;
	}
	set->visited &= ~bits;
	return n;
}

INLINE u32 set_drop_tag(struct cache_set *set, u16 tag, bool *used)
{
	return set_drop_but(set, tag, WAYS, used);
}

/* Opens a set for a change: lock and C7. The atomics are full barriers, so on all machines the odd
 * count is seen before the first store of the change, the even one behind the last. */
INLINE void set_change_begin(struct cache_set *set)
{
	lock_take(&set->lock);
	atomic_add32(&set->changes, 1);
}

INLINE void set_change_end(struct cache_set *set)
{
	atomic_add32(&set->changes, 1);
	lock_release(&set->lock);
}

/* Begins to read a set without its lock, which would cost four calls and two locked instructions,
 * about 45 ns. Every value read may be torn until set_read_valid() says otherwise: bound it. */
INLINE u32 set_read_begin(const struct cache_set *set)
{
	u32 changes = read_once(set->changes);

	load_barrier();
	return changes;
}

INLINE bool set_read_valid(const struct cache_set *set, u32 changes)
{
	load_barrier();
	return !(changes & 1) && read_once(set->changes) == changes;
}

/* Notes an answer: the bits of SIEVE and of erb_touched, side by side in one word. Written without
 * the lock and only if clear; a lost update costs an early eviction, or one TOUCH more or less. */
INLINE void set_visit(struct cache_set *set, u32 way)
{
	u32 *bits = (u32 *)&set->visited, both = (1U << way) * 0x10001U, now = read_once(*bits);

	if ((now & both) != both)
		write_once(*bits, now | both);
}

/* The small way that the hash predicts: insertion tries it first, so that a hit can fetch its slot
 * together with the set's header instead of after it. */
INLINE u32 way_predicted(u64 hash)
{
	return (u32)(hash >> 44) & (CLASS0_WAYS - 1);
}

/* A free way of the class (entries of another epoch are free), WAYS if there is none. */
INLINE u32 class_free(struct cache_set *set, struct cache_large *large, const struct lookup *l,
		      u32 class)
{
	u32 first = class_first(class), ways = class_ways(class), cache_epoch = l->cache_epoch;
	u32 start = class ? 0 : way_predicted(l->hash);

	for (u32 i = 0; i < CLASS0_WAYS; i++) {
		u32 way = class ? (first + i) & (WAYS - 1) : (start + i) & (CLASS0_WAYS - 1);

		if (i >= ways)
			break;
		if (!set->tags[way] || slot_epoch(set, large, way) != cache_epoch)
			return way;
	}
	return WAYS;
}

/* SIEVE within the class: the hand passes visited ways and clears them; the first unvisited one is
 * the victim, and the hand moves on. */
INLINE u32 class_victim(struct cache_set *set, u32 class)
{
	u32 first = class_first(class), ways = class_ways(class);
	u32 hand = set->hands[class & (CLASSES - 1)];

	for (u32 i = 0; i < CLASS0_WAYS; i++) {
		u32 way;

		if (i >= ways)
			break;
		if (hand >= ways)
			hand = 0;
		way = (first + hand) & (WAYS - 1);
		if (!(set->visited & 1U << way))
			break;
		set->visited &= ~(1U << way);
		hand++;
	}
	if (hand >= ways)
		hand = 0;
	set->hands[class & (CLASSES - 1)] = hand + 1;
	return (first + hand) & (WAYS - 1);
}

/* A way for a new entry of the class: a free one, of the next larger class if its own is full, else
 * the class's victim. *evicted says which it was. */
INLINE u32 set_choose(struct cache_set *set, struct cache_large *large, const struct lookup *l,
		      u32 class, bool *evicted)
{
	u32 way = class_free(set, large, l, class);

	if (way == WAYS && class + 1 < CLASSES)
		way = class_free(set, large, l, class + 1);
	*evicted = way == WAYS;
	return way == WAYS ? class_victim(set, class) : way;
}

/* Copies an entry's image over its slot by blocks: as many bytes of at most most, a constant. Lock held. */
INLINE void slot_write_some(struct slot *slot, const u64 *image, u32 bytes, const u32 most)
{
	u64 *to = (u64 *)slot;

	for (u32 i = 0; i < most / COPY_BLOCK; i++) {
		if (i * COPY_BLOCK >= bytes)
			break;
		for (u32 k = 0; k < COPY_BLOCK / 8; k++)
			to[i * 8 + k] = image[i * 8 + k];
	}
}

/* The whole class: constant sizes keep the lock short and the verifier calm. Lock held. */
INLINE void slot_write(struct slot *slot, const u64 *image, const u32 bytes)
{
	slot_write_some(slot, image, bytes, bytes);
}

/* The header of a string's slot. */
INLINE void slot_head(struct slot *slot, u32 cache_epoch, u32 value_len, u32 key_len, u8 flags,
		      u32 db)
{
	slot->cache_epoch = cache_epoch;
	slot->value_len = value_len;
	slot->key_len = key_len;
	slot->flags = flags;
	slot->type = SLOT_STRING;
	slot->db = db;
}

/* Opens one share of the global fence. Who reads the version before it (fill_begin) misses neither:
 * each step is a full barrier. */
INLINE void fence_take(struct control *c)
{
	atomic_add(&c->fence, 1);
	atomic_add(&c->global_version, 1);
	count(STAT_FENCE_TAKEN);
}

/* Gives one share back, of a command that is not on its way after all or for which another share
 * stands. */
INLINE void fence_return(struct control *c)
{
	atomic_add(&c->global_version, 1);
	atomic_add(&c->fence, -1ULL);
	count(STAT_FENCE_RELEASED);
}

/* Gives one share back, whose command may have changed what Redis reports to nobody. The epoch moves
 * first: what was filled before the command ran is absent before anybody can be answered again. */
INLINE void fence_release(struct control *c)
{
	atomic_add32(&c->cache_epoch, 1);
	fence_return(c);
}

/* Lets the daemon look at once at what it would find out with its next tick. */
INLINE void daemon_wake(void)
{
	u64 *wake = bpf_ringbuf_reserve(&erb_wakes, sizeof(*wake), 0);

	if (!wake)
		return;
	*wake = 0;
	bpf_ringbuf_submit(wake, BPF_RB_FORCE_WAKEUP);
}

/* The share's command was executed, and Redis reports what it wrote. The fence stays closed until
 * these reports are handled: the daemon is woken for the first of the shares that wait. */
INLINE void fence_answer(struct control *c)
{
	if (atomic_add_before(&c->fence_answered, 1) == read_once(c->fence_settled))
		daemon_wake();
}

/* Gives back the shares that were answered up to a count. One caller at a time. */
INLINE void fence_settle(struct control *c, u64 answered)
{
	u64 shares = answered - c->fence_settled;

	if ((s64)shares <= 0 || answered > read_once(c->fence_answered))
		return;
	atomic_add(&c->global_version, 1);
	write_once(c->fence_settled, answered);
	atomic_add(&c->fence, -shares);
	count_n(STAT_FENCE_SETTLED, shares);
	count_n(STAT_FENCE_RELEASED, shares);
}

/* The command of a share was executed. */
INLINE void fence_end(struct control *c, bool hidden)
{
	if (hidden)
		fence_release(c);
	else
		fence_answer(c);
}
