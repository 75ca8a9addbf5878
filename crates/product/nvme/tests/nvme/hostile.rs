// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PDUs that are wrong.

use erb_nvme::backend::Condition;
use erb_nvme::client::calls;
use erb_nvme::pdu::{self, Digests, Fatal, Kind, Transfer, flag};
use erb_nvme::status::Status;
use erb_nvme::target::{ANY_CONTROLLER, Ended};

use crate::raw::{Raw, connect};
use crate::world::{ALICE, World};

const BOTH: Digests = Digests {
    header: true,
    data: true,
};

/// The target ends the connection, says why, and holds nothing of it.
fn assert_ended(world: &mut World, raw: &mut Raw, fatal: Fatal) {
    let pdus = raw.pdus(world);
    assert_eq!(raw.ended, Some(Ended::Wrong(fatal)));
    let term = pdus.last().expect("a TermReq");
    assert_eq!(term[0], Kind::C2hTerm as u8);
    assert_eq!(u16::from_le_bytes([term[8], term[9]]), fatal.numbers().0);
    assert!(term.len() <= 24 + 128);
    world.target.close(raw.id, world.now_us);
    let counts = world.target.counts();
    assert_eq!((counts.reserved_bytes, counts.commands), (0, 0));
}

/// Trap 1.
#[test]
fn a_first_pdu_that_is_wrong_ends_the_connection() {
    let request = pdu::ic(Kind::IcReq, 0, Digests::default(), 0);
    let changed = |at: usize, bytes: &[u8]| {
        let mut request = request.clone();
        request[at..at + bytes.len()].copy_from_slice(bytes);
        request
    };
    for (wrong, fatal) in [
        (changed(2, &[127]), Fatal::Header(2)),
        (changed(4, &[0xff; 4]), Fatal::Header(4)),
        (changed(0, &[8]), Fatal::Header(0)),
        (changed(0, &[1]), Fatal::Header(0)),
        (changed(8, &[1]), Fatal::Unsupported(8)),
        (changed(10, &[32]), Fatal::Header(10)),
        (changed(11, &[4]), Fatal::Unsupported(11)),
        ([&request[..], &request[..]].concat(), Fatal::Sequence),
        (
            pdu::command(&[0; 64], Digests::default(), 0, 4),
            Fatal::Sequence,
        ),
    ] {
        let mut world = World::usual();
        let mut raw = Raw::silent(&mut world);
        raw.send(&mut world, &wrong);
        assert_ended(&mut world, &mut raw, fatal);
    }
}

/// Trap 2.
#[test]
fn four_gigabytes_before_connect_are_refused_without_room_for_them() {
    let mut world = World::usual();
    let mut raw = Raw::agreed(&mut world, Digests::default());
    let mut call = connect(ALICE, 0, ANY_CONTROLLER);
    call.data.clear();
    let (mut pdu, _) = raw.capsule(&call, true);
    pdu[8 + 32..8 + 36].copy_from_slice(&[0xff; 4]);
    pdu[8 + 39] = 0x5a;
    raw.send(&mut world, &pdu);
    let responses = raw.responses(&mut world);
    assert_eq!(responses[0].status, Status::DATA_LENGTH);
    assert_eq!(world.target.counts().commands, 0);

    // Once connected, no more than 1 MiB is asked for.
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    let (mut pdu, _) = io.capsule(&calls::batch(1, &[]), true);
    pdu[8 + 32..8 + 36].copy_from_slice(&[0xff; 4]);
    pdu[8 + 40..8 + 44].copy_from_slice(&[0xff; 4]);
    pdu[8 + 39] = 0x5a;
    io.send(&mut world, &pdu);
    assert_eq!(io.responses(&mut world)[0].status, Status::INVALID_FIELD);
    assert_eq!(world.target.counts().reserved_bytes, 0);
}

#[test]
fn a_pdu_longer_than_its_type_allows_ends_the_connection() {
    for (bytes, fatal) in [
        (8193, Fatal::TooMuch),
        (u32::MAX as usize - 72, Fatal::TooMuch),
    ] {
        let mut world = World::usual();
        let (_, mut io) = Raw::controller(&mut world, ALICE);
        let pdu = pdu::command(&[0; 64], Digests::default(), bytes, 4);
        io.send(&mut world, &pdu);
        assert_ended(&mut world, &mut io, fatal);
    }
}

fn store(bytes: usize) -> erb_nvme::client::Call {
    calls::store(1, b"k", vec![7; bytes], Condition::Any)
}

/// What is sent, where data for two transfers was asked for.
type Wrong = fn(&Raw, Transfer, Transfer) -> Vec<Vec<u8>>;

