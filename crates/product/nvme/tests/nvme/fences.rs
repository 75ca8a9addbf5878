// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes whose answer was lost: whether they happened, and when they can happen no more.

use erb_nvme::backend::{Condition, Key};
use erb_nvme::client::calls;
use erb_nvme::layout;
use erb_nvme::target::Ended;

use crate::dice::Dice;
use crate::raw::Raw;
use crate::world::{ALICE, BOB, World};

/// Trap 12.
#[test]
fn a_store_that_waits_while_its_host_is_silent_happens_once_and_a_fence_waits_for_it() {
    let mut world = World::usual();
    let (admin, io) = world.controller(ALICE);
    world.target.backend().is_held = true;
    let store = world.start(io, calls::put_value(1, b"k", vec![1], None));
    world.run();
    assert_eq!(world.target.backend().waiting(), 1);
    // The host's keep alives are lost.
    world.now_us += 6_000_000;
    world.run();
    assert_eq!(world.links[admin].target_ended, Some(Ended::Controller));
    assert_eq!(
        world.links[io].lost,
        [store],
        "whether it happened is not known"
    );

    let (_, again) = world.controller(ALICE);
    let fence = world.start(again, calls::fence());
    world.run();
    assert!(
        !world.links[again].replies.contains_key(&fence),
        "it can still happen"
    );
    assert_eq!(world.target.counts().fences, 1);
    world.target.backend().is_held = false;
    world.run();
    assert!(world.links[again].replies[&fence].status.is_ok());
    // Now it is known: it happened, so it is not repeated.
    let rows = world
        .call(
            again,
            calls::versions(1, &Key::Plain(b"k".to_vec()), 0, 4096),
        )
        .data;
    assert_eq!(layout::versions_of(&rows).map(|it| it.0.len()), Some(1));
    assert_eq!(world.target.counts().fences, 0);
}

/// Trap 70.
#[test]
fn a_store_that_comes_late_over_a_dead_connection_does_not_happen() {
    let mut world = World::usual();
    let (_, mut old) = Raw::controller(&mut world, ALICE);
    // One whose data is on its way, and one that is whole but has not arrived.
    let (_, transfer) = old.asked(
        &mut world,
        &calls::store(1, b"k", vec![1; 100], Condition::Any),
    );
    let data = old.data(transfer, &[1; 100], true);
    let (whole, _) = old.capsule(&calls::store(1, b"k", vec![2; 100], Condition::Any), false);

    let (_, mut new) = Raw::controller(&mut world, ALICE);
    assert!(new.call(&mut world, calls::fence()).status.is_ok());
    let repeated = calls::put_value(1, b"k", vec![3], Some(0));
    assert!(new.call(&mut world, repeated).status.is_ok());
    old.send(&mut world, &data);
    old.send(&mut world, &whole);
    assert_eq!(old.ended, Some(Ended::Controller));
    assert_eq!(world.target.backend().value(1, b"k"), Some(&[3][..]));
    assert_eq!(world.target.backend().versions(1, b"k"), 1);
}

#[test]
fn bytes_that_come_before_the_next_turn_do_not_happen_either() {
    let mut world = World::usual();
    let (_, mut old) = Raw::controller(&mut world, ALICE);
    let (whole, _) = old.capsule(&calls::store(1, b"k", vec![2; 100], Condition::Any), false);
    let (_, mut new) = Raw::controller(&mut world, ALICE);
    let (fence, _) = new.capsule(&calls::fence(), false);
    // The fence is taken; nobody has looked at the old connection since.
    world.target.receive(new.id, &fence, world.now_us);
    world.target.receive(old.id, &whole, world.now_us);
    old.turn(&mut world);
    assert_eq!(world.target.backend().versions(1, b"k"), 0);
    assert!(new.responses(&mut world)[0].status.is_ok());
}

