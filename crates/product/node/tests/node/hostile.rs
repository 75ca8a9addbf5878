// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers of a node that can be reached by others: who knows no secret gets nothing, and takes nothing from those who
//! do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use erb_kv::{Identity, Key, RollBack, Secrets, Selector, Status, Target};
use erb_nvme::auth::{Failure, Group, Message};
use erb_nvme::backend::{Change, Condition, Retention, Write as KvWrite};
use erb_nvme::client::Call;
use erb_nvme::client::calls::{self, Connect};
use erb_nvme::command::Sqe;
use erb_nvme::layout::ListingRequest;
use erb_nvme::opcode::{admin, kv, versioned};
use erb_nvme::pdu::{self, Digests, Kind};
use erb_nvme::target::{RESULT_AUTHENTICATION, property};

use crate::peer::{Dice, Peer, TRANSACTION, connect, silent};
use crate::{ADMIN, Running, SMALL, WRITER, folder, formatted, hosts, value};

const CONFIGURATION: u32 = 0x0046_0061;
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 6, 6, 6);
/// As many as the node serves.
const CROWD: usize = 1024;
/// Between an honest host's writes, so that they do not fill the store.
const PAUSE: Duration = Duration::from_millis(5);

/// Knows the host's secret, and does not ask the node for its own.
fn one_way(identity: &Identity) -> Identity {
    let secrets = identity.secrets.clone().map(|both| Secrets {
        subsystem: None,
        ..both
    });
    Identity {
        secrets,
        ..identity.clone()
    }
}

/// One command of each kind that there is, with words that make sense.
fn commands() -> Vec<Call> {
    let key = Key::Plain(b"k".to_vec());
    let writes = [KvWrite {
        key: key.clone(),
        change: Change::Delete,
        condition: Condition::Any,
    }];
    let listing = ListingRequest {
        moment: 0,
        changed_since: 0,
        has_deleted: false,
        prefix: Vec::new(),
    };
    let settings = Retention {
        min_age_us: 1,
        keep_deleted_us: 1,
        min_count: 1,
    };
    vec![
        calls::property_get(property::CSTS),
        calls::property_set(property::CC, CONFIGURATION),
        calls::identify(1, 0, 0),
        calls::log(0x02, 0, 0, 0, 512),
        calls::log(0xc1, 1, 0, 0, 512),
        calls::log(0xc2, 1, 0, 0, 512),
        calls::set_feature(0x07, 0, 0),
        calls::get_feature(0x07, 0),
        calls::retention(1),
        calls::set_retention(1, &settings),
        calls::lock_retention(1, 1),
        calls::event(),
        calls::keep_alive(),
        calls::store(1, b"k", vec![1], Condition::Any),
        calls::retrieve(1, b"k", 100),
        calls::list(1, b"", 100),
        calls::delete(1, b"k"),
        calls::exist(1, b"k"),
        calls::put_value(1, b"k", vec![1], None),
        calls::get(1, &key, Selector::Head, true, 100),
        calls::versions(1, &key, 0, 4096),
        calls::delete_key(1, &key, None),
        calls::restore(1, &key, Selector::Back(1)),
        calls::batch(1, &writes),
        calls::roll_back(1, &everything(1)),
        calls::keys(1, b"", 0, 4096),
        calls::open_listing(1, &listing),
        calls::snapshot(1, 0),
        calls::release(1, 1),
        calls::fence(),
    ]
}

fn everything(moment: u64) -> RollBack {
    RollBack {
        prefix: Vec::new(),
        target: Target::Moment(moment),
        unless_written_since: None,
        is_dry_run: false,
    }
}