const NOT_ASKED_FOR: [(&str, Wrong, Fatal); 8] = [
    (
        "another command's tag",
        |raw, one, two| {
            let mixed = Transfer {
                tag: two.tag,
                ..one
            };
            vec![raw.data(mixed, &[7; 100], true)]
        },
        Fatal::Header(10),
    ),
    (
        "overlapping",
        |raw, one, _| {
            let again = Transfer { offset: 40, ..one };
            vec![
                raw.data(one, &[7; 50], false),
                raw.data(again, &[7; 60], true),
            ]
        },
        Fatal::OutOfRange,
    ),
    (
        "past the end",
        |raw, one, _| vec![raw.data(one, &[7; 101], true)],
        Fatal::OutOfRange,
    ),
    (
        "a hole",
        |raw, one, _| vec![raw.data(Transfer { offset: 1, ..one }, &[7; 99], true)],
        Fatal::OutOfRange,
    ),
    (
        "a short last one",
        |raw, one, _| vec![raw.data(one, &[7; 50], true)],
        Fatal::Header(1),
    ),
    (
        "no last one",
        |raw, one, _| vec![raw.data(one, &[7; 100], false)],
        Fatal::Header(1),
    ),
    (
        "two last ones",
        |raw, one, _| {
            vec![
                raw.data(one, &[7; 100], true),
                raw.data(one, &[7; 100], true),
            ]
        },
        Fatal::Header(8),
    ),
    (
        "a command that there is not",
        |raw, one, _| {
            vec![raw.data(
                Transfer {
                    command: 999,
                    ..one
                },
                &[7; 100],
                true,
            )]
        },
        Fatal::Header(8),
    ),
];

/// Trap 3.
#[test]
fn data_that_was_not_asked_for_ends_the_connection() {
    for (what, wrong, fatal) in NOT_ASKED_FOR {
        let mut world = World::usual();
        let (_, mut io) = Raw::controller(&mut world, ALICE);
        let (_, one) = io.asked(&mut world, &store(100));
        let (_, two) = io.asked(&mut world, &store(100));
        assert_ne!(one.tag, two.tag);
        for pdu in wrong(&io, one, two) {
            io.send(&mut world, &pdu);
        }
        assert!(
            io.ended.is_some() || !io.pdus(&mut world).is_empty(),
            "{what}"
        );
        assert_eq!(io.ended, Some(Ended::Wrong(fatal)), "{what}");
    }
}

/// Trap 3.
#[test]
fn data_after_completion_ends_the_connection() {
    let mut world = World::usual();
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    let (_, one) = io.asked(&mut world, &store(100));
    let pdu = io.data(one, &[7; 100], true);
    io.send(&mut world, &pdu);
    assert!(io.responses(&mut world)[0].status.is_ok());
    let late = io.data(one, &[8; 100], true);
    io.send(&mut world, &late);
    assert_ended(&mut world, &mut io, Fatal::Header(8));
    assert_eq!(world.target.backend().value(1, b"k"), Some(&[7; 100][..]));
}

/// Trap 4.
#[test]
fn an_id_in_use_is_refused_and_its_first_command_goes_on() {
    let mut world = World::usual();
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    let (id, transfer) = io.asked(&mut world, &store(100));
    let (mut pdu, _) = io.capsule(&store(50), false);
    pdu[10..12].copy_from_slice(&id.to_le_bytes());
    io.send(&mut world, &pdu);
    let conflict = io.responses(&mut world);
    assert_eq!(
        (conflict[0].id, conflict[0].status),
        (id, Status::ID_CONFLICT)
    );
    let data = io.data(transfer, &[7; 100], true);
    io.send(&mut world, &data);
    let done = io.responses(&mut world);
    assert_eq!((done[0].id, done[0].status), (id, Status::OK));
    assert_eq!(world.target.backend().value(1, b"k"), Some(&[7; 100][..]));
}

fn queue_with_digests(world: &mut World) -> Raw {
    let (_, id) = Raw::queue(world, ALICE, 0, ANY_CONTROLLER);
    let mut io = Raw::agreed(world, BOTH);
    assert!(io.call(world, connect(ALICE, 1, id)).status.is_ok());
    io
}

/// Trap 6.
#[test]
fn a_wrong_header_digest_in_a_pipeline_ends_the_connection_behind_what_was_right() {
    let mut world = World::usual();
    let mut io = queue_with_digests(&mut world);
    let (mut one, first) = io.capsule(&store(10), false);
    let (mut two, _) = io.capsule(&calls::delete(1, b"k"), false);
    two[30] ^= 1;
    one.append(&mut two);
    io.send(&mut world, &one);
    let pdus = io.pdus(&mut world);
    assert_eq!(io.ended, Some(Ended::Wrong(Fatal::HeaderDigest)));
    // The first command was taken; its completion came too late to be told.
    assert!(pdus.iter().any(|pdu| pdu[0] == Kind::C2hTerm as u8));
    assert_eq!(world.target.backend().value(1, b"k"), Some(&[7; 10][..]));
    assert_eq!(first, 2);
}

