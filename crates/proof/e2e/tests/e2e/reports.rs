// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users of other servers, proxies and clients reported: a boosted server replies as the same server alone.

use std::process::Command;

use erb_e2e::lab::{erb_bin, long};
use erb_e2e::turn::{Turn, locked};
use erb_steady::{left, skipped, too_slow};
use serde_json::Value;

/// `erb check reports` refuses to run twice at a time; these tests wait for each other.
const LOCK: &str = "/run/lock/erb-e2e-reports.lock";
/// Sequences that any of these servers can play; some more need another version.
const PLAYED_MIN: usize = 60;
/// Some from each part of the table: what takes seconds, or keeps all others waiting, is for the long runs.
const SOME: &str = "ping-in-multi,get-beside-exec,multi-in-a-segment,replies-off,push-while-replies,two-lines,\
                    three-lines,replies-before-a-block,unblocked,hello-of-every-kind,subscribed,line-feeds,empty-,\
                    length-with-zeros,count-with-a-plus,kinds-of-nothing,aborted-exec,odd-,key-that-expires,last-element";
/// So many these are.
const SOME_MIN: usize = 29;

/// Plays with these words; every sequence must end the same. None: the server cannot be had.
fn rows(words: &[&str]) -> Option<Vec<Value>> {
    let _one = locked(LOCK);
    let _turn = Turn::beside();
    let output = Command::new(erb_bin())
        .args(["check", "reports", "--json", "--stall-timeout", "120"])
        .args(words)
        .output()
        .expect("start erb");
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{} ({error}): {said}", output.status));
    if let Some(missing) = report["missing"].as_array().and_then(|all| all.first()) {
        skipped(missing);
        return None;
    }
    let rows = report["rows"].as_array().expect("a list").clone();
    for row in &rows {
        let name = &row["sequence"];
        assert_eq!(row["difference"], Value::Null, "{name}");
        assert_eq!(row["broken"], Value::Null, "{name}");
    }
    assert_eq!(
        report["broken_invariants"],
        Value::Array(Vec::new()),
        "{said}"
    );
    // Nothing is wrong: then ERB has answered no read of a sequence.
    if output.status.code() == Some(1) {
        too_slow(said);
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    Some(rows)
}

/// All sequences, cut at every byte.
fn all(server: &str, mode: &str) {
    if !long() {
        left(format_args!("reports: the sequences on {server}, {mode}"));
        return;
    }
    let Some(rows) = rows(&["--server", server, "--mode", mode]) else {
        return;
    };
    let played = |row: &&Value| row["skipped"] == Value::Null;
    let count = rows.iter().filter(played).count();
    assert!(count >= PLAYED_MIN, "{count} sequences");
}

#[test]
fn reports_of_other_projects_end_as_with_the_server_alone() {
    if long() {
        return all("redis7", "read");
    }
    let words = ["--server", "redis7", "--mode", "read"];
    let some = ["--cuts", "few", "--only", SOME];
    if let Some(rows) = rows(&[words.as_slice(), &some].concat()) {
        assert!(rows.len() >= SOME_MIN, "{} sequences", rows.len());
    }
}

#[test]
fn reports_of_other_projects_end_as_with_the_server_alone_where_sets_are_answered() {
    all("redis7", "write-back");
}

#[test]
fn reports_of_other_projects_end_as_with_redis_8_alone() {
    all("redis8", "read");
}

#[test]
fn reports_of_other_projects_end_as_with_redis_8_alone_where_sets_are_answered() {
    all("redis8", "write-back");
}

#[test]
fn reports_of_other_projects_end_as_with_valkey_8_alone() {
    all("valkey8", "read");
}

#[test]
fn reports_of_other_projects_end_as_with_valkey_8_alone_where_sets_are_answered() {
    all("valkey8", "write-back");
}
