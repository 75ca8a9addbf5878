// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values that are over, one thing at a time.

use erb_sim_disk::CrashMode;
use erb_sim_store::steady::Steady;
use erb_store::control::Request;
use erb_store::message::What;
use erb_store::{Condition, Refused, Selector, Settings};

const SECOND_US: u64 = 1_000_000;
const HEAD: Selector = Selector::Head;

fn store() -> Steady {
    let settings = Settings {
        min_age_us: 3600 * SECOND_US,
        keep_deleted_us: 3600 * SECOND_US,
        min_count: 1,
        counted: 1,
    };
    Steady::new(1, 40, settings)
}

#[test]
fn what_is_over_is_absent_for_conditions_and_is_read_as_it_was() {
    let mut store = store();
    let at_ms = store.now_ms() + 5000;
    let version = store.put_expiring("k", b"value", at_ms);
    let present = store.put_if("k", b"other", Condition::Absent);
    assert_eq!(present, Err(Refused::Mismatch));
    store.pass(6 * SECOND_US);
    // Its version is no head any more.
    let by_version = store.put_if("k", b"other", Condition::Head(version));
    assert_eq!(by_version, Err(Refused::Mismatch));
    assert_eq!(store.value("k", Selector::AsOf(version)).unwrap(), b"value");
    store.put_if("k", b"new", Condition::Absent).unwrap();
    assert_eq!(store.value("k", Selector::Back(1)).unwrap(), b"value");
}

#[test]
fn a_sweep_gives_what_is_over_a_delete_marker_once() {
    let mut store = store();
    let at_ms = store.now_ms() + 5000;
    let version = store.put_expiring("k", b"value", at_ms);
    store.sweep(version);
    assert_eq!(store.value("k", HEAD).unwrap(), b"value");
    store.pass(6 * SECOND_US);
    store.put("clock", b"").unwrap();
    for _ in 0..3 {
        store.sweep(version);
    }
    assert_eq!(store.value("k", HEAD), None);
    assert_eq!(store.value("k", Selector::Back(1)).unwrap(), b"value");
    assert_eq!(store.look_up("k", Selector::Back(2)), Err(Refused::NoSuch));
}

#[test]
fn a_restored_value_is_over_when_its_source_is_over_crashes_and_checkpoints() {
    let mut store = store();
    let at_ms = store.now_ms() + 60_000;
    let version = store.put_expiring("k", b"value", at_ms);
    store.put("k", b"for ever").unwrap();
    let restore = What::Restore(Selector::Version(version));
    store.write_as("k", restore, false).unwrap();
    store.crash(CrashMode::Power);
    assert_eq!(store.expiry_ms("k"), at_ms);
    store.request(Request::Checkpoint).unwrap();
    store.checkpoints();
    store.crash(CrashMode::Power);
    assert_eq!(store.expiry_ms("k"), at_ms);
    store.pass(70 * SECOND_US);
    let present = store.put_if("k", b"x", Condition::Present);
    assert_eq!(present, Err(Refused::Mismatch));
    // What is there for ever comes back by a roll back.
    store.roll_back("k", version).unwrap();
    assert_eq!(store.expiry_ms("k"), at_ms);
}
