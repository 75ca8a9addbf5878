// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Little-endian fields at offsets.

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    found.copy_from_slice(&bytes[at..at + N]);
    found
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, &value.to_le_bytes());
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &value.to_le_bytes());
}

/// Text in a field of fixed size, with `fill` behind it. Too long a text is cut.
pub(crate) fn put_text(bytes: &mut [u8], at: usize, size: usize, text: &str, fill: u8) {
    let field = &mut bytes[at..at + size];
    field.fill(fill);
    let length = text.len().min(size);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// A text that a zero ends, if it ends in its field and is UTF-8.
pub(crate) fn text_at(bytes: &[u8], at: usize, size: usize) -> Option<&str> {
    let field = &bytes[at..at + size];
    let end = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..end]).ok()
}

/// Takes a part off the front, if there is as much.
pub(crate) fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Up to the next multiple of `align`.
pub(crate) fn pad_to(bytes: &mut Vec<u8>, align: usize) {
    bytes.resize(bytes.len().next_multiple_of(align), 0);
}
