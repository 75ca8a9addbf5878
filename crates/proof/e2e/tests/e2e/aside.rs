// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A load that no cache helps is left alone, and found again when it turns good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use erb_check::net::Conn;
use erb_e2e::calls::{bulk, call, expect, pipeline, set};
use erb_e2e::lab::{TestLab, wait};

/// 2,048 entries.
const CACHE: &str = "1M";
/// Sixteen times as many, and as many as are cached all the time.
const MANY: usize = 32_768;
const FEW: usize = 600;
const CLIENTS: u64 = 3;
/// Bytes of a value: with its key it takes one of the smallest slots.
const VALUE_BYTES: usize = 90;
/// Keys in Redis's list of who has read what, at which it tells of all changes again.
const LIST_MAX: usize = 20_000;
/// What a lease hides, and what a busy machine adds.
const HIDDEN: Duration = Duration::from_millis(500);
/// From one level to the next: a try comes every 30 s, and the machine does other things.
const MOVE_WAIT: Duration = Duration::from_secs(90);

/// Ends the readers, also when an assertion fails: their scope waits for them.
struct Stop<'a>(&'a AtomicUsize);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn value(number: usize) -> String {
    format!("{number:0VALUE_BYTES$}")
}

fn write_all(conn: &mut Conn) {
    let keys: Vec<usize> = (0..MANY).collect();
    for some in keys.chunks(100) {
        let sets = some
            .iter()
            .map(|key| format!("SET key{key} {}", value(*key)));
        let replies = pipeline(conn, &sets.collect::<Vec<_>>().join(";"));
        assert_eq!(replies, "+OK\r\n".repeat(some.len()));
    }
}

/// Reads keys at random until their number is 0; each value must be its own.
fn read(mut conn: Conn, keys: &AtomicUsize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        let keys = keys.load(Ordering::Relaxed);
        if keys == 0 {
            return;
        }
        let key = random.usize(..keys);
        expect(&mut conn, &format!("GET key{key}"), &bulk(&value(key)));
    }
}

#[test]
fn a_load_that_no_cache_helps_is_left_alone_and_found_when_it_turns_good() {
    let lab = TestLab::up("aside", &["--direct"]);
    write_all(&mut lab.unseen());
    let redis = lab.address().to_string();
    let words = [
        "boost",
        "--dev",
        "s0",
        "--redis",
        &redis,
        "--cache-size",
        CACHE,
    ];
    let boost = lab.erb(&words);
    assert!(boost.status.success(), "{boost:?}");
    lab.wait_admitting();
    let keys = AtomicUsize::new(MANY);
    let until = |good: &dyn Fn(u8) -> bool| {
        wait(MOVE_WAIT, || {
            let aside = lab.try_status()?.aside;
            good(aside.level).then_some(()).ok_or(format!("{aside:?}"))
        });
        lab.status()
    };
    scope(|scope| {
        for seed in 0..CLIENTS {
            let (conn, keys) = (lab.client(), &keys);
            scope.spawn(move || read(conn, keys, seed));
        }
        let _stop = Stop(&keys);
        let left = until(&|level| level > 0);
        // On a busy machine a second of few requests may bring it back once more.
        assert!(left.aside.to_1 >= 1, "{:?}", left.aside);
        let off = until(&|level| level == 2);
        assert!(off.aside.sample_hit_ratio.is_some_and(|ratio| ratio < 0.5));
        assert!(off.counter("REFUSE_ASIDE") > left.counter("REFUSE_ASIDE"));
        keys.store(FEW, Ordering::Relaxed);
        let back = until(&|level| level == 0);
        let moved = &back.aside;
        assert!(moved.to_0 >= 1 && moved.to_2 >= 1, "{moved:?}");
        let answered = back.counter("FAST_GET").unwrap_or(0);
        wait(MOVE_WAIT, || {
            let status = lab.try_status()?;
            let more = status.counter("FAST_GET").unwrap_or(0) - answered;
            (more > 10_000)
                .then_some(())
                .ok_or(format!("{more} answers"))
        });
    });
    lab.assert_settled();
}