#[test]
fn a_fence_ends_only_the_same_hosts_other_controllers() {
    let mut world = World::usual();
    let (_, bob) = world.controller(BOB);
    let (_, other_id) = {
        let mut admin = crate::world::settings(ALICE, 0, erb_nvme::target::ANY_CONTROLLER);
        admin.host_id = [8; 16];
        let link = world.connect(admin);
        (link, world.links[link].id)
    };
    let (old, _) = world.controller(ALICE);
    let (_, new) = world.controller(ALICE);
    assert!(world.call(new, calls::fence()).status.is_ok());
    world.run();
    assert!(world.links[old].target_ended.is_some());
    let put = |key: &[u8]| calls::store(1, key, vec![1], Condition::Any);
    assert!(world.call(bob, put(b"b")).status.is_ok());
    assert!(world.call(new, put(b"n")).status.is_ok());
    let other = world.links.iter().find(|link| link.id == other_id);
    assert!(
        other.is_some_and(|link| link.target_ended.is_none()),
        "another host id"
    );
}

#[test]
fn a_connection_that_is_gone_gives_its_room_back_when_the_store_is_done() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    world.target.backend().is_held = true;
    world.start(io, calls::store(1, b"k", vec![1; 100_000], Condition::Any));
    world.run();
    world.cut(io);
    world.run();
    let counts = world.target.counts();
    assert_eq!(
        (counts.reserved_bytes, counts.requests, counts.controllers),
        (100_000, 1, 1)
    );
    world.target.backend().is_held = false;
    world.run();
    let counts = world.target.counts();
    assert_eq!(
        (counts.reserved_bytes, counts.requests, counts.controllers),
        (0, 0, 0)
    );
}

/// The client forgets a connection whose bytes have come only in part. What has not come yet may come later.
fn abandon(world: &mut World, link: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::new();
    let id = world.links[link].id;
    let client = &mut world.links[link].client;
    while !client.output().is_empty() {
        bytes.extend_from_slice(client.output());
        let count = client.output().len();
        client.sent(count);
    }
    client.close();
    world.links[link].is_deaf = true;
    let late = bytes.split_off(dice.below(bytes.len() + 1));
    world.target.receive(id, &bytes, world.now_us);
    late
}

/// Traps 12 and 70, at every point at which a connection may die.
#[test]
fn writes_over_connections_that_die_happen_exactly_once() {
    const WRITES: u8 = 12;
    let key = Key::Plain(b"k".to_vec());
    let mut repeated = 0;
    for seed in 0..60 {
        let mut world = World::usual();
        let mut dice = Dice::new(seed);
        let (_, mut io) = world.controller(ALICE);
        for value in 1..=WRITES {
            let size = 1 + dice.below(2) * 20_000;
            let put = calls::put_value(1, b"k", vec![value; size], None);
            world.start(io, put.clone());
            if dice.chance(2) {
                world.run();
                continue;
            }
            world.target.backend().is_held = dice.chance(2);
            let late = abandon(&mut world, io, &mut dice);
            let old = world.links[io].id;
            (_, io) = world.controller(ALICE);
            let is_early = dice.chance(2);
            if is_early {
                world.target.receive(old, &late, world.now_us);
            }
            let fence = world.start(io, calls::fence());
            if dice.chance(2) {
                world.run();
            }
            world.target.backend().is_held = false;
            world.run();
            assert!(world.links[io].replies[&fence].status.is_ok());
            let rows = world.call(io, calls::versions(1, &key, 0, 1 << 20)).data;
            let rows = layout::versions_of(&rows).map_or(0, |it| it.0.len());
            if rows < usize::from(value) {
                repeated += 1;
                assert!(world.call(io, put).status.is_ok());
            }
            if !is_early {
                world.target.receive(old, &late, world.now_us);
                world.run();
            }
        }
        assert_eq!(
            world.target.backend().puts[&b"k"[..]],
            u32::from(WRITES),
            "seed {seed}"
        );
    }
    assert!(
        (50..320).contains(&repeated),
        "{repeated} writes were repeated, not all, not none"
    );
}
