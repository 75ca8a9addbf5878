// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Retention that is made shorter, and locks, one thing at a time.

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::control::Request;
use erb_store::mistake::{Mistake, SHORTENING_MISTAKES, SNAPSHOT_MISTAKES};
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
    let held = store.request(Request::Snapshot { for_us: None }).unwrap();
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

/// A moment that one snapshot holds for a minute and one until it is released, and whose value nothing else holds.
fn held_twice(mistake: Option<Mistake>) -> (Steady, Version) {
    let mut store = Steady::with_mistake(2, 40, settings(SECOND_US, 1), mistake);
    store.put("k", b"good").unwrap();
    let held = [Some(MINUTE_US), None].map(|for_us| {
        let taken = store.request(Request::Snapshot { for_us });
        taken.unwrap()
    });
    assert_eq!(held[0], held[1]);
    store.put("k", b"bad").unwrap();
    (store, held[0])
}

#[test]
fn a_snapshot_ends_by_itself_and_no_sooner_than_it_was_asked_for() {
    let mut store = Steady::new(2, 40, settings(SECOND_US, 1));
    store.put("k", b"good").unwrap();
    let for_us = Some(MINUTE_US);
    let held = store.request(Request::Snapshot { for_us }).unwrap();
    store.put("k", b"bad").unwrap();
    pass(&mut store, MINUTE_US / 2);
    // Neither a crash, nor a day in which the node was stopped or the machine slept.
    store.crash(CrashMode::Power);
    store.pass(24 * 60 * MINUTE_US);
    assert!(is_kept(&mut store, held));
    pass(&mut store, MINUTE_US / 2 - 15 * SECOND_US);
    assert!(is_kept(&mut store, held));
    pass(&mut store, 20 * SECOND_US);
    assert!(!is_kept(&mut store, held));
    assert_eq!(store.request(Request::Release(held)), Err(Refused::NoSuch));
}

#[test]
fn the_end_of_a_snapshot_is_its_own_alone() {
    let (mut store, held) = held_twice(None);
    pass(&mut store, 2 * MINUTE_US);
    store.crash(CrashMode::Power);
    assert!(is_kept(&mut store, held));
    store.request(Request::Release(held)).unwrap();
    pass(&mut store, 5 * SECOND_US);
    assert!(!is_kept(&mut store, held));
}

#[test]
fn a_release_takes_the_snapshot_that_would_end_first() {
    let (mut store, held) = held_twice(None);
    store.request(Request::Release(held)).unwrap();
    store.crash(CrashMode::Process);
    pass(&mut store, 2 * MINUTE_US);
    assert!(is_kept(&mut store, held));
    store.request(Request::Release(held)).unwrap();
    pass(&mut store, 5 * SECOND_US);
    assert!(!is_kept(&mut store, held));
}

#[test]
fn no_snapshot_ends_while_the_store_is_locked() {
    let (mut store, held) = held_twice(None);
    store.request(Request::Release(held)).unwrap();
    store.request(Request::Release(held)).unwrap();
    let for_us = Some(MINUTE_US);
    let held = store.request(Request::Snapshot { for_us }).unwrap();
    store.put("k", b"worse").unwrap();
    let for_us = 5 * MINUTE_US;
    store.request(Request::Lock { for_us }).unwrap();
    pass(&mut store, 4 * MINUTE_US);
    assert!(is_kept(&mut store, held));
    pass(&mut store, MINUTE_US + 5 * SECOND_US);
    assert!(!is_kept(&mut store, held));
}

#[test]
fn mistakes_about_snapshots_that_end_are_seen() {
    for mistake in SNAPSHOT_MISTAKES {
        let (mut store, held) = held_twice(Some(mistake));
        match mistake {
            Mistake::SnapshotEndsAtOnce => store.request(Request::Release(held)).unwrap(),
            Mistake::SnapshotEndsAll => held,
            Mistake::SnapshotEndsLocked => {
                let for_us = 5 * MINUTE_US;
                store.request(Request::Lock { for_us }).unwrap()
            }
            _ => store.request(Request::Release(held)).unwrap(),
        };
        let time_us = match mistake {
            Mistake::SnapshotEndsAtOnce => 5 * SECOND_US,
            _ => 2 * MINUTE_US,
        };
        pass(&mut store, time_us);
        let is_held = store.holding(held) > usize::from(mistake == Mistake::SnapshotEndsLocked);
        assert!(!is_held, "{mistake:?}");
    }
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
