// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a packet closes for others is closed before it is committed (`bpf/redis/effects.h`, U2): foreseen
//! without the entry's lock, a race if it was not, given back if it was in vain.

use std::rc::Rc;

use erb_abi::{self as abi, ControlPlane as _};
use erb_sim_kernel::Context;

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::cases::settle::listener;
use crate::scenario::tools::Talk;
use crate::scenario::{Pair, Scenario, Setup};
use crate::server::Control;
use crate::time::{MS, SECOND, US};

/// Many switches, and a CPU for each of two packets and for the daemon.
fn racing() -> Setup {
    Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    }
}

/// A connection that is older than ERB and has said nothing since, and holds nothing.
fn older(setup: Setup) -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..setup
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"SET", b"k", b"v"]);
    s.attach();
    s.settle();
    (s, old)
}

/// Lets something be said. Where the entry first says that it holds a share by itself, so many shares have been
/// taken, and so often was the gate shut.
fn holds_behind(
    s: &mut Scenario,
    pair: Pair,
    (shares, gates): (u64, u64),
    say: impl FnOnce(&mut Scenario),
) {
    let before = s.control();
    s.world.server.watch_commits();
    say(s);
    s.run(MS);
    let commits = s.world.server.commits();
    let held = commits
        .iter()
        .find(|commit| commit.pair == pair && commit.has_share());
    let held = held.expect("no share is held");
    assert_eq!(held.fence - before.fence, shares, "the fence");
    assert_eq!(held.gate_seen - before.gate_seen, gates, "the gate");
}

pub(crate) fn older_than_erb() {
    let (mut s, old) = older(Setup::default());
    let pair = s.pair(old);
    holds_behind(&mut s, pair, (1, 1), |s| s.ask(old, &[b"PING"]));
    // On trial the same: read, but perhaps not right.
    s.answers(old);
    s.run(2 * SECOND);
    assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
    holds_behind(&mut s, pair, (1, 1), |s| s.ask(old, &[b"PING"]));
    s.answers(old);
    s.finish();
}

pub(crate) fn unreadable() {
    let mut s = Scenario::new(Setup::default());
    let odd = s.fast();
    let pair = s.pair(odd);
    holds_behind(&mut s, pair, (1, 1), |s| {
        s.write(odd, b"*1\r\n:4\r\nPING\r\n", 1)
    });
}

/// So many writes of as many keys as are marked; three fit into a packet.
fn many_keys(writes: usize) -> Vec<u8> {
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    words.resize(1 + 2 * abi::KEYS_MARKED_MAX as usize, b"k");
    request(&words).repeat(writes)
}

pub(crate) fn more_than_the_ring_holds() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let pair = talk.raw.pair();
    s.stop_redis(true);
    holds_behind(&mut s, pair, (1, 0), |s| drop(talk.say(s, &many_keys(3))));
    s.stop_redis(false);
    s.run(SECOND);
    assert_eq!(s.control().fence, 0, "the fence leaked");
}

/// The ring is full, and a command is whole with bytes that go up behind its count: what it takes then.
pub(crate) fn last_bytes_and_a_full_ring() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let pair = talk.raw.pair();
    let long = request(&[b"SET", b"k", &[b'x'; 2000]]);
    s.stop_redis(true);
    talk.say(&mut s, &many_keys(2));
    talk.say(&mut s, &long[..1000]);
    let entry = s.entry_of(pair).expect("an entry");
    assert_ne!(entry.h.late, 0, "it waits for its last byte");
    assert_eq!(s.control().fence, 0, "and closes nothing before");
    // One for the command, which the other, for what the ring lacks, will stand for.
    holds_behind(&mut s, pair, (2, 0), |s| drop(talk.say(s, &long[1000..])));
    s.stop_redis(false);
    s.run(SECOND);
    assert_eq!(s.control().fence, 0, "the fence leaked");
}

/// When the command goes into the entry the gate is shut, whether that is with its packet or with its last
/// bytes.
pub(crate) fn gate_before_the_commit() {
    let commands = [
        request(&[b"CONFIG", b"SET", b"maxmemory", b"100mb"]),
        request(&[b"CONFIG", b"SET", b"maxmemory", &[b'0'; 2000]]),
    ];
    for command in commands {
        let mut s = Scenario::new(Setup::default());
        let mut talk = Talk::fast(&mut s);
        let (head, rest) = command.split_at(command.len().saturating_sub(1000));
        if !head.is_empty() {
            talk.say(&mut s, head);
        }
        let before = s.control().gate_seen;
        let entry = s.entry_of(talk.raw.pair()).expect("an entry");
        let held = entry.h.mark_head;
        s.world.server.watch_commits();
        talk.say(&mut s, rest);
        let commits = s.world.server.commits();
        let whole = commits.iter().find(|commit| commit.mark_head != held);
        let whole = whole.expect("nothing was taken");
        assert_eq!(whole.gate_seen, before + 1, "committed before the gate");
    }
}

