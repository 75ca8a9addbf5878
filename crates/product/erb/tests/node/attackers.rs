// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attackers with the credentials that an application has, against a node as it is typed. What they could do is over when
//! an administrator has typed one command. `ERB_ATTACK_SECONDS` says how long each of them goes on: for a number of
//! operations, if nothing does. `ERB_ATTACK_KEYS` says how many keys more roll backs go over.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_kv::{Change, Client, Condition, Identity, RollBack, Selector, Status, Target, Write};
use tempfile::TempDir;

use super::{Node, erb, folder, said};

const WRITER: &str = "nqn.2026-11.org.example:application";
const ADMIN: &str = "nqn.2026-11.org.example:operator";
/// Keys that are precious.
const KEYS: u32 = 200;
/// Memory that an hour may cost beside what the first part of it has.
const SLACK_KIB: u64 = 24 << 10;
/// The node's memory is looked at so often.
const LOOKS: u32 = 10;
/// Keys that are written at once.
const AT_ONCE: u32 = 2000;
/// To be let in.
const PATIENCE: Duration = Duration::from_secs(60);

fn number(name: &str, usual: u32) -> u32 {
    let text = std::env::var(name).ok();
    text.map_or(usual, |text| text.parse().expect("a number"))
}

/// Without a time, so many deletes of a full store, and roll backs.
const DELETES: u32 = 5000;
const ROLL_BACKS: u32 = 2000;

/// For how long an attacker goes on.
struct Attack {
    begun: Instant,
    seconds: u32,
    /// If no time is said.
    operations: u32,
}

impl Attack {
    fn of(operations: u32) -> Self {
        Self {
            begun: Instant::now(),
            seconds: number("ERB_ATTACK_SECONDS", 0),
            operations,
        }
    }

    /// How much of it is over, of 1.
    fn part(&self, done: u32) -> f64 {
        match self.seconds {
            0 => f64::from(done) / f64::from(self.operations),
            seconds => self.begun.elapsed().as_secs_f64() / f64::from(seconds),
        }
    }

    fn is_over(&self, done: u32) -> bool {
        self.part(done) >= 1.0
    }
}

/// A node, what an application knows, and what its operator does.
struct Scene {
    folder: TempDir,
    node: Node,
    /// The moment before the attack.
    good: u64,
}

fn file(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("text").to_owned()
}

impl Scene {
    fn new(size: &str, retention: &[&str]) -> Self {
        Self::with_memory(size, "64M", retention)
    }

    fn with_memory(size: &str, memory: &str, retention: &[&str]) -> Self {
        let folder = folder();
        let of = |name| file(folder.path(), name);
        let (store, hosts) = (of("store"), of("hosts"));
        let format = ["node", "format", &store, "--size", size, "--shards", "2"];
        said(&[&format[..], retention].concat());
        for (nqn, role, out) in [(WRITER, "writer", "writer"), (ADMIN, "admin", "admin")] {
            let add = ["node", "host", "add", &hosts, nqn, "--role", role, "--out"];
            said(&[&add[..], &[&of(out)]].concat());
        }
        let path = PathBuf::from(&store);
        let words = [
            "--listen",
            "127.0.0.1:0",
            "--memory",
            memory,
            "--hosts",
            &hosts,
        ];
        let node = Node::start_with(&path, &words);
        let mut scene = Self {
            folder,
            node,
            good: 0,
        };
        let mut client = scene.client("writer");
        for number in 0..KEYS {
            scene.good = client.put(&key(number), &value(number), None).expect("put");
        }
        scene
    }

    fn client(&self, who: &str) -> Client {
        let secrets = erb_node::read_secrets(&self.folder.path().join(who));
        let identity = Identity {
            host: if who == "writer" { WRITER } else { ADMIN }.to_owned(),
            secrets: Some(secrets.expect("secrets")),
        };
        let url = self.node.url.parse().expect("an address");
        // On a machine that has no time for powers of Diffie-Hellman strangers' five seconds may be over.
        erb_steady::wait(PATIENCE, || {
            Client::connect_as(&url, &identity).map_err(|error| error.to_string())
        })
    }

    /// The one command.
    fn roll_back(&self) {
        let good = self.good.to_string();
        let mut command = erb(&["kv", "rollback", &self.node.url, "--to", &good, "--yes"]);
        let secret = self.folder.path().join("admin");
        command
            .env("ERB_HOST_NQN", ADMIN)
            .env("ERB_SECRET_FILE", secret);
        let output = command.output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
    }

    /// All is as it was, and history has what was before too.
    fn check(&self) {
        let mut client = self.client("admin");
        let mut listing = client.listing(b"", 0, 0).expect("a listing");
        let mut count = 0;
        while let Some(page) = client.page(&mut listing).expect("a page") {
            count += page.len();
        }
        assert_eq!(count, KEYS as usize, "nothing else is there");
        for number in 0..KEYS {
            for at in [Selector::Head, Selector::AsOf(self.good)] {
                let found = client.get(&key(number), at).expect("it is there");
                assert!(found.value == value(number), "{number}");
            }
        }
    }

