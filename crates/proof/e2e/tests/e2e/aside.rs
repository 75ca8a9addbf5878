// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A load that no cache helps is left alone, and found again when it turns good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

use erb_check::net::Conn;
use erb_e2e::calls::{bulk, expect, pipeline};
use erb_e2e::lab::{TestLab, wait};

/// 2,048 entries.
const CACHE: &str = "1M";
/// Sixteen times as many, and as many as are cached all the time.
const MANY: usize = 32_768;
const FEW: usize = 600;
const CLIENTS: u64 = 3;
/// Bytes of a value: with its key it takes one of the smallest slots.
const VALUE_BYTES: usize = 90;
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
