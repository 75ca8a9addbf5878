// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that are nearly right: nothing panics, and what is held stays bounded. `ERB_LONG=1` sends 10^9 bytes.

use erb_nvme::backend::{Change, Condition, Key, Selector, Write};
use erb_nvme::client::{Call, Connection, Event, calls};
use erb_nvme::layout::ListingRequest;
use erb_nvme::limits::Limits;
use erb_nvme::pdu::Digests;
use erb_nvme::target::{ANY_CONTROLLER, Counts};

use crate::dice::Dice;
use crate::raw::Raw;
use crate::world::{ALICE, World, config, settings};

const ORDINARY_BYTES: u64 = 120_000_000;
const LONG_BYTES: u64 = 1_000_000_000;
/// Controllers that one target sees before the next begins.
const LIVES: usize = 100;

/// Bytes to send to each end.
fn budget() -> u64 {
    erb_steady::scaled(ORDINARY_BYTES, LONG_BYTES) / 2
}

/// One of every command of an I/O queue.
fn io_calls() -> Vec<Call> {
    let key = Key::Plain(b"key".to_vec());
    let listing = ListingRequest {
        moment: 0,
        changed_since: 0,
        has_deleted: false,
        prefix: b"k".to_vec(),
    };
    let batch = [Write {
        key: key.clone(),
        change: Change::Put(vec![1; 20]),
        condition: Condition::Any,
    }];
    vec![
        calls::store(1, b"key", vec![7; 300], Condition::Any),
        calls::store(1, b"large", vec![7; 200_000], Condition::Any),
        calls::retrieve(1, b"large", 1 << 20),
        calls::list(1, b"", 4096),
        calls::exist(1, b"key"),
        calls::delete(1, b"key"),
        calls::put_value(1, &[b'l'; 40], vec![7; 300], None),
        calls::get(1, &key, Selector::Back(1), true, 4096),
        calls::versions(1, &key, 0, 4096),
        calls::keys(1, b"k", 0, 4096),
        calls::open_listing(1, &listing),
        calls::listed_keys(1, 1, 0, 4096),
        calls::batch(1, &batch),
        calls::restore(1, &key, Selector::Back(1)),
        calls::snapshot(1, 10),
        calls::fence(),
    ]
}

/// One of every command of an admin queue.
fn admin_calls() -> Vec<Call> {
    let mut all = vec![
        calls::keep_alive(),
        calls::event(),
        calls::set_feature(7, 0, 3),
        calls::set_feature(0xb, 0, 0x101),
        calls::get_feature(0xf, 0),
        calls::retention(1),
        calls::property_get(0),
        calls::auth_receive(4096),
        calls::auth_send(vec![0; 80]),
    ];
    all.extend([0, 1, 2, 3, 5, 7, 8, 0x1c].map(|page| calls::identify(page, 1, 1)));
    all.extend([0, 1, 2, 3, 4, 5, 0xc0, 0xc1].map(|log| calls::log(log, 1, 1, 0, 4096)));
    all
}

/// Changes some bytes, mostly of the header.
fn mutate(dice: &mut Dice, pdu: &mut Vec<u8>) {
    for _ in 0..dice.below(4) {
        let most = if dice.chance(4) {
            pdu.len()
        } else {
            pdu.len().min(96)
        };
        let at = dice.below(most);
        match dice.below(4) {
            0 => pdu[at] ^= 1 << dice.below(8),
            1 => pdu[at] = 0xff,
            2 => pdu[at] = 0,
            _ => pdu[at] = dice.bytes(1)[0],
        }
    }
    match dice.below(40) {
        0 => pdu.truncate(1 + dice.below(pdu.len())),
        1 => {
            let again = pdu.clone();
            pdu.extend_from_slice(&again);
        }
        2 => {
            let count = dice.below(64);
            pdu.extend(dice.bytes(count));
        }
        _ => {}
    }
}

fn assert_bounded(counts: &Counts, limits: &Limits) {
    assert!(counts.reserved_bytes <= limits.pool_bytes, "{counts:?}");
    assert!(
        counts.commands <= counts.connections * limits.commands,
        "{counts:?}"
    );
    assert!(
        counts.listings <= counts.controllers * limits.listings,
        "{counts:?}"
    );
    // What is not sent: one queue's room, and its responses.
    let most = counts.connections * (limits.queue_bytes + limits.unsent_bytes);
    assert!(counts.unsent_bytes <= most, "{counts:?}");
}

/// One controller, one of whose queues gets nearly right PDUs. Returns the bytes that it got.
fn live(world: &mut World, dice: &mut Dice, limits: &Limits) -> u64 {
    let (admin, io) = Raw::controller(world, ALICE);
    let (mut raw, mut other, all) = if dice.chance(3) {
        (admin, io, admin_calls())
    } else {
        (io, admin, io_calls())
    };
    let mut bytes = 0;
    for _ in 0..100 {
        let call = &all[dice.below(all.len())];
        let is_asked = call.data.len() > 8192 || dice.chance(4);
        let (mut pdu, id) = raw.capsule(call, is_asked);
        if dice.chance(6) && id > 1 {
            // Data for a transfer that is open, or was.
            let tag = u16::try_from(dice.below(8)).expect("small");
            let transfer = erb_nvme::pdu::Transfer {
                command: id - 1 - u16::try_from(dice.below(usize::from(id.min(4)))).expect("small"),
                tag,
                offset: 0,
                length: 0,
            };
            let count = [300, 131_072, 68_928][dice.below(3)];
            pdu = raw.data(transfer, &vec![7; count], dice.chance(2));
        }
        if !dice.chance(3) {
            mutate(dice, &mut pdu);
        }
        if world.target.wants_bytes(raw.id, world.now_us) {
            bytes += world.target.receive(raw.id, &pdu, world.now_us) as u64;
        }
        if dice.chance(3) {
            raw.turn(world);
        }
        if dice.chance(2) {
            raw.pdus(world);
        }
        if dice.chance(20) {
            world.now_us += 1_000_000;
        }
        assert_bounded(&world.target.counts(), limits);
        if raw.ended.is_some() {
            break;
        }
    }
    other.turn(world);
    for id in [raw.id, other.id] {
        world.target.close(id, world.now_us);
    }
    bytes
}

