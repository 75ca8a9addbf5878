// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways back to the fast path: databases, MULTI, WATCH, RESP versions, subscriptions, connections
//! older than ERB. What may be answered then is judged by the checks; what is asserted here is who
//! comes back, and who does not.

use erb_abi::{self as abi, ControlPlane as _, conn};

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, Ns, SECOND};

fn entry(s: &Scenario, client: ConnId) -> conn {
    s.entry(client).expect("an entry")
}

fn is_fast(s: &Scenario, client: ConnId) -> bool {
    u32::from(entry(s, client).state) == abi::CONN_FAST
}

/// Runs until the connection is FAST again; it must not take long while nothing else goes on.
fn comes_back(s: &mut Scenario, client: ConnId) {
    assert!(!is_fast(s, client), "it never left");
    for _ in 0..40 {
        if is_fast(s, client) {
            return;
        }
        s.run(5 * MS);
    }
    panic!("not back: {}", s.counters());
}

fn stays_out(s: &mut Scenario, client: ConnId) {
    for _ in 0..3 {
        s.run(SECOND);
        s.call(client, &[b"PING"]);
    }
    assert!(!is_fast(s, client), "it was admitted");
}

/// Asks until the answer is a fast one.
fn answered_fast(s: &mut Scenario, client: ConnId, key: &[u8], value: &[u8]) {
    for _ in 0..400 {
        let fast = s.stat(abi::STAT_FAST_GET);
        assert_eq!(s.call(client, &[b"GET", key]), value);
        if s.stat(abi::STAT_FAST_GET) > fast {
            return;
        }
        s.run(5 * MS);
    }
    panic!("never fast: {}", s.counters());
}

/// A key has a value in each of two databases: both are cached side by side, each for its own.
pub(crate) fn databases_apart() {
    let mut s = Scenario::new(Setup {
        sets: 1,
        ..Setup::default()
    });
    s.cached(b"k", b"zero");
    let (zero, three) = (s.fast(), s.fast());
    assert_eq!(s.call(three, &[b"SELECT", b"3"]), b"+OK\r\n");
    assert_eq!(s.call(three, &[b"GET", b"k"]), b"$-1\r\n");
    comes_back(&mut s, three);
    assert_eq!(entry(&s, three).h.db, 3);
    s.call(three, &[b"SET", b"k", b"three"]);
    for _ in 0..2 {
        answered_fast(&mut s, three, b"k", b"$5\r\nthree\r\n");
        answered_fast(&mut s, zero, b"k", b"$4\r\nzero\r\n");
    }
    // Both stay: neither fill throws the other out.
    let fast = s.stat(abi::STAT_FAST_GET);
    s.call(three, &[b"GET", b"k"]);
    s.call(zero, &[b"GET", b"k"]);
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast + 2);
    assert_eq!(s.call(three, &[b"SELECT", b"3"]), b"+OK\r\n");
    assert!(is_fast(&s, three), "it was there already");
    assert_eq!(s.call(three, &[b"SELECT", b"0"]), b"+OK\r\n");
    assert!(!is_fast(&s, three), "its database is another now");
    s.finish();
}

/// A database is chosen while CLIENT LIST, which still shows another, is on its way.
pub(crate) fn select_behind_the_photograph() {
    for late in 0..40 {
        let mut s = Scenario::new(Setup::default());
        s.cached(b"k", b"zero");
        let client = s.fast();
        s.call(client, &[b"SELECT", b"1"]);
        s.call(client, &[b"SET", b"k", b"one"]);
        s.run(late * 2 * MS);
        // Whether it is answered before the list is read or behind it: 0.1 ms decide.
        s.ask(client, &[b"SELECT", b"0"]);
        s.run(late % 4 * MS / 10);
        for _ in 0..40 {
            s.call(client, &[b"GET", b"k"]);
            s.run(3 * MS);
        }
        s.finish();
    }
}

