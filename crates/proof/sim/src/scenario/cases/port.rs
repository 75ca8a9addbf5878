// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose the port is, and what reaches it without a connection (E-2, E-9).

use std::net::SocketAddr;

use erb_abi as abi;

use crate::ConnId;
use crate::client::machine::{PORT, neighbour_ip};
use crate::client::resp::request;
use crate::scenario::tools::Talk;
use crate::scenario::{Raw, Scenario, Setup};
use crate::server::STRANGERS_WORDS;
use crate::time::{MS, Ns, SECOND};
use erb_sim_tcp::flags;

/// As long as the fast path may be away behind a cause that is over.
const BACK_WITHIN: Ns = 5 * SECOND;

/// An address of the server's beside the one that clients use.
fn other_address(v6: bool) -> SocketAddr {
    SocketAddr::new(neighbour_ip(v6), PORT)
}

fn setup(v6: bool) -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup {
        ipv6: v6,
        ..Setup::default()
    });
    s.cached(b"k", b"v");
    let client = s.fast();
    s.is_fast_within(client, b"k", SECOND);
    (s, client)
}

/// The other server is asked so often; each time it must be the one that answers.
fn asks_stranger(s: &mut Scenario, talk: &mut Talk, times: u32) {
    for _ in 0..times {
        let get: [&[u8]; 2] = [b"GET", b"k"];
        let mut answer = talk.ask(s, &get);
        if answer.is_empty() {
            s.settle();
            answer = talk.hear(s);
        }
        assert_eq!(answer, STRANGERS_WORDS, "{}", s.counters());
    }
}

fn stranger(s: &mut Scenario) -> Talk {
    let raw = s.raw().at(other_address(s.world.inner.plan.profile.ipv6));
    Talk::connected(s, raw)
}

/// Another server that is known is left alone: it answers, and nobody notices.
pub(crate) fn another_server() {
    for v6 in [false, true] {
        let (mut s, client) = setup(v6);
        s.world.server.stranger_listens(other_address(v6));
        s.run(3 * SECOND);
        s.is_fast_within(client, b"k", BACK_WITHIN);
        let mut talk = stranger(&mut s);
        let (fences, cleared) = (
            s.stat(abi::STAT_FENCE_PROOF),
            s.stat(abi::STAT_CACHE_CLEARED),
        );
        for _ in 0..10 {
            let left = s.stat(abi::STAT_UP_FOREIGN);
            asks_stranger(&mut s, &mut talk, 1);
            assert!(s.stat(abi::STAT_UP_FOREIGN) > left, "{}", s.counters());
            assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
        }
        assert!(s.entry_of(talk.raw.pair()).is_none(), "it is tracked");
        assert_eq!(s.stat(abi::STAT_FENCE_PROOF), fences);
        assert_eq!(s.stat(abi::STAT_CACHE_CLEARED), cleared);
    }
}

/// Another server that begins to listen meanwhile: never an answer of Redis's to its clients, and the
/// fast path is back when it is known.
pub(crate) fn another_server_comes() {
    let (mut s, client) = setup(false);
    s.world.server.stranger_listens(other_address(false));
    let mut talk = stranger(&mut s);
    asks_stranger(&mut s, &mut talk, 5);
    s.is_fast_within(client, b"k", BACK_WITHIN);
    asks_stranger(&mut s, &mut talk, 5);
    s.run(3 * SECOND);
    let mut late = stranger(&mut s);
    asks_stranger(&mut s, &mut late, 5);
    s.world.server.stranger_leaves();
    s.run(2 * SECOND);
    s.is_fast_within(client, b"k", SECOND);
}

fn forged(s: &mut Scenario, raw: &Raw) {
    let segment = raw.segment(77, 12_345, flags::ACK | flags::PSH, b"x");
    raw.post(s, &segment);
}

/// One byte without a connection, again and again, beside a connection that never says anything.
pub(crate) fn forged_payload() {
    let (mut s, client) = setup(false);
    let raw = s.raw();
    let _silent = Talk::connected(&mut s, raw);
    let cleared = s.stat(abi::STAT_CACHE_CLEARED);
    for _ in 0..50 {
        let raw = s.raw();
        forged(&mut s, &raw);
        let elsewhere = s.raw().at(([10, 0, 0, 77], PORT).into());
        forged(&mut s, &elsewhere);
        // At once, before the daemon could have opened again what was shut, and later.
        s.run(MS);
        assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
        s.run(100 * MS);
        assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
    }
    assert_eq!(s.stat(abi::STAT_CACHE_CLEARED), cleared);
    assert!(s.stat(abi::STAT_SOCK_LISTEN) >= 50, "{}", s.counters());
}

/// A write that is the end of a handshake by SYN cookie: counted before it goes up, proved behind.
pub(crate) fn write_by_syn_cookie() {
    let (mut s, client) = setup(false);
    s.world.server.host.borrow_mut().config_mut().syncookies = 2;
    let mut raw = s.raw();
    let mut syn = raw.segment(0, 0, flags::SYN, b"");
    syn.ack = 0;
    syn.options.mss = Some(1460);
    let answer = raw.send(&mut s, &syn);
    raw.peer_isn = answer[0].seq;
    // The daemon hears of nothing meanwhile: only the data path can know.
    s.stop_daemon(true);
    let ok = raw.data(&mut s, 1, 1, &request(&[b"SET", b"k", b"w"]));
    assert!(ok.iter().any(|segment| segment.payload == b"+OK\r\n"));
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    s.stop_daemon(false);
    s.is_fast_within(client, b"k", BACK_WITHIN);
    s.finish();
}

/// The look-up meets neither the request nor the connection that replaces it.
pub(crate) fn look_up_in_between() {
    let (mut s, client) = setup(false);
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    s.world.server.blink.set(true);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert!(!s.world.server.blink.get(), "nobody looked");
    let entry = s.entry_of(talk.raw.pair()).expect("not tracked");
    assert_eq!(u32::from(entry.state), abi::CONN_FAST);
    assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
    s.finish();
}
