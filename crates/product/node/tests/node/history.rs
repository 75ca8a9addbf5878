// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Versions, roll backs, listings and batches, and a store that is full of history.

use std::collections::BTreeSet;

use erb_kv::{Change, Condition, Head, MarkKind, RollBack, Selector, Status, Write};
use erb_node::{Format, Options, Role};

use crate::{MIB, Running, SMALL, all, folder, formatted, options, status, to, value};

#[test]
fn what_was_overwritten_is_rolled_back_and_that_is_undone() {
    let folder = folder();
    for shards in [1, 3] {
        let path = folder.path().join(format!("store{shards}"));
        let wanted = Format {
            path: path.clone(),
            bytes: Some(256 * MIB),
            shards,
            may_overwrite: false,
        };
        erb_node::format(&wanted, &mut |_, _| {}).expect("a store");
        let node = Running::start(&path);
        let mut client = node.client();
        let key = |number: u32| format!("a{number}").into_bytes();
        for number in 0..40 {
            client.put(&key(number), b"good", None).expect("put");
        }
        let good = client.put(b"other", b"stays", None).expect("put");
        for number in 0..40 {
            client.put(&key(number), b"bad", None).expect("put");
        }
        client.delete(&key(7), None).expect("deleted");
        assert_eq!(client.count(&to(b"a", good)).expect("counted"), 40);
        assert_eq!(
            value(&mut client, &key(3)),
            Some(b"bad".to_vec()),
            "nothing was done yet"
        );
        let id = client.roll_back(&to(b"a", good)).expect("rolled back");
        for number in 0..40 {
            assert_eq!(value(&mut client, &key(number)), Some(b"good".to_vec()));
        }
        let marks = client.marks().expect("marks");
        assert!(
            marks
                .iter()
                .any(|mark| mark.kind == MarkKind::RollBack && mark.id == id)
        );
        client.put(&key(1), b"newer", None).expect("put");
        let undo = RollBack {
            unless_written_since: Some(id),
            ..to(b"a", id - 1)
        };
        client.roll_back(&undo).expect("undone");
        assert_eq!(value(&mut client, &key(3)), Some(b"bad".to_vec()));
        assert_eq!(value(&mut client, &key(7)), None);
        assert_eq!(
            value(&mut client, &key(1)),
            Some(b"newer".to_vec()),
            "it was spared"
        );
        assert_eq!(value(&mut client, b"other"), Some(b"stays".to_vec()));
        node.stop();
    }
}

#[test]
fn versions_are_listed_read_and_restored() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, SMALL, 2));
    let mut client = node.client();
    // Also a key that commands name by its digest.
    for key in [&b"k"[..], &[b'x'; 1024]] {
        let first = client.put(key, b"one", None).expect("put");
        let second = client.put(key, b"two", Some(first)).expect("put");
        let gone = client.delete(key, None).expect("deleted");
        let again = client.restore(key, Selector::Back(2)).expect("restored");
        assert!(first < second && second < gone && gone < again);
        let (rows, has_more) = client.versions(key, 0).expect("versions");
        let told: Vec<(u64, u64, u32, u32)> = rows
            .iter()
            .map(|row| (row.version, row.source, row.bytes, row.flags))
            .collect();
        let expected = [
            (again, first, 3, Head::RESTORED),
            (gone, gone, 0, Head::DELETED),
            (second, second, 3, 0),
            (first, first, 3, 0),
        ];
        assert_eq!((told, has_more), (expected.to_vec(), false));
        let at = client
            .get(key, Selector::Version(second))
            .expect("a version");
        assert_eq!((at.head.version, at.value), (second, b"two".to_vec()));
        let as_of = client.get(key, Selector::AsOf(gone - 1)).expect("a moment");
        assert_eq!(as_of.value, b"two");
        assert_eq!(
            status(client.put(key, b"x", Some(first))),
            Some(Status::MISMATCH)
        );
        let refused = client.put(key, b"x", Some(first)).expect_err("a mismatch");
        assert!(
            refused.to_string().contains(&again.to_string()),
            "{refused}"
        );
        assert_eq!(
            status(client.get(key, Selector::Version(1))),
            Some(Status::NO_SUCH_VERSION)
        );
        assert_eq!(
            status(client.get(key, Selector::AsOf(u64::MAX))),
            Some(Status::FUTURE)
        );
    }
    assert_eq!(
        client.delete(b"never there", None).expect("nothing to do"),
        0
    );
    assert_eq!(value(&mut client, b"never there"), None);
    assert_eq!(
        status(client.versions(b"never there", 0)),
        Some(Status::ABSENT)
    );
    node.stop();
}

#[test]
fn values_of_all_sizes_come_back_after_a_restart() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 2);
    let node = Running::start(&path);
    let mut client = node.client();
    let content = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| (at * 7 % 251) as u8).collect() };
    let sizes = [0, 1, 511, 4096, 8192, 100_000, (1 << 20) - 100, 1 << 20];
    for bytes in sizes {
        client
            .put(format!("v{bytes}").as_bytes(), &content(bytes), None)
            .expect("put");
    }
    let snapshot = client.snapshot().expect("a snapshot");
    client.put(b"v0", b"later", None).expect("put");
    node.stop();
    for _ in 0..2 {
        let contents = erb_node::check(&path).expect("it opens");
        assert_eq!((contents.keys, contents.snapshots), (sizes.len() as u64, 1));
    }
    let node = Running::start(&path);
    let mut client = node.client();
    for bytes in &sizes[1..] {
        let key = format!("v{bytes}");
        assert_eq!(
            value(&mut client, key.as_bytes()),
            Some(content(*bytes)),
            "{bytes}"
        );
    }
    assert_eq!(value(&mut client, b"v0"), Some(b"later".to_vec()));
    let then = client
        .get(b"v0", Selector::AsOf(snapshot))
        .expect("as of the snapshot");
    assert_eq!(then.value, b"");
    client.release(snapshot).expect("released");
    assert_eq!(
        status(client.release(snapshot)),
        Some(Status::NO_SUCH_VERSION)
    );
    assert_eq!(status(client.put(b"", b"", None)), None);
    node.stop();
}

