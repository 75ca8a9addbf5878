// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients on the server's own machine, and the daemon's own connection among them.

use erb_abi as abi;

use crate::profile::Tier;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup};

fn on_loopback() -> Scenario {
    Scenario::new(Setup {
        tier: Tier::Loopback,
        ..Setup::default()
    })
}

pub(crate) fn answers_and_marks() {
    let mut s = on_loopback();
    s.cached(b"k", b"old");
    let (writer, reader) = (s.fast(), s.fast());
    s.call(reader, &[b"PING"]);
    let fast = s.stat(abi::STAT_FAST_GET);
    assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nold\r\n");
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast + 1, "{}", s.counters());
    let taken = s.stat(abi::STAT_MARK_TAKEN);
    s.call(writer, &[b"SET", b"k", b"new"]);
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), taken + 1, "a write not seen");
    assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    s.finish();
}

pub(crate) fn the_feed_is_left_alone() {
    let mut s = on_loopback();
    s.cached(b"k", b"v");
    let mut raw = s.raw();
    raw.mark = abi::SKB_MARK_FEED;
    let mut feed = Talk::connected(&mut s, raw);
    let fast = s.fast_packets();
    for _ in 0..3 {
        assert_eq!(feed.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        feed.ack(&mut s);
        assert_eq!(feed.ask(&mut s, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        feed.ack(&mut s);
    }
    assert_eq!(s.fast_packets(), fast, "the feed was answered");
    assert!(s.entry_of(feed.raw.pair()).is_none(), "the feed is tracked");
    assert!(s.stat(abi::STAT_UP_FEED) > 0);
    s.finish();
}

pub(crate) fn packets_longer_than_64_kb() {
    for ipv6 in [false, true] {
        let mut s = Scenario::new(Setup {
            tier: Tier::Loopback,
            offload: true,
            ipv6,
            ..Setup::default()
        });
        s.unseen(&[b"SET", b"big", &[b'y'; 40_000]]);
        let client = s.fast();
        for _ in 0..3 {
            let fast = s.stat(abi::STAT_FAST_PING);
            s.call(client, &[b"PING"]);
            assert_eq!(s.stat(abi::STAT_FAST_PING), fast + 1, "{}", s.counters());
            assert_eq!(s.call(client, &[b"GET", b"big"]).len(), 40_010);
        }
        assert_eq!(
            s.stat(abi::STAT_SCAN_REPLY_LOST),
            0,
            "a reply passed unseen"
        );
        s.finish();
    }
}
