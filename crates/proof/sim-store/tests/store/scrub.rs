// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rot in what nobody reads is found.

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::{Selector, Settings, Version};

const HOUR_US: u64 = 3_600_000_000;
const HEAD: Selector = Selector::Head;

/// A store of so many shards, several segments of which are closed. All is needed.
fn filled(shards: u16) -> Steady {
    let settings = Settings {
        min_age_us: HOUR_US,
        keep_deleted_us: HOUR_US,
        min_count: 1,
        counted: 1,
    };
    let mut store = Steady::new(shards, 40, settings);
    for round in 0..3u8 {
        for name in 0..20 {
            let value = vec![round; 3000];
            store.put(&format!("k{name}"), &value).unwrap();
        }
    }
    store
}

/// Where a key's oldest version lies.
fn cold(store: &mut Steady, name: &str) -> (Version, u64) {
    let held = store.look_up(name, Selector::Back(2)).unwrap().unwrap();
    (held.version, held.place.address().unwrap())
}

#[test]
fn a_sound_store_has_no_rot_also_behind_crashes() {
    let mut store = filled(2);
    assert_eq!(store.scrub(), []);
    for mode in [CrashMode::Process, CrashMode::Power] {
        store.put_unwaited("k1", b"may be lost");
        store.crash(mode);
        store.put("k2", b"goes on").unwrap();
        assert_eq!(store.scrub(), []);
    }
}

#[test]
fn a_rotten_value_is_told_by_its_key_and_nothing_else_changes() {
    let mut store = filled(1);
    let (version, address) = cold(&mut store, "k3");
    store.rot(address + 100);
    let found = store.scrub();
    let key = Some((1, b"k3".to_vec()));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].address, &found[0].key), (address, &key));
    assert_eq!(store.value("k3", HEAD).unwrap(), [2; 3000]);
    let held = store.look_up("k3", Selector::Version(version));
    assert!(held.unwrap().is_some());
    // It is told again, once.
    assert_eq!(store.scrub(), found);
}

#[test]
fn a_rotten_head_of_a_record_or_batch_is_told_by_its_place() {
    let mut store = filled(1);
    let (_, address) = cold(&mut store, "k3");
    store.rot(address + 9);
    let found = store.scrub();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].address, &found[0].key), (address, &None));
    // The head of the batch it lies in.
    store.rot(address / 4096 * 4096 + 20);
    let found = store.scrub();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].address, address / 4096 * 4096);
}

#[test]
fn what_cannot_be_read_is_told() {
    let mut store = filled(1);
    let (_, address) = cold(&mut store, "k0");
    store.set_unreadable(address);
    let found = store.scrub();
    assert!(found.iter().any(|rot| rot.key.is_none()), "{found:?}");
}

#[test]
fn what_nobody_needs_may_rot() {
    let mut store = filled(1);
    let (_, address) = cold(&mut store, "k3");
    store.rot(address + 100);
    assert_eq!(store.scrub().len(), 1);
    for _ in 0..2 * 3600 / 10 {
        store.pass(10_000_000);
    }
    store.sweep(Version::MAX);
    assert_eq!(store.scrub(), []);
}

/// Writes everything over and over, with time and sweeps.
fn churn(store: &mut Steady) {
    for round in 0..20u8 {
        for name in 0..20 {
            store.put(&format!("k{name}"), &[round; 3000]).unwrap();
        }
        for _ in 0..2 * 3600 / 10 {
            store.pass(10_000_000);
        }
        store.sweep(Version::MAX);
        store.checkpoints();
    }
}

#[test]
fn a_segment_is_not_used_again_while_the_scrub_reads_it() {
    let mut store = filled(1);
    assert_eq!(store.scrub_step(0), None);
    let address = store.scrub_step(1).expect("a segment is due");
    let uses = store.uses(address);
    churn(&mut store);
    assert_eq!(store.uses(address), uses);
    // What comes then is of what is still there.
    store.scrub_step(1);
    churn(&mut store);
    assert!(store.uses(address) > uses);
    assert_eq!(store.scrub(), []);
}
