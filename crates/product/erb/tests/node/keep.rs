// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is kept, and where: growing, the lock of retention, snapshots that end, as they are typed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use erb_kv::{Client, Selector, Status};

use super::{Loop, Node, erb, folder, formatted, refused, run, said};

/// Bytes of a superblock's copy.
const COPY: usize = 4096;

/// A file that was cut off is not made whole by zeros.
fn cut_off_is_not_grown(path: &Path, cut: &Path) {
    std::fs::copy(path, cut).expect("a copy");
    let resize = OpenOptions::new().write(true).open(cut);
    resize
        .and_then(|file| file.set_len(80 << 20))
        .expect("it becomes smaller");
    let file = cut.to_str().expect("text");
    let (code, error) = refused(&["node", "grow", file, "--size", "192M"]);
    assert_eq!(code, 21, "{error}");
    assert!(error.contains("it was cut off"), "{error}");
}

/// Puts half mebibytes until one is refused, at most so many: how many were not, and how the last one was.
fn flood(client: &mut Client, most: u32) -> (u32, Option<Status>) {
    for number in 0..most {
        let key = format!("flood {}", number % 5);
        let put = client.put(key.as_bytes(), &vec![1; 512 << 10], None);
        if let Some(status) = put.err().and_then(|error| error.status()) {
            return (number, Some(status));
        }
    }
    (most, None)
}

/// Whoever has a store and waits for no signal would be ended by one: here this test.
fn who_is_no_node_is_left_alone(path: &Path) {
    let file = path.to_str().expect("text");
    let held = File::open(path).expect("it is there");
    let held = nix::fcntl::Flock::lock(held, nix::fcntl::FlockArg::LockExclusive);
    let (code, error) = refused(&["node", "grow", file, "--size", "192M"]);
    assert_eq!(code, 20, "it is in use: {error}");
    let (code, error) = refused(&["node", "stop", file]);
    assert_eq!(code, 20, "{error}");
    assert!(error.contains("is no node"), "{error}");
    drop(held);
}

#[test]
fn a_full_store_that_has_grown_takes_writes_again_and_has_lost_nothing() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let file = path.to_str().expect("text");
    let node = Node::start(&path);
    let mut client = node.client();
    client.put(b"k", b"good", None).expect("put");
    assert_eq!(flood(&mut client, 1000).1, Some(Status::CAPACITY));
    drop(client);
    node.kill();
    who_is_no_node_is_left_alone(&path);
    for (size, why) in [
        ("64M", "no segment more"),
        ("96M", "no segment more"),
        ("2T", "at most"),
    ] {
        let (code, error) = refused(&["node", "grow", file, "--size", size]);
        assert_eq!(code, 10, "{error}");
        assert!(error.contains(why), "{error}");
    }
    cut_off_is_not_grown(&path, &folder.path().join("cut"));
    let length = || std::fs::metadata(&path).expect("it is there").len();
    assert_eq!(length(), 96 << 20, "nothing was done");
    let line = said(&["node", "grow", file, "--size", "192M", "--json"]);
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["store_bytes"], 192 << 20);
    assert_eq!(length(), 192 << 20);
    // A file that is larger than its store, without a size.
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(200 << 20))
        .expect("it becomes larger");
    said(&["node", "grow", file]);
    let node = Node::start(&path);
    let mut client = node.client();
    assert_eq!(flood(&mut client, 100).1, None, "50 MiB and more");
    let found = client.get(b"k", Selector::Head).expect("it is there");
    assert_eq!(found.value, b"good");
    assert!(client.get(b"flood 1", Selector::Back(1)).is_ok());
    drop(client);
    node.kill();
    said(&["node", "check", file]);
    // What is said is part of a command.
    for words in [
        &["node", "check", file][..],
        &["node", "grow", file, "--size", "204M"],
    ] {
        let full = File::create("/dev/full").expect("it is there");
        let output = erb(words).stdout(full).stderr(Stdio::piped()).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
    }
}

