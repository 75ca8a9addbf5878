// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the store does about space, one thing at a time.

use erb_sim_disk::CrashMode;
use erb_sim_store::amount;
use erb_sim_store::steady::Steady;
use erb_store::control::Request;
use erb_store::message::What;
use erb_store::mistake::Mistake;
use erb_store::space::Space;
use erb_store::{Refused, Selector, Settings, Version};
use fastrand::Rng;

const SECOND_US: u64 = 1_000_000;
const HEAD: Selector = Selector::Head;
/// With its heads nearly 12 KiB.
const VALUE_BYTES: usize = 12_100;

fn settings(min_age_us: u64, min_count: u32) -> Settings {
    Settings {
        min_age_us,
        keep_deleted_us: min_age_us.max(60 * SECOND_US),
        min_count,
        counted: 1,
    }
}

fn value(byte: u8) -> Vec<u8> {
    vec![byte; 6000]
}

/// Time goes on until what has ended is old, and what is so is trimmed.
fn age(store: &mut Steady, seconds: u64) {
    for _ in 0..seconds {
        store.pass(SECOND_US);
    }
    store.sweep(Version::MAX);
}

/// Writes over and over, with time and sweeps, until so many bytes were written.
fn churn(store: &mut Steady, rounds: u8) {
    for round in 0..rounds {
        for name in ["a", "b", "c", "d", "e"] {
            store.put(name, &value(round)).expect("there is room");
        }
        age(store, 2);
    }
}

#[test]
fn a_store_that_is_written_over_and_over_uses_its_segments_again() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    store.put("cold", b"written once").unwrap();
    let first = store.look_up("cold", HEAD).unwrap().unwrap();
    churn(&mut store, 80);
    let account = store.account();
    assert_eq!(account.free + account.logs + account.checkpoints, 24);
    assert!(store.copied() > 0, "what is cold was moved");
    let now = store.look_up("cold", HEAD).unwrap().unwrap();
    assert_eq!(now.version, first.version, "a move adds no version");
    assert_ne!(now.place, first.place);
    assert_eq!(store.value("cold", HEAD).unwrap(), b"written once");
    let uses = store.uses(first.place.address().unwrap());
    assert!(uses > 1, "its first segment is used again: {uses}");
    store.crash(CrashMode::Power);
    assert_eq!(store.value("cold", HEAD).unwrap(), b"written once");
    assert_eq!(store.value("e", HEAD).unwrap(), value(79));
}

#[test]
fn restored_versions_move_with_their_original_which_is_trimmed() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    let first = store.put("k", b"first").unwrap();
    store.put("k", b"second").unwrap();
    store
        .write_as("k", What::Restore(Selector::Version(first)), false)
        .unwrap();
    age(&mut store, 3);
    assert_eq!(
        store.look_up("k", Selector::Version(first)),
        Err(Refused::Trimmed)
    );
    let before = store.look_up("k", HEAD).unwrap().unwrap();
    churn(&mut store, 80);
    let after = store.look_up("k", HEAD).unwrap().unwrap();
    assert_ne!(before.place, after.place);
    assert_eq!(store.value("k", HEAD).unwrap(), b"first");
    // Another restore of what was restored, and the power goes.
    store.write_as("k", What::Restore(HEAD), false).unwrap();
    age(&mut store, 3);
    store.crash(CrashMode::Power);
    assert_eq!(store.value("k", HEAD).unwrap(), b"first");
}

#[test]
fn a_pending_roll_back_has_its_source_when_that_is_moved_or_would_be_trimmed() {
    let mut store = Steady::new(2, 48, settings(SECOND_US, 1));
    let moment = store.put("k", b"good").unwrap();
    store.put("k", b"bad").unwrap();
    store.roll_back("", moment).unwrap();
    // Nobody touches the key, but sweeps and collecting.
    age(&mut store, 4);
    churn(&mut store, 60);
    assert_eq!(store.value("k", HEAD).unwrap(), b"good");
    assert_eq!(
        store.look_up("k", Selector::Version(moment)),
        Err(Refused::Trimmed)
    );
}

#[test]
fn a_snapshot_released_before_the_first_touch_takes_nothing_from_a_roll_back() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    store.put("k", b"good").unwrap();
    let held = store.request(Request::Snapshot { for_us: None }).unwrap();
    store.put("k", b"bad").unwrap();
    age(&mut store, 4);
    store.roll_back("k", held).unwrap();
    store.request(Request::Release(held)).unwrap();
    age(&mut store, 4);
    assert_eq!(store.value("k", HEAD).unwrap(), b"good");
}

