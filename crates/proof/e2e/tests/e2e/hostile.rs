// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No client takes the fast path from the others: not one that knows no password, not one that is on no
//! connection, not one that does not read, not a scripter, not one that begins commands and ends none, not a
//! crowd.

use std::process::Command;

use erb_e2e::lab::{erb_bin, scaled};
use erb_e2e::turn::Turn;
use erb_steady::too_slow;
use serde_json::Value;

/// Runs these attacks; of each the honest clients keep this share of their fast answers.
fn assert_kept(attacks: &str, keep: &str) {
    let _turn = Turn::alone();
    let output = Command::new(erb_bin())
        .args(["check", "hostile", "--json", "--keep", keep])
        .args(["--only", attacks, "--seconds", scaled("2", "30")])
        .output()
        .expect("start erb");
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{} ({error}): {said}", output.status));
    let rows = report["attacks"].as_array().expect("a list");
    assert_eq!(rows.len(), attacks.split(',').count(), "{said}");
    for row in rows {
        let wrong = row["wrong"].as_array().expect("a list");
        assert!(wrong.is_empty(), "{}: {wrong:?}", row["attack"]);
        assert_eq!(row["broken_invariants"], 0, "invariants broken: {said}");
    }
    // Nothing is wrong: then it is the share of before that was not kept.
    if output.status.code() == Some(1) {
        too_slow(said);
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(report["passed"], true);
}

#[test]
fn hostile_clients_take_nothing_from_the_others() {
    let attacks = "half-eval,half-unread,half-sets,unauthenticated-eval,unauthenticated-unknown,off-path,\
                   slow-reader,scripts,crowd";
    assert_kept(attacks, "0.9");
}
