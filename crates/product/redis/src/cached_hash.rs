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

/// What Redis says of its hash tables, in the transaction that reads them.
#[derive(Debug)]
pub(crate) struct Tables<'a> {
    fields_expire: bool,
    /// `INFO keyspace persistence`.
    info: Cow<'a, str>,
}

impl<'a> Tables<'a> {
    /// None: it says nothing.
    pub(crate) fn of(info: &'a Frame, fields_expire: bool) -> Option<Self> {
        let info = String::from_utf8_lossy(text(info)?);
        Some(Self {
            fields_expire,
            info,
        })
    }

    /// Whether no child runs, to save or to rewrite a log: meanwhile no table is rehashed but for need
    /// (`updateDictResizePolicy`, src/server.c).
    pub(crate) fn rest(&self) -> bool {
        self.info.contains("rdb_bgsave_in_progress:0") && !self.info.contains("_in_progress:1")
    }

    /// Whether no field of this database's tables expires by itself. The line of a database counts its hashes
    /// that have such fields: `subexpiry` of Redis, `keys_with_volatile_items` of Valkey (src/server.c of
    /// both).
    pub(crate) fn are_sure(&self, db: u16) -> bool {
        let begin = format!("db{db}:");
        let mut lines = self.info.lines();
        let counts = lines.find_map(|line| line.strip_prefix(&begin));
        let none = |count| matches!(count, "subexpiry=0" | "keys_with_volatile_items=0");
        !self.fields_expire || counts.is_some_and(|counts| counts.split(',').any(none))
    }
}

/// The bytes to be cached, if the replies to OBJECT ENCODING and HRANDFIELD with values (in RESP3: pairs)
/// show a hash that fits.
pub(crate) fn encode(encoding: &Frame, read: &Frame) -> Option<Vec<u8>> {
    let Frame::Array { data, .. } = read else {
        return None;
    };
    Encoding::of(encoding)?;
    if data.is_empty() || data.len() > abi::HASH_FIELDS_MAX as usize {
        return None;
    }
    let pairs: Option<Vec<(&Bytes, &Bytes)>> = data.iter().map(pair).collect();
    abi::hash_value(
        pairs?
            .into_iter()
            .map(|(field, value)| (&field[..], &value[..])),
    )
}

/// Number of the fields, and bytes of them and their values, by the reply to HRANDFIELD with values.
pub(crate) fn content(read: &Frame) -> Option<(u64, u64)> {
    let Frame::Array { data, .. } = read else {
        return None;
    };
    let bytes = data.iter().map(|frame| {
        let (field, value) = pair(frame)?;
        Some((field.len() + value.len()) as u64)
    });
    Some((data.len() as u64, bytes.sum::<Option<u64>>()?))
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
        encode(&string(encoding), &read(texts))
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
    fn what_may_expire_or_is_too_large_is_not_cached() {
        assert!(one(b"listpack", &[b"f", b"v"]).is_some());
        assert!(one(b"listpackex", &[b"f", b"v"]).is_none());
        assert!(one(b"hashtable", &[b"f", b"v"]).is_some());
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
        assert!(encode(&string(b"listpack"), &flat).is_none());
    }

    #[test]
    fn a_table_is_sure_where_no_field_expires() {
        let sure = |info: &str, fields_expire, db| {
            let info = string(info.as_bytes());
            Tables::of(&info, fields_expire).unwrap().are_sure(db)
        };
        let redis = "# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0,subexpiry=0\r\n\
                     db1:keys=1,expires=0,avg_ttl=0,subexpiry=1\r\n\
                     db11:keys=1,expires=0,avg_ttl=0,subexpiry=0\r\n\
                     db2:keys=1,expires=0,avg_ttl=0\r\n";
        let found = [0, 1, 11, 2, 3].map(|db| sure(redis, true, db));
        assert_eq!(found, [true, false, true, false, false]);
        assert!(sure(redis, false, 2), "it knows no such fields");
        let valkey = |count| format!("db0:keys=1,expires=0,keys_with_volatile_items={count}\r\n");
        assert!(sure(&valkey(0), true, 0));
        assert!(!sure(&valkey(10), true, 0));
        assert!(Tables::of(&Frame::Null, false).is_none());
    }

    #[test]
    fn while_a_child_runs_tables_do_not_rest() {
        let rest = |rdb: u8, aof: u8| {
            let info = format!(
                "rdb_bgsave_in_progress:{rdb}\r\naof_rewrite_in_progress:{aof}\r\n\
                 aof_rewrite_scheduled:1\r\n"
            );
            Tables::of(&string(info.as_bytes()), true).unwrap().rest()
        };
        assert!(rest(0, 0));
        assert!(!rest(1, 0) && !rest(0, 1));
        assert!(!Tables::of(&string(b""), true).unwrap().rest());
    }
}
