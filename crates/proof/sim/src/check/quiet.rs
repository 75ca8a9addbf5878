// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When faults have ended, everything that was begun must end, and nothing may stay behind.

use std::net::SocketAddr;

use erb_abi as abi;
use erb_sim_kernel::Datapath;

use crate::time::{Ns, show as show_time};
use crate::violation::Violation;

use super::Checks;
use super::maps::addresses;

/// Liveness: no request waits for longer than this once nothing disturbs any more.
///
/// # Errors
/// The oldest request that does.
pub fn answered(now: Ns, checks: &Checks, longest: Ns) -> Result<(), Violation> {
    let oldest = checks
        .unanswered()
        .into_iter()
        .min_by_key(|(_, since)| *since);
    match oldest {
        Some((conn, since)) if since + longest < now => Err(Violation::new(
            "liveness",
            now,
            format!(
                "connection {conn}: a request sent at {} has no answer",
                show_time(since)
            ),
        )),
        _ => Ok(()),
    }
}

/// Leaks: looked at when all requests are answered, the daemon runs and sweeps have passed.
/// `exists` says whether the server has a socket (of any state) for client and server address.
///
/// # Errors
/// What is left over.
pub fn leaks(
    now: Ns,
    path: &Datapath,
    exists: impl Fn(SocketAddr, SocketAddr) -> bool,
) -> Result<(), Violation> {
    // SAFETY: the map has one value, which stays where it is; no program runs.
    let control = unsafe { *path.control() };
    let mut left = control_left(&control);
    for index in 0..path.set_count() {
        let marks = path.set(index).0.marks;
        if marks != 0 {
            left.push(format!("set {index} has {marks} marks"));
        }
    }
    path.each_conn(|key, conn| {
        let (client, server) = addresses(key);
        let gone = !exists(client, server);
        left.extend(
            conn_left(conn, gone)
                .into_iter()
                .map(|what| format!("entry of {client}: {what}")),
        );
    });
    let misses = path.misses_waiting();
    if misses != 0 {
        left.push(format!("{misses} misses wait in the ring"));
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(Violation::new("leak", now, left.join("; "))),
    }
}

fn control_left(control: &abi::control) -> Vec<String> {
    let mut left = Vec::new();
    if control.fence != 0 {
        left.push(format!("the fence is {}", control.fence));
    }
    if control.gate_seen != control.gate_ack {
        left.push("the gate is shut".to_owned());
    }
    left
}

fn conn_left(conn: &abi::conn, gone: bool) -> Vec<String> {
    let mut left = Vec::new();
    let flags = u32::from(conn.flags);
    if gone {
        left.push("its socket is gone".to_owned());
    }
    if conn.h.mark_head != conn.h.mark_tail {
        let marks = conn.h.mark_head.wrapping_sub(conn.h.mark_tail);
        left.push(format!("{marks} marks in the ring"));
    }
    if flags & (abi::CONN_F_FENCE_PROOF | abi::CONN_F_OVERFLOW) != 0 {
        left.push("a share of the fence".to_owned());
    }
    let counted = flags & (abi::CONN_F_UNCOUNTABLE | abi::CONN_F_CLOSING) == 0;
    if counted && !gone && conn.requests != conn.replies {
        let text = format!("{} requests, {} replies", conn.requests, conn.replies);
        left.push(text);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut checks = Checks::new(super::super::Config::default());
        checks.opened(0, 1, super::super::Via::Erb);
        checks.sent(10, 1, b"PING\r\n");
        assert!(answered(1_000, &checks, 2_000).is_ok());
        assert_eq!(
            answered(3_000, &checks, 2_000).unwrap_err().check,
            "liveness"
        );
        checks.received(3_000, 1, b"+PONG\r\n").unwrap();
        assert!(answered(9_000, &checks, 2_000).is_ok());
    }
}
