// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints what the index costs: ns for a put and a read, random keys; bytes for a key; the longest call.
//!
//! `cargo run --release -p erb-store --example index_cost -- 10000000`

use std::time::{Duration, Instant};

use erb_store::mistake::Sound;
use erb_store::{
    Condition, Held, Key, KeyHasher, Place, Retention, RollBack, Selector, Target, Version,
    Versions,
};

const READS: u64 = 2_000_000;
const BACKS: [u32; 5] = [1, 3, 10, 100, 1000];

struct Timed {
    began: Instant,
    calls: u64,
    longest: Duration,
}

impl Timed {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            calls: 0,
            longest: Duration::ZERO,
        }
    }

    /// Times single calls too: that costs some 40 ns each.
    fn each<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = call();
        self.longest = self.longest.max(began.elapsed());
        self.calls += 1;
        result
    }

    fn print(&self, what: &str) {
        let mean_ns = self.began.elapsed().as_nanos() as u64 / self.calls.max(1);
        let longest_us = self.longest.as_micros();
        println!(
            "{what}: {mean_ns} ns, the longest {longest_us} us, {} calls",
            self.calls
        );
    }
}

fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    *state >> 24
}

fn key(bytes: &[u8; 8]) -> Key<'_> {
    Key {
        namespace: 1,
        bytes,
    }
}

fn held(version: u64) -> Held {
    Held {
        version: Version::new(version),
        place: Place::written(version * 4096, 100, false),
    }
}

fn main() {
    let keys = std::env::args().nth(1).and_then(|keys| keys.parse().ok());
    let keys: u64 = keys.unwrap_or(1_000_000);
    let hasher = KeyHasher::new([1, 2]);
    let mut versions = Versions::new(hasher, Retention::new(1), usize::MAX, Sound);
    let mut now = 1;
    let mut timed = Timed::new();
    for number in 0..keys {
        now += 1;
        timed.each(|| {
            let bytes = number.to_be_bytes();
            let prepared = versions.prepare(key(&bytes), Condition::Any);
            prepared
                .and_then(|_| versions.apply(key(&bytes), held(now)))
                .expect("there is room");
        });
    }
    timed.print("put of a new key");
    println!("{} bytes a key", versions.memory_bytes() as u64 / keys);
    reads(&mut versions, keys, now, "get of the head");
    once(
        &mut versions,
        keys,
        now,
        "get of each key before a roll back",
    );
    let row = RollBack {
        id: Version::new(now + 1),
        namespace: 1,
        prefix: Vec::new(),
        target: Target::Moment(Version::new(now / 2)),
        unless_written_since: None,
    };
    let mut timed = Timed::new();
    timed.each(|| versions.roll_back(row));
    timed.print("roll back of all");
    once(
        &mut versions,
        keys,
        now + 1,
        "first get of each key after it",
    );
    once(&mut versions, keys, now + 1, "second get of each key");
    let mut timed = Timed::new();
    while timed
        .each(|| versions.sweep(Version::new(now + 1)).done)
        .is_none()
    {}
    timed.print("slice of a sweep");
    back(&mut versions, now + 2);
}

fn reads(versions: &mut Versions<Sound>, keys: u64, cut: u64, what: &str) {
    let (mut state, mut timed) = (7, Timed::new());
    for _ in 0..READS {
        let bytes = (next(&mut state) % keys).to_be_bytes();
        timed
            .each(|| versions.read(key(&bytes), Selector::Head, Version::new(cut)))
            .ok();
    }
    timed.print(what);
}

/// Each key once, far from the one before it: the median, which others on this machine do not change.
fn once(versions: &mut Versions<Sound>, keys: u64, cut: u64, what: &str) {
    let mut times = Vec::new();
    for number in 0..keys {
        let bytes = (number * 7919 % keys).to_be_bytes();
        let began = Instant::now();
        let read = versions.read(key(&bytes), Selector::Head, Version::new(cut));
        times.push(began.elapsed());
        assert!(std::hint::black_box(read).is_ok());
    }
    times.sort();
    println!("{what}: {} ns, p50", times[times.len() / 2].as_nanos());
}

fn back(versions: &mut Versions<Sound>, from: u64) {
    let bytes = 3u64.to_be_bytes();
    for version in from..from + 2000 {
        versions
            .apply(key(&bytes), held(version))
            .expect("there is room");
    }
    for back in BACKS {
        let mut timed = Timed::new();
        for _ in 0..READS {
            let read = versions.read(key(&bytes), Selector::Back(back), Version::MAX);
            assert!(std::hint::black_box(read).is_ok());
            timed.calls += 1;
        }
        timed.print(&format!("get {back} back"));
    }
}
