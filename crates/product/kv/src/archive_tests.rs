// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of files of keys.

use super::*;

fn head() -> Head {
    Head {
        namespace: 1,
        moment: 7 << 12,
        since: None,
        prefix: b"a\xff".to_vec(),
    }
}

fn entries() -> Vec<Entry> {
    let sizes = [0, 1, 8192, TRANSFER_BYTES_MAX - KEY_BYTES_MAX];
    let entries = sizes.iter().zip(0_u8..).map(|(&bytes, number)| Entry {
        key: [&b"a\xff"[..], &vec![number; usize::from(number) * 340]].concat(),
        version: u64::from(number) + 1,
        what: What::Value(vec![number; bytes]),
    });
    entries.collect()
}

fn written() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &head()).expect("a head");
    for entry in entries() {
        let What::Value(value) = entry.what else {
            panic!("{entry:?} has a value");
        };
        writer
            .value(&entry.key, entry.version, &value)
            .expect("a record");
    }
    writer.end().expect("an end")
}

fn changes(keys: &[(&[u8], What)]) -> Vec<u8> {
    let head = Head {
        since: Some(0),
        ..head()
    };
    let mut writer = Writer::new(Vec::new(), &head).expect("a head");
    for (key, what) in keys {
        let written = match what {
            What::Value(value) => writer.value(key, 1, value),
            _ => writer.deleted(key, 1),
        };
        written.expect("a record");
    }
    writer.end().expect("an end")
}

fn read(bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(entry) = reader.entry()? {
        all.push(entry);
    }
    Ok(all)
}

#[test]
fn what_is_written_is_read() {
    let bytes = written();
    assert_eq!(Reader::new(&bytes[..]).expect("a head").head(), &head());
    assert_eq!(read(&bytes).expect("it is whole"), entries());
    let none = Writer::new(Vec::new(), &head()).and_then(Writer::end);
    assert_eq!(read(&none.expect("an end")).expect("it is whole"), []);
}

#[test]
fn what_no_store_takes_is_none() {
    let all_of = |key: &[u8], bytes: usize| {
        let head = Head {
            prefix: Vec::new(),
            ..head()
        };
        let mut writer = Writer::new(Vec::new(), &head).expect("a head");
        writer.value(b"good", 1, b"value").expect("a record");
        writer.value(key, 1, &vec![7; bytes]).expect("a record");
        read(&writer.end().expect("an end"))
    };
    let (longest, short) = ([b'k'; KEY_BYTES_MAX], [b'k'; 16]);
    let beside = KEY_BYTES_MAX + 2;
    for (key, bytes, is_one) in [
        (&short[..], TRANSFER_BYTES_MAX, true),
        (&longest, TRANSFER_BYTES_MAX - beside, true),
        (&longest, TRANSFER_BYTES_MAX - beside + 1, false),
        (&[], 1, false),
    ] {
        let read = all_of(key, bytes);
        let is_refused = matches!(&read, Err(Error::Foreign { at: 105, .. }));
        assert_eq!(
            (read.is_ok(), is_refused),
            (is_one, !is_one),
            "{}",
            key.len()
        );
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_not_whole() {
    let bytes = written();
    let last = bytes.len() - 1;
    for length in (0..600).chain([9_000, last - 40, last - 33, last - 32, last]) {
        let error = read(&bytes[..length]).expect_err("it is cut");
        let is_named = matches!(error, Error::Short { .. } | Error::NotAnArchive);
        assert!(is_named, "{length}: {error}");
    }
}

#[test]
fn each_flipped_bit_is_found_and_a_value_costs_its_record_alone() {
    let bytes = written();
    let first_value = 64 + 2 + 32 + 2 + 32 + 342;
    for at in (0..600).chain([9_000, bytes.len() - 100, bytes.len() - 1]) {
        for bit in [0, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            match read(&damaged) {
                Err(_) => {}
                Ok(found) => {
                    let wanted = entries();
                    let changed = found.iter().zip(&wanted).filter(|(a, b)| a != b);
                    let changed: Vec<_> = changed.collect();
                    assert!(at >= first_value, "{at}: a head is not checked");
                    assert_eq!((found.len(), changed.len()), (wanted.len(), 1), "{at}");
                    assert_eq!(changed[0].0.what, What::Damaged, "{at}");
                }
            }
        }
    }
}

#[test]
fn lengths_that_cannot_be_are_refused_before_anything_is_allocated() {
    let bytes = written();
    for (at, length) in [(66 + 2, 2), (66 + 4, 4), (24, 2)] {
        let mut wrong = bytes.clone();
        wrong[at..at + length].fill(0xff);
        let error = read(&wrong).expect_err("no key or value is so long");
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
}

#[test]
fn changes_have_deleted_keys_and_all_keys_of_a_moment_have_none() {
    let what = [
        (&b"a\xff1"[..], What::Value(vec![7; 9])),
        (b"a\xff2", What::Deleted),
    ];
    let bytes = changes(&what);
    assert_eq!(bytes[8], 2);
    let found = read(&bytes).expect("it is whole");
    let found: Vec<_> = found
        .iter()
        .map(|it| (&it.key[..], it.what.clone()))
        .collect();
    assert_eq!(found, what);
    let mut writer = Writer::new(Vec::new(), &head()).expect("a head");
    writer.deleted(b"a\xff2", 1).expect("a record");
    let bytes = writer.end().expect("an end");
    assert!(matches!(read(&bytes), Err(Error::Damaged { .. })));
}

#[test]
fn a_key_that_is_named_twice_is_told() {
    let value = || What::Value(Vec::new());
    for twice in [[value(), What::Deleted], [value(), value()]] {
        let [first, second] = twice;
        let [a, b] = [b"a\xffa", b"a\xffb"];
        let bytes = changes(&[(a, first), (b, value()), (a, second)]);
        let error = read(&bytes).expect_err("a is there twice");
        assert!(matches!(error, Error::Twice { .. }), "{error}");
    }
}

#[test]
fn keys_that_are_not_of_what_the_head_says_are_told() {
    let since = Some(5);
    let head = Head { since, ..head() };
    for (key, version) in [(&b"b"[..], 6), (b"a\xff", 5), (b"a\xff", (7 << 12) + 1)] {
        let mut writer = Writer::new(Vec::new(), &head).expect("a head");
        writer.value(key, version, b"").expect("a record");
        let bytes = writer.end().expect("an end");
        let error = read(&bytes).expect_err("no export has that");
        assert!(matches!(error, Error::Foreign { at: 66, .. }), "{error}");
    }
}

#[test]
fn formats_to_come_other_files_and_files_put_together_are_told() {
    let bytes = written();
    let mut newer = bytes.clone();
    newer[8] = 3;
    assert!(matches!(read(&newer), Err(Error::Format(3))));
    // All keys, said to be changes.
    newer[8] = 2;
    assert!(matches!(read(&newer), Err(Error::Damaged { .. })));
    assert!(matches!(read(b"PK\x03\x04 zip"), Err(Error::NotAnArchive)));
    assert!(matches!(read(b""), Err(Error::NotAnArchive)));
    let twice = [&bytes[..], &bytes].concat();
    assert!(matches!(read(&twice), Err(Error::Damaged { .. })));
    // A record of another file, whose number is the next.
    let mut other = Writer::new(
        Vec::new(),
        &Head {
            moment: 8 << 12,
            ..head()
        },
    )
    .expect("a head");
    other.value(b"a\xff", 1, b"").expect("a record");
    let other = other.end().expect("an end");
    let mixed = [&bytes[..66], &other[66..]].concat();
    assert!(matches!(read(&mixed), Err(Error::Damaged { .. })));
}
