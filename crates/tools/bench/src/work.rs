// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one request asks for and what must be answered: the options of the command line made into
//! one checked description, and requests and replies as bytes.

use anyhow::{Result, bail, ensure};

use crate::args::{Op, WorkArgs};
use crate::mirror::{BENCH_BATCH_MAX, BENCH_KEY_BYTES, BENCH_REPLY_BYTES_MAX};

/// Bytes of a value of GET and MGET where none are given: the common small value.
const VALUE_BYTES: u32 = 100;
/// The same of a hash's field.
const HASH_VALUE_BYTES: u32 = 16;
/// Keys of an MGET, and fields of a hash, where none are given.
const PARTS: u32 = 10;
/// Keys where none are given.
const KEYS: u32 = 100_000;
/// The same of hashes: one with default fields takes one of three places of its cache set, and of
/// these the default cache has 150,000.
const HASH_KEYS: u32 = 10_000;
/// Fields of a hash at most: ERB caches no more.
pub const FIELDS_MAX: u32 = 64;
/// Redis keeps hashes with longer values as tables (hash-max-listpack-value), which it gives in an order of
/// its own.
const HASH_VALUE_BYTES_MAX: u32 = 64;

/// What ERB caches of a hash is its reply's elements, and of each field and the whole this much.
pub const HASH_HEAD_BYTES: usize = 8;
/// ERB caches no longer values: one MTU's reply less what is around a string.
pub const CACHED_BYTES_MAX: usize = 1451;

/// A checked workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Command.
    pub op: Op,
    /// Keys, drawn uniformly.
    pub keys: u32,
    /// Bytes per value, or per value of a hash's field.
    pub value_size: u32,
    /// Keys per request: 1 but for MGET.
    pub batch: u32,
    /// Fields per hash: 0 where it is none.
    pub fields: u32,
}

