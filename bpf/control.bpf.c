// SPDX-License-Identifier: GPL-2.0
/* control.bpf.c - what the daemon does to the cache, as programs: the data path's own hash, locks
 * and layout are written once, in C. Run by BPF_PROG_RUN; requests and answers are in erb_fill_io.
 */
#define HANDLER_ABI "redis/abi.h"
#include "base/seam.h"
#include "cache/cache.h"
#include "cache/drained.h"
#include "cache/interest.h"
#include "cache/marks.h"
#include "redis/maps.h" /* made here, as all that is shared */

char LICENSE[] SEC("license") = "GPL";

/* Scratch: the daemon is the only caller. */
struct fill_work {
	struct lookup l;
	u8 image[CLASS3_BYTES + KEY_BYTES_MAX] __attribute__((aligned(8)));
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fill_work);
} fill_work_map SEC(".maps");

INLINE struct fill_work *scratch(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&fill_work_map, &zero);
}

INLINE struct fill_io *requests(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&erb_fill_io, &zero);
}

/* The key of slot n of the batch, for what follows. Global: verified by itself, and its loop leaves
 * nothing behind that would keep the loops of its callers from converging on Linux 6.12. */
__noinline int fill_look(u32 n)
{
	struct control *c = control_get();
	struct fill_work *fw = scratch();
	struct fill_io *io = requests();

	if (c && fw && io && n < FILL_BATCH)
		lookup_key(&fw->l, io->slots[n].key, io->slots[n].key_len, &c->hash);
	return 0;
}

INLINE bool closed(struct control *c)
{
	return read_once(c->fence) || c->stopping ||
	       read_once(c->gate_seen) != read_once(c->gate_ack);
}

/* The way that holds what a SET of fw->l's tag said and that is answered for so many ns more, or awaits
 * its reply; else WAYS. Read without the lock. Global: verified by itself. */
__noinline int written_way(u32 index, u64 more_ns)
{
	struct control *c = control_get();
	struct fill_work *fw = scratch();
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	u64 at = now_exact_ns() + more_ns;
	u32 bits;

	if (!c || !fw || !set || !large)
		return WAYS;
	bits = tags_match(set, tag_of(fw->l.hash));
	for (u32 way = 0; way < CLASS0_WAYS + CLASS1_WAYS; way++) {
		struct slot *slot;
		u32 bytes = way < CLASS0_WAYS ? CLASS0_BYTES : CLASS1_BYTES;

		if (!(bits & 1U << way))
			continue;
		slot = slot_of(set, large, way);
		if (slot && (slot->flags & SLOT_F_WRITTEN) &&
		    slot->cache_epoch == read_once(c->cache_epoch) &&
		    written_lives(c, slot_written(slot, bytes, way < CLASS0_WAYS), at))
			return way;
	}
	return WAYS;
}

INLINE u32 written_db(u32 index, u32 way)
{
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	struct slot *slot = set && large ? slot_of(set, large, way) : 0;

	return slot ? slot->db : 0;
}

/* Notes what must not have moved when the value comes: C2. The global version is read first: a
 * fence that opens later moves it, one that is open is seen. The epoch is read last: it has moved
 * before the fence falls. */
INLINE u32 fill_begin(struct control *c, struct lookup *l, struct fill_slot *s)
{
	struct cache_set *set;
	u32 marks, way;
	bool unread;

	s->global_version = read_once(c->global_version);
	load_barrier();
	if (closed(c) || !c->fills)
		return FILL_BUSY;
	load_barrier();
	s->cache_epoch = read_once(c->cache_epoch);
	s->set = set_of(c, l->hash);
	set = set_get(s->set);
	if (!set)
		return FILL_BUSY;
	if (written_way(s->set, WRITTEN_END_NS) != WAYS)
		return FILL_WRITTEN;
	way = written_way(s->set, 0);
	unread = way != WAYS && !(read_once(set->visited) & 1U << (way & (WAYS - 1)));
	lock_take(&set->lock);
	marks = set->marks;
	s->version = set->version;
	lock_release(&set->lock);
	/* What is absorbed from here on moves the version: K3. */
	if (set_undrained(&c->order, set))
		return FILL_BUSY;
	return marks ? FILL_BUSY : unread ? FILL_UNREAD : FILL_OK;
}

