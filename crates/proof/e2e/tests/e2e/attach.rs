// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boost and detach under load, other devices, and what is refused: nothing is left behind.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use erb_check::net::Conn;
use erb_check::shadow::{self, ShadowArgs};
use erb_e2e::calls::{bulk, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, arguments, erb_bin, scaled, wait};
use erb_e2e::process::run;
use erb_e2e::stop::Stop;
use erb_lab::{End, xdp_pass};
use serde_json::Value;

use crate::trace::{Trace, assert_seen};

/// Exit codes of `erb --help`.
const USAGE: i32 = 2;
const PRIVILEGE: i32 = 3;
const NO_DEVICE: i32 = 5;
const FOREIGN_XDP: i32 = 6;
const NO_REDIS: i32 = 7;
const NO_LISTENER: i32 = 9;
const SIZE: i32 = 10;
const ALREADY: i32 = 11;
const NOT_BOOSTED: i32 = 12;
const STILL_NEEDED: i32 = 14;

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

fn assert_exit(output: &Output, code: i32, words: &[&str]) {
    let said = text(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in {said:?}");
    }
}

/// What is attached in the server's namespace, as bpftool sees it, and the features of the device.
fn attached(lab: &TestLab) -> String {
    let net = lab.exec(End::Server, &["bpftool", "net", "show"]);
    let features = lab.exec(End::Server, &["ethtool", "-k", "s0"]);
    format!("{net}\n{features}")
}

/// Kernel ids of the programs that are pinned in a boost's run directory.
pub(crate) fn programs(lab: &TestLab) -> BTreeSet<u64> {
    let list = lab.exec(End::Server, &["bpftool", "-j", "net", "show"]);
    let list: Value = serde_json::from_str(&list).expect("JSON of bpftool");
    let mut ids = BTreeSet::new();
    collect_ids(&list, &mut ids);
    assert!(!ids.is_empty(), "no programs of the boost: {list}");
    ids
}

fn collect_ids(value: &Value, ids: &mut BTreeSet<u64>) {
    match value {
        Value::Array(list) => list.iter().for_each(|item| collect_ids(item, ids)),
        Value::Object(fields) => {
            let id = fields.get("prog_id").or_else(|| fields.get("id"));
            ids.extend(id.and_then(Value::as_u64));
            fields.values().for_each(|item| collect_ids(item, ids));
        }
        _ => {}
    }
}

pub(crate) fn program_exists(lab: &TestLab, id: u64) -> bool {
    let mut command = lab.lab().exec(End::Server, "bpftool").expect("exec");
    let output = command
        .args(["prog", "show", "id", &id.to_string()])
        .output();
    output.expect("bpftool").status.success()
}

/// A lab that is not boosted, with a run directory for a boost by hand.
fn plain_lab(name: &str) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct", "--redis-arg", "unixsocket=redis.sock"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    lab
}

fn assert_nothing_left(lab: &TestLab, before: &str, programs: &BTreeSet<u64>) {
    assert_eq!(attached(lab), before);
    wait(STATE_WAIT, || {
        let left: Vec<_> = programs
            .iter()
            .filter(|id| program_exists(lab, **id))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("programs left: {left:?}"))
        }
    });
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let dir = lab.run_dir().display().to_string();
    assert!(!mounts.contains(&dir), "{dir} is still mounted");
    assert!(!lab.run_dir().exists(), "{dir} is still there");
}

/// How long a load goes on before and after what happens under it.
const UNDER_LOAD: Duration = Duration::from_secs(1);

/// Compares every byte with a Redis alone, until it is told to stop.
fn load(lab: &TestLab, plain: SocketAddr, stop: &AtomicBool) {
    let words = format!(
        "--target {} --shadow {plain} --conns 10 --seconds 5 --value-max 2000",
        lab.address()
    );
    while !stop.load(Ordering::SeqCst) {
        let report = lab.inside(End::Client, || {
            shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
        });
        assert!(report.passed, "{report:#?}");
    }
}

/// One connection that lives through it all and reads what it wrote.
fn lives_on(mut conn: Conn, key: &str, stop: &AtomicBool) {
    for number in 0_u64.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let value = number.to_string();
        set(&mut conn, key, &value);
        for _ in 0..5 {
            expect(&mut conn, &format!("GET {key}"), &bulk(&value));
        }
    }
}

