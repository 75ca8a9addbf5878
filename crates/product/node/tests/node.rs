// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node over a file on a disk, and clients of it over loopback.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use erb_kv::{
    Change, Client, Condition, Head, MarkKind, Retention, RollBack, Selector, Status, Target, Write,
};
use erb_node::{Error, Format, Node, Options, Role};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const SMALL: u64 = 160 * MIB;

/// A folder on a disk: the one of the build.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn formatted(folder: &TempDir, bytes: u64, shards: u16) -> PathBuf {
    let path = folder.path().join("store");
    let wanted = Format {
        path: path.clone(),
        bytes: Some(bytes),
        shards,
        may_overwrite: false,
    };
    erb_node::format(&wanted, &mut |_, _| {}).expect("a store");
    path
}

fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        address: "127.0.0.1:0".parse().expect("an address"),
        nqn: erb_node::NQN.to_owned(),
        memory_bytes: 256 * MIB,
        role: Role::Admin,
        is_clock_sure: false,
    }
}

struct Running {
    address: SocketAddr,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<erb_node::Result<()>>>,
}

impl Running {
    fn start(path: &Path) -> Self {
        Self::with(&options(path))
    }

    fn with(options: &Options) -> Self {
        let node = Node::open(options).expect("the store opens");
        let address = node.address();
        let (stop, heard) = UnixStream::pair().expect("a pair");
        let thread = std::thread::spawn(move || node.run(heard.as_fd()));
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn client(&self) -> Client {
        let url = format!("nvme://{}", self.address)
            .parse()
            .expect("an address");
        Client::connect(&url).expect("the node answers")
    }

    fn stop(mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .expect("it runs")
            .expect("it does not panic")
            .expect("it ends well");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A test that fails has said why.
            let _ = thread.join();
        }
    }
}

fn value(client: &mut Client, key: &[u8]) -> Option<Vec<u8>> {
    match client.get(key, Selector::Head) {
        Ok(found) => Some(found.value),
        Err(error) if error.status() == Some(Status::ABSENT) => None,
        Err(error) => panic!("{error}"),
    }
}

fn status<T>(result: erb_kv::Result<T>) -> Option<Status> {
    result.err().and_then(|error| error.status())
}

fn to(prefix: &[u8], moment: u64) -> RollBack {
    RollBack {
        prefix: prefix.to_vec(),
        target: Target::Moment(moment),
        unless_written_since: None,
        is_dry_run: false,
    }
}

fn all(client: &mut Client, prefix: &[u8], moment: u64) -> Vec<(Vec<u8>, u32)> {
    let mut listing = client.listing(prefix, moment, 0).expect("a listing");
    let mut found = Vec::new();
    while let Some(page) = client.page(&mut listing).expect("a page") {
        found.extend(page.into_iter().map(|row| (row.key, row.bytes)));
    }
    found.sort_unstable();
    found
}

#[test]
fn what_was_overwritten_is_rolled_back_and_that_is_undone() {
    let folder = folder();
    for shards in [1, 3] {
        let path = folder.path().join(format!("store{shards}"));
        let wanted = Format {
            path: path.clone(),
            bytes: Some(256 * MIB),
            shards,
            may_overwrite: false,
        };
        erb_node::format(&wanted, &mut |_, _| {}).expect("a store");
        let node = Running::start(&path);
        let mut client = node.client();
        let key = |number: u32| format!("a{number}").into_bytes();
        for number in 0..40 {
            client.put(&key(number), b"good", None).expect("put");
        }
        let good = client.put(b"other", b"stays", None).expect("put");
        for number in 0..40 {
            client.put(&key(number), b"bad", None).expect("put");
        }
        client.delete(&key(7), None).expect("deleted");
        assert_eq!(client.count(&to(b"a", good)).expect("counted"), 40);
        assert_eq!(
            value(&mut client, &key(3)),
            Some(b"bad".to_vec()),
            "nothing was done yet"
        );
        let id = client.roll_back(&to(b"a", good)).expect("rolled back");
        for number in 0..40 {
            assert_eq!(value(&mut client, &key(number)), Some(b"good".to_vec()));
        }
        let marks = client.marks().expect("marks");
        assert!(
            marks
                .iter()
                .any(|mark| mark.kind == MarkKind::RollBack && mark.id == id)
        );
        client.put(&key(1), b"newer", None).expect("put");
        let undo = RollBack {
            unless_written_since: Some(id),
            ..to(b"a", id - 1)
        };
        client.roll_back(&undo).expect("undone");
        assert_eq!(value(&mut client, &key(3)), Some(b"bad".to_vec()));
        assert_eq!(value(&mut client, &key(7)), None);
        assert_eq!(
            value(&mut client, &key(1)),
            Some(b"newer".to_vec()),
            "it was spared"
        );
        assert_eq!(value(&mut client, b"other"), Some(b"stays".to_vec()));
        node.stop();
    }
}

