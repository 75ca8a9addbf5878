// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection that reads and writes in turn stays fast.

use std::net::SocketAddr;

use erb_check::mixed::{self, MixedArgs};
use erb_e2e::calls::{get, set};
use erb_e2e::lab::{TestLab, arguments, scaled};
use erb_lab::End;
use erb_steady::too_slow;

/// Share of GETs that must be answered fast.
const FAST_SHARE: f64 = 0.95;
/// Keys that are read.
const KEYS: u64 = 50;

/// Segments that the server sent again to clients. Those of the feed, within the server, are left
/// out: Linux probes such a pair of small writes when its other end delays the ACK.
fn server_sent_again(lab: &TestLab) -> i64 {
    let address = lab.address().ip().to_string();
    let own = ["ss", "-tinH", "src", &address, "dst", &address];
    let feed: i64 = lab
        .exec(End::Server, &own)
        .split_whitespace()
        .filter_map(|word| {
            word.strip_prefix("retrans:")?
                .split_once('/')?
                .1
                .parse::<i64>()
                .ok()
        })
        .sum();
    lab.kernel_counter(End::Server, "Tcp", "RetransSegs") - feed
}

fn stays_fast(lab: &TestLab, target: SocketAddr, requests: u64, words: &str) {
    let words =
        format!("--target {target} --requests {requests} --keys {KEYS} --warm-up 3 {words}");
    let sent_again = server_sent_again(lab);
    let before = lab.counters();
    let report = lab.inside(End::Client, || {
        mixed::execute(&arguments::<MixedArgs>(&words)).expect("mixed")
    });
    let after = lab.assert_settled();
    assert!(report.passed, "{report:#?}");
    // Of the warm-up the first two reads of a key miss; the third may be fast and is not counted.
    let fast = after.since(&before, "FAST_GET").saturating_sub(KEYS);
    let share = fast as f64 / report.get.count as f64;
    if share < FAST_SHARE {
        too_slow(format_args!(
            "{share:.3} of the GETs were fast; {}",
            after.moved(&before)
        ));
    }
    // An end that gets no processor for long enough makes the other one send again.
    let replays = ["REPLAY_REQUEST", "REPLAY_ACK", "REPLAY_TIMEOUT"];
    let by_erb: u64 = replays.iter().map(|name| after.since(&before, name)).sum();
    let by_server = server_sent_again(lab) - sent_again;
    if by_erb != 0 || by_server != 0 || report.retransmissions != 0 {
        too_slow(format_args!(
            "segments were sent again, {by_erb} by ERB, {by_server} by the server: {} {report:?}",
            after.moved(&before)
        ));
    }
}

#[test]
fn gets_between_sets_are_answered_fast() {
    let lab = TestLab::boosted_alone("mixedset", &["--direct"]);
    stays_fast(&lab, lab.address(), scaled(20_000, 200_000), "");
}

#[test]
fn gets_between_incrs_are_answered_fast() {
    let lab = TestLab::boosted_alone("mixedincr", &["--direct"]);
    stays_fast(&lab, lab.address(), scaled(20_000, 200_000), "--incr");
}

#[test]
fn gets_between_sets_are_answered_fast_over_ipv6() {
    let lab = TestLab::boosted_alone("mixed6", &["--direct"]);
    stays_fast(&lab, lab.address6(), scaled(20_000, 200_000), "");
}

#[test]
fn gets_between_sets_are_answered_fast_at_a_distance() {
    let lab = TestLab::boosted_alone("mixedfar", &[]);
    lab.link("delay=200us");
    stays_fast(&lab, lab.address(), scaled(5_000, 50_000), "--incr");
}

#[test]
fn every_address_and_port_of_the_server_is_answered_from_the_same_truth() {
    let lab = TestLab::boosted_with("addresses", &["--direct", "--redis-port", "7001"]);
    let second: SocketAddr = ([10, 77, 0, 20], 7001).into();
    lab.exec(
        End::Server,
        &["ip", "addr", "add", "10.77.0.20/24", "dev", "s0"],
    );
    let mut conns: Vec<_> = [lab.address(), second, lab.address6()]
        .map(|to| lab.client_to(to))
        .into();
    for number in 0..60 {
        let value = number.to_string();
        set(&mut conns[number % 3], "hot", &value);
        for conn in &mut conns {
            assert_eq!(get(conn, "hot"), Some(value.clone()));
        }
    }
    for conn in &mut conns {
        lab.heat(conn, "hot");
    }
    lab.assert_settled();
}