    /// KiB that the node has in memory.
    fn memory_kib(&self) -> u64 {
        let status = format!("/proc/{}/status", self.node.process.id());
        let status = std::fs::read_to_string(status).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        word.expect("as proc(5) says").parse().expect("a number")
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("precious/{number}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(300)
}

fn everything(moment: u64) -> RollBack {
    RollBack {
        prefix: Vec::new(),
        target: Target::Moment(moment),
        unless_written_since: None,
        is_dry_run: false,
    }
}

/// What an administrator may do, tried by the application.
fn try_what_he_may_not(client: &mut Client, good: u64) {
    let mut less = client.retention().expect("he may read it");
    less.min_age_us = 0;
    let denied = [
        client.roll_back(&everything(good)).err(),
        client.count(&everything(good)).err(),
        client.snapshot().err(),
        client.snapshot_for(1).err(),
        client.release(good).err(),
        client.set_retention(&less).err(),
        client.lock_retention(1).err(),
    ];
    for error in denied {
        let status = error.and_then(|error| error.status());
        assert_eq!(status, Some(Status::DENIED));
    }
}

/// Traps 40, 44 and 69.
#[test]
fn a_flood_until_the_disk_is_full_and_deletes_without_end_cost_nothing() {
    let scene = Scene::new("128M", &[]);
    let mut client = scene.client("writer");
    let flood = vec![7; 256 << 10];
    let full = (0_u32..).find_map(|number| {
        let key = if number % 2 == 0 {
            key(number % KEYS)
        } else {
            format!("flood/{number}").into_bytes()
        };
        client.put(&key, &flood, None).err()
    });
    assert_eq!(
        full.and_then(|error| error.status()),
        Some(Status::CAPACITY)
    );
    let (attack, mut tried, mut refused) = (Attack::of(DELETES), 0_u32, 0_u32);
    while !attack.is_over(tried) {
        match client.delete(&key(tried % KEYS), None) {
            // A checkpoint has made room for it.
            Ok(_) => {}
            Err(error) if error.status() == Some(Status::CAPACITY) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        tried += 1;
    }
    assert!(refused > 0, "a delete needs room too");
    try_what_he_may_not(&mut client, scene.good);
    scene.roll_back();
    scene.check();
    println!("{tried} deletes of a full store, {refused} refused");
}

/// Traps 41 and 42.
#[test]
fn slow_overwriting_and_deletes_of_everything_cost_nothing() {
    let scene = Scene::new("256M", &["--min-age", "1h"]);
    let mut client = scene.client("writer");
    let written = 8 * KEYS;
    let pause = Duration::from_secs(number("ERB_ATTACK_SECONDS", 1).into()) / written;
    for number in 0..written {
        client
            .put(&key(number % KEYS), b"encrypted", None)
            .expect("he may");
        std::thread::sleep(pause);
    }
    for number in 0..KEYS {
        client.delete(&key(number), None).expect("he may");
    }
    scene.roll_back();
    scene.check();
    println!("{written} overwritten, and {KEYS} deleted");
}

/// Keys of no worth, all with this value.
fn write_others(client: &mut Client, count: u32, value: &[u8]) {
    for first in (0..count).step_by(AT_ONCE as usize) {
        let numbers = first..count.min(first + AT_ONCE);
        let put = |number: u32| Write {
            key: erb_kv::plain(format!("other/{number}").as_bytes()),
            change: Change::Put(value.to_vec()),
            condition: Condition::Any,
        };
        let writes: Vec<Write> = numbers.map(put).collect();
        while let Err(error) = client.batch(&writes) {
            assert_eq!(error.status(), Some(Status::BUSY), "{error}");
        }
    }
}

/// Trap 67.
#[test]
fn roll_backs_and_undos_without_end_leave_memory_bounded() {
    let others = number("ERB_ATTACK_KEYS", 0);
    let retention = ["--min-age", "1s", "--keep-deleted", "1s"];
    let (size, memory) = if others > 0 {
        ("2G", "1G")
    } else {
        ("256M", "64M")
    };
    let scene = Scene::with_memory(size, memory, &retention);
    let mut client = scene.client("admin");
    write_others(&mut client, others, b"good");
    let snapshot = client.snapshot().expect("he may");
    for number in 0..KEYS {
        client.put(&key(number), b"other", None).expect("put");
    }
    write_others(&mut client, others, b"other");
    let (attack, mut rolled, mut refused, mut looks) =
        (Attack::of(ROLL_BACKS), 0_u32, 0_u32, Vec::new());
    let (mut target, mut last) = (snapshot, Instant::now());
    while !attack.is_over(rolled) {
        match client.roll_back(&everything(target)) {
            Ok(id) => {
                rolled += 1;
                last = Instant::now();
                // Each undoes the one before.
                target = id - 1;
            }
            Err(error) if error.status() == Some(Status::BUSY) => {}
            // It was trimmed: so short is its retention.
            Err(error) if error.status() == Some(Status::TRIMMED) => target = snapshot,
            // Its memory is bounded.
            Err(error) if error.status() == Some(Status::CAPACITY) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("behind {rolled}: {error}"),
        }
        if attack.part(rolled) * f64::from(LOOKS) > looks.len() as f64 {
            looks.push(scene.memory_kib());
        }
        if last.elapsed() > erb_steady::patient(PATIENCE) {
            erb_steady::out_of_patience(format_args!("{rolled} rolled, {refused} refused"));
        }
    }
    looks.push(scene.memory_kib());
    println!(
        "{rolled} roll backs and undos of {others} keys and {KEYS}, {refused} refused; memory in KiB: {looks:?}"
    );
    let early_kib = looks[looks.len() / 3];
    let late_kib = looks[looks.len() - 1];
    assert!(
        late_kib < early_kib + SLACK_KIB,
        "{early_kib} KiB, then {late_kib}"
    );
    assert!(rolled > 5, "{rolled}");
    client
        .roll_back(&everything(snapshot))
        .expect("the snapshot holds it");
    for number in 0..KEYS {
        let found = client.get(&key(number), Selector::Head);
        assert!(found.expect("it is there").value == value(number));
    }
    for number in (0..others).step_by(1009) {
        let found = client.get(format!("other/{number}").as_bytes(), Selector::Head);
        assert!(found.expect("it is there").value == b"good");
    }
}