impl Work {
    /// What the options say; an error if they do not go together or a reply would not fit into one
    /// packet.
    pub fn of(args: &WorkArgs) -> Result<Self> {
        let op = args.op;
        ensure!(
            args.batch.is_none() || op == Op::Mget,
            "--batch is the number of keys of an MGET; leave it out or use --op mget"
        );
        ensure!(
            args.fields.is_none() || op.of_hash(),
            "--fields is the number of fields of a hash; leave it out or use --op hgetall or hset"
        );
        let hash = op.of_hash();
        let work = Self {
            op,
            keys: args.keys.unwrap_or(if hash { HASH_KEYS } else { KEYS }),
            value_size: args.value_size.unwrap_or(if hash {
                HASH_VALUE_BYTES
            } else {
                VALUE_BYTES
            }),
            batch: if op == Op::Mget {
                args.batch.unwrap_or(PARTS)
            } else {
                1
            },
            fields: if hash {
                args.fields.unwrap_or(PARTS)
            } else {
                0
            },
        };
        work.check()?;
        Ok(work)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            !self.op.of_hash() || self.value_size <= HASH_VALUE_BYTES_MAX,
            "values of {} bytes: Redis keeps a hash with values above {HASH_VALUE_BYTES_MAX} bytes \
             as a table, whose order this benchmark cannot compare; use a smaller --value-size",
            self.value_size
        );
        let (request, reply) = (self.request(&[0]).len(), self.reply(&[0]).len());
        let most = BENCH_REPLY_BYTES_MAX as usize;
        if request > most || reply > most {
            let smaller = match self.op {
                Op::Get | Op::Set | Op::Hset => "--value-size",
                Op::Mget => "--batch or --value-size",
                Op::Hgetall => "--fields or --value-size",
            };
            bail!(
                "a request of {request} bytes and a reply of {reply} bytes: each must fit into one \
                 packet, {most} bytes; use a smaller {smaller}"
            );
        }
        debug_assert!(self.batch <= BENCH_BATCH_MAX && self.fields <= FIELDS_MAX);
        Ok(())
    }

    /// An error if ERB could not hold what a key holds, so that there would never be a hit.
    pub fn check_cacheable(&self) -> Result<()> {
        if self.op != Op::Hgetall {
            return Ok(());
        }
        let head = format!("*{}\r\n", 2 * self.fields).len();
        let bytes = HASH_HEAD_BYTES * (1 + self.fields as usize) + self.reply(&[0]).len() - head;
        ensure!(
            bytes <= CACHED_BYTES_MAX,
            "a hash of {} fields takes {bytes} bytes in ERB's cache, which holds those of \
             {CACHED_BYTES_MAX} bytes at most: use a smaller --fields or --value-size, or measure its \
             misses with --hit-ratio 0",
            self.fields
        );
        Ok(())
    }

    /// The request for these keys; for fewer than the batch has, they are repeated.
    pub fn request(&self, keys: &[u32]) -> Vec<u8> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|&index| key(index).into_bytes()).collect();
        self.request_of(&keys)
    }

    /// The reply to [`Work::request`] of the same keys.
    pub fn reply(&self, keys: &[u32]) -> Vec<u8> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|&index| key(index).into_bytes()).collect();
        self.reply_of(&keys)
    }

    /// The request with the changing digits of its keys zero, and where these stand.
    pub fn request_template(&self) -> (Vec<u8>, Places) {
        with_places(self.request_of(&[key_template()]))
    }

    /// The same of the reply.
    pub fn reply_template(&self) -> (Vec<u8>, Places) {
        with_places(self.reply_of(&[key_template()]))
    }

    fn request_of(&self, keys: &[Vec<u8>]) -> Vec<u8> {
        let name: &[u8] = match self.op {
            Op::Get => b"GET",
            Op::Mget => b"MGET",
            Op::Hgetall => b"HGETALL",
            Op::Set => b"SET",
            Op::Hset => b"HSET",
        };
        let mut words: Vec<&[u8]> = vec![name];
        words.extend(
            keys.iter()
                .cycle()
                .take(self.batch as usize)
                .map(|key| &key[..]),
        );
        let (field, written) = (field(0), self.written());
        match self.op {
            Op::Set => words.push(&written),
            Op::Hset => words.extend([field.as_bytes(), &written]),
            Op::Get | Op::Mget | Op::Hgetall => {}
        }
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            erb_wire::resp::push_bulk(&mut bytes, word);
        }
        bytes
    }

    /// What is written to every key. Nothing else changes from request to request than the key.
    fn written(&self) -> Vec<u8> {
        vec![b'x'; self.value_size as usize]
    }

    fn reply_of(&self, keys: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = match self.op {
            Op::Set => return b"+OK\r\n".to_vec(),
            // The field was there.
            Op::Hset => return b":0\r\n".to_vec(),
            Op::Get => Vec::new(),
            Op::Mget => format!("*{}\r\n", self.batch).into_bytes(),
            Op::Hgetall => format!("*{}\r\n", 2 * self.fields).into_bytes(),
        };
        for key in keys.iter().cycle().take(self.batch as usize) {
            let mut value = key.clone();
            value.resize(self.value_size as usize, b'x');
            if self.op != Op::Hgetall {
                erb_wire::resp::push_bulk(&mut bytes, &value);
            }
            for number in 0..self.fields {
                erb_wire::resp::push_bulk(&mut bytes, field(number).as_bytes());
                erb_wire::resp::push_bulk(&mut bytes, &value);
            }
        }
        bytes
    }

    /// The command that stores what the key of this number holds.
    pub fn store(&self, index: u32) -> redis::Cmd {
        let value = value(index, self.value_size);
        if !self.op.of_hash() {
            return redis::Cmd::set(key(index), value);
        }
        let pairs: Vec<(String, &str)> = (0..self.fields)
            .map(|number| (field(number), value.as_str()))
            .collect();
        redis::Cmd::hset_multiple(key(index), &pairs)
    }

    /// Bytes that a key and what it holds take.
    pub fn stored_bytes(&self) -> u32 {
        let field_bytes = field(0).len() as u32;
        let value = match self.op {
            Op::Get | Op::Mget | Op::Set => self.value_size,
            Op::Hgetall | Op::Hset => self.fields * (field_bytes + self.value_size),
        };
        BENCH_KEY_BYTES + value
    }
}

/// Where the digits of keys stand in a request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The first key's.
    pub first: u32,
    /// From one key's to the next one's; 0 if there is one key.
    pub step: u32,
    /// Keys; none are in the reply to a write.
    pub count: u32,
}

