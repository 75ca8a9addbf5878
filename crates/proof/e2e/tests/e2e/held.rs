// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of which no reply comes: nothing stays closed for a client that does not read, and
//! status names who holds keys for long.

use std::time::Duration;

use erb_check::net::Conn;
use erb_check::resp;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{TestLab, wait};
use erb_e2e::status::brief;

const SCRIPT: &str = "return redis.call('SET', KEYS[1], ARGV[1])";
/// More than sockets hold.
const LARGE: usize = 20 << 20;

/// Whether ERB answered at least one of a few reads.
fn hits(lab: &TestLab, conn: &mut Conn) -> bool {
    let before = lab.counters();
    for _ in 0..5 {
        get(conn, "key");
    }
    lab.counters().since(&before, "FAST_GET") > 0
}

#[test]
fn what_runs_behind_a_reply_that_is_not_read_closes_nothing() {
    let lab = TestLab::boosted_with("unread", &["--direct"]);
    let (mut honest, mut silly, mut unseen) = (lab.client(), lab.client(), lab.unseen());
    expect(
        &mut unseen,
        &format!("SETRANGE large {} x", LARGE - 1),
        &format!(":{LARGE}\r\n"),
    );
    set(&mut honest, "key", "old");
    lab.heat(&mut honest, "key");
    call(&mut silly, "PING");
    for (round, half) in [&b""[..], b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n"]
        .iter()
        .enumerate()
    {
        let value = format!("new{round}");
        silly.send(&resp::command(&["GET", "large"])).expect("send");
        silly
            .send(&resp::command(&["EVAL", SCRIPT, "1", "key", &value]))
            .expect("send");
        silly.send(half).expect("send");
        wait(Duration::from_secs(5), || {
            let read = get(&mut honest, "key");
            if read.as_deref() == Some(value.as_str()) && hits(&lab, &mut honest) {
                return Ok(());
            }
            Err(format!("{read:?}; {}", brief(&lab.status())))
        });
        assert_eq!(get(&mut honest, "key").as_deref(), Some(value.as_str()));
    }
}

#[test]
fn status_names_who_holds_keys_for_long() {
    let lab = TestLab::boosted_with("held", &["--direct"]);
    let (mut honest, mut blocked, mut unseen) = (lab.client(), lab.client(), lab.unseen());
    set(&mut honest, "key", "old");
    lab.heat(&mut honest, "key");
    call(&mut blocked, "PING");
    assert_eq!(lab.status().held.total, 0);
    let script = resp::command(&["EVAL", SCRIPT, "1", "key", "new"]);
    blocked
        .send(&[resp::command(&["BLPOP", "list", "0"]), script].concat())
        .expect("send");
    let held = wait(Duration::from_secs(5), || {
        let held = lab.status().held;
        held.clients.first().cloned().ok_or(format!("{held:?}"))
    });
    let own = blocked.stream().local_addr().expect("an address");
    assert_eq!(held.client, own.to_string());
    assert!(held.all_keys && held.held_ms >= 1_000, "{held:?}");
    assert!(held.why.contains("blocked"), "{held:?}");
    let text = lab.erb(&["status"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("held         all keys since "), "{text}");
    assert!(!hits(&lab, &mut honest), "answered under a fence");
    call(&mut unseen, "RPUSH list x");
    wait(Duration::from_secs(5), || {
        let held = lab.status().held;
        let good = held.total == 0 && hits(&lab, &mut honest);
        good.then_some(()).ok_or(format!("{held:?}"))
    });
    assert_eq!(get(&mut honest, "key").as_deref(), Some("new"));
}
