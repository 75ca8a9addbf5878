// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The standard's commands on keys, as a client sees them.

use erb_nvme::backend::{Condition, Key, Selector};
use erb_nvme::client::calls;
use erb_nvme::layout;
use erb_nvme::status::Status;
use proptest::prelude::*;

use crate::dice::Dice;
use crate::world::{ALICE, World, settings};
use erb_nvme::pdu::Digests;
use erb_nvme::target::ANY_CONTROLLER;

#[test]
fn what_is_stored_is_retrieved_and_then_deleted() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let value = b"a value".to_vec();
    let stored = world.call(io, calls::store(1, b"key", value.clone(), Condition::Any));
    assert_eq!((stored.status, stored.result), (Status::OK, 0));
    let found = world.call(io, calls::retrieve(1, b"key", 4096));
    assert_eq!(
        (found.status, found.result, found.data),
        (Status::OK, 7, value)
    );
    assert!(world.call(io, calls::exist(1, b"key")).status.is_ok());
    assert!(world.call(io, calls::delete(1, b"key")).status.is_ok());
    for call in [calls::exist(1, b"key"), calls::retrieve(1, b"key", 4096)] {
        assert_eq!(world.call(io, call).status, Status::ABSENT);
    }
}

#[test]
fn conditions_of_store_are_judged() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let store = |condition| calls::store(1, b"k", vec![1], condition);
    assert_eq!(
        world.call(io, store(Condition::Present)).status,
        Status::ABSENT
    );
    assert!(world.call(io, store(Condition::Absent)).status.is_ok());
    assert_eq!(
        world.call(io, store(Condition::Absent)).status,
        Status::PRESENT
    );
    assert!(world.call(io, store(Condition::Present)).status.is_ok());
    let mut both = store(Condition::Any);
    both.sqe = both.sqe.with_word(11, both.sqe.word(11) | 3 << 8);
    assert_eq!(world.call(io, both).status, Status::INVALID_FIELD);
}

/// Trap 8.
#[test]
fn values_of_no_byte_and_buffers_of_one_byte_work() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    assert!(
        world
            .call(io, calls::store(1, b"empty", Vec::new(), Condition::Any))
            .status
            .is_ok()
    );
    let found = world.call(io, calls::retrieve(1, b"empty", 100));
    assert_eq!(
        (found.status, found.result, found.data.len()),
        (Status::OK, 0, 0)
    );
    let large = vec![9; 1 << 20];
    assert!(
        world
            .call(io, calls::store(1, b"large", large, Condition::Any))
            .status
            .is_ok()
    );
    let found = world.call(io, calls::retrieve(1, b"large", 1));
    assert_eq!((found.result, found.data), (1 << 20, vec![9]));
    let found = world.call(io, calls::retrieve(1, b"large", 0));
    assert_eq!((found.result, found.data.len()), (1 << 20, 0));
}

/// Trap 74.
#[test]
fn the_largest_value_and_the_longest_key_fit_and_no_more() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let value = Dice::new(3).bytes(1 << 20);
    let put = calls::put_value(1, &[5; 16], value.clone(), None);
    assert!(world.call(io, put).status.is_ok());
    let found = world.call(
        io,
        calls::get(1, &Key::Plain(vec![5; 16]), Selector::Head, false, 1 << 20),
    );
    assert_eq!((found.result, found.data == value), (1 << 20, true));

    // Key and value are one command's data, which has 1 MiB at most.
    let key = vec![6; 1024];
    let value = Dice::new(4).bytes((1 << 20) - 2 - 1024);
    let version = world.call(io, calls::put_value(1, &key, value.clone(), Some(0)));
    assert!(version.status.is_ok() && version.result > 0);
    assert_eq!(world.target.backend().value(1, &key), Some(&value[..]));
    let too_long = calls::put_value(1, &[6; 1025], vec![1], None);
    assert_eq!(world.call(io, too_long).status, Status::INVALID_FIELD);
    let too_large = calls::put_value(1, &key, vec![0; 1 << 20], None);
    let now_us = world.now_us;
    assert!(world.links[io].client.call(too_large, now_us).is_err());
    let mut lies = calls::store(1, b"k", vec![1; 100], Condition::Any);
    lies.sqe = lies.sqe.with_word(10, (1 << 20) + 1);
    assert_eq!(world.call(io, lies).status, Status::VALUE_SIZE);
    assert_eq!(world.target.backend().versions(1, b"k"), 0);
}

/// Trap 5.
#[test]
fn sizes_of_fields_and_of_data_have_to_agree() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let mut store = calls::store(1, b"k", vec![1; 100], Condition::Any);
    store.sqe = store.sqe.with_word(10, 200);
    assert_eq!(world.call(io, store).status, Status::DATA_LENGTH);
    let mut retrieve = calls::retrieve(1, b"k", 100);
    retrieve.sqe = retrieve.sqe.with_word(10, 200);
    assert_eq!(world.call(io, retrieve).status, Status::DATA_LENGTH);
    assert_eq!(world.target.backend().done, 0);
}