/// Key number `index`, 16 bytes; redis-benchmark makes the same ones.
pub fn key(index: u32) -> String {
    format!("key:{index:012}")
}

/// The value of a key: the key itself, filled up.
pub fn value(index: u32, bytes: u32) -> String {
    format!("{:x<width$}", key(index), width = bytes as usize)
}

fn field(number: u32) -> String {
    format!("f:{number:02}")
}

/// A key with its last eight digits zero.
fn key_template() -> Vec<u8> {
    let mut bytes = KEY_HEAD.to_vec();
    bytes.extend([0; 8]);
    bytes
}

/// First bytes of every key: the number of keys has eight digits at most.
const KEY_HEAD: &[u8; 8] = b"key:0000";

fn with_places(bytes: Vec<u8>) -> (Vec<u8>, Places) {
    let template = key_template();
    let found: Vec<u32> = (0u32..)
        .zip(bytes.windows(template.len()))
        .filter(|(_, window)| **window == template)
        .map(|(at, _)| at + KEY_HEAD.len() as u32)
        .collect();
    let (first, step) = match *found {
        [first, second, ..] => (first, second - first),
        [first] => (first, 0),
        [] => (0, 0),
    };
    let places = Places {
        first,
        step,
        count: found.len() as u32,
    };
    debug_assert!(found.windows(2).all(|pair| pair[1] - pair[0] == step));
    (bytes, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::{BENCH_REQUEST_BYTES, BENCH_REQUEST_DIGITS_AT};

    fn args(op: Op) -> WorkArgs {
        WorkArgs {
            op,
            keys: None,
            value_size: None,
            batch: None,
            fields: None,
        }
    }

    fn refused(args: &WorkArgs, words: &str) {
        let error = Work::of(args).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn get_has_the_length_and_digit_position_of_the_header() {
        let work = Work::of(&args(Op::Get)).unwrap();
        assert_eq!((work.keys, work.value_size, work.batch), (100_000, 100, 1));
        let (request, places) = work.request_template();
        assert_eq!(request.len(), BENCH_REQUEST_BYTES as usize);
        assert_eq!((places.first, places.count), (BENCH_REQUEST_DIGITS_AT, 1));
        assert_eq!(
            work.request(&[42]),
            b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n"
        );
        assert_eq!(work.reply(&[42]).len(), 108);
    }

    #[test]
    fn an_mget_asks_for_its_keys_in_order() {
        let work = Work::of(&WorkArgs {
            batch: Some(2),
            value_size: Some(17),
            ..args(Op::Mget)
        })
        .unwrap();
        assert_eq!(
            work.request(&[1, 23]),
            b"*3\r\n$4\r\nMGET\r\n$16\r\nkey:000000000001\r\n$16\r\nkey:000000000023\r\n"
        );
        assert_eq!(
            work.reply(&[1, 23]),
            b"*2\r\n$17\r\nkey:000000000001x\r\n$17\r\nkey:000000000023x\r\n"
        );
        let (_, places) = work.reply_template();
        assert_eq!((places.first, places.step, places.count), (17, 24, 2));
        assert_eq!(work.stored_bytes(), 33);
    }

    #[test]
    fn an_hgetall_is_answered_with_all_fields_in_order() {
        let work = Work::of(&WorkArgs {
            fields: Some(2),
            ..args(Op::Hgetall)
        })
        .unwrap();
        assert_eq!((work.keys, work.value_size), (10_000, 16));
        assert_eq!(
            work.request(&[7]),
            b"*2\r\n$7\r\nHGETALL\r\n$16\r\nkey:000000000007\r\n"
        );
        assert_eq!(
            work.reply(&[7]),
            b"*4\r\n$4\r\nf:00\r\n$16\r\nkey:000000000007\r\n\
              $4\r\nf:01\r\n$16\r\nkey:000000000007\r\n"
        );
        let (_, places) = work.reply_template();
        assert_eq!((places.first, places.step, places.count), (27, 33, 2));
        assert_eq!(
            work.store(7).get_packed_command(),
            b"*6\r\n$5\r\nHMSET\r\n$16\r\nkey:000000000007\r\n$4\r\nf:00\r\n\
              $16\r\nkey:000000000007\r\n$4\r\nf:01\r\n$16\r\nkey:000000000007\r\n"
        );
    }

    #[test]
    fn writes_are_of_one_value_and_answered_alike() {
        let work = |op| {
            let value_size = Some(17);
            Work::of(&WorkArgs {
                value_size,
                ..args(op)
            })
            .unwrap()
        };
        let (set, hset) = (work(Op::Set), work(Op::Hset));
        assert_eq!(
            set.request(&[7]),
            b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$17\r\nxxxxxxxxxxxxxxxxx\r\n"
        );
        assert_eq!(
            hset.request(&[7]),
            b"*4\r\n$4\r\nHSET\r\n$16\r\nkey:000000000007\r\n$4\r\nf:00\r\n\
              $17\r\nxxxxxxxxxxxxxxxxx\r\n"
        );
        assert_eq!(
            (set.reply(&[7]), hset.reply(&[7])),
            (b"+OK\r\n".to_vec(), b":0\r\n".to_vec())
        );
        assert_eq!(
            (hset.keys, hset.fields, hset.stored_bytes()),
            (10_000, 10, 226)
        );
        assert_eq!(hset.reply_template().1.count, 0);
    }

    #[test]
    fn templates_with_digits_filled_in_are_requests_and_replies() {
        for (op, keys) in [
            (Op::Mget, 0u32..10),
            (Op::Hgetall, 0..1),
            (Op::Get, 0..1),
            (Op::Set, 0..1),
            (Op::Hset, 0..1),
        ] {
            let work = Work::of(&args(op)).unwrap();
            let keys: Vec<u32> = keys.map(|index| index * 1_234_567).collect();
            for ((mut bytes, places), whole) in [
                (work.request_template(), work.request(&keys)),
                (work.reply_template(), work.reply(&keys)),
            ] {
                for place in 0..places.count {
                    let at = (places.first + place * places.step) as usize;
                    let of = keys[place as usize % keys.len()];
                    bytes[at..at + 8].copy_from_slice(&key(of).as_bytes()[8..]);
                }
                assert_eq!(bytes, whole, "{op:?}");
            }
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for op in [Op::Get, Op::Hgetall] {
            let batch = Some(10);
            refused(&WorkArgs { batch, ..args(op) }, "--op mget");
        }
        for op in [Op::Get, Op::Mget] {
            let fields = Some(10);
            refused(&WorkArgs { fields, ..args(op) }, "--op hgetall");
        }
        refused(
            &WorkArgs {
                value_size: Some(65),
                ..args(Op::Hgetall)
            },
            "as a table",
        );
    }

    #[test]
    fn what_does_not_fit_one_packet_is_refused() {
        let mget = |batch, value_size| WorkArgs {
            batch: Some(batch),
            value_size: Some(value_size),
            ..args(Op::Mget)
        };
        assert!(Work::of(&mget(62, 16)).is_ok(), "as many as a packet holds");
        assert!(Work::of(&mget(13, 100)).is_ok());
        refused(&mget(14, 100), "--batch or --value-size");
        let hgetall = |fields, value_size| WorkArgs {
            fields: Some(fields),
            value_size: Some(value_size),
            ..args(Op::Hgetall)
        };
        assert!(Work::of(&hgetall(43, 16)).is_ok());
        refused(&hgetall(44, 16), "--fields or --value-size");
    }

    #[test]
    fn a_hash_that_cannot_be_cached_is_refused_where_hits_are_wanted() {
        let hash = |fields| {
            let fields = Some(fields);
            Work::of(&WorkArgs {
                fields,
                ..args(Op::Hgetall)
            })
        };
        // 8 bytes for the whole, 8 + 33 for each field.
        assert!(hash(35).unwrap().check_cacheable().is_ok());
        let error = hash(36).unwrap().check_cacheable().unwrap_err();
        assert!(error.to_string().contains("--hit-ratio 0"), "{error}");
        assert!(Work::of(&args(Op::Get)).unwrap().check_cacheable().is_ok());
    }

    #[test]
    fn keys_and_values() {
        assert_eq!(key(42), "key:000000000042");
        let value = value(42, 100);
        assert_eq!(value.len(), 100);
        assert!(value.starts_with("key:000000000042xxx"));
    }
}
