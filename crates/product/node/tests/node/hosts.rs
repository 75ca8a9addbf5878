// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of hosts, and a node that follows it.

use std::fs::{OpenOptions, Permissions, metadata, read, read_to_string, set_permissions, write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use erb_kv::{Client, Identity, NotLetIn, Secrets, Selector, Status};
use erb_node::{Error, HostsFile, Node, Note, Options, Role};
use erb_nvme::client::calls;
use erb_nvme::target::{DISCOVERY_NQN, log, property};
use erb_store::layout::Layout;

use crate::peer::{Peer, connect};
use crate::{
    ADMIN, Running, SMALL, WRITER, add, folder, formatted, hosts, options, status, to, value,
};

fn why_not(node: &Running, identity: &Identity) -> Option<NotLetIn> {
    match crate::in_time(|| Client::connect_as(&node.url(), identity)) {
        Err(erb_kv::Error::NotLetIn(why)) => Some(why),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

fn remove(list: &Path, nqn: &str) {
    HostsFile::change(list, false, |hosts| hosts.remove(nqn)).expect("removed");
}

/// Puts a file in another one's place, as who copies a backup back does.
fn put_back(list: &Path, content: &[u8]) {
    let new = list.with_extension("new");
    write(&new, content).expect("written");
    set_permissions(&new, Permissions::from_mode(0o600)).expect("permissions");
    std::fs::rename(&new, list).expect("renamed");
}

fn is_old(note: &Note) -> bool {
    matches!(note, Note::HostsKept(Error::OldHosts { .. }))
}

#[test]
fn hosts_with_their_secrets_are_let_in_and_do_what_their_roles_say() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let mut client = node.client_as(&writer);
    let first = client.put(b"k", b"good", None).expect("put");
    client.put(b"k", b"bad", None).expect("put");
    assert_eq!(
        status(client.roll_back(&to(b"", first))),
        Some(Status::DENIED)
    );
    assert_eq!(status(client.snapshot()), Some(Status::DENIED));
    let mut client = node.client_as(&admin);
    client.roll_back(&to(b"", first)).expect("rolled back");
    assert_eq!(value(&mut client, b"k"), Some(b"good".to_vec()));
    // Versions say who has written them.
    let numbers = HostsFile::read(&list).expect("hosts").hosts;
    let number = numbers
        .iter()
        .find(|host| host.nqn == WRITER)
        .map(|host| host.number);
    let (rows, _) = client.versions(b"k", 0).expect("versions");
    assert!(
        rows.iter().all(|row| Some(row.writer) == number),
        "{rows:?}"
    );

    let wrong = |secrets| Identity {
        host: WRITER.to_owned(),
        secrets,
    };
    let nameless = Client::connect(&node.url()).err().expect("no guests");
    assert!(matches!(
        nameless,
        erb_kv::Error::NotLetIn(NotLetIn::Unknown)
    ));
    // That is told, with the name, and others wait with it.
    let is_unlisted = |why: &str| why.starts_with("no host is listed as nqn.2026-11.org.erb:host:");
    node.await_note(|note| matches!(note, Note::Failed { why, .. } if is_unlisted(why)));
    assert_eq!(why_not(&node, &wrong(None)), Some(NotLetIn::NoSecret));
    let other = wrong(admin.secrets.clone());
    assert_eq!(why_not(&node, &other), Some(NotLetIn::Secret));
    node.await_note(|note| matches!(note, Note::Failed { from, .. } if from.is_loopback()));
    let secrets = |of: &Identity| of.secrets.clone().expect("both");
    let imposter = wrong(Some(Secrets {
        subsystem: secrets(&admin).subsystem,
        ..secrets(&writer)
    }));
    assert_eq!(why_not(&node, &imposter), Some(NotLetIn::NoProof));
    node.stop();
}

/// The writer's calls end, and nothing of it happens any more. Another host does not notice.
#[test]
fn a_host_that_is_removed_while_it_writes_is_out_and_stays_out() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let before = read(&list).expect("the file");
    let node = Running::with_hosts(&path, &list);
    let (mut other, mut client) = (node.client_as(&admin), node.client_as(&writer));
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1_u64.. {
                match client.put(b"k", &number.to_le_bytes(), None) {
                    Ok(_) => written.store(number, Ordering::SeqCst),
                    Err(error) => {
                        let is_over = matches!(error, erb_kv::Error::Lost)
                            || error.status() == Some(Status::SEQUENCE);
                        assert!(is_over, "{error}");
                        return;
                    }
                }
            }
        });
        erb_steady::wait_until(std::time::Duration::from_secs(60), "it writes", || {
            written.load(Ordering::SeqCst) >= 20
        });
        remove(&list, WRITER);
    });
    let written = written.load(Ordering::SeqCst);
    let found = |client: &mut Client| {
        let found = client.get(b"k", Selector::Head).expect("a value").value;
        u64::from_le_bytes(found.try_into().expect("eight bytes"))
    };
    // What was under way may have been done. Behind another write that is acknowledged it has been, or never is.
    other.put(b"behind", b"", None).expect("put");
    let last = found(&mut other);
    assert!((written..=written + 1).contains(&last), "{written} {last}");
    assert_eq!(why_not(&node, &writer), Some(NotLetIn::Unknown));
    assert_eq!(found(&mut other), last);

    // Trap 77: a copy of before the removal lets nobody in, now or after a restart.
    node.await_note(|note| matches!(note, Note::Hosts(1)));
    put_back(&list, &before);
    node.await_note(is_old);
    assert_eq!(why_not(&node, &writer), Some(NotLetIn::Unknown));
    other.put(b"k", b"still there", None).expect("put");
    node.stop();
    let refused = Node::open(&Options {
        hosts: Some(list.clone()),
        ..options(&path)
    });
    assert!(matches!(refused, Err(Error::OldHosts { .. })));
    // Who says that it is meant is believed.
    HostsFile::change(&list, false, |_| Ok(())).expect("confirmed");
    let node = Running::with_hosts(&path, &list);
    assert_eq!(why_not(&node, &writer), None);
    node.stop();
}

