// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fills, invalidations, expiry (C-5, C-11, C-14, C-15, C-16, C-43).

use erb_abi as abi;

use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, Ns};

fn racing() -> Setup {
    Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    }
}

pub(crate) fn fill_races_a_write() {
    let stale = std::cell::Cell::new(0);
    over_seeds(1..33, &racing(), |mut s| {
        s.unseen(&[b"SET", b"k", b"old"]);
        let (reader, writer) = (s.fast(), s.fast());
        s.call(reader, &[b"GET", b"k"]);
        // The second miss is reported; the fill is under way when the write comes.
        s.call(reader, &[b"GET", b"k"]);
        let reply = s.write_while_filling(writer, &[b"SET", b"k", b"new"]);
        assert_eq!(reply, b"+OK\r\n");
        for _ in 0..5 {
            assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
            s.run(300_000);
        }
        stale.set(stale.get() + s.stat(abi::STAT_FILL_STALE));
        s.finish();
    });
    assert!(stale.get() > 0, "no fill met the write");
}

pub(crate) fn fill_races_an_unseen_write() {
    over_seeds(1..25, &racing(), |mut s| {
        s.unseen(&[b"SET", b"k", b"old"]);
        let reader = s.fast();
        s.call(reader, &[b"GET", b"k"]);
        s.call(reader, &[b"GET", b"k"]);
        s.run(10_000 * (s.world.inner.plan.seed % 12));
        s.unseen(&[b"SET", b"k", b"new"]);
        s.run(150 * MS);
        for _ in 0..5 {
            assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
            s.run(MS);
        }
        s.finish();
    });
}

pub(crate) fn expired_entry() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    s.unseen(&[b"SET", b"k", b"v", b"PX", b"400"]);
    let client = s.fast();
    let fast = s.stat(abi::STAT_FAST_GET);
    let began = s.now();
    let mut last = 0;
    while s.now() - began < 600 * MS {
        let before = s.stat(abi::STAT_FAST_GET);
        let value = s.call(client, &[b"GET", b"k"]);
        let at = (s.now() - began) / MS;
        // Its absence may be answered.
        if s.stat(abi::STAT_FAST_GET) > before && value != b"$-1\r\n" {
            last = at;
        }
        if at > 400 {
            assert_eq!(value, b"$-1\r\n");
        }
        s.run(2 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > fast, "never filled");
    assert!(s.stat(abi::STAT_REFUSE_EXPIRED) > 0, "the end was not met");
    assert!((100..396).contains(&last), "answered until {last} ms");
    s.finish();
}

pub(crate) fn expiry_through_a_daemon_that_stalls() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"k", b"v", b"PX", b"700"]);
    let client = s.fast();
    s.call(client, &[b"GET", b"k"]);
    s.call(client, &[b"GET", b"k"]);
    // The fill's reply waits for the daemon; the life of the key goes on.
    s.stop_daemon(true);
    s.run(300 * MS);
    s.stop_daemon(false);
    s.run(100 * MS);
    let began = s.now();
    while s.now() - began < 500 * MS {
        s.call(client, &[b"GET", b"k"]); // the checks compare with the true expiry
        s.run(MS);
    }
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
    s.finish();
}

pub(crate) fn wall_clock_steps() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"k", b"v", b"EX", b"100"]);
    let client = s.fast();
    for _ in 0..20 {
        s.call(client, &[b"GET", b"k"]);
        s.run(5 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > 0, "never filled");
    let cleared = s.stat(abi::STAT_CACHE_CLEARED);
    let step = 200_000; // ms, forward: the key is over by Redis's clock
    let diff = s.world.inner.wall_minus_mono_ms.get() + step;
    s.world.inner.wall_minus_mono_ms.set(diff);
    let now = s.now();
    s.world.inner.checks.borrow_mut().wall_stepped(now, diff);
    s.run(1100 * MS);
    assert!(s.stat(abi::STAT_CACHE_CLEARED) > cleared, "not noticed");
    assert_eq!(s.control().wall_minus_mono_ns, diff * MS as i64);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
    s.finish();
}

