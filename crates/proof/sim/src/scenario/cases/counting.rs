// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests and replies are counted; who never comes back (T-11, T-22, T-23).

use erb_abi as abi;

use crate::client::session::Stage;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

pub(crate) fn idle_timer_of_redis() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"CONFIG", b"SET", b"timeout", b"3"]);
    s.run(3 * SECOND);
    s.cached(b"k", b"v");
    let client = s.fast();
    let began = s.now();
    let fast = s.stat(abi::STAT_FAST_GET);
    while s.now() - began < 12 * SECOND {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(100 * MS);
        assert_eq!(s.stage(client), Some(Stage::Open), "Redis closed it");
    }
    assert!(s.stat(abi::STAT_FAST_GET) - fast > 60, "not fast");
    let up = s.stat(abi::STAT_REFUSE_HEARTBEAT);
    assert!((10..40).contains(&up), "{up} went up for it");
    s.finish();
}

pub(crate) fn requests_without_reply() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    for empty in [b"\r\n".as_slice(), b"*0\r\n", b"*-1\r\n", b"\r\n\r\n*0\r\n"] {
        s.write(client, empty, 0);
        s.settle();
        let entry = s.entry(client).expect("an entry");
        assert_eq!(entry.requests, entry.replies, "{empty:?} was counted");
        let fast = s.fast_packets();
        assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
        assert_eq!(s.fast_packets(), fast + 1, "never fast after {empty:?}");
    }
    s.finish();
}

pub(crate) fn replies_without_request() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
    assert!(!s.call(client, &[b"SUBSCRIBE", b"c"]).is_empty());
    s.unseen(&[b"PUBLISH", b"c", b"one"]);
    s.settle();
    let fast = s.fast_packets();
    let entry = s.entry(client).expect("an entry");
    assert_eq!(u32::from(entry.state), abi::CONN_BYPASS);
    s.unseen(&[b"PUBLISH", b"c", b"two"]);
    s.settle();
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_INVARIANT), 0);
    s.finish();
}

pub(crate) fn refused_by_redis() {
    let mut s = Scenario::new(Setup::default());
    let first = s.fast();
    s.unseen(&[b"CONFIG", b"SET", b"maxclients", b"1"]);
    s.run(200 * MS);
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    let fast = s.fast_packets();
    let heard = talk.ask(&mut s, &[b"PING"]);
    s.settle();
    assert!(!heard.starts_with(b"+PONG"), "answered without Redis");
    assert_eq!(s.fast_packets(), fast);
    s.unseen(&[b"CONFIG", b"SET", b"maxclients", b"100"]);
    s.run(200 * MS);
    assert_eq!(s.call(first, &[b"PING"]), b"+PONG\r\n");
}

pub(crate) fn gap_at_egress() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'y'; 9000]]);
    let client = s.fast();
    s.call(client, &[b"PING"]);
    s.stop_egress(true);
    s.ask(client, &[b"GET", b"big"]);
    s.run(5 * MS);
    assert!(s.world.server.lose_at_egress(1) > 3, "not in segments");
    let lost = s.stat(abi::STAT_SCAN_REPLY_LOST);
    s.stop_egress(false);
    assert_eq!(s.answers(client).len(), 9009);
    assert_eq!(s.stat(abi::STAT_SCAN_REPLY_LOST), lost + 1);
    let entry = s.entry(client).expect("an entry");
    assert_eq!(u32::from(entry.state), abi::CONN_BYPASS);
    let fast = s.fast_packets();
    assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast);
    s.finish();
}
