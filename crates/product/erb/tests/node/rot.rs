// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rots in a store while its node is down, as an operator meets it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use erb_kv::{Client, RollBack, Selector, Status, Target};

use super::{Node, folder, formatted, refused, run, said};

/// So often an idle store notes what is durable.
const NOTES: Duration = Duration::from_secs(1);
/// Control areas of a small store end before it.
const AREAS_END: usize = 40 << 20;
const PIECE: usize = 4096;

fn content(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the store")
}

fn find(content: &[u8], what: &[u8]) -> u64 {
    let mut windows = content.windows(what.len());
    windows.position(|it| it == what).expect("it lies there") as u64
}

fn damage(path: &Path, at: u64, bytes: &[u8]) {
    let file: File = OpenOptions::new()
        .write(true)
        .open(path)
        .expect("the store");
    file.write_all_at(bytes, at).expect("written");
}

/// What a check says of a store that opens, and has something damaged.
fn told(path: &Path) -> String {
    let output = run(&["node", "check", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stdout).expect("text")
}

fn put_three(client: &mut Client) {
    for key in ["first", "second", "third"] {
        let value = format!("the value of {key}");
        client
            .put(key.as_bytes(), value.as_bytes(), None)
            .expect("put");
    }
}

#[test]
fn what_rots_among_what_was_written_last_is_told_and_never_taken_for_torn() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let node = Node::start(&path);
    let mut client = node.client();
    put_three(&mut client);
    let before = newest_entry(&content(&path));
    client.put(b"second", b"a newer value", None).expect("put");
    // Nobody writes behind it, so nothing but the mark of an idle store says that the last was durable.
    await_mark(&path, &mut client, before);
    drop(client);
    node.kill();
    let whole = content(&path);
    let value = find(&whole, b"the value of first");
    damage(&path, value, b"T");
    let last = find(&whole, b"a newer value");
    // The version in the head of its record.
    damage(&path, last - 6 - 40, b"XX");
    let said_of_it = told(&path);
    assert!(said_of_it.contains("damaged: key first"), "{said_of_it}");
    let place = format!("at byte {}", last - 6 - 48);
    assert!(
        said_of_it.contains("lost: up to") && said_of_it.contains(&place),
        "{said_of_it}"
    );

    let node = Node::start(&path);
    let mut client = node.client();
    let status = |got: erb_kv::Result<_>| got.err().and_then(|error: erb_kv::Error| error.status());
    assert_eq!(
        status(client.get(b"first", Selector::Head)),
        Some(Status::DAMAGED)
    );
    let got = client.get(b"third", Selector::Head).expect("it is there");
    assert_eq!(got.value, b"the value of third");
    let (code, error) = refused(&["kv", "damaged", &node.url]);
    assert!(code == 1 && error.contains("damaged: 2"), "{error}");
    client
        .put(b"fourth", b"written at the end", None)
        .expect("put");
    drop(client);
    said(&["node", "stop", path.to_str().expect("text")]);
    drop(node);

    // Behind a clean stop the last record too is known by its key.
    let last = find(&content(&path), b"written at the end");
    damage(&path, last - 6 - 40, b"XX");
    let node = Node::start(&path);
    let mut client = node.client();
    assert_eq!(
        status(client.get(b"fourth", Selector::Head)),
        Some(Status::DAMAGED)
    );
}

/// A key with a version that a roll back has made of one whose record is lost since, and one that was restored from that.
/// Versions: the first, that of the roll back, the restored one.
fn made_of_what_is_lost(path: &Path) -> [u64; 3] {
    let node = Node::start(path);
    let mut client = node.client();
    let mut put = |value: &[u8]| client.put(b"k", value, None).expect("put");
    let first = put(b"the first value");
    let second = put(b"the second value");
    put(b"the third value");
    let wanted = RollBack {
        prefix: b"k".to_vec(),
        target: Target::Moment(second),
        unless_written_since: None,
        is_dry_run: false,
    };
    let made = client.roll_back(&wanted).expect("rolled back");
    let restored = client.restore(b"k", Selector::Version(made));
    let restored = restored.expect("restored");
    for version in [made, restored] {
        let found = client.get(b"k", Selector::Version(version));
        assert_eq!(found.expect("it is there").value, b"the second value");
    }
    let before = newest_entry(&content(path));
    client.put(b"last", b"behind all of it", None).expect("put");
    await_mark(path, &mut client, before);
    drop(client);
    node.kill();
    let second = find(&content(path), b"the second value");
    // The version in the head of its record, so nothing says whose it was.
    damage(path, second - 1 - 40, b"XX");
    [first, made, restored]
}