#[test]
fn versions_are_listed_read_and_restored() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, SMALL, 2));
    let mut client = node.client();
    // Also a key that commands name by its digest.
    for key in [&b"k"[..], &[b'x'; 1024]] {
        let first = client.put(key, b"one", None).expect("put");
        let second = client.put(key, b"two", Some(first)).expect("put");
        let gone = client.delete(key, None).expect("deleted");
        let again = client.restore(key, Selector::Back(2)).expect("restored");
        assert!(first < second && second < gone && gone < again);
        let (rows, has_more) = client.versions(key, 0).expect("versions");
        let told: Vec<(u64, u64, u32, u32)> = rows
            .iter()
            .map(|row| (row.version, row.source, row.bytes, row.flags))
            .collect();
        let expected = [
            (again, first, 3, Head::RESTORED),
            (gone, gone, 0, Head::DELETED),
            (second, second, 3, 0),
            (first, first, 3, 0),
        ];
        assert_eq!((told, has_more), (expected.to_vec(), false));
        let at = client
            .get(key, Selector::Version(second))
            .expect("a version");
        assert_eq!((at.head.version, at.value), (second, b"two".to_vec()));
        let as_of = client.get(key, Selector::AsOf(gone - 1)).expect("a moment");
        assert_eq!(as_of.value, b"two");
        assert_eq!(
            status(client.put(key, b"x", Some(first))),
            Some(Status::MISMATCH)
        );
        let refused = client.put(key, b"x", Some(first)).expect_err("a mismatch");
        assert!(
            refused.to_string().contains(&again.to_string()),
            "{refused}"
        );
        assert_eq!(
            status(client.get(key, Selector::Version(1))),
            Some(Status::NO_SUCH_VERSION)
        );
        assert_eq!(
            status(client.get(key, Selector::AsOf(u64::MAX))),
            Some(Status::FUTURE)
        );
    }
    assert_eq!(
        client.delete(b"never there", None).expect("nothing to do"),
        0
    );
    assert_eq!(value(&mut client, b"never there"), None);
    assert_eq!(
        status(client.versions(b"never there", 0)),
        Some(Status::ABSENT)
    );
    node.stop();
}

#[test]
fn values_of_all_sizes_come_back_after_a_restart() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 2);
    let node = Running::start(&path);
    let mut client = node.client();
    let content = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| (at * 7 % 251) as u8).collect() };
    let sizes = [0, 1, 511, 4096, 8192, 100_000, (1 << 20) - 100, 1 << 20];
    for bytes in sizes {
        client
            .put(format!("v{bytes}").as_bytes(), &content(bytes), None)
            .expect("put");
    }
    let snapshot = client.snapshot().expect("a snapshot");
    client.put(b"v0", b"later", None).expect("put");
    node.stop();
    for _ in 0..2 {
        let contents = erb_node::check(&path).expect("it opens");
        assert_eq!((contents.keys, contents.snapshots), (sizes.len() as u64, 1));
    }
    let node = Running::start(&path);
    let mut client = node.client();
    for bytes in &sizes[1..] {
        let key = format!("v{bytes}");
        assert_eq!(
            value(&mut client, key.as_bytes()),
            Some(content(*bytes)),
            "{bytes}"
        );
    }
    assert_eq!(value(&mut client, b"v0"), Some(b"later".to_vec()));
    let then = client
        .get(b"v0", Selector::AsOf(snapshot))
        .expect("as of the snapshot");
    assert_eq!(then.value, b"");
    client.release(snapshot).expect("released");
    assert_eq!(
        status(client.release(snapshot)),
        Some(Status::NO_SUCH_VERSION)
    );
    assert_eq!(status(client.put(b"", b"", None)), None);
    node.stop();
}

