// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that are slow, greedy, or gone: what they may hold, and for how long.

use erb_nvme::backend::Condition;
use erb_nvme::client::calls::{self, Connect};
use erb_nvme::limits::Limits;
use erb_nvme::pdu::{self, Digests, Kind};
use erb_nvme::status::Status;
use erb_nvme::target::{ANY_CONTROLLER, DISCOVERY_NQN, Ended};

use crate::raw::{Raw, connect};
use crate::world::{ALICE, BOB, World, config, settings};

/// Trap 11.
#[test]
fn a_peer_that_reads_nothing_is_not_read_either_and_then_ends() {
    let mut world = World::usual();
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    let (_, transfer) = io.asked(
        &mut world,
        &calls::store(1, b"k", vec![7; 131_072], Condition::Any),
    );
    let pdu = io.data(transfer, &[7; 131_072], true);
    io.send(&mut world, &pdu);
    io.pdus(&mut world);
    let mut most = 0;
    for round in 0.. {
        assert!(round < 100, "reading never stops");
        if !world.target.wants_bytes(io.id, world.now_us) {
            break;
        }
        io.start(&mut world, &calls::retrieve(1, b"k", 131_072), false);
        most = most.max(world.target.counts().unsent_bytes);
    }
    assert!(most <= (1 << 20) + 140_000, "{most}");
    let (pdu, _) = io.capsule(&calls::exist(1, b"k"), false);
    assert_eq!(world.target.receive(io.id, &pdu, world.now_us), 0);
    world.now_us += 9_000_000;
    // Its host still says that it lives: the queue is judged by itself.
    io.turn(&mut world);
    world.now_us += 2_000_000;
    io.turn(&mut world);
    world.now_us += 2_000_000;
    io.turn(&mut world);
    assert!(
        matches!(io.ended, Some(Ended::Slow | Ended::Controller)),
        "{:?}",
        io.ended
    );
    world.target.close(io.id, world.now_us);
    let counts = world.target.counts();
    assert_eq!((counts.reserved_bytes, counts.unsent_bytes), (0, 0));
}

/// Trap 11.
#[test]
fn a_pdu_that_comes_a_byte_a_second_ends_the_connection() {
    let mut world = World::usual();
    let mut admin = Raw::agreed(&mut world, Digests::default());
    let mut call = connect(ALICE, 0, ANY_CONTROLLER);
    // Without keep alive nothing else ends it.
    call.sqe = call.sqe.with_word(12, 0);
    assert!(admin.call(&mut world, call).status.is_ok());
    let (pdu, _) = admin.capsule(&calls::keep_alive(), false);
    for byte in pdu {
        if admin.ended.is_some() {
            break;
        }
        admin.send(&mut world, &[byte]);
        world.now_us += 1_000_000;
    }
    assert_eq!(admin.ended, Some(Ended::Slow));
}

/// Trap 11.
#[test]
fn sixty_four_strangers_at_a_time_and_each_for_five_seconds() {
    let mut world = World::usual();
    let mut strangers = Vec::new();
    for _ in 0..64 {
        strangers.push(Raw::silent(&mut world));
    }
    assert_eq!(world.target.open(true, world.now_us), None);
    // Some agree, but nobody connects.
    let request = pdu::ic(Kind::IcReq, 0, Digests::default(), 0);
    strangers[3].send(&mut world, &request);
    world.now_us += 5_000_000;
    world.target.turn(world.now_us);
    let now_us = world.now_us + 1_000_000;
    let over = world.target.over(now_us);
    assert_eq!(over.len(), 64);
    assert!(over.iter().all(|(_, ended)| *ended == Ended::Stranger));
    for (id, _) in over {
        world.target.close(id, now_us);
    }
    assert!(world.target.open(true, now_us).is_some());
}

