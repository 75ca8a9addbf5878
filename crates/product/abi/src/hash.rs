// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash as its slot holds it (`struct hash_head` of `bpf/base/abi.h`): places of the fields, then each
//! field and its value as the bulk strings of Redis's replies, in the order given.

use crate::{VALUE_BYTES_MAX, hash_field, hash_head};

/// The bytes to be cached of a hash with these fields and values; none: no slot takes them.
#[must_use]
pub fn hash_value<'a>(
    pairs: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
) -> Option<Vec<u8>> {
    let start = size_of::<hash_head>() + pairs.len() * size_of::<hash_field>();
    let mut bytes = u32::try_from(pairs.len()).ok()?.to_ne_bytes().to_vec();
    bytes.resize(size_of::<hash_head>(), 0);
    let mut body = Vec::new();
    for (field, value) in pairs {
        bulk(&mut body, field);
        let value_at = start + body.len();
        bulk(&mut body, value);
        for number in [field.len(), value_at, start + body.len(), 0] {
            bytes.extend(u16::try_from(number).ok()?.to_ne_bytes());
        }
    }
    bytes.extend(body);
    (bytes.len() <= VALUE_BYTES_MAX as usize).then_some(bytes)
}

fn bulk(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(format!("${}\r\n", bytes.len()).bytes());
    to.extend(bytes);
    to.extend(b"\r\n");
}