#[test]
fn a_target_that_gets_nearly_right_bytes_neither_panics_nor_grows() {
    let (mut dice, mut bytes, mut ends) = (Dice::new(0xf022), 0, 0);
    let limits = Limits::default();
    while bytes < budget() {
        let mut world = World::new(config(limits), dice.roll());
        world.target.backend().dice = Some(Dice::new(dice.roll()));
        for _ in 0..LIVES {
            bytes += live(&mut world, &mut dice, &limits);
            world.target.turn(world.now_us);
            world.target.turn(world.now_us);
            assert_eq!(world.target.counts(), Counts::default(), "nothing is left");
            ends += 1;
        }
    }
    println!("{bytes} bytes, {ends} controllers");
}

#[test]
fn a_target_that_gets_any_bytes_at_all_neither_panics_nor_grows() {
    let mut dice = Dice::new(0xf023);
    let mut world = World::usual();
    for _ in 0..2000 {
        let id = world.target.open(true, world.now_us).expect("room");
        let count = dice.below(2000);
        let bytes = dice.bytes(count);
        assert_eq!(world.target.receive(id, &bytes, world.now_us), count);
        world.target.turn(world.now_us);
        world.target.close(id, world.now_us);
        assert_eq!(world.target.counts(), Counts::default());
    }
}

/// PDUs that a target said.
fn said(digests: Digests) -> Vec<Vec<u8>> {
    let mut world = World::usual();
    world.records = true;
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.digests = digests;
    let admin = world.connect(wanted.clone());
    wanted.queue = 1;
    wanted.controller = world.links[admin].client.controller();
    let io = world.connect(wanted);
    for call in io_calls() {
        world.start(io, call);
        world.run();
    }
    let record = world.links[io].record.take().expect("a record");
    let said = record.into_iter().filter(|(from_client, _)| !from_client);
    let mut bytes: Vec<u8> = said.flat_map(|(_, bytes)| bytes).collect();
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")) as usize;
        let rest = bytes.split_off(length);
        pdus.push(std::mem::replace(&mut bytes, rest));
    }
    pdus
}

/// One client that gets nearly right PDUs. Returns the bytes that it got.
fn listen(dice: &mut Dice, pdus: &[Vec<u8>], digests: Digests) -> u64 {
    let mut wanted = settings(ALICE, 1, 1);
    wanted.digests = digests;
    let random = Box::new(Dice::new(dice.roll()));
    let mut client = Connection::new(wanted, random, 0);
    let mut bytes = 0;
    client.receive(&pdus[0], 0);
    client.receive(&pdus[1], 0);
    assert!(client.is_up());
    let (all, mut most, mut open) = (io_calls(), 1 << 16, 0_i64);
    for _ in 0..60 {
        let call = all[dice.below(all.len())].clone();
        let moves = call.data.len() * 2 + call.room + 1024;
        if client.call(call, 0).is_ok() {
            most += moves;
            open += 1;
        }
        let mut pdu = pdus[2 + dice.below(pdus.len() - 2)].clone();
        if pdu[0] == 9 || pdu[0] == 7 || pdu[0] == 5 {
            // One of the commands that are under way.
            let at = if pdu[0] == 5 { 20 } else { 8 };
            pdu[at] = 1 + dice.bytes(1)[0] % 32;
            pdu[at + 1] = 0;
        }
        if dice.chance(2) {
            mutate(dice, &mut pdu);
        }
        client.receive(&pdu, 0);
        bytes += pdu.len() as u64;
        while let Some(event) = client.event() {
            if matches!(event, Event::Done(..) | Event::Lost(_)) {
                open -= 1;
            }
        }
        assert!(
            client.held_bytes() <= most,
            "{} above {most}",
            client.held_bytes()
        );
        if dice.chance(2) {
            let count = client.output().len();
            client.sent(count);
        }
    }
    client.close();
    while let Some(event) = client.event() {
        if matches!(event, Event::Done(..) | Event::Lost(_)) {
            open -= 1;
        }
    }
    assert_eq!(open, 0, "every call ends once");
    bytes
}

#[test]
fn a_client_that_gets_nearly_right_bytes_neither_panics_nor_grows() {
    let mut dice = Dice::new(0xf024);
    let plain = Digests::default();
    let both = Digests {
        header: true,
        data: true,
    };
    let conversations = [(plain, said(plain)), (both, said(both))];
    let mut bytes = 0;
    while bytes < budget() {
        let (digests, pdus) = &conversations[usize::from(dice.chance(4))];
        bytes += listen(&mut dice, pdus, *digests);
    }
    println!("{bytes} bytes");
}
