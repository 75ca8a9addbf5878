// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers' own test suites see no difference between a boosted server and the same alone.

use std::process::Command;

use erb_e2e::lab::{erb_bin, scaled};
use erb_e2e::turn::{Turn, locked};
use erb_lab::servers::CANNOT_BE_HAD;
use erb_steady::{skipped, too_slow};
use serde_json::Value;

/// `erb check suite` refuses to run twice at a time; these tests wait for each other.
const LOCK: &str = "/run/lock/erb-e2e-suite.lock";
/// Tests that pass in the whole suite, or in these files; many fewer than with Redis 7.0.15, so that another version's
/// suite does as well.
const PASSED_MIN: (u64, u64) = (250, 700);
/// Quick files that do more than read strings: those that do are played with answers below.
const OTHERS: &[&str] = &[
    "--fast",
    "--tests",
    "unit/info-command,unit/type/hash,unit/expire,unit/quit,unit/pubsub,unit/functions,unit/pause,unit/tracking",
];
/// Files that read strings, and what goes with it. Left out is what ERB cannot answer: fields of large
/// hashes (unit/type/hash), reads that are tracked (unit/tracking).
const READING: &str = "unit/protocol,unit/keyspace,unit/type/string,unit/type/incr,unit/bitops,\
                       unit/multi,unit/scripting";
/// Share of the reads in them that ERB must have answered. It depends on the machine's pace: 61 to 93 %
/// were measured (docs/measured.md), and a busy machine must not fail for it.
const SHARE_MIN: &str = "0.3";

/// Runs the suite with these words and demands the same result test by test; none if it cannot be had.
fn same(words: &[&str]) -> Option<Value> {
    let _one = locked(LOCK);
    let _turn = Turn::beside();
    let output = Command::new(erb_bin())
        .args(["check", "suite", "--json"])
        .args(words)
        .output()
        .expect("start erb");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cannot get the source package") || said.contains(CANNOT_BE_HAD) {
        skipped(said);
        return None;
    }
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{} ({error}): {said}", output.status));
    let units = report["units"].as_array().expect("units");
    let differing: Vec<_> = units
        .iter()
        .flat_map(|unit| [&unit["differing"], &unit["broken"]])
        .flat_map(|found| found.as_array().expect("a list"))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
    println!("{:#}", report["reads"]);
    assert_eq!(report["same"], true, "{said}");
    // All ended the same: then it is the share of reads that ERB had to answer.
    if output.status.code() == Some(1) {
        too_slow(format_args!("{said}{:#}", report["reads"]));
    }
    assert_eq!(output.status.code(), Some(0), "{said}{:#}", report["reads"]);
    let answered = report["answered"].as_object().expect("counters");
    assert!(!answered.is_empty(), "ERB answered nothing: {said}");
    Some(report)
}

/// Tests that passed.
fn passed(report: &Value) -> u64 {
    report["tests_passed"].as_u64().expect("a number")
}

#[test]
fn redis_own_suite_ends_the_same_test_by_test() {
    if let Some(report) = same(scaled(OTHERS, &[])) {
        let passed = passed(&report);
        let least = scaled(PASSED_MIN.0, PASSED_MIN.1);
        assert!(passed >= least, "only {passed} tests passed");
    }
}

/// Runs files of a suite with each read repeated until ERB answers it.
fn same_with_answers(words: &[&str]) {
    let repeated = ["--fast", "--repeat-reads", "--share-min", SHARE_MIN];
    if let Some(report) = same(&[&repeated[..], words].concat()) {
        let gets = &report["reads"]["commands"]["get"];
        assert!(passed(&report) > 50);
        if gets["fast"].as_u64() <= Some(100) {
            too_slow(format_args!("few reads were ERB's: {gets}"));
        }
    }
}

#[test]
fn redis_own_suite_ends_the_same_where_erb_answers_its_reads() {
    same_with_answers(&["--tests", READING]);
}

#[test]
fn the_suite_of_redis_8_ends_the_same_where_threads_read_and_erb_answers() {
    let words = ["--server", "redis8", "--io-threads", "4"];
    same_with_answers(&[&words[..], &["--tests", "unit/type/string,unit/type/incr"]].concat());
}

#[test]
fn the_suite_of_valkey_8_ends_the_same_where_erb_answers_its_reads() {
    let words = ["--server", "valkey8"];
    same_with_answers(&[&words[..], &["--tests", "unit/type/string,unit/type/incr"]].concat());
}
