// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps with the kernel's semantics: arrays, per-CPU arrays, preallocated hashes, ring buffers.
//!
//! M1. A value stays where it is for the map's life: programs keep pointers to it.
//! M2. A deleted hash element's memory is the first to be used for the next key on that CPU, at
//!     once, also while another CPU holds a pointer to it (`kernel/bpf/hashtab.c`, preallocated).
//! M3. Updating an element leaves its lock alone, as `copy_map_value` does.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::errno::{E2BIG, EEXIST, EINVAL, ENOENT};
use crate::library::Symbols;

pub(crate) const KIND_HASH: u32 = 1;
pub(crate) const KIND_ARRAY: u32 = 2;
pub(crate) const KIND_PERCPU_ARRAY: u32 = 6;
pub(crate) const KIND_RINGBUF: u32 = 27;

const NOEXIST: u64 = 1;
const EXIST: u64 = 2;
/// `sizeof(struct bpf_ringbuf_hdr)` and the size to which records are rounded.
const RECORD_HEADER: usize = 8;
const ALIGN: usize = 64;
/// Out of bounds of a value is out of bounds of everything, for the sanitizer.
const GUARD_BYTES: usize = if crate::SANITIZED { ALIGN } else { 0 };

/// Values side by side, each aligned to a cache line. Those of a word stand as in the kernel, with one guard behind
/// the last: with a guard behind each of 131,072, a fuzzer ran 24 inputs a second, with one 86.
pub(crate) struct Values {
    memory: *mut u8,
    layout: Layout,
    /// The first cache line in it.
    at: *mut u8,
    stride: usize,
    bytes: usize,
    count: usize,
}

impl Values {
    fn new(count: usize, bytes: usize, symbols: &Symbols) -> Self {
        let packed = bytes <= size_of::<u64>();
        let stride = if packed {
            size_of::<u64>()
        } else {
            bytes.next_multiple_of(ALIGN) + GUARD_BYTES
        };
        // Memory of a larger alignment would be written to make it zero, all of it: 86 inputs a second instead of 364.
        let layout = Layout::array::<u64>((stride * count.max(1) + GUARD_BYTES + ALIGN) / 8)
            .expect("a map's size is a few hundred MiB at most");
        // SAFETY: the layout is not of size 0.
        let memory = unsafe { alloc_zeroed(layout) };
        assert!(
            !memory.is_null(),
            "no memory for a map of {} bytes",
            layout.size()
        );
        // SAFETY: there is room for that in front.
        let at = unsafe { memory.add(memory.align_offset(ALIGN)) };
        let values = Self {
            memory,
            layout,
            at,
            stride,
            bytes,
            count,
        };
        if crate::SANITIZED {
            // SAFETY: it lies within the allocation.
            unsafe { (symbols.guard)(at.add(stride * count).cast(), GUARD_BYTES as u64) };
        }
        if crate::SANITIZED && !packed {
            for index in 0..count {
                // SAFETY: the rest of a stride lies within the allocation. Map values are
                // accessible in units of 8 bytes, as the verifier counts them.
                unsafe {
                    let used = bytes.next_multiple_of(8);
                    (symbols.guard)(values.get(index).add(used).cast(), (stride - used) as u64);
                }
            }
        }
        values
    }

