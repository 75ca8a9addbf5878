// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store that becomes larger while it runs.

use std::panic;

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::message::What;
use erb_store::mistake::{GROWTH_MISTAKES, Mistake};
use erb_store::{Condition, Refused, Selector, Settings, Version};

const HEAD: Selector = Selector::Head;
const SEGMENTS: u32 = 40;
const MORE: u32 = 60;
const HOUR_US: u64 = 3_600_000_000;
/// Values that take a new segment, before the area of the control log is full, which is not left while superblocks are
/// held; and many new ones.
const PUTS_FEW: u32 = 27;
const PUTS_MANY: u32 = 45;
/// Steps within which a growth comes to its end, writes beside it.
const STEPS: u32 = 160;

/// A store that is full, with what it had before the flood.
fn full(shards: u16, mistake: Option<Mistake>) -> (Steady, Version) {
    let settings = Settings {
        min_age_us: HOUR_US,
        keep_deleted_us: HOUR_US,
        min_count: 1,
        counted: 1,
    };
    let mut store = Steady::with_mistake(shards, u64::from(SEGMENTS), settings, mistake);
    let good = store.put("a", b"good").unwrap();
    for count in 0..2000u32 {
        if store
            .put(&format!("flood {}", count % 7), &[1; 9000])
            .is_err()
        {
            return (store, good);
        }
    }
    panic!("it is not full");
}

fn segments(store: &Steady) -> u32 {
    let has = store.account();
    has.free + has.logs + has.checkpoints
}

/// Many values, as far as there is room.
fn flood(store: &mut Steady) -> Result<u32, Refused> {
    let mut written = 0;
    for count in 0..400u32 {
        let name = format!("more {}", count % 7);
        match store.put(&name, &[2; 9000]) {
            Ok(_) => written += 1,
            Err(refused) if written == 0 => return Err(refused),
            Err(_) => break,
        }
    }
    Ok(written)
}

fn is_whole(store: &mut Steady, good: Version) {
    assert_eq!(store.value("a", HEAD).unwrap(), b"good");
    assert_eq!(store.value("flood 1", HEAD).unwrap(), [1; 9000]);
    store.roll_back("flood", good).unwrap();
    store.checkpoints();
    store.crash(CrashMode::Power);
    assert_eq!(store.value("flood 1", HEAD), None);
    assert_eq!(store.value("a", HEAD).unwrap(), b"good");
}

#[test]
fn a_full_store_that_grows_while_it_runs_takes_writes_again_wherever_it_is_stopped() {
    let (mut grown, mut not_grown) = (0, 0);
    for steps in (0..STEPS).step_by(2) {
        for mode in [CrashMode::Power, CrashMode::Process] {
            let (mut store, good) = full(2, None);
            assert!(store.grow_running(u64::from(MORE)));
            assert!(!store.grow_running(1), "one at a time");
            for step in 0..steps {
                store.step();
                let name = format!("beside {}", step % 5);
                // Whether there is room is chance.
                let _ = store.put_if_unwaited(&name, &[3; 5000], Condition::Any);
            }
            store.crash(mode);
            // Cut off within the copies of its superblock it may be either.
            match segments(&store) {
                SEGMENTS => {
                    not_grown += 1;
                    assert_eq!(store.put("b", &[1; 9000]), Err(Refused::NoSpace));
                    assert!(store.grow_running(u64::from(MORE)), "it may be repeated");
                    store.settle();
                }
                there => {
                    grown += 1;
                    assert_eq!(there, SEGMENTS + MORE);
                }
            }
            assert_eq!(segments(&store), SEGMENTS + MORE);
            assert!(flood(&mut store).unwrap() > 200);
            is_whole(&mut store, good);
        }
    }
    assert!(grown > 0 && not_grown > 0, "{grown}, {not_grown}");
}

#[test]
fn it_goes_on_at_once_without_a_start_and_grows_again() {
    let (mut store, good) = full(2, None);
    assert!(store.grow_running(u64::from(MORE)));
    store.settle();
    assert_eq!(segments(&store), SEGMENTS + MORE);
    assert!(flood(&mut store).unwrap() > 200);
    assert!(store.grow_running(10));
    store.settle();
    assert_eq!(segments(&store), SEGMENTS + MORE + 10);
    assert_eq!(store.scrub(), []);
    is_whole(&mut store, good);
}

#[test]
fn a_growth_whose_superblock_is_on_its_way_has_brought_nothing() {
    let (mut store, good) = full(2, None);
    store.hold_superblocks(true);
    assert!(store.grow_running(u64::from(MORE)));
    store.settle();
    assert_eq!(flood(&mut store), Err(Refused::NoSpace));
    assert_eq!(segments(&store), SEGMENTS);
    store.hold_superblocks(false);
    store.settle();
    assert!(flood(&mut store).unwrap() > 200);
    is_whole(&mut store, good);
}

/// Whether a mistake is seen. Superblocks may not get to the disk meanwhile.
fn is_found(mistake: Option<Mistake>, holds: bool) -> bool {
    let played = panic::catch_unwind(|| {
        let (mut store, _) = full(1, mistake);
        // Without the reserve the next segment is soon a new one.
        while store.write_as("more", What::Put(&[2; 9000]), true).is_ok() {}
        store.checkpoints();
        store.hold_superblocks(holds);
        assert!(store.grow_running(u64::from(MORE)));
        store.pass(2_000_000);
        for _ in 0..if holds { PUTS_FEW } else { PUTS_MANY } {
            let _ = store.put("more", &[2; 9000]);
        }
        store.try_crash(CrashMode::Power)
    });
    !matches!(played, Ok(Ok(())))
}

#[test]
fn mistakes_about_it_are_found() {
    for mistake in GROWTH_MISTAKES {
        let holds = mistake == Mistake::GrowthCountsAtOnce;
        assert!(!is_found(None, holds), "nothing is wrong");
        assert!(is_found(Some(mistake), holds), "{mistake:?}");
    }
}
