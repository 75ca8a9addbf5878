// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb kv export` and `erb kv import` as they are typed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use erb_kv::archive::{Head, Reader, What, Writer};
use erb_kv::{Change, Client, Condition, Selector, Write as KvWrite};
use tempfile::TempDir;

use super::{Node, erb, folder, formatted, refused, said};

/// Keys that a batch writes together.
const TOGETHER: u64 = 300;

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn node(shards: &str) -> (TempDir, Node) {
    let folder = folder();
    let path = formatted(&folder, "160M", shards);
    let node = Node::start(&path);
    (folder, node)
}

fn keys_of(path: &Path) -> Keys {
    let mut reader = Reader::new(File::open(path).expect("it is there")).expect("an export");
    let mut keys = Keys::new();
    while let Some(entry) = reader.entry().expect("it is whole") {
        let What::Value(value) = entry.what else {
            panic!("{:?} has a value that can be read", entry.key);
        };
        assert_eq!(keys.insert(entry.key, value), None, "a key stands once");
    }
    keys
}

/// Keys and values of all sizes, with any bytes.
fn odd() -> Keys {
    let sizes = [0, 1, 4096, 8192, 200_000, 1 << 20];
    let mut keys: Keys = (1_u8..)
        .zip(sizes)
        .map(|(number, bytes)| (vec![number, 0, 0xff, b'\n'], vec![number; bytes]))
        .collect();
    keys.insert(vec![0xfe; 1024], b"long".to_vec());
    keys.insert(vec![0; 17], vec![7; 500_000]);
    keys
}

fn together(number: u64, round: u64) -> KvWrite {
    KvWrite {
        key: erb_kv::plain(format!("together/{number}").as_bytes()),
        change: Change::Put(round.to_le_bytes().to_vec()),
        condition: Condition::Any,
    }
}

fn write_together(client: &mut Client, round: u64) {
    let batch: Vec<KvWrite> = (0..TOGETHER)
        .map(|number| together(number, round))
        .collect();
    client.batch(&batch).expect("all of it is written");
}

fn write_odd(client: &mut Client) -> Keys {
    let odd = odd();
    for (key, value) in &odd {
        client.put(key, value, None).expect("put");
    }
    odd
}

#[test]
fn an_export_is_one_moment_whoever_writes_meanwhile() {
    let (folder, node) = node("2");
    let mut client = node.client();
    let odd = write_odd(&mut client);
    write_together(&mut client, 0);
    let early = client.put(b"later", b"first", None).expect("put") - 1;
    let path = folder.path().join("export");
    let export = |words: &[&str]| {
        let all = ["kv", "export", &node.url, "--force", "--to", text(&path)];
        said(&[&all, words].concat());
        keys_of(&path)
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = node.client();
            for round in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                write_together(&mut client, round);
            }
        });
        for _ in 0..3 {
            let mut found = export(&[]);
            for (key, value) in &odd {
                assert!(found.remove(key).as_ref() == Some(value), "{key:?}");
            }
            assert_eq!(found.remove(&b"later"[..]), Some(b"first".to_vec()));
            assert_eq!(found.len() as u64, TOGETHER);
            let rounds: BTreeSet<_> = found.values().collect();
            assert_eq!(rounds.len(), 1, "each batch was one moment");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let before = export(&["--as-of", &early.to_string()]);
    assert_eq!(before.get(&b"later"[..]), None);
    assert_eq!(before.len() as u64, odd.len() as u64 + TOGETHER);
    assert_eq!(export(&["later"]).len(), 1);
}

#[test]
fn an_import_brings_all_of_an_export_and_only_once() {
    let (folder, from) = node("1");
    let odd = write_odd(&mut from.client());
    let path = folder.path().join("export");
    said(&["kv", "export", &from.url, "--to", text(&path)]);
    let (_folder, to) = node("2");
    let import = |words: &[&str]| -> serde_json::Value {
        let all = [&["kv", "import", &to.url, text(&path), "--json"], words].concat();
        serde_json::from_str(&said(&all)).expect("JSON")
    };
    let all = odd.len() as u64;
    assert_eq!(import(&["--dry-run"])["keys"], all);
    assert_eq!(said(&["kv", "ls", &to.url]), "", "it was only read through");
    let first = import(&[]);
    assert_eq!(
        (&first["written"], &first["unchanged"]),
        (&all.into(), &0.into())
    );
    let mut client = to.client();
    for (key, value) in &odd {
        let found = client.get(key, Selector::Head).expect("it is there");
        assert!(found.value == *value, "{key:?}");
    }
    let (changed, same) = (vec![1, 0, 0xff, b'\n'], vec![2, 0, 0xff, b'\n']);
    client.put(&changed, b"changed", None).expect("put");
    let again = import(&[]);
    assert_eq!(
        (&again["written"], &again["unchanged"]),
        (&1.into(), &(all - 1).into())
    );
    let mut versions = |key: &[u8]| client.versions(key, 0).expect("versions").0.len();
    assert_eq!((versions(&changed), versions(&same)), (3, 1));
}

