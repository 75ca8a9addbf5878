// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections of real client libraries end up fast.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use erb_e2e::lab::{TestLab, erb_bin, scaled};
use erb_e2e::process::run;
use erb_lab::End;
use erb_steady::out_of_patience;
use serde_json::Value;

/// GETs per connection: were all of them missed, they would take more than a second. A fill that
/// writes have undone again and again is tried anew when misses have faded, once a second.
const REPEATS: (&str, &str) = ("20000", "40000");
/// Clients times protocols.
const CONNECTIONS: usize = 10;

#[test]
fn connections_of_real_clients_end_up_fast() {
    // Built here, where packages can be had; the lab has no network.
    run(Command::new(erb_bin()).args([
        "check",
        "clients",
        "--target",
        "127.0.0.1:1",
        "--prepare-only",
    ]));
    let lab = TestLab::boosted_with("clients", &["--direct"]);
    if let Some(without) = without_answers(&lab) {
        let counters = lab.counters().text("FAST REFUSE FILL MISS");
        out_of_patience(format_args!("{without} {counters}"));
    }
    lab.assert_settled();
}

/// Has all clients speak; a connection that was never answered fast.
fn without_answers(lab: &TestLab) -> Option<String> {
    let target = lab.address().to_string();
    let mut command = lab.lab().exec(End::Client, erb_bin()).expect("exec");
    command.args([
        "check",
        "clients",
        "--target",
        &target,
        "--repeats",
        scaled(REPEATS.0, REPEATS.1),
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("erb check clients");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let mut connected = BTreeMap::new();
    for line in output.lines() {
        let event: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        match event["event"].as_str() {
            Some("connected") => {
                let name = format!("{} RESP{}", event["client"], event["protocol"]);
                connected.insert(event["local"].as_str().expect("address").to_owned(), name);
            }
            Some("result") => assert_eq!(event["status"], "passed", "{event}"),
            Some("holding") => break,
            _ => {}
        }
    }
    let conns = lab.conns();
    drop(child.stdin.take());
    assert!(child.wait().expect("its end").success());
    assert_eq!(connected.len(), CONNECTIONS, "{connected:?}");
    for (local, name) in &connected {
        let line = conns.iter().find(|conn| conn.client == *local);
        let line = line.unwrap_or_else(|| panic!("{name} at {local} is not tracked: {conns:?}"));
        assert_eq!(line.state, "fast", "{name}: {line:?}");
        if line.out_delta == 0 {
            return Some(format!("{name} was never answered fast: {line:?}"));
        }
    }
    None
}