/// Keys of which Redis remembers who has read them.
fn remembered(conn: &mut Conn) -> usize {
    let info = call(conn, "INFO stats");
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.expect("INFO").trim().parse().expect("a number")
}

fn wait_reports(lab: &TestLab, of_read: bool) {
    wait(MOVE_WAIT, || {
        let aside = lab.try_status()?.aside;
        (aside.reports_of_read == of_read)
            .then_some(())
            .ok_or(format!("{aside:?}"))
    });
}

#[test]
fn writes_of_what_nobody_reads_are_not_reported_for_long() {
    let lab = TestLab::boosted_as_users_do("aside-writes", &["--direct"]);
    let (writes, mut conn) = (AtomicUsize::new(1), lab.client());
    scope(|scope| {
        for seed in 0..CLIENTS {
            let (mut conn, writes) = (lab.client(), &writes);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while writes.load(Ordering::Relaxed) > 0 {
                    call(&mut conn, &format!("INCR count{}", random.usize(..MANY)));
                }
            });
        }
        let _stop = Stop(&writes);
        wait(MOVE_WAIT, || {
            let aside = lab.try_status()?.aside;
            (aside.reports_of_read && aside.level == 2)
                .then_some(())
                .ok_or(format!("{aside:?}"))
        });
        expect(&mut conn, "GET other", "$-1\r\n");
    });
    lab.assert_settled();
}

#[test]
fn what_was_read_is_true_however_redis_is_told_to_report() {
    let lab = TestLab::boosted_as_users_do("aside-reports", &["--direct"]);
    let (mut conn, mut unseen) = (lab.client(), lab.unseen());
    for round in 0..6 {
        let of_read = round % 2 == 0;
        let reports = if of_read { "of-read" } else { "all" };
        let done = lab.erb(&["aside", "0", "--reports", reports]);
        assert!(done.status.success(), "{done:?}");
        wait_reports(&lab, of_read);
        set(&mut unseen, "k", "old");
        lab.heat(&mut conn, "k");
        set(&mut unseen, "k", "new");
        sleep(HIDDEN);
        expect(&mut conn, "GET k", &bulk("new"));
        lab.heat(&mut conn, "k");
        call(&mut unseen, "FLUSHALL");
        sleep(HIDDEN);
        expect(&mut conn, "GET k", "$-1\r\n");
        if of_read {
            wait(MOVE_WAIT, || {
                // Read on: entries that a busy machine left unread have put the key in doubt.
                expect(&mut conn, "GET k", "$-1\r\n");
                let keys = remembered(&mut unseen);
                (keys > 0).then_some(()).ok_or("not filled".to_owned())
            });
        } else {
            assert_eq!(remembered(&mut unseen), 0);
        }
    }
    lab.assert_settled();
}

#[test]
fn a_redis_that_remembers_too_much_is_told_to_report_all() {
    let lab = TestLab::boosted_as_users_do("aside-list", &["--direct"]);
    let (mut reader, mut conn) = (lab.unseen(), lab.client());
    let done = lab.erb(&["aside", "2"]);
    assert!(done.status.success(), "{done:?}");
    let busy = |conn: &mut Conn| {
        for _ in 0..20 {
            let incrs: Vec<String> = (0..100).map(|key| format!("INCR n{key}")).collect();
            pipeline(conn, &incrs.join(";"));
        }
    };
    let until = |conn: &mut Conn, of_read: bool| {
        wait(MOVE_WAIT, || {
            busy(conn);
            let aside = lab.try_status()?.aside;
            (aside.reports_of_read == of_read)
                .then_some(())
                .ok_or(format!("{aside:?}"))
        });
    };
    until(&mut conn, true);
    call(&mut reader, "HELLO 3");
    call(&mut reader, "CLIENT TRACKING ON");
    for some in (0..=LIST_MAX).collect::<Vec<_>>().chunks(100) {
        let gets = some.iter().map(|key| format!("GET key{key}"));
        pipeline(&mut reader, &gets.collect::<Vec<_>>().join(";"));
    }
    assert!(remembered(&mut lab.unseen()) > LIST_MAX);
    until(&mut conn, false);
    lab.assert_settled();
}
