// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cache is closed and opened by hand, under load: level 3 of stepping aside (`erb_redis`, `closing.rs`).

use erb_abi as abi;

use super::{Scenario, Setup, over_seeds};
use crate::ConnId;
use crate::time::{MS, SECOND};

/// From the word to a fast answer: what passed unread is waited for, a feed made, a key filled.
const BACK_WITHIN: u64 = 10 * SECOND;

pub(super) fn closes(s: &mut Scenario) {
    s.world.server.close_or_open(Some(true));
    s.until("requests pass unread", |s| {
        s.control().stopping >= abi::STOPPING_UNREAD
    });
}

pub(super) fn opens(s: &mut Scenario) {
    s.world.server.close_or_open(Some(false));
    is_open(s);
}

fn is_open(s: &mut Scenario) {
    let server = s.world.server.clone();
    s.until("the cache is open", |_| {
        server.boost.with(|core| core.closed().is_none()) == Some(true)
    });
}

fn has(s: &mut Scenario, client: ConnId, value: &str) {
    let reply = format!("${}\r\n{value}\r\n", value.len());
    assert_eq!(s.call(client, &[b"GET", b"k"]), reply.as_bytes());
}

fn deltas(s: &Scenario, client: ConnId) -> Option<(u32, u32)> {
    s.entry(client)
        .map(|entry| (entry.in_delta, entry.out_delta))
}

/// There and back: who was answered goes on translated, all others lose their entries; what is written meanwhile, seen
/// by nobody, is what is read afterwards.
pub(super) fn there_and_back() {
    over_seeds(1..9, &Setup::default(), |s| {
        let mut s = s;
        s.cached(b"k", b"v");
        let (answered, other) = (s.fast(), s.fast());
        for round in 0..3 {
            s.is_fast_within(answered, b"k", BACK_WITHIN);
            let before = deltas(&s, answered);
            closes(&mut s);
            let fast = s.fast_packets();
            let new = s.open();
            for (turn, writer) in [answered, other, new].into_iter().enumerate() {
                let value = format!("v{round}.{turn}");
                assert_eq!(
                    s.call(writer, &[b"SET", b"k", value.as_bytes()]),
                    b"+OK\r\n"
                );
                for reader in [answered, other, new] {
                    has(&mut s, reader, &value);
                }
                s.run(300 * MS);
            }
            assert_eq!(s.fast_packets(), fast, "something was answered");
            assert_eq!(deltas(&s, answered), before, "it goes on translated");
            assert_eq!((deltas(&s, other), deltas(&s, new)), (None, None));
            s.unseen(&[b"SET", b"k", b"unseen"]);
            opens(&mut s);
            for reader in [answered, other, new] {
                has(&mut s, reader, "unseen");
            }
            s.close(new);
        }
        s.is_fast_within(other, b"k", BACK_WITHIN);
        s.finish();
    });
}

/// Where nobody was answered no packet is looked at, and connections that end leave nothing behind.
pub(super) fn nobody_translated() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    s.run(80 * SECOND);
    let other = s.fast();
    closes(&mut s);
    s.until("no packet is looked at", |s| {
        s.control().stopping == abi::STOPPING_ALL_UNREAD
    });
    for _ in 0..5 {
        let passing = s.open();
        has(&mut s, passing, "v");
        s.close(passing);
    }
    has(&mut s, other, "v");
    opens(&mut s);
    s.is_fast_within(other, b"k", BACK_WITHIN);
    s.finish();
}

/// Who takes over goes on with the word, whatever the former daemon was at; a detach ends it.
pub(super) fn another_daemon() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.is_fast_within(client, b"k", SECOND);
    closes(&mut s);
    s.kill_daemon();
    has(&mut s, client, "v");
    s.world.server.start_daemon();
    s.run(3 * SECOND);
    assert_eq!(s.control().stopping, abi::STOPPING_UNREAD);
    let level = s.world.server.boost.with(|core| core.aside().level);
    assert_eq!(level, Some(3));
    s.unseen(&[b"SET", b"k", b"new"]);
    opens(&mut s);
    has(&mut s, client, "new");
    s.is_fast_within(client, b"k", BACK_WITHIN);
    closes(&mut s);
    s.world.server.ask_detach();
    s.run(SECOND);
    has(&mut s, client, "new");
    assert!(s.world.server.boost.is_alive(), "one needs translation");
    s.close(client);
    s.until("it has left", |s| !s.world.server.boost.is_alive());
    s.finish();
}

