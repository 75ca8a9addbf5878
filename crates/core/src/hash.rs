// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash as its slot holds it (`struct hash_head` of `bpf/abi.h`): places of the fields, then each
//! field and its value as the bulk strings of Redis's replies, in Redis's order.

use bytes::Bytes;
use erb_abi as abi;

use crate::resp::{Frame, text};

/// The encoding of hashes whose fields surely have no expiry of their own: from Redis 7.4 on, one
/// with such a field is a `listpackex` or a hash table, whatever its size.
const SURE_ENCODINGS: [&[u8]; 2] = [b"listpack", b"ziplist"];

/// The steps that read a hash: its encoding, fields, values. Fields and values apart, for a map does
/// not keep its order through the parser.
pub(crate) const READS: [&[&[u8]]; 3] = [&[b"OBJECT", b"ENCODING"], &[b"HKEYS"], &[b"HVALS"]];

/// The bytes to be cached, if the replies to [`READS`] show a hash that may be and fits.
pub(crate) fn encode(encoding: &Frame, fields: &Frame, values: &Frame) -> Option<Vec<u8>> {
    let encoding = text(encoding)?;
    if !SURE_ENCODINGS.iter().any(|sure| encoding == sure) {
        return None;
    }
    let (fields, values) = (strings(fields)?, strings(values)?);
    let count = fields.len();
    if count == 0 || count != values.len() || count > abi::HASH_FIELDS_MAX as usize {
        return None;
    }
    let mut body = Vec::new();
    let mut places = Vec::new();
    let start = size_of::<abi::hash_head>() + count * size_of::<abi::hash_field>();
    for (field, value) in fields.into_iter().zip(values) {
        bulk(&mut body, field);
        let value_at = start + body.len();
        bulk(&mut body, value);
        for number in [field.len(), value_at, start + body.len(), 0] {
            places.extend(u16::try_from(number).ok()?.to_ne_bytes());
        }
    }
    let mut bytes = u32::try_from(count).ok()?.to_ne_bytes().to_vec();
    bytes.resize(size_of::<abi::hash_head>(), 0);
    bytes.extend(places);
    bytes.extend(body);
    (bytes.len() <= abi::VALUE_BYTES_MAX as usize).then_some(bytes)
}

fn strings(frame: &Frame) -> Option<Vec<&Bytes>> {
    match frame {
        Frame::Array { data, .. } => data.iter().map(text).collect(),
        _ => None,
    }
}

fn bulk(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(format!("${}\r\n", bytes.len()).bytes());
    to.extend(bytes);
    to.extend(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &[u8]) -> Frame {
        Frame::BlobString {
            data: Bytes::copy_from_slice(text),
            attributes: None,
        }
    }

    fn array(texts: &[&[u8]]) -> Frame {
        Frame::Array {
            data: texts.iter().map(|text| string(text)).collect(),
            attributes: None,
        }
    }

    #[test]
    fn a_hash_is_its_places_and_replies() {
        let found = encode(
            &string(b"listpack"),
            &array(&[b"f", b"two"]),
            &array(&[b"", b"vv"]),
        );
        let bytes = found.unwrap();
        let body = b"$1\r\nf\r\n$0\r\n\r\n$3\r\ntwo\r\n$2\r\nvv\r\n";
        assert_eq!(bytes.len(), 8 + 2 * 8 + body.len());
        assert_eq!(&bytes[24..], body);
        let at = |index: usize| u16::from_ne_bytes([bytes[index], bytes[index + 1]]);
        assert_eq!((at(0), at(8), at(10), at(12)), (2, 1, 24 + 7, 24 + 13));
        assert_eq!((at(16), at(18), at(20)), (3, 24 + 22, 24 + 30));
    }

    #[test]
    fn what_is_not_sure_or_too_large_is_not_cached() {
        let one = |encoding: &[u8], field: &[u8], value: &[u8]| {
            encode(&string(encoding), &array(&[field]), &array(&[value]))
        };
        assert!(one(b"listpack", b"f", b"v").is_some());
        assert!(one(b"listpackex", b"f", b"v").is_none());
        assert!(one(b"hashtable", b"f", b"v").is_none());
        assert!(one(b"listpack", b"f", &[b'v'; 1451]).is_none());
        let many: Vec<&[u8]> = vec![b"f"; 65];
        assert!(encode(&string(b"listpack"), &array(&many), &array(&many)).is_none());
        assert!(encode(&string(b"listpack"), &array(&[]), &array(&[])).is_none());
    }
}
