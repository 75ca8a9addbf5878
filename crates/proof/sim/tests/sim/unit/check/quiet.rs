// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is left over when faults have ended.

use erb_abi as abi;
use erb_sim::check::quiet::{answered, conn_left, control_left};
use erb_sim::check::{Checks, Config, Via};

#[test]
fn what_stays_behind_is_named() {
    // SAFETY: plain data for which all zeros are a value.
    let (conn, control): (abi::conn, abi::control) = unsafe { std::mem::zeroed() };
    assert!(conn_left(&conn, false).is_empty());
    assert_eq!(conn_left(&conn, true).len(), 1);
    let mut marks = conn;
    marks.h.mark_head = 2;
    assert_eq!(conn_left(&marks, false), ["2 marks in the ring"]);
    let share = abi::conn {
        flags: abi::CONN_F_OVERFLOW as u8,
        ..conn
    };
    assert_eq!(conn_left(&share, false).len(), 1);
    let owed = abi::conn {
        requests: 1,
        ..conn
    };
    assert_eq!(conn_left(&owed, false), ["1 requests, 0 replies"]);
    assert!(control_left(&control).is_empty());
    let fenced = abi::control {
        fence: 1,
        gate_seen: 1,
        ..control
    };
    assert_eq!(control_left(&fenced).len(), 2);
}

#[test]
fn a_request_without_answer_is_named() {
    let mut checks = Checks::new(Config::default());
    checks.opened(0, 1, Via::Erb);
    checks.sent(10, 1, b"PING\r\n");
    assert!(answered(1_000, &checks, 2_000).is_ok());
    assert_eq!(
        answered(3_000, &checks, 2_000).unwrap_err().check,
        "liveness"
    );
    checks.received(3_000, 1, b"+PONG\r\n").unwrap();
    assert!(answered(9_000, &checks, 2_000).is_ok());
}
