// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts that are refused before anything is served.

use crate::{Node, erb, folder, formatted, limited, refused};

#[test]
fn a_start_that_cannot_serve_says_why() {
    let folder = folder();
    let path = formatted(&folder, "128M", "1");
    let file = path.to_str().expect("text");
    let start = ["node", "start", file, "--listen", "127.0.0.1:0"];
    for nqn in [
        "",
        "node",
        "nqn.",
        "nqn.2026-13.org.example:a",
        "nqn.2026-11.org.example",
        "nqn.2026-11.org..example:a",
        "nqn.2026-11.org.example:",
        "nqn.2026-11.org.example:a b",
        "nqn.2014-08.org.nvmexpress.discovery",
        &format!("nqn.2026-11.org.example:{}", "a".repeat(200)),
    ] {
        let (code, why) = refused(&[&start[..], &["--nqn", nqn]].concat());
        assert!(
            code == 2 && why.contains("nqn.YYYY-MM.DOMAIN:NAME"),
            "{nqn}: {code}: {why}"
        );
    }
    for most in [20, 63] {
        let mut command = erb(&start);
        let output = limited(&mut command, most).output().expect("erb runs");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(why.contains("ulimit -n"), "{why}");
    }
    let name = "nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-123456789abc";
    let node = Node::start_with(&path, &["--listen", "127.0.0.1:0", "--nqn", name]);
    node.kill();
}
