// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read your writes and all others'.

use erb_check::history::{self, HistoryArgs, Report};
use erb_check::unseen::{self, UnseenArgs};
use erb_e2e::lab::{TestLab, arguments, scaled};
use erb_lab::End;

/// Operations: normal, and in full.
const OPS: (u64, u64) = (40_000, 1_000_000);

fn check(lab: &TestLab, words: &str) -> Report {
    let ops = scaled(OPS.0, OPS.1);
    let words = format!("--target {} --ops {ops} {words}", lab.address());
    let report = lab.inside(End::Client, || {
        history::execute(&arguments::<HistoryArgs>(&words)).expect("history")
    });
    assert!(report.passed, "{report:#?}");
    let counters = lab.assert_settled();
    assert!(counters.get("FAST_GET") > 0, "nothing was answered fast");
    report
}

#[test]
fn concurrent_histories_are_linearizable() {
    let lab = TestLab::boosted_as_users_do("history", &["--direct"]);
    check(&lab, "");
}

#[test]
fn concurrent_histories_are_linearizable_on_a_slow_lossy_link() {
    let lab = TestLab::boosted_as_users_do("historyloss", &[]);
    lab.link("loss=1% dup=1% reorder=2% delay=500us");
    check(&lab, "--conns 32 --keys 16");
}

#[test]
fn a_writer_that_nobody_sees_is_read_no_later_than_the_lease() {
    let lab = TestLab::boosted_with("unseen", &["--direct"]);
    let direct = lab.unseen_address();
    // The lease, and what two busy processors may add between a reply and its time stamp.
    let report = check(&lab, &format!("--direct {direct} --direct-bound-ms 150"));
    assert!(report.direct_reads > 0, "{report:#?}");
}

#[test]
fn changes_of_every_kind_that_nobody_sees_show_within_the_lease() {
    let lab = TestLab::boosted_with("unseenkinds", &["--direct"]);
    assert_changes_show(&lab, &format!("--rounds {}", scaled(10, 500)));
}

/// Asserts that changes of every kind past the boosted devices show within the lease; `more`
/// arguments.
pub(crate) fn assert_changes_show(lab: &TestLab, more: &str) {
    let words = format!(
        "--target {} --direct {} --bound-ms 150 --load 4 --allow-flush {more}",
        lab.address(),
        lab.unseen_address()
    );
    let report = lab.inside(End::Client, || {
        unseen::execute(&arguments::<UnseenArgs>(&words)).expect("unseen")
    });
    println!("{report:#?}");
    assert!(report.passed, "{report:#?}");
    let counters = lab.assert_settled();
    assert!(counters.get("FAST_GET") > 0, "nothing was answered fast");
}