/// The list is read while Redis's answer to it, and the daemon, wait: the connection moves on.
pub(crate) fn moves_on_before_it_is_admitted() {
    over_seeds(1..17, &Setup::default(), |mut s| {
        s.cached(b"k", b"zero");
        let (client, other) = (s.fast(), s.open_on(1, None));
        s.call(other, &[b"SELECT", b"1"]);
        s.call(other, &[b"SET", b"k", b"one"]);
        s.close(other);
        s.stop_daemon(true);
        s.call(client, &[b"SELECT", b"1"]);
        s.stop_daemon(false);
        let path = s.world.server.attached_path().expect("attached");
        let control = crate::server::Control::new(path, std::rc::Rc::default());
        // The list's part: the sweep's row, and what a list sent now would say.
        let places = control.places(abi::PLACES_USED, 1, 64);
        let report = control.sweep(&places).expect("the program runs");
        let cookie = entry(&s, client).cookie;
        let row = report.admit.iter().find(|row| row.cookie == cookie);
        let admission = abi::admit_io {
            row: *row.expect("a candidate"),
            rights: s.control().rights,
            db: 1,
            resp: 2,
            act: abi::ADMIT_FAST as u8,
            ..Default::default()
        };
        s.call(client, &[b"SELECT", b"0"]);
        s.settle();
        let moved = s.stat(abi::STAT_ADMIT_MOVED);
        control.admit_conn(&admission).expect("the program runs");
        s.call(client, &[b"GET", b"k"]);
        s.run(20 * MS);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$4\r\nzero\r\n");
        assert!(s.stat(abi::STAT_ADMIT_MOVED) > moved || entry(&s, client).h.db == 0);
        s.finish();
    });
}

pub(crate) fn transactions_and_back() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.call(client, &[b"MULTI"]);
    stays_out_in_multi(&mut s, client);
    s.call(client, &[b"EXEC"]);
    comes_back(&mut s, client);
    for end in [b"DISCARD".as_slice(), b"RESET"] {
        s.call(client, &[b"MULTI"]);
        s.call(client, &[b"SET", b"k", b"w"]);
        s.call(client, &[end]);
        comes_back(&mut s, client);
        answered_fast(&mut s, client, b"k", b"$1\r\nv\r\n");
    }
    s.finish();
}

fn stays_out_in_multi(s: &mut Scenario, client: ConnId) {
    for _ in 0..3 {
        s.run(SECOND);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"+QUEUED\r\n");
    }
    assert!(!is_fast(s, client), "it was admitted inside MULTI");
}

/// CLIENT LIST does not show WATCH; the stream does.
pub(crate) fn watch_bars() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.call(client, &[b"WATCH", b"k"]);
    stays_out(&mut s, client);
    s.call(client, &[b"UNWATCH"]);
    comes_back(&mut s, client);
    s.call(client, &[b"WATCH", b"k"]);
    s.call(client, &[b"MULTI"]);
    s.call(client, &[b"SET", b"k", b"w"]);
    assert_eq!(s.call(client, &[b"EXEC"]), b"*1\r\n+OK\r\n");
    comes_back(&mut s, client);
    // EXEC outside MULTI is an error and ends no WATCH.
    s.call(client, &[b"WATCH", b"k"]);
    s.call(client, &[b"EXEC"]);
    stays_out(&mut s, client);
    // After an error nobody can be sure.
    let doubtful = s.fast();
    s.call(doubtful, &[b"WATCH", b"k"]);
    s.call(doubtful, &[b"INCR", b"k"]);
    s.call(doubtful, &[b"UNWATCH"]);
    stays_out(&mut s, doubtful);
    s.finish();
}

pub(crate) fn never_back() {
    let never: [&[&[u8]]; 3] = [
        &[b"CLIENT", b"REPLY", b"ON"],
        &[b"CLIENT", b"TRACKING", b"ON"],
        &[b"MONITOR"],
    ];
    for argv in never {
        let mut s = Scenario::new(Setup::default());
        let client = s.fast();
        s.call(client, argv);
        s.call(client, &[b"CLIENT", b"TRACKING", b"OFF"]);
        s.run(3 * SECOND);
        assert!(!is_fast(&s, client), "{argv:?}");
        let entry = entry(&s, client);
        assert!(u32::from(entry.h.kept) & abi::CONN_K_NEVER != 0, "{argv:?}");
        s.finish();
    }
}

/// HELLO 3 is proved by its own answer, HELLO 2 by CLIENT LIST.
pub(crate) fn resp_versions() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    assert_eq!(entry(&s, client).h.resp, 2);
    s.call(client, &[b"HELLO", b"2"]);
    assert_eq!(entry(&s, client).h.resp, 2);
    assert!(s.call(client, &[b"HELLO", b"3"]).starts_with(b"%7"));
    assert_eq!((entry(&s, client).h.resp, is_fast(&s, client)), (3, true));
    s.stop_daemon(true);
    assert!(s.call(client, &[b"HELLO", b"2"]).starts_with(b"*14"));
    assert_eq!(entry(&s, client).h.resp, 0, "who knows whether it worked");
    s.stop_daemon(false);
    s.run(2 * SECOND);
    assert_eq!(entry(&s, client).h.resp, 2);
    // A map on its way when HELLO 2 is sent proves nothing about what follows.
    s.ask_all(client, &[&[b"HELLO", b"3"], &[b"HELLO", b"2"]]);
    s.answers(client);
    assert_eq!(entry(&s, client).h.resp, 0);
    s.run(2 * SECOND);
    assert_eq!(entry(&s, client).h.resp, 2);
    assert!(s.call(client, &[b"HELLO", b"4"]).starts_with(b"-NOPROTO"));
    assert_eq!(entry(&s, client).h.resp, 0);
    s.run(2 * SECOND);
    assert_eq!(entry(&s, client).h.resp, 2);
    answered_fast(&mut s, client, b"k", b"$1\r\nv\r\n");
    s.finish();
}

