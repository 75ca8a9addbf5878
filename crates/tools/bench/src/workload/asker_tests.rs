// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client against a Redis of a few lines, and against wrong replies.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::workload::plan::tests::plan;

/// Strings and hashes as the plan has loaded them.
struct Store(HashMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>);

fn words(request: &[u8]) -> Vec<Vec<u8>> {
    let parts = resp::elements(request).expect("a command");
    let word = |part: &&[u8]| bulk(part).expect("a word").to_vec();
    parts.iter().map(word).collect()
}

impl Store {
    fn of(plan: &Plan) -> Self {
        let mut store = Self(HashMap::new());
        for index in 0..plan.keys {
            store.execute(&plan.store(index).get_packed_command());
        }
        store
    }

    fn execute(&mut self, request: &[u8]) -> Vec<u8> {
        let words = words(request);
        let held = self.0.entry(words[1].clone()).or_default();
        let mut reply = Vec::new();
        match words[0].as_slice() {
            b"GET" => push_bulk(&mut reply, &held[&b""[..]]),
            b"HGETALL" => {
                push_head(&mut reply, b'*', 2 * held.len());
                for part in held.iter().flat_map(|(name, value)| [name, value]) {
                    push_bulk(&mut reply, part);
                }
            }
            b"HMGET" => {
                push_head(&mut reply, b'*', words.len() - 2);
                for name in &words[2..] {
                    push_bulk(&mut reply, &held[name]);
                }
            }
            b"SET" => {
                held.insert(Vec::new(), words[2].clone());
                reply.extend(b"+OK\r\n");
            }
            b"HSET" | b"HMSET" => {
                let pairs = words[2..].chunks(2);
                let new =
                    pairs.filter(|pair| held.insert(pair[0].clone(), pair[1].clone()).is_none());
                push_head(&mut reply, b':', new.count());
            }
            other => panic!("{}", resp::show(other, 20)),
        }
        reply
    }
}

fn asker(words: &[&str]) -> (Asker, Store) {
    let plan = Arc::new(plan(words).unwrap());
    let store = Store::of(&plan);
    let ledger = Arc::new(Ledger::new(plan.keys));
    (Asker::new(plan, ledger, 1, 0, 1), store)
}

#[test]
fn right_replies_are_right_and_operations_have_their_shares() {
    for (options, wanted) in [
        ("--mix a --keys 50", [0.5, 0.5, 0.0, 0.0]),
        ("--mix b --keys 50 --value-bytes 16", [0.95, 0.05, 0.0, 0.0]),
        ("--mix d --keys 50", [0.95, 0.0, 0.05, 0.0]),
        (
            "--mix f --keys 50 --distribution hotspot",
            [0.5, 0.0, 0.0, 0.5],
        ),
        (
            "--mix a --keys 5 --record hash --fields 3",
            [0.5, 0.5, 0.0, 0.0],
        ),
        (
            "--mix d --keys 5 --record hash --fields 64",
            [0.95, 0.0, 0.05, 0.0],
        ),
        (
            "--mix f --keys 5 --record hash --read-fields 2",
            [0.5, 0.0, 0.0, 0.5],
        ),
        (
            "--reads 0.2 --keys 1 --distribution uniform",
            [0.2, 0.8, 0.0, 0.0],
        ),
    ] {
        let (mut asker, mut store) = asker(&options.split(' ').collect::<Vec<_>>());
        let (mut asked, mut request) = (Asked::default(), Vec::new());
        let mut counts = [0u32; 4];
        const COUNT: u32 = 4000;
        for _ in 0..COUNT {
            assert!(asker.ask(&mut asked, &mut request).unwrap());
            loop {
                let reply = store.execute(&request);
                for cut in [1, reply.len() / 2, reply.len() - 1] {
                    let part = asker.hear(&mut asked, &reply[..cut], &mut request);
                    assert_eq!(part.unwrap(), Heard::Part, "{options}");
                }
                match asker.hear(&mut asked, &reply, &mut request).expect(options) {
                    Heard::Next => {}
                    Heard::Done(operation) => {
                        counts[operation] += 1;
                        break;
                    }
                    Heard::Part => panic!("it was whole"),
                }
            }
        }
        for (found, wanted) in counts
            .map(|count| f64::from(count) / f64::from(COUNT))
            .iter()
            .zip(wanted)
        {
            assert!((found - wanted).abs() < 0.04, "{options}: {counts:?}");
        }
    }
}

/// What is said of a reply to a read of the only key, which was written once since it was loaded.
fn judged(options: &str, reply: impl Fn(&Plan, &[u8], &mut Store) -> Vec<u8>) -> Result<Heard> {
    let options = format!("--keys 1 --distribution uniform --reads 0 {options}");
    let (mut asker, mut store) = asker(&options.trim_end().split(' ').collect::<Vec<_>>());
    let (mut asked, mut request) = (Asked::default(), Vec::new());
    asker.ask(&mut asked, &mut request)?;
    let stored = store.execute(&request);
    asker.hear(&mut asked, &stored, &mut request)?;
    let mut asked = Asked::default();
    request.clear();
    asker.push_read(&mut asked, &mut request);
    let reply = reply(&asker.plan, &request, &mut store);
    asker.hear(&mut asked, &reply, &mut request)
}