#[test]
fn a_store_grows_while_its_node_serves_it() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let file = path.to_str().expect("text");
    let node = Node::start(&path);
    let mut client = node.client();
    client.put(b"k", b"good", None).expect("put");
    let (first, _) = flood(&mut client, 1000);
    assert!(first < 150, "{first}");
    for (size, why) in [
        ("64M", "no segment more"),
        ("96M", "no segment more"),
        ("2T", "at most"),
    ] {
        let (code, error) = refused(&["node", "grow", file, "--size", size]);
        assert_eq!(code, 10, "{error}");
        assert!(error.contains(why), "{error}");
    }
    let length = || std::fs::metadata(&path).expect("it is there").len();
    assert_eq!(length(), 96 << 20, "nothing was done");
    let before = client.health().expect("it answers").size_bytes;
    let line = said(&["node", "grow", file, "--size", "160M", "--json"]);
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["store_bytes"], 160 << 20);
    assert_eq!(line["is_running"], true);
    assert_eq!(length(), 160 << 20);
    // It is asked again, and takes writes at once.
    let now = client.health().expect("it answers").size_bytes;
    assert_eq!(now - before, 64 << 20);
    let (second, _) = flood(&mut client, 1000);
    assert!(second > 60, "{second}");
    // A file that is larger, with less asked for than it has, and all of it.
    let longer = OpenOptions::new().write(true).open(&path);
    let longer = longer.and_then(|file| file.set_len(224 << 20));
    longer.expect("it becomes larger");
    let (code, error) = refused(&["node", "grow", file, "--size", "192M"]);
    assert_eq!(code, 10, "{error}");
    assert!(error.contains("without --size"), "{error}");
    said(&["node", "grow", file]);
    assert!(flood(&mut client, 1000).0 > 60);
    drop(client);
    node.kill();
    said(&["node", "check", file]);
    let node = Node::start(&path);
    let mut client = node.client();
    assert_eq!(
        client.health().expect("it answers").size_bytes,
        before + (128 << 20)
    );
    let found = client.get(b"k", Selector::Head).expect("it is there");
    assert_eq!(found.value, b"good");
}

#[test]
fn a_block_device_grows_while_a_node_serves_what_is_on_it() {
    let folder = folder();
    let file = folder.path().join("disk");
    let disk = File::create(&file).expect("a file");
    disk.set_len(96 << 20).expect("a size");
    let Some(device) = Loop::of(&file) else {
        return;
    };
    let path = Path::new(&device.0);
    said(&["node", "format", &device.0]);
    let node = Node::start(path);
    let mut client = node.client();
    client.put(b"k", b"good", None).expect("put");
    assert_eq!(flood(&mut client, 1000).1, Some(Status::CAPACITY));
    // The device has not become larger, or not by so much.
    for (words, why) in [
        (&[][..], "no segment more"),
        (&["--size", "160M"], "larger first"),
    ] {
        let (code, error) = refused(&[&["node", "grow", &device.0], words].concat());
        assert_eq!(code, 10, "{error}");
        assert!(error.contains(why), "{error}");
    }
    disk.set_len(160 << 20).expect("it becomes larger");
    device.follow();
    let before = client.health().expect("it answers").size_bytes;
    let line = said(&["node", "grow", &device.0, "--json"]);
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["store_bytes"], 160 << 20);
    assert_eq!(line["is_running"], true);
    let now = client.health().expect("it answers").size_bytes;
    assert_eq!(now - before, 64 << 20);
    client.put(b"k", b"better", None).expect("there is room");
    assert_eq!(flood(&mut client, 1000).1, Some(Status::CAPACITY));
    drop(client);
    node.kill();
    said(&["node", "check", &device.0]);
    let node = Node::start(path);
    let mut client = node.client();
    for (at, value) in [
        (Selector::Head, b"better".as_slice()),
        (Selector::Back(1), b"good"),
    ] {
        assert_eq!(client.get(b"k", at).expect("it is there").value, value);
    }
    let again = client.health().expect("it answers").size_bytes;
    assert_eq!(again, now);
}

