// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the documents tell a newcomer to type works as it stands there. Each is run in namespaces of its own:
//! network, and mounts, so that `/run` is its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use erb_e2e::lab::erb_bin;
use erb_e2e::turn::Turn;

/// Seconds that a newcomer's commands may take, waits in them included.
const PATIENCE_S: &str = "60";

/// What a shell needs before it is as the documents assume it: root, and a network of its own that is up.
const BEFORE: &str = r#"
set -euo pipefail
mount -t tmpfs tmpfs /run
ip link set lo up
sudo() { "$@"; }
"#;

/// The commands of the first such block behind a heading.
fn commands(document: &str, heading: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let text = fs::read_to_string(root.join(document)).expect(document);
    let (_, behind) = text.split_once(&format!("\n{heading}\n")).expect(heading);
    let (_, block) = behind.split_once("\n```sh\n").expect("commands");
    block.split_once("\n```").expect("their end").0.to_owned()
}

/// Runs them in a folder of the tests' own disk. What they print, standard error too.
fn typed(before: &str, commands: &str) -> String {
    let _turn = Turn::beside();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let erb = erb_bin();
    let path = std::env::var("PATH").expect("PATH");
    let path = format!("{}:{path}", erb.parent().expect("a folder").display());
    let script = format!("exec 2>&1\n{BEFORE}{before}\n{commands}\n");
    let ran = Command::new("timeout")
        .args(["--kill-after=5", PATIENCE_S])
        .args([
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ])
        .args(["bash", "-c", &script])
        .env("PATH", path)
        .current_dir(folder.path())
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{}:\n{said}", ran.status);
    said
}

/// A newcomer types on when the node says that it is ready.
fn when_ready(commands: &str) -> String {
    const READY: &str = "until erb node status nvme://127.0.0.1 >status 2>&1; do sleep 0.1; done";
    let lines = commands.lines().flat_map(|line| {
        let begins = line.split('#').next().unwrap_or_default().trim_end();
        let wait = begins.ends_with('&').then_some(READY);
        [Some(line), wait]
    });
    lines.flatten().collect::<Vec<_>>().join("\n")
}

#[test]
fn from_nothing_to_an_undo() {
    let all = commands("docs/operating/node.md", "## From nothing to an undo");
    let said = typed("", &when_ready(&all));
    assert!(said.contains("keys that would change: 2"), "{said}");
    assert!(said.contains("erb kv undo nvme://127.0.0.1 "), "{said}");
    let (_, got) = said.rsplit_once("undoes it\n").expect("a roll back");
    assert!(got.starts_with("good"), "{said}");
    assert_eq!(got.matches("(7").count(), 3, "three versions: {said}");
}

#[test]
fn doctor_boost_status_detach() {
    let before = r"
ip link add eth0 type veth peer name eth1
ip link set eth0 up
ip link set eth1 up
redis-server --bind 127.0.0.1 --save '' --daemonize yes >redis.log
until redis-cli ping >pong 2>&1; do sleep 0.1; done
";
    let all = commands(
        "docs/operating/boost.md",
        "## Doctor, boost, status, detach",
    );
    let said = typed(before, &all);
    for words in [
        "`erb boost` will work",
        "boosted eth0",
        "serving      yes",
        "detached",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
