// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every reply byte-exact under loss, duplication, reordering, corruption and delay.

use std::net::SocketAddr;

use erb_check::shadow::{self, Report, ShadowArgs};
use erb_e2e::lab::{TestLab, arguments, scaled};
use erb_lab::End;

/// All faults at once.
const FAULTS: &str = "loss=1% dup=0.5% reorder=2% corrupt=0.1% delay=2ms";
/// Seconds of the run: normal, and in full.
const SECONDS: (u64, u64) = (25, 600);

fn compare(lab: &mut TestLab, target: SocketAddr, seconds: u64, words: &str) -> Report {
    let plain = lab.plain_redis();
    let words = format!("--target {target} --shadow {plain} --seconds {seconds} {words}");
    let report = lab.inside(End::Client, || {
        shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
    });
    assert!(report.passed, "{report:#?}");
    report
}

fn byte_exact_under_faults(lab: &mut TestLab, target: SocketAddr, seconds: u64) {
    lab.link(FAULTS);
    compare(lab, target, seconds, "--conns 50");
    lab.link_reset();
    let counters = lab.assert_settled();
    assert!(counters.get("FAST_GET") > 0, "nothing was answered fast");
}

#[test]
fn replies_are_byte_exact_under_all_faults() {
    let mut lab = TestLab::boosted("faults");
    let target = lab.address();
    byte_exact_under_faults(&mut lab, target, scaled(SECONDS.0, SECONDS.1));
}

#[test]
fn replies_are_byte_exact_under_all_faults_over_ipv6() {
    let mut lab = TestLab::boosted_as_users_do("faults6", &[]);
    let target = lab.address6();
    byte_exact_under_faults(&mut lab, target, scaled(SECONDS.0 / 2, SECONDS.1 / 2));
}

#[test]
fn small_values_are_byte_exact_and_fast_under_heavy_loss() {
    let mut lab = TestLab::boosted("loss");
    let target = lab.address();
    lab.link("loss=5% dup=2% reorder=5% corrupt=0.5% delay=1ms");
    compare(
        &mut lab,
        target,
        scaled(12, 120),
        "--conns 30 --value-max 200",
    );
    lab.link_reset();
    let counters = lab.assert_settled();
    assert!(counters.get("FAST_GET") > 0, "nothing was answered fast");
    let replays = counters.get("REPLAY_REQUEST")
        + counters.get("REPLAY_ACK")
        + counters.get("REPLAY_TIMEOUT");
    assert!(
        replays > 0,
        "no fast reply was lost: the test shows nothing"
    );
}

#[test]
fn replies_are_byte_exact_without_a_middle_box() {
    let mut lab = TestLab::boosted_with("direct", &["--direct"]);
    let target = lab.address();
    compare(&mut lab, target, scaled(8, 60), "--conns 50");
    lab.assert_settled();
}
