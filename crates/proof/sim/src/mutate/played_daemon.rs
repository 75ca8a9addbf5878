// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes of the daemon that show in a situation which chance makes too seldom: a scenario makes it.

use super::{DaemonMistake, Mutation, Way, daemon};

/// All of them.
pub(super) const DAEMON: &[Mutation] = &[
    daemon(
        "lease-without-pong",
        "only +PONG renews the lease",
        Way::Scenario("coh-17-silent-redis"),
        DaemonMistake::LeaseWithoutPong,
    ),
    daemon(
        "lease-from-pong",
        "the lease counts from when PING was written",
        Way::Scenario("sharp-late-pong"),
        DaemonMistake::LeaseFromPong,
    ),
    daemon(
        "invalidations-late",
        "an invalidation is handled when it comes",
        Way::Scenario("sharp-last-push"),
        DaemonMistake::InvalidationsLate,
    ),
    daemon(
        "gate-unread",
        "the gate opens when Redis's state was read again",
        Way::Scenario("sharp-gate-state"),
        DaemonMistake::GateUnread,
    ),
    daemon(
        "released-without-proof",
        "a share of the fence is released by proof of execution",
        Way::Scenario("sharp-unread-write"),
        DaemonMistake::ReleasedWithoutProof,
    ),
    daemon(
        "settled-unread",
        "the count of answered shares is noted before the PING whose answer settles them",
        Way::Scenario("fence-reports-handled"),
        DaemonMistake::SettledUnread,
    ),
    daemon(
        "copies-forgotten",
        "the daemon lets copies come again",
        Way::Scenario("copy-comes-again"),
        DaemonMistake::CopiesForgotten,
    ),
    daemon(
        "leaves-owing",
        "nobody leaves while something that was answered is not in Redis",
        Way::Scenario("absorb-owed-at-detach"),
        DaemonMistake::OutstandingUnseen,
    ),
    daemon(
        "outstanding-unseen",
        "Redis tells of all changes while something is not drained",
        Way::Scenario("reports-while-absorbed"),
        DaemonMistake::OutstandingUnseen,
    ),
    daemon(
        "fast-names-unchecked",
        "a fast command whose name another one bears is Redis's",
        Way::Scenario("coh-03-renamed-fast"),
        DaemonMistake::FastNamesUnchecked,
    ),
    daemon(
        "table-not-loaded",
        "what a name means is Redis's to say",
        Way::Scenario("coh-03-renamed-write"),
        DaemonMistake::TableNotLoaded,
    ),
    daemon(
        "makers-harmless",
        "what may make a key is marked, whatever the key becomes",
        Way::Scenario("edge-45-made-into-another-type"),
        DaemonMistake::MakersHarmless,
    ),
    daemon(
        "unknown-is-no-state",
        "a name that nobody knows may be that of a command with a state",
        Way::Scenario("coh-03-renamed-state"),
        DaemonMistake::UnknownIsNoState,
    ),
    daemon(
        "cache-taken-over",
        "a daemon that takes over believes nothing that it finds in the cache",
        Way::Scenario("ops-replaced-unawares"),
        DaemonMistake::CacheTakenOver,
    ),
    daemon(
        "rights-taken-over",
        "a daemon that takes over admits every connection anew",
        Way::Scenario("ops-replaced-unawares"),
        DaemonMistake::RightsTakenOver,
    ),
    daemon(
        "heartbeat-by-limit",
        "Redis hears of a busy client each minute, whatever its idle limit",
        Way::Scenario("edge-08-heartbeat"),
        DaemonMistake::HeartbeatByLimitAlone,
    ),
    daemon(
        "gate-left-to-tick",
        "a proof that opens the fence lets the gate be acknowledged at once",
        Way::Scenario("coh-37-older-never"),
        DaemonMistake::GateLeftToTick,
    ),
    daemon(
        "written-forgotten",
        "a key that is read between its writes is read again as soon as it is written",
        Way::Scenario("seldom-written-again"),
        DaemonMistake::WrittenForgotten,
    ),
    daemon(
        "absent-regardless",
        "absences are answered only where the daemon has read that nobody is told of them",
        Way::Profile("absent"),
        DaemonMistake::AbsentRegardless,
    ),
    daemon(
        "sizes-unasked",
        "a value is read only if it is known to be small",
        Way::Scenario("edge-01-large-values"),
        DaemonMistake::SizesUnasked,
    ),
    daemon(
        "closed-forgotten",
        "who takes over goes on with the operator's word",
        Way::Scenario("closed-another-daemon"),
        DaemonMistake::ClosedForgotten,
    ),
    daemon(
        "closed-by-itself",
        "what an operator has closed is not opened by another daemon",
        Way::Scenario("closed-for-hours"),
        DaemonMistake::ClosedByItself,
    ),
    daemon(
        "closed-owing",
        "requests pass unread only when all that was answered is in Redis",
        Way::Scenario("closed-owing"),
        DaemonMistake::OutstandingUnseen,
    ),
    daemon(
        "closed-early",
        "requests pass unread only when the programs have ended that were under way",
        Way::Scenario("closed-beside-a-stop"),
        DaemonMistake::ProgramsUnawaited,
    ),
];
