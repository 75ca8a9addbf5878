// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lease, the feed, restarts (C-17, C-18, C-26, C-30, C-34, C-35, C-42).

use erb_abi as abi;
use erb_sim_redis::CrashMode;

use crate::ConnId;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND};

fn setup() -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.call(client, &[b"GET", b"k"]);
    assert!(s.stat(abi::STAT_FAST_GET) > 0, "{}", s.counters());
    (s, client)
}

pub(crate) fn dead_daemon() {
    let (mut s, client) = setup();
    s.kill_daemon();
    s.unseen(&[b"SET", b"k", b"new"]);
    s.run(abi::LEASE_MS as u64 * MS);
    let refused = s.stat(abi::STAT_REFUSE_LEASE);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    assert_eq!(s.stat(abi::STAT_REFUSE_LEASE), refused + 1);
    s.attach();
    for _ in 0..20 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        s.run(5 * MS);
    }
    s.finish();
}

pub(crate) fn stopped_daemon() {
    let (mut s, client) = setup();
    s.stop_daemon(true);
    s.run(abi::LEASE_MS as u64 * MS);
    s.unseen(&[b"SET", b"k", b"new"]);
    let fast = s.stat(abi::STAT_FAST_GET);
    for _ in 0..5 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        s.run(SECOND);
    }
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast, "answered without a lease");
    s.stop_daemon(false);
    s.run(SECOND);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    s.finish();
}

pub(crate) fn silent_redis() {
    let (mut s, client) = setup();
    s.stop_redis(true);
    s.run(250 * MS);
    assert!(
        s.control().lease_until_ns < s.now(),
        "renewed although Redis says nothing"
    );
    let fast = s.stat(abi::STAT_FAST_GET);
    s.ask(client, &[b"GET", b"k"]);
    s.run(MS);
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast);
    s.stop_redis(false);
    assert_eq!(s.answers(client), b"$1\r\nv\r\n");
    s.finish();
}

pub(crate) fn pong_behind_the_pushes() {
    over_seeds(1..17, &Setup::default(), |mut s| {
        s.cached(b"k", b"v");
        let client = s.fast();
        s.call(client, &[b"GET", b"k"]);
        // The daemon reads nothing for a while in which Redis answers its PINGs and pushes.
        s.run(10 * MS * (s.world.inner.plan.seed % 6));
        s.stop_daemon(true);
        s.run(60 * MS);
        s.unseen(&[b"SET", b"k", b"new"]);
        s.run(200 * MS);
        s.stop_daemon(false);
        for _ in 0..20 {
            assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
            s.run(200_000);
        }
        s.finish();
    });
}

pub(crate) fn adopted_by_a_new_daemon() {
    let (mut s, client) = setup();
    let before = s.control();
    s.kill_daemon();
    s.unseen(&[b"SET", b"k", b"new"]);
    s.settle();
    s.attach();
    let after = s.control();
    assert_ne!(before.cache_epoch, after.cache_epoch, "the cache was kept");
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    let entry = s.entry(client).expect("connections are kept");
    assert!(entry.out_delta > 0);
    s.finish();
}

pub(crate) fn feed_is_killed() {
    let (mut s, client) = setup();
    let cleared = s.stat(abi::STAT_CACHE_CLEARED);
    s.world.server.cut_feed();
    s.unseen(&[b"SET", b"k", b"new"]);
    s.run(120 * MS);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    s.run(SECOND);
    assert!(
        s.stat(abi::STAT_CACHE_CLEARED) > cleared,
        "the cache was kept"
    );
    for _ in 0..20 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        s.run(5 * MS);
    }
    s.finish();
}

pub(crate) fn redis_comes_back_with_less() {
    over_seeds(1..9, &Setup::default(), |mut s| {
        s.cached(b"k", b"v");
        s.run(3 * SECOND); // in the log
        let client = s.fast();
        s.call(client, &[b"SET", b"k", b"lost"]);
        for _ in 0..10 {
            s.call(client, &[b"GET", b"k"]);
            s.run(5 * MS);
        }
        assert!(s.stat(abi::STAT_FAST_GET) > 0);
        let epoch = s.control().cache_epoch;
        s.world.server.crash_redis(CrashMode::Process);
        s.run(50 * MS);
        s.world.server.restart_redis();
        s.run(SECOND);
        let again = s.fast();
        // What it is now, the checks know from Redis's log.
        for _ in 0..10 {
            s.call(again, &[b"GET", b"k"]);
            s.run(5 * MS);
        }
        assert_ne!(s.control().cache_epoch, epoch, "the cache was kept");
        s.finish();
    });
}

