// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that come or leave by another device than before: both boosted, one not, one without a link
//! layer, one above another.

use erb_abi as abi;

use crate::ConnId;
use crate::client::resp::request;
use crate::profile::Tier;
use crate::scenario::{Scenario, Setup};
use crate::server::devices::{BARE, ELSEWHERE, IFINDEX, SECOND, UPPER};

/// A reply in which a wrong byte shows wherever it begins.
const LONG: &[u8; 120] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV";

/// A connection on which three requests were answered: its two streams are apart.
fn spliced(s: &mut Scenario) -> ConnId {
    let client = s.fast();
    let fast = s.fast_packets();
    for _ in 0..3 {
        s.call(client, &[b"PING"]);
    }
    assert_eq!(s.fast_packets(), fast + 3);
    client
}

fn echo(s: &mut Scenario, client: ConnId) {
    let answer = [b"$120\r\n", &LONG[..], b"\r\n"].concat();
    assert_eq!(s.call(client, &[b"ECHO", LONG]), answer);
}

/// How many of ten PINGs are answered.
fn answered(s: &mut Scenario, client: ConnId) -> u64 {
    let fast = s.fast_packets();
    for _ in 0..10 {
        s.call(client, &[b"PING"]);
    }
    s.fast_packets() - fast
}

pub(crate) fn replies_move() {
    for tier in [Tier::Native, Tier::Tc] {
        for ipv6 in [false, true] {
            for way in [SECOND, ELSEWHERE, BARE] {
                let mut s = Scenario::new(Setup {
                    tier,
                    ipv6,
                    ..Setup::default()
                });
                let client = spliced(&mut s);
                s.world.server.route_by(way);
                echo(&mut s, client);
                assert!(s.stat(abi::STAT_EGRESS_OTHER_DEVICE) > 0);
                assert_eq!(answered(&mut s, client), 0, "by {way} replies leave");
                s.world.server.route_by(IFINDEX);
                echo(&mut s, client);
                assert_eq!(answered(&mut s, client), 10, "never again");
                s.finish();
            }
        }
    }
}

pub(crate) fn requests_move() {
    for tier in [Tier::Native, Tier::Tc] {
        for way in [SECOND, ELSEWHERE, BARE] {
            let mut s = Scenario::new(Setup {
                tier,
                ..Setup::default()
            });
            s.cached(b"k", b"old");
            let (client, other) = (spliced(&mut s), spliced(&mut s));
            s.world.server.arrive_by(way);
            echo(&mut s, client);
            assert_eq!(answered(&mut s, client), 0, "by {way} requests come");
            let taken = s.stat(abi::STAT_MARK_TAKEN);
            s.call(client, &[b"SET", b"k", b"new"]);
            assert_eq!(s.stat(abi::STAT_MARK_TAKEN), taken + 1, "a write not seen");
            assert_eq!(s.call(other, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
            s.world.server.arrive_by(IFINDEX);
            echo(&mut s, client);
            assert_eq!(answered(&mut s, client), 10, "never again");
            s.finish();
        }
    }
}

/// Both ways move to the same device: where that is boosted, answers go on.
pub(crate) fn all_moves() {
    for (way, goes_on) in [(SECOND, true), (ELSEWHERE, false), (BARE, false)] {
        let mut s = Scenario::new(Setup::default());
        let client = spliced(&mut s);
        s.lose_down(1); // the last answer: it is repeated where the client is now
        s.write(client, &request(&[b"PING"]), 1);
        s.world.server.arrive_by(way);
        s.world.server.route_by(way);
        assert_eq!(s.answers(client), b"+PONG\r\n");
        echo(&mut s, client);
        echo(&mut s, client);
        let expected = if goes_on { 10 } else { 0 };
        assert_eq!(answered(&mut s, client), expected, "by {way}");
        echo(&mut s, client);
        s.finish();
    }
}

/// A VLAN or a bridge above the boosted device: replies pass both.
pub(crate) fn one_above_another() {
    let mut s = Scenario::new(Setup::default());
    s.world.server.route_by(UPPER);
    let client = spliced(&mut s);
    for _ in 0..5 {
        echo(&mut s, client);
        assert_eq!(answered(&mut s, client), 10);
    }
    assert!(s.stat(abi::STAT_EGRESS_BELOW) > 0);
    s.finish();
}

/// A connection that begins on a device that is not boosted is Redis's, and does no harm.
pub(crate) fn begins_elsewhere() {
    for way in [ELSEWHERE, BARE] {
        let mut s = Scenario::new(Setup::default());
        s.world.server.arrive_by(way);
        s.world.server.route_by(way);
        let client = s.open();
        for _ in 0..5 {
            assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
        }
        assert_eq!(s.fast_packets(), 0);
        assert!(s.entry(client).is_none(), "it is tracked");
        assert!(s.stat(abi::STAT_UP_ELSEWHERE) > 0);
        s.world.server.arrive_by(IFINDEX);
        s.world.server.route_by(IFINDEX);
        let other = spliced(&mut s);
        echo(&mut s, other);
        s.finish();
    }
}

/// Two that hand requests on: a balancer, a gateway.
const ONE: [u8; 6] = [2, 0, 0, 0, 9, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 2];

/// The last answer is lost: who repeats it finds the client.
fn lost_answer(s: &mut Scenario, client: ConnId) {
    s.lose_down(1);
    s.write(client, &request(&[b"PING"]), 1);
    assert_eq!(s.answers(client), b"+PONG\r\n");
}

/// A balancer hands requests on, replies go straight to the client.
pub(crate) fn direct_return() {
    for tier in [Tier::Native, Tier::Tc] {
        for ipv6 in [false, true] {
            let mut s = Scenario::new(Setup {
                tier,
                ipv6,
                ..Setup::default()
            });
            s.world.server.handed_on_by(Some(ONE));
            let client = spliced(&mut s);
            lost_answer(&mut s, client);
            assert_eq!(answered(&mut s, client), 10);
            s.world.server.handed_on_by(Some(OTHER));
            let unseen = s.stat(abi::STAT_REFUSE_NO_EGRESS);
            assert_eq!(answered(&mut s, client), 9, "the first one is Redis's");
            assert_eq!(s.stat(abi::STAT_REFUSE_NO_EGRESS), unseen + 1);
            lost_answer(&mut s, client);
            s.world.server.handed_on_by(None);
            assert_eq!(answered(&mut s, client), 10, "as replies always went");
            s.finish();
        }
    }
}

/// Requests and replies go by another gateway than before, which nobody told ERB.
pub(crate) fn gateway_moves() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        let client = spliced(&mut s);
        for way in [Some(ONE), Some(OTHER), None] {
            s.settle();
            s.world.server.handed_on_by(way);
            s.world.server.neighbour_is(way);
            assert_eq!(answered(&mut s, client), 9, "the first one is Redis's");
            lost_answer(&mut s, client);
        }
        s.finish();
    }
}
