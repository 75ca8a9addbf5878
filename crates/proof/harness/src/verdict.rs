// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a failed test's output says: whether the test may be repeated, and what the machine lacked.

use erb_steady::Cause;

/// Where Rust says that a thread panicked; the message begins on the next line.
const PANICKED: &str = " panicked at ";
/// Panics that only tell of another one, in a thread that was waited for.
const FOLLOWERS: [&str; 2] = ["a scoped thread panicked", "a thread of this test panicked"];
/// What is red at once wherever it stands in the output, also beside marked panics.
const RED: [&str; 6] = [
    "ERROR: AddressSanitizer",
    "WARNING: ThreadSanitizer",
    "runtime error: ",
    "invariants broken",
    "not linearizable",
    "VIOLATION ",
];
/// What the system says when the machine is short of something.
const SHORT_OF: [(&str, &str); 6] = [
    ("Cannot allocate memory", "memory"),
    ("Out of memory", "memory"),
    ("No space left on device", "room on a disk"),
    (
        "Cannot assign requested address",
        "local ports or addresses",
    ),
    ("Too many open files", "file descriptors"),
    (
        "Resource temporarily unavailable (os error 11)",
        "processes or locked memory",
    ),
];

/// What becomes of a failed test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It counts as it is.
    Red,
    /// It is repeated once, alone: all its panics are of set-up, pace or patience.
    Repeat(Cause),
}

/// Judges the output of a failed test.
pub fn of(output: &str) -> Verdict {
    if RED.iter().any(|word| output.contains(word)) {
        return Verdict::Red;
    }
    let mut causes = Vec::new();
    for message in panics(output) {
        if FOLLOWERS.iter().any(|word| message.contains(word)) {
            continue;
        }
        match Cause::of(message) {
            Some(cause) => causes.push(cause),
            None => return Verdict::Red,
        }
    }
    // None: it was ended, or failed in another way than by a panic.
    causes
        .first()
        .map_or(Verdict::Red, |cause| Verdict::Repeat(*cause))
}

/// First lines of the messages of all panics.
fn panics(output: &str) -> impl Iterator<Item = &str> {
    let mut lines = output.lines();
    std::iter::from_fn(move || {
        // A child may have begun the line.
        lines.find(|line| line.contains("thread '") && line.contains(PANICKED))?;
        Some(lines.next().unwrap_or_default())
    })
}

/// What the machine was short of, by the words of the system.
pub fn short_of(output: &str) -> Vec<&'static str> {
    let found = SHORT_OF.iter().filter(|(words, _)| output.contains(words));
    let mut found: Vec<&str> = found.map(|(_, what)| *what).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panicked(message: &str) -> String {
        format!("thread 'x' (7) panicked at crates/x.rs:1:2:\n{message}\nnote: run with\n")
    }

    #[test]
    fn only_marked_panics_are_repeated() {
        let patience = panicked("[patience] after 15s: not serving");
        assert_eq!(of(&patience), Verdict::Repeat(Cause::Patience));
        let both = patience.clone() + &panicked("assertion `left == right` failed: wrong bytes");
        assert_eq!(of(&both), Verdict::Red);
        let in_a_line = patience.clone() + "of a child: " + &panicked("wrong bytes");
        assert_eq!(of(&in_a_line), Verdict::Red);
        assert_eq!(of(&panicked("assertion failed")), Verdict::Red);
        assert_eq!(of("no panic"), Verdict::Red);
    }

    #[test]
    fn panics_that_tell_of_others_do_not_count() {
        let set_up = panicked("[set-up] no lab") + &panicked("a scoped thread panicked");
        assert_eq!(of(&set_up), Verdict::Repeat(Cause::SetUp));
        assert_eq!(of(&panicked("a scoped thread panicked")), Verdict::Red);
    }

    #[test]
    fn reports_of_sanitizers_and_broken_invariants_are_red_beside_marks() {
        for word in RED {
            let output = panicked("[pace] 1 of 2") + word;
            assert_eq!(of(&output), Verdict::Red, "{word}");
        }
    }

    #[test]
    fn what_the_machine_lacks_is_named() {
        let output = "bind: Cannot assign requested address (os error 99)";
        assert_eq!(short_of(output), ["local ports or addresses"]);
        assert!(short_of("wrong bytes").is_empty());
    }
}