SEC("syscall")
int erb_fill_begin(void *ctx)
{
	struct control *c = control_get();
	struct fill_work *fw = scratch();
	struct fill_io *io = requests();
	int i;

	if (!c || !fw || !io)
		return -1;
	bpf_for(i, 0, FILL_BATCH)
	{
		struct fill_slot *s = &io->slots[i];

		if (i >= io->count)
			break;
		if (!s->key_len || s->key_len > KEY_BYTES_MAX) {
			s->status = FILL_BIG;
			continue;
		}
		fill_look(i);
		s->status = fill_begin(c, &fw->l, s);
	}
	return 0;
}

/* Smallest class that holds the entry, CLASSES if none does. C4. */
INLINE u32 class_for(u32 value_len, u32 key_len, bool expires)
{
	u32 bytes = SLOT_HEADER_BYTES + value_len + ((key_len + 7) & ~7U) + (expires ? 8 : 0);

	for (u32 class = 0; class < CLASSES; class ++)
		if (bytes <= class_bytes(class))
			return class;
	return CLASSES;
}

/* The entry as its slot will hold it: header, value, key. */
INLINE void image_build(struct fill_work *fw, const struct fill_slot *s)
{
	struct slot *slot = (struct slot *)fw->image;
	u32 at = s->value_len;
	int i;

	slot->cache_epoch = s->cache_epoch;
	slot->value_len = s->value_len;
	slot->key_len = s->key_len;
	slot->flags = s->expiry_ms ? SLOT_F_EXPIRES : 0;
	slot->type = s->absent ? SLOT_ABSENT : s->type;
	slot->db = s->db;
	bpf_for(i, 0, VALUE_BYTES_MAX / 8 + 1)
	{
		if (i * 8 >= s->value_len)
			break;
		*(u64 *)(slot->data + i * 8) = *(u64 *)(s->value + i * 8);
	}
	opaque(at);
	if (at > VALUE_BYTES_MAX)
		return;
	bpf_for(i, 0, KEY_WORDS)
	{
		if (i * 8 >= s->key_len)
			break;
		*(u64 *)(slot->data + at + i * 8) = fw->l.key[i];
	}
}

/* Copies the image over a slot and puts the expiry into the last 8 bytes of the way, which may be
 * of a larger class than the entry. Lock held. */
INLINE void slot_store(struct slot *slot, struct fill_work *fw, u32 bytes, u32 way_bytes,
		       u64 expiry_ms)
{
	u32 at = way_bytes - 8 - SLOT_HEADER_BYTES;

	slot_write(slot, (u64 *)fw->image, bytes);
	opaque(at);
	if (expiry_ms && at <= way_bytes - 8 - SLOT_HEADER_BYTES)
		*(u64 *)(slot->data + at) = expiry_ms;
}

/* A way of the set with the tag of fw->l but of another database, which may stay when that is
 * inserted; one only: of three set_find() would not find the last. Only insertions write slots, and
 * SETs, which move the version: so no lock is needed. Global: verified by itself. */
__noinline int fill_keep(u32 index)
{
	struct fill_work *fw = scratch();
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	u32 bits;

	if (!fw || !set || !large)
		return WAYS;
	bits = tags_match(set, tag_of(fw->l.hash));
	for (u32 way = 0; way < WAYS; way++) {
		struct slot *slot;

		if (!(bits & 1U << way))
			continue;
		slot = way < CLASS0_WAYS ? slot_small(set, way) : slot_large(large, way);
		if (slot && slot->cache_epoch == fw->l.cache_epoch && slot->db != fw->l.db)
			return way;
	}
	return WAYS;
}