/// Trap 6.
#[test]
fn a_wrong_data_digest_on_a_store_stores_nothing_and_may_be_repeated() {
    let mut world = World::usual();
    let mut io = queue_with_digests(&mut world);
    let (mut pdu, _) = io.capsule(&store(10), false);
    let end = pdu.len() - 6;
    pdu[end] ^= 1;
    io.send(&mut world, &pdu);
    let refused = io.responses(&mut world)[0];
    assert_eq!(
        (refused.status, refused.status.may_repeat()),
        (Status::TRANSPORT, true)
    );
    let (_, transfer) = io.asked(&mut world, &store(9000));
    let (first, second) = ([7; 5000], [7; 4000]);
    let mut pdu = io.data(transfer, &first, false);
    pdu[100] ^= 1;
    io.send(&mut world, &pdu);
    let rest = Transfer {
        offset: 5000,
        ..transfer
    };
    let pdu = io.data(rest, &second, true);
    io.send(&mut world, &pdu);
    assert_eq!(io.responses(&mut world)[0].status, Status::TRANSPORT);
    assert_eq!(world.target.backend().done, 0);
    assert!(io.call(&mut world, store(10)).status.is_ok());
}

/// Trap 7: with SUCCESS the host would invent the result 0, and Retrieve's result is the value's size.
#[test]
fn data_to_the_host_never_says_success_and_a_response_with_the_size_follows() {
    let mut world = World::usual();
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    let value = vec![7; 300_000];
    let (_, transfer) = io.asked(&mut world, &store(value.len()));
    let mut at = 0;
    for part in value.chunks(131_072) {
        let is_last = at + part.len() == value.len();
        let offset = u32::try_from(at).expect("small");
        let pdu = io.data(Transfer { offset, ..transfer }, part, is_last);
        io.send(&mut world, &pdu);
        at += part.len();
    }
    assert!(io.responses(&mut world)[0].status.is_ok());
    let id = io.start(&mut world, &calls::retrieve(1, b"k", 1 << 20), false);
    let pdus = io.pdus(&mut world);
    let data: Vec<_> = pdus
        .iter()
        .filter(|pdu| pdu[0] == Kind::C2hData as u8)
        .collect();
    assert_eq!(data.len(), 3);
    assert!(data.iter().all(|pdu| pdu[1] & flag::SUCCESS == 0));
    let last: Vec<bool> = data.iter().map(|pdu| pdu[1] & flag::LAST != 0).collect();
    assert_eq!(last, [false, false, true]);
    let response = erb_nvme::command::Cqe::of(&pdus.last().expect("a response")[8..]);
    assert_eq!((response.id, response.result), (id, 300_000));
}

#[test]
fn flags_and_pointers_that_nobody_understands_are_refused() {
    let mut world = World::usual();
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    let mut send = |at: usize, byte: u8, call| {
        let (mut pdu, _) = io.capsule(&call, false);
        pdu[8 + at] = byte;
        io.send(&mut world, &pdu);
        io.responses(&mut world)[0].status
    };
    assert_eq!(send(1, 0x00, store(10)), Status::INVALID_FIELD);
    assert_eq!(send(1, 0x41, store(10)), Status::INVALID_FIELD);
    assert_eq!(send(39, 0x00, store(10)), Status::SGL_TYPE);
    assert_eq!(send(39, 0x5a, store(10)), Status::DATA_LENGTH);
    assert_eq!(send(24, 0x01, store(10)), Status::SGL_OFFSET);
    assert_eq!(
        send(39, 0x01, calls::retrieve(1, b"k", 10)),
        Status::SGL_TYPE
    );
    assert_eq!(send(0, 0x7e, calls::exist(1, b"k")), Status::INVALID_OPCODE);
    assert_eq!(send(0, 0x05, calls::exist(1, b"k")), Status::INVALID_OPCODE);
    assert_eq!(world.target.backend().done, 0);
}

#[test]
fn more_commands_than_a_queue_has_end_the_connection() {
    let mut world = World::usual();
    world.target.backend().is_held = true;
    let (_, mut io) = Raw::controller(&mut world, ALICE);
    for _ in 0..128 {
        io.start(&mut world, &calls::exist(1, b"k"), false);
    }
    assert_eq!((io.ended, world.target.counts().commands), (None, 128));
    io.start(&mut world, &calls::exist(1, b"k"), false);
    assert_eq!(io.ended, None, "its last words are not read yet");
    assert_ended(&mut world, &mut io, Fatal::TooMuch);
    assert_eq!(world.target.counts().requests, 128);
    world.target.backend().is_held = false;
    world.target.turn(world.now_us);
    assert_eq!(world.target.counts().requests, 0);
}
