// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of `erb status --conns`: what the table of connections says of each, and why it is not answered.

use erb_abi::{ConnView, ControlPlane as _, SLOW_USER};
use erb_redis::{TcpPair, addresses};
use erb_report::ConnLine;

use crate::Result;
use crate::rundir::RunDir;
use crate::status::left_datapath;

const STATES: [&str; 4] = ["new", "fast", "bypass", "old"];

/// The lines of these entries, while `control.rights` is this. `limit_of`: of a connection that is not answered for its user's sake
/// which user that is, and the rule; none: that is not known.
pub(crate) fn lines(
    views: &[ConnView],
    rights: u32,
    limit_of: impl Fn(&TcpPair) -> Option<String>,
) -> Vec<ConnLine> {
    let line = |view: &ConnView| {
        let (client, server) = addresses(&view.key);
        let slow = view.slow(rights);
        let limit = slow
            .filter(|slow| slow.why == SLOW_USER)
            .and_then(|_| limit_of(&TcpPair { client, server }));
        let detail = limit.map_or_else(String::new, |limit| format!(": {limit}"));
        ConnLine {
            client: client.to_string(),
            server: server.to_string(),
            state: (*STATES.get(usize::from(view.state)).unwrap_or(&"unknown")).to_owned(),
            flags: view.flags,
            in_delta: view.in_delta,
            out_delta: view.out_delta,
            requests: view.requests,
            replies: view.replies,
            reason: slow.map_or("", |slow| slow.name).to_owned(),
            why: slow.map_or_else(String::new, |slow| format!("{}{detail}", slow.text)),
        }
    };
    views.iter().map(line).collect()
}

/// The same when no daemon answers but programs are still at work: users have no names then.
///
/// # Errors
/// As [`status_without_daemon`](crate::status_without_daemon).
pub fn conns_without_daemon(run_dir: &RunDir) -> Result<Vec<ConnLine>> {
    let (_, datapath) = left_datapath(run_dir)?;
    Ok(lines(
        &datapath.conn_views(),
        datapath.control().rights(),
        |_| None,
    ))
}

#[cfg(test)]
mod tests {
    use erb_abi as abi;

    use super::*;

    #[test]
    fn a_line_says_why_its_connection_is_not_answered_and_of_a_user_which_and_the_rule() {
        let mut entry = abi::conn {
            state: abi::CONN_BYPASS as u8,
            ..abi::conn::default()
        };
        entry.key.client_addr[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        entry.h.slow = SLOW_USER as u8;
        let of = |entry: &abi::conn, limit: Option<&str>| {
            let limit = |pair: &TcpPair| {
                assert_eq!(pair.client.ip().to_string(), "10.0.0.2");
                limit.map(str::to_owned)
            };
            lines(&[ConnView::from(entry)], 1, limit).remove(0)
        };
        let line = of(&entry, Some("app (~app:*)"));
        assert_eq!((&line.state[..], &line.reason[..]), ("bypass", "user"));
        assert_eq!(line.why, "its user may not do everything: app (~app:*)");
        assert_eq!(of(&entry, None).why, "its user may not do everything");
        entry.h.slow = abi::CMD_MULTI as u8;
        assert_eq!(of(&entry, Some("app")).reason, "multi");
        entry.state = abi::CONN_FAST as u8;
        (entry.h.rights, entry.h.resp) = (1, 2);
        entry.flags = abi::CONN_F_EGRESS_SEEN as u8;
        let line = of(&entry, None);
        assert_eq!((&line.reason[..], &line.why[..]), ("", ""));
    }
}