pub(crate) fn other_databases() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    let other = s.open_on(1, None);
    s.call(other, &[b"SELECT", b"3"]);
    s.call(other, &[b"SET", b"k", b"three"]);
    let fast = s.stat(abi::STAT_FAST_GET);
    assert_eq!(s.call(other, &[b"GET", b"k"]), b"$5\r\nthree\r\n");
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast, "answered from database 0");
    for _ in 0..5 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(5 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > fast);
    s.finish();
}

pub(crate) fn swapdb_pushes_nothing() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.call(client, &[b"GET", b"k"]);
    assert!(s.stat(abi::STAT_FAST_GET) > 0);
    // Seen on the wire: nothing is answered from before.
    let other = s.open_on(1, None);
    assert_eq!(s.call(other, &[b"SWAPDB", b"0", b"1"]), b"+OK\r\n");
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
    assert_eq!(s.call(other, &[b"SWAPDB", b"0", b"1"]), b"+OK\r\n");
    for _ in 0..20 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(5 * MS);
    }
    // By a client that ERB does not see: before the next lease, for which its calls are read.
    s.unseen(&[b"SWAPDB", b"0", b"1"]);
    s.run(Ns::from(abi::LEASE_MS + abi::CLOCK_LAG_MS) * MS);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
    s.finish();
}

pub(crate) fn every_change_is_pushed() {
    let changes: [&[&[u8]]; 8] = [
        &[b"DEL", b"k"],
        &[b"RENAME", b"k", b"l"],
        &[b"FLUSHALL"],
        &[b"FLUSHDB"],
        &[b"PEXPIRE", b"k", b"1"],
        &[b"APPEND", b"k", b"x"],
        &[
            b"EVAL",
            b"return redis.call('set',KEYS[1],ARGV[1])",
            b"1",
            b"k",
            b"w",
        ],
        &[b"MSET", b"k", b"w", b"l", b"x"],
    ];
    for change in changes {
        let mut s = Scenario::new(Setup::default());
        s.cached(b"k", b"v");
        let client = s.fast();
        s.call(client, &[b"GET", b"k"]);
        assert!(s.stat(abi::STAT_FAST_GET) > 0);
        s.unseen(change);
        s.run(20 * MS);
        assert_ne!(
            s.call(client, &[b"GET", b"k"]),
            b"$1\r\nv\r\n",
            "{change:?} was not noticed"
        );
        s.finish();
    }
}

pub(crate) fn mark_of_another_key_of_the_set() {
    let mut s = Scenario::new(Setup {
        sets: 1,
        ..Setup::default()
    });
    s.cached(b"k", b"v");
    let (reader, writer) = (s.fast(), s.fast());
    s.call(reader, &[b"GET", b"k"]);
    let marked = s.stat(abi::STAT_REFUSE_MARKED);
    s.stop_redis(true);
    s.ask(writer, &[b"SET", b"other", b"w"]);
    s.run(MS);
    s.ask(reader, &[b"GET", b"k"]);
    s.run(MS);
    assert_eq!(s.stat(abi::STAT_REFUSE_MARKED), marked + 1, "no mark stood");
    s.stop_redis(false);
    assert_eq!(s.answers(reader), b"$1\r\nv\r\n");
    s.answers(writer);
    let fast = s.stat(abi::STAT_FAST_GET);
    s.call(reader, &[b"GET", b"k"]);
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast + 1, "the mark stayed");
    s.finish();
}

pub(crate) fn more_marks_than_room() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let mut talk = Talk::fast(&mut s);
    s.stop_redis(true);
    for round in 0..abi::MARKS_IN_FLIGHT + 10 {
        let key = format!("key{round}");
        talk.send(&mut s, &[b"SET", key.as_bytes(), b"w"]);
        s.run(100_000);
    }
    assert!(s.control().fence > 0, "what had no room took no fence");
    let reader = s.open();
    s.ask(reader, &[b"GET", b"k"]);
    s.run(MS);
    assert_eq!(s.stat(abi::STAT_FAST_GET), 0, "answered under the fence");
    s.stop_redis(false);
    s.run(50 * MS);
    assert_eq!(s.control().fence, 0, "the fence stayed");
    s.answers(reader);
    assert_eq!(
        s.stat(abi::STAT_MARK_TAKEN),
        s.stat(abi::STAT_MARK_RELEASED)
    );
}
