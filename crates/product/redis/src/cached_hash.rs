// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which hashes of Redis may be cached, and their bytes.
//!
//! A field that expires by itself would be answered too long: Redis tells nobody until it is deleted. From
//! Redis 7.4 and Valkey 9 on, a hash with such a field is a `listpackex` or a hash table, whatever its
//! size. So a listpack is sure, and a table is if nothing in its database has such a field.

use std::borrow::Cow;

use bytes::Bytes;
use erb_abi as abi;

use crate::resp::{Frame, text};

/// How Redis keeps a hash that may be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// One piece of memory. No field of it expires by itself.
    Listpack,
    /// An allocation and more for each field.
    Table,
}

impl Encoding {
    /// What the reply to OBJECT ENCODING says; none: no such hash.
    pub(crate) fn of(reply: &Frame) -> Option<Self> {
        match &text(reply)?[..] {
            b"listpack" | b"ziplist" => Some(Self::Listpack),
            b"hashtable" => Some(Self::Table),
            _ => None,
        }
    }
}

/// How it is known of hash tables that no field of them expires by itself.
#[derive(Debug)]
pub(crate) enum Tables<'a> {
    /// This Redis knows no such fields.
    Sure,
    /// `INFO keyspace`, of the transaction that reads them.
    By(Cow<'a, str>),
    Unsure,
}

impl Tables<'_> {
    /// Whether the tables of this database are sure. The line of a database counts its hashes that have such
    /// fields: `subexpiry` of Redis, `keys_with_volatile_items` of Valkey (src/server.c of both).
    fn are_sure(&self, db: u16) -> bool {
        let Self::By(keyspace) = self else {
            return matches!(self, Self::Sure);
        };
        let begin = format!("db{db}:");
        let mut lines = keyspace.lines();
        let counts = lines.find_map(|line| line.strip_prefix(&begin));
        counts.is_some_and(|counts| {
            counts
                .split(',')
                .any(|count| matches!(count, "subexpiry=0" | "keys_with_volatile_items=0"))
        })
    }
}

/// The bytes to be cached, if the replies to OBJECT ENCODING and HRANDFIELD with values (in RESP3: pairs)
/// show a hash that may be and fits.
pub(crate) fn encode(
    db: u16,
    encoding: &Frame,
    read: &Frame,
    tables: &Tables<'_>,
) -> Option<Vec<u8>> {
    let Frame::Array { data, .. } = read else {
        return None;
    };
    let is_sure = match Encoding::of(encoding)? {
        Encoding::Listpack => true,
        Encoding::Table => tables.are_sure(db),
    };
    if !is_sure || data.is_empty() || data.len() > abi::HASH_FIELDS_MAX as usize {
        return None;
    }
    let pairs: Option<Vec<(&Bytes, &Bytes)>> = data.iter().map(pair).collect();
    abi::hash_value(
        pairs?
            .into_iter()
            .map(|(field, value)| (&field[..], &value[..])),
    )
}

fn pair(frame: &Frame) -> Option<(&Bytes, &Bytes)> {
    match frame {
        Frame::Array { data, .. } => match data.as_slice() {
            [field, value] => text(field).zip(text(value)),
            _ => None,
        },
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

    fn array(data: Vec<Frame>) -> Frame {
        Frame::Array {
            data,
            attributes: None,
        }
    }

    fn read(texts: &[&[u8]]) -> Frame {
        let pairs = texts.chunks(2);
        array(
            pairs
                .map(|pair| array(pair.iter().map(|text| string(text)).collect()))
                .collect(),
        )
    }

    fn one(encoding: &[u8], texts: &[&[u8]]) -> Option<Vec<u8>> {
        encode(0, &string(encoding), &read(texts), &Tables::Unsure)
    }

    #[test]
    fn a_hash_is_its_places_and_replies() {
        let bytes = one(b"listpack", &[b"f", b"", b"two", b"vv"]).unwrap();
        let body = b"$1\r\nf\r\n$0\r\n\r\n$3\r\ntwo\r\n$2\r\nvv\r\n";
        assert_eq!(bytes.len(), 8 + 2 * 8 + body.len());
        assert_eq!(&bytes[24..], body);
        let at = |index: usize| u16::from_ne_bytes([bytes[index], bytes[index + 1]]);
        assert_eq!((at(0), at(8), at(10), at(12)), (2, 1, 24 + 7, 24 + 13));
        assert_eq!((at(16), at(18), at(20)), (3, 24 + 22, 24 + 30));
    }

    #[test]
    fn what_is_not_sure_or_too_large_is_not_cached() {
        assert!(one(b"listpack", &[b"f", b"v"]).is_some());
        assert!(one(b"listpackex", &[b"f", b"v"]).is_none());
        assert!(one(b"hashtable", &[b"f", b"v"]).is_none());
        assert!(one(b"listpack", &[b"f", &[b'v'; 1451]]).is_none());
        let most: Vec<&[u8]> = vec![b"f"; 128];
        assert!(one(b"listpack", &most).is_some());
        let many: Vec<&[u8]> = vec![b"f"; 130];
        assert!(
            one(b"listpack", &many).is_none(),
            "or a part of a larger one"
        );
        assert!(one(b"listpack", &[]).is_none());
        assert!(one(b"listpack", &[b"f"]).is_none());
        let flat = array(vec![string(b"f"), string(b"v")]);
        assert!(encode(0, &string(b"listpack"), &flat, &Tables::Sure).is_none());
    }

    #[test]
    fn a_table_is_cached_where_no_field_expires() {
        let table = |db, tables| {
            let found = encode(db, &string(b"hashtable"), &read(&[b"f", b"v"]), &tables);
            found.is_some()
        };
        assert!(table(0, Tables::Sure));
        assert!(!table(0, Tables::Unsure));
        let redis = "# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0,subexpiry=0\r\n\
                     db1:keys=1,expires=0,avg_ttl=0,subexpiry=1\r\n\
                     db11:keys=1,expires=0,avg_ttl=0,subexpiry=0\r\n\
                     db2:keys=1,expires=0,avg_ttl=0\r\n";
        let sure = [0, 1, 11, 2, 3].map(|db| table(db, Tables::By(redis.into())));
        assert_eq!(sure, [true, false, true, false, false]);
        let valkey = |count| format!("db0:keys=1,expires=0,keys_with_volatile_items={count}\r\n");
        assert!(table(0, Tables::By(valkey(0).into())));
        assert!(!table(0, Tables::By(valkey(10).into())));
    }
}
