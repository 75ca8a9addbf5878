// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Helpers on maps, clocks, locks and sums, with the kernel's results and errors; the table of all
//! helpers that C calls through. `helpers_packet.rs` and `helpers_sock.rs` hold the others.
//!
//! Each begins with `enter`: a point at which another CPU may run, and the check that no lock is
//! held. All are called by C only, from inside a program.

use std::ffi::c_void;

use crate::csum;
use crate::errno::{EINVAL, EOPNOTSUPP};
use crate::exec::{self, enter, exec, violation};
use crate::helpers_packet as packet;
use crate::helpers_sock as sock;
use crate::io;
use crate::map::Map;

/// Longest input of `bpf_csum_diff` before Linux 6.13: `MAX_BPF_STACK`.
const CSUM_BYTES_MAX: usize = 512;
/// `bpf_ringbuf_reserve` refuses flags and sizes above this.
const RING_RECORD_MAX: u64 = 0x3fff_ffff;

/// Called for each element of a map.
///
/// # Safety
/// Key, value and context must be what the callback takes.
type EachFn = unsafe extern "C-unwind" fn(*mut c_void, *const u8, *mut u8, *mut c_void) -> i64;

macro_rules! ops {
    ($($name:ident: $function:path, ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// `struct sim_ops`; called by C only.
        ///
        /// # Safety
        /// As each helper says.
        #[repr(C)]
        pub(crate) struct Ops {
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
        }
        /// The helpers.
        pub(crate) const OPS: Ops = Ops { $($name: $function,)* };
    };
}

ops! {
    map_lookup: map_lookup, (u64, *const u8) -> *mut u8;
    map_update: map_update, (u64, *const u8, *const u8, u64) -> i64;
    map_delete: map_delete, (u64, *const u8) -> i64;
    map_each: map_each, (u64, *mut c_void, *mut c_void, *mut c_void, u64) -> i64;
    ring_reserve: ring_reserve, (u64, u64, u64) -> *mut u8;
    ring_submit: ring_submit, (*mut u8, u64);
    ring_discard: ring_discard, (*mut u8, u64);
    ktime_ns: ktime_ns, () -> u64;
    ktime_coarse_ns: ktime_coarse_ns, () -> u64;
    random: random, () -> u32;
    cpu: cpu, () -> u32;
    lock: lock, (*mut u32);
    unlock: unlock, (*mut u32);
    point: point, ();
    csum_diff: csum_diff, (*const u8, u32, *const u8, u32, u32) -> i64;
    xdp_load: packet::xdp_load, (*mut crate::library::XdpCtx, u32, *mut u8, u32) -> i64;
    xdp_store: packet::xdp_store, (*mut crate::library::XdpCtx, u32, *const u8, u32) -> i64;
    xdp_head: packet::xdp_head, (*mut crate::library::XdpCtx, i32) -> i64;
    xdp_tail: packet::xdp_tail, (*mut crate::library::XdpCtx, i32) -> i64;
    xdp_meta: packet::xdp_meta, (*mut crate::library::XdpCtx, i32) -> i64;
    skb_load: packet::skb_load, (*const crate::library::SkbCtx, u32, *mut u8, u32) -> i64;
    skb_store: packet::skb_store, (*mut crate::library::SkbCtx, u32, *const u8, u32, u64) -> i64;
    skb_change_tail: packet::skb_change_tail, (*mut crate::library::SkbCtx, u32, u64) -> i64;
    skb_l4_csum: packet::skb_l4_csum, (*mut crate::library::SkbCtx, u32, u64, u64, u64) -> i64;
    skb_clone_redirect: packet::skb_clone_redirect, (*mut crate::library::SkbCtx, u32, u64) -> i64;
    skb_cookie: packet::skb_cookie, (*mut crate::library::SkbCtx) -> u64;
    sk_lookup: sock::sk_lookup, (*mut c_void, *const u8, u32, u64, u64) -> *mut c_void;
    sk_release: sock::sk_release, (*mut c_void) -> i64;
    sk_check_cookie: sock::sk_check_cookie, (*mut c_void, *const u8, u32, *const u8, u32) -> i64;
    sk_to_tcp: sock::sk_to_tcp, (*mut c_void) -> *mut c_void;
    sk_to_timewait: sock::sk_to_timewait, (*mut c_void) -> *mut c_void;
    sk_to_request: sock::sk_to_request, (*mut c_void) -> *mut c_void;
    sk_cast: sock::sk_cast, (*const c_void) -> *mut c_void;
    keeps: io::keeps, () -> u32;
    io: io::memory, () -> *mut c_void;
}

/// # Safety
/// `key` must be a key of the map.
unsafe extern "C-unwind" fn map_lookup(map: u64, key: *const u8) -> *mut u8 {
    enter("bpf_map_lookup_elem");
    let me = exec();
    // SAFETY: the caller's promise.
    unsafe { me.inner().map(map as usize).lookup(key, me.cpu) }
}

/// # Safety
/// `key` and `value` must be such of the map.
unsafe extern "C-unwind" fn map_update(
    map: u64,
    key: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    enter("bpf_map_update_elem");
    let me = exec();
    let map = me.inner().map(map as usize);
    // SAFETY: the caller's promise.
    let key = unsafe { std::slice::from_raw_parts(key, map.key_bytes()) };
    match map {
        // SAFETY: the caller's promise.
        Map::Hash(hash) => unsafe { hash.update(key, value, flags, me.cpu) },
        _ => violation("bpf_map_update_elem is modelled for hashes only"),
    }
}

/// # Safety
/// `key` must be a key of the map.
unsafe extern "C-unwind" fn map_delete(map: u64, key: *const u8) -> i64 {
    enter("bpf_map_delete_elem");
    let me = exec();
    let map = me.inner().map(map as usize);
    // SAFETY: the caller's promise.
    let key = unsafe { std::slice::from_raw_parts(key, map.key_bytes()) };
    match map {
        Map::Hash(hash) => hash.delete(key, me.cpu),
        _ => -EINVAL,
    }
}

/// Elements that other CPUs add or delete meanwhile may or may not be seen, as in the kernel.
///
/// # Safety
/// `callback` must be a callback of the map's type for `ctx`.
unsafe extern "C-unwind" fn map_each(
    map: u64,
    at: *mut c_void,
    callback: *mut c_void,
    ctx: *mut c_void,
    flags: u64,
) -> i64 {
    enter("bpf_for_each_map_elem");
    if flags != 0 {
        return -EINVAL;
    }
    // SAFETY: C passes a function of this signature.
    let callback = unsafe { std::mem::transmute::<*mut c_void, EachFn>(callback) };
    let number = map as usize;
    let places = match exec().inner().map(number) {
        Map::Hash(hash) => hash.places(),
        _ => return -EOPNOTSUPP,
    };
    let mut seen = 0;
    for place in 0..places {
        let Map::Hash(hash) = exec().inner().map(number) else {
            return -EOPNOTSUPP;
        };
        let Some((key, value)) = hash.at(place) else {
            continue;
        };
        // The element may be deleted while the callback runs; its key's memory stays in the kernel.
        let key: Box<[u8]> = key.into();
        seen += 1;
        // SAFETY: the caller's promise; the value stays where it is.
        if unsafe { callback(at, key.as_ptr(), value, ctx) } != 0 {
            break;
        }
    }
    seen
}

extern "C-unwind" fn ring_reserve(map: u64, bytes: u64, flags: u64) -> *mut u8 {
    enter("bpf_ringbuf_reserve");
    let me = exec();
    let Map::Ring(ring) = me.inner().map(map as usize) else {
        violation("bpf_ringbuf_reserve on a map that is no ring buffer")
    };
    if flags != 0 || bytes > RING_RECORD_MAX {
        return std::ptr::null_mut();
    }
    let at = ring.reserve(bytes as usize);
    if !at.is_null() {
        me.records.push(at);
    }
    at
}

fn ring_finish(at: *mut u8, discard: bool) {
    let me = exec();
    let Some(index) = me.records.iter().position(|record| *record == at) else {
        violation("a ring record is submitted that was not reserved")
    };
    me.records.swap_remove(index);
    if !me.inner().finish_record(at, discard) {
        violation("a ring record is submitted that was not reserved");
    }
}

extern "C-unwind" fn ring_submit(record: *mut u8, _flags: u64) {
    enter("bpf_ringbuf_submit");
    ring_finish(record, false);
}

extern "C-unwind" fn ring_discard(record: *mut u8, _flags: u64) {
    enter("bpf_ringbuf_discard");
    ring_finish(record, true);
}

extern "C-unwind" fn ktime_ns() -> u64 {
    enter("bpf_ktime_get_ns");
    exec().inner().kernel.now_ns()
}

extern "C-unwind" fn ktime_coarse_ns() -> u64 {
    enter("bpf_ktime_get_coarse_ns");
    exec().inner().kernel.now_coarse_ns()
}

extern "C-unwind" fn cpu() -> u32 {
    enter("bpf_get_smp_processor_id");
    exec().cpu as u32
}

extern "C-unwind" fn random() -> u32 {
    enter("bpf_get_prandom_u32");
    exec().inner().kernel.random()
}

/// # Safety
/// `at` must point to a lock in a map's value.
unsafe extern "C-unwind" fn lock(at: *mut u32) {
    exec::lock(at);
}

/// # Safety
/// As for `lock`.
unsafe extern "C-unwind" fn unlock(at: *mut u32) {
    let inner = exec().inner();
    if let Some(entry) = inner.entry_of(at) {
        // SAFETY: a value of this map is an entry, and stays where it is; no program runs meanwhile.
        inner.kernel.leaves(unsafe { &*entry });
    }
    exec::unlock(at);
}

extern "C-unwind" fn point() {
    exec::point();
}

/// # Safety
/// The pointers must be valid for their lengths; a length of 0 goes with any pointer.
unsafe extern "C-unwind" fn csum_diff(
    from: *const u8,
    from_bytes: u32,
    to: *const u8,
    to_bytes: u32,
    seed: u32,
) -> i64 {
    enter("bpf_csum_diff");
    let (from_bytes, to_bytes) = (from_bytes as usize, to_bytes as usize);
    let folded = exec().inner().config.csum_folded;
    if from_bytes % 4 != 0
        || to_bytes % 4 != 0
        || (!folded && from_bytes + to_bytes > CSUM_BYTES_MAX)
    {
        return -EINVAL;
    }
    let slice = |at: *const u8, bytes: usize| {
        if bytes == 0 {
            &[][..]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(at, bytes) }
        }
    };
    let (from, to) = (slice(from, from_bytes), slice(to, to_bytes));
    let sum = match (from.is_empty(), to.is_empty()) {
        (false, false) => csum::sub(csum::partial(to, seed), csum::partial(from, 0)),
        (true, false) => csum::partial(to, seed),
        (false, true) => !csum::partial(from, !seed),
        (true, true) => seed,
    };
    i64::from(if folded { csum::from32to16(sum) } else { sum })
}
