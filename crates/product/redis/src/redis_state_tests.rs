// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of Redis's state speaks against answers, and what is said of it.

use super::*;

fn blob(text: &str) -> Frame {
    Frame::BlobString {
        data: text.to_owned().into(),
        attributes: None,
    }
}

fn array(lines: &[&str]) -> Frame {
    Frame::Array {
        data: lines.iter().map(|line| blob(line)).collect(),
        attributes: None,
    }
}

fn open_state() -> RedisState {
    let mut state = RedisState::default();
    state.take_info(&blob(
        "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nloading:0\r\nasync_loading:0\r\n\
         cmdstat_swapdb:calls=3,usec=9,usec_per_call=3.00\r\n",
    ));
    let config = [
        "maxmemory",
        "0",
        "maxmemory-policy",
        "noeviction",
        "requirepass",
        "",
        "timeout",
        "30",
    ];
    state.take_config(&array(&config));
    state.take_acl(&array(&["user default on nopass ~* &* +@all"]));
    state
}

#[test]
fn open_redis_is_served() {
    let state = open_state();
    assert_eq!(state.reasons_against_serving(), Vec::<String>::new());
    assert_eq!(
        (
            state.calls.unreported,
            state.calls.resetstat,
            state.timeout_s
        ),
        (3, 0, 30)
    );
}

#[test]
fn every_restriction_stops_serving() {
    type Change = fn(&mut RedisState);
    let changes: [(&str, Change); 8] = [
        ("no ~*", |state| {
            let line = "user default on nopass resetchannels ~app:* +@all";
            state.take_acl(&array(&[line]));
        }),
        ("user \"gone\"", |state| {
            state.user = Some("gone".to_owned())
        }),
        ("cluster", |state| "cluster".clone_into(&mut state.mode)),
        ("role", |state| "sentinel".clone_into(&mut state.role)),
        ("loading", |state| state.loading = true),
        ("older than 7.0", |state| {
            "6.2.7".clone_into(&mut state.version)
        }),
        ("MONITOR", |state| state.monitors = 1),
        ("could not be read", |state| {
            state.errors.push("INFO: -NOPERM".to_owned())
        }),
    ];
    for (word, change) in changes {
        let mut state = open_state();
        change(&mut state);
        let reasons = state.reasons_against_serving();
        assert_eq!(reasons.len(), 1, "{word}: {reasons:?}");
        assert!(reasons[0].contains(word), "{word}: {reasons:?}");
    }
}

#[test]
fn what_no_waiting_cures_is_told_from_what_passes() {
    let mut state = open_state();
    state.loading = true;
    assert_eq!(state.is_never_served(), None);
    for (mode, word) in [("cluster", "slots"), ("sentinel", "no keys")] {
        mode.clone_into(&mut state.mode);
        let why = state.is_never_served().expect("a reason");
        assert!(why.contains(word), "{why}");
        assert!(state.reasons_against_serving().contains(&why));
    }
}

#[test]
fn monitors_are_looked_for_after_monitor_and_after_resetstat() {
    let mut state = open_state();
    assert!(!state.may_be_monitored());
    state.take_info(&blob(
        "cmdstat_monitor:calls=1,usec=2,usec_per_call=2.00\r\n",
    ));
    assert!(state.may_be_monitored());
    let mut state = open_state();
    state.take_info(&blob("cmdstat_config|resetstat:calls=1,usec=9\r\n"));
    assert!(state.may_be_monitored());
}

#[test]
fn only_a_monitor_among_the_clients_stops_serving() {
    let mut state = open_state();
    let others = "id=3 name=O flags=N qbuf=0\nid=4 flags=S qbuf=0\nid=5 flags=tUx qbuf=0\n";
    state.take_clients(&blob(others));
    assert_eq!(state.reasons_against_serving(), Vec::<String>::new());
    state.take_clients(&blob(&format!("{others}id=6 flags=O qbuf=0\n")));
    let reasons = state.reasons_against_serving();
    assert_eq!(
        reasons,
        ["a MONITOR client is attached and must see every command; end it, or wait"]
    );
    state.take_clients(&blob(others));
    assert!(state.reasons_against_serving().is_empty());
    state.take_clients(&Frame::SimpleError {
        data: "NOPERM".into(),
        attributes: None,
    });
    assert!(state.reasons_against_serving()[0].contains("CLIENT LIST: NOPERM"));
}