#[test]
fn a_listing_has_each_key_once_over_pages_and_shards() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, 256 * MIB, 3));
    let mut client = node.client();
    let mut expected = BTreeSet::new();
    for batch in 0..5 {
        let writes: Vec<Write> = (0..200)
            .map(|number| {
                let key = format!("{}-{batch}-{number}", ["p", "q"][number % 2]).into_bytes();
                expected.insert((key.clone(), 5));
                Write {
                    key: erb_kv::plain(&key),
                    change: Change::Put(b"value".to_vec()),
                    condition: Condition::Any,
                }
            })
            .collect();
        client.batch(&writes).expect("a batch");
    }
    let moment = client.snapshot().expect("a moment");
    let of = |prefix: &[u8]| -> Vec<(Vec<u8>, u32)> {
        let rows = expected.iter().filter(|(key, _)| key.starts_with(prefix));
        rows.cloned().collect()
    };
    assert_eq!(all(&mut client, b"", 0), of(b""));
    assert_eq!(all(&mut client, b"p-3", 0), of(b"p-3"));
    client.delete(b"p-3-0", None).expect("deleted");
    client.put(b"p-3-new", b"", None).expect("put");
    assert_eq!(
        all(&mut client, b"p-3", moment),
        of(b"p-3"),
        "as it was then"
    );
    assert_eq!(all(&mut client, b"p-3", 0).len(), of(b"p-3").len());
    let mut since = client.listing(b"", 0, moment).expect("a listing");
    let mut changed = Vec::new();
    while let Some(page) = client.page(&mut since).expect("a page") {
        changed.extend(page.into_iter().map(|row| row.key));
    }
    assert_eq!(changed, [b"p-3-new".to_vec()]);
    node.stop();
}

#[test]
fn a_batch_with_a_condition_that_is_not_met_changes_nothing() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, 256 * MIB, 3));
    let mut client = node.client();
    let there = client.put(b"there", b"1", None).expect("put");
    let write = |key: &[u8], condition| Write {
        key: erb_kv::plain(key),
        change: Change::Put(b"2".to_vec()),
        condition,
    };
    let refused = client.batch(&[
        write(b"a", Condition::Any),
        write(b"b", Condition::Any),
        write(b"there", Condition::Head(there - 1)),
    ]);
    assert_eq!(status(refused), Some(Status::MISMATCH));
    assert_eq!(
        (value(&mut client, b"a"), value(&mut client, b"b")),
        (None, None)
    );
    let version = client.batch(&[
        write(b"a", Condition::Head(0)),
        write(b"b", Condition::Any),
        write(b"there", Condition::Head(there)),
    ]);
    let version = version.expect("all of it");
    for key in [&b"a"[..], b"b", b"there"] {
        let found = client.get(key, Selector::Head).expect("a value");
        assert_eq!((found.head.version, found.value), (version, b"2".to_vec()));
    }
    node.stop();
}

