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