#[test]
fn a_trim_is_replayed_with_a_roll_back_in_between() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    let moment = store.put("k", b"one").unwrap();
    store.put("k", b"two").unwrap();
    store.roll_back("", moment).unwrap();
    age(&mut store, 4);
    store.put("k", b"three").unwrap();
    store.crash(CrashMode::Power);
    assert_eq!(store.value("k", HEAD).unwrap(), b"three");
    assert_eq!(store.value("k", Selector::Back(1)).unwrap(), b"one");
}

#[test]
fn a_flood_is_refused_history_is_whole_and_roll_back_works() {
    let mut store = Steady::new(2, 40, settings(3600 * SECOND_US, 1));
    let names = ["a", "b", "c", "d"];
    for name in names {
        store.put(name, name.as_bytes()).unwrap();
    }
    let good = store.put("e", b"e").unwrap();
    let mut count = 0u32;
    let refused = loop {
        let name = format!("flood {}", count % 7);
        count += 1;
        match store.put(&name, &value(count as u8)) {
            Ok(_) => assert!(count < 2000),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, Refused::NoSpace);
    assert!(store.space() >= Space::Full);
    // A writer that deletes without end gets no further.
    for name in names {
        assert_eq!(
            store.write_as(name, What::Delete, false),
            Err(Refused::NoSpace)
        );
    }
    // Restorers go on, out of the reserve.
    store.roll_back("flood", good).unwrap();
    assert_eq!(store.value("flood 1", HEAD), None);
    let restored = store.write_as("a", What::Restore(HEAD), true);
    assert!(restored.unwrap().is_some());
    for name in names {
        assert_eq!(
            store.value(name, Selector::AsOf(good)).unwrap(),
            name.as_bytes()
        );
    }
    store.crash(CrashMode::Power);
    assert_eq!(store.value("flood 1", HEAD), None);
    assert_eq!(store.value("b", HEAD).unwrap(), b"b");
    assert_eq!(store.put("b", b"still full"), Err(Refused::NoSpace));
}

/// Trap 66.
#[test]
fn batches_over_shards_without_end_leave_the_control_log_bounded() {
    let mut store = Steady::new(2, 160, settings(0, 1));
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    // An area of the control log is full behind some twenty of them.
    for round in 0..300_u32 {
        let mut tries = 0;
        while let Err(refused) = store.batch(&names, &round.to_le_bytes()) {
            // A shard waits for its next segment.
            assert_eq!(refused, Refused::Busy, "{round}");
            tries += 1;
            assert!(tries < 10, "{round}");
            store.pass(1000);
        }
        // A shard is done with a batch when the next one writes it down.
        assert!(store.commits() <= 4, "{} behind {round}", store.commits());
    }
    store.crash(CrashMode::Power);
    for name in names {
        assert_eq!(store.value(name, HEAD).unwrap(), 299_u32.to_le_bytes());
    }
}

/// A store that is full, with what it had before the flood.
fn full() -> (Steady, Version) {
    let mut store = Steady::new(2, 40, settings(3600 * SECOND_US, 1));
    let good = store.put("a", b"good").unwrap();
    for count in 0..2000u32 {
        let name = format!("flood {}", count % 7);
        if store.put(&name, &value(count as u8)).is_err() {
            return (store, good);
        }
    }
    panic!("it is not full");
}

#[test]
fn a_full_store_that_has_grown_takes_writes_again_wherever_that_was_cut_off() {
    let mut whole = 0;
    for cut_off in 0..14 {
        let (mut store, good) = full();
        let had = store.account();
        let is_over = store.grow(100, cut_off);
        whole += u32::from(is_over);
        let has = store.account();
        let more = has.free + has.logs + has.checkpoints - had.free - had.logs - had.checkpoints;
        // Cut off within its copies of the superblock either may be.
        assert!(
            [0, 100].contains(&more) && (more == 100 || !is_over),
            "{more}"
        );
        assert_eq!(store.value("a", HEAD).unwrap(), b"good");
        if more == 0 {
            assert_eq!(store.put("b", &value(1)), Err(Refused::NoSpace));
            assert!(store.grow(100, u32::MAX), "it may be repeated");
        }
        for count in 0..200u32 {
            store
                .put(&format!("more {}", count % 7), &value(count as u8))
                .unwrap();
        }
        store.roll_back("flood", good).unwrap();
        store.checkpoints();
        store.crash(CrashMode::Power);
        assert_eq!(store.value("flood 1", HEAD), None);
        assert_eq!(store.value("a", HEAD).unwrap(), b"good");
        assert!(store.value("more 1", HEAD).is_some());
        // It grows again, from what it has become.
        assert!(store.grow(10, u32::MAX));
        assert_eq!(store.value("a", HEAD).unwrap(), b"good");
    }
    assert_eq!(whole, 2, "each write of it was cut off");
}

#[test]
fn a_full_store_has_room_again_when_retention_lets_go() {
    let mut store = Steady::new(2, 40, settings(3600 * SECOND_US, 1));
    for count in 0..2000u32 {
        if store
            .put(&format!("k{}", count % 7), &value(count as u8))
            .is_err()
        {
            break;
        }
    }
    assert!(store.space() >= Space::Full);
    store
        .request(Request::Settings(settings(SECOND_US, 1)))
        .unwrap();
    // Not before a former min-age is over.
    age(&mut store, 4);
    assert!(store.space() >= Space::Full);
    for _ in 0..3600 / 10 {
        store.pass(10 * SECOND_US);
    }
    age(&mut store, 4);
    store.checkpoints();
    age(&mut store, 2);
    assert_eq!(store.space(), Space::Plenty, "{:?}", store.account());
    store.put("k1", b"there is room").unwrap();
}

/// Whether somebody is refused who writes over values that fill most of a store which keeps no others.
fn is_refused(seed: u64, shards: u16, mistake: Option<Mistake>) -> bool {
    let segments = 64 * u64::from(shards);
    let mut store = Steady::seeded(seed, shards, segments, settings(0, 1), mistake);
    // Five to a segment: seven tenths of it.
    let keys = 220 * u32::from(shards);
    for key in 0..keys {
        store
            .put(&format!("k{key}"), &[1; VALUE_BYTES])
            .expect("there is room");
    }
    let written = store.overwrite(keys, 10 * keys, &[2; VALUE_BYTES]);
    if written.is_ok() {
        assert!(store.copied() > 0, "what is needed was moved");
    }
    written.is_err()
}

#[test]
fn nobody_is_refused_while_collecting_can_make_room() {
    for seed in 0..6 {
        let shards = 1 + seed as u16 % 2;
        assert!(!is_refused(seed, shards, None), "{seed}");
    }
    let mut seeds = 0..6;
    assert!(seeds.any(|seed| is_refused(seed, 1, Some(Mistake::RefusedTooEarly))));
}

#[test]
fn slow_overwriting_leaves_what_min_count_and_snapshots_hold() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 2));
    store.put("k", b"original").unwrap();
    let held = store.request(Request::Snapshot { for_us: None }).unwrap();
    for round in 0..9 {
        store.put("k", &[round]).unwrap();
        age(&mut store, 3);
    }
    churn(&mut store, 30);
    assert_eq!(store.value("k", Selector::AsOf(held)).unwrap(), b"original");
    assert_eq!(store.value("k", HEAD).unwrap(), [8]);
    assert_eq!(store.value("k", Selector::Back(1)).unwrap(), [7]);
    assert_eq!(store.look_up("k", Selector::Back(2)), Err(Refused::Trimmed));
}