#[test]
fn boost_and_detach_under_load_change_no_byte_and_leave_nothing() {
    let mut lab = plain_lab("underload");
    let plain = lab.plain_redis();
    let before = attached(&lab);
    let mut ids = BTreeSet::new();
    let (old, stop) = (lab.client(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (lab, stop) = (&lab, &stop);
        let _end = Stop(stop);
        scope.spawn(move || load(lab, plain, stop));
        scope.spawn(move || lives_on(old, "old", stop));
        sleep(UNDER_LOAD);
        assert_exit(&lab.boost(&["--dev", "s0"]), 0, &[]);
        ids = programs(lab);
        lab.wait_admitting();
        scope.spawn(move || load(lab, plain, stop));
        let mut conn = lab.client();
        set(&mut conn, "hot", "v");
        lab.heat(&mut conn, "hot");
        scope.spawn(move || lives_on(conn, "new", stop));
        wait(STATE_WAIT, || {
            let counters = lab.counters();
            let both = counters.get("CONN_OLD") > 0 && counters.get("FAST_GET") > 0;
            both.then_some(()).ok_or_else(|| counters.text("CONN FAST"))
        });
        sleep(UNDER_LOAD);
        let detached = lab.erb(&["detach", "--wait", "1s"]);
        assert_exit(
            &detached,
            STILL_NEEDED,
            &["connections still need translation"],
        );
        sleep(UNDER_LOAD);
    });
    wait(STATE_WAIT, || {
        if lab.run_dir().exists() {
            Err("the daemon stays".to_owned())
        } else {
            Ok(())
        }
    });
    assert_nothing_left(&lab, &before, &ids);
}

#[test]
fn detach_by_force_leaves_nothing_and_redis_goes_on() {
    let lab = plain_lab("force");
    let mut old = lab.client();
    set(&mut old, "hot", "v");
    let before = attached(&lab);
    assert_exit(&lab.boost(&["--dev", "s0"]), 0, &[]);
    let ids = programs(&lab);
    lab.wait_admitting();
    let mut fast = lab.client();
    lab.heat(&mut fast, "hot");
    assert_exit(&lab.erb(&["detach", "--force"]), 0, &[]);
    assert_nothing_left(&lab, &before, &ids);
    expect(&mut old, "GET hot", &bulk("v"));
    assert!(
        fast.call(&["GET", "hot"]).is_err(),
        "a translated connection lives on untranslated"
    );
    expect(&mut lab.client(), "GET hot", &bulk("v"));
}

#[test]
fn the_tc_tier_alone_answers_where_it_is_asked_for() {
    let lab = plain_lab("tcalone");
    let before = attached(&lab);
    let words = &["--dev", "s0", "--tier", "tc"];
    assert_exit(&lab.boost(words), 0, &["TC alone, asked for"]);
    lab.wait_admitting();
    let trace = Trace::start(&lab, &["--json"]);
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    let packets = trace.packets();
    let hit = ("GET", Some("hot"));
    assert_seen(&packets, hit, "TC ingress", ("answered", "FAST_PACKET_TC"));
    assert!(packets.iter().all(|packet| packet["stage"] != "XDP"));
    let counters = lab.counters();
    assert!(counters.get("FAST_PACKET_TC") > 0);
    assert_eq!(counters.get("FAST_PACKET"), 0, "XDP is not there");
    drop(conn);
    assert_exit(&lab.erb(&["status"]), 0, &["TC alone: asked for"]);
    assert_exit(&lab.erb(&["detach", "--wait", "120s"]), 0, &["detached"]);
    assert_nothing_left(&lab, &before, &BTreeSet::new());
}

#[test]
fn an_idle_boost_detaches_at_once_and_can_be_made_again() {
    let lab = plain_lab("again");
    let before = attached(&lab);
    for _ in 0..3 {
        assert_exit(&lab.boost(&["--dev", "s0"]), 0, &[]);
        let ids = programs(&lab);
        lab.wait_admitting();
        let mut conn = lab.client();
        set(&mut conn, "hot", "v");
        lab.heat(&mut conn, "hot");
        drop(conn);
        assert_exit(&lab.erb(&["detach", "--wait", "120s"]), 0, &["detached"]);
        assert_nothing_left(&lab, &before, &ids);
    }
}

#[test]
fn connections_older_than_the_boost_are_right_and_their_writes_are_seen() {
    let lab = plain_lab("older");
    let mut old = lab.client();
    set(&mut old, "hot", "0");
    assert_exit(&lab.boost(&["--dev", "s0"]), 0, &[]);
    lab.wait_admitting();
    let mut fast = lab.client();
    lab.heat(&mut fast, "hot");
    for number in 1..scaled(100, 2_000) {
        let value = number.to_string();
        set(&mut old, "hot", &value);
        assert_eq!(get(&mut fast, "hot"), Some(value.clone()));
        assert_eq!(get(&mut old, "hot"), Some(value));
        if number % 20 == 0 {
            lab.heat(&mut fast, "hot");
        }
    }
    lab.assert_settled();
}