/// Trap 77.
#[test]
fn a_rotten_superblock_brings_no_removed_host_back() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let before = read(&list).expect("the file");
    let node = Running::with_hosts(&path, &list);
    let mut client = node.client_as(&admin);
    remove(&list, WRITER);
    node.await_note(|note| matches!(note, Note::Hosts(1)));
    // Behind a write that was acknowledged the change is durable too.
    client.put(b"k", b"v", None).expect("put");
    node.stop();
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the store");
    for copy in 0..2 {
        file.write_all_at(&[0xee; 4096], Layout::superblock_at(copy))
            .expect("spoilt");
    }
    let node = Running::with_hosts(&path, &list);
    assert_eq!(why_not(&node, &writer), Some(NotLetIn::Unknown));
    put_back(&list, &before);
    node.await_note(is_old);
    assert_eq!(why_not(&node, &writer), Some(NotLetIn::Unknown));
    node.stop();
}

#[test]
fn another_secret_or_role_ends_connections_and_counts_at_once() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let mut old = node.client_as(&writer);
    let first = old.put(b"k", b"v", None).expect("put");
    let secrets = erb_node::new_secrets();
    let rekeyed = HostsFile::change(&list, false, |hosts| {
        hosts.set_secrets(WRITER, secrets.clone())
    });
    rekeyed.expect("other secrets");
    node.await_note(|note| matches!(note, Note::Hosts(2)));
    assert_eq!(why_not(&node, &writer), Some(NotLetIn::Secret));
    assert!(old.put(b"k", b"v", None).is_err());
    let writer = Identity {
        secrets: Some(secrets),
        ..writer
    };
    let mut client = node.client_as(&writer);
    assert_eq!(
        status(client.roll_back(&to(b"", first))),
        Some(Status::DENIED)
    );
    let promoted = HostsFile::change(&list, false, |hosts| {
        hosts.set_roles(WRITER, [(1, Role::Restorer)].into())
    });
    promoted.expect("another role");
    node.await_note(|note| matches!(note, Note::Hosts(2)));
    assert!(client.put(b"k", b"v", None).is_err());
    let mut client = node.client_as(&writer);
    client.roll_back(&to(b"", first)).expect("rolled back");
    // A host that is added finds the node.
    let reader = add(&list, "nqn.2026-11.org.example:reader", Role::Reader);
    node.await_note(|note| matches!(note, Note::Hosts(3)));
    let mut client = node.client_as(&reader);
    assert_eq!(value(&mut client, b"k"), Some(b"v".to_vec()));
    assert_eq!(status(client.put(b"k", b"x", None)), Some(Status::DENIED));
    assert_eq!(why_not(&node, &admin), None);
    node.stop();
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing_and_is_told() {
    let folder = folder();
    let (path, (list, [writer, _])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let good = read(&list).expect("the file");
    let node = Running::with_hosts(&path, &list);
    let mut client = node.client_as(&writer);
    let kept = |note: &Note| matches!(note, Note::HostsKept(_));
    for bad in [&good[..good.len() / 2], b"", b"\xff", b"{}"] {
        put_back(&list, bad);
        node.await_note(kept);
        client.put(b"k", b"v", None).expect("put");
    }
    set_permissions(&list, Permissions::from_mode(0o640)).expect("permissions");
    node.await_note(|note| matches!(note, Note::HostsKept(Error::NotPrivate { .. })));
    std::fs::remove_file(&list).expect("removed");
    node.await_note(|note| matches!(note, Note::HostsKept(Error::SecretsFile { .. })));
    client.put(b"k", b"v", None).expect("put");
    put_back(&list, &good);
    node.await_note(|note| matches!(note, Note::Hosts(2)));
    client
        .put(b"k", b"v", None)
        .expect("the same host, the same connection");
    node.stop();
}

#[test]
fn a_file_that_others_may_read_is_refused_and_no_error_shows_a_secret() {
    let folder = folder();
    let (list, [writer, _]) = hosts(&folder);
    let text = read_to_string(&list).expect("the file");
    let mode = |mode| set_permissions(&list, Permissions::from_mode(mode)).expect("permissions");
    for open in [0o604, 0o640, 0o660, 0o602, 0o610] {
        mode(open);
        let refused = HostsFile::read(&list);
        assert!(matches!(refused, Err(Error::NotPrivate { .. })), "{open:o}");
        let refused = HostsFile::change(&list, true, |_| Ok(()));
        assert!(matches!(refused, Err(Error::NotPrivate { .. })), "{open:o}");
    }
    mode(0o400);
    assert_eq!(HostsFile::read(&list).expect("hosts").hosts.len(), 2);
    assert!(matches!(
        HostsFile::read(folder.path()),
        Err(Error::NotPrivate { .. })
    ));

    let secret = writer.secrets.clone().expect("both").host.text();
    assert!(text.contains(&secret));
    let shown = format!("{:?} {writer:?}", HostsFile::parse(&text).expect("hosts"));
    assert!(!shown.contains("DHHC"), "{shown}");
    for (from, to) in [
        ("\"format\": 1", "\"format\": 2"),
        ("\"number\": 1", "\"number\": 2"),
        ("\"number\": 1", "\"number\": 0"),
        ("\"next_number\": 3", "\"next_number\": 2"),
        ("\"writer\"", "\"owner\""),
        ("\"nqn\"", "\"name\""),
        (WRITER, ADMIN),
        (WRITER, "web1"),
        (&secret, "DHHC-1:00:AAAA:"),
        ("\"number\": 1,", &format!("\"number\": \"{secret}\",")),
    ] {
        let spoilt = text.replacen(from, to, 1);
        assert_ne!(spoilt, text, "{from}");
        let error = HostsFile::parse(&spoilt).expect_err(to).to_string();
        assert!(!error.contains(&secret[10..]), "{error}");
    }
    // One secret for both directions answers itself.
    let both = writer.secrets.expect("both");
    let node_s = both.subsystem.expect("the node's").text();
    assert!(HostsFile::parse(&text.replace(&node_s, &secret)).is_err());
}

#[test]
fn a_file_that_root_changes_stays_its_owners() {
    if !nix::unistd::geteuid().is_root() {
        erb_steady::skipped("only root gives files to others");
        return;
    }
    let folder = folder();
    let (list, _) = hosts(&folder);
    std::os::unix::fs::chown(&list, Some(4321), Some(4322)).expect("given away");
    remove(&list, WRITER);
    let found = metadata(&list).expect("the file");
    assert_eq!((found.uid(), found.gid()), (4321, 4322));
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
}

#[test]
fn changes_at_once_are_all_there_and_no_number_is_given_twice() {
    let folder = folder();
    let list = folder.path().join("hosts");
    let name = |writer: usize, number| format!("nqn.2026-11.org.example:{writer}-{number}");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let list = &list;
            scope.spawn(move || {
                for number in 0..8 {
                    add(list, &name(writer, number), Role::Reader);
                }
                remove(list, &name(writer, 0));
            });
        }
    });
    let found = HostsFile::read(&list).expect("hosts");
    assert_eq!(found.hosts.len(), 28);
    let newest = found.hosts.iter().map(|host| host.number).max();
    remove(&list, &name(1, 7));
    add(&list, &name(1, 7), Role::Reader);
    let again = HostsFile::read(&list).expect("hosts");
    assert!(again.generation > found.generation);
    let number = again.hosts.iter().find(|host| host.nqn == name(1, 7));
    assert_eq!(
        number.map(|host| host.number),
        newest.max(Some(32)).map(|it| it + 1)
    );
    let refused = HostsFile::change(&list, false, |hosts| hosts.remove("nqn.nobody"));
    assert!(matches!(refused, Err(Error::UnknownHost(_))));
    let unchanged = HostsFile::read(&list).expect("hosts");
    assert_eq!(unchanged, again);
    let left = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 1, "nothing else is left there");
}

#[test]
fn discovery_names_the_address_at_which_the_node_was_found() {
    let folder = folder();
    let path = formatted(&folder, SMALL, 1);
    let node = Running::with(&Options {
        address: "0.0.0.0:0".parse().expect("an address"),
        is_open_to_all: true,
        ..options(&path)
    });
    let found = ([127, 0, 0, 3], node.address.port()).into();
    let mut peer = Peer::agreed(found);
    let (answer, _) = peer.call(calls::connect(&connect(ADMIN, DISCOVERY_NQN)));
    assert!(answer.status.is_ok());
    let enabled = calls::property_set(property::CC, 0x0046_0001);
    assert!(peer.call(enabled).0.status.is_ok());
    let (answer, page) = peer.call(calls::log(log::DISCOVERY, 0, 0, 0, 2048));
    assert!(answer.status.is_ok());
    let text = |at: usize, bytes| String::from_utf8_lossy(&page[at..at + bytes]).into_owned();
    assert_eq!(text(1024 + 512, 256).trim_end_matches('\0'), "127.0.0.3");
    let port = node.address.port().to_string();
    assert_eq!(text(1024 + 32, 32).trim_end_matches([' ', '\0']), port);
    node.stop();
}
