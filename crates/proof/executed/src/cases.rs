// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conversation whose packets are counted: one connection, from its first request on.

use erb_abi::{ValueKind, hash_value};
use erb_sim_kernel::scene::get;
use erb_wire::resp::{bulk, command};

/// What happens next.
pub(crate) enum Act {
    /// The daemon fills a key.
    Fill(ValueKind, Vec<u8>, Vec<u8>),
    /// A request that goes up.
    Up(Vec<u8>),
    /// A request that is answered in place: the answer.
    Hit(Vec<u8>, Vec<u8>),
    /// Redis's reply.
    Reply(Vec<u8>),
    /// A packet that only acknowledges; whether the kernel gets it.
    Acknowledge(bool),
}

const KEY: &[u8] = b"key:000000000001";
const ABSENT: &[u8] = b"key:000000000002";
const VALUE: [u8; 100] = [b'v'; 100];
/// Keys of an MGET, fields of an HGETALL.
const SEVERAL: usize = 10;

/// An array of bulk strings, which is also what a command is.
fn array(parts: &[Vec<u8>]) -> Vec<u8> {
    command(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// So many texts that begin alike.
fn numbered(begin: &str) -> Vec<Vec<u8>> {
    (0..SEVERAL).map(|n| format!("{begin}{n}").into()).collect()
}

/// The acts, in order; those without a name prepare the others.
pub(crate) fn acts() -> Vec<(&'static str, Act)> {
    let hit = || Act::Hit(get(KEY), bulk(&VALUE));
    let miss = || Act::Up(get(ABSENT));
    let fill = |key: &[u8], value: &[u8]| Act::Fill(ValueKind::String, key.into(), value.into());
    let keys = numbered("key:");
    let values = numbered("value-");
    // So short that the answer fits the room of a veth frame.
    let fields = numbered("f");
    let pairs: Vec<[Vec<u8>; 2]> = fields
        .into_iter()
        .zip(numbered("v"))
        .map(Into::into)
        .collect();
    let mut mget = vec![&b"MGET"[..]];
    mget.extend(keys.iter().map(Vec::as_slice));
    let image = pairs.iter().map(|[field, value]| (&field[..], &value[..]));
    let hash = Act::Fill(
        ValueKind::Hash,
        b"hash".into(),
        hash_value(image).expect("it fits"),
    );

    // The first request and its reply: the connection is taken up, and may then be answered.
    let mut acts = vec![
        ("first", Act::Up(get(b"first"))),
        ("first-reply", Act::Reply(b"$-1\r\n".to_vec())),
        ("miss", miss()),
        ("miss-reply", Act::Reply(bulk(&VALUE))),
        ("miss-reply-ack", Act::Acknowledge(true)),
        ("", fill(KEY, &VALUE)),
        ("", hash),
    ];
    let several = keys.iter().zip(&values);
    acts.extend(several.map(|(key, value)| ("", fill(key, value))));
    // From the first hit on the streams are apart.
    acts.extend([
        ("hit-first", hit()),
        ("", hit()),
        ("hit", hit()),
        ("mget", Act::Hit(command(&mget), array(&values))),
        (
            "hgetall",
            Act::Hit(command(&[b"HGETALL", b"hash"]), array(&pairs.concat())),
        ),
        ("miss-spliced", miss()),
        ("miss-spliced-reply", Act::Reply(bulk(&VALUE))),
        // It brings the kernel the acknowledgement of the reply.
        ("hit-behind-miss", hit()),
        ("hit-ack", Act::Acknowledge(false)),
    ]);
    acts.extend(writes());
    acts.extend(reads_of_hashes());
    acts
}

/// SETs of keys that are not cached, and are; a hash of YCSB's.
fn writes() -> [(&'static str, Act); 10] {
    let mut hset = vec![b"HSET".to_vec(), b"another hash".to_vec()];
    for field in numbered("field") {
        hset.extend([field, vec![b'v'; 100]]);
    }
    let hset: Vec<&[u8]> = hset.iter().map(Vec::as_slice).collect();
    let ok = || Act::Reply(b"+OK\r\n".to_vec());
    let hit = || Act::Hit(get(KEY), bulk(&VALUE));
    [
        ("set", Act::Up(command(&[b"SET", ABSENT, &VALUE]))),
        ("set-reply", ok()),
        // What it says replaces what is cached, and is answered.
        ("set-through", Act::Up(command(&[b"SET", KEY, &VALUE]))),
        ("set-through-reply", ok()),
        ("", hit()),
        ("hit-through", hit()),
        (
            "hset-field",
            Act::Up(command(&[
                b"HSET",
                b"another hash",
                b"field7",
                &[b'v'; 100],
            ])),
        ),
        ("hset-field-reply", Act::Reply(b":0\r\n".to_vec())),
        ("hset", Act::Up(command(&hset))),
        ("hset-reply", Act::Reply(b":10\r\n".to_vec())),
    ]
}

/// Reads of hashes that are not cached, behind a miss.
fn reads_of_hashes() -> [(&'static str, Act); 5] {
    // YCSB's: ten fields.
    let record = [numbered("field"), vec![b"v".repeat(100); SEVERAL]].concat();
    [
        ("", Act::Up(get(ABSENT))),
        ("", Act::Reply(bulk(&VALUE))),
        (
            "hgetall-miss",
            Act::Up(command(&[b"HGETALL", b"no such hash"])),
        ),
        ("hgetall-reply", Act::Reply(array(&record))),
        (
            "hget-miss",
            Act::Up(command(&[b"HGET", b"no such hash", b"field"])),
        ),
    ]
}
