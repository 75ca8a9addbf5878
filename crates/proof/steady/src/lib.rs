// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every test of the workspace may use so that `./test` is red only when the change is wrong.
//!
//! A test fails for one of two reasons. Either the product did something wrong: wrong bytes, a broken
//! history, a lost write. That is an ordinary panic, and `./test` is red at once. Or the test did not get
//! what it needs from the machine: its set-up failed ([`set_up_failed`]), something was too slow beside
//! something else of the same run ([`too_slow`]), or what it waited for did not come in time
//! ([`wait`], [`out_of_patience`]). These panics begin with a mark ([`Cause::mark`]). The harness
//! (`crates/proof/harness`) repeats such a test alone, once. If it passes then, it is listed as unsteady.
//!
//! No dependencies: product crates use this one in their tests (dev-dependencies) as well.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a line begins with by which a test tells that it skipped itself. The reason follows.
pub const SKIPPED: &str = "skipped: ";
/// What a line begins with that names what a test leaves to `./test --long`, or to its next part.
pub const LEFT: &str = "left: ";
/// Set to 1 by `./test --long`: complete runs instead of smokes.
pub const LONG: &str = "ERB_LONG";
/// Set to 1 by `./test --long` where a canary has to fail.
pub const CANARY: &str = "ERB_CANARY";
/// Between two looks of [`wait`].
const LOOK: Duration = Duration::from_millis(50);
/// By how much every wait is longer than a test asks for: tests name what a fast machine needs twice or
/// three times over, and a slow or loaded one needs ten times as much. Nothing waits longer than it must.
const PATIENCE: u32 = 4;

/// Why a test failed that may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// What the test needs around it could not be made: a namespace, a server, a lab.
    SetUp,
    /// One side of a comparison of speed was slower than the other side of the same run allows.
    Pace,
    /// What was waited for did not come in time.
    Patience,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SetUp, Self::Pace, Self::Patience];

    /// What the message of such a panic begins with.
    #[must_use]
    pub const fn mark(self) -> &'static str {
        match self {
            Self::SetUp => "[set-up]",
            Self::Pace => "[pace]",
            Self::Patience => "[patience]",
        }
    }

    /// The cause that a panic's message is marked with, if any.
    #[must_use]
    pub fn of(message: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|cause| message.starts_with(cause.mark()))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::SetUp => "set-up",
            Self::Pace => "pace",
            Self::Patience => "patience",
        })
    }
}

/// Ends the test: what it needs around it could not be made.
///
/// # Panics
/// Always.
#[track_caller]
pub fn set_up_failed(why: impl fmt::Display) -> ! {
    panic!("{} {why}", Cause::SetUp.mark())
}

/// Ends the test: one side was too slow beside the other side of the same run.
///
/// # Panics
/// Always.
#[track_caller]
pub fn too_slow(why: impl fmt::Display) -> ! {
    panic!("{} {why}", Cause::Pace.mark())
}

/// Ends the test: what it waited for did not come.
///
/// # Panics
/// Always.
#[track_caller]
pub fn out_of_patience(why: impl fmt::Display) -> ! {
    panic!("{} {why}", Cause::Patience.mark())
}

/// How long a test waits that asks for `limit`: a guard against hanging, far beyond what a slow machine needs.
#[must_use]
pub const fn patient(limit: Duration) -> Duration {
    limit.saturating_mul(PATIENCE)
}

/// Asks until `good` gives something, at most for [`patient`]`(limit)`.
///
/// # Panics
/// If that takes too long: out of patience, with the last `Err`.
#[track_caller]
pub fn wait<T>(limit: Duration, good: impl FnMut() -> Result<T, String>) -> T {
    ask(limit, good).unwrap_or_else(|why| out_of_patience(why))
}

/// Asks until `good` gives something, at most for [`patient`]`(limit)`.
///
/// # Errors
/// The last `Err` and how long it was asked, if that takes too long.
pub fn ask<T>(limit: Duration, mut good: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let (began, limit) = (Instant::now(), patient(limit));
    loop {
        match good() {
            Ok(found) => return Ok(found),
            Err(why) if began.elapsed() > limit => return Err(format!("after {limit:?}: {why}")),
            Err(_) => sleep(LOOK),
        }
    }
}

/// Asks until `good` gives something that must come however slow the machine is, and whose lack is the product's
/// fault: what was held is never given back, say.
///
/// # Panics
/// If it has not come after [`patient`]`(limit)`: red at once, with the last `Err`.
#[track_caller]
pub fn must_come<T>(limit: Duration, good: impl FnMut() -> Result<T, String>) -> T {
    ask(limit, good).unwrap_or_else(|why| panic!("{why}"))
}

/// Asks until it is so, at most for [`patient`]`(limit)`.
///
/// # Panics
/// If that takes too long: out of patience, with `what` was waited for.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    wait(limit, || {
        is_so()
            .then_some(())
            .ok_or_else(|| format!("not yet: {what}"))
    });
}

/// Whether the complete run was asked for (`ERB_LONG=1`, `./test --long`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os(LONG).is_some_and(|value| value == "1")
}

/// Whether tests named *canary* are to fail: each then demands that its deliberate mistake is seen by no check. `./test
/// --long` runs them so, and is good only if they are red.
#[must_use]
pub fn is_canary() -> bool {
    std::env::var_os(CANARY).is_some_and(|value| value == "1")
}

/// How much of something a test does: `smoke` in `./test`, `whole` in `./test --long`.
#[must_use]
pub fn scaled<T>(smoke: T, whole: T) -> T {
    if long() { whole } else { smoke }
}

/// Tells the harness that this test has not looked at what it is for. The test then returns; it is counted
/// as skipped and named with the reason.
pub fn skipped(why: impl fmt::Display) {
    println!("{SKIPPED}{}", in_a_line(why));
}

/// Tells the harness what this test leaves to `./test --long`. There it tells what the next part has to do:
/// the test is called again.
pub fn left(what: impl fmt::Display) {
    println!("{LEFT}{}", in_a_line(what));
}

fn in_a_line(text: impl fmt::Display) -> String {
    text.to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(of: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(of).expect_err("a panic");
        *panic.downcast::<String>().expect("a text")
    }

    #[test]
    fn marked_panics_are_told_from_others() {
        let made = [
            (Cause::SetUp, message(|| set_up_failed("no lab"))),
            (Cause::Pace, message(|| too_slow("2 of 3"))),
            (Cause::Patience, message(|| out_of_patience("no reply"))),
        ];
        for (cause, message) in made {
            assert_eq!(Cause::of(&message), Some(cause), "{message}");
        }
        assert_eq!(Cause::of("wrong bytes [patience]"), None);
    }

    #[test]
    fn a_wait_ends_with_what_it_found_or_out_of_patience() {
        let mut looks = 0;
        wait_until(Duration::from_secs(10), "third look", || {
            looks += 1;
            looks == 3
        });
        let message = message(|| wait(Duration::ZERO, || Err::<(), _>("still".to_owned())));
        assert!(
            message.starts_with("[patience] after 0ns: still"),
            "{message}"
        );
    }
}
