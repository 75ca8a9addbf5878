// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes: each rule left out in turn, in the C (`table.rs`) and in the daemon
//! (`daemon.rs`). A check that has never failed proves nothing; here every one has to.

mod daemon;
pub mod profiles;
pub mod source;
mod table;

pub use daemon::{DaemonMistake, Mistaken};
use source::Edit;

/// What is got wrong.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Texts in `bpf/`.
    Source(&'static [Edit]),
    /// What the daemon does.
    Daemon(DaemonMistake),
}

/// A deliberate mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// The rule that is broken.
    pub rule: &'static str,
    /// The profile in which it must be caught.
    pub profile: &'static str,
    /// What is got wrong.
    pub change: Change,
}

const fn daemon(
    name: &'static str,
    rule: &'static str,
    profile: &'static str,
    mistake: DaemonMistake,
) -> Mutation {
    Mutation {
        name,
        rule,
        profile,
        change: Change::Daemon(mistake),
    }
}

/// The daemon's.
const DAEMON: &[Mutation] = &[
    daemon(
        "lease-without-pong",
        "only +PONG renews the lease",
        "lease",
        DaemonMistake::LeaseWithoutPong,
    ),
    daemon(
        "lease-from-pong",
        "the lease counts from when PING was written",
        "lease",
        DaemonMistake::LeaseFromPong,
    ),
    daemon(
        "never-cleared",
        "the cache is emptied before the first lease of a feed",
        "lease",
        DaemonMistake::NeverCleared,
    ),
    daemon(
        "invalidations-dropped",
        "invalidations reach the cache",
        "lease",
        DaemonMistake::InvalidationsDropped,
    ),
    daemon(
        "invalidations-late",
        "an invalidation is handled before any later reply",
        "lease",
        DaemonMistake::InvalidationsLate,
    ),
    daemon(
        "versions-noted-late",
        "a fill's versions are noted before its GET is written",
        "races",
        DaemonMistake::VersionsNotedLate,
    ),
    daemon(
        "gate-unread",
        "the gate opens when Redis's state was read again",
        "odd",
        DaemonMistake::GateUnread,
    ),
    daemon(
        "released-without-proof",
        "a share of the fence is released by proof of execution",
        "churn",
        DaemonMistake::ReleasedWithoutProof,
    ),
    daemon(
        "never-released",
        "what is held is given back",
        "churn",
        DaemonMistake::NeverReleased,
    ),
    daemon(
        "never-swept",
        "entries of sockets that are gone are removed",
        "churn",
        DaemonMistake::NeverSwept,
    ),
    daemon(
        "clock-unwatched",
        "a step of the wall clock empties the cache",
        "unseen",
        DaemonMistake::ClockUnwatched,
    ),
];

/// Mutations that no profile has caught yet: either the world does not make the situation, or another
/// rule catches the mistake first, or it only costs speed. Shown as such; the tests want the others.
const OPEN: &[&str] = &[
    "bypass-answered",
    "kernel-behind",
    "replay-full",
    "edge-drop-missing",
    "sack-delta",
    "gap-scanned",
    "scan-twice",
    "made-twice",
    "old-taken-for-new",
    "fill-global-version",
    "fill-under-mark",
    "mark-early",
    "entry-too-long",
    "gate-ignored",
    "argument-off-by-one",
    "body-off-by-one",
    "reply-counted-early",
    "reply-nested",
    "release-keeps",
    "lease-without-pong",
    "lease-from-pong",
    "invalidations-late",
    "gate-unread",
    "released-without-proof",
];

impl Mutation {
    /// Whether it is known not to be caught yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        OPEN.contains(&self.name)
    }
}

/// All mutations.
pub fn all() -> impl Iterator<Item = &'static Mutation> {
    table::SOURCES.iter().chain(DAEMON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_and_names_are_unique() {
        let mut names: Vec<&str> = all().map(|mutation| mutation.name).collect();
        assert!(names.len() - OPEN.len() >= 40);
        assert!(OPEN.iter().all(|name| names.contains(name)));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "two mutations have the same name");
    }

    #[test]
    fn every_text_is_in_the_sources_exactly_once() {
        let mut complaints = Vec::new();
        for mutation in all() {
            if let Change::Source(edits) = mutation.change
                && let Err(error) = source::edited(edits)
            {
                complaints.push(format!("{}: {error}", mutation.name));
            }
        }
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    #[test]
    fn every_profile_exists() {
        for mutation in all() {
            assert!(
                profiles::find(mutation.profile).is_some(),
                "{}",
                mutation.name
            );
        }
    }

    #[test]
    fn a_text_that_is_there_twice_is_refused() {
        let twice = Edit {
            file: "splice.h",
            find: "conn->edge",
            replace: "",
        };
        assert!(source::edited(&[twice]).is_err());
    }
}