#[test]
fn keys_of_no_byte_and_of_seventeen_are_refused() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    for (length, expected) in [(0, Status::KEY_SIZE), (17, Status::INVALID_FIELD)] {
        for mut call in [
            calls::store(1, b"k", vec![1], Condition::Any),
            calls::retrieve(1, b"k", 10),
            calls::delete(1, b"k"),
            calls::exist(1, b"k"),
        ] {
            call.sqe.0[44] = length;
            assert_eq!(world.call(io, call).status, expected);
        }
    }
    let everywhere = calls::delete(u32::MAX, b"k");
    assert_eq!(world.call(io, everywhere).status, Status::INVALID_FIELD);
    assert_eq!(
        world.call(io, calls::exist(2, b"k")).status,
        Status::INVALID_NAMESPACE
    );
}

/// All keys of a list, a page at a time. What `between` does happens between two pages, with the page's last key.
fn listed(
    world: &mut World,
    io: usize,
    room: usize,
    mut between: impl FnMut(&mut World, &[u8]),
) -> Vec<Vec<u8>> {
    let (mut keys, mut from) = (Vec::<Vec<u8>>::new(), Vec::new());
    loop {
        let page = world.call(io, calls::list(1, &from, room));
        assert!(page.status.is_ok());
        let mut page = layout::list_of(&page.data).expect("a list");
        if page.first() == Some(&from) {
            page.remove(0);
        }
        let Some(last) = page.last().cloned() else {
            return keys;
        };
        keys.append(&mut page);
        between(world, &last);
        from = last;
    }
}

/// Traps 13 and 76.
#[test]
fn a_list_goes_on_from_a_key_that_was_deleted_and_gives_each_key_once() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    for number in 0..100 {
        let key = format!("k{number}");
        world.call(io, calls::store(1, key.as_bytes(), vec![1], Condition::Any));
    }
    let mut more = 0;
    let keys = listed(&mut world, io, 64, |world, last| {
        let deleted = world.call(io, calls::delete(1, last));
        assert!(deleted.status.is_ok());
        for _ in 0..20 {
            more += 1;
            let key = format!("new{more}");
            world.call(io, calls::store(1, key.as_bytes(), vec![1], Condition::Any));
        }
    });
    let mut old: Vec<_> = keys.iter().filter(|key| key[0] == b'k').collect();
    assert_eq!(old.len(), 100);
    old.sort();
    old.dedup();
    assert_eq!(old.len(), 100, "no key twice");
    let mut all = keys.clone();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), keys.len(), "no new key twice");
}

#[test]
fn a_list_without_room_has_no_key() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    world.call(io, calls::store(1, b"key", vec![1], Condition::Any));
    for (room, keys) in [(4, 0), (11, 0), (12, 1)] {
        let page = world.call(io, calls::list(1, b"", room));
        let found = layout::list_of(&page.data).map(|keys| keys.len());
        assert_eq!(found, Some(keys), "{room} bytes");
    }
    assert!(world.call(io, calls::list(1, b"", 0)).status.is_ok());
}

#[test]
fn deletes_of_missing_keys_are_errors_only_where_the_host_wants_it() {
    let mut world = World::usual();
    let (admin, io) = world.controller(ALICE);
    assert!(world.call(io, calls::delete(1, b"none")).status.is_ok());
    assert!(
        world
            .call(admin, calls::set_feature(0x20, 1, 1))
            .status
            .is_ok()
    );
    assert_eq!(world.call(admin, calls::get_feature(0x20, 1)).result, 1);
    assert_eq!(
        world.call(io, calls::delete(1, b"nobody")).status,
        Status::ABSENT
    );
    let (_, other) = world.controller(ALICE);
    assert!(
        world
            .call(other, calls::delete(1, b"nobody"))
            .status
            .is_ok()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_split_of_bytes_any_digests_and_any_order_of_completions_give_the_same_answers(
        seed: u64,
        piece in 1..5000_usize,
        header: bool,
        data: bool,
        alignment in 0..32_u8,
        in_capsule in prop::sample::select(vec![0, 100, 8192]),
    ) {
        let mut world = World::usual();
        world.piece = piece;
        world.dice = Dice::new(seed);
        world.target.backend().dice = Some(Dice::new(seed ^ 3));
        let with = |queue, controller| {
            let mut settings = settings(ALICE, queue, controller);
            settings.digests = Digests { header, data };
            settings.alignment = alignment;
            settings.in_capsule_bytes = in_capsule;
            settings
        };
        let admin = world.connect(with(0, ANY_CONTROLLER));
        let id = world.links[admin].client.controller();
        let io = world.connect(with(1, id));
        let mut dice = Dice::new(seed ^ 5);
        let mut calls_under_way = Vec::new();
        for number in 0..12_u8 {
            let size = dice.below(20_000);
            let value = dice.bytes(size);
            let call = calls::store(1, &[number], value.clone(), Condition::Any);
            calls_under_way.push((world.start(io, call), number, value));
        }
        world.run();
        for (call, number, value) in calls_under_way {
            prop_assert!(world.links[io].replies[&call].status.is_ok());
            let room = dice.below(25_000);
            let found = world.call(io, calls::retrieve(1, &[number], room));
            prop_assert_eq!(found.result, value.len() as u64);
            prop_assert_eq!(&found.data[..], &value[..value.len().min(room)]);
        }
        let counts = world.target.counts();
        prop_assert_eq!((counts.reserved_bytes, counts.requests, counts.commands), (0, 0, 0));
    }
}