/* Inserts slot n of the batch. Global: verified by itself. */
__noinline int fill_insert(u32 n)
{
	struct control *c = control_get();
	struct fill_work *fw = scratch();
	struct fill_io *io = requests();
	struct cache_digest *digest;
	struct cache_large *large;
	struct cache_set *set;
	struct fill_slot *s;
	struct slot *slot;
	u32 class, way, keep, status = FILL_MOVED;
	bool evicted = false, used;

	if (!c || !fw || !io || n >= FILL_BATCH)
		return FILL_MOVED;
	s = &io->slots[n];
	class = class_for(s->value_len, s->key_len, s->expiry_ms != 0);
	if (s->value_len > VALUE_BYTES_MAX || class >= CLASSES)
		return FILL_BIG;
	if (now_exact_ns() >= read_once(c->lease_until_ns))
		return FILL_NO_LEASE;
	if (read_once(c->global_version) != s->global_version || closed(c))
		return FILL_MOVED;
	image_build(fw, s);
	fw->l.cache_epoch = s->cache_epoch;
	fw->l.db = s->db;
	keep = fill_keep(s->set);
	set = set_get(s->set);
	large = large_get(s->set);
	digest = digest_get(s->set);
	if (!set || !large || !digest)
		return FILL_MOVED;
	set_change_begin(set);
	if (!set->marks && set->version == s->version) {
		/* C6, entries of older epochs included */
		set_drop_but(set, tag_of(fw->l.hash), keep, &used);
		way = set_choose(set, large, &fw->l, class, &evicted);
		if (way < CLASS0_WAYS) {
			slot = slot_small(set, way);
			if (slot)
				slot_store(slot, fw, CLASS0_BYTES, CLASS0_BYTES, s->expiry_ms);
		} else {
			slot = slot_large(large, way);
			if (slot)
				slot_store(slot, fw, class_bytes(class),
					   class_bytes(way_class(way)), s->expiry_ms);
		}
		digest->tags[way & (WAYS - 1)] = digest_of(fw->l.hash); /* C8, before the tag */
		set->tags[way & (WAYS - 1)] = tag_of(fw->l.hash);
		set->visited &= ~(1U << (way & (WAYS - 1)));
		status = FILL_OK;
	}
	set_change_end(set);
	if (evicted)
		count(STAT_CACHE_EVICTED);
	return status;
}

SEC("syscall")
int erb_fill_insert(void *ctx)
{
	struct control *c = control_get();
	struct fill_work *fw = scratch();
	struct fill_io *io = requests();
	int i;

	if (!c || !fw || !io)
		return -1;
	bpf_for(i, 0, FILL_BATCH)
	{
		struct fill_slot *s = &io->slots[i];

		if (i >= io->count)
			break;
		if (!s->key_len || s->key_len > KEY_BYTES_MAX) {
			s->status = FILL_BIG;
			continue;
		}
		fill_look(i);
		s->status = fill_insert(i);
		interest_filled(fw->l.hash, s->type, s->db, s->status == FILL_OK);
		count(s->status == FILL_OK    ? STAT_FILL_INSERTED
		      : s->status == FILL_BIG ? STAT_FILL_TOO_BIG
					      : STAT_FILL_STALE);
	}
	return 0;
}

/* Redis reports a change of fw->l's key: its entries go, but for what a SET said (W3). Returns the way of
 * that, else WAYS. Global: verified by itself. */
__noinline int invalidate(u32 index)
{
	struct fill_work *fw = scratch();
	struct cache_set *set = set_get(index);
	u32 dropped, changes, keep;
	bool used;

	if (!fw || !set)
		return WAYS;
	changes = set_read_begin(set);
	keep = written_way(index, 0);
	set_change_begin(set);
	if (set->changes != changes + 1) /* what was read may be torn, or gone */
		keep = WAYS;
	set->version++;
	dropped = set_drop_but(set, tag_of(fw->l.hash), keep, &used);
	set_change_end(set);
	count_n(STAT_CACHE_INVALIDATED, dropped);
	if (dropped) /* and not before: its writer passed no boosted device */
		interest_written(fw->l.hash, used);
	return keep;
}