#[test]
fn a_full_store_keeps_its_history_and_rolls_back() {
    let folder = folder();
    let path = formatted(&folder, 96 * MIB, 1);
    let node = Running::with(&Options {
        role: Role::Restorer,
        ..options(&path)
    });
    let mut client = node.client();
    let good = client.put(b"k0", b"good", None).expect("put");
    let mut written = 0_u32;
    let refused = loop {
        let key = format!("k{}", written % 10);
        match client.put(key.as_bytes(), &vec![written as u8; 512 << 10], None) {
            Ok(_) => written += 1,
            Err(error) => break error.status(),
        }
        assert!(written < 1000, "96 MiB have an end");
    };
    assert_eq!(refused, Some(Status::CAPACITY));
    assert!(written > 60, "{written} values of 512 KiB");
    assert!(client.health().expect("health").is_full);
    assert_eq!(value(&mut client, b"k0").expect("a value").len(), 512 << 10);
    client
        .roll_back(&to(b"", good))
        .expect("a roll back needs no room of the log");
    assert_eq!(value(&mut client, b"k0"), Some(b"good".to_vec()));
    assert_eq!(value(&mut client, b"k1"), None);
    node.stop();
    let node = Running::start(&path);
    assert_eq!(value(&mut node.client(), b"k0"), Some(b"good".to_vec()));
    node.stop();
}

#[test]
fn a_store_has_one_node_and_what_is_no_store_is_refused() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 1);
    let node = Running::start(&path);
    let second = Node::open(&options(&path)).err().expect("it is taken");
    let own = format!("process {}", std::process::id());
    assert!(matches!(second, Error::InUse { .. }), "{second}");
    assert!(second.to_string().contains(&own), "{second}");
    assert!(matches!(erb_node::check(&path), Err(Error::InUse { .. })));
    node.stop();

    let again = Format {
        path: path.clone(),
        bytes: Some(SMALL),
        shards: 1,
        may_overwrite: false,
    };
    let refused = erb_node::format(&again, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::Exists(_))));

    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file");
    file.set_len(SMALL - 4096).expect("shorter");
    assert!(matches!(erb_node::check(&path), Err(Error::Short { .. })));
    file.write_all_at(&[0; 512 << 10], 0).expect("overwritten");
    let refused = Node::open(&options(&path)).err().expect("no store");
    assert!(
        refused.to_string().contains("no superblock is readable"),
        "{refused}"
    );
    assert!(Node::open(&options(&folder.path().join("nothing"))).is_err());
    assert!(matches!(
        Node::open(&options(folder.path())),
        Err(Error::NotAFile(_))
    ));
}

#[test]
fn a_store_in_memory_is_refused() {
    let memory = Path::new("/dev/shm");
    let system = nix::sys::statfs::statfs(memory).map(|it| it.filesystem_type());
    if system != Ok(nix::sys::statfs::TMPFS_MAGIC) {
        println!("skipped: /dev/shm is no tmpfs here");
        return;
    }
    let path = memory.join(format!("erb-node-test-{}", std::process::id()));
    let wanted = Format {
        path: path.clone(),
        bytes: Some(SMALL),
        shards: 1,
        may_overwrite: false,
    };
    let refused = erb_node::format(&wanted, &mut |_, _| {});
    assert!(matches!(
        refused,
        Err(Error::InMemory(_) | Error::NotDirect(_))
    ));
    assert!(!path.exists(), "nothing is left");
}

#[test]
fn who_is_not_of_this_machine_cannot_connect() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 1);
    let refused = Node::open(&Options {
        address: "0.0.0.0:0".parse().expect("an address"),
        ..options(&path)
    });
    assert!(matches!(refused, Err(Error::NotLoopback(_))));
}

