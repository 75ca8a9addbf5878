// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The index against an ordered map, its cursors while it changes, and its memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::place::Place;

fn index() -> Index {
    Index::new(KeyHasher::new([3, 4]))
}

fn held(number: u64) -> Held {
    Held {
        version: Version::new(number),
        place: Place::NOTHING,
    }
}

/// Keys of many lengths, some of which differ only at their end.
fn bytes_of(number: u32) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(4 + (number as usize * 7) % 60, 0);
    if number % 11 == 0 {
        bytes.resize(KEY_BYTES_MAX - number as usize % 17, 1);
    }
    bytes
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key {
        namespace: u16::from(bytes[3] % 3),
        bytes,
    }
}

fn check(index: &Index) {
    let hash_of = |entry: &Entry| index.hasher.hash(&entry.name());
    assert_eq!(index.directory.len(), 1 << index.depth);
    let mut keys = 0;
    for (at, number) in index.directory.iter().enumerate() {
        let deep = &index.tables[*number as usize];
        let count = 1 << (index.depth - deep.depth);
        let first = at & !(count - 1);
        assert!(
            index.directory[first..first + count]
                .iter()
                .all(|it| it == number)
        );
        if at == first {
            deep.table.check(&hash_of);
            keys += deep.table.len();
            for entry in (0..deep.table.len() as u16).map(|it| deep.table.get(it)) {
                assert_eq!(index.directory[index.directory_at(hash_of(entry))], *number);
            }
        }
    }
    assert_eq!(keys, index.keys);
}

/// Everything by slices.
fn listed(index: &Index) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut from, mut bytes) = (Vec::new(), Some(0), Vec::new());
    while let Some(hash) = from {
        let (slice, next) = index.slice(hash);
        for (hash, spot) in slice {
            index.key_bytes(spot, &mut bytes);
            all.push((hash, bytes.clone()));
        }
        from = next;
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_does_what_an_ordered_map_does(
        range in 1u32..20_000, steps in prop::collection::vec((0u8..10, any::<u32>()), 1..12_000),
    ) {
        let mut index = index();
        let mut wanted: BTreeMap<Vec<u8>, Vec<Held>> = BTreeMap::new();
        for (number, (what, chosen)) in (1u64..).zip(steps) {
            let bytes = bytes_of(chosen % range);
            let found = index.find(key(&bytes));
            prop_assert_eq!(found.is_ok(), wanted.contains_key(&bytes));
            match (what, found) {
                (0..3, Ok(spot)) => {
                    index.remove(spot);
                    wanted.remove(&bytes);
                }
                (3, Ok(spot)) => {
                    let versions = wanted.get_mut(&bytes).unwrap();
                    let head = versions.pop().unwrap();
                    versions.retain(|one| one.version.number() % 2 == 0);
                    index.replace(spot, versions, head);
                    versions.push(head);
                }
                (4, Ok(spot)) => index.settle(spot),
                (_, Ok(spot)) => {
                    index.push(spot, held(number));
                    wanted.get_mut(&bytes).unwrap().push(held(number));
                }
                (_, Err(missing)) => {
                    prop_assert_eq!(missing, Missing::Absent);
                    let spot = index.insert(key(&bytes), held(number), Version::new(number));
                    prop_assert_eq!(index.find(key(&bytes)), Ok(spot));
                    wanted.insert(bytes, vec![held(number)]);
                }
            }
        }
        check(&index);
        for (bytes, versions) in &wanted {
            let spot = index.find(key(bytes)).unwrap();
            let all = [index.older(spot), &[index.get(spot).head()]].concat();
            prop_assert_eq!(&all, versions);
        }
        let all = listed(&index);
        prop_assert!(all.is_sorted_by_key(|(hash, _)| *hash));
        let names: BTreeSet<&Vec<u8>> = all.iter().map(|(_, bytes)| bytes).collect();
        prop_assert_eq!(names.len(), all.len());
        prop_assert!(names.into_iter().eq(wanted.keys()));
    }
}

#[test]
fn another_long_key_of_the_same_digest_is_refused() {
    let mut index = index();
    let bytes = vec![1; 40];
    let spot = index.insert(key(&bytes), held(1), Version::ZERO);
    // No two such keys are known, so the stored one is changed instead.
    let entry = *index.get(spot);
    let class = entry.key_class() - INLINE_BYTES_MAX as u8;
    index.long_keys[usize::from(class) - 1].get_mut(entry.long_index)[7] = 9;
    assert_eq!(index.find(key(&bytes)), Err(Missing::DigestTaken));
    assert_eq!(index.find_name(&Name::of(key(&bytes))), Some(spot));
}

#[test]
fn a_listing_meets_each_key_once_while_tables_split_and_keys_go() {
    let mut index = index();
    let stays: Vec<Vec<u8>> = (0..4000).map(bytes_of).collect();
    for bytes in &stays {
        index.insert(key(bytes), held(1), Version::ZERO);
    }
    let (mut met, mut bytes) = (BTreeMap::new(), Vec::new());
    let (mut from, mut next_new) = (Some(0), 4000);
    while let Some(hash) = from {
        let (slice, next) = index.slice(hash);
        // A page ends in the middle of a sub-table.
        let page = slice.len().min(50);
        for (_, spot) in &slice[..page] {
            index.key_bytes(*spot, &mut bytes);
            *met.entry(bytes.clone()).or_insert(0) += 1;
        }
        from = match slice.get(page) {
            Some((hash, _)) => Some(*hash),
            None => next,
        };
        // Others come and go meanwhile.
        for number in next_new..next_new + 400 {
            index.insert(key(&bytes_of(number)), held(1), Version::ZERO);
        }
        next_new += 400;
        for number in (next_new - 600).max(4000)..next_new - 500 {
            if let Ok(spot) = index.find(key(&bytes_of(number))) {
                index.remove(spot);
            }
        }
    }
    assert!(index.tables.len() > 8, "{} tables", index.tables.len());
    assert!(stays.iter().all(|bytes| met.get(bytes) == Some(&1)));
    assert!(met.values().all(|count| *count == 1));
    check(&index);
}

#[test]
fn keys_of_one_hash_end_a_slice_together() {
    assert_eq!(end_of(0, 0), None);
    assert_eq!(end_of(0, 1), Some(1 << 63));
    assert_eq!(end_of(u64::MAX, 1), None);
    assert_eq!(end_of(u64::MAX / 2 + 5, 20), Some((1 << 63) + (1 << 44)));
}