/// N10 of the second round of edges.
#[test]
fn what_a_roll_back_made_of_a_lost_version_is_refused_and_what_is_left_is_told_to_be_uncertain() {
    const LOST: &str = "is lost, and it is not known of which keys";
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let [first, made, restored] = made_of_what_is_lost(&path);
    let node = Node::start(&path);
    let (mut client, url) = (node.client(), &node.url);
    for version in [made, restored] {
        let status = client.get(b"k", Selector::Version(version)).err();
        let status = status.and_then(|error| error.status());
        assert_eq!(status, Some(Status::DAMAGED), "{version}");
        for command in ["get", "restore"] {
            let words = ["kv", command, url, "k", "--version", &version.to_string()];
            assert_eq!(refused(&words).0, 26, "{words:?}");
        }
    }
    // What was written is what it was.
    let found = client.get(b"k", Selector::Version(first));
    assert_eq!(found.expect("it is there").value, b"the first value");
    // The newest is what is left, and told to be so.
    let output = run(&["kv", "get", url, "k"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(error.contains("uncertain: "), "{error}");
    assert_eq!(output.stdout, b"the first value");

    let listed = said(&["kv", "versions", url, "k"]);
    for (version, is) in [
        (made, "rolled back, uncertain"),
        (restored, "restored, uncertain"),
    ] {
        let mut rows = listed.lines();
        let row = rows.find(|line| line.contains(&version.to_string()));
        assert!(row.is_some_and(|row| row.contains(is)), "{listed}");
    }
    let version = made.to_string();
    let rollback = ["kv", "rollback", url, "k", "--to", &version, "--dry-run"];
    for words in [&["kv", "versions", url, "k"][..], &rollback] {
        let (code, error) = refused(words);
        assert!(code == 0 && error.contains(LOST), "{words:?}: {error}");
    }
}

#[test]
fn a_check_reads_every_value_also_behind_a_clean_stop() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let node = Node::start(&path);
    let mut client = node.client();
    put_three(&mut client);
    drop(client);
    said(&["node", "stop", path.to_str().expect("text")]);
    drop(node);
    said(&["node", "check", path.to_str().expect("text")]);
    damage(&path, find(&content(&path), b"the value of second"), b"T");
    let said_of_it = told(&path);
    assert!(said_of_it.contains("damaged: key second"), "{said_of_it}");
    assert_eq!(said_of_it.lines().count(), 2, "{said_of_it}");

    // A start reads its list of records alone. Who is refused the value has found it.
    let node = Node::start(&path);
    said(&["kv", "damaged", &node.url]);
    for _ in 0..2 {
        assert_eq!(refused(&["kv", "get", &node.url, "second"]).0, 26);
        let output = run(&["kv", "damaged", &node.url]);
        let listed = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(1), "{listed}");
        assert_eq!(listed.matches("second").count(), 1, "{listed}");
    }
}

/// Waits until the store has noted how far its log is durable: it has written an entry since `before`, and has had time
/// for the last one. A node that has no time to write it is late with its answers, too.
fn await_mark(path: &Path, client: &mut Client, before: u64) {
    for _ in 0..3 {
        std::thread::sleep(NOTES);
        let missing = client.get(b"no such key", Selector::Head);
        let why = missing.err().and_then(|error| error.status());
        assert_eq!(why, Some(Status::ABSENT));
    }
    erb_steady::wait_until(Duration::from_secs(30), "a mark", || {
        newest_entry(&content(path)) > before
    });
}

/// The number of the newest batch of the control log.
fn newest_entry(content: &[u8]) -> u64 {
    control_entries(content).last().map_or(0, |(lsn, _)| *lsn)
}

/// Batches of the control log behind its snapshot, oldest first.
fn control_batches(content: &[u8]) -> Vec<u64> {
    let of_it = control_entries(content).into_iter();
    of_it
        .filter(|(lsn, _)| *lsn > 1)
        .map(|(_, at)| at)
        .collect()
}

