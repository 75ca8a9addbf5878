// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traps of the design that histories meet by chance, each for itself.

use std::collections::BTreeSet;

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::message::What;
use erb_store::shard::{NotWritten, Written};
use erb_store::{Condition, Refused, Selector, Settings, Version};

const HEAD: Selector = Selector::Head;
const SEGMENTS_PER_SHARD: u64 = 24;

fn store(seed: u64, shards: u16) -> Steady {
    let segments = SEGMENTS_PER_SHARD * u64::from(shards);
    Steady::seeded(seed, shards, segments, Settings::NEW, None)
}

/// Trap 21.
#[test]
fn a_refusal_is_not_said_before_what_refused_it_is_durable() {
    let (mut taken_back, mut kept) = (0, 0);
    for steps in 0..40 {
        let mut store = store(7, 2);
        let put = store.put_if_unwaited("k", b"first", Condition::Absent);
        let Ok(Written::Version(version)) = put else {
            panic!("{put:?}");
        };
        let again = store.put_if_unwaited("k", b"second", Condition::Absent);
        assert_eq!(again, Err(NotWritten::Refused(Refused::Mismatch, version)));
        // Before the watermark has passed that version nobody is told.
        (0..steps).for_each(|_| store.step());
        let was_said = store.watermark() >= version;
        store.crash(CrashMode::Power);
        let there = store.value("k", HEAD);
        assert!(
            there.is_some() || !was_said,
            "{steps}: it was refused by nothing"
        );
        if there.is_none() {
            taken_back += 1;
            let put = store.put_if("k", b"second", Condition::Absent);
            assert!(put.is_ok_and(|it| it.is_some()));
        }
        kept += u32::from(was_said);
    }
    assert!(taken_back > 0 && kept > 0, "{taken_back}, {kept}");
}

/// A key's value, how many versions it has, and its value at a moment.
type Left = (Option<Vec<u8>>, usize, Option<Vec<u8>>);

/// What a history leaves of each key.
fn played(shards: u16) -> Vec<Left> {
    let mut store = store(7, shards);
    let names: Vec<String> = (0..16).map(|number| format!("key {number}")).collect();
    for (number, name) in (0..).zip(&names) {
        store.put(name, &[number; 50]).expect("there is room");
    }
    let moment = store.put("key 3", b"a moment").expect("there is room");
    store.pass(1000);
    for name in &names[4..12] {
        store.write_as(name, What::Delete, false).expect("deleted");
    }
    let several: Vec<&str> = names[8..14].iter().map(String::as_str).collect();
    store.batch(&several, b"all or none").expect("done");
    store.roll_back("key 1", moment).expect("rolled back");
    store
        .write_as("key 5", What::Restore(Selector::Back(1)), false)
        .expect("restored");
    store.put("key 2", b"at last").expect("there is room");
    store.crash(CrashMode::Power);
    let back = |store: &mut Steady, name: &str| {
        let there = (0..9).take_while(|back| {
            let held = store.look_up(name, Selector::Back(*back));
            held.is_ok_and(|held| held.is_some())
        });
        there.count()
    };
    let of_key = |name: &String| {
        let value = store.value(name, HEAD);
        let count = back(&mut store, name);
        (value, count, store.value(name, Selector::AsOf(moment)))
    };
    names.iter().map(of_key).collect()
}

/// Trap 52.
#[test]
fn one_shard_and_eight_give_the_same() {
    let one = played(1);
    assert!(one.iter().any(|(value, ..)| value.is_none()));
    assert_eq!(one, played(8));
}

/// Trap 80.
#[test]
fn of_two_writes_in_a_row_to_two_shards_the_later_may_outlive_the_other_and_is_never_read_before() {
    let mut seen = BTreeSet::new();
    for seed in 0..150 {
        let mut store = store(seed, 2);
        let mut names = (0..).map(|number| format!("key {number}"));
        let first = names.next().expect("names without end");
        let later = names.find(|name| store.shard_of(name) != store.shard_of(&first));
        let later = later.expect("two shards have keys");
        let mut versions = [Version::ZERO; 2];
        for (version, name) in versions.iter_mut().zip([&first, &later]) {
            let put = store.put_if_unwaited(name, b"v", Condition::Any);
            let Ok(Written::Version(given)) = put else {
                panic!("{put:?}");
            };
            *version = given;
        }
        for _ in 0..seed % 12 {
            store.step();
            let is_read = |store: &mut Steady, name: &str| {
                store.look_up(name, HEAD).is_ok_and(|held| held.is_some())
            };
            assert!(is_read(&mut store, &first) || !is_read(&mut store, &later));
        }
        let was_read = versions.map(|version| store.watermark() >= version);
        store.crash(CrashMode::Power);
        let there = [&first, &later].map(|name| store.value(name, HEAD).is_some());
        assert!(there[0] || !was_read[0], "{seed}: it was read, and is gone");
        assert!(there[1] || !was_read[1], "{seed}: it was read, and is gone");
        seen.insert(there);
    }
    assert!(seen.contains(&[false, true]), "{seen:?}");
    assert_eq!(seen.len(), 4, "{seen:?}");
}
