// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor` on set-ups that are broken, each in its own way.

use std::process::{Command, Output};

use erb_e2e::calls::expect;
use erb_e2e::lab::{TestLab, erb_bin};
use erb_e2e::process::run;
use erb_lab::{End, xdp_pass};
use erb_report::{Doctor, Finding, Level};

/// Runs the doctor in the server's namespace; its exit code and findings.
fn doctor(lab: &TestLab, words: &[&str]) -> (i32, Vec<Finding>) {
    let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    command.args(["doctor", "--json"]).args(words);
    findings(&command.output().expect("erb doctor"))
}

fn findings(output: &Output) -> (i32, Vec<Finding>) {
    let doctor: Doctor = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code().expect("an exit code"), doctor.findings)
}

/// There is a finding of this level about this subject with this word in it.
fn assert_found(found: &[Finding], level: Level, subject: &str, word: &str) {
    let is =
        |one: &Finding| one.level == level && one.subject == subject && one.text.contains(word);
    assert!(
        found.iter().any(is),
        "no {level:?} of {subject} about {word:?}: {found:#?}"
    );
}

/// The doctor of a lab whose device is `s0`: exit code and one finding.
fn assert_told(lab: &TestLab, words: &[&str], code: i32, level: Level, subject: &str, word: &str) {
    let (found_code, found) = doctor(lab, words);
    assert_found(&found, level, subject, word);
    assert_eq!(found_code, code, "{found:#?}");
}

#[test]
fn a_sound_set_up_is_found_so_boosted_or_not() {
    let lab = TestLab::up("doctor", &["--direct"]);
    let redis = lab.address().to_string();
    let words = ["--dev", "s0", "--redis", &redis];
    let (code, found) = doctor(&lab, &words);
    assert_eq!(code, 0, "{found:#?}");
    for (subject, word) in [
        ("privilege", "enough"),
        ("kernel", "BTF"),
        ("s0", "native XDP by its driver (veth)"),
        ("s0", "no XDP program"),
        ("s0", "other end polls"),
        ("redis", "version 7."),
        ("redis", "listens on port 6379"),
        ("redis", "nothing in its state"),
    ] {
        assert_found(&found, Level::Fine, subject, word);
    }
    assert!(
        found.iter().all(|one| one.level != Level::Error),
        "{found:#?}"
    );
    let mut lab = lab;
    lab.use_run_dir(default_run_dir(&lab));
    let output = lab.boost(&["--dev", "s0"]);
    assert!(output.status.success(), "{output:?}");
    assert_told(&lab, &words, 0, Level::Fine, "s0", "boosted already");
}

#[test]
fn of_a_device_at_work_its_own_tier_is_told() {
    let mut lab = TestLab::up("doctortier", &["--direct"]);
    let redis = lab.address().to_string();
    let words = ["--dev", "s0", "--redis", &redis];
    lab.exec(End::Client, &["ip", "link", "set", "c0", "xdp", "off"]);
    lab.exec(End::Client, &["ethtool", "-K", "c0", "gro", "on"]);
    assert_told(
        &lab,
        &words,
        0,
        Level::Warning,
        "s0",
        "takes the TC tier alone",
    );
    lab.use_run_dir(default_run_dir(&lab));
    let output = lab.boost(&["--dev", "s0", "--tier", "tc"]);
    assert!(output.status.success(), "{output:?}");
    let (code, found) = doctor(&lab, &words);
    assert_eq!(code, 0, "{found:#?}");
    assert_found(&found, Level::Fine, "s0", "boosted already");
    assert_found(
        &found,
        Level::Fine,
        "s0",
        "the TC tier alone is at work: asked for",
    );
    let misled = |one: &&Finding| one.subject == "s0" && one.text.contains("other end");
    assert!(found.iter().find(misled).is_none(), "{found:#?}");
}

/// Where `erb boost` keeps what belongs to `s0` unless it is told otherwise.
fn default_run_dir(lab: &TestLab) -> String {
    let inode = lab.exec(
        End::Server,
        &["stat", "-L", "-c", "%i", "/proc/self/ns/net"],
    );
    format!("/run/erb/s0-{}", inode.trim())
}

