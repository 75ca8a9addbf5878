// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A veth pair whose other end runs no XDP program, as an ordinary container has it: XDP's answers would
//! wait there, so the TC tier answers.

use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_e2e::calls::{bulk, expect, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_e2e::turn::Turn;
use erb_lab::End;
use erb_report::AttachMode;
use erb_steady::too_slow;

/// One command after the other, for so long.
const PACE: Duration = Duration::from_secs(1);

/// Share of Redis's pace that is "not far below": answers that wait leave a tenth of it, and a busy machine
/// takes some from either.
const SHARE: u32 = 2;

fn lab(name: &str) -> TestLab {
    let mut lab = TestLab::up_in(Turn::alone(), name, &["--direct"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    lab
}

fn client(lab: &TestLab, words: &str) {
    lab.exec(End::Client, &words.split_whitespace().collect::<Vec<_>>());
}

/// Takes the lab's XDP program off the client's end; GRO as it is said.
fn no_xdp(lab: &TestLab, gro: &str) {
    client(lab, "ip link set c0 xdp off");
    client(lab, &format!("ethtool -K c0 gro {gro}"));
}

/// Boosts; what was said.
fn boost(lab: &TestLab, words: &[&str]) -> String {
    let output = lab.boost(&[&["--dev", "s0"], words].concat());
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    String::from_utf8(output.stdout).expect("words")
}

fn detach(lab: &TestLab) {
    let output = lab.erb(&["detach", "--force"]);
    assert!(output.status.success(), "{output:?}");
}

/// Replies of "k" in [`PACE`].
fn pace(conn: &mut Conn) -> u32 {
    let until = Instant::now() + PACE;
    let mut count = 0;
    while Instant::now() < until {
        expect(conn, "GET k", &bulk("v"));
        count += 1;
    }
    count
}

fn mode(lab: &TestLab) -> AttachMode {
    lab.status().devices[0].mode
}

/// Both without GRO, as a veth device begins, and with it, which polls and wakes nobody.
#[test]
fn the_tc_tier_answers_where_xdp_would_wait() {
    let lab = lab("otherend");
    set(&mut lab.client(), "k", "v");
    for gro in ["off", "on"] {
        no_xdp(&lab, gro);
        let alone = pace(&mut lab.client());
        let said = boost(&lab, &[]);
        let line = "boosted s0 (TC alone, its other end has no XDP program";
        assert!(said.contains(line), "{said}");
        assert_eq!(mode(&lab), AttachMode::Tc);
        let mut conn = lab.client();
        lab.heat(&mut conn, "k");
        let before = lab.counters().get("FAST_PACKET_TC");
        let boosted = pace(&mut conn);
        let answered = lab.counters().get("FAST_PACKET_TC") - before;
        println!("GRO {gro}: {alone} replies of Redis alone, {boosted} boosted, {answered} fast");
        if boosted * SHARE < alone || answered * 2 <= u64::from(boosted) {
            too_slow(format_args!(
                "{boosted} of {alone}, {answered} fast, GRO {gro}"
            ));
        }
        lab.assert_settled();
        detach(&lab);
    }
    // If XDP is asked for by name it is there, and what that means is said.
    let said = boost(&lab, &["--tier", "xdp"]);
    assert!(said.contains("boosted s0 (native XDP and TC)"), "{said}");
    assert!(said.contains("warning: its other end has no"), "{said}");
}

/// The program at the other end goes while clients are answered.
#[test]
fn xdp_leaves_with_the_program_at_the_other_end() {
    let lab = lab("otherendgone");
    let said = boost(&lab, &[]);
    assert!(said.contains("boosted s0 (native XDP and TC)"), "{said}");
    assert!(!said.contains("warning"), "{said}");
    let mut conn = lab.client();
    set(&mut conn, "k", "v");
    lab.heat(&mut conn, "k");
    // With GRO only the other end itself tells.
    no_xdp(&lab, "on");
    wait(STATE_WAIT, || {
        expect(&mut conn, "GET k", &bulk("v"));
        let mode = mode(&lab);
        if mode == AttachMode::Tc {
            Ok(())
        } else {
            Err(format!("{mode:?}"))
        }
    });
    let before = lab.counters();
    let count = pace(&mut conn);
    let after = lab.counters();
    let moved = |name| after.get(name) - before.get(name);
    assert_eq!(moved("FAST_PACKET"), 0, "XDP is gone");
    let answered = moved("FAST_PACKET_TC");
    if answered * 2 <= u64::from(count) {
        too_slow(format_args!("{answered} of {count} are fast"));
    }
    set(&mut conn, "k", "w");
    expect(&mut conn, "GET k", &bulk("w"));
    let said = lab.erb(&["status"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("TC alone: its other end"), "{said}");
    lab.assert_settled();
    // It is not taken back, and the next boost has it again.
    erb_lab::xdp_pass::attach(&lab.lab().state().client.namespace, "c0").expect("attach");
    detach(&lab);
    let said = boost(&lab, &[]);
    assert!(said.contains("boosted s0 (native XDP and TC)"), "{said}");
}
