// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Internet checksums as the kernel counts them: 32-bit one's complement, not folded.

/// `csum_add`.
pub(crate) const fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u32
}

/// `csum_sub`.
pub(crate) const fn sub(a: u32, b: u32) -> u32 {
    add(a, !b)
}

/// `csum_partial` over a whole number of 32-bit words.
pub(crate) fn partial(bytes: &[u8], seed: u32) -> u32 {
    let mut sum = u64::from(seed);
    for word in bytes.chunks_exact(4) {
        sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    fold64(sum)
}

const fn fold64(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum as u32
}

/// `csum_from32to16`.
pub(crate) const fn from32to16(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// `csum_fold`.
pub(crate) const fn fold(sum: u32) -> u16 {
    !(from32to16(sum) as u16)
}

/// `csum_replace_by_diff`.
pub(crate) const fn replace_by_diff(field: u16, diff: u32) -> u16 {
    fold(add(diff, !(field as u32)))
}