SEC("syscall")
int erb_invalidate(void *ctx)
{
	struct control *c = control_get();
	struct fill_work *fw = scratch();
	struct fill_io *io = requests();
	int i;

	if (!c || !fw || !io)
		return -1;
	bpf_for(i, 0, FILL_BATCH)
	{
		struct fill_slot *s = &io->slots[i];
		u32 index, keep;
		bool wanted, doubted;

		if (i >= io->count)
			break;
		s->status = FILL_OK;
		if (!s->key_len || s->key_len > KEY_BYTES_MAX)
			continue; /* never cached */
		fill_look(i);
		index = set_of(c, fw->l.hash);
		keep = invalidate(index);
		wanted = interest_reported(fw->l.hash, &s->type, &doubted);
		s->db = 0; /* which a report does not name */
		if (doubted || set_aside(c, index, c->fill_mask))
			continue;
		if (keep != WAYS) {
			s->type = SLOT_STRING;
			s->db = written_db(index, keep);
			s->status = wanted ? FILL_WRITTEN : FILL_SELDOM;
		} else if (wanted) {
			s->status = FILL_WANTED;
		}
	}
	return 0;
}

/* Puts the key of a way into the next slot of the batch, if the way holds one that counts. What is
 * read without the lock may be torn: bounded, and not counted then. Global: verified by itself. */
__noinline int touched_way(u32 index, u32 way)
{
	struct control *c = control_get();
	struct fill_io *io = requests();
	struct cache_set *set = set_get(index);
	struct cache_large *large = large_get(index);
	struct fill_slot *to;
	struct slot *slot;
	u32 changes, at, len, bytes, n;

	if (!c || !io || !set || !large || way >= WAYS)
		return 0;
	n = io->count;
	opaque(n);
	if (n >= FILL_BATCH)
		return 0;
	to = &io->slots[n];
	changes = set_read_begin(set);
	slot = way < CLASS0_WAYS ? slot_small(set, way) : slot_large(large, way);
	bytes = way < CLASS0_WAYS ? CLASS0_BYTES : CLASS3_BYTES;
	if (!slot || !set->tags[way] || slot->cache_epoch != read_once(c->cache_epoch) ||
	    slot->type == SLOT_ABSENT) /* there is nothing to TOUCH */
		return 0;
	at = slot->value_len;
	len = slot->key_len;
	to->db = slot->db;
	to->type = slot->type;
	for (u32 i = 0; i < KEY_WORDS; i++) {
		u32 off = at + i * 8;

		if (i * 8 >= len)
			break;
		opaque(off);
		if (off > bytes - SLOT_HEADER_BYTES - 8)
			return 0;
		*(u64 *)(to->key + i * 8) = *(u64 *)(slot->data + off);
	}
	if (!len || len > KEY_BYTES_MAX || !set_read_valid(set, changes))
		return 0;
	to->key_len = len;
	io->count = n + 1;
	return 0;
}

/* All ways of a set that were answered from; returns whether the batch has room for another set.
 * Global: verified by itself. */
__noinline int touched_set(u32 index)
{
	struct fill_io *io = requests();
	struct cache_set *set = set_get(index);
	u32 bits;
	int way;

	if (!io || !set)
		return 0;
	bits = read_once(set->touched);
	if (!bits)
		return 1;
	write_once(set->touched, 0);
	bpf_for(way, 0, WAYS)
	{
		if (bits & 1U << way)
			touched_way(index, way);
	}
	return io->count <= FILL_BATCH - WAYS;
}

/* Where Redis evicts by use, answers of ERB hide that keys are used: collects them from io->set on,
 * so that the daemon can TOUCH them. io->set is 0 again after the last set. */
SEC("syscall")
int erb_touched(void *ctx)
{
	struct control *c = control_get();
	struct fill_io *io = requests();
	int i;

	if (!c || !io)
		return -1;
	io->count = 0;
	bpf_for(i, 0, TOUCH_SETS)
	{
		u32 index = io->set;

		io->set = index < c->set_mask ? index + 1 : 0;
		if (!touched_set(index) || !io->set)
			break;
	}
	return 0;
}

INLINE void clear(struct control *c)
{
	atomic_add32(&c->cache_epoch, 1);
	atomic_add(&c->global_version, 1);
	count(STAT_CACHE_CLEARED);
}

SEC("syscall")
int erb_clear(void *ctx)
{
	struct control *c = control_get();

	if (!c)
		return -1;
	clear(c);
	return 0;
}

/* Gives back the shares of the fence that were answered up to control.settle_to, as what Redis has
 * reported before is handled: C10. */
SEC("syscall")
int erb_settle(void *ctx)
{
	struct control *c = control_get();

	if (!c)
		return -1;
	fence_settle(c, c->settle_to);
	return 0;
}