/// Requests are under way on all processors while the cache is closed and opened: each is executed once, or answered.
pub(super) fn at_the_switch() {
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    over_seeds(1..9, &setup, |s| {
        let mut s = s;
        s.cached(b"k", b"v");
        for round in 0..12 {
            let clients: Vec<ConnId> = (0..3).map(|_| s.fast()).collect();
            s.is_fast_within(clients[0], b"k", BACK_WITHIN);
            s.world.server.close_or_open(Some(true));
            for _ in 0..20 {
                for client in &clients {
                    s.ask(*client, &[b"GET", b"k"]);
                    s.ask(*client, &[b"INCR", b"n"]);
                    s.ask(*client, &[b"GET", b"k"]);
                }
                s.run((round + 1) * 500);
            }
            for client in &clients {
                s.answers(*client);
            }
            s.until("requests pass unread", |s| {
                s.control().stopping >= abi::STOPPING_UNREAD
            });
            opens(&mut s);
            for client in clients {
                s.close(client);
            }
        }
        s.finish();
    });
}

/// A processor stands still at each point of a program that answers, and the cache is closed meanwhile. What that program
/// consumes then lies before the next request of its connection, which comes by another processor.
pub(super) fn beside_a_stop() {
    const STILL: usize = 2;
    let setup = Setup {
        cpus: 3,
        switch: 0,
        ..Setup::default()
    };
    let mut waited = 0;
    for points in 0.. {
        let mut s = Scenario::new(setup.clone());
        s.cached(b"k", b"v");
        let client = s.fast();
        s.steer(Some(STILL));
        assert!(s.world.server.cpus.stop(STILL, points));
        s.ask(client, &[b"GET", b"k"]);
        s.run(MS);
        s.steer(Some(0));
        if s.world.server.cpus.still().is_none() {
            assert!(waited > 10, "it hardly ever stood still in a program");
            return;
        }
        s.world.server.close_or_open(Some(true));
        s.run(100 * MS);
        waited += u32::from(s.control().stopping == abi::STOPPING_CLOSING);
        s.ask(client, &[b"INCR", b"n"]);
        s.run(MS);
        s.world.server.cpus.go_on();
        s.poke();
        assert_eq!(s.answers(client), b"$1\r\nv\r\n:1\r\n", "{points}");
        s.until("requests pass unread", |s| {
            s.control().stopping >= abi::STOPPING_UNREAD
        });
        assert_eq!(s.call(client, &[b"INCR", b"n"]), b":2\r\n", "{points}");
        s.finish();
    }
}

/// A second of a load that no cache helps: keys are written, and nobody reads them.
fn writes(s: &mut Scenario, client: ConnId, second: usize) {
    for _ in 0..10 {
        for n in 0..100 {
            let key = format!("w{}", n % 5);
            s.ask(
                client,
                &[b"SET", key.as_bytes(), second.to_string().as_bytes()],
            );
        }
        s.answers(client);
        s.run(100 * MS);
    }
}

fn is_closed(s: &Scenario) -> bool {
    s.control().stopping >= abi::STOPPING_UNREAD
}

/// Where the operator allows it, and only there, such a load closes the cache; it is opened to look again, by another
/// daemon too, and stays open once it pays. What an operator has closed stays closed.
pub(super) fn for_hours() {
    const PATIENCE: usize = 10;
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    let mut second = 0;
    // In which second it is closed, or opened; at most so many.
    let mut seconds_until = |s: &mut Scenario, closes: bool, most: usize| {
        let began = second;
        while is_closed(s) != closes {
            writes(s, client, second);
            let value = format!("${}\r\n{second}\r\n", second.to_string().len());
            assert_eq!(s.call(client, &[b"GET", b"w0"]), value.as_bytes());
            second += 1;
            assert!(second - began <= most, "{closes}: not within {most} s");
        }
        second - began
    };
    for _ in 0..2 * PATIENCE {
        writes(&mut s, client, 0);
    }
    assert!(!is_closed(&s), "nobody has allowed that");
    s.world.server.boost.close_after_ns.set(Some(10 * SECOND));
    s.kill_daemon();
    s.world.server.start_daemon();
    assert!(seconds_until(&mut s, true, 3 * PATIENCE) >= PATIENCE);
    assert!(seconds_until(&mut s, false, 2 * PATIENCE) >= PATIENCE - 1);
    // It looks again for five seconds in which nothing pays, beside the ones in which it finds out.
    assert!((5..PATIENCE + 5).contains(&seconds_until(&mut s, true, 2 * PATIENCE)));
    s.kill_daemon();
    s.world.server.start_daemon();
    seconds_until(&mut s, false, 2 * PATIENCE);
    is_open(&mut s);
    s.cached(b"k", b"new");
    let reader = s.fast();
    for _ in 0..3 * PATIENCE {
        s.is_fast_within(reader, b"k", BACK_WITHIN);
        s.run(SECOND);
        assert!(!is_closed(&s), "it pays");
    }
    closes(&mut s);
    s.run(100 * SECOND);
    assert!(is_closed(&s), "the operator has said so");
    s.kill_daemon();
    s.world.server.start_daemon();
    s.run(100 * SECOND);
    assert!(is_closed(&s), "and to the former daemon");
    opens(&mut s);
    s.finish();
}