#[test]
fn peers_that_send_rubbish_or_nothing_do_not_end_it() {
    let folder = folder();
    let node = Running::start(&formatted(&folder, SMALL, 1));
    let mut client = node.client();
    client.put(b"k", b"v", None).expect("put");
    // The first PDU is right, and what follows is not.
    let mut first = vec![0; 128];
    (first[0], first[2], first[4]) = (0, 128, 128);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut silent = Vec::new();
    for round in 0..60 {
        let mut peer = TcpStream::connect(node.address).expect("it listens");
        peer.set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a socket");
        if round % 3 == 0 {
            silent.push(peer);
            continue;
        }
        let mut bytes = if round % 3 == 1 {
            first.clone()
        } else {
            Vec::new()
        };
        for _ in 0..400 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            bytes.extend_from_slice(&seed.to_le_bytes());
        }
        // The node may end the connection before all of it is sent.
        let _ = peer.write_all(&bytes);
        let _ = peer.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = peer.read_to_end(&mut said);
    }
    assert_eq!(value(&mut client, b"k"), Some(b"v".to_vec()));
    assert_eq!(value(&mut node.client(), b"k"), Some(b"v".to_vec()));
    node.stop();
}

#[test]
fn damage_costs_the_version_that_it_hits_and_no_other() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 1);
    let node = Running::start(&path);
    let mut client = node.client();
    let hit = b"the value that is hit".repeat(300);
    let first = client.put(b"k", b"first", None).expect("put");
    let second = client.put(b"k", &hit, None).expect("put");
    client.put(b"other", b"whole", None).expect("put");
    let content = std::fs::read(&path).expect("the store");
    let at = content.windows(hit.len()).position(|bytes| bytes == hit);
    let at = at.expect("it lies there as it is") as u64 + 1000;
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file");
    file.write_all_at(b"X", at).expect("overwritten");
    file.sync_all().expect("on the disk");
    assert_eq!(
        status(client.get(b"k", Selector::Head)),
        Some(Status::DAMAGED)
    );
    assert_eq!(
        client
            .get(b"k", Selector::Version(first))
            .expect("the older")
            .value,
        b"first"
    );
    assert_eq!(value(&mut client, b"other"), Some(b"whole".to_vec()));
    let (rows, _) = client.versions(b"k", 0).expect("versions");
    assert_eq!(
        rows.iter().map(|row| row.version).collect::<Vec<_>>(),
        [second, first]
    );
    client
        .restore(b"k", Selector::Version(first))
        .expect("restored");
    assert_eq!(value(&mut client, b"k"), Some(b"first".to_vec()));
    node.stop();
}

#[test]
fn roles_hold_and_retention_does_not_shrink_at_once() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 1);
    let node = Running::with(&Options {
        role: Role::Writer,
        ..options(&path)
    });
    let mut client = node.client();
    let version = client.put(b"k", b"v", None).expect("put");
    assert_eq!(
        status(client.roll_back(&to(b"", version))),
        Some(Status::DENIED)
    );
    assert_eq!(status(client.snapshot()), Some(Status::DENIED));
    node.stop();
    let node = Running::start(&path);
    let mut client = node.client();
    let now = client.retention().expect("retention");
    let longer = Retention {
        min_count: 3,
        ..now
    };
    client.set_retention(&longer).expect("longer");
    assert_eq!(client.retention().expect("retention"), longer);
    let shorter = Retention {
        min_age_us: now.min_age_us / 2,
        ..longer
    };
    client.set_retention(&shorter).expect("it will be shorter");
    assert_eq!(client.retention().expect("retention"), longer);
    node.stop();
}

#[test]
fn many_clients_write_at_once_and_each_reads_its_own() {
    let folder = folder();
    let path = formatted(&folder, 256 * MIB, 2);
    let node = Running::start(&path);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let node = &node;
            scope.spawn(move || {
                let mut client = node.client();
                for round in 0..50_u32 {
                    let key = format!("c{number}-{}", round % 5);
                    let content = round.to_le_bytes().repeat(500);
                    client.put(key.as_bytes(), &content, None).expect("put");
                    assert_eq!(value(&mut client, key.as_bytes()), Some(content));
                }
            });
        }
    });
    assert_eq!(node.client().health().expect("health").keys, 40);
    node.stop();
    File::open(&path).expect("it is there");
    assert_eq!(erb_node::check(&path).expect("it opens").keys, 40);
}
