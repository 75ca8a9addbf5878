// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sequence numbers: comparison modulo 2^32.

/// Whether `a` comes before `b`.
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Whether `a` comes after `b`.
pub(crate) fn after(a: u32, b: u32) -> bool {
    before(b, a)
}

/// The later of two.
pub(crate) fn max(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// The earlier of two.
pub(crate) fn min(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// Bytes from `from` up to `to`, which must not come before it.
pub(crate) fn span(from: u32, to: u32) -> u32 {
    debug_assert!(!before(to, from), "span {from}..{to} runs backwards");
    to.wrapping_sub(from)
}