#[test]
fn an_export_of_changes_makes_of_a_former_one_what_there_is_now() {
    let (folder, from) = node("2");
    let mut client = from.client();
    write_odd(&mut client);
    write_together(&mut client, 0);
    let path = |name: &str| folder.path().join(name);
    let export = |name: &str, words: &[&str]| {
        let path = path(name);
        let all = ["kv", "export", &from.url, "--json", "--to", text(&path)];
        let line = said(&[&all, words].concat());
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        line
    };
    let full = export("full", &[]);
    let moment = full["moment"].as_str().expect("a version").to_owned();
    // Deleted, deleted and back, written, the same again, new, rolled back, new and gone.
    client.delete(&[1, 0, 0xff, b'\n'], None).expect("delete");
    client.delete(&[2, 0, 0xff, b'\n'], None).expect("delete");
    client
        .put(&[2, 0, 0xff, b'\n'], b"back", None)
        .expect("put");
    client.put(&[0xfe; 1024], b"another", None).expect("put");
    client.put(b"new", b"new", None).expect("put");
    client.put(b"gone", b"gone", None).expect("put");
    client.delete(b"gone", None).expect("delete");
    let scope = [
        client.put(b"back/1", b"1", None).expect("put"),
        client.put(b"back/2", b"2", None).expect("put"),
    ];
    let to = scope[0].to_string();
    said(&["kv", "rollback", &from.url, "back/", "--to", &to, "--yes"]);
    let listed = said(&[
        "kv",
        "ls",
        &from.url,
        "--changed-since",
        &moment,
        "--deleted",
    ]);
    assert_eq!(listed.matches(" deleted ").count(), 3, "{listed}");
    let changes = export("changes", &["--since", &moment]);
    let counts = [&changes["keys"], &changes["deleted"]];
    assert_eq!(counts, [4, 3], "{changes}");

    let (_folder, other) = node("1");
    let import = |name: &str| {
        let line = said(&["kv", "import", &other.url, text(&path(name)), "--json"]);
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        line
    };
    import("full");
    let done = import("changes");
    // Of the three that are deleted one was in the first export.
    assert_eq!([&done["written"], &done["unchanged"]], [5, 2], "{done}");
    assert_eq!(import("changes")["written"], 0, "it may be repeated");
    for (node, name) in [(&from, "from"), (&other, "other")] {
        said(&["kv", "export", &node.url, "--to", text(&path(name))]);
    }
    assert!(
        keys_of(&path("from")) == keys_of(&path("other")),
        "both have the same"
    );

    let later = path("later");
    let words = ["--as-of", &moment, "--since", "0s", "--to", text(&later)];
    let (_, error) = refused(&[&["kv", "export", &from.url][..], &words].concat());
    assert!(error.contains("later"), "{error}");
    assert!(!later.exists());
}

#[test]
fn of_a_store_at_rest_nothing_has_changed() {
    let (folder, node) = node("1");
    node.client().put(b"key", b"value", None).expect("put");
    thread::sleep(std::time::Duration::from_millis(2));
    let path = folder.path().join("changes");
    let words = ["export", &node.url, "--since", "0s", "--to", text(&path)];
    said(&[&["kv"][..], &words].concat());
    let done = said(&["kv", "import", &node.url, text(&path), "--json"]);
    let done: serde_json::Value = serde_json::from_str(&done).expect("JSON");
    assert_eq!([&done["keys"], &done["written"]], [0, 0], "{done}");
    let never = folder.path().join("never");
    let words = ["--since", "2100-01-01T00:00:00Z", "--to", text(&never)];
    let (_, error) = refused(&[&["kv", "export", &node.url][..], &words].concat());
    assert!(error.contains("later") && !never.exists(), "{error}");
}

#[test]
fn a_file_that_names_a_key_twice_changes_nothing() {
    let (folder, node) = node("1");
    let head = Head {
        namespace: 1,
        moment: 2 << 12,
        since: Some(1 << 12),
        prefix: Vec::new(),
    };
    let mut writer = Writer::new(Vec::new(), &head).expect("a head");
    writer.value(b"a", 6000, b"one").expect("a record");
    writer.value(b"b", 6000, b"one").expect("a record");
    writer.deleted(b"a", 6000).expect("a record");
    let path = folder.path().join("twice");
    std::fs::write(&path, writer.end().expect("an end")).expect("written");
    let (code, said_so) = refused(&["kv", "import", &node.url, text(&path)]);
    assert_eq!(code, 1);
    let is_told = said_so.contains("names a key twice") && said_so.contains("nothing was imported");
    assert!(is_told, "{said_so}");
    assert_eq!(said(&["kv", "ls", &node.url]), "");
}

