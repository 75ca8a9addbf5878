// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One node a store, damage, hostile peers, roles, many clients.

use std::fs::File;
use std::fs::OpenOptions;
use std::io::Read;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use erb_kv::{Retention, Selector, Status};
use erb_node::{Error, Format, Node, Options, Role};

use crate::{MIB, Running, SMALL, folder, formatted, options, status, to, value};

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
        erb_steady::skipped("/dev/shm is no tmpfs here");
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
    let forced = Node::open(&Options {
        address: "0.0.0.0:0".parse().expect("an address"),
        is_open_to_all: true,
        ..options(&path)
    });
    assert!(forced.is_ok());
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
        peer.set_read_timeout(Some(Duration::from_secs(120)))
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
    let told = node.status();
    assert_eq!(told.refused["role"], 2, "{:?}", told.refused);
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
fn what_is_in_memory_needs_no_disk_and_a_roll_back_shares_it() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 2);
    let node = Running::with(&Options {
        value_cache_bytes: MIB,
        ..options(&path)
    });
    let mut client = node.client();
    let first = client.put(b"k", b"first", None).expect("put");
    client.put(b"k", b"second", None).expect("put");
    assert_eq!(value(&mut client, b"k"), Some(b"second".to_vec()));
    client.roll_back(&to(b"k", first)).expect("roll back");
    assert_eq!(value(&mut client, b"k"), Some(b"first".to_vec()));
    let health = client.health().expect("health");
    assert_eq!((health.cache_hits, health.cache_misses), (2, 0));
    assert!(health.cached_bytes > 0 && health.cached_bytes <= MIB);
    node.stop();
    // Behind a restart the first one comes from the disk.
    let node = Running::with(&Options {
        value_cache_bytes: MIB,
        ..options(&path)
    });
    let mut client = node.client();
    for _ in 0..2 {
        assert_eq!(value(&mut client, b"k"), Some(b"first".to_vec()));
    }
    let health = client.health().expect("health");
    assert_eq!((health.cache_hits, health.cache_misses), (1, 1));
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
