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

/// What is left over of the whole.
#[must_use]
pub fn control_left(control: &abi::control) -> Vec<String> {
    let mut left = Vec::new();
    if control.fence != 0 {
        left.push(format!("the fence is {}", control.fence));
    }
    if control.gate_seen != control.gate_ack {
        left.push("the gate is shut".to_owned());
    }
    left
}

/// What is left over of an entry. `gone`: its socket is.
#[must_use]
pub fn conn_left(conn: &abi::conn, gone: bool) -> Vec<String> {
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