#[test]
fn what_is_wrong_with_a_device_is_told() {
    let lab = TestLab::up("doctordev", &["--direct"]);
    let redis = lab.address().to_string();
    let good = ["--dev", "s0", "--redis", &redis];
    let none = ["--dev", "nope0", "--redis", &redis];
    assert_told(&lab, &none, 5, Level::Error, "nope0", "no network device");
    let lo = ["--dev", "lo", "--redis", &redis];
    assert_told(&lab, &lo, 0, Level::Warning, "lo", "no native XDP");
    lab.exec(End::Server, &["ip", "link", "add", "d0", "type", "bridge"]);
    let bridge = ["--dev", "d0", "--redis", &redis];
    assert_told(&lab, &bridge, 0, Level::Warning, "d0", "no native XDP");
    assert_told(&lab, &bridge, 0, Level::Warning, "devices", "s0");
    lab.exec(End::Client, &["ip", "link", "set", "c0", "xdp", "off"]);
    lab.exec(End::Client, &["ethtool", "-K", "c0", "gro", "off"]);
    assert_told(&lab, &good, 0, Level::Warning, "s0", "other end");
    lab.exec(End::Server, &["ip", "link", "set", "s0", "mtu", "3500"]);
    assert_told(&lab, &good, 0, Level::Warning, "s0", "MTU 3500");
    lab.exec(End::Server, &["ip", "link", "set", "s0", "mtu", "1500"]);
    let server = &lab.lab().state().server;
    xdp_pass::attach(&server.namespace, &server.device).expect("a foreign program");
    assert_told(&lab, &good, 6, Level::Error, "s0", "XDP program");
    lab.exec(End::Server, &["ip", "link", "set", "s0", "down"]);
    let local = ["--dev", "s0", "--redis", "127.0.0.1:6379"];
    assert_told(&lab, &local, 6, Level::Warning, "s0", "is down");
}

#[test]
fn what_is_wrong_with_redis_is_told() {
    let lab = TestLab::up("doctorredis", &["--direct"]);
    let redis = lab.address().to_string();
    let good = ["--dev", "s0", "--redis", &redis];
    let mut admin = lab.unseen();
    let away = ["--dev", "s0", "--redis", "10.77.0.2:1"];
    assert_told(
        &lab,
        &away,
        7,
        Level::Error,
        "redis",
        "could not be reached",
    );
    let port = ["--dev", "s0", "--redis", &redis, "--port", "7777"];
    assert_told(&lab, &port, 9, Level::Error, "redis", "7777");
    for (set, back, code, level, word) in [
        (
            "CONFIG SET tcp-keepalive 0",
            "CONFIG SET tcp-keepalive 300",
            0,
            Level::Warning,
            "tcp-keepalive",
        ),
        (
            "CONFIG SET timeout 100",
            "CONFIG SET timeout 0",
            0,
            Level::Fine,
            "100 s",
        ),
        (
            "ACL SETUSER default -info",
            "ACL SETUSER default +info",
            7,
            Level::Error,
            "NOPERM for info",
        ),
    ] {
        expect(&mut admin, set, "+OK\r\n");
        assert_told(&lab, &good, code, level, "redis", word);
        expect(&mut admin, back, "+OK\r\n");
    }
    expect(&mut admin, "CONFIG SET requirepass secret", "+OK\r\n");
    assert_told(
        &lab,
        &good,
        7,
        Level::Error,
        "redis",
        "--redis-password-file",
    );
}

#[test]
fn without_privilege_the_doctor_says_what_is_missing_and_all_the_rest() {
    let lab = TestLab::up("doctorpriv", &["--direct"]);
    let redis = lab.address().to_string();
    // Where nobody but root may look, nobody could run it.
    let copy = std::env::temp_dir().join("erb-e2e-doctor");
    run(Command::new("install")
        .args(["-m", "755"])
        .arg(erb_bin())
        .arg(&copy));
    let mut command = lab.lab().exec(End::Server, "setpriv").expect("exec");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .arg(&copy)
        .args(["doctor", "--json", "--dev", "s0", "--redis", &redis]);
    let output = command.output().expect("setpriv");
    std::fs::remove_file(&copy).expect("remove the copy");
    let (code, found) = findings(&output);
    assert_found(&found, Level::Error, "privilege", "CAP_BPF");
    assert_found(&found, Level::Fine, "redis", "version 7.");
    assert_eq!(code, 3, "{found:#?}");
}

#[test]
fn users_of_clients_that_are_never_answered_are_told() {
    let lab = TestLab::up("doctorusers", &["--direct"]);
    let redis = lab.address().to_string();
    let words = ["--dev", "s0", "--redis", &redis];
    let mut client = lab.client();
    let few = "ACL SETUSER app on >secret ~app:* allchannels +@all";
    expect(&mut client, few, "+OK\r\n");
    let (_, found) = doctor(&lab, &words);
    let is_told = |one: &Finding| one.text.contains("user app");
    assert!(!found.iter().any(is_told), "it has no client: {found:#?}");
    expect(&mut client, "AUTH app secret", "+OK\r\n");
    let told = "of user app (~app:*), which may not do everything: 1.";
    assert_told(&lab, &words, 0, Level::Warning, "redis", told);
}
