// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connect, and DH-HMAC-CHAP.

use erb_nvme::auth::{Failure, Group, Hash, Message, Names, Next, Policy, Prover, Secrets};
use erb_nvme::backend::Condition;
use erb_nvme::client::{Ended, calls};
use erb_nvme::pdu::Digests;
use erb_nvme::random::Random;
use erb_nvme::status::Status;
use erb_nvme::target::{self, ANY_CONTROLLER, Proof, connect_field, property};

use crate::raw::{Raw, connect};
use crate::world::{ALICE, BOB, NQN, World, config, secret, secrets, settings};

const IN_DATA: u64 = 1 << 16;

/// Trap 9.
#[test]
fn an_io_queue_joins_only_an_enabled_controller_of_its_own_host() {
    let mut world = World::usual();
    let mut admin = Raw::agreed(&mut world, Digests::default());
    let id = admin
        .call(&mut world, connect(ALICE, 0, ANY_CONTROLLER))
        .result;
    let id = u16::try_from(id).expect("16 bits");
    let io = |world: &mut World, call| {
        let mut raw = Raw::agreed(world, Digests::default());
        let found = raw.call(world, call);
        world.target.close(raw.id, world.now_us);
        (found.status, found.result)
    };
    let wrong = (
        Status::CONNECT_PARAMETER,
        IN_DATA | connect_field::CONTROLLER as u64,
    );
    assert_eq!(
        io(&mut world, connect(ALICE, 1, id)),
        (Status::SEQUENCE, 0),
        "before CC.EN"
    );
    admin.call(&mut world, calls::property_set(property::CC, 0x0046_0061));
    assert_eq!(io(&mut world, connect(BOB, 1, id)), wrong, "another host");
    let mut other = connect(ALICE, 1, id);
    other.data[0] ^= 1;
    assert_eq!(io(&mut world, other), wrong, "another host id");
    assert_eq!(
        io(&mut world, connect(ALICE, 1, id + 1)),
        wrong,
        "another controller"
    );
    let queue = (Status::CONNECT_PARAMETER, 42);
    assert_eq!(
        io(&mut world, connect(ALICE, 2, id)),
        queue,
        "one queue is granted until asked"
    );
    assert_eq!(io(&mut world, connect(ALICE, 17, id)), queue);
    let (first, _) = Raw::queue(&mut world, ALICE, 1, id);
    assert_eq!(
        io(&mut world, connect(ALICE, 1, id)),
        (Status::SEQUENCE, 0),
        "twice"
    );
    assert_eq!(
        (first.ended, admin.ended),
        (None, None),
        "the first queue goes on"
    );
}

/// Linux's `nvme disconnect` lets the I/O queues go before it tells the controller to shut down.
#[test]
fn an_io_queue_with_nothing_under_way_may_go_and_the_host_then_shuts_down() {
    let mut world = World::usual();
    let (mut admin, io) = Raw::controller(&mut world, ALICE);
    world.target.close(io.id, world.now_us);
    admin.turn(&mut world);
    assert_eq!(admin.ended, None);
    let shut = calls::property_set(property::CC, 0x0046_4061);
    assert!(admin.call(&mut world, shut).status.is_ok());
    let status = admin.call(&mut world, calls::property_get(property::CSTS));
    assert_eq!(
        (status.status, status.result),
        (Status::OK, 0b1001),
        "ready, and the shutdown is over"
    );
    world.target.close(admin.id, world.now_us);
    assert_eq!(world.target.counts().controllers, 0);
}

#[test]
fn the_number_of_an_io_queue_that_went_is_free_again() {
    let mut world = World::usual();
    let (admin, id) = Raw::queue(&mut world, ALICE, 0, ANY_CONTROLLER);
    let (first, _) = Raw::queue(&mut world, ALICE, 1, id);
    world.target.close(first.id, world.now_us);
    let (mut second, _) = Raw::queue(&mut world, ALICE, 1, id);
    let store = calls::store(1, b"k", vec![1], Condition::Any);
    assert!(second.call(&mut world, store).status.is_ok());
    assert_eq!((second.ended, admin.ended), (None, None));
}