    pub(crate) fn get(&self, index: usize) -> *mut u8 {
        assert!(index < self.count, "index {index} of {}", self.count);
        // SAFETY: the index was checked.
        unsafe { self.at.add(index * self.stride) }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Fills these values with garbage, which is as long as a value or longer.
    pub(crate) fn scramble(&self, which: std::ops::Range<usize>, garbage: &[u8]) {
        assert!(garbage.len() >= self.bytes, "{} bytes", self.bytes);
        for index in which {
            // SAFETY: both are at least `bytes` long, and nobody holds a reference to the value.
            unsafe {
                self.get(index)
                    .copy_from_nonoverlapping(garbage.as_ptr(), self.bytes);
            }
        }
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first one.
    pub(crate) fn start(&self) -> usize {
        self.at as usize
    }

    /// From one value to the next.
    pub(crate) const fn stride(&self) -> usize {
        self.stride
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        // SAFETY: allocated in new with this layout.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

/// FNV-like: keys are short and chosen by us.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 29;
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A preallocated hash.
pub(crate) struct Hash {
    values: Values,
    key_bytes: usize,
    /// Where a value's lock is, if it has one.
    lock_at: Option<usize>,
    index: HashMap<Box<[u8]>, usize, BuildHasherDefault<KeyHasher>>,
    keys: Vec<Option<Box<[u8]>>>,
    /// Per CPU, the element freed last at the end.
    free: Vec<Vec<usize>>,
    max_entries: usize,
}

impl Hash {
    fn new(shape: &crate::library::MapShape, entries: usize, cpus: usize, s: &Symbols) -> Self {
        let mut free: Vec<Vec<usize>> = (0..cpus).map(|_| Vec::new()).collect();
        // The kernel deals them out evenly; the first are popped first here.
        for index in (0..entries).rev() {
            free[index % cpus].push(index);
        }
        let lock_at =
            (shape.name == "erb_conns").then_some(std::mem::offset_of!(erb_abi::conn, lock));
        Self {
            values: Values::new(entries, shape.value_bytes, s),
            key_bytes: shape.key_bytes,
            lock_at,
            index: HashMap::default(),
            keys: vec![None; entries],
            free,
            max_entries: entries,
        }
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.index.get(key).copied()
    }

    pub(crate) fn value(&self, index: usize) -> *mut u8 {
        self.values.get(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Key and value in use at this place.
    pub(crate) fn at(&self, place: usize) -> Option<(&[u8], *mut u8)> {
        let key = self.keys.get(place)?.as_deref()?;
        Some((key, self.values.get(place)))
    }

    pub(crate) const fn places(&self) -> usize {
        self.max_entries
    }

    pub(crate) const fn values(&self) -> &Values {
        &self.values
    }

    pub(crate) const fn value_bytes(&self) -> usize {
        self.values.bytes()
    }

    /// # Safety
    /// `value` must point to as many bytes as a value has.
    pub(crate) unsafe fn update(
        &mut self,
        key: &[u8],
        value: *const u8,
        flags: u64,
        cpu: usize,
    ) -> i64 {
        if flags > EXIST {
            return -EINVAL;
        }
        let old = self.find(key);
        match (flags, old) {
            (NOEXIST, Some(_)) => return -EEXIST,
            (EXIST, None) => return -ENOENT,
            _ => {}
        }
        let place = match old {
            // The kernel swaps in a spare element; where it is does not show in a single map.
            Some(place) => place,
            None => match self.take_free(cpu) {
                Some(place) => place,
                None => return -E2BIG,
            },
        };
        // SAFETY: both are a value long and distinct memory.
        unsafe { self.copy(place, value) };
        if old.is_none() {
            let key: Box<[u8]> = key.into();
            self.keys[place] = Some(key.clone());
            self.index.insert(key, place);
        }
        0
    }

    fn take_free(&mut self, cpu: usize) -> Option<usize> {
        let cpus = self.free.len();
        (0..cpus).find_map(|step| self.free[(cpu + step) % cpus].pop())
    }

    /// # Safety
    /// As for update.
    unsafe fn copy(&self, place: usize, value: *const u8) {
        let to = self.values.get(place);
        let bytes = self.values.bytes;
        // SAFETY: the caller's promise; the lock lies within the value: M3.
        unsafe {
            match self.lock_at {
                None => to.copy_from_nonoverlapping(value, bytes),
                Some(lock) => {
                    to.copy_from_nonoverlapping(value, lock);
                    let rest = lock + size_of::<u32>();
                    to.add(rest)
                        .copy_from_nonoverlapping(value.add(rest), bytes - rest);
                }
            }
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8], cpu: usize) -> i64 {
        let Some(place) = self.index.remove(key) else {
            return -ENOENT;
        };
        self.keys[place] = None;
        self.free[cpu].push(place); // M2
        0
    }
}

struct Record {
    bytes: Box<[u64]>,
    len: usize,
    submitted: bool,
    discarded: bool,
}

impl Record {
    fn content(&self) -> Vec<u8> {
        let bytes = self.bytes.iter().flat_map(|word| word.to_ne_bytes());
        bytes.take(self.len).collect()
    }
}

/// A ring buffer.
pub(crate) struct Ring {
    bytes: usize,
    used: usize,
    records: VecDeque<Record>,
}

impl Ring {
    pub(crate) fn reserve(&mut self, bytes: usize) -> *mut u8 {
        let need = (bytes + RECORD_HEADER).next_multiple_of(8);
        if self.used + need > self.bytes {
            return std::ptr::null_mut();
        }
        self.used += need;
        // The kernel does not clear it.
        let mut record = Record {
            bytes: vec![0xa5a5_a5a5_a5a5_a5a5; bytes.div_ceil(8)].into(),
            len: bytes,
            submitted: false,
            discarded: false,
        };
        let at = record.bytes.as_mut_ptr().cast();
        self.records.push_back(record);
        at
    }

    /// Ends a reservation. Returns false if there is none at this address.
    pub(crate) fn finish(&mut self, at: *mut u8, discard: bool) -> bool {
        let found = self.records.iter_mut().rev().find(|record| {
            !record.submitted && record.bytes.as_ptr().cast::<u8>() == at.cast_const()
        });
        let Some(record) = found else { return false };
        record.submitted = true;
        record.discarded = discard;
        true
    }

    /// The first that is found of the records' memory, by address and length.
    pub(crate) fn find(&self, find: impl Fn(usize, usize) -> Option<usize>) -> Option<usize> {
        let mut records = self.records.iter();
        records.find_map(|record| find(record.bytes.as_ptr() as usize, record.bytes.len() * 8))
    }

    /// What the consumer has not taken yet.
    pub(crate) fn records(&self) -> impl Iterator<Item = Vec<u8>> {
        self.records.iter().map(Record::content)
    }

    /// The next record for the consumer; one that is not submitted yet holds up all behind it.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        loop {
            if !self.records.front()?.submitted {
                return None;
            }
            let record = self.records.pop_front()?;
            self.used -= (record.len + RECORD_HEADER).next_multiple_of(8);
            if !record.discarded {
                return Some(record.content());
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
}

/// Any of them.
pub(crate) enum Map {
    Array(Values),
    PerCpu { values: Values, entries: usize },
    Hash(Hash),
    Ring(Ring),
}

impl Map {
    pub(crate) fn new(
        shape: &crate::library::MapShape,
        entries: usize,
        cpus: usize,
        symbols: &Symbols,
    ) -> Self {
        match shape.kind {
            KIND_ARRAY => Self::Array(Values::new(entries, shape.value_bytes, symbols)),
            KIND_PERCPU_ARRAY => Self::PerCpu {
                values: Values::new(entries * cpus, shape.value_bytes, symbols),
                entries,
            },
            KIND_HASH => Self::Hash(Hash::new(shape, entries, cpus, symbols)),
            KIND_RINGBUF => Self::Ring(Ring {
                bytes: entries,
                used: 0,
                records: VecDeque::new(),
            }),
            kind => panic!(
                "map {} is of kind {kind}, which is not modelled",
                shape.name
            ),
        }
    }

    /// # Safety
    /// `key` must point to as many bytes as a key has.
    pub(crate) unsafe fn lookup(&self, key: *const u8, cpu: usize) -> *mut u8 {
        match self {
            Self::Hash(hash) => {
                // SAFETY: the caller's promise.
                let key = unsafe { std::slice::from_raw_parts(key, hash.key_bytes) };
                hash.find(key)
                    .map_or(std::ptr::null_mut(), |place| hash.value(place))
            }
            Self::Array(values) => {
                // SAFETY: the caller's promise: keys of arrays are u32.
                let index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
                if index < values.count() {
                    values.get(index)
                } else {
                    std::ptr::null_mut()
                }
            }
            Self::PerCpu { values, entries } => {
                // SAFETY: as above.
                let index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
                if index < *entries {
                    values.get(cpu * entries + index)
                } else {
                    std::ptr::null_mut()
                }
            }
            Self::Ring(_) => std::ptr::null_mut(),
        }
    }

    pub(crate) const fn key_bytes(&self) -> usize {
        match self {
            Self::Hash(hash) => hash.key_bytes,
            _ => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Library;

    fn conns(entries: usize, cpus: usize) -> Hash {
        let library = Library::builtin();
        let shapes = library.maps().iter();
        let shape = shapes
            .clone()
            .find(|shape| shape.name == "erb_conns")
            .unwrap();
        Hash::new(shape, entries, cpus, library.symbols())
    }

    fn put(hash: &mut Hash, key: u8, flags: u64, cpu: usize) -> i64 {
        let value = vec![key; size_of::<erb_abi::conn>()];
        // SAFETY: the value is as long as the map's.
        unsafe {
            hash.update(
                &[key; size_of::<erb_abi::conn_key>()],
                value.as_ptr(),
                flags,
                cpu,
            )
        }
    }

    fn find(hash: &Hash, key: u8) -> Option<usize> {
        hash.find(&[key; size_of::<erb_abi::conn_key>()])
    }

    #[test]
    fn a_hash_has_the_kernel_errors() {
        let mut hash = conns(2, 2);
        assert_eq!(put(&mut hash, 1, NOEXIST, 0), 0);
        assert_eq!(put(&mut hash, 1, NOEXIST, 0), -EEXIST);
        assert_eq!(put(&mut hash, 1, 0, 0), 0);
        assert_eq!(put(&mut hash, 2, EXIST, 0), -ENOENT);
        assert_eq!(put(&mut hash, 2, 3, 0), -EINVAL);
        assert_eq!(put(&mut hash, 2, NOEXIST, 0), 0, "the other CPU's place");
        assert_eq!(put(&mut hash, 3, NOEXIST, 0), -E2BIG);
        assert_eq!(
            hash.delete(&[9; size_of::<erb_abi::conn_key>()], 0),
            -ENOENT
        );
        assert_eq!(hash.len(), 2);
    }

    #[test]
    fn a_deleted_element_is_used_again_at_once_and_keeps_its_lock() {
        let mut hash = conns(8, 2);
        put(&mut hash, 1, NOEXIST, 0);
        let place = find(&hash, 1).unwrap();
        let held = hash.value(place);
        // SAFETY: the lock is the first word of struct conn.
        unsafe { held.cast::<u32>().write(7) };
        assert_eq!(hash.delete(&[1; size_of::<erb_abi::conn_key>()], 1), 0);
        put(&mut hash, 2, NOEXIST, 1);
        assert_eq!(find(&hash, 2), Some(place));
        // SAFETY: values stay where they are.
        unsafe {
            assert_eq!(held.cast::<u32>().read(), 7, "M3");
            assert_eq!(held.add(4).read(), 2, "the holder sees the new element");
        }
    }

    #[test]
    fn a_ring_is_read_in_order_and_refuses_when_full() {
        let mut ring = Ring {
            bytes: 64,
            used: 0,
            records: VecDeque::new(),
        };
        let first = ring.reserve(20);
        let second = ring.reserve(20);
        assert!(ring.reserve(1).is_null(), "28 bytes are 32 with the header");
        assert!(ring.finish(second, false));
        assert!(!ring.finish(second, false), "twice");
        assert!(ring.take().is_none(), "the first is not submitted");
        assert!(ring.finish(first, true));
        assert_eq!(
            ring.take().map(|record| record.len()),
            Some(20),
            "the second"
        );
        assert!(ring.take().is_none());
        assert!(!ring.reserve(40).is_null());
    }
}
