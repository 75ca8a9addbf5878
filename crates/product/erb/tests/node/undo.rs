// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Roll backs are undone by their ids, also by the command that a roll back prints, pasted into a shell.

use std::path::Path;
use std::process::Command;

use crate::{Node, folder, formatted, refused, said};

/// What stands between the first two backticks.
fn printed(text: &str) -> &str {
    text.split('`').nth(1).expect("a command")
}

/// Runs a line in a shell that finds `erb`.
fn paste(line: &str) {
    let programs = Path::new(env!("CARGO_BIN_EXE_erb")).parent();
    let path = format!("{}:/usr/bin:/bin", programs.expect("a folder").display());
    let output = Command::new("bash")
        .args(["-c", line])
        .env("PATH", path)
        .output()
        .expect("bash");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {error}");
}

#[test]
fn the_printed_command_undoes_that_roll_back_and_no_other() {
    let folder = folder();
    let node = Node::start(&formatted(&folder, "96M", "1"));
    let kv = |words: &[&str]| said(&[&["kv", words[0], &node.url], &words[1..]].concat());
    let prefixes = ["#chan", "two words", "it's", "a\nb", "$HOME", ""];
    let keys: Vec<String> = prefixes
        .iter()
        .map(|prefix| format!("{prefix}/key"))
        .collect();
    for key in &keys {
        kv(&["put", key, "old"]);
    }
    for (prefix, key) in prefixes.iter().zip(&keys) {
        let moment = kv(&["put", "moment", "now"]);
        kv(&["put", key, "new"]);
        let words = ["rollback", prefix, "--to", moment.trim(), "--yes"];
        let rolled = kv(&words);
        assert_eq!(kv(&["get", key]), "old");
        // A later roll back, of a scope that has this one's keys or not.
        kv(&["put", "later", "new"]);
        let later = ["rollback", "later", "--to", moment.trim(), "--yes"];
        let later = kv(&later);
        paste(&format!("{} --yes", printed(&rolled)));
        assert_eq!(kv(&["get", key]), "new", "{prefix}");
        paste(&format!("{} --yes", printed(&later)));
        assert_eq!(kv(&["get", "later"]), "new", "{prefix}");
        kv(&["del", "later"]);
    }
    for key in &keys {
        assert_eq!(kv(&["get", key]), "new", "{key}");
    }
}

#[test]
fn an_id_that_names_no_roll_back_of_these_keys_undoes_nothing() {
    let folder = folder();
    let node = Node::start(&formatted(&folder, "96M", "1"));
    let url = &node.url[..];
    let kv = |words: &[&str]| said(&[&["kv", words[0], url], &words[1..]].concat());
    let moment = kv(&["put", "a/key", "old"]);
    kv(&["put", "a/key", "new"]);
    let rolled = kv(&["rollback", "a/", "--to", moment.trim(), "--yes", "--json"]);
    let rolled: serde_json::Value = serde_json::from_str(&rolled).expect("JSON");
    let id = rolled["id"].as_str().expect("an id, as text");
    kv(&["put", "b/key", "stays"]);
    for words in [
        &["12345", "--all", "--yes"][..],
        &["12345", "--dry-run"],
        &[moment.trim(), "--all", "--yes"],
        &[id, "a", "--all", "--yes"],
        &[id, "b/", "--all", "--yes"],
    ] {
        let (not_known, why) = refused(&[&["kv", "undo", url], words].concat());
        assert_eq!(not_known, 24, "{words:?}: {why}");
        assert!(why.contains("no roll back"), "{why}");
    }
    assert_eq!(
        (kv(&["get", "a/key"]), kv(&["get", "b/key"])),
        ("old".into(), "stays".into())
    );
    kv(&["undo", id, "a/", "--yes"]);
    assert_eq!(
        (kv(&["get", "a/key"]), kv(&["get", "b/key"])),
        ("new".into(), "stays".into())
    );
}

#[test]
fn a_dry_run_counts_what_changes_and_no_key_that_stays_absent() {
    let folder = folder();
    let node = Node::start(&formatted(&folder, "96M", "1"));
    let kv = |words: &[&str]| said(&[&["kv", words[0], &node.url], &words[1..]].concat());
    kv(&["put", "gone", "once"]);
    let moment = kv(&["put", "stays", "here"]);
    kv(&["put", "between", "new"]);
    kv(&["del", "between"]);
    kv(&["del", "gone"]);
    kv(&["put", "new", "new"]);
    let dry = ["rollback", "", "--to", moment.trim(), "--dry-run"];
    // "gone" comes back and "new" goes; "between" is absent before and after.
    assert_eq!(kv(&dry), "keys that would change: 2\n");
    kv(&["rollback", "", "--to", moment.trim(), "--yes"]);
    assert_eq!(kv(&dry), "keys that would change: 0\n");
    assert_eq!(kv(&["ls"]).lines().count(), 2);
}
