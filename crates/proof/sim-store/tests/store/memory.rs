// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What roll backs need of index memory that writers have filled.

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::mistake::Mistake;
use erb_store::shard::NotWritten;
use erb_store::{
    Condition, KEY_BYTES_BUDGET, Refused, Selector, Settings, VERSION_BYTES_BUDGET, Version,
};

const KEYS: usize = 26_400;
const PREFIXES: usize = 100;
const HOUR_US: u64 = 3_600_000_000;
/// Writers keep two versions of each key back for roll backs.
const MEMORY_BYTES: usize = KEYS * (KEY_BYTES_BUDGET + 2 * VERSION_BYTES_BUDGET);

fn prefix(number: usize) -> String {
    format!("{number:02}/")
}

fn names(keys: std::ops::Range<usize>) -> Vec<String> {
    keys.map(|key| format!("{}{}", prefix(key % PREFIXES), key / PREFIXES))
        .collect()
}

/// A store whose index memory is full of keys, a hundred prefixes of as many each, and a moment when it had half of them.
fn crowded(mistake: Option<Mistake>) -> (Steady, Version) {
    let settings = Settings {
        min_age_us: HOUR_US,
        keep_deleted_us: HOUR_US,
        min_count: 1,
        counted: 1,
    };
    let mut store = Steady::with_memory(MEMORY_BYTES, 24, settings, mistake);
    let put = |store: &mut Steady, keys| {
        for together in names(keys).chunks(500) {
            store.put_together(together, b"").expect("there is room");
        }
    };
    put(&mut store, 0..KEYS / 2);
    let moment = store.watermark();
    put(&mut store, KEYS / 2..KEYS);
    let more = ["one more".to_owned()];
    assert_eq!(store.put_together(&more, b""), Err(Refused::Full));
    (store, moment)
}

/// All prefixes are rolled back, and each is counted before and after: an error if anything is refused.
fn roll_all_back(store: &mut Steady, moment: Version) -> Result<(), Refused> {
    let changes = (KEYS / PREFIXES / 2) as u64;
    for number in 0..PREFIXES {
        let prefix = prefix(number);
        assert_eq!(store.dry_run(&prefix, moment)?, changes);
        store.roll_back(&prefix, moment)?;
        assert_eq!(store.dry_run(&prefix, moment)?, 0);
    }
    Ok(())
}

#[test]
fn roll_backs_and_dry_runs_work_however_full_index_memory_is() {
    let (mut store, moment) = crowded(None);
    let full = store.watermark();
    assert_eq!(roll_all_back(&mut store, moment), Ok(()));
    store.crash(CrashMode::Power);
    assert_eq!(roll_all_back(&mut store, full), Ok(()));
    assert_eq!(roll_all_back(&mut store, moment), Ok(()));
    assert_eq!(roll_all_back(&mut store, full), Ok(()));
    // That were as many versions as memory is kept back for: there is no room for another, and counting needs none.
    let wanted = (KEYS / PREFIXES / 2) as u64;
    assert_eq!(store.dry_run(&prefix(7), moment), Ok(wanted));
    assert_eq!(store.roll_back(&prefix(7), moment), Err(Refused::Full));
    // What changes nothing needs nothing either.
    assert!(store.roll_back(&prefix(7), full).is_ok());
    let value = store.value(&names(0..1)[0], Selector::Head);
    assert_eq!(value.as_deref(), Some(&b""[..]));
}

#[test]
fn a_roll_back_that_keeps_memory_for_more_than_its_scope_is_seen() {
    let (mut store, moment) = crowded(Some(Mistake::RoomOfNamespace));
    assert_eq!(roll_all_back(&mut store, moment), Err(Refused::Full));
}

/// What is out of the scope goes on while it is counted, and the scope waits.
#[test]
fn writes_out_of_the_scope_go_on_while_a_roll_back_is_counted() {
    let (mut store, moment) = crowded(None);
    // That many keep memory for all keys.
    for number in 0..2 {
        store
            .roll_back(&prefix(number), moment)
            .expect("there is room");
    }
    store.begin_roll_back(&prefix(3), moment);
    assert!(store.is_counting());
    let put = |store: &mut Steady, name: &str| store.put_if_unwaited(name, b"", Condition::Absent);
    let in_scope = put(&mut store, &format!("{}0", prefix(3)));
    assert_eq!(in_scope, Err(NotWritten::Frozen));
    let beside = put(&mut store, &format!("{}0", prefix(4)));
    assert!(
        matches!(beside, Err(NotWritten::Refused(Refused::Mismatch, _))),
        "{beside:?}"
    );
    assert!(store.is_counting(), "a slice at a time");
    assert!(store.end_roll_back().is_ok());
    assert_eq!(store.dry_run(&prefix(3), moment), Ok(0));
}