/// Nobody who asks what there is has to be known, so all places would be theirs.
#[test]
fn sixty_four_ask_for_discovery_and_leave_the_others_room() {
    let mut world = World::usual();
    let connects = |world: &mut World| {
        let mut raw = Raw::agreed(world, Digests::default());
        let call = calls::connect(&Connect {
            host: "nqn.2026-11.org.erb:nobody",
            host_id: [7; 16],
            subsystem: DISCOVERY_NQN,
            controller: ANY_CONTROLLER,
            queue: 0,
            depth: 32,
            keep_alive_ms: 0,
        });
        (raw.call(world, call).status, raw)
    };
    let mut askers = Vec::new();
    for _ in 0..64 {
        let (status, raw) = connects(&mut world);
        assert!(status.is_ok());
        askers.push(raw);
    }
    assert_eq!(connects(&mut world).0, Status::CONNECT_BUSY);
    Raw::controller(&mut world, ALICE);
    world.target.close(askers[0].id, world.now_us);
    assert!(connects(&mut world).0.is_ok());
}

/// Trap 11.
#[test]
fn a_thousand_and_twenty_four_connections_are_served_and_no_more() {
    let mut world = World::usual();
    let mut keep = Vec::new();
    for _ in 0..1024 {
        let mut raw = Raw::agreed(&mut world, Digests::default());
        let (pdu, _) = raw.capsule(&connect(ALICE, 0, ANY_CONTROLLER), false);
        world.target.receive(raw.id, &pdu, world.now_us);
        keep.push(raw);
    }
    let counts = world.target.counts();
    assert_eq!(
        (counts.connections, counts.strangers, counts.controllers),
        (1024, 0, 1024)
    );
    assert_eq!(world.target.open(true, world.now_us), None);
    world.target.close(keep[0].id, world.now_us);
    assert!(world.target.open(true, world.now_us).is_some());
}

#[test]
fn a_stranger_has_four_small_commands_under_way() {
    let mut world = World::usual();
    let mut raw = Raw::agreed(&mut world, Digests::default());
    for _ in 0..4 {
        raw.start(&mut world, &connect(ALICE, 0, ANY_CONTROLLER), true);
    }
    assert_eq!(world.target.counts().commands, 4);
    raw.start(&mut world, &connect(ALICE, 0, ANY_CONTROLLER), true);
    raw.pdus(&mut world);
    assert!(matches!(raw.ended, Some(Ended::Wrong(_))));
}

/// Trap 71.
#[test]
fn one_host_that_sits_on_its_r2ts_leaves_the_others_room_and_loses_its_queues() {
    let limits = Limits {
        pool_bytes: 16 << 20,
        host_part: 4,
        ..Limits::default()
    };
    let mut world = World::new(config(limits), 5);
    let store = calls::store(1, b"k", vec![7; 1 << 20], Condition::Any);
    let (_, mut first) = Raw::controller(&mut world, ALICE);
    let (_, mut second) = Raw::controller(&mut world, ALICE);
    for _ in 0..6 {
        first.start(&mut world, &store, true);
        second.start(&mut world, &store, true);
    }
    let asked = |pdus: Vec<Vec<u8>>| pdus.iter().filter(|pdu| pdu[0] == Kind::R2t as u8).count();
    let asked = asked(first.pdus(&mut world)) + asked(second.pdus(&mut world));
    assert_eq!(asked, 4, "no buffer, no R2T");
    assert_eq!(world.target.counts().reserved_bytes, 4 << 20);
    // Data in a capsule cannot wait: it is refused, and may be repeated.
    let small = calls::store(1, b"k", vec![7; 100], Condition::Any);
    let refused = first.call(&mut world, small);
    assert_eq!(
        (refused.status, refused.status.may_repeat()),
        (Status::BUSY, true)
    );

    let (_, bob) = world.controller(BOB);
    assert!(world.call(bob, store.clone()).status.is_ok());
    assert!(
        world
            .call(bob, calls::retrieve(1, b"k", 1 << 20))
            .status
            .is_ok()
    );
    world.now_us += 4_000_000;
    world.call(bob, calls::exist(1, b"k"));
    // Ten seconds for an R2T's data; here the silent host's controllers end before.
    world.now_us += 7_000_000;
    world.target.turn(world.now_us);
    for raw in [&mut first, &mut second] {
        raw.turn(&mut world);
        raw.pdus(&mut world);
        assert!(matches!(raw.ended, Some(Ended::Slow | Ended::Controller)));
    }
    assert_eq!(world.target.counts().reserved_bytes, 0);
}

