// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Retention that is made shorter, and locks, one thing at a time.

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::control::Request;
use erb_store::mistake::{Mistake, SHORTENING_MISTAKES};
use erb_store::{Refused, Selector, Settings, Version};

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
/// What an attacker asks for.
const NOTHING: Settings = Settings {
    min_age_us: 0,
    keep_deleted_us: 0,
    min_count: 1,
    counted: 1,
};

fn settings(min_age_us: u64, min_count: u32) -> Settings {
    Settings {
        min_age_us,
        keep_deleted_us: min_age_us,
        min_count,
        counted: 1,
    }
}

fn pass(store: &mut Steady, time_us: u64) {
    for _ in 0..time_us.div_ceil(SECOND_US) {
        store.pass(SECOND_US);
    }
}

/// A value that was written over, and everything that follows from time.
fn attacked(mistake: Option<Mistake>) -> (Steady, Version) {
    let mut store = Steady::with_mistake(2, 40, settings(MINUTE_US, 2), mistake);
    let good = store.put("k", b"good").unwrap();
    store.put("k", b"bad").unwrap();
    store.put("k", b"worse").unwrap();
    (store, good)
}

fn is_kept(store: &mut Steady, good: Version) -> bool {
    store.sweep(Version::MAX);
    store.look_up("k", Selector::AsOf(good)).is_ok()
}

#[test]
fn what_is_kept_shrinks_after_a_former_min_age() {
    let (mut store, good) = attacked(None);
    store.request(Request::Settings(NOTHING)).unwrap();
    assert_eq!(store.kept().min_age_us, MINUTE_US);
    // Neither a crash nor a pause hastens it.
    pass(&mut store, MINUTE_US / 2);
    store.crash(CrashMode::Power);
    store.pass(3600 * SECOND_US);
    assert!(is_kept(&mut store, good));
    pass(&mut store, MINUTE_US / 2);
    assert_eq!(store.kept(), NOTHING);
    pass(&mut store, 2 * SECOND_US);
    assert!(!is_kept(&mut store, good));
    assert_eq!(store.value("k", Selector::Head).unwrap(), b"worse");
}

#[test]
fn to_choose_what_is_in_force_cancels_what_waits() {
    let (mut store, good) = attacked(None);
    store.request(Request::Settings(NOTHING)).unwrap();
    pass(&mut store, MINUTE_US / 2);
    store.request(Request::Settings(store.kept())).unwrap();
    store.crash(CrashMode::Process);
    pass(&mut store, MINUTE_US);
    assert_eq!(store.kept().min_age_us, MINUTE_US);
    // Its own newest versions are not counted by age.
    assert!(store.look_up("k", Selector::Back(1)).is_ok());
    assert!(store.kept().min_count == 2 && store.look_up("k", Selector::AsOf(good)).is_err());
}

#[test]
fn what_grows_is_in_force_at_once_and_the_rest_waits() {
    let (mut store, _) = attacked(None);
    store
        .request(Request::Settings(settings(3600 * SECOND_US, 1)))
        .unwrap();
    let kept = store.kept();
    assert_eq!((kept.min_age_us, kept.min_count), (3600 * SECOND_US, 2));
    // The min-age of when it was asked for, not the one that it brought.
    pass(&mut store, MINUTE_US + SECOND_US);
    assert_eq!(store.kept().min_count, 1);
}

#[test]
fn a_second_shortening_takes_the_place_of_the_first() {
    let (mut store, _) = attacked(None);
    store.request(Request::Settings(NOTHING)).unwrap();
    pass(&mut store, MINUTE_US / 2);
    let shorter = settings(MINUTE_US / 2, 2);
    store.request(Request::Settings(shorter)).unwrap();
    pass(&mut store, MINUTE_US / 2 + SECOND_US);
    assert_eq!(store.kept().min_age_us, MINUTE_US);
    pass(&mut store, MINUTE_US / 2);
    assert_eq!(store.kept(), shorter);
}

#[test]
fn a_lock_lets_nothing_go_until_its_end_and_never_ends_sooner() {
    let (mut store, good) = attacked(None);
    let held = store.request(Request::Snapshot).unwrap();
    store.request(Request::Settings(NOTHING)).unwrap();
    let for_us = 5 * MINUTE_US;
    store.request(Request::Lock { for_us }).unwrap();
    store.request(Request::Lock { for_us: 0 }).unwrap();
    store.crash(CrashMode::Power);
    for request in [
        Request::Settings(settings(0, 2)),
        Request::Settings(settings(MINUTE_US, 1)),
        Request::Release(held),
    ] {
        assert_eq!(store.request(request), Err(Refused::Locked));
    }
    // What was asked for before the lock waits for its end.
    pass(&mut store, 4 * MINUTE_US);
    assert_eq!(store.kept().min_age_us, MINUTE_US);
    store.put("k", b"more is fine").unwrap();
    store
        .request(Request::Settings(settings(2 * MINUTE_US, 3)))
        .unwrap();
    pass(&mut store, MINUTE_US + SECOND_US);
    store.request(Request::Release(held)).unwrap();
    assert_eq!(store.kept().min_age_us, 2 * MINUTE_US);
    assert!(!is_kept(&mut store, good));
}

#[test]
fn a_new_store_keeps_what_it_was_formatted_with() {
    let mut store = Steady::new(1, 24, settings(7 * SECOND_US, 3));
    store.crash(CrashMode::Power);
    let kept = store.kept();
    assert_eq!((kept.min_age_us, kept.min_count), (7 * SECOND_US, 3));
}

#[test]
fn mistakes_about_it_are_seen() {
    for mistake in SHORTENING_MISTAKES {
        let (mut store, good) = attacked(Some(mistake));
        let lock = Request::Lock { for_us: MINUTE_US };
        if mistake == Mistake::LockIgnored {
            store.request(lock).unwrap();
            let refused = store.request(Request::Settings(NOTHING));
            assert!(refused.is_ok(), "{mistake:?}");
        } else {
            store.request(Request::Settings(NOTHING)).unwrap();
            pass(&mut store, 3 * SECOND_US);
            assert!(!is_kept(&mut store, good), "{mistake:?}");
        }
    }
}