/// Trap 45.
#[test]
fn what_is_locked_becomes_no_less_whoever_asks_and_whatever_superblock_is_put_back() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let node = Node::start(&path);
    let snapshot = said(&["kv", "snapshot", "take", &node.url]);
    let snapshot = snapshot.trim().to_owned();
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.expect("it is there");
    let mut before = [0; COPY];
    file.read_exact_at(&mut before, 0).expect("a superblock");
    let lock = |url: &str, time: &str, words: &[&str]| {
        run(&[&["kv", "retention", url, "--lock-for", time], words].concat())
    };
    let unasked = lock(&node.url, "30days", &[]).status.code();
    assert_eq!(unasked, Some(2), "nobody is there to be asked");
    assert!(lock(&node.url, "30days", &["--yes"]).status.success());
    let is_locked = |url: &str| {
        for words in [
            &["kv", "retention", url, "--min-age", "1h"][..],
            &["kv", "retention", url, "--keep-deleted", "8days"],
            &["kv", "snapshot", "release", url, &snapshot],
        ] {
            let (code, error) = refused(words);
            assert_eq!(code, 26, "{words:?}");
            assert!(error.contains("locked"), "{error}");
        }
        let kept = said(&["kv", "retention", url, "--json"]);
        let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
        let days = kept["locked_us"].as_u64().expect("a number") / 86_400_000_000;
        assert!((29..=30).contains(&days), "{kept}");
    };
    is_locked(&node.url);
    // A shorter one shortens nothing, one for ever is refused, and more may be kept at any time.
    assert!(lock(&node.url, "1s", &["--yes"]).status.success());
    is_locked(&node.url);
    assert!(!lock(&node.url, "11years", &["--yes"]).status.success());
    said(&["kv", "retention", &node.url, "--min-age", "8days"]);
    node.kill();
    file.write_all_at(&before, 0).expect("it is put back");
    file.sync_all().expect("durable");
    let node = Node::start(&path);
    is_locked(&node.url);
    let status = said(&["node", "status", &node.url]);
    let line = status
        .lines()
        .find(|line| line.starts_with("locked for another "));
    // The first second of them may not have gone by.
    let is_all = |line: &str| line.contains(" 29days ") || line.ends_with(" 30days");
    assert!(line.is_some_and(is_all), "{status}");
}

#[test]
fn a_snapshot_that_was_taken_for_a_time_ends_by_itself() {
    let folder = folder();
    let path = formatted(&folder, "96M", "1");
    let node = Node::start(&path);
    let list = || said(&["kv", "snapshot", "list", &node.url, "--json"]);
    let mut client = node.client();
    client.put(b"k", b"first", None).expect("put");
    let kept = said(&["kv", "snapshot", "take", &node.url]);
    client.put(b"k", b"second", None).expect("put");
    let mut short = String::new();
    let mut lines = String::new();
    // Longer, where it is over before it is listed.
    for seconds in [2, 20, 120] {
        let taken = Instant::now();
        let time = format!("{seconds}s");
        short = said(&["kv", "snapshot", "take", &node.url, "--for", &time]);
        lines = list();
        if lines.contains(short.trim()) {
            break;
        }
        let took = taken.elapsed();
        assert!(took >= Duration::from_secs(seconds), "{took:?}: {lines}");
    }
    assert!(
        lines.contains(kept.trim()) && lines.contains(short.trim()),
        "{lines}"
    );
    assert_eq!(lines.matches("ends_in_us").count(), 1, "{lines}");
    erb_steady::wait(Duration::from_secs(60), || {
        let lines = list();
        let is_over = !lines.contains(short.trim());
        is_over.then_some(()).ok_or(lines)
    });
    assert!(list().contains(kept.trim()), "the other one is held");
    let (code, _) = refused(&["kv", "snapshot", "take", &node.url, "--for", "1ms"]);
    assert_eq!(code, 2);
    let (_, error) = refused(&["kv", "snapshot", "take", &node.url, "--for", "20years"]);
    assert!(error.contains("ten years at most"), "{error}");
    assert_eq!(
        said(&["kv", "damaged", &node.url]),
        "",
        "the scrub has found nothing"
    );
}