#[test]
fn data_of_an_r2t_has_ten_seconds_however_many_pieces_come() {
    let mut world = World::usual();
    let (mut admin, mut io) = Raw::controller(&mut world, ALICE);
    let store = calls::store(1, b"k", vec![7; 9000], Condition::Any);
    let (_, transfer) = io.asked(&mut world, &store);
    let mut wait = |world: &mut World, io: &mut Raw, seconds: u64| {
        for _ in 0..seconds {
            world.now_us += 1_000_000;
            assert!(admin.call(world, calls::keep_alive()).status.is_ok() || io.ended.is_some());
            io.turn(world);
        }
    };
    wait(&mut world, &mut io, 9);
    let pdu = io.data(transfer, &[7; 100], false);
    io.send(&mut world, &pdu);
    assert_eq!(io.ended, None);
    wait(&mut world, &mut io, 1);
    assert_eq!(io.ended, Some(Ended::Slow));
}

#[test]
fn a_queue_waits_for_room_in_the_order_of_its_commands() {
    let limits = Limits {
        queue_bytes: 1 << 20,
        ..Limits::default()
    };
    let mut world = World::new(config(limits), 6);
    let (_, io) = world.controller(ALICE);
    let value = vec![3; 700_000];
    let stores: Vec<_> = (0..8_u8)
        .map(|key| world.start(io, calls::store(1, &[key], value.clone(), Condition::Any)))
        .collect();
    world.run();
    let replies = &world.links[io].replies;
    assert!(stores.iter().all(|id| replies[id].status.is_ok()));
    let gets: Vec<_> = (0..8_u8)
        .map(|key| world.start(io, calls::retrieve(1, &[key], 1 << 20)))
        .collect();
    world.run();
    let replies = &world.links[io].replies;
    assert!(gets.iter().all(|id| replies[id].data == value));
    assert_eq!(world.target.counts().reserved_bytes, 0);
}

#[test]
fn queues_of_a_controller_end_together() {
    let mut world = World::usual();
    let (admin, io) = world.controller(ALICE);
    world.target.backend().is_held = true;
    world.start(io, calls::store(1, b"k", vec![1], Condition::Any));
    world.run();
    world.cut(io);
    world.run();
    assert_eq!(world.links[admin].target_ended, Some(Ended::Controller));
    world.target.backend().is_held = false;
    world.run();
    let (admin, io) = world.controller(ALICE);
    world.cut(admin);
    world.run();
    assert_eq!(world.links[io].target_ended, Some(Ended::Controller));
    assert_eq!(world.target.counts().controllers, 0);
}

#[test]
fn a_reset_takes_the_io_queues_and_leaves_the_controller() {
    let mut world = World::usual();
    let (mut admin, mut io) = Raw::controller(&mut world, ALICE);
    let off = admin.call(&mut world, calls::property_set(0x14, 0x0046_0060));
    assert!(off.status.is_ok());
    io.turn(&mut world);
    assert_eq!(io.ended, Some(Ended::Controller));
    world.target.close(io.id, world.now_us);
    let on = admin.call(&mut world, calls::property_set(0x14, 0x0046_0061));
    assert!(on.status.is_ok());
    assert_eq!(world.target.counts().controllers, 1);
    Raw::queue(&mut world, ALICE, 1, 1);
}

#[test]
fn a_host_that_says_nothing_for_longer_than_it_promised_loses_its_controller() {
    let mut world = World::usual();
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    world.now_us += 4_900_000;
    io.turn(&mut world);
    assert_eq!(io.ended, None);
    world.now_us += 200_000;
    io.turn(&mut world);
    assert_eq!(io.ended, Some(Ended::Controller));
    // A client that is looked after says that it lives.
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    world.pass(60_000_000);
    assert!(world.links[io].client.is_up());
}

#[test]
fn sizes_of_queues_are_the_hosts_choice_up_to_the_bound() {
    let mut world = World::usual();
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.depth = 128;
    let admin = world.connect(wanted.clone());
    wanted.queue = 1;
    wanted.controller = world.links[admin].client.controller();
    let io = world.connect(wanted);
    world.target.backend().is_held = true;
    let now_us = world.now_us;
    for _ in 0..127 {
        let call = calls::exist(1, b"k");
        assert!(world.links[io].client.call(call, now_us).is_ok());
    }
    assert!(
        world.links[io]
            .client
            .call(calls::exist(1, b"k"), now_us)
            .is_err()
    );
}