#[test]
fn an_io_queue_that_is_lost_within_a_pdu_ends_its_controller() {
    let mut world = World::usual();
    let (mut admin, mut io) = Raw::controller(&mut world, ALICE);
    let (whole, _) = io.capsule(&calls::store(1, b"k", vec![1; 9], Condition::Any), false);
    io.send(&mut world, &whole[..40]);
    world.target.close(io.id, world.now_us);
    admin.turn(&mut world);
    assert_eq!(admin.ended, Some(target::Ended::Controller));
}

#[test]
fn what_connect_says_wrong_is_named() {
    let mut world = World::usual();
    let mut refused = |change: fn(&mut erb_nvme::client::Call)| {
        let mut raw = Raw::agreed(&mut world, Digests::default());
        let mut call = connect(ALICE, 0, ANY_CONTROLLER);
        change(&mut call);
        let found = raw.call(&mut world, call);
        world.target.close(raw.id, world.now_us);
        (found.status.code(), found.result)
    };
    assert_eq!(refused(|call| call.sqe.0[40] = 1), (0x180, 0));
    assert_eq!(refused(|call| call.sqe.0[44] = 0), (0x182, 44));
    assert_eq!(refused(|call| call.sqe.0[44] = 128), (0x182, 44));
    assert_eq!(refused(|call| call.data[16] = 1), (0x182, IN_DATA | 16));
    assert_eq!(
        refused(|call| call.data[260] = b'x'),
        (0x182, IN_DATA | 256)
    );
    assert_eq!(
        refused(|call| call.data[512..768].fill(b'x')),
        (0x182, IN_DATA | 512)
    );
    assert_eq!(
        refused(|call| call.data[512] = 0xff),
        (0x182, IN_DATA | 512)
    );
    assert_eq!(refused(|call| call.data[515] = b'x'), (0x184, 0));
    assert_eq!(world.target.counts().controllers, 0);
}

#[test]
fn nothing_but_connect_comes_first_and_connect_comes_once() {
    let mut world = World::usual();
    let mut raw = Raw::agreed(&mut world, Digests::default());
    for call in [
        calls::keep_alive(),
        calls::property_get(property::CAP),
        calls::store(1, b"k", vec![1], Condition::Any),
        calls::auth_send(vec![0; 80]),
    ] {
        assert_eq!(raw.call(&mut world, call).status, Status::SEQUENCE);
    }
    assert!(
        raw.call(&mut world, connect(ALICE, 0, ANY_CONTROLLER))
            .status
            .is_ok()
    );
    let again = raw.call(&mut world, connect(ALICE, 0, ANY_CONTROLLER));
    assert_eq!(again.status, Status::SEQUENCE);
    let early = raw.call(&mut world, calls::identify(1, 0, 0));
    assert_eq!(
        early.status,
        Status::SEQUENCE,
        "the controller is not enabled"
    );
}

fn asking() -> World {
    let mut config = config(Default::default());
    config.proof = Proof::Always;
    World::new(config, 11)
}

fn end_of(world: &mut World, secrets: Option<Secrets>, policy: Policy) -> Option<Ended> {
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.secrets = secrets;
    wanted.policy = policy;
    let link = world.open(wanted, false);
    world.run();
    world.links[link].client_ended
}

#[test]
fn both_ends_prove_themselves_with_every_hash_and_group() {
    for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
        for group in [
            Group::Null,
            Group::Ffdhe2048,
            Group::Ffdhe3072,
            Group::Ffdhe4096,
        ] {
            let mut config = config(Default::default());
            let policy = Policy {
                hashes: vec![hash],
                groups: vec![group],
            };
            config.policy = policy.clone();
            let mut world = World::new(config, 12);
            for asks in [true, false] {
                let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
                wanted.policy = policy.clone();
                wanted.secrets = Some(secrets());
                if !asks {
                    wanted.secrets = Some(Secrets {
                        subsystem: None,
                        ..secrets()
                    });
                }
                let mut queue = wanted.clone();
                let admin = world.open(wanted, false);
                world.run();
                assert!(
                    world.links[admin].client.is_up(),
                    "{hash:?} {group:?} {asks}"
                );
                queue.queue = 1;
                queue.controller = world.links[admin].client.controller();
                let io = world.open(queue, false);
                world.run();
                assert!(world.links[io].client.is_up(), "each queue proves itself");
            }
        }
    }
}

