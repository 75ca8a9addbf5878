// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients on the server's own machine, over TCP: boosted by the TC tier on `lo`, and coherent with
//! those that come by another device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use erb_check::history::{self, HistoryArgs};
use erb_check::net::Conn;
use erb_check::shadow::{self, ShadowArgs};
use erb_e2e::calls::{get, set};
use erb_e2e::lab::{STALL, TestLab, arguments, scaled, until_there};
use erb_e2e::process::Owned;
use erb_lab::End;
use erb_report::AttachMode;
use serde_json::Value;

use crate::trace::{Trace, assert_seen, has_reason};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A lab whose `lo` is boosted, beside the devices named; the daemon's own connection is TCP over
/// `lo` too.
pub(crate) fn boosted(name: &str, devices: &[&str]) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    let redis = local(&lab, HERE).to_string();
    let mut words = vec![
        "boost",
        "--redis",
        &redis,
        "--cache-size",
        "64M",
        "--dev",
        "lo",
    ];
    for device in devices {
        words.extend(["--dev", device]);
    }
    let output = lab.erb(&words);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab
}

fn local(lab: &TestLab, address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, lab.address().port())
}

fn client(lab: &TestLab, to: SocketAddr) -> Conn {
    lab.inside(End::Server, || Conn::connect(to, STALL).expect("connect"))
}

#[test]
fn clients_of_this_machine_are_answered_at_every_address() {
    let lab = boosted("loaddr", &[]);
    let modes: Vec<_> = lab.status().devices.into_iter().map(|d| d.mode).collect();
    assert_eq!(modes, [AttachMode::Tc]);
    let trace = Trace::start(&lab, &["--json"]);
    let v6 = local(&lab, IpAddr::V6(Ipv6Addr::LOCALHOST));
    for to in [local(&lab, HERE), v6, lab.address(), lab.address6()] {
        let mut conn = client(&lab, to);
        set(&mut conn, "hot", &to.to_string());
        lab.heat(&mut conn, "hot");
        assert_eq!(get(&mut conn, "hot"), Some(to.to_string()));
    }
    // The daemon's own connection, which passes lo too, is not shown.
    let packets = trace.packets();
    let hit = ("GET", Some("hot"));
    assert_seen(&packets, hit, "TC ingress", ("answered", "FAST_GET"));
    let foreign = |packet: &&Value| {
        packet["stage"] == "XDP" || packet["command"] == "PING" || has_reason(packet, "UP_FEED")
    };
    assert_eq!(packets.iter().find(foreign), None);
    let counters = lab.assert_settled();
    assert!(
        counters.get("UP_FEED") > 0,
        "the feed passes lo and is left alone"
    );
}

/// Each reads at once what the other wrote.
fn coherent(lab: &TestLab, one: &mut Conn, other: &mut Conn) {
    for number in 0..scaled(200, 2_000) {
        let value = number.to_string();
        let (writer, reader) = if number % 2 == 0 {
            (&mut *one, &mut *other)
        } else {
            (&mut *other, &mut *one)
        };
        set(writer, "hot", &value);
        for _ in 0..5 {
            assert_eq!(get(reader, "hot"), Some(value.clone()));
            assert_eq!(get(writer, "hot"), Some(value.clone()));
        }
    }
    lab.assert_settled();
}

#[test]
fn clients_of_this_machine_see_each_others_writes_at_once() {
    let lab = boosted("lonear", &[]);
    let mut one = client(&lab, local(&lab, HERE));
    let mut other = client(&lab, lab.address());
    coherent(&lab, &mut one, &mut other);
}

#[test]
fn clients_of_lo_and_of_a_device_see_each_others_writes_at_once() {
    let lab = boosted("loboth", &["s0"]);
    let mut near = client(&lab, local(&lab, HERE));
    let mut far = lab.client();
    coherent(&lab, &mut near, &mut far);
}

#[test]
fn every_byte_is_redis_own_over_lo() {
    let lab = boosted("loshadow", &[]);
    let port = lab.address().port() + 1;
    let _plain = Owned::start(&mut lab.redis(End::Server, port));
    // It answers when the first connection of the check can be made.
    until_there("redis-server", || {
        lab.inside(End::Server, || {
            Conn::connect(SocketAddr::new(HERE, port), STALL).map(drop)
        })
        .map_err(|error| format!("{error:#}"))
    });
    let target = local(&lab, HERE);
    let commands = scaled(3_000, 100_000);
    let words = format!(
        "--target {target} --shadow {HERE}:{port} --conns 16 --seconds 600 --commands {commands} \
         --seed 41 --fail-fast"
    );
    let before = lab.counters();
    let report = lab.inside(End::Server, || {
        shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
    });
    let after = lab.assert_settled();
    assert!(report.passed, "{report:#?}");
    assert!(
        after.since(&before, "FAST_GET") > 0,
        "{}",
        after.moved(&before)
    );
}

#[test]
fn concurrent_clients_of_lo_are_linearizable() {
    let lab = boosted("lohistory", &[]);
    let target = local(&lab, HERE);
    // Long enough that some key is filled between two of its many writes.
    let ops = scaled(120_000, 1_000_000);
    let words = format!("--target {target} --conns 16 --ops {ops} --keys 16 --seed 43");
    let before = lab.counters();
    let report = lab.inside(End::Server, || {
        history::execute(&arguments::<HistoryArgs>(&words)).expect("history")
    });
    let after = lab.assert_settled();
    assert!(report.passed, "{report:#?}");
    assert!(
        after.since(&before, "FAST_GET") > 0,
        "{}",
        after.moved(&before)
    );
}
