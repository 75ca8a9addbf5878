// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values that are cached: what shares them, and what changes under them.

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::message::What;
use erb_store::mistake::Mistake;
use erb_store::{Selector, Settings, Version};

const SETTINGS: Settings = Settings {
    min_age_us: 600_000_000,
    keep_deleted_us: 600_000_000,
    min_count: 3,
    counted: 3,
};
const CACHE_BYTES: usize = 1 << 20;

fn store(mistake: Option<Mistake>) -> Steady {
    let mut store = Steady::with_mistake(2, 40, SETTINGS, mistake);
    store.set_value_cache(CACHE_BYTES);
    store
}

fn hits(store: &Steady) -> u64 {
    store.value_cache().1
}

#[test]
fn what_was_written_is_read_without_the_disk_and_after_a_restart_once_with_it() {
    let mut store = store(None);
    store.put("k", b"value").unwrap();
    assert_eq!(store.value("k", Selector::Head).unwrap(), b"value");
    assert_eq!(store.value_cache(), (1, 1, 0));
    store.crash(CrashMode::Power);
    for _ in 0..2 {
        assert_eq!(store.value("k", Selector::Head).unwrap(), b"value");
    }
    assert_eq!(store.value_cache(), (1, 1, 1));
}

#[test]
fn a_restore_and_a_roll_back_share_what_is_cached() {
    let mut store = store(None);
    let good = store.put("k", b"good").unwrap();
    store.put("k", b"bad").unwrap();
    let restore = What::Restore(Selector::Back(1));
    store.write_as("k", restore, false).unwrap();
    assert_eq!(store.value("k", Selector::Head).unwrap(), b"good");
    store.put("k", b"worse").unwrap();
    store.roll_back("k", good).unwrap();
    assert_eq!(store.value("k", Selector::Head).unwrap(), b"good");
    assert_eq!(store.value("k", Selector::Back(1)).unwrap(), b"worse");
    assert_eq!(store.value("k", Selector::Version(good)).unwrap(), b"good");
    assert_eq!(store.value_cache(), (3, 4, 0));
}

#[test]
fn what_collecting_moves_stays_cached() {
    let settings = Settings {
        min_age_us: 0,
        keep_deleted_us: 0,
        min_count: 1,
        counted: 1,
    };
    let mut store = Steady::new(1, 16, settings);
    store.set_value_cache(4 * CACHE_BYTES);
    store.put("kept", b"value").unwrap();
    let value = vec![7; 8000];
    for _ in 0..200 {
        store.put("k", &value).unwrap();
        store.sweep(Version::MAX);
        store.pass(1_000_000);
    }
    assert!(store.copied() > 0, "it has been moved");
    let before = hits(&store);
    assert_eq!(store.value("kept", Selector::Head).unwrap(), b"value");
    assert_eq!(hits(&store), before + 1);
}

#[test]
fn a_value_that_the_disk_has_lost_is_served_and_the_scrub_tells() {
    let mut store = store(None);
    store.put("k", b"value").unwrap();
    let held = store.look_up("k", Selector::Head).unwrap().unwrap();
    let address = held.place.address().unwrap();
    store.rot(address + 50);
    assert_eq!(store.value("k", Selector::Head).unwrap(), b"value");
    // Its segment is scrubbed when the log has left it.
    let value = vec![7; 8000];
    for number in 0..20 {
        store.put(&format!("other{number}"), &value).unwrap();
    }
    let rotten = store.scrub();
    assert!(
        rotten.iter().any(|rot| rot.address == address),
        "{rotten:?}"
    );
    assert_eq!(store.value("k", Selector::Head).unwrap(), b"value");
}

/// Whether a damaged value has been given for right after a read of it.
fn is_damage_given(mistake: Option<Mistake>) -> bool {
    let mut store = store(mistake);
    store.put("k", b"value").unwrap();
    store.crash(CrashMode::Power);
    let held = store.look_up("k", Selector::Head).unwrap().unwrap();
    store.rot(held.place.address().unwrap() + 50);
    assert!(store.is_damaged("k"));
    hits(&store) == 0 && store.value_cache().0 > 0
}

#[test]
fn what_is_damaged_is_not_cached() {
    assert!(!is_damage_given(None));
    assert!(is_damage_given(Some(Mistake::CachedUnchecked)));
}