/// Numbers and places of all batches of the control log that the last run has written.
fn control_entries(content: &[u8]) -> Vec<(u64, u64)> {
    let number = |at: usize, bytes: usize| {
        let bytes = &content[at..at + bytes];
        bytes
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    let places = (0..AREAS_END.min(content.len())).step_by(PIECE);
    let batches =
        places.filter(|at| content[*at..].starts_with(b"ERB1") && number(at + 4, 2) == 0xffff);
    let mut found: Vec<(u64, u64, u64)> = batches
        .map(|at| (number(at + 32, 4), number(at + 24, 8), at as u64))
        .collect();
    found.sort_unstable();
    let newest = found.last().expect("a node has run").0;
    found.retain(|(incarnation, ..)| *incarnation == newest);
    found.into_iter().map(|(_, lsn, at)| (lsn, at)).collect()
}

#[test]
fn a_rotten_control_log_is_repaired_when_that_is_asked_for_and_no_key_is_lost() {
    let folder = folder();
    let path = formatted(&folder, "160M", "2");
    let file = path.to_str().expect("text");
    let node = Node::start(&path);
    let mut client = node.client();
    let value = |number: u64| vec![number as u8; 700 << 10];
    let before = newest_entry(&content(&path));
    // So many that logs go on in segments that only rotten entries name.
    for number in 0..24 {
        client
            .put(format!("key {number}").as_bytes(), &value(number), None)
            .expect("put");
    }
    await_mark(&path, &mut client, before);
    drop(client);
    node.kill();
    let batches = control_batches(&content(&path));
    assert!(batches.len() > 3, "{batches:?}");
    for at in &batches[..batches.len() - 1] {
        damage(&path, at + 64, &[0x5a; 1000]);
    }
    let rotten = content(&path);
    for words in [&["node", "check", file][..], &["node", "start", file]] {
        let (code, error) = refused(words);
        assert!(code == 21 && error.contains("--repair"), "{error}");
    }
    let output = run(&["node", "check", file, "--repair"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("--yes makes of it: 24 keys"), "{text}");
    assert!(text.contains("entries of the control log"), "{text}");
    assert!(content(&path) == rotten, "nothing was written");
    let (code, error) = refused(&["node", "check", file, "--repair", "--yes"]);
    assert_eq!(code, 1, "{error}");
    said(&["node", "check", file]);
    let node = Node::start(&path);
    let mut client = node.client();
    for number in 0..24 {
        let got = client.get(format!("key {number}").as_bytes(), Selector::Head);
        let got = got.expect("it is there").value;
        assert!(got == value(number), "{number}");
    }
}

/// Of a control log: the record that its present area begins with.
fn first_entry(content: &[u8]) -> u64 {
    let behind = control_batches(content)[0];
    let begins = (0..=behind).rev().step_by(PIECE);
    let mut begins = begins.filter(|at| content[*at as usize..].starts_with(b"ERB1"));
    let first = begins.find(|at| content[*at as usize + 24..][..8] == 1_u64.to_le_bytes());
    first.expect("an area begins") + 64
}

#[test]
fn a_repair_loses_no_segment_that_a_rotten_snapshot_alone_has_named() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let file = path.to_str().expect("text");
    let keys = [&["first/1", "first/2", "first/3"][..], &["second/1"]];
    for start in keys {
        let node = Node::start(&path);
        let mut client = node.client();
        for key in start {
            client
                .put(key.as_bytes(), key.as_bytes(), None)
                .expect("put");
        }
        drop(client);
        said(&["node", "stop", file]);
    }
    let whole = content(&path);
    // The length of the first entry: where the next one begins is not known then, so all of the snapshot is lost.
    let length = first_entry(&whole) + 6;
    damage(&path, length, &[whole[length as usize] ^ 1]);
    assert_eq!(refused(&["node", "check", file]).0, 21);
    let output = run(&["node", "check", file, "--repair", "--yes"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(": 4 keys"), "{text}");
    assert!(
        text.contains("entries of the control log") && !text.contains("lost: what"),
        "{text}"
    );
    said(&["node", "check", file]);
    let node = Node::start(&path);
    let mut client = node.client();
    for key in keys.concat() {
        let got = client.get(key.as_bytes(), Selector::Head);
        assert_eq!(got.expect("it is there").value, key.as_bytes());
    }
}