pub(crate) fn unseen_writer_is_late_by_the_lease() {
    let (mut s, client) = setup();
    let mut late = 0;
    for round in 0..50 {
        let value = format!("value{round}");
        s.unseen(&[b"SET", b"k", value.as_bytes()]);
        let reply = format!("${}\r\n{value}\r\n", value.len());
        let began = s.now();
        while s.call(client, &[b"GET", b"k"]) != reply.as_bytes() {
            assert!(
                s.now() - began < u64::from(abi::LEASE_MS) * MS,
                "later than the lease"
            );
            late += 1;
        }
        for _ in 0..4 {
            s.call(client, &[b"GET", b"k"]);
            s.run(2 * MS);
        }
    }
    assert!(s.stat(abi::STAT_FAST_GET) > 20, "{late}");
    s.finish();
}

pub(crate) fn two_daemons() {
    let (mut s, client) = setup();
    // The dead daemon's feed may still be open at Redis when the next one makes its own.
    s.kill_daemon();
    s.attach();
    s.kill_daemon();
    s.attach();
    s.unseen(&[b"SET", b"k", b"new"]);
    s.run(20 * MS);
    for _ in 0..20 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        s.run(5 * MS);
    }
    let clients = s.open_on(1, None);
    let list = s.call(clients, &[b"CLIENT", b"LIST"]);
    let feeds = String::from_utf8_lossy(&list)
        .matches("name=erb-feed:sim")
        .count();
    assert_eq!(feeds, 1, "a feed was left behind");
    s.finish();
}

pub(crate) fn rest_and_wake() {
    let (mut s, client) = setup();
    s.run(10 * SECOND);
    assert!(
        s.control().lease_until_ns < s.now(),
        "the lease never rests"
    );
    s.unseen(&[b"SET", b"k", b"new"]);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    s.run(200 * MS);
    assert!(s.control().lease_until_ns > s.now(), "nobody woke it");
    s.finish();
}

/// Why the daemon says that it does not serve.
fn reasons(s: &Scenario) -> String {
    let reasons = s
        .world
        .server
        .boost
        .with(|core| core.reasons_against_serving());
    reasons.unwrap_or_default().join("; ")
}

pub(crate) fn password_changed() {
    let (mut s, client) = setup();
    let feed_is_up = |s: &Scenario| s.world.server.boost.with(|core| core.is_feed_up());
    let password = |s: &Scenario, text: &str| {
        s.world.server.boost.password.replace(Some(text.to_owned()));
    };
    s.unseen(&[b"CONFIG", b"SET", b"requirepass", b"new"]);
    // As after a restart of Redis: connections that authenticated before are gone.
    s.world.server.cut_feed();
    s.unseen(&[b"SET", b"k", b"1"]);
    s.run(SECOND);
    assert!(reasons(&s).contains("NOAUTH"), "{}", reasons(&s));
    password(&s, "old");
    s.run(3 * SECOND);
    assert!(reasons(&s).contains("WRONGPASS"), "{}", reasons(&s));
    assert!(
        s.control().serving == 0 && s.control().lease_until_ns < s.now(),
        "a lease without a feed"
    );
    let fast = s.stat(abi::STAT_FAST_GET);
    for round in 2..6 {
        let value = round.to_string();
        s.unseen(&[b"SET", b"k", value.as_bytes()]);
        let reply = format!("$1\r\n{value}\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), reply.as_bytes());
    }
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast, "answered without a feed");
    password(&s, "new");
    s.run(3 * SECOND);
    assert_eq!(feed_is_up(&s), Some(true), "{}", reasons(&s));
    s.unseen(&[b"CONFIG", b"SET", b"requirepass", b""]);
    s.until("ERB serves again", |s| s.control().serving == 1);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\n5\r\n");
    s.finish();
}

pub(crate) fn programs_replaced() {
    over_seeds(1..9, &Setup::default(), |mut s| {
        s.cached(b"k", b"v0");
        let client = s.fast();
        for round in 0..4 {
            let old = format!("$2\r\nv{round}\r\n");
            assert_eq!(s.call(client, &[b"GET", b"k"]), old.as_bytes());
            // Its answer is lost: what the old programs keep, the new ones must send again.
            s.lose_down(1);
            s.ask(client, &[b"GET", b"k"]);
            s.run(MS);
            s.world.server.replace_programs();
            assert_eq!(s.answers(client), old.as_bytes());
            let value = format!("v{}", round + 1);
            s.unseen(&[b"SET", b"k", value.as_bytes()]);
            let new = format!("$2\r\n{value}\r\n");
            // Invalidated by the new daemon, or not answered from the cache at all.
            s.run(u64::from(abi::LEASE_MS) * MS);
            let fast = s.stat(abi::STAT_FAST_GET);
            for _ in 0..30 {
                assert_eq!(s.call(client, &[b"GET", b"k"]), new.as_bytes());
                s.run(20 * MS);
            }
            assert!(
                s.stat(abi::STAT_FAST_GET) > fast,
                "round {round}: no hits again"
            );
        }
        s.finish();
    });
}
