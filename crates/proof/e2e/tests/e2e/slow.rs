// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `erb status` says of single connections and commands: why a connection is not answered, which commands go to
//! Redis, and how much of Redis's time answers save.

use std::process::Output;

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_e2e::process::signal;
use erb_report::{CommandsReport, ConnLine};
use nix::sys::signal::Signal;

/// Commands of a round that is to show what one costs Redis.
const ROUND: usize = 2_000;

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What is said of this connection.
fn line(lab: &TestLab, conn: &Conn) -> Result<ConnLine, String> {
    let client = conn.stream().local_addr().expect("an address").to_string();
    let lines = lab.conns();
    let found = lines.iter().find(|line| line.client == client);
    let none = || format!("{client} is not among {lines:?}");
    found.cloned().ok_or_else(none)
}

/// Waits until it is not answered for this reason.
fn is_slow(lab: &TestLab, conn: &Conn, reason: &str) -> ConnLine {
    wait(STATE_WAIT, || {
        let line = line(lab, conn)?;
        match line.reason == reason {
            true => Ok(line),
            false => Err(format!("{reason:?} is wanted: {line:?}")),
        }
    })
}

#[test]
fn each_connection_says_why_it_is_not_answered_also_beside_a_dead_daemon() {
    let mut lab = TestLab::up("whyslow", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-whyslow");
    let mut older = lab.client();
    expect(&mut older, "PING", "+PONG\r\n");
    assert!(lab.boost(&["--dev", "s0"]).status.success());
    lab.wait_admitting();
    let mut admin = lab.client();
    let few = "ACL SETUSER app on >secret ~app:* allchannels +@all";
    expect(&mut admin, few, "+OK\r\n");
    set(&mut admin, "app:k", "v");
    let [mut multi, mut subscriber, mut app] = [lab.client(), lab.client(), lab.client()];
    expect(&mut multi, "PING", "+PONG\r\n");
    expect(&mut multi, "MULTI", "+OK\r\n");
    call(&mut subscriber, "SUBSCRIBE c");
    expect(&mut app, "AUTH app secret", "+OK\r\n");
    expect(&mut older, "PING", "+PONG\r\n");
    is_slow(&lab, &multi, "multi");
    is_slow(&lab, &subscriber, "subscribed");
    is_slow(&lab, &older, "trial");
    is_slow(&lab, &admin, "");
    let why = "its user may not do everything: app (~app:*)";
    assert_eq!(is_slow(&lab, &app, "user").why, why);
    let before = lab.counters();
    for _ in 0..3 {
        assert_eq!(get(&mut app, "app:k").as_deref(), Some("v"));
    }
    assert_eq!(lab.counters().since(&before, "REFUSE_USER"), 3);
    let shown = text(&lab.erb(&["status", "--conns"]));
    assert!(shown.contains("\n4 of 5 are not answered\n"), "{shown}");
    let summed = format!("1  user          {why}\n");
    assert!(shown.contains(&summed), "{shown}");

    signal(lab.daemon_pid(), Signal::SIGKILL);
    wait(STATE_WAIT, || match lab.status().daemon.as_str() {
        "dead" => Ok(()),
        other => Err(format!("the daemon is {other}")),
    });
    for (conn, reason) in [(&multi, "multi"), (&app, "user"), (&older, "trial")] {
        assert_eq!(line(&lab, conn).expect("a line").reason, reason);
    }
    let shown = text(&lab.erb(&["status", "--conns"]));
    assert!(shown.contains("1  multi "), "{shown}");
    let shown = text(&lab.erb(&["status", "--commands"]));
    assert!(shown.contains("no daemon has told"), "{shown}");
    expect(&mut multi, "EXEC", "*0\r\n");
}

fn commands(lab: &TestLab) -> CommandsReport {
    let shown = text(&lab.erb(&["status", "--commands", "--json"]));
    serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}"))
}