#[test]
fn who_does_not_know_the_secret_gets_nothing() {
    let mut world = asking();
    let wrong = Secrets {
        host: secret(9),
        subsystem: None,
    };
    let failed = Some(Ended::Authentication(Failure::Failed));
    assert_eq!(end_of(&mut world, Some(wrong), Policy::default()), failed);
    // The node knows the host's secret, but not its own.
    let imposter = Secrets {
        host: secret(1),
        subsystem: Some(secret(9)),
    };
    assert_eq!(
        end_of(&mut world, Some(imposter), Policy::default()),
        Some(Ended::NoProof)
    );
    assert_eq!(
        end_of(&mut world, None, Policy::default()),
        Some(Ended::NoSecret)
    );
    let weak = Policy {
        groups: vec![Group::Null],
        ..Policy::default()
    };
    let no_group = Some(Ended::Authentication(Failure::Group));
    assert_eq!(end_of(&mut world, Some(secrets()), weak), no_group);
    world.pass(6_000_000);
    assert_eq!(
        world.target.counts(),
        target::Counts::default(),
        "nothing is left"
    );
}

#[test]
fn a_client_that_wants_proof_leaves_a_node_that_gives_none() {
    let mut world = World::usual();
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.secrets = Some(secrets());
    let link = world.open(wanted, true);
    world.run();
    assert_eq!(world.links[link].client_ended, Some(Ended::NoProof));
}

/// A conversation by hand, with the null group: the raw peer and the challenge that it got.
fn challenged(world: &mut World) -> (Raw, Message, u16) {
    let mut raw = Raw::agreed(world, Digests::default());
    let connected = raw.call(world, connect(ALICE, 0, ANY_CONTROLLER));
    assert_eq!(connected.result >> 17, 1, "authentication is wanted");
    let negotiate = Message::Negotiate {
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Ffdhe2048, Group::Null],
        is_concatenated: false,
    };
    assert!(
        raw.call(world, calls::auth_send(negotiate.bytes(77)))
            .status
            .is_ok()
    );
    let (message, transaction) = fetch(world, &mut raw).expect("a challenge");
    assert_eq!(transaction, 77);
    (raw, message, transaction)
}

/// The node's next message.
fn fetch(world: &mut World, raw: &mut Raw) -> Option<(Message, u16)> {
    raw.start(world, &calls::auth_receive(4096), false);
    while let Some((id, job)) = world.target.next_job() {
        let computed = job.run();
        world.target.computed(id, computed);
    }
    raw.turn(world);
    let pdus = raw.pdus(world);
    let data = pdus.iter().find(|pdu| pdu[0] == 7)?;
    Message::of(&data[24..]).ok()
}

fn null_world(group: Group) -> World {
    let mut config = config(Default::default());
    config.proof = Proof::Always;
    config.policy.groups = vec![group];
    World::new(config, 13)
}

/// Trap 10.
#[test]
fn nothing_is_done_before_authentication_ends() {
    let mut world = null_world(Group::Null);
    let (mut raw, _, _) = challenged(&mut world);
    for call in [
        calls::keep_alive(),
        calls::property_set(property::CC, 0x0046_0061),
        calls::identify(1, 0, 0),
    ] {
        assert_eq!(raw.call(&mut world, call).status, Status::AUTHENTICATION);
    }
    // An I/O queue cannot go before it either, whatever it knows.
    let mut io = Raw::agreed(&mut world, Digests::default());
    let refused = io.call(&mut world, connect(ALICE, 1, 1));
    assert_eq!(refused.status, Status::CONNECT_PARAMETER);
}