#[test]
fn who_parses_ahead_is_known_by_the_version() {
    for (info, ahead) in [
        ("redis_version:7.0.15\r\n", false),
        ("redis_version:8.2.1\r\n", false),
        ("redis_version:8.4.0\r\n", true),
        ("redis_version:9.0.0\r\n", true),
        ("redis_version:7.2.4\r\nvalkey_version:8.1.1\r\n", false),
        ("redis_version:7.2.4\r\nvalkey_version:9.0.0\r\n", true),
    ] {
        let mut state = open_state();
        state.take_info(&blob(info));
        assert_eq!(state.parses_ahead(), ahead, "{info}");
    }
}

#[test]
fn eviction_by_use_only_with_maxmemory() {
    let mut state = open_state();
    "allkeys-lru".clone_into(&mut state.maxmemory_policy);
    assert!(!state.evicts_by_use());
    state.maxmemory = 1 << 20;
    for policy in ["allkeys-lru", "volatile-lru", "allkeys-lfu", "volatile-lfu"] {
        policy.clone_into(&mut state.maxmemory_policy);
        assert!(state.evicts_by_use(), "{policy}");
    }
    for policy in [
        "noeviction",
        "allkeys-random",
        "volatile-ttl",
        "allkeys-lrm",
        "volatile-lrm",
    ] {
        policy.clone_into(&mut state.maxmemory_policy);
        assert!(!state.evicts_by_use(), "{policy}");
    }
    assert!(state.reasons_against_serving().is_empty());
}

#[test]
fn a_policy_for_which_reads_do_not_count_is_recommended_where_there_is_one() {
    let mut state = open_state();
    state.maxmemory = 1 << 20;
    for (info, policy, better) in [
        (
            "redis_version:8.6.0\r\n",
            "allkeys-lru",
            Some("allkeys-lrm"),
        ),
        (
            "redis_version:8.10.1\r\n",
            "volatile-lfu",
            Some("volatile-lrm"),
        ),
        ("redis_version:8.6.0\r\n", "allkeys-lrm", None),
        ("redis_version:8.6.0\r\n", "noeviction", None),
        ("redis_version:8.4.2\r\n", "allkeys-lru", None),
        (
            "redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n",
            "allkeys-lru",
            None,
        ),
    ] {
        state.take_info(&blob(info));
        policy.clone_into(&mut state.maxmemory_policy);
        let said = state.better_policy();
        assert_eq!(
            said.is_some(),
            better.is_some(),
            "{info}, {policy}: {said:?}"
        );
        let named = better.is_none_or(|better| said.is_some_and(|text| text.contains(better)));
        assert!(named, "{info}, {policy}");
    }
}

#[test]
fn misses_are_hidden_only_where_neither_subscribers_nor_modules_hear_of_them() {
    let mut state = open_state();
    assert!(!state.hides_misses(), "not known");
    for (events, hidden) in [("", true), ("AKE", true), ("Km", false), ("K", true)] {
        state.take_config(&array(&["notify-keyspace-events", events]));
        assert_eq!(state.hides_misses(), hidden, "{events}");
    }
    let of = |name| format!("module:name={name},ver=1,api=1,filters=0,usedby=[]\r\n");
    state.take_info(&blob(&of("search")));
    assert!(state.hides_misses());
    state.take_info(&blob(&of("rg")));
    assert!(!state.hides_misses(), "{:?}", state.modules);
}

#[test]
fn clients_of_other_ports_are_said_to_be_unseen() {
    let mut state = open_state();
    state.take_config(&array(&["port", "6379", "tls-port", "0"]));
    assert_eq!(state.unseen_ports(6379), Vec::<String>::new());
    let told = state.unseen_ports(6380);
    assert!(told[0].contains("port 6379, not on 6380"), "{told:?}");
    state.take_config(&array(&["tls-port", "6390"]));
    let told = state.unseen_ports(6379);
    assert!(
        told.len() == 1 && told[0].contains("port 6390 too"),
        "{told:?}"
    );
}

#[test]
fn error_replies_are_reasons() {
    let mut state = open_state();
    state.take_info(&Frame::SimpleError {
        data: "NOAUTH needed".into(),
        attributes: None,
    });
    assert!(state.reasons_against_serving()[0].contains("INFO: NOAUTH needed"));
    let busy = Frame::SimpleError {
        data: "BUSY Redis is busy running a script".into(),
        attributes: None,
    };
    let reasons = RedisState::of(&[busy.clone(), busy.clone(), busy]).reasons_against_serving();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons.iter().all(|reason| reason.contains("BUSY")),
        "what INFO did not say is none: {reasons:?}"
    );
}
