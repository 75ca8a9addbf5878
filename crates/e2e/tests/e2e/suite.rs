// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis's own test suite sees no difference between Redis boosted and Redis alone.

use std::process::Command;

use erb_e2e::lab::{erb_bin, scaled, turn};
use serde_json::Value;

/// Tests that pass in the quick files; some hundred fewer than with Redis 7.0.15, so that another
/// version's suite does as well.
const PASSED_MIN: u64 = 700;

#[test]
fn redis_own_suite_ends_the_same_test_by_test() {
    let _turn = turn();
    let output = Command::new(erb_bin())
        .args(["check", "suite", "--json"])
        .args(scaled(&["--fast"][..], &[]))
        .output()
        .expect("start erb");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cannot get the source package") {
        println!("skipped: {said}");
        return;
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
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(report["same"], true);
    let passed = report["tests_passed"].as_u64().expect("a number");
    assert!(passed >= PASSED_MIN, "only {passed} tests passed: {said}");
    let answered = report["answered"].as_object().expect("counters");
    assert!(!answered.is_empty(), "ERB answered nothing: {said}");
}