/// Who listens knows names, host id and controller, and no secret.
#[test]
fn an_io_queue_that_proves_nothing_ends_nobody_elses_controller() {
    let mut world = null_world(Group::Null);
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.secrets = Some(secrets());
    wanted.policy.groups = vec![Group::Null];
    let admin = world.open(wanted.clone(), false);
    world.run();
    let controller = world.links[admin].client.controller();
    for number in 0..3 {
        let mut liar = Raw::agreed(&mut world, Digests::default());
        let joined = liar.call(&mut world, connect(ALICE, 1, controller));
        assert_eq!(joined.result >> 17, 1, "authentication is wanted");
        if number == 2 {
            // The last one waits.
            break;
        }
        liar.call(&mut world, calls::auth_send(vec![0; 16]));
        fetch(&mut world, &mut liar);
        assert!(liar.ended.is_some());
        world.target.close(liar.id, world.now_us);
    }
    // Its queue is free for the host itself.
    wanted.queue = 1;
    wanted.controller = controller;
    let io = world.open(wanted, false);
    world.run();
    assert!(world.links[io].client.is_up() && world.links[admin].client.is_up());
    let stored = world.call(io, calls::store(1, b"k", vec![1], Condition::Any));
    assert!(stored.status.is_ok());
}

/// Trap 10.
#[test]
fn an_old_response_proves_nothing() {
    let mut world = null_world(Group::Null);
    world.records = true;
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.secrets = Some(Secrets {
        host: secret(1),
        subsystem: None,
    });
    wanted.policy.groups = vec![Group::Null];
    let link = world.open(wanted, false);
    world.run();
    assert!(world.links[link].client.is_up());
    let record = world.links[link].record.take().expect("a record");
    let said = record.iter().filter(|(from_client, _)| *from_client);
    let said: Vec<u8> = said.flat_map(|(_, bytes)| bytes.clone()).collect();
    let at = said.windows(2).position(|pair| pair == [1, 2]).into_iter();
    let replies: Vec<_> = at
        .chain(said.windows(4).enumerate().filter(|(_, it)| it[..2] == [1, 2]).map(|(at, _)| at))
        .filter_map(|at| Message::of(&said[at..]).ok())
        .filter(|(message, _)| matches!(message, Message::Reply { response, .. } if response.len() == 32))
        .collect();
    let (old, _) = replies.first().expect("the reply was recorded");
    let (mut raw, _, transaction) = challenged(&mut world);
    let sent = raw.call(&mut world, calls::auth_send(old.bytes(transaction)));
    assert!(sent.status.is_ok());
    let (answer, _) = fetch(&mut world, &mut raw).expect("an answer");
    assert_eq!(answer, Message::Failure1(Failure::Failed));
    assert_eq!(
        raw.ended,
        Some(target::Ended::Authentication(Failure::Failed))
    );
}

/// Draws the same bytes again and again.
struct Again(Vec<u8>);

impl Random for Again {
    fn fill(&mut self, bytes: &mut [u8]) {
        let again = self.0.iter().cycle();
        bytes
            .iter_mut()
            .zip(again)
            .for_each(|(to, from)| *to = *from);
    }
}

/// Trap 79. The response is right, so only the challenge tells.
#[test]
fn a_challenge_that_is_reflected_is_refused() {
    let mut world = null_world(Group::Null);
    let names = Names {
        host: ALICE.to_owned(),
        subsystem: NQN.to_owned(),
    };
    let policy = Policy {
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null],
    };
    for is_reflected in [false, true] {
        let mut raw = Raw::agreed(&mut world, Digests::default());
        raw.call(&mut world, connect(ALICE, 0, ANY_CONTROLLER));
        let mut random = Again(vec![3; 32]);
        let (mut prover, negotiate) =
            Prover::new(names.clone(), secrets(), policy.clone(), &mut random);
        raw.call(&mut world, calls::auth_send(negotiate));
        let (message, transaction) = fetch(&mut world, &mut raw).expect("a challenge");
        if let (true, Message::Challenge { challenge, .. }) = (is_reflected, &message) {
            random = Again(challenge.clone());
        }
        let Next::Send(reply) = prover.received(&message.bytes(transaction), &mut random) else {
            panic!("a reply");
        };
        raw.call(&mut world, calls::auth_send(reply));
        let (answer, _) = fetch(&mut world, &mut raw).expect("an answer");
        assert_eq!(
            matches!(answer, Message::Success1 { .. }),
            !is_reflected,
            "{answer:?}"
        );
        assert_eq!(raw.ended.is_some(), is_reflected);
    }
}

