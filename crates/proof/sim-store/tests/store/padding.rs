// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much a store takes does not depend on how many writes are under way at once: padding is won back.

use erb_sim_store::steady::Steady;
use erb_store::message::What;
use erb_store::mistake::Mistake;
use erb_store::{Refused, Selector, Settings};

const SECOND_US: u64 = 1_000_000;
/// With its heads a sixth of the shortest batch.
const VALUE: [u8; 600] = [7; 600];
/// Of a mebibyte.
const SEGMENTS: u64 = 16;

fn settings(min_age_us: u64) -> Settings {
    Settings {
        min_age_us,
        keep_deleted_us: min_age_us,
        min_count: 1,
        counted: 1,
    }
}

fn store(mistake: Option<Mistake>) -> Steady {
    Steady::with_long_segments(SEGMENTS, settings(SECOND_US), mistake)
}

/// Keys of these numbers are put, so many at once, until one is refused or all are there: how many that are.
fn fill(store: &mut Steady, keys: std::ops::Range<usize>, at_once: usize) -> usize {
    let names: Vec<String> = keys.map(|key| format!("key {key}")).collect();
    let mut count = 0;
    for together in names.chunks(at_once) {
        if let Err(refused) = store.put_together(together, &VALUE) {
            assert_eq!(refused, Refused::NoSpaceForLive, "each key has one version");
            break;
        }
        count += together.len();
    }
    count
}

/// As many keys as no store of this size has room for.
const TOO_MANY: usize = 100_000;

#[test]
fn a_store_takes_as_much_one_at_a_time_as_many_at_a_time() {
    let many = fill(&mut store(None), 0..TOO_MANY, 128);
    let mut store = store(None);
    let alone = fill(&mut store, 0..TOO_MANY, 1);
    println!("{many} many at a time, {alone} one at a time");
    assert!(alone * 10 >= many * 9, "{alone} of {many}");
    for key in [0, alone / 2, alone - 1] {
        let value = store.value(&format!("key {key}"), Selector::Head);
        assert_eq!(value.as_deref(), Some(&VALUE[..]));
    }
    let broken = &mut self::store(Some(Mistake::PaddingNeeded));
    let found = fill(broken, 0..TOO_MANY, 1);
    assert!(found * 2 < many, "{found} of {many}");
}

#[test]
fn overwriting_one_at_a_time_ten_times_over_leaves_as_much_room() {
    let many = fill(&mut store(None), 0..TOO_MANY, 128);
    let mut store = store(None);
    let half = many / 2;
    assert_eq!(fill(&mut store, 0..half, 128), half);
    for round in 0..10 {
        // In another order than that of the log.
        let keys = (0..half).map(|at| (at * 7919 + round) % half);
        for key in keys {
            let name = [format!("key {key}")];
            assert_eq!(store.put_together(&name, &VALUE), Ok(()), "round {round}");
        }
    }
    let all = half + fill(&mut store, half..TOO_MANY, 1);
    println!("{many} many at a time, {all} after overwriting");
    assert!(all * 10 >= many * 9, "{all} of {many}");
}

/// A restore has no content of its own: a few values that are needed hold a segment of restores.
#[test]
fn restores_without_end_do_not_fill_a_store() {
    let mut store = Steady::new(1, 24, settings(0));
    let name = ["restored".to_owned()];
    store.put_together(&name, b"value").expect("there is room");
    for number in 0..120 {
        let kept = [format!("kept {number}")];
        store.put_together(&kept, b"value").expect("there is room");
        for _ in 0..100 {
            let what = What::Restore(Selector::Head);
            let restored = store.write_together(&name, what);
            assert_eq!(restored, Ok(()), "{number}");
        }
    }
    for number in 0..120 {
        let value = store.value(&format!("kept {number}"), Selector::Head);
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
    }
}

/// Each end of a log leaves a segment with little in it.
#[test]
fn clean_stops_without_end_do_not_fill_a_store() {
    let mut store = Steady::new(1, 24, settings(0));
    for number in 0..60 {
        let kept = [format!("kept {number}")];
        let put = store.put_together(&kept, b"value");
        assert_eq!(put, Ok(()), "behind so many stops: {number}");
        store.stop();
    }
    for number in 0..60 {
        let value = store.value(&format!("kept {number}"), Selector::Head);
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
    }
}