/// Replies could not be counted while it was subscribed; counting begins anew.
pub(crate) fn subscriptions_and_back() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    assert!(!s.call(client, &[b"SUBSCRIBE", b"c"]).is_empty());
    s.unseen(&[b"PUBLISH", b"c", b"one"]);
    s.run(3 * SECOND);
    assert!(!is_fast(&s, client), "it is subscribed");
    s.call(client, &[b"UNSUBSCRIBE", b"c"]);
    comes_back(&mut s, client);
    answered_fast(&mut s, client, b"k", b"$1\r\nv\r\n");
    s.call(client, &[b"SET", b"k", b"w"]);
    answered_fast(&mut s, client, b"k", b"$1\r\nw\r\n");
    s.finish();
}

/// A connection older than ERB is taken up when it is quiet, and answered once an answer of Redis has
/// shown that this was at a command's begin.
pub(crate) fn older_connections_become_fast() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"SELECT", b"2"]);
    s.call(old, &[b"SET", b"k", b"v"]);
    s.attach();
    s.call(old, &[b"GET", b"k"]);
    assert_eq!(u32::from(entry(&s, old).state), abi::CONN_OLD);
    s.run(2 * SECOND);
    assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
    assert!(!is_fast(&s, old), "nothing was answered yet");
    s.call(old, &[b"GET", b"k"]);
    s.run(2 * SECOND);
    assert_eq!((entry(&s, old).h.db, is_fast(&s, old)), (2, true));
    answered_fast(&mut s, old, b"k", b"$1\r\nv\r\n");
    s.finish();
}

/// Between two requests of a client that is never idle for long, less than its TCP's delayed ACK: a
/// reply is acknowledged by the next request.
const BUSY: Ns = 20 * MS;

fn older() -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"SET", b"k", b"v"]);
    s.attach();
    (s, old)
}

/// A worker that is older than ERB and always waits for an item is taken in while it waits (A8). Its next command is
/// read, and closes nothing.
pub(crate) fn older_and_waiting() {
    let waits: [&[&[u8]]; 2] = [&[b"BLPOP", b"q", b"0"], &[b"BRPOPLPUSH", b"q", b"to", b"0"]];
    for words in waits {
        let (mut s, old) = older();
        let other = s.fast();
        s.ask(old, words);
        s.run(2 * SECOND);
        assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
        let closed = s.stat(abi::STAT_FENCE_PROOF);
        for _ in 0..3 {
            assert_eq!(s.call(other, &[b"LPUSH", b"q", b"item"]), b":1\r\n");
            assert!(s.answers(old).ends_with(b"item\r\n"));
            s.ask(old, words);
            s.run(SECOND);
        }
        assert_eq!(s.stat(abi::STAT_TRIAL_FAILED), 0, "{}", s.counters());
        assert_eq!(s.stat(abi::STAT_FENCE_PROOF), closed, "{}", s.counters());
        s.call(other, &[b"LPUSH", b"q", b"item"]);
        s.answers(old);
        s.finish();
    }
}

/// A connection older than ERB that is at work all the time is taken up.
pub(crate) fn older_and_busy() {
    let (mut s, old) = older();
    let began = s.now();
    while !s.is_fast_now(old, b"k") {
        assert!(s.now() < began + 2 * SECOND, "{}", s.counters());
        s.run(BUSY);
    }
    s.finish();
}

/// One that never can be, at work all the time, leaves others the fast path between its requests.
pub(crate) fn older_busy_and_never_admitted() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let old = s.open_on(1, None);
    s.call(
        old,
        &[b"CLIENT", b"TRACKING", b"ON", b"BCAST", b"PREFIX", b"none"],
    );
    s.unseen(&[b"SET", b"k", b"v"]);
    s.attach();
    let client = s.fast();
    let (mut fast, began) = (0, s.now());
    while s.now() < began + 4 * SECOND {
        s.call(old, &[b"PING"]);
        for _ in 0..4 {
            s.run(BUSY / 4);
            fast += u32::from(s.is_fast_now(client, b"k"));
        }
    }
    assert_eq!(u32::from(entry(&s, old).state), abi::CONN_OLD);
    assert!(fast > 0, "no read was fast: {}", s.counters());
    s.finish();
}

