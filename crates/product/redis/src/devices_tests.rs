// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices that go between two calls, and a machine that does not say which it has.

use erb_abi::ControlBlock as _;

use super::Bench;
use crate::clock::SECOND_NS;
use crate::outside::Error;
use crate::stop::Stage;

/// What whoever drives the core does between two turns, before any turn has found out.
type Deed = fn(&mut Bench) -> crate::outside::Result<()>;

const DEEDS: [(&str, Deed); 4] = [
    ("look", |bench| bench.core.look()),
    ("glance", |bench| bench.core.glance()),
    ("devices", |bench| bench.core.look_at_devices()),
    ("stop", |bench| bench.core.stop(false)),
];

#[test]
fn whoever_asks_before_it_is_known_that_the_device_has_gone_ends_nothing() {
    for (name, deed) in DEEDS {
        for (other, next) in [(Some(7), "run_on 7"), (None, "run_on 1")] {
            let mut bench = Bench::serving();
            bench.core.path.is_device_gone.set(true);
            bench.core.machine.device.set(other);
            deed(&mut bench).unwrap_or_else(|error| panic!("{name}: {error}"));
            if name != "devices" {
                let log = bench.core.path.take_log();
                assert!(log.contains(&next.to_owned()), "{name}: {log:?}");
            }
            bench.core.path.is_device_gone.set(false);
            bench.core.path.sweep.borrow_mut().translated = 1;
            bench.pass(2_000, true);
            let goes_on = other.is_some() || name == "devices";
            let stays = name != "stop" && goes_on;
            assert_eq!(bench.core.stage() == Stage::Running, stays, "{name}");
        }
    }
}

/// One tick and another meet a device that is not there, whatever is done in them.
#[test]
fn no_turn_ends_a_daemon_whose_device_has_gone() {
    let mut bench = Bench::serving();
    bench.core.path.is_device_gone.set(true);
    bench.core.machine.device.set(Some(7));
    bench.pass(3_000, true);
    assert_eq!(bench.core.stage(), Stage::Running);
    assert!(bench.core.path.take_log().contains(&"run_on 7".to_owned()));
}

#[test]
fn a_machine_that_does_not_say_what_it_has_is_asked_again() {
    let mut bench = Bench::serving();
    bench.pass(1_000, true);
    bench.core.machine.is_mute.set(true);
    bench.core.path.control().set_absorb(true);
    bench.core.look_at_devices().unwrap();
    assert!(
        !bench.core.path.control().absorb(),
        "clients may write unseen"
    );
    bench.pass(4_000, true);
    let before = bench.core.machine.covered.get();
    assert!(before > 50, "each tick: {before}");
    bench.core.machine.is_mute.set(false);
    bench.pass(50, true);
    assert_eq!(bench.core.machine.covered.get(), before + 1);
    bench.pass(900, true);
    assert_eq!(bench.core.machine.covered.get(), before + 1);
    // Nor when it falls silent as the device goes.
    bench.core.machine.is_mute.set(true);
    bench.core.path.is_device_gone.set(true);
    bench.core.look().unwrap();
    bench.pass(1_000, true);
    bench.core.machine.device.set(Some(7));
    bench.core.machine.is_mute.set(false);
    bench.core.path.take_log();
    bench.pass(100, true);
    assert!(bench.core.path.take_log().contains(&"run_on 7".to_owned()));
}

#[test]
fn a_machine_that_never_says_it_again_ends_the_daemon() {
    let mut bench = Bench::serving();
    bench.core.machine.is_mute.set(true);
    let end = bench.now() + 7 * SECOND_NS;
    let error = loop {
        let next = bench.core.next_wake_ns(bench.now());
        assert!(next < end, "it goes on");
        bench.core.machine.now_ns.set(next);
        if let Err(error) = bench.core.turn(false) {
            break error;
        }
        bench.answer();
    };
    assert!(matches!(error, Error::Untold(_)), "{error}");
    assert!(bench.now() > end - 3 * SECOND_NS);
}
