// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What scenarios are made of: real clients, raw ones, several CPUs, the TC tier alone.

use erb_abi as abi;

use erb_sim::client::resp::request;
use erb_sim::profile::Tier;
use erb_sim::scenario::{Scenario, Setup, over_seeds};

#[test]
fn a_cached_key_is_answered_fast_and_a_lost_answer_is_repeated() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.settle();
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
    let before = s.stat(abi::STAT_FAST_GET);
    assert!(before >= 1, "nothing was answered fast");
    s.lose_down(1);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
    assert_eq!(s.stat(abi::STAT_FAST_GET), before + 1);
    let again = s.stat(abi::STAT_REPLAY_REQUEST) + s.stat(abi::STAT_REPLAY_TIMEOUT);
    assert!(again > 0, "who repeated it?");
    s.finish();
}

#[test]
fn a_raw_client_is_answered_by_hand_written_segments() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.connect(&mut s);
    let ping = request(&[b"PING"]);
    let answers = raw.data(&mut s, 1, 1, &ping);
    assert!(
        answers
            .iter()
            .any(|segment| segment.payload == b"+PONG\r\n")
    );
    let next = 1 + u32::try_from(ping.len()).expect("short");
    let fast = raw.data(&mut s, next, 8, &ping);
    let fast = fast
        .iter()
        .find(|segment| !segment.payload.is_empty())
        .expect("an answer");
    assert_eq!(
        raw.relative(fast),
        (8, next + u32::try_from(ping.len()).expect("short"))
    );
    assert_eq!(s.stat(abi::STAT_FAST_PING), 1);
}

#[test]
fn two_writers_and_a_reader_race_on_four_cpus() {
    let setup = Setup {
        cpus: 4,
        switch: 400_000,
        ..Setup::default()
    };
    over_seeds(1..8, &setup, |mut s| {
        s.cached(b"k", b"v");
        let (one, two) = (s.fast(), s.fast());
        s.ask(one, &[b"SET", b"k", b"w"]);
        s.ask(two, &[b"GET", b"k"]);
        s.answers(one);
        s.answers(two);
        s.finish();
    });
}

#[test]
fn the_tc_tier_alone_answers_too() {
    let mut s = Scenario::new(Setup {
        tier: Tier::Tc,
        ..Setup::default()
    });
    let client = s.fast();
    s.call(client, &[b"PING"]);
    assert_eq!(s.stat(abi::STAT_FAST_PACKET_TC), 1);
    s.finish();
}