#[test]
fn everything_is_deleted_and_comes_back() {
    let mut store = Steady::new(2, 48, settings(3600 * SECOND_US, 1));
    let names: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let mut moment = Version::ZERO;
    for name in &names {
        moment = store.put(name, name.as_bytes()).unwrap();
    }
    for name in &names {
        store.write_as(name, What::Delete, false).unwrap();
    }
    age(&mut store, 5);
    store.roll_back("", moment).unwrap();
    store.crash(CrashMode::Power);
    for name in &names {
        assert_eq!(store.value(name, HEAD).unwrap(), name.as_bytes());
    }
}

#[test]
fn without_min_age_nothing_is_trimmed_for_a_successor_that_is_not_durable() {
    let mut store = Steady::new(1, 24, settings(0, 1));
    store.put("k", b"durable").unwrap();
    store.pass(SECOND_US);
    store.put_unwaited("k", b"lost");
    store.sweep_unsettled();
    store.crash(CrashMode::Power);
    assert_eq!(store.value("k", HEAD).unwrap(), b"durable");
}

#[test]
fn a_damaged_newest_checkpoint_costs_nothing_though_segments_were_used_again() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    store.put("cold", b"cold").unwrap();
    churn(&mut store, 60);
    store.rot_newest_checkpoint();
    store.crash(CrashMode::Power);
    assert_eq!(store.value("cold", HEAD).unwrap(), b"cold");
    assert_eq!(store.value("a", HEAD).unwrap(), value(59));
    churn(&mut store, 30);
    store.crash(CrashMode::Power);
    assert_eq!(store.value("cold", HEAD).unwrap(), b"cold");
}