/// Waits until these are all that Redis executed for others than the daemon, but for GETs.
fn executed(lab: &TestLab, wanted: &[(&str, u64)]) -> CommandsReport {
    wait(STATE_WAIT, || {
        let found = commands(lab);
        let rows = found.rows.iter();
        let rows = rows.map(|row| (row.command.as_str(), row.to_redis.unwrap_or(0)));
        let others = |(name, count): &(&str, u64)| *count > 0 && *name != "get";
        let rows: Vec<(&str, u64)> = rows.filter(others).collect();
        match rows == wanted && found.since_s.is_some() {
            true => Ok(found),
            false => Err(format!("{rows:?} went up, and not {wanted:?}")),
        }
    })
}

fn answered(found: &CommandsReport, command: &str) -> u64 {
    let mut rows = found.rows.iter();
    let row = rows.find(|row| row.command == command);
    row.map_or(0, |row| row.answered)
}

#[test]
fn commands_are_counted_by_name_without_the_daemons_own_and_over_a_reset() {
    let lab = TestLab::boosted_with("bynames", &["--direct"]);
    let mut conn = lab.client();
    executed(&lab, &[]);
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    for number in 1..20 {
        expect(&mut conn, &format!("SET k{number} v"), "+OK\r\n");
        expect(&mut conn, "EVAL return{} 0", "*0\r\n");
    }
    expect(&mut conn, "PUBSUB NUMPAT", ":0\r\n");
    let before = lab.counters();
    lab.assert_fast(&mut conn, "hot", "behind the writes");
    assert!(lab.counters().since(&before, "FAST_GET") > 0);
    executed(&lab, &[("set", 20), ("pubsub", 1), ("eval", 19)]);
    // All since the boost, as the daemon has counted since then.
    wait(STATE_WAIT, || {
        let (told, counted) = (answered(&commands(&lab), "get"), lab.counters());
        match told == counted.get("FAST_GET") {
            true => Ok(()),
            false => Err(format!("{told} GETs are told: {}", counted.text("FAST"))),
        }
    });
    // What Redis forgets, the daemon does not.
    expect(&mut conn, "CONFIG RESETSTAT", "+OK\r\n");
    expect(&mut conn, "SET k1 w", "+OK\r\n");
    let wanted = [("set", 21), ("pubsub", 1), ("eval", 19), ("config", 1)];
    executed(&lab, &wanted);
    let shown = text(&lab.erb(&["status", "--commands"]));
    let evals = shown.lines().find(|line| line.starts_with("EVAL "));
    let evals: Vec<&str> = evals.unwrap_or_default().split_whitespace().collect();
    assert_eq!(evals, ["EVAL", "0", "0.0", "%", "19"], "{shown}");
    lab.assert_settled();
}

#[test]
fn answers_save_time_of_redis_once_it_was_seen_at_work_and_never_less_than_before() {
    let lab = TestLab::boosted_with("timesaved", &["--direct"]);
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    let mut before = 0;
    let found = wait(STATE_WAIT, || {
        for _ in 0..ROUND {
            set(&mut conn, "cold", "v");
        }
        for _ in 0..ROUND {
            get(&mut conn, "hot");
        }
        let found = commands(&lab);
        assert!(found.cpu_saved_ms >= before, "{found:?}");
        before = found.cpu_saved_ms;
        match found.cpu_saved_ms > 10 {
            true => Ok(found),
            false => Err(format!("little is saved: {found:?}")),
        }
    });
    // No command costs Redis a millisecond besides what it runs for.
    let overhead_ns = found.overhead_ns.expect("known");
    assert!((1..1_000_000).contains(&overhead_ns), "{found:?}");
    let most_ns = answered(&found, "get") * (overhead_ns.max(100_000) + 1_000_000);
    assert!(found.cpu_saved_ms * 1_000_000 <= most_ns, "{found:?}");
    let top = lab.erb(&["top", "--batch", "--count", "1", "--every", "250ms"]);
    let shown = text(&top);
    assert!(shown.contains("Redis saved  "), "{shown}");
    assert!(shown.contains("(an estimate)"), "{shown}");
    lab.assert_settled();
}
