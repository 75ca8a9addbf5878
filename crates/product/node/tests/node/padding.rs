// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much a store on a file takes does not depend on how many writes are under way at once.

use erb_node::{Answer, Format, Local, Operation, Refused, Retention};
use erb_nvme::backend::{Change, Condition, Key, Write};
use erb_nvme::status::Filled;
use tempfile::TempDir;

use crate::{MIB, folder};

/// With segments of 4 MiB, of which a dozen are for values.
const STORE_BYTES: u64 = 112 * MIB;
const MEMORY_BYTES: u64 = 64 * MIB;
const SECOND_US: u64 = 1_000_000;
/// As many keys as the store has no room for.
const TOO_MANY: u64 = 10_000_000;

fn store(folder: &TempDir, name: &str, bytes: u64) -> Local {
    let wanted = Format {
        path: folder.path().join(name),
        bytes: Some(bytes),
        shards: 1,
        may_overwrite: false,
    };
    let keeps = Retention {
        min_age_us: SECOND_US,
        keep_deleted_us: SECOND_US,
        min_count: 1,
    };
    erb_node::format_keeping(&wanted, keeps, &mut |_, _| {}).expect("a store");
    Local::open(&wanted.path, MEMORY_BYTES).expect("it opens")
}

fn put(number: u64, value_bytes: usize) -> Operation {
    let key = Key::Plain(format!("key {number}").into_bytes());
    Operation::Write {
        write: Write {
            key,
            change: Change::Put(vec![7; value_bytes]),
            condition: Condition::Any,
        },
        must_exist: false,
    }
}

/// Puts keys of these numbers, so many at once, until the store is full or has all of them: how many those are.
fn fill(store: &mut Local, keys: std::ops::Range<u64>, value_bytes: usize, at_once: u64) -> u64 {
    let (mut next, mut under_way, mut count, mut is_full) = (keys.start, 0, 0, false);
    loop {
        while under_way < at_once && next < keys.end && !is_full {
            store.ask(next, put(next, value_bytes));
            (next, under_way) = (next + 1, under_way + 1);
        }
        let answer = store.answer().expect("no write fails");
        let Some((number, answer)) = answer else {
            return count;
        };
        under_way -= 1;
        match answer {
            Ok(Answer::Version(_)) => count += 1,
            // It has waited for as long as the node lets anybody.
            Err(Refused::Busy) => {
                store.ask(number, put(number, value_bytes));
                under_way += 1;
            }
            Err(Refused::Full(by)) => {
                assert_eq!(by, Filled::Live, "each key has one version");
                is_full = true;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_store_on_a_file_takes_as_much_one_at_a_time_as_many_at_a_time() {
    const VALUE_BYTES: usize = 1900;
    let folder = folder();
    let mut many = store(&folder, "many", STORE_BYTES);
    let many = fill(&mut many, 0..TOO_MANY, VALUE_BYTES, 128);
    // It is written over first, for as many keys as fill half of it.
    let mut alone = store(&folder, "alone", STORE_BYTES);
    let half = many / 2;
    for _ in 0..2 {
        assert_eq!(fill(&mut alone, 0..half, VALUE_BYTES, 1), half);
    }
    let alone = half + fill(&mut alone, half..TOO_MANY, VALUE_BYTES, 1);
    println!("{many} many at a time, {alone} one at a time");
    assert!(alone * 10 >= many * 9, "{alone} of {many}");
}
