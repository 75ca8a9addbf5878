// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb node host`, and what hosts with secrets type.

use std::fs::{Permissions, metadata, read_to_string, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{Node, erb, folder, formatted, refused, said};

const WEB: &str = "nqn.2026-11.org.example:web1";
const OPS: &str = "nqn.2026-11.org.example:ops";

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A command as a host types it.
fn typed(host: &str, secret: &Path, words: &[&str]) -> Command {
    let mut command = erb(words);
    command.env("ERB_HOST_NQN", host);
    command.env("ERB_SECRET_FILE", secret);
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Waits until a command ends with a code: a node takes a file within a second.
fn await_code(mut command: Command, wanted: i32) -> Output {
    erb_steady::wait(Duration::from_secs(30), || {
        let output = command.output().expect("erb runs");
        let is_so = code(&output) == Some(wanted);
        is_so
            .then_some(output.clone())
            .ok_or_else(|| format!("{output:?}"))
    })
}

#[test]
fn secrets_that_could_not_be_shown_are_an_error() {
    let folder = folder();
    let hosts = folder.path().join("hosts");
    let full = std::fs::File::create("/dev/full").expect("it is there");
    let mut add = erb(&["node", "host", "add", text(&hosts), WEB, "--role", "writer"]);
    let output = add.stdout(full).output().expect("erb runs");
    assert_eq!(code(&output), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rekey"), "{said}");
}

#[test]
fn a_host_gets_in_with_its_secret_and_does_what_its_role_says_until_it_is_removed() {
    let folder = folder();
    let path = formatted(&folder, "160M", "1");
    let [hosts, web, ops] = ["hosts", "web", "ops"].map(|name| folder.path().join(name));
    let (list, file) = (text(&hosts), text(&path));
    let add = ["node", "host", "add", list];
    said(&[&add[..], &[WEB, "--role", "writer", "--out", text(&web)]].concat());
    said(&[&add[..], &[OPS, "--role", "admin", "--out", text(&ops)]].concat());
    let node = Node::start_with(&path, &["--hosts", list, "--listen", "0.0.0.0:0"]);
    let port = node.url.rsplit_once(':').expect("a port").1;
    let url = format!("nvme://127.0.0.1:{port}");
    let ends = |host: &str, secret: &Path, words: &[&str]| {
        let output = typed(host, secret, words).output().expect("erb runs");
        (
            code(&output),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let put = ["kv", "put", &url, "k", "v"];
    let roll_back = ["kv", "rollback", &url, "--to", "1s", "--yes"];
    assert_eq!(ends(WEB, &web, &put).0, Some(0));
    assert_eq!(ends(WEB, &web, &roll_back).0, Some(26));
    assert_eq!(ends(OPS, &ops, &roll_back).0, Some(0));
    assert_eq!(ends(OPS, &ops, &["node", "status", &url]).0, Some(0));
    let versions = typed(OPS, &ops, &["kv", "versions", &url, "k"]);
    let versions = String::from_utf8(await_code(versions, 0).stdout).expect("text");
    assert!(versions.contains("by host 1"), "{versions}");
    // No name, no secret, another one's.
    let (without, why) = refused(&put);
    assert_eq!(without, 28, "{why}");
    let (unproven, why) = refused(&[&put[..], &["--host-nqn", WEB]].concat());
    assert_eq!(unproven, 28, "{why}");
    assert!(why.contains("asks for a secret"), "{why}");
    let (wrong, why) = ends(WEB, &ops, &put);
    assert_eq!(wrong, Some(28), "{why}");
    assert!(why.contains("refuses this host's secret"), "{why}");
    // A signal to read the file again does no harm.
    kill(Pid::from_raw(node.process.id() as i32), Signal::SIGHUP).expect("told");
    said(&["node", "host", "remove", list, WEB]);
    let output = await_code(typed(WEB, &web, &put), 28);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("does not know this host"), "{why}");
    assert_eq!(ends(OPS, &ops, &put).0, Some(0));
    said(&["node", "stop", file]);
    assert_eq!(
        refused(&["node", "start", file, "--listen", "0.0.0.0:0"]).0,
        2
    );
}

fn is_private(path: &Path) -> bool {
    metadata(path).expect("a file").permissions().mode() & 0o777 == 0o600
}

#[test]
fn secrets_are_shown_once_and_are_changed_by_name() {
    let folder = folder();
    let [hosts, out] = ["hosts", "out"].map(|name| folder.path().join(name));
    let list = text(&hosts);
    let add = ["node", "host", "add", list, WEB, "--role", "reader"];
    let shown = said(&add);
    let secrets: Vec<&str> = shown.lines().collect();
    assert_eq!(secrets.len(), 2, "{shown}");
    let usual = |secret: &&str| secret.starts_with("DHHC-1:00:");
    assert!(secrets.iter().all(usual), "{shown}");
    let kept = read_to_string(&hosts).expect("the file");
    assert!(secrets.iter().all(|secret| kept.contains(secret)));
    assert!(is_private(&hosts));
    let listed =
        said(&["node", "host", "list", list]) + &said(&["node", "host", "list", list, "--json"]);
    assert!(
        listed.contains(WEB) && listed.contains("reader"),
        "{listed}"
    );
    assert!(!listed.contains("DHHC"), "{listed}");

    // Twice, to a file that is there, without a role, under no name.
    assert_eq!(refused(&add).0, 2);
    assert_eq!(refused(&["node", "host", "add", list, OPS]).0, 2);
    let other = ["node", "host", "add", list, "web1", "--role", "reader"];
    assert_eq!(refused(&other).0, 2);
    assert_eq!(refused(&["node", "host", "remove", list, OPS]).0, 2);
    let rekey = ["node", "host", "rekey", list, WEB];
    let other = said(&rekey);
    let same = |secret: &&str| other.contains(*secret);
    assert!(!secrets.iter().any(same), "{other}");
    let to = [&rekey[..], &["--out", text(&out)]].concat();
    said(&to);
    assert!(is_private(&out));
    assert_eq!(refused(&to).0, 29);
    // Secrets of another program.
    let rotten = "DHHC-1:01:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQG0HjO3:\n";
    std::fs::write(&out, rotten).expect("written");
    let from = [&rekey[..], &["--from", text(&out)]].concat();
    assert_eq!(refused(&from).0, 29, "its CRC is wrong");
    std::fs::write(&out, shown.lines().next().expect("a secret")).expect("written");
    assert_eq!(said(&from), "", "what was given is not shown");
    let row: Value =
        serde_json::from_str(&said(&["node", "host", "list", list, "--json"])).expect("JSON");
    assert_eq!(row["node_proves_itself"], false);
    let roles = ["--role", "writer", "--role", "2=reader"];
    said(&[&["node", "host", "role", list, WEB], &roles[..]].concat());
    assert!(said(&["node", "host", "list", list]).contains("writer 2=reader"));
}

#[test]
fn files_of_secrets_that_others_may_read_are_refused() {
    let folder = folder();
    let path = formatted(&folder, "160M", "1");
    let [hosts, out] = ["hosts", "out"].map(|name| folder.path().join(name));
    let list = text(&hosts);
    let add = ["node", "host", "add", list, WEB, "--role", "reader"];
    said(&[&add[..], &["--out", text(&out)]].concat());
    let open =
        |path: &Path| set_permissions(path, Permissions::from_mode(0o644)).expect("permissions");
    open(&hosts);
    let start = ["node", "start", text(&path), "--hosts", list];
    let start = [&start[..], &["--listen", "127.0.0.1:0"]].concat();
    let (refused_open, why) = refused(&start);
    assert_eq!(refused_open, 29, "{why}");
    assert!(why.contains("chmod 600"), "{why}");
    assert_eq!(refused(&[&start[..], &["--role", "writer"]].concat()).0, 2);
    open(&out);
    let put = ["kv", "put", "nvme://127.0.0.1:1", "k", "v"];
    let output = typed(WEB, &out, &put).output().expect("erb runs");
    assert_eq!(code(&output), Some(29));
    // A secret without a name says nothing.
    let nameless = [&put[..], &["--secret-file", text(&out)]].concat();
    assert_eq!(refused(&nameless).0, 2);
}

#[test]
fn a_node_that_lets_everybody_in_says_so() {
    let folder = folder();
    let path = formatted(&folder, "160M", "1");
    let said_there = folder.path().join("said");
    let mut command = erb(&[
        "node",
        "start",
        text(&path),
        "--json",
        "--insecure",
        "--listen",
        "0.0.0.0:0",
    ]);
    command.stderr(std::fs::File::create(&said_there).expect("a file"));
    let node = Node::ready(command);
    let port = node.url.rsplit_once(':').expect("a port").1;
    said(&["kv", "put", &format!("nvme://127.0.0.1:{port}"), "k", "v"]);
    let warned = read_to_string(&said_there).expect("text");
    assert!(warned.contains("nobody needs a secret"), "{warned}");
}
