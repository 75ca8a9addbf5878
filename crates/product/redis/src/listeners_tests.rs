// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose listeners are, with a Redis that lists what it is told.

use std::net::SocketAddr;

use erb_abi::{self as abi, ControlPlane as _};

use super::Bench;
use crate::outside::{Listener, TcpPair, Traffic};

/// A core beside a listener on 10.0.0.1 that it does not know.
fn beside(cookie: u64) -> Bench {
    let mut bench = Bench::serving();
    let listener = Listener {
        cookie,
        address: [10, 0, 0, 1].into(),
        interface: 0,
    };
    bench.core.machine.listeners.borrow_mut().push(listener);
    bench.listed = Some(String::new());
    bench.pass(1_100, true);
    bench
}

/// Redis lists these connections from now on.
fn list(bench: &mut Bench, pairs: &[TcpPair]) {
    let line = |pair: &TcpPair| format!("id=9 addr={} laddr={}\n", pair.client, pair.server);
    bench.listed = Some(pairs.iter().map(line).collect());
}

fn whose(bench: &Bench) -> Option<abi::erb_listener> {
    let known = bench.core.path.listeners().unwrap();
    known
        .iter()
        .find(|(cookie, _)| *cookie == 7)
        .map(|known| known.1)
}

fn probe(bench: &Bench) -> TcpPair {
    bench.core.machine.probes.borrow()[0].0
}

#[test]
fn a_listener_is_redis_s_when_redis_lists_the_connection_to_it() {
    let mut bench = beside(7);
    assert_eq!(whose(&bench), None, "nothing was proved");
    let mine = probe(&bench);
    list(&mut bench, &[mine]);
    bench.pass(200, true);
    assert_eq!(whose(&bench), Some(abi::LISTENER_REDIS));
    bench.core.machine.listeners.borrow_mut().clear();
    bench.pass(1_100, true);
    assert_eq!(whose(&bench), None, "it has gone");
}

#[test]
fn a_listener_is_another_s_when_redis_never_lists_the_connection_to_it() {
    let mut bench = beside(7);
    bench.pass(500, true);
    assert_eq!(whose(&bench), None, "too early");
    bench.pass(2_000, true);
    assert_eq!(whose(&bench), Some(abi::LISTENER_FOREIGN));
}

#[test]
fn a_redis_that_refuses_the_connection_is_not_another_server() {
    let mut bench = beside(7);
    let redis = bench.core.machine.probes.borrow()[0].1.clone();
    redis.say("-ERR max number of clients reached\r\n");
    bench.pass(2_500, true);
    assert_eq!(whose(&bench), None);
}

#[test]
fn a_silent_connection_from_before_must_be_redis_s_too() {
    let old = TcpPair {
        client: SocketAddr::from(([10, 0, 0, 2], 4000)),
        server: SocketAddr::from(([10, 0, 0, 1], 6379)),
    };
    let mut bench = beside(7);
    let open = &bench.core.machine.open;
    open.borrow_mut().insert(old, Traffic::Silent);
    bench.core.connections.doubt();
    bench.core.machine.probes.borrow_mut().clear();
    bench.pass(100, true);
    let mine = probe(&bench);
    list(&mut bench, &[mine]);
    bench.pass(1_100, true);
    assert_eq!(whose(&bench), None, "a connection may be another's");
    list(&mut bench, &[mine, old]);
    bench.pass(1_100, true);
    assert_eq!(whose(&bench), Some(abi::LISTENER_REDIS));
}
