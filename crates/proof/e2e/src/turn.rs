// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose turn it is: labs side by side where they do not disturb each other.

use std::fs::File;
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

/// Labs side by side, of all processes: so many as the fewest processors that tests are run on.
const PLACES: [&str; 2] = ["/run/lock/erb-e2e-0.lock", "/run/lock/erb-e2e-1.lock"];
/// Held while a place is waited for: what waits for all of them would wait for ever otherwise.
const QUEUE: &str = "/run/lock/erb-e2e-queue.lock";
/// Between two looks for a free place.
const LOOK: Duration = Duration::from_millis(50);

/// The places that a test holds; others wait for them while it lives.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held, not read")] Vec<Flock<File>>);

impl Turn {
    /// Waits until no other test is at work: for what measures pace, or needs the whole machine.
    ///
    /// # Panics
    /// If there are no locks.
    #[must_use]
    pub fn alone() -> Self {
        let _queue = locked(QUEUE);
        Self(PLACES.map(locked).into())
    }

    /// Waits for one place: for what has namespaces of its own and asks what is right, not how fast.
    ///
    /// # Panics
    /// If there are no locks.
    #[must_use]
    pub fn beside() -> Self {
        let _queue = locked(QUEUE);
        let free = |path: &&str| {
            let file = lock_file(path);
            Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
        };
        loop {
            match PLACES.iter().find_map(free) {
                Some(place) => return Self(vec![place]),
                None => sleep(LOOK),
            }
        }
    }
}

fn lock_file(path: &str) -> File {
    File::create(path).expect("lock file")
}

/// Waits for a lock of the tests of all processes.
///
/// # Panics
/// If there is no such lock.
#[must_use]
pub fn locked(path: &str) -> Flock<File> {
    Flock::lock(lock_file(path), FlockArg::LockExclusive).expect("lock of the e2e tests")
}
