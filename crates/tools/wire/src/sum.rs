// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Internet checksum (RFC 1071).

use etherparse::checksum::Sum16BitWords;

/// The folded sum, not complemented: what the field holds is its complement.
pub(crate) fn fold(sum: &Sum16BitWords) -> u16 {
    !sum.ones_complement().to_be()
}

/// The folded sum of these bytes.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    fold(&Sum16BitWords::new().add_slice(bytes))
}

/// The sum of the pseudo-header: source and destination behind each other, protocol, length.
pub(crate) fn pseudo(addresses: &[u8], proto: u8, len: usize) -> Sum16BitWords {
    Sum16BitWords::new()
        .add_slice(addresses)
        .add_2bytes([0, proto])
        .add_4bytes((len as u32).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_section_3() {
        assert_eq!(
            sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            0xddf2
        );
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x6834);
    }
}
