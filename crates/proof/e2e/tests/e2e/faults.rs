// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every reply byte-exact under loss, duplication, reordering, corruption and delay.

use std::net::SocketAddr;

use erb_check::shadow::{self, Report, ShadowArgs};
use erb_e2e::lab::{STATE_WAIT, TestLab, arguments, scaled, wait};
use erb_lab::End;

/// All faults at once.
const FAULTS: &str = "loss=1% dup=0.5% reorder=2% corrupt=0.1% delay=2ms";
/// Seconds of the run: normal, and in full.
const SECONDS: (u64, u64) = (10, 600);

fn compare(lab: &mut TestLab, target: SocketAddr, seconds: u64, words: &str) -> Report {
    let plain = lab.plain_redis();
    let words = format!("--target {target} --shadow {plain} --seconds {seconds} {words}");
    let report = lab.inside(End::Client, || {
        shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
    });
    assert!(report.passed, "{report:#?}");
    report
}

/// Compares until something was answered fast.
fn byte_exact_under_faults(lab: &mut TestLab, target: SocketAddr, seconds: u64) {
    wait(STATE_WAIT, || {
        lab.link(FAULTS);
        compare(lab, target, seconds, "--conns 50");
        lab.link_reset();
        let fast = lab.assert_settled().get("FAST_GET");
        (fast > 0)
            .then_some(())
            .ok_or("nothing was answered fast".to_owned())
    });
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
    wait(STATE_WAIT, || {
        lab.link("loss=5% dup=2% reorder=5% corrupt=0.5% delay=1ms");
        let words = "--conns 30 --value-max 200";
        compare(&mut lab, target, scaled(6, 120), words);
        lab.link_reset();
        let counters = lab.assert_settled();
        let replays = ["REPLAY_REQUEST", "REPLAY_ACK", "REPLAY_TIMEOUT"];
        let replays: u64 = replays.iter().map(|name| counters.get(name)).sum();
        // Otherwise no fast reply was lost, and the test shows nothing.
        (counters.get("FAST_GET") > 0 && replays > 0)
            .then_some(())
            .ok_or_else(|| counters.text("FAST REPLAY"))
    });
}

#[test]
fn replies_are_byte_exact_without_a_middle_box() {
    let mut lab = TestLab::boosted_with("direct", &["--direct"]);
    let target = lab.address();
    compare(&mut lab, target, scaled(5, 60), "--conns 50");
    lab.assert_settled();
}
