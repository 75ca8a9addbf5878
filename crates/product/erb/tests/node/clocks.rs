// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients with clocks that differ from the node's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Node, erb, folder, formatted};

/// An object that gives a process another clock when it is preloaded.
fn other_clock(folder: &Path) -> PathBuf {
    let object = folder.join("other_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/other_clock.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&object)
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(built.success());
    object
}

/// What is said on standard error, the value, and whether there is one.
fn told(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let said = (text(&output.stderr), text(&output.stdout));
    (said.0, said.1, output.status.code())
}

#[test]
fn how_long_ago_is_counted_by_the_nodes_clock() {
    let folder = folder();
    let node = Node::start(&formatted(&folder, "96M", "1"));
    let object = other_clock(folder.path());
    let at = |seconds: &str, words: &[&str]| {
        let mut command = erb(&[&["kv", words[0], &node.url], &words[1..]].concat());
        command.env("LD_PRELOAD", &object);
        command.env("ERB_TEST_CLOCK_SECONDS", seconds);
        told(&command.output().expect("erb runs"))
    };
    let (said, version, _) = at("0", &["put", "k", "there"]);
    assert!(said.is_empty(), "{said}");
    assert!(!version.is_empty());
    for (seconds, warning) in [
        ("0", None),
        ("-3600", Some("ahead of this machine's")),
        ("3600", Some("behind this machine's")),
    ] {
        let is_told = |said: &str| match warning {
            Some(warning) => said.contains("the node's clock is ") && said.contains(warning),
            None => !said.contains("clock"),
        };
        // A client an hour behind would ask for what was there before the store was.
        let (said, value, code) = at(seconds, &["get", "k", "--as-of", "0s"]);
        assert_eq!((&value[..], code), ("there", Some(0)), "{seconds}: {said}");
        assert!(is_told(&said), "{seconds}: {said}");
        // A client an hour ahead would ask for what is there now.
        let (said, value, code) = at(seconds, &["get", "k", "--as-of", "1h"]);
        assert!(code != Some(0) && value.is_empty(), "{seconds}: {value}");
        assert!(is_told(&said), "{seconds}: {said}");
        // A version is a version.
        let (said, value, _) = at(seconds, &["get", "k", "--as-of", &version]);
        assert_eq!((&said[..], &value[..]), ("", "there"), "{seconds}");
    }
}
