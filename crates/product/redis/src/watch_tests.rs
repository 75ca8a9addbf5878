// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon reads of Redis besides values, and what it makes of it; absent keys.

use erb_abi::ControlBlock as _;

use super::{Bench, PONG, state_reply, state_reply_of, wanted};
use crate::clock::MS;

#[test]
fn the_calls_of_a_state_that_is_late_are_older_than_those_of_pings() {
    let mut bench = Bench::serving();
    bench.core.path.set(|control| control.gate_seen = 1);
    bench.pass(60, false);
    let info = |processed: u32| {
        let calls = format!("total_commands_processed:{processed}\r\n");
        calls + "cmdstat_monitor:calls=1,usec=1\r\n"
    };
    let ping = |bench: &mut Bench, processed| {
        let info = info(processed);
        bench.say(&format!("${}\r\n{info}\r\n+PONG\r\n", info.len()));
    };
    ping(&mut bench, 100);
    bench.core.path.take_log();
    // A PING is written before the answer that makes the feed ask for CLIENT LIST: MONITOR was
    // called once.
    bench.pass(50, false);
    bench.say(&state_reply(&info(101)));
    ping(&mut bench, 110);
    assert_eq!(bench.core.path.gate_ack(), 0, "the state is not whole");
    bench.say("$0\r\n\r\n");
    assert_eq!(bench.core.path.gate_ack(), 1, "the state is whole");
    bench.pass(60, false);
    ping(&mut bench, 120);
    let cleared = |bench: &Bench| bench.core.path.take_log().contains(&"clear".to_owned());
    assert!(!cleared(&bench), "nothing was swapped");
    bench.pass(60, false);
    ping(&mut bench, 90);
    assert!(cleared(&bench), "RESETSTAT came in between");
}

#[test]
fn after_a_dear_acl_list_redis_rests_ten_times_as_long() {
    let mut bench = Bench::serving();
    let info = |us: u32| format!("cmdstat_acl|list:calls=1,usec={us},usec_per_call=1.00\r\n");
    let acknowledged = |bench: &mut Bench, ms: u64| {
        bench.pass(ms, true);
        bench.core.path.gate_ack()
    };
    bench.core.path.set(|control| control.gate_seen = 1);
    bench.pass(60, false);
    bench.say(&format!("{PONG}{}", state_reply(&info(30_000))));
    bench.redis.heard();
    bench.core.path.set(|control| control.gate_seen = 2);
    assert_eq!(acknowledged(&mut bench, 270), 1, "it has not rested");
    assert_eq!(acknowledged(&mut bench, 100), 2, "300 ms");
    bench.core.path.set(|control| control.gate_seen = 3);
    assert_eq!(acknowledged(&mut bench, 60), 3, "that cost nothing");
}

#[test]
fn a_long_answer_is_no_silence() {
    let mut bench = Bench::serving();
    bench.pass(60, false);
    bench.say("$100000\r\n");
    for _ in 0..8 {
        bench.pass(1_000, false);
        bench.say(&"x".repeat(1_000));
    }
    assert!(bench.core.is_feed_up() && !bench.has_lease());
    bench.core.machine.redis.replace(None);
    bench.pass(5_100, false);
    assert!(!bench.core.is_feed_up(), "it came to a halt");
}

#[test]
fn a_heartbeat_goes_up_each_minute_or_thrice_in_the_idle_limit() {
    let mut bench = Bench::serving();
    for (timeout_s, seconds) in [("0", 60), ("9", 3), ("180", 60), ("100000", 60)] {
        bench.core.path.set(|control| control.gate_seen += 1);
        bench.pass(60, false);
        let config = format!("timeout\r\n${}\r\n{timeout_s}\r\n", timeout_s.len());
        let state = state_reply("").replace("timeout\r\n$1\r\n0\r\n", &config);
        bench.say(&format!("{PONG}{state}"));
        let found = bench.core.path.control().heartbeat_up_ns();
        assert_eq!(found, seconds * 1_000 * MS, "timeout {timeout_s}");
    }
}

/// The gate was shut, and Redis says this of its events behind it.
fn tell_events(bench: &mut Bench, events: &str) {
    let name = "notify-keyspace-events";
    let config = format!("%1\r\n$22\r\n{name}\r\n${}\r\n{events}", events.len());
    let state = state_reply("").replacen("%2\r\n$9\r\nmaxmemory\r\n$1\r\n0", &config, 1);
    bench.state = state.replacen("$7\r\ntimeout\r\n$1\r\n0\r\n", "", 1);
    bench.core.path.set(|control| control.gate_seen += 1);
    bench.pass(120, true);
    assert_eq!(
        bench.core.path.gate_ack(),
        bench.core.path.control().gate_seen()
    );
}