/// Trap 10.
#[test]
fn who_has_not_proved_himself_gets_no_command_through() {
    let folder = folder();
    let (path, (list, [_, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let mut client = node.client_as(&admin);
    client.put(b"k", b"v", None).expect("put");
    for call in commands() {
        // Before Connect, behind it, and with a challenge that is not answered.
        let mut peer = Peer::agreed(node.address);
        let (answer, data) = peer.call(call.clone());
        assert_eq!(
            (answer.status, data.len()),
            (Status::SEQUENCE, 0),
            "{call:?}"
        );
        let mut peer = Peer::connected(node.address, ADMIN);
        let (answer, data) = peer.call(call.clone());
        assert_eq!((answer.status, data.len()), (Status::AUTHENTICATION, 0));
        peer.challenge();
        let (answer, data) = peer.call(call);
        assert_eq!((answer.status, data.len()), (Status::AUTHENTICATION, 0));
    }
    // An I/O queue does not join the controller of a host that is known, without its own proof and host id.
    let mut io = Peer::agreed(node.address);
    for controller in 1..200 {
        let (answer, _) = io.call(calls::connect(&Connect {
            controller,
            queue: 1,
            ..connect(ADMIN, erb_node::NQN)
        }));
        assert_eq!(answer.status, Status::CONNECT_PARAMETER);
    }
    // Nor is a host let in that nobody has listed.
    let mut unknown = Peer::agreed(node.address);
    let who = connect("nqn.2026-11.org.example:nobody", erb_node::NQN);
    let (answer, _) = unknown.call(calls::connect(&who));
    assert_eq!(answer.status, Status::CONNECT_HOST);
    assert_eq!(client.versions(b"k", 0).expect("versions").0.len(), 1);
    node.stop();
}

/// Traps 10 and 79.
#[test]
fn an_old_response_and_a_reflected_challenge_prove_nothing() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let fresh = |_: &Message| Dice(None);

    let mut peer = Peer::connected(node.address, WRITER);
    let (said, old) = peer.prove(&one_way(&writer), fresh);
    assert!(matches!(said, Some(Message::Success1 { .. })), "{said:?}");
    // The same words to another challenge.
    let mut again = Peer::connected(node.address, WRITER);
    again.challenge();
    let mut old = old;
    old[4..6].copy_from_slice(&TRANSACTION.to_le_bytes());
    let said = again.say(old);
    assert_eq!(said, Some(Message::Failure1(Failure::Failed)));
    assert!(again.ends());

    // The right response, with the node's own challenge for it to answer.
    let mut mirror = Peer::connected(node.address, WRITER);
    let reflect = |message: &Message| match message {
        Message::Challenge { challenge, .. } => Dice(Some(challenge.clone())),
        other => panic!("{other:?}"),
    };
    let (said, _) = mirror.prove(&writer, reflect);
    assert_eq!(said, Some(Message::Failure1(Failure::Failed)));
    assert!(mirror.ends());

    // Another host's secret, and the node's own.
    let secrets = writer.secrets.clone().expect("both");
    let node_s = secrets.subsystem.expect("the node's");
    let other = admin.secrets.expect("both").host;
    for host in [node_s, other] {
        let liar = Identity {
            host: WRITER.to_owned(),
            secrets: Some(Secrets {
                host,
                subsystem: None,
            }),
        };
        let mut peer = Peer::connected(node.address, WRITER);
        let (said, _) = peer.prove(&liar, fresh);
        assert_eq!(said, Some(Message::Failure1(Failure::Failed)));
    }
    node.stop();
}

/// Trap 79.
#[test]
fn values_that_give_the_shared_one_away_end_the_connection() {
    let folder = folder();
    let (path, (list, _)) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let prime = Group::Ffdhe2048.prime();
    let small = |last: u8| {
        let mut value = vec![0; prime.len()];
        *value.last_mut().expect("bytes") = last;
        value
    };
    let mut before = prime.clone();
    *before.last_mut().expect("bytes") -= 1;
    let values = [
        small(0),
        small(1),
        before,
        prime.clone(),
        vec![0xff; 256],
        vec![7; 128],
    ];
    let own = |peer: &mut Peer| match peer.challenge() {
        Message::Challenge { value, .. } => value,
        other => panic!("{other:?}"),
    };
    for value in values.into_iter().map(Some).chain([None]) {
        let mut peer = Peer::connected(node.address, WRITER);
        // The last one is the node's own.
        let own = own(&mut peer);
        let reply = Message::Reply {
            response: vec![0; 32],
            challenge: None,
            value: value.unwrap_or(own),
        };
        let said = peer.say(reply.bytes(TRANSACTION));
        assert_eq!(said, Some(Message::Failure1(Failure::Payload)));
        assert!(peer.ends());
    }
    node.stop();
}

/// Ends a writer also when a test has found something.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Trap 11. They come from another address, as an attacker of another machine does.
#[test]
fn a_thousand_who_never_prove_themselves_keep_nobody_out() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let (mut client, is_over) = (node.client_as(&writer), AtomicBool::new(false));
    let puts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                client.put(b"k", b"v", None).expect("it goes on");
                puts.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        let first = pdu::ic(Kind::IcReq, 0, Digests::default(), 0);
        let mut crowd = Vec::new();
        for number in 0..CROWD {
            let mut stranger = silent(node.address, ATTACKER);
            if number % 2 == 0 {
                // Those whom the node has no room for are closed.
                let _ = stranger.write_all(&first);
            }
            crowd.push(stranger);
        }
        // Another host comes meanwhile, and finds a place.
        for _ in 0..5 {
            let mut client = node.client_as(&admin);
            client.put(b"other", b"v", None).expect("it is let in");
        }
        erb_steady::wait_until(Duration::from_secs(30), "the other writes", || {
            puts.load(Ordering::Relaxed) > 0
        });
        drop(over);
        // Whoever was let wait is ended.
        for mut stranger in crowd {
            let _ = stranger.read_to_end(&mut Vec::new());
        }
    });
    node.stop();
}

