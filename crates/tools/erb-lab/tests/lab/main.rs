// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab end to end: comes up, misbehaves as told, leaves nothing behind. Needs root.

mod common;
mod crash;
mod frames;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::Command;
use std::time::Instant;

use erb_lab::{LinkChange, LinkReport, netns};

use common::{PROGRAM, TestLab, WAIT, assert_gone, lab_command};

fn set(stream: &mut TcpStream, key: &str, value: &[u8]) {
    let head = format!(
        "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n",
        key.len(),
        value.len()
    );
    stream
        .write_all(&[head.as_bytes(), value, b"\r\n"].concat())
        .unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

fn get(stream: &mut TcpStream, key: &str) -> Vec<u8> {
    stream
        .write_all(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes())
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).unwrap();
    let length: usize = head.trim_end().strip_prefix('$').unwrap().parse().unwrap();
    let mut value = vec![0; length + 2];
    reader.read_exact(&mut value).unwrap();
    assert!(value.ends_with(b"\r\n"));
    value.truncate(length);
    value
}

/// Bytes without a pattern that a shifted or repeated segment could hide in.
fn noise(length: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A counter of /proc/net/snmp in namespace `namespace`.
fn snmp(namespace: &str, group: &str, field: &str) -> u64 {
    // Of the reading thread's namespace: /proc/net would be the process's.
    let read = || Ok(fs::read_to_string("/proc/thread-self/net/snmp")?);
    let text = netns::run_in(namespace, read).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs
        .find(|(name, _)| *name == field)
        .unwrap()
        .1
        .parse()
        .unwrap()
}

#[test]
fn a_bad_link_shows_in_the_counters_and_never_in_the_bytes() {
    let test = TestLab::up("f", false);
    let state = test.state().clone();
    for address in [IpAddr::V4(state.server.ipv4), IpAddr::V6(state.server.ipv6)] {
        let mut stream = test.connect(address);
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n", "{address}");
    }
    let words = [
        "loss=1%",
        "dup=0.5%",
        "reorder=2%",
        "corrupt=0.5%",
        "delay=2ms",
        "seed=7",
    ];
    let change = LinkChange::parse(&words).unwrap();
    let report = test.lab().link(change).unwrap();
    assert_eq!(
        (report.settings.loss_ppm, report.settings.delay_us),
        (10_000, 2_000)
    );

    // Until each fault has met some frame; every single wait is bounded.
    let end = Instant::now() + WAIT;
    let mut rounds = 0;
    while rounds < 10
        || (!all_faults_seen(&test.lab().link_report().unwrap()) && Instant::now() < end)
    {
        let address = if rounds % 2 == 0 {
            state.server.ipv4.into()
        } else {
            state.server.ipv6.into()
        };
        let mut stream = test.connect(address);
        let value = noise(65_536, rounds);
        set(&mut stream, "k", &value);
        assert!(
            get(&mut stream, "k") == value,
            "round {rounds}: other bytes came back"
        );
        rounds += 1;
    }
    let report = test.lab().link_report().unwrap();
    if !all_faults_seen(&report) {
        erb_steady::out_of_patience(format_args!("after {rounds} rounds: {report:?}"));
    }
    for counters in [report.to_server, report.to_client] {
        assert_eq!((counters.failed, counters.missed), (0, 0), "{counters:?}");
        assert!(counters.forwarded <= counters.received - counters.lost + counters.duplicated);
    }
    // Checksums on the wire are real: the kernel sees the flipped bits.
    let namespaces = [&state.client.namespace, &state.server.namespace];
    let seen: u64 = namespaces
        .iter()
        .map(|namespace| snmp(namespace, "Tcp:", "InCsumErrors"))
        .sum();
    assert!(seen > 0, "corrupted segments were taken for good ones");

    refuses_bad_settings(&test);
    let clean = test.lab().link_reset().unwrap();
    assert!(clean.settings.is_clean());
    assert_eq!(clean.to_server, Default::default());
    test.down();
}

fn all_faults_seen(report: &LinkReport) -> bool {
    [report.to_server, report.to_client].iter().all(|counters| {
        let seen = [
            counters.lost,
            counters.duplicated,
            counters.reordered,
            counters.corrupted,
            counters.delayed,
        ];
        seen.iter().all(|count| *count > 0)
    })
}

fn refuses_bad_settings(test: &TestLab) {
    let before = test.lab().link_report().unwrap().settings;
    for words in [["loss=1"], ["loss=101%"], ["delay=11s"], ["lag=1ms"]] {
        let output = test.cli(&["link"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stderr.starts_with(b"error: "), "{words:?}");
    }
    let far = LinkChange {
        loss_ppm: Some(2_000_000),
        ..LinkChange::default()
    };
    let error = test.lab().link(far).unwrap_err().to_string();
    assert!(error.contains("loss is out of range"), "{error}");
    assert_eq!(test.lab().link_report().unwrap().settings, before);
}

#[test]
fn a_clean_link_loses_nothing() {
    let test = TestLab::up("c", false);
    let mut stream = test.connect(test.state().server.ipv4.into());
    for round in 0..50 {
        let value = noise(65_536, round);
        set(&mut stream, "k", &value);
        assert!(get(&mut stream, "k") == value);
    }
    let report = test.lab().link_report().unwrap();
    for counters in [report.to_server, report.to_client] {
        assert!(
            counters.received > 2_000,
            "64 kB values make more frames: {counters:?}"
        );
        assert_eq!(counters.received, counters.forwarded, "{counters:?}");
        assert_eq!((counters.failed, counters.missed), (0, 0), "{counters:?}");
    }
    test.down();
}

#[test]
fn the_command_line_passes_exit_codes_and_prints_one_object() {
    let test = TestLab::up("e", true);
    for end in ["client", "server"] {
        let status = test
            .cli(&["exec", end, "--", "sh", "-c", "exit 7"])
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(7), "{end}");
    }
    const NOBODY: &str = "tnobody";
    let error = |words: &[&str]| {
        // The lab at hand, unless the words name another.
        let mut command = if words.contains(&"--name") {
            lab_command(&[])
        } else {
            test.cli(&[])
        };
        let output = command.args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["exec", "middle", "--", "true"]).contains("no middle box"));
    assert!(error(&["link"]).contains("no middle box"));
    assert!(error(&["exec", "client", "--", "no-such-command"]).contains("no such command"));
    assert!(error(&["up"]).contains("is up already"));
    assert!(error(&["--name", NOBODY, "status"]).contains("no lab `tnobody`"));
    let alone = up_without_erb(NOBODY);
    assert!(alone.contains("erb is not there"), "{alone}");
    let bogus = error(&["--name", NOBODY, "up", "--redis-arg", "bogus=1"]);
    assert!(
        bogus.contains("redis-server did not start") && bogus.contains("Bad directive"),
        "{bogus}"
    );
    assert_gone(&NOBODY.parse().unwrap(), &[]);

    let output = test.cli(&["status", "--json"]).output().unwrap();
    let status: erb_lab::LabStatus = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status.redis_answers && status.dead.is_empty());
    assert_eq!(&status.lab, test.state());
    let ping = [
        "exec",
        "client",
        "--",
        "redis-cli",
        "-h",
        "10.77.0.2",
        "ping",
    ];
    assert_eq!(test.cli(&ping).output().unwrap().stdout, b"PONG\n");
    // The settings that were asked for have reached Redis.
    let ask = [&ping[..6], &["config", "get", "maxmemory"][..]].concat();
    assert_eq!(
        test.cli(&ask).output().unwrap().stdout,
        b"maxmemory\n209715200\n"
    );
    test.down();
}

/// What `erb-lab lab up --mode read` says where no `erb` lies beside it.
fn up_without_erb(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("erb-lab");
    fs::copy(PROGRAM, &program).unwrap();
    let words = ["lab", "up", "--mode", "read", "--name", name];
    let output = Command::new(program).args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn two_labs_stand_side_by_side() {
    let (first, second) = (TestLab::up("a", false), TestLab::up("b", false));
    let address = first.state().server.ipv4.into();
    assert_eq!(address, IpAddr::V4(second.state().server.ipv4));
    let (mut one, mut two) = (first.connect(address), second.connect(address));
    set(&mut one, "k", b"first");
    set(&mut two, "k", b"second");
    assert_eq!(get(&mut one, "k"), b"first");
    first.down();
    assert_eq!(get(&mut two, "k"), b"second");
    second.down();
}