/// A refused boost changes nothing.
fn refused(lab: &TestLab, words: &[&str], code: i32, said: &[&str]) {
    let before = attached(lab);
    let output = lab.erb(&[&["boost"], words].concat());
    assert_exit(&output, code, said);
    assert_eq!(attached(lab), before, "{words:?} changed something");
    assert!(!lab.run_dir().join("bpf").exists(), "{words:?} left pins");
}

#[test]
fn bad_input_is_refused_with_its_reason_and_changes_nothing() {
    let lab = plain_lab("badinput");
    let good = lab.address().to_string();
    refused(
        &lab,
        &["--dev", "nope0", "--redis", &good],
        NO_DEVICE,
        &["nope0"],
    );
    refused(
        &lab,
        &["--dev", "s0", "--redis", "10.77.0.2:1"],
        NO_REDIS,
        &["10.77.0.2:1"],
    );
    refused(
        &lab,
        &["--dev", "s0", "--redis", "10.77.0.99:6379"],
        NO_REDIS,
        &["10.77.0.99"],
    );
    refused(&lab, &["--dev", "s0", "--redis", "a b"], USAGE, &["a b"]);
    refused(
        &lab,
        &["--dev", "s0", "--redis", &good, "--port", "7777"],
        NO_LISTENER,
        &["7777"],
    );
    for size in [
        "0",
        "1",
        "999999999G",
        "12Q",
        "-5M",
        "18446744073709551615G",
    ] {
        let size = format!("--cache-size={size}");
        let words = ["--dev", "s0", "--redis", &good, &size];
        refused_size(&lab, &words);
    }
    assert_exit(&lab.erb(&["detach"]), NOT_BOOSTED, &[]);
    assert_exit(&lab.erb(&["status"]), NOT_BOOSTED, &[]);
}

fn refused_size(lab: &TestLab, words: &[&str]) {
    let before = attached(lab);
    let output = lab.erb(&[&["boost"], words].concat());
    assert!(
        [Some(SIZE), Some(USAGE)].contains(&output.status.code()),
        "{words:?}: {}",
        text(&output)
    );
    assert_eq!(attached(lab), before, "{words:?} changed something");
}

#[test]
fn a_foreign_xdp_program_is_named_and_stays() {
    let lab = plain_lab("foreign");
    let server = &lab.lab().state().server;
    xdp_pass::attach(&server.namespace, &server.device).expect("a foreign program");
    let good = lab.address().to_string();
    refused(
        &lab,
        &["--dev", "s0", "--redis", &good],
        FOREIGN_XDP,
        &["s0", "XDP program", "id "],
    );
}

#[test]
fn a_second_boost_of_the_same_device_is_refused() {
    let lab = TestLab::boosted_with("second", &["--direct"]);
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    assert_exit(&lab.boost(&["--dev", "s0"]), ALREADY, &["already boosted"]);
    let redis = lab.address().to_string();
    let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    command.args([
        "boost",
        "--dev",
        "s0",
        "--redis",
        &redis,
        "--run-dir",
        "/run/erb/e2e-second2",
    ]);
    let output = command.output().expect("erb");
    assert_exit(&output, ALREADY, &["boosted already", "has these devices"]);
    assert!(!Path::new("/run/erb/e2e-second2/bpf").exists());
    lab.assert_fast(&mut conn, "hot", "the first goes on");
    lab.assert_settled();
}

#[test]
fn a_boost_during_a_detach_says_who_is_waited_for() {
    let lab = TestLab::boosted_with("draining", &["--direct"]);
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    let output = lab.erb(&["detach", "--wait", "100ms"]);
    assert_exit(&output, STILL_NEEDED, &["1 connections"]);
    let words = ["a detach is under way", "1 connections", "--force"];
    assert_exit(&lab.boost(&["--dev", "s0"]), ALREADY, &words);
    expect(&mut conn, "GET hot", &bulk("v"));
    assert_exit(&lab.erb(&["detach", "--force"]), 0, &["detached"]);
    assert_exit(&lab.boost(&["--dev", "s0"]), 0, &["boosted s0"]);
}

#[test]
fn without_privilege_boost_says_what_it_lacks() {
    let lab = plain_lab("privilege");
    let good = lab.address().to_string();
    let before = attached(&lab);
    // Where nobody but root may look, nobody could run it.
    let copy = std::env::temp_dir().join("erb-e2e-privilege");
    run(std::process::Command::new("install")
        .args(["-m", "755"])
        .arg(erb_bin())
        .arg(&copy));
    let mut command = lab.lab().exec(End::Server, "setpriv").expect("exec");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .arg(&copy)
        .args(["boost", "--dev", "s0", "--redis", &good]);
    let output = command.output().expect("setpriv");
    std::fs::remove_file(&copy).expect("remove the copy");
    assert_exit(&output, PRIVILEGE, &["privilege"]);
    assert_eq!(attached(&lab), before);
}