/// Trap 79.
#[test]
fn values_that_give_the_shared_one_away_are_refused() {
    let mut last = vec![0xff; 256];
    // p - 1 and p of ffdhe2048 differ in the last byte; its other bytes are the node's own business here.
    let prime = ffdhe2048();
    last.copy_from_slice(&prime);
    let mut before = prime.clone();
    before[255] -= 1;
    let small = |value: u8| {
        let mut bytes = vec![0; 256];
        bytes[255] = value;
        bytes
    };
    let mut wrong = vec![
        small(0),
        small(1),
        before,
        last,
        vec![0xff; 256],
        vec![5; 255],
    ];
    wrong.push(Vec::new());
    for value in wrong {
        assert!(!Group::Ffdhe2048.is_usable(&value));
        let mut world = null_world(Group::Ffdhe2048);
        let (mut raw, _, transaction) = challenged(&mut world);
        let reply = Message::Reply {
            response: vec![0; 32],
            challenge: None,
            value,
        };
        raw.call(&mut world, calls::auth_send(reply.bytes(transaction)));
        assert!(
            world.target.next_job().is_none(),
            "nothing is computed with it"
        );
        let (answer, _) = fetch(&mut world, &mut raw).expect("an answer");
        assert_eq!(answer, Message::Failure1(Failure::Payload));
    }
    // And the node's own value.
    let mut world = null_world(Group::Ffdhe2048);
    let (mut raw, message, transaction) = challenged(&mut world);
    let Message::Challenge { value, .. } = message else {
        panic!("{message:?}");
    };
    assert!(Group::Ffdhe2048.is_usable(&value));
    let reply = Message::Reply {
        response: vec![0; 32],
        challenge: None,
        value,
    };
    raw.call(&mut world, calls::auth_send(reply.bytes(transaction)));
    let (answer, _) = fetch(&mut world, &mut raw).expect("an answer");
    assert_eq!(answer, Message::Failure1(Failure::Payload));
}

/// The prime, found by asking which values are usable: its bytes from the first on.
fn ffdhe2048() -> Vec<u8> {
    // All values below p - 1 are usable, so a search per byte finds p - 2.
    let mut found = vec![0; 256];
    found[255] = 2;
    for at in 0..256 {
        let (mut low, mut high) = (found[at], 255_u8);
        while low < high {
            let middle = high - (high - low) / 2;
            found[at] = middle;
            if Group::Ffdhe2048.is_usable(&found) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        found[at] = low;
    }
    found[255] += 2;
    found
}

#[test]
fn messages_out_of_order_or_without_sense_fail() {
    for message in [
        Message::Success2.bytes(77),
        Message::Challenge {
            hash: Hash::Sha256,
            group: Group::Null,
            sequence: 1,
            challenge: vec![0; 32],
            value: Vec::new(),
        }
        .bytes(77),
        vec![1, 2, 3],
        vec![1; 16],
        vec![0xff; 4096],
    ] {
        let mut world = null_world(Group::Null);
        let (mut raw, _, _) = challenged(&mut world);
        raw.call(&mut world, calls::auth_send(message));
        let (answer, _) = fetch(&mut world, &mut raw).expect("an answer");
        assert!(matches!(answer, Message::Failure1(_)), "{answer:?}");
        assert!(raw.ended.is_some());
    }
}

#[test]
fn two_powers_are_computed_at_a_time() {
    let mut world = null_world(Group::Ffdhe2048);
    for _ in 0..5 {
        let mut raw = Raw::agreed(&mut world, Digests::default());
        raw.call(&mut world, connect(ALICE, 0, ANY_CONTROLLER));
        let negotiate = Message::Negotiate {
            hashes: vec![Hash::Sha256],
            groups: vec![Group::Ffdhe2048],
            is_concatenated: false,
        };
        raw.call(&mut world, calls::auth_send(negotiate.bytes(1)));
    }
    let first = world.target.next_job().expect("a job");
    assert!(world.target.next_job().is_some());
    assert!(world.target.next_job().is_none());
    let computed = first.1.run();
    world.target.computed(first.0, computed);
    assert!(world.target.next_job().is_some());
}