fn archive(keys: &Keys) -> Vec<u8> {
    let head = Head {
        namespace: 1,
        moment: 1 << 12,
        since: None,
        prefix: Vec::new(),
    };
    let mut writer = Writer::new(Vec::new(), &head).expect("a head");
    for (key, value) in keys {
        writer.value(key, 1, value).expect("a record");
    }
    writer.end().expect("an end")
}

#[test]
fn a_damaged_file_changes_nothing_unless_that_is_asked_for() {
    let (folder, node) = node("1");
    let keys: Keys = (0..50_u8)
        .map(|number| (vec![number + 1; 8], vec![number; 1000]))
        .collect();
    let whole = archive(&keys);
    let record = 32 + 8 + 1000;
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let with_key = |key: &[u8], bytes: usize| {
        let mut keys = keys.clone();
        keys.insert(key.to_vec(), vec![1; bytes]);
        archive(&keys)
    };
    let value_at = 64 + 20 * record + 32 + 8 + 500;
    let hostile = [
        (Vec::new(), "no export"),
        (b"not one at all".to_vec(), "no export"),
        (whole[..whole.len() - 1].to_vec(), "cut short"),
        (whole[..64 + 10 * record + 5].to_vec(), "cut short"),
        (whole[..64].to_vec(), "cut short"),
        (with(8, &[9]), "format 9"),
        (with(64 + 10 * record + 4, &[0xff; 4]), "damaged"),
        (with(64 + 10 * record + 2, &[0xff; 2]), "damaged"),
        (with(value_at, &[0xaa]), "damaged"),
        ([&whole[..], b"more"].concat(), "behind its end"),
        (with_key(b"", 1), "at byte 64"),
        (with_key(&[b'k'; 1000], 1 << 20), "at byte 52064"),
    ];
    let path = folder.path().join("hostile");
    for (bytes, why) in &hostile {
        std::fs::write(&path, bytes).expect("written");
        let (code, said) = refused(&["kv", "import", &node.url, text(&path)]);
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains(why) && said.contains("nothing was imported"),
            "{said}"
        );
        let dry = refused(&["kv", "import", &node.url, text(&path), "--dry-run"]);
        assert_eq!((dry.0, dry.1), (code, said));
    }
    assert_eq!(said(&["kv", "ls", &node.url]), "", "nothing was imported");

    // What comes by standard input cannot be read twice: what was written is told.
    let mut command = erb(&["kv", "import", &node.url]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut to = child.stdin.take().expect("it is piped");
    to.write_all(&whole[..64 + 10 * record + 5])
        .expect("it reads");
    drop(to);
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("10 keys were written before that"),
        "{error}"
    );
    assert_eq!(said(&["kv", "ls", &node.url]).lines().count(), 10);

    // A damaged value costs its key alone.
    std::fs::write(&path, with(value_at, &[0xaa])).expect("written");
    let (code, error) = refused(&["kv", "import", &node.url, text(&path), "--damaged"]);
    assert_eq!(code, 1);
    assert!(error.contains("damaged, and not imported"), "{error}");
    assert_eq!(said(&["kv", "ls", &node.url]).lines().count(), 49);
}

#[test]
fn an_export_that_is_not_whole_is_an_error_and_leaves_no_file() {
    let (folder, node) = node("1");
    let mut client = node.client();
    for number in 0..20_u8 {
        client
            .put(&[number + 1], &vec![number; 300_000], None)
            .expect("put");
    }
    let export = |out: Stdio| {
        let mut command = erb(&["kv", "export", &node.url]);
        command.stdout(out).stderr(Stdio::piped());
        let output = command.output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = export(File::create("/dev/full").expect("it is there").into());
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("standard output"), "{error}");
    let (reads, writes) = UnixStream::pair().expect("a pair");
    drop(reads);
    let (code, error) = export(OwnedFd::from(writes).into());
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("nobody reads any further"), "{error}");

    let path = folder.path().join("export");
    std::fs::write(&path, "precious").expect("written");
    assert_eq!(
        refused(&["kv", "export", &node.url, "--to", text(&path)]).0,
        2
    );
    let missing = folder.path().join("missing/export");
    assert_eq!(
        refused(&["kv", "export", &node.url, "--to", text(&missing)]).0,
        1
    );
    let future = ["kv", "export", &node.url, "--as-of", "9999999999999999999"];
    let other = folder.path().join("other");
    assert_eq!(
        refused(&[&future[..], &["--to", text(&other)]].concat()).0,
        26
    );
    assert_eq!(std::fs::read(&path).expect("it is there"), b"precious");
    let names = std::fs::read_dir(folder.path()).expect("a folder");
    assert_eq!(names.count(), 2, "the store and what is precious");
    let url = node.url.clone();
    node.kill();
    assert_eq!(refused(&["kv", "export", &url, "--to", text(&other)]).0, 23);
}
