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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_field_is_the_sum_anew() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..1000 {
            let mut old = [0; 40];
            random.fill(&mut old);
            old[10..12].fill(0);
            let mut new = old;
            random.fill(&mut new[20..28]);
            let field = fold(partial(&old, 0));
            let diff = sub(partial(&new, 0), partial(&old, 0));
            let replaced = replace_by_diff(field, diff);
            assert_eq!(
                from32to16(add(partial(&new, 0), u32::from(replaced))),
                0xffff
            );
        }
    }
}
