// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is bounded: rows, memory, versions of one trim. And what history tests are too small for.

use erb_store::mistake::Sound;
use erb_store::{
    Condition, Held, Key, KeyHasher, Place, ROWS_MAX, Refused, Retention, RollBack, Selector,
    TRIMMED_MAX, Target, Version, Versions,
};

const KEYS: u64 = 1000;

fn version(number: u64) -> Version {
    Version::new(number)
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key {
        namespace: 1,
        bytes,
    }
}

fn held(number: u64) -> Held {
    Held {
        version: version(number),
        place: Place::written(number * 4096, 100, false),
    }
}

fn back_to(id: u64, moment: u64) -> RollBack {
    RollBack {
        id: version(id),
        namespace: 1,
        prefix: Vec::new(),
        target: Target::Moment(version(moment)),
        unless_written_since: None,
    }
}

fn versions(memory_bytes: usize) -> Versions<Sound> {
    let hasher = KeyHasher::new([1, 2]);
    Versions::new(hasher, Retention::new(1), memory_bytes, Sound)
}

#[test]
fn as_many_rows_as_may_live_are_resolved_by_one_read() {
    let mut versions = versions(usize::MAX);
    versions.apply(key(b"a"), held(1)).unwrap();
    versions.apply(key(b"a"), held(2)).unwrap();
    for number in 0..ROWS_MAX as u64 {
        let row = back_to(3 + number, 1 + number % 2);
        assert_eq!(versions.prepare_roll_back(&row), Ok(()));
        versions.roll_back(row);
    }
    let last = 2 + ROWS_MAX as u64;
    let one_more = back_to(last + 1, 1);
    assert_eq!(versions.prepare_roll_back(&one_more), Err(Refused::Busy));
    let head = versions
        .read(key(b"a"), Selector::Head, Version::MAX)
        .unwrap()
        .unwrap();
    // The last row leads to version 2, as every second one.
    assert!(head.place.has_source_of(held(2).place));
    assert_eq!(head.version, version(last));
    let all = versions
        .list(key(b"a"), Version::MAX, Version::MAX, usize::MAX)
        .unwrap();
    assert_eq!(all.versions.len(), 2 + ROWS_MAX);
    // A checkpoint lets them go.
    while versions.sweep(version(last)).done.is_none() {}
    versions.forget_rows(version(last));
    assert_eq!(versions.prepare_roll_back(&one_more), Ok(()));
}

#[test]
fn a_moment_of_its_own_is_in_the_future_of_a_roll_back() {
    let versions = versions(usize::MAX);
    assert_eq!(
        versions.prepare_roll_back(&back_to(9, 9)),
        Err(Refused::Future)
    );
    assert_eq!(versions.prepare_roll_back(&back_to(9, 8)), Ok(()));
}

#[test]
fn writes_end_before_memory_does_and_leave_room_for_a_roll_back_and_its_undo() {
    // A key, and two further versions of it for roll backs.
    let per_key = 72 + 2 * 24;
    let mut versions = versions(KEYS as usize * per_key);
    let mut number = 0u64;
    let refused = loop {
        number += 1;
        let bytes = number.to_be_bytes();
        match versions.prepare(key(&bytes), Condition::Any) {
            Ok(_) => versions.apply(key(&bytes), held(number)).unwrap(),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, number - 1), (Refused::Full, KEYS));
    let row = back_to(number + 1, number / 2);
    assert_eq!(versions.prepare_roll_back(&row), Ok(()));
    versions.roll_back(row.clone());
    let undo = row.undo(version(number + 2), true);
    assert_eq!(versions.prepare_roll_back(&undo), Ok(()));
    versions.roll_back(undo);
    // A third would have no room, until it is known what the two have changed.
    let third = back_to(number + 3, number / 2);
    assert_eq!(versions.prepare_roll_back(&third), Err(Refused::Full));
    while versions.sweep(version(number + 2)).done.is_none() {}
    let bound = KEYS as usize * per_key;
    assert!(versions.budget_bytes() <= bound && versions.memory_bytes() <= bound);
    let first = versions.read(key(&1u64.to_be_bytes()), Selector::Head, Version::MAX);
    assert_eq!(first.unwrap().unwrap().version, version(1));
    // Half the keys went and came back.
    let changed = versions.read(key(&KEYS.to_be_bytes()), Selector::Back(2), Version::MAX);
    assert_eq!(changed.unwrap().unwrap().version, version(KEYS));
}

#[test]
fn rows_reserve_again_after_a_crash() {
    let mut versions = versions(KEYS as usize * (72 + 24));
    versions.roll_back(back_to(KEYS + 1, 1));
    for number in 1..=KEYS {
        versions
            .apply(key(&number.to_be_bytes()), held(number))
            .unwrap();
    }
    let next = back_to(KEYS + 2, 1);
    assert_eq!(versions.prepare_roll_back(&next), Ok(()));
    versions.recovered();
    assert_eq!(versions.prepare_roll_back(&next), Err(Refused::Full));
}

#[test]
fn a_long_history_is_trimmed_in_pieces() {
    let mut versions = versions(usize::MAX);
    let count = 2 * TRIMMED_MAX as u64 + 100;
    for number in 1..=count {
        versions.apply(key(b"a"), held(number)).unwrap();
    }
    versions
        .retention_mut()
        .raise(version(count), Version::ZERO);
    let mut trimmed = Vec::new();
    while let Some(trim) = versions.trim(key(b"a"), Version::MAX) {
        assert!(trim.versions.len() <= TRIMMED_MAX);
        trimmed.extend(trim.versions.iter().map(|it| it.number()));
    }
    assert!(trimmed.into_iter().eq(1..count));
    let back = versions.read(key(b"a"), Selector::Back(1), Version::MAX);
    assert_eq!(back, Err(Refused::Trimmed));
}

#[test]
fn a_long_key_is_read_by_its_digest() {
    let mut versions = versions(usize::MAX);
    let bytes = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    let digest = 0x248d_6a61_d206_38b8_e5c0_2693_0c3e_6039_u128.to_be_bytes();
    versions.apply(key(bytes), held(1)).unwrap();
    versions.apply(key(bytes), held(5)).unwrap();
    let found = versions.read_digest(1, digest, version(4));
    assert_eq!(
        found.map(|(bytes, held)| (bytes, held.version)),
        Some((bytes.to_vec(), version(1)))
    );
    assert_eq!(versions.read_digest(2, digest, version(4)), None);
    assert_eq!(versions.read_digest(1, digest, Version::ZERO), None);
}