/// A miss of the key; whether Redis is asked about it by this command, and answers so.
fn misses(bench: &mut Bench, key: &str, command: &str, answer: &str) -> bool {
    bench.pass(60, true);
    bench.core.path.misses.replace(vec![wanted(key)]);
    bench.pass(60, false);
    let heard = bench.redis.heard();
    bench.say(PONG);
    if heard.contains(command) {
        bench.say(answer);
    }
    heard.contains(command)
}

#[test]
fn absent_keys_are_cached_only_where_nobody_hears_of_misses() {
    let mut bench = Bench::serving();
    assert_eq!(bench.core.path.absent(), 0, "it is not known");
    tell_events(&mut bench, "AKE");
    assert_eq!(bench.core.path.absent(), 1);
    let size = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n";
    assert!(misses(&mut bench, "a", "STRLEN", size));
    bench.core.path.take_log();
    bench.say("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n$0\r\n\r\n:-2\r\n");
    assert_eq!(bench.core.path.take_log(), ["insert a as absent"]);
    assert_eq!(bench.core.fill_counts(), (1, 0));
    tell_events(&mut bench, "Em");
    assert_eq!(bench.core.path.absent(), 0);
    let size = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n_\r\n_\r\n";
    assert!(misses(&mut bench, "b", "ENCODING", size));
    let heard = bench.redis.heard();
    assert!(!heard.contains("GETRANGE"), "that would tell: {heard}");
    assert!(!misses(&mut bench, "b", "ENCODING", ""), "it is known");
    tell_events(&mut bench, "");
    assert!(misses(&mut bench, "b", "STRLEN", ""), "it may be now");
}

#[test]
fn behind_a_module_that_no_packet_shows_no_set_is_believed_until_the_state_is_read() {
    let mut bench = Bench::serving();
    bench.pass(60, false);
    let ping = |bench: &mut Bench, loads: u32| {
        let info = format!("cmdstat_module|load:calls={loads},usec=1\r\n");
        bench.say(&format!("${}\r\n{info}\r\n+PONG\r\n", info.len()));
        bench.pass(60, false);
    };
    bench.core.path.set(|control| control.write_through = 1);
    ping(&mut bench, 0);
    let before = bench.core.path.control().write_through();
    ping(&mut bench, 1);
    let behind = bench.core.path.control().write_through();
    assert_eq!((before, behind), (1, 0));
}

#[test]
fn while_its_user_may_not_read_all_keys_nothing_is_answered_and_then_the_cache_is_emptied() {
    let mut bench = Bench::serving();
    let read = |bench: &mut Bench, gate, rules: &str| {
        bench.core.path.set(|control| control.gate_seen = gate);
        bench.pass(60, false);
        let acl = format!("user default on nopass {rules}");
        bench.say(&format!("{PONG}{}", state_reply_of(&acl, "")));
        bench.redis.heard();
        assert_eq!(bench.core.path.gate_ack(), gate);
        bench.core.path.serving()
    };
    let cleared = |bench: &Bench| bench.core.path.take_log().contains(&"clear".to_owned());
    assert_eq!(read(&mut bench, 1, "~* &* +@all"), 1);
    assert_eq!(read(&mut bench, 2, "resetchannels ~app:* +@all"), 0);
    let reasons = bench.core.reasons_against_serving();
    assert!(reasons[0].contains("no ~*"), "{reasons:?}");
    assert!(!cleared(&bench), "nothing is answered from it");
    assert_eq!(read(&mut bench, 3, "~* &* +@all"), 1);
    assert!(cleared(&bench), "it was not told of every change");
    assert_eq!(read(&mut bench, 4, "~* &* +@all"), 1);
    assert!(!cleared(&bench));
}

#[test]
fn where_pushes_follow_rights_a_change_of_them_empties_the_cache() {
    for (version, is_emptied) in [("8.8.0", false), ("8.10.0", true)] {
        let mut bench = Bench::serving();
        bench.core.path.set(|control| control.gate_seen = 1);
        bench.pass(60, false);
        let state = state_reply(&format!("redis_version:{version}\r\n"));
        bench.say(&format!("{PONG}{state}"));
        bench.core.path.take_log();
        for (calls, cleared) in [(1, is_emptied), (1, false), (2, is_emptied)] {
            bench.pass(60, false);
            let info = format!("cmdstat_acl|setuser:calls={calls},usec=1\r\n");
            bench.say(&format!("${}\r\n{info}\r\n+PONG\r\n", info.len()));
            let log = bench.core.path.take_log();
            assert_eq!(
                log.contains(&"clear".to_owned()),
                cleared,
                "{version}: {log:?}"
            );
        }
    }
}