/// CLIENT LIST cannot show a command of which only the number of arguments was read.
pub(crate) fn older_inside_a_command() {
    for head in [b"*2\r\n".as_slice(), b"*1\r\n$18\r\n"] {
        let (mut s, old) = older();
        s.call(old, &[b"PING"]);
        s.write(old, head, 0);
        s.run(2 * SECOND);
        assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
        // To Redis this is no command of its own.
        s.write(old, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", 1);
        s.run(2 * SECOND);
        assert_eq!(s.stat(abi::STAT_TRIAL_FAILED), 1, "{}", s.counters());
    }
}

/// The rest of such a command is answered without an error, but is no request of its own: who is at work
/// all the time is taken up nevertheless, when its trial was found to be in vain.
pub(crate) fn older_with_half_a_command() {
    let (mut s, old) = older();
    s.call(old, &[b"GET", b"k"]);
    s.write(old, b"*2\r\n", 0);
    s.run(2 * SECOND);
    assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
    s.write(old, b"$3\r\nGET\r\n$1\r\nk\r\n", 1);
    assert_eq!(s.answers(old), b"$1\r\nv\r\n");
    let began = s.now();
    while !s.is_fast_now(old, b"k") {
        assert!(s.now() < began + 4 * SECOND, "{}", s.counters());
        s.run(BUSY);
    }
    assert_eq!(s.stat(abi::STAT_TRIAL_FAILED), 1, "{}", s.counters());
    s.finish();
}

/// The proof of what was sent on trial says nothing of what is sent once it has ended well.
pub(crate) fn marks_behind_a_trial() {
    for seed in 1..=8 {
        let mut s = Scenario::new(Setup {
            attached: false,
            seed,
            ..Setup::default()
        });
        let (old, other) = (s.open_on(1, None), s.open());
        s.call(old, &[b"SET", b"k", b"old"]);
        s.attach();
        s.call(old, &[b"GET", b"k"]);
        s.run(2 * SECOND);
        assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
        assert_eq!(s.call(old, &[b"SET", b"other", b"1"]), b"+OK\r\n");
        let flags = u32::from(entry(&s, old).flags);
        assert_ne!(flags & abi::CONN_F_FENCE_PROOF, 0, "no share of the trial");
        assert_eq!(entry(&s, old).h.kept & abi::CONN_K_TRIAL as u16, 0);
        s.stop_stack(true);
        s.ask(old, &[b"SET", b"k", b"new"]);
        s.run(2 * SECOND);
        let held = entry(&s, old);
        assert_eq!(
            u32::from(held.flags) & abi::CONN_F_FENCE_PROOF,
            0,
            "not proved"
        );
        assert_ne!(held.h.mark_head, held.h.mark_tail, "the mark is gone");
        s.stop_stack(false);
        assert_eq!(s.answers(old), b"+OK\r\n");
        assert_eq!(s.call(other, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        s.finish();
    }
}

/// Silent requests, whose answers never come, do not prove anything; who has had one silent request is
/// answered as any other.
pub(crate) fn older_and_silent() {
    for mode in [b"OFF".as_slice(), b"SKIP"] {
        let mut s = Scenario::new(Setup {
            attached: false,
            ..Setup::default()
        });
        s.unseen(&[b"SET", b"k", b"v"]);
        let old = s.open_on(1, None);
        s.call(old, &[b"PING"]);
        s.attach();
        // What it says first is not read: its begin is not known.
        s.write(old, &request(&[b"CLIENT", b"REPLY", mode]), 0);
        s.run(2 * SECOND);
        assert_eq!(s.stat(abi::STAT_TRIAL), 1, "{}", s.counters());
        s.write(old, &request(&[b"GET", b"k"]), 0);
        s.run(2 * SECOND);
        assert_eq!(s.stat(abi::STAT_TRIAL_FAILED), 1, "{}", s.counters());
        for _ in 0..3 {
            if mode == b"OFF" {
                s.write(old, &request(&[b"GET", b"k"]), 0);
            } else {
                assert_eq!(s.call(old, &[b"GET", b"k"]), b"$1\r\nv\r\n");
            }
            s.run(2 * SECOND);
        }
        assert_eq!(is_fast(&s, old), mode == b"SKIP", "{}", s.counters());
    }
}