/// Trap 11.
#[test]
fn peers_of_one_byte_a_second_end_and_nobody_waits_for_them() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    // A host that has proved itself may be slow too.
    let mut known = Peer::connected(node.address, WRITER);
    let (said, _) = known.prove(&one_way(&writer), |_| Dice(None));
    assert!(matches!(said, Some(Message::Success1 { .. })));
    let mut strangers: Vec<_> = (0..30).map(|_| silent(node.address, ATTACKER)).collect();
    let mut client = node.client_as(&admin);
    let bytes = pdu::ic(Kind::IcReq, 0, Digests::default(), 0);
    let command = pdu::command(&Sqe::new(admin::KEEP_ALIVE).0, Digests::default(), 0, 4);
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    for second in 0..13_usize {
        for stranger in &mut strangers {
            let _ = stranger.write_all(&bytes[second..=second]);
        }
        known.send(&command[second..=second]);
        while begun.elapsed() < Duration::from_secs(1 + second as u64) {
            let asked = Instant::now();
            client.put(b"k", b"v", None).expect("put");
            slowest = slowest.max(asked.elapsed());
            std::thread::sleep(PAUSE);
        }
    }
    for mut stranger in strangers {
        stranger
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a socket");
        let ended = stranger.read_to_end(&mut Vec::new());
        // A reset says so too.
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
    assert!(known.ends());
    // As long as a stranger has. A put takes a thousandth of that.
    if slowest > Duration::from_secs(5) {
        erb_steady::out_of_patience(format_args!("a put has taken {slowest:?}"));
    }
    node.stop();
}

/// A writer's queue that has proved itself; admin queues are enabled.
fn queue(node: SocketAddr, identity: &Identity, of: Option<u16>) -> (Peer, u16) {
    let mut peer = Peer::agreed(node);
    let what = match of {
        None => connect(&identity.host, erb_node::NQN),
        Some(controller) => Connect {
            controller,
            queue: 1,
            ..connect(&identity.host, erb_node::NQN)
        },
    };
    let (answer, _) = peer.call(calls::connect(&what));
    assert_ne!(answer.result & RESULT_AUTHENTICATION, 0, "{answer:?}");
    let (said, _) = peer.prove(&one_way(identity), |_| Dice(None));
    assert!(matches!(said, Some(Message::Success1 { .. })));
    if of.is_none() {
        let enabled = calls::property_set(property::CC, CONFIGURATION);
        assert!(peer.call(enabled).0.status.is_ok());
    }
    (peer, (answer.result & 0xffff) as u16)
}

/// What every host may send to the admin queue.
const ADMIN_FOR_ALL: [u8; 7] = [
    admin::GET_LOG,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::KEEP_ALIVE,
    admin::ASYNC_EVENT, // waits without end
];

/// What a writer may send to its other queues.
const IO_OF_WRITERS: [u8; 15] = [
    kv::FLUSH,
    kv::STORE,
    kv::RETRIEVE,
    kv::LIST,
    kv::DELETE,
    kv::EXIST,
    versioned::PUT,
    versioned::GET,
    versioned::BATCH,
    versioned::VERSIONS,
    versioned::DELETE,
    versioned::KEYS,
    versioned::RESTORE,
    versioned::OPEN_LISTING,
    versioned::FENCE,
];

/// Sends all other opcodes that there are, without data.
fn refuses_all_but(queue: &mut Peer, allowed: &[u8]) {
    for opcode in (0..=0xfe).filter(|opcode| !allowed.contains(opcode) && *opcode != 0x7f) {
        let (answer, _) = queue.call(Call::plain(Sqe::new(opcode).in_namespace(1)));
        assert!(!answer.status.is_ok(), "{opcode:02x}");
    }
}

/// Trap 44.
#[test]
fn a_writer_changes_nothing_that_he_may_not_whatever_he_sends() {
    let folder = folder();
    let (path, (list, [writer, admin])) = (formatted(&folder, SMALL, 1), hosts(&folder));
    let node = Running::with_hosts(&path, &list);
    let mut client = node.client_as(&admin);
    let first = client.put(b"k", b"good", None).expect("put");
    let held = client.snapshot().expect("a snapshot");
    let retention = client.retention().expect("retention");
    let (mut admin_queue, controller) = queue(node.address, &writer, None);
    let (mut io, _) = queue(node.address, &writer, Some(controller));

    let denied = [
        calls::roll_back(1, &everything(first)),
        calls::roll_back(
            1,
            &RollBack {
                is_dry_run: true,
                ..everything(first)
            },
        ),
        calls::snapshot(1, 0),
        calls::release(1, held),
    ];
    for call in denied {
        assert_eq!(io.call(call.clone()).0.status, Status::DENIED, "{call:?}");
    }
    let shorter = Retention {
        min_age_us: 0,
        keep_deleted_us: 0,
        min_count: 1,
    };
    for call in [
        calls::set_retention(1, &shorter),
        calls::lock_retention(1, 1),
    ] {
        assert_eq!(admin_queue.call(call).0.status, Status::DENIED);
    }

    refuses_all_but(&mut admin_queue, &ADMIN_FOR_ALL);
    refuses_all_but(&mut io, &IO_OF_WRITERS);
    // He may overwrite and delete, and an admin takes that back.
    let bad = calls::store(1, b"k", b"bad".to_vec(), Condition::Any);
    assert!(io.call(bad).0.status.is_ok());
    assert!(io.call(calls::delete(1, b"k")).0.status.is_ok());
    assert_eq!(client.retention().expect("retention"), retention);
    client.roll_back(&everything(first)).expect("rolled back");
    assert_eq!(value(&mut client, b"k"), Some(b"good".to_vec()));
    client.release(held).expect("it was held all the time");
    node.stop();
}
