// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rust mirror of `bpf/bench.h`, generated at build time.

pub use generated::*;

mod generated {
    #![allow(
        missing_docs,
        dead_code,
        non_camel_case_types,
        non_upper_case_globals,
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        clippy::allow_attributes_without_reason,
        reason = "generated; documented in bench.h"
    )]
    include!(concat!(env!("OUT_DIR"), "/mirror.rs"));
}

/// The bytes of a mirrored struct, as map values are written.
pub fn bytes_of<T: Mirrored>(value: &T) -> &[u8] {
    // SAFETY: Mirrored types are plain integers without implicit padding, so every byte is set.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The struct that `bytes` of a map value hold; `None` if the length is another one.
pub fn from_bytes<T: Mirrored>(bytes: &[u8]) -> Option<T> {
    if bytes.len() != size_of::<T>() {
        return None;
    }
    // SAFETY: the length was compared; Mirrored types accept any bytes.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Plain C structs of bench.h: integers only, explicit padding.
///
/// # Safety
/// No implicit padding and no invalid bit patterns.
pub unsafe trait Mirrored: Copy {}
// SAFETY: integers with explicit padding, see bench.h.
unsafe impl Mirrored for bench_config {}
// SAFETY: as above.
unsafe impl Mirrored for bench_conn {}
// SAFETY: as above.
unsafe impl Mirrored for bench_shape {}
// SAFETY: as above.
unsafe impl Mirrored for bench_batch {}
// SAFETY: as above.
unsafe impl Mirrored for bench_totals {}
// SAFETY: as above.
unsafe impl Mirrored for bench_echo_config {}
// SAFETY: an integer.
unsafe impl Mirrored for u32 {}