#[test]
fn a_segment_is_not_used_again_while_a_read_of_it_is_under_way() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    store.put("cold", b"cold").unwrap();
    let address = store
        .look_up("cold", HEAD)
        .unwrap()
        .unwrap()
        .place
        .address();
    let uses = store.uses(address.unwrap());
    let reading = store.begin("cold");
    churn(&mut store, 60);
    assert_eq!(store.uses(address.unwrap()), uses);
    assert_eq!(store.end("cold", reading).unwrap(), b"cold");
    churn(&mut store, 60);
    assert!(store.uses(address.unwrap()) > uses);
}

#[test]
fn damage_of_one_record_costs_that_record_and_its_segment_until_it_is_written_over() {
    let mut store = Steady::new(1, 24, settings(SECOND_US, 1));
    store.put("rotten", b"rotten").unwrap();
    store.put("beside", b"beside").unwrap();
    let address = store
        .look_up("rotten", HEAD)
        .unwrap()
        .unwrap()
        .place
        .address();
    store.rot(address.unwrap() + 50);
    churn(&mut store, 60);
    assert!(store.is_damaged("rotten"));
    assert_eq!(store.value("beside", HEAD).unwrap(), b"beside");
    store.put("rotten", b"new").unwrap();
    churn(&mut store, 60);
    assert_eq!(store.value("rotten", HEAD).unwrap(), b"new");
    assert!(store.uses(address.unwrap()) > 1);
}

/// Whether a full store that is killed again and again, each time so many steps behind a trim, is stuck: a sweep is not
/// let in, or a restorer cannot delete when that ends. What it has, and how often it is killed, is chance.
fn is_stuck(seed: u64, mistake: Option<Mistake>) -> bool {
    let mut random = Rng::with_seed(77 * seed + 5);
    let (steps, segments) = (random.u32(1..200), random.u64(11..22));
    let (keys, bytes) = (random.usize(1..30), random.usize(100..6000));
    let kills = random.usize(1..60);
    let played = std::panic::catch_unwind(|| {
        let mut store = Steady::seeded(seed, 1, segments, settings(0, u32::MAX), mistake);
        let names: Vec<String> = (0..keys).map(|key| format!("k{key}")).collect();
        let mut versions = Vec::new();
        while store.put_together(&names, &vec![1; bytes]).is_ok() {
            versions.push(store.watermark());
        }
        store.request(Request::Settings(settings(0, 1))).unwrap();
        for kill in 1..=kills {
            let trimmed = versions.len() * kill / kills;
            store.trim_and_kill(versions[trimmed.max(1) - 1], steps);
        }
        age(&mut store, 5);
        store.write_as("k0", What::Delete, true)
    });
    !matches!(played, Ok(Ok(Some(_))))
}

#[test]
fn a_full_store_that_is_killed_again_and_again_can_delete_and_has_room_again() {
    // The last one needs what is durably free counted alone.
    let seeds = || (0..amount(120, 6000)).chain([787]);
    for seed in seeds() {
        assert!(!is_stuck(seed, None), "{seed}");
    }
    for mistake in [
        Mistake::CheckpointsStarved,
        Mistake::TrimsBeforeFreed,
        Mistake::FreedEarly,
    ] {
        let found = seeds().rev().any(|seed| is_stuck(seed, Some(mistake)));
        assert!(found, "{mistake:?}");
    }
}

/// A min-age that is far shorter than what deleted keys are kept for: what has ended is trimmed as soon as it may be.
#[test]
fn nobody_is_refused_for_what_only_deleted_keys_are_kept_for() {
    let month_us = 30 * 24 * 3600 * SECOND_US;
    let kept = Settings {
        keep_deleted_us: month_us,
        ..settings(0, 1)
    };
    let mut store = Steady::new(1, 24, kept);
    for round in 0..60 {
        for name in ["a", "b", "c", "d", "e"] {
            store.put(name, &value(round)).expect("there is room");
        }
        store.pass(SECOND_US);
    }
    store.crash(CrashMode::Power);
    for round in 60..120 {
        store.put("a", &value(round)).expect("there is room");
        store.pass(SECOND_US);
    }
}
