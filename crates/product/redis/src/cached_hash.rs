// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which hashes of Redis may be cached, and their bytes.

use bytes::Bytes;
use erb_abi as abi;

use crate::resp::{Frame, text};

/// The encoding of hashes whose fields surely have no expiry of their own: from Redis 7.4 on, one
/// with such a field is a `listpackex` or a hash table, whatever its size.
const SURE_ENCODINGS: [&[u8]; 2] = [b"listpack", b"ziplist"];

/// Whether the reply to OBJECT ENCODING is of a hash that may be cached.
pub(crate) fn is_sure(encoding: &Frame) -> bool {
    text(encoding).is_some_and(|encoding| SURE_ENCODINGS.iter().any(|sure| encoding == sure))
}

/// The bytes to be cached, if the replies to OBJECT ENCODING and HSCAN show a hash that may be and
/// fits. HSCAN goes through a listpack from its begin to its end, as HGETALL does.
pub(crate) fn encode(encoding: &Frame, scan: &Frame) -> Option<Vec<u8>> {
    let Frame::Array { data, .. } = scan else {
        return None;
    };
    let [cursor, fields] = data.as_slice() else {
        return None;
    };
    let is_whole = text(cursor).is_some_and(|cursor| *cursor == b"0"[..]);
    if !is_sure(encoding) || !is_whole {
        return None;
    }
    let both = strings(fields)?;
    let count = both.len() / 2;
    if count == 0 || both.len() % 2 != 0 || count > abi::HASH_FIELDS_MAX as usize {
        return None;
    }
    let pairs = both
        .chunks_exact(2)
        .map(|pair| (&pair[0][..], &pair[1][..]));
    abi::hash_value(pairs)
}

fn strings(frame: &Frame) -> Option<Vec<&Bytes>> {
    match frame {
        Frame::Array { data, .. } => data.iter().map(text).collect(),
        _ => None,
    }
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

    fn scanned(cursor: &[u8], texts: &[&[u8]]) -> Frame {
        Frame::Array {
            data: vec![string(cursor), array(texts)],
            attributes: None,
        }
    }

    fn scan(texts: &[&[u8]]) -> Frame {
        scanned(b"0", texts)
    }

    #[test]
    fn a_hash_is_its_places_and_replies() {
        let found = encode(&string(b"listpack"), &scan(&[b"f", b"", b"two", b"vv"]));
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
            encode(&string(encoding), &scan(&[field, value]))
        };
        assert!(one(b"listpack", b"f", b"v").is_some());
        assert!(one(b"listpackex", b"f", b"v").is_none());
        assert!(one(b"hashtable", b"f", b"v").is_none());
        assert!(one(b"listpack", b"f", &[b'v'; 1451]).is_none());
        let listpack = string(b"listpack");
        let many: Vec<&[u8]> = vec![b"f"; 130];
        assert!(encode(&listpack, &scan(&many)).is_none());
        assert!(encode(&listpack, &scan(&[])).is_none());
        assert!(encode(&listpack, &scan(&[b"f"])).is_none());
        let part = scanned(b"17", &[b"f", b"v"]);
        assert!(encode(&listpack, &part).is_none(), "a part");
        assert!(encode(&listpack, &array(&[b"f", b"v"])).is_none());
    }
}
