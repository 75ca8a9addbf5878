// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the index allocates, counted by the allocator, against its budget.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use erb_store::mistake::Sound;
use erb_store::{Held, Key, KeyHasher, Place, Retention, RollBack, Target, Version, Versions};

/// What glibc's allocator puts before an allocation, and what it rounds up to.
const ALLOCATION_HEAD_BYTES: usize = 8;
const ALLOCATION_ALIGN_BYTES: usize = 16;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Tests here look at the same count.
static ALONE: Mutex<()> = Mutex::new(());

struct Counting;

fn taken(layout: Layout) -> usize {
    (layout.size() + ALLOCATION_HEAD_BYTES).next_multiple_of(ALLOCATION_ALIGN_BYTES)
}

// SAFETY: All is passed on to the system's allocator unchanged; counting touches no memory of theirs.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(taken(layout), Ordering::Relaxed);
        // SAFETY: The caller keeps alloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(taken(layout), Ordering::Relaxed);
        // SAFETY: The pointer came from `alloc` above, hence from the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Measured {
    before: usize,
    versions: Versions<Sound>,
    now: u64,
    most_over: f64,
}

impl Measured {
    fn new() -> Self {
        let before = ALLOCATED.load(Ordering::Relaxed);
        let hasher = KeyHasher::new([1, 2]);
        Self {
            before,
            versions: Versions::new(hasher, Retention::new(1), usize::MAX, Sound),
            now: 1,
            most_over: 0.0,
        }
    }

    fn put(&mut self, number: u64, key_bytes: usize) {
        self.now += 1;
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.resize(key_bytes, b'k');
        let key = Key {
            namespace: 1,
            bytes: &bytes,
        };
        let held = Held {
            version: Version::new(self.now),
            place: Place::written(self.now * 4096, 100, false),
        };
        self.versions.apply(key, held).expect("a change is taken");
    }

    /// Compares what is allocated with the budget.
    fn check(&mut self, what: &str) {
        let allocated = ALLOCATED.load(Ordering::Relaxed) - self.before;
        let budget = self.versions.budget_bytes();
        let keys = self.versions.keys_len();
        let share = allocated as f64 / budget as f64;
        self.most_over = self.most_over.max(share);
        assert!(
            allocated <= budget,
            "{what}: {keys} keys take {allocated} bytes, the budget is {budget}"
        );
        // What the index says of itself is what it takes, but for the allocator's own.
        let said = self.versions.memory_bytes();
        assert!(
            said <= allocated && said * 21 / 20 >= allocated,
            "{what}: {said}, {allocated}"
        );
    }
}

#[test]
fn a_key_takes_72_bytes_at_every_size() {
    let _alone = ALONE.lock();
    let mut measured = Measured::new();
    for number in 0..1_200_000 {
        measured.put(number, 16);
        // Below it what is there once counts: the first chunks.
        if number >= 30_000 && number % 997 == 0 {
            measured.check("keys");
        }
    }
    println!("at most {:.1} bytes a key", measured.most_over * 72.0);
}

#[test]
fn a_long_key_takes_itself_and_sixteen_bytes_more() {
    let _alone = ALONE.lock();
    for key_bytes in [17, 31, 32, 100, 1000, 1024] {
        let mut measured = Measured::new();
        for number in 0..30_000 {
            measured.put(number, key_bytes);
        }
        measured.check(&format!("keys of {key_bytes} bytes"));
    }
}

#[test]
fn a_further_version_takes_24_bytes_however_keys_are_rewritten() {
    let _alone = ALONE.lock();
    let keys = 40_000;
    let mut state = 1u64;
    for is_random in [false, true] {
        let mut measured = Measured::new();
        for number in 0..12 * keys {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let chosen = if is_random && number >= keys {
                (state >> 33) % keys
            } else {
                number % keys
            };
            measured.put(chosen, 8);
            if number >= keys && number % 9973 == 0 {
                measured.check(&format!("rewriting, random: {is_random}, {number}"));
            }
        }
        println!("at most {:.2} of the budget", measured.most_over);
    }
}

#[test]
fn what_a_roll_back_and_its_undo_make_and_a_sweep_trims_is_within_the_budget() {
    let _alone = ALONE.lock();
    let mut measured = Measured::new();
    for number in 0..3 * 50_000 {
        measured.put(number % 50_000, 8);
    }
    for round in 0..6 {
        measured.now += 1;
        let row = RollBack {
            id: Version::new(measured.now),
            namespace: 1,
            prefix: Vec::new(),
            target: Target::Moment(Version::new(measured.now - 1 - round % 2)),
            unless_written_since: None,
        };
        measured.versions.roll_back(row);
        while measured
            .versions
            .sweep(Version::new(measured.now))
            .done
            .is_none()
        {}
        measured.versions.forget_rows(Version::new(measured.now));
        measured.check("roll backs");
    }
    let floor = Version::new(measured.now);
    measured.versions.retention_mut().raise(floor, floor);
    while measured.versions.sweep(floor).done.is_none() {}
    // The first sweep frees, the second moves what is left together.
    while measured.versions.sweep(floor).done.is_none() {}
    assert_eq!(measured.versions.budget_bytes(), 50_000 * 72);
    measured.check("trimmed");
}
