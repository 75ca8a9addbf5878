// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of the storage node and of the file server in a real browser: what is done shows, what is wrong shows, and
//! Prometheus reads the same. Pictures are kept in the folder of the build.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use erb_e2e::browser::{Browser, Sight};
use erb_e2e::lab::{STATE_WAIT, erb_bin, wait};
use erb_e2e::turn::Turn;

/// A program that runs, until this is dropped.
struct Running {
    child: Child,
    /// Where it is watched: `http://127.0.0.1:PORT`.
    watched: String,
    /// The first line that it has said.
    said: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn erb(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(erb_bin());
    command.args(args).current_dir(folder);
    command
}

/// Starts `erb` and waits until it has said where it serves and where it is watched.
fn run(folder: &Path, args: &[&str]) -> Running {
    let mut command = erb(folder, args);
    command.args(["--metrics", "127.0.0.1:0", "--dashboard"]);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("erb");
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    output.read_line(&mut said).expect("a line");
    let mut errors = BufReader::new(child.stderr.take().expect("its errors"));
    let mut watched = None;
    while watched.is_none() {
        let mut line = String::new();
        let read = errors.read_line(&mut line).expect("a line");
        assert!(read > 0, "it ended: {said}");
        let at = line.strip_prefix("metrics: ");
        watched = at.map(|at| at.split("/metrics").next().unwrap_or_default().to_owned());
    }
    // Who says more meanwhile is not kept waiting.
    thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    Running {
        child,
        watched: watched.expect("where"),
        said,
    }
}

fn done(folder: &Path, args: &[&str]) -> bool {
    let output = erb(folder, args).output().expect("erb");
    output.status.success()
}

/// What is answered to a GET of this path.
fn get(url: &str, path: &str) -> String {
    let host = url.strip_prefix("http://").expect("an URL");
    let mut stream = TcpStream::connect(host).expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until a place of the page says all of this.
fn shows(browser: &mut Browser, place: &str, words: &[&str]) {
    wait(STATE_WAIT, || {
        let said = browser.text(place);
        let is_said = words.iter().all(|words| said.contains(words));
        is_said.then_some(()).ok_or(said)
    });
}

/// Opens the page, on a wide and light screen.
fn opened(address: &str) -> Browser {
    let mut browser = Browser::start(|program| Command::new(program));
    browser.look(Sight {
        scheme: "light",
        width: 1280,
    });
    browser.open(&format!("{address}/"));
    browser
}

fn keep_picture(browser: &mut Browser, name: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    browser.picture(&folder.join(format!("{name}.png")));
}

#[test]
fn a_nodes_page_shows_what_is_done_and_what_is_wrong() {
    let _turn = Turn::beside();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    assert!(done(
        folder.path(),
        &["node", "format", "store", "--size", "256M"]
    ));
    let node = run(
        folder.path(),
        &["node", "start", "store", "--listen", "127.0.0.1:0"],
    );
    let url = node
        .said
        .split_whitespace()
        .find(|word| word.starts_with("nvme://"));
    let url = url.expect("an URL").trim_end_matches(':');
    for number in 0..3 {
        let key = format!("conf/{number}");
        assert!(done(folder.path(), &["kv", "put", url, &key, "good"]));
    }
    assert!(done(folder.path(), &["kv", "get", url, "conf/1"]));
    assert!(!done(folder.path(), &["kv", "get", url, "nothing"]));
    assert!(done(folder.path(), &["kv", "snapshot", "take", url]));
    let text = get(&node.watched, "/metrics");
    for line in [
        "erb_node_keys 3",
        "erb_node_snapshots 1",
        "erb_node_requests_total{request=\"write\"} 3",
        "erb_node_refused_total{why=\"absent\"} 1",
        "erb_node_full 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let mut browser = opened(&node.watched);
    shows(&mut browser, "#verdict", &["All is well"]);
    shows(&mut browser, "#title", &["ERB storage node"]);
    shows(&mut browser, "#about", &["nqn.2026-11.org.erb:node"]);
    shows(&mut browser, "#tiles", &["Keys3", "MiB"]);
    let tables = [
        "erb_node_snapshots",
        "Moments that snapshots hold",
        "request=\"write\"",
    ];
    shows(&mut browser, "#tables", &tables);
    assert!(done(folder.path(), &["kv", "put", url, "conf/9", "good"]));
    shows(&mut browser, "#tiles", &["Keys4"]);
    shows(
        &mut browser,
        "#charts",
        &["Requests", "gets", "roll backs", "Space"],
    );
    keep_picture(&mut browser, "node-light");
    // The node ends: the page says so, and does not show what was as if it were.
    drop(node);
    shows(&mut browser, "#verdict", &["Nothing is heard of"]);
    shows(&mut browser, "#age", &["what is shown is", "s old"]);
    let board = "document.getElementById('board').className";
    assert_eq!(browser.value(board), "old", "grey");
    let told = browser.complaints();
    // That it cannot be reached is the browser's own complaint.
    assert!(told.iter().all(|it| it.contains("ERR_")), "{told:?}");
}

#[test]
fn a_file_servers_page_shows_how_bytes_have_left() {
    let _turn = Turn::beside();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    std::fs::write(folder.path().join("file"), "x".repeat(100_000)).expect("a file");
    let server = run(folder.path(), &["serve", ".", "--listen", "127.0.0.1:0"]);
    let at = server
        .said
        .split_whitespace()
        .find(|word| word.starts_with("http://"));
    let at = at.expect("an URL").trim_end_matches('/');
    assert!(get(at, "/file").ends_with("xxx"));
    assert!(get(at, "/nothing").starts_with("HTTP/1.1 404"));
    let text = get(&server.watched, "/metrics");
    for line in [
        "erb_serve_answers_total{status=\"200\"} 1",
        "erb_serve_answers_total{status=\"404\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let mut browser = opened(&server.watched);
    shows(&mut browser, "#verdict", &["All is well"]);
    shows(
        &mut browser,
        "#tables",
        &["{status=\"404\"}", "Bytes that ERB has copied"],
    );
    shows(&mut browser, "#charts", &["Answers", "zero-copy"]);
    keep_picture(&mut browser, "serve-light");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