/// Two packets of a connection that holds nothing, on two CPUs at once: both foresee a share, one needs it.
pub(crate) fn share_in_vain() {
    let mut vain = 0;
    for seed in 1..33 {
        let (mut s, old) = older(Setup { seed, ..racing() });
        s.world.server.steer_in_turn(&[0, 1]);
        s.ask(old, &[b"PING"]);
        s.ask(old, &[b"PING"]);
        assert_eq!(s.answers(old), b"+PONG\r\n+PONG\r\n");
        vain += s.stat(abi::STAT_FENCE_TAKEN) - s.stat(abi::STAT_FENCE_PROOF);
        s.run(2 * SECOND);
        assert_eq!(s.control().fence, 0, "the fence leaked");
        s.finish();
    }
    assert!(vain > 0, "no share was in vain");
}

/// The daemon releases what the connection holds between the look at it and the commit.
pub(crate) fn share_unforeseen() {
    let mut races = 0;
    for seed in 1..33 {
        let (mut s, old) = older(Setup { seed, ..racing() });
        s.call(old, &[b"PING"]);
        s.stop_daemon(true);
        let entry = s.entry(old).expect("an entry");
        if u32::from(entry.flags) & abi::CONN_F_FENCE_PROOF == 0 {
            continue; // released already
        }
        let path = s.world.server.attached_path().expect("attached");
        let control = Control::new(path, Rc::default());
        let before = s.stat(abi::STAT_DROP_RACE);
        s.ask(old, &[b"PING"]);
        s.run(29 * US);
        s.world.server.cpus.spawn(2, Context::Process, move || {
            let report = control.sweep(&[entry.place]).expect("the program runs");
            for row in &report.rows {
                control.release(row, false).expect("the program runs");
            }
        });
        assert_eq!(s.answers(old), b"+PONG\r\n");
        races += s.stat(abi::STAT_DROP_RACE) - before;
        s.stop_daemon(false);
        s.run(2 * SECOND);
        assert_eq!(s.control().fence, 0, "the fence leaked");
        s.finish();
    }
    assert!(races > 0, "nothing was released in between");
}

/// What a listener says by rote shuts no gate, as long as it listens; its write on another CPU ends that.
pub(crate) fn gate_unforeseen() {
    /// Seeds that meet the race are one in twenty.
    const ENOUGH: u64 = 3;
    let mut races = 0;
    for seed in 1..257 {
        let (mut s, old, _) = listener(Setup { seed, ..racing() });
        let before = s.stat(abi::STAT_DROP_RACE);
        s.world.server.steer_in_turn(&[0, 1]);
        s.ask(old, &[b"UNSUBSCRIBE", b"news"]);
        s.ask(old, &[b"PING"]);
        s.answers(old);
        races += s.stat(abi::STAT_DROP_RACE) - before;
        s.finish();
        if races >= ENOUGH {
            break;
        }
    }
    assert!(races > 0, "the listener was one to the end");
}

/// Two writes of so many bytes on two CPUs at once: a mark is taken for each, and one of them comes too late.
fn given_back(bytes: usize) {
    let mut vain = 0;
    for seed in 1..65 {
        let mut s = Scenario::new(Setup { seed, ..racing() });
        let conn = s.fast();
        let before = s.stat(abi::STAT_MARK_TAKEN);
        s.world.server.steer_in_turn(&[0, 1]);
        s.ask(conn, &[b"SET", b"k", &b"v".repeat(bytes)]);
        s.ask(conn, &[b"SET", b"k", &b"w".repeat(bytes)]);
        assert_eq!(s.answers(conn), b"+OK\r\n+OK\r\n");
        s.run(2 * SECOND);
        let taken = s.stat(abi::STAT_MARK_TAKEN);
        assert_eq!(taken, s.stat(abi::STAT_MARK_RELEASED), "a mark leaked");
        vain += taken - before - 2;
        s.finish();
    }
    assert!(vain > 0, "no mark was in vain");
}

pub(crate) fn write_given_back() {
    given_back(1);
}

/// It does not fit the express lane.
pub(crate) fn long_write_given_back() {
    given_back(200);
}
