// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When ERB leaves: asked to, or because its devices are gone.

use erb_abi::{self as abi, ControlBlock as _};

use super::Bench;
use crate::stop::Stage;

#[test]
fn a_device_that_is_gone_is_replaced_or_ends_the_boost() {
    let mut bench = Bench::serving();
    bench.core.path.is_device_gone.set(true);
    bench.core.machine.device.set(Some(7));
    bench.count(abi::STAT_FAST_PACKET);
    bench.pass(60, true);
    assert!(bench.core.path.take_log().contains(&"run_on 7".to_owned()));
    assert_eq!(bench.core.stage(), Stage::Running);
    bench.core.machine.device.set(None);
    bench.core.path.sweep.borrow_mut().translated = 1;
    bench.count(abi::STAT_FAST_PACKET);
    bench.pass(60, true);
    assert!(bench.core.path.take_log().contains(&"run_on 1".to_owned()));
    assert_eq!(bench.core.path.serving(), 0);
    bench.core.path.is_device_gone.set(false);
    bench.pass(1_000, true);
    assert!(!bench.core.is_leaving(), "a connection needs translation");
    bench.core.path.sweep.borrow_mut().translated = 0;
    bench.pass(1_000, true);
    assert!(bench.core.is_leaving());
}

#[test]
fn detach_waits_for_the_last_translated_connection() {
    let mut bench = Bench::serving();
    bench.core.path.sweep.borrow_mut().translated = 1;
    bench.core.stop(false).unwrap();
    assert_eq!(bench.core.path.control().stopping(), 1);
    assert_eq!(bench.core.path.serving(), 0);
    assert_eq!(bench.core.path.lease_until_ns(), 0);
    bench.pass(1_000, true);
    assert!(!bench.core.is_leaving());
    bench.core.path.sweep.borrow_mut().translated = 0;
    bench.pass(100, true);
    assert!(bench.core.is_leaving());
}

#[test]
fn a_forced_detach_resets_what_is_translated() {
    let mut bench = Bench::serving();
    for (cookie, in_delta) in [(5, 0), (6, 1)] {
        let mut conn = abi::conn {
            cookie,
            in_delta,
            ..abi::conn::default()
        };
        conn.key.client_port_be = cookie as u16;
        bench.core.path.track(&conn);
    }
    bench.core.stop(true).unwrap();
    assert!(bench.core.is_leaving());
    assert_eq!(*bench.core.machine.destroyed.borrow(), [6]);
}