#[test]
fn a_listing_has_each_key_once_over_pages_and_shards() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, 256 * MIB, 3));
    let mut client = node.client();
    let mut expected = BTreeSet::new();
    for batch in 0..5 {
        let writes: Vec<Write> = (0..200)
            .map(|number| {
                let key = format!("{}-{batch}-{number}", ["p", "q"][number % 2]).into_bytes();
                expected.insert((key.clone(), 5));
                Write {
                    key: erb_kv::plain(&key),
                    change: Change::Put(b"value".to_vec()),
                    condition: Condition::Any,
                }
            })
            .collect();
        client.batch(&writes).expect("a batch");
    }
    let moment = client.snapshot().expect("a moment");
    let of = |prefix: &[u8]| -> Vec<(Vec<u8>, u32)> {
        let rows = expected.iter().filter(|(key, _)| key.starts_with(prefix));
        rows.cloned().collect()
    };
    assert_eq!(all(&mut client, b"", 0), of(b""));
    assert_eq!(all(&mut client, b"p-3", 0), of(b"p-3"));
    client.delete(b"p-3-0", None).expect("deleted");
    client.put(b"p-3-new", b"", None).expect("put");
    assert_eq!(
        all(&mut client, b"p-3", moment),
        of(b"p-3"),
        "as it was then"
    );
    assert_eq!(all(&mut client, b"p-3", 0).len(), of(b"p-3").len());
    let mut since = client.listing(b"", 0, moment).expect("a listing");
    let mut changed = Vec::new();
    while let Some(page) = client.page(&mut since).expect("a page") {
        changed.extend(page.into_iter().map(|row| row.key));
    }
    assert_eq!(changed, [b"p-3-new".to_vec()]);
    node.stop();
}

#[test]
fn a_batch_with_a_condition_that_is_not_met_changes_nothing() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, 256 * MIB, 3));
    let mut client = node.client();
    let there = client.put(b"there", b"1", None).expect("put");
    let write = |key: &[u8], condition| Write {
        key: erb_kv::plain(key),
        change: Change::Put(b"2".to_vec()),
        condition,
    };
    let refused = client.batch(&[
        write(b"a", Condition::Any),
        write(b"b", Condition::Any),
        write(b"there", Condition::Head(there - 1)),
    ]);
    assert_eq!(status(refused), Some(Status::MISMATCH));
    assert_eq!(
        (value(&mut client, b"a"), value(&mut client, b"b")),
        (None, None)
    );
    let version = client.batch(&[
        write(b"a", Condition::Head(0)),
        write(b"b", Condition::Any),
        write(b"there", Condition::Head(there)),
    ]);
    let version = version.expect("all of it");
    for key in [&b"a"[..], b"b", b"there"] {
        let found = client.get(key, Selector::Head).expect("a value");
        assert_eq!((found.head.version, found.value), (version, b"2".to_vec()));
    }
    node.stop();
}

#[test]
fn a_full_store_keeps_its_history_and_rolls_back() {
    let folder = folder();
    let path = formatted(&folder, 96 * MIB, 1);
    let node = Running::with(&Options {
        role: Role::Restorer,
        ..options(&path)
    });
    let mut client = node.client();
    let good = client.put(b"k0", b"good", None).expect("put");
    let mut written = 0_u32;
    let refused = loop {
        let key = format!("k{}", written % 10);
        match client.put(key.as_bytes(), &vec![written as u8; 512 << 10], None) {
            Ok(_) => written += 1,
            Err(error) => break error.status(),
        }
        assert!(written < 1000, "96 MiB have an end");
    };
    assert_eq!(refused, Some(Status::CAPACITY));
    assert!(written > 45, "{written} values of 512 KiB");
    assert!(client.health().expect("health").is_full);
    assert_eq!(value(&mut client, b"k0").expect("a value").len(), 512 << 10);
    client
        .roll_back(&to(b"", good))
        .expect("a roll back needs no room of the log");
    assert_eq!(value(&mut client, b"k0"), Some(b"good".to_vec()));
    assert_eq!(value(&mut client, b"k1"), None);
    node.stop();
    let node = Running::start(&path);
    assert_eq!(value(&mut node.client(), b"k0"), Some(b"good".to_vec()));
    node.stop();
}

/// Trap 54.
#[test]
fn a_get_that_is_asked_for_behind_an_answer_sees_what_was_answered() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 2);
    let node = Running::start(&path);
    let (mut writer, mut reader) = (node.client(), node.client());
    for number in 0..300_u32 {
        let key = format!("k{}", number % 7).into_bytes();
        let value = number.to_le_bytes();
        let version = writer.put(&key, &value, None).expect("put");
        // Whatever the node knew to be durable before this came, it has to know that by now.
        let got = reader.get(&key, Selector::Head).expect("it is there");
        assert_eq!((got.head.version, &got.value[..]), (version, &value[..]));
    }
    node.stop();
}
