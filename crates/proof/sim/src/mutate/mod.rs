// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes: each rule left out in turn, in the C (`table.rs`) and in the daemon
//! (`daemon.rs`). A check that has never failed proves nothing; here every one has to.

/// A table of mistakes in the C, all shown in the same way: name, rule, profile or scenario, edits.
macro_rules! mutations {
    ($way:ident, $($name:literal, $rule:literal, $place:literal, [$(($file:literal, $find:literal, $replace:literal)),+ $(,)?];)*) => {
        /// Mistakes in the C.
        pub(super) const SOURCES: &[Mutation] = &[$(Mutation {
            name: $name,
            rule: $rule,
            way: Way::$way($place),
            change: Change::Source(&[$(Edit {
                file: $file,
                find: $find,
                replace: $replace,
            }),+]),
        }),*];
    };
}

mod daemon;
pub mod judged;
mod kept;
mod played;
mod played_daemon;
pub mod profiles;
pub mod source;
mod table;

pub use daemon::{DaemonMistake, Mistaken, said_by};
use source::Edit;

/// What is got wrong.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Texts in `bpf/`.
    Source(&'static [Edit]),
    /// What the daemon does.
    Daemon(DaemonMistake),
}

/// Where a mistake shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In runs of this profile, one seed after the other.
    Profile(&'static str),
    /// In the scenario of this name, which makes the situation.
    Scenario(&'static str),
}

impl std::fmt::Display for Way {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Profile(name) => write!(to, "profile {name}"),
            Self::Scenario(name) => write!(to, "scenario {name}"),
        }
    }
}

/// A deliberate mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// The rule that is broken.
    pub rule: &'static str,
    /// Where it must be caught.
    pub way: Way,
    /// What is got wrong.
    pub change: Change,
}

const fn daemon(
    name: &'static str,
    rule: &'static str,
    way: Way,
    mistake: DaemonMistake,
) -> Mutation {
    Mutation {
        name,
        rule,
        way,
        change: Change::Daemon(mistake),
    }
}

/// The daemon's.
const DAEMON: &[Mutation] = &[
    daemon(
        "never-cleared",
        "the cache is emptied before the first lease of a feed",
        Way::Profile("lease"),
        DaemonMistake::NeverCleared,
    ),
    daemon(
        "invalidations-dropped",
        "invalidations reach the cache",
        Way::Profile("lease"),
        DaemonMistake::InvalidationsDropped,
    ),
    daemon(
        "versions-noted-late",
        "a fill's versions are noted before its GET is written",
        Way::Scenario("sharp-fill-across-write"),
        DaemonMistake::VersionsNotedLate,
    ),
    daemon(
        "never-released",
        "what is held is given back",
        Way::Profile("churn"),
        DaemonMistake::NeverReleased,
    ),
    daemon(
        "never-swept",
        "entries of sockets that are gone are removed",
        Way::Profile("churn"),
        DaemonMistake::NeverSwept,
    ),
    daemon(
        "piece-skipped",
        "a round of the sweep is all pieces of the table",
        Way::Profile("churn"),
        DaemonMistake::PieceSkipped,
    ),
    daemon(
        "clock-unwatched",
        "a step of the wall clock empties the cache",
        Way::Profile("unseen"),
        DaemonMistake::ClockUnwatched,
    ),
    daemon(
        "reports-cache-kept",
        "the cache is emptied when Redis tells of what was read alone",
        Way::Profile("reports"),
        DaemonMistake::KeptAtSwitch,
    ),
    daemon(
        "reports-of-nothing",
        "Redis tells of what was read",
        Way::Profile("reports"),
        DaemonMistake::ReportsOfNothing,
    ),
    daemon(
        "use-untold",
        "what was used is named to Redis by TOUCH",
        Way::Scenario("coh-41-policy"),
        DaemonMistake::UseHidden,
    ),
];

/// All mutations.
pub fn all() -> impl Iterator<Item = &'static Mutation> {
    table::SOURCES
        .iter()
        .chain(DAEMON)
        .chain(played::SOURCES)
        .chain(kept::SOURCES)
        .chain(played_daemon::DAEMON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    #[test]
    fn there_are_enough_and_names_are_unique() {
        let mut names: Vec<&str> = all().map(|mutation| mutation.name).collect();
        assert!(names.len() >= 40);
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
    fn every_way_exists() {
        for mutation in all() {
            let exists = match mutation.way {
                Way::Profile(name) => profiles::find(name).is_some(),
                Way::Scenario(name) => scenario::find(name).is_some(),
            };
            assert!(exists, "{}: no {}", mutation.name, mutation.way);
        }
    }

    #[test]
    fn a_text_that_is_there_twice_is_refused() {
        let twice = Edit {
            file: "splice/splice.h",
            find: "conn->edge",
            replace: "",
        };
        assert!(source::edited(&[twice]).is_err());
    }
}