fn wrong(options: &str, reply: impl Fn(&Plan, &[u8], &mut Store) -> Vec<u8>, reason: &str) {
    let error = format!("{:#}", judged(options, reply).expect_err(reason));
    assert!(error.contains(reason), "{options}: {error}");
}

const HASH: &str = "--record hash --fields 3 --field-bytes 20";
const SOME: &str = "--record hash --fields 3 --field-bytes 20 --read-fields 2";

#[test]
fn what_redis_holds_is_right() {
    for options in ["", HASH, SOME] {
        let heard = judged(options, |_, request, store| store.execute(request));
        assert_eq!(heard.unwrap(), Heard::Done(READ));
    }
}

#[test]
fn stale_early_and_missing_values_are_wrong() {
    for options in ["", HASH] {
        let stale = |plan: &Plan, request: &[u8], store: &mut Store| {
            store.execute(&plan.store(0).get_packed_command());
            store.execute(request)
        };
        wrong(
            options,
            stale,
            "it shows version 1, but a write of version 2",
        );
    }
    let value = |version, bytes| {
        let mut value = Vec::new();
        value::push(&mut value, 0, version, bytes);
        erb_wire::resp::bulk(&value)
    };
    wrong(
        "",
        |_, _, _| value(3, 100),
        "shows version 3, and 2 is the last",
    );
    wrong(
        "",
        |_, _, _| value(0, 100),
        "shows version 0, and 2 is the last",
    );
    wrong(
        "",
        |_, _, _| b"$-1\r\n".to_vec(),
        "shows version 0, but a write",
    );
    wrong(
        HASH,
        |_, _, _| b"*0\r\n".to_vec(),
        "shows version 0, but a write",
    );
}

#[test]
fn torn_and_foreign_replies_are_wrong() {
    let whole = |request: &[u8], store: &mut Store| store.execute(request);
    let changed = |at: usize| {
        move |_: &Plan, request: &[u8], store: &mut Store| {
            let mut reply = whole(request, store);
            reply[at] ^= 1;
            reply
        }
    };
    wrong("", changed(50), "goes on as something else");
    wrong("", changed(11), "another key");
    wrong("", |_, _, _| b"-LOADING\r\n".to_vec(), "it is an error");
    wrong("", |_, _, _| b":1\r\n".to_vec(), "it is no string");
    wrong("", |_, _, _| b"hello\r\n".to_vec(), "no RESP type");
    let more = |_: &Plan, request: &[u8], store: &mut Store| {
        [whole(request, store), b"+".to_vec()].concat()
    };
    wrong("", more, "there is more behind it");
    wrong(HASH, changed(9), "field fheld0");
    wrong(HASH, changed(26), "another key");
    let of_hash = |change: fn(&mut BTreeMap<Vec<u8>, Vec<u8>>)| {
        move |_: &Plan, request: &[u8], store: &mut Store| {
            store.0.values_mut().for_each(change);
            store.execute(request)
        }
    };
    wrong(
        HASH,
        of_hash(|held| drop(held.pop_first())),
        "not each field once",
    );
    let swap = |held: &mut BTreeMap<Vec<u8>, Vec<u8>>| {
        let first = held[&b"field0"[..]].clone();
        held.insert(b"field1".to_vec(), first);
    };
    wrong(HASH, of_hash(swap), "another key, number 0 instead of 1");
    wrong(
        SOME,
        |_, _, _| b"*1\r\n$-1\r\n".to_vec(),
        "not so many fields",
    );
    wrong(
        SOME,
        |_, _, _| b"*2\r\n$-1\r\n$-1\r\n".to_vec(),
        "a part of it is no string",
    );
}

#[test]
fn writes_that_redis_does_not_take_are_wrong() {
    for (options, reply) in [("", &b"-OOM\r\n"[..]), ("", b"$-1\r\n"), (HASH, b":1\r\n")] {
        let options = format!("--keys 1 --reads 0 {options}");
        let (mut asker, _) = asker(&options.trim_end().split(' ').collect::<Vec<_>>());
        let (mut asked, mut request) = (Asked::default(), Vec::new());
        asker.ask(&mut asked, &mut request).unwrap();
        assert!(
            asker.hear(&mut asked, reply, &mut request).is_err(),
            "{options}"
        );
    }
}

#[test]
fn a_trace_s_lines_are_dealt_out_in_turn() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "w a 100\nr b\nr a\n").unwrap();
    let plan = plan(&["--trace", file.path().to_str().unwrap()]).unwrap();
    let (plan, ledger) = (Arc::new(plan), Arc::new(Ledger::new(2)));
    let mut store = Store::of(&plan);
    let mut seen = Vec::new();
    for client in 0..2 {
        let mut asker = Asker::new(Arc::clone(&plan), Arc::clone(&ledger), 1, client, 2);
        let (mut asked, mut request) = (Asked::default(), Vec::new());
        while asker.ask(&mut asked, &mut request).unwrap() {
            let command = words(&request);
            seen.push(command[..2].concat());
            let reply = store.execute(&request);
            asker.hear(&mut asked, &reply, &mut request).unwrap();
        }
    }
    assert_eq!(seen, [&b"SETa"[..], b"GETa", b"GETb"]);
}
