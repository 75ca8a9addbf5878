// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client against a target that does wrong.

use erb_nvme::backend::Condition;
use erb_nvme::client::{CallId, Connection, Ended, Event, NotTaken, Reply, calls};
use erb_nvme::command::Cqe;
use erb_nvme::pdu::{self, Digests, Fatal, Kind, Transfer, flag};
use erb_nvme::status::Status;

use crate::dice::Dice;
use crate::world::{ALICE, settings};

const PLAIN: Digests = Digests {
    header: false,
    data: false,
};

fn client(digests: Digests) -> Connection {
    let mut wanted = settings(ALICE, 1, 1);
    wanted.digests = digests;
    wanted.in_capsule_bytes = 100;
    Connection::new(wanted, Box::new(Dice::new(1)), 0)
}

fn response(id: u16, status: Status, result: u64, digests: Digests) -> Vec<u8> {
    let cqe = Cqe {
        result,
        head: 1,
        queue: 1,
        id,
        status,
    };
    pdu::response(&cqe.bytes(), digests)
}

/// A client whose queue is up. Its calls have the ids 1, 2 and so on.
fn up(digests: Digests) -> Connection {
    let mut client = client(digests);
    client.receive(&pdu::ic(Kind::IcResp, 0, digests, 131_072), 0);
    client.receive(&response(0, Status::OK, 1, digests), 0);
    assert!(client.is_up());
    assert!(matches!(client.event(), Some(Event::Up)));
    drain(&mut client);
    client
}

/// Takes all output.
fn drain(client: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !client.output().is_empty() {
        bytes.extend_from_slice(client.output());
        let count = client.output().len();
        client.sent(count);
    }
    bytes
}

fn data(transfer: Transfer, bytes: &[u8], flags: u8, digests: Digests) -> Vec<u8> {
    let transfer = Transfer {
        length: u32::try_from(bytes.len()).expect("small"),
        ..transfer
    };
    let mut pdu = pdu::transfer(Kind::C2hData, flags, digests, transfer, 4);
    pdu.extend_from_slice(bytes);
    if digests.data {
        pdu.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    }
    pdu
}

fn at(command: u16, offset: u32) -> Transfer {
    Transfer {
        command,
        tag: 0,
        offset,
        length: 0,
    }
}

/// How the connection ended, and which calls were lost.
fn end(client: &mut Connection) -> (Option<Ended>, Vec<CallId>) {
    let (mut ended, mut lost) = (None, Vec::new());
    while let Some(event) = client.event() {
        match event {
            Event::Ended(why) => ended = Some(why),
            Event::Lost(id) => lost.push(id),
            _ => {}
        }
    }
    (ended, lost)
}

fn answer(client: &mut Connection) -> Reply {
    match client.event() {
        Some(Event::Done(_, reply)) => reply,
        event => panic!("{event:?}"),
    }
}

#[test]
fn a_first_answer_that_is_wrong_ends_the_connection() {
    let good = pdu::ic(Kind::IcResp, 0, PLAIN, 131_072);
    let changed = |at: usize, bytes: &[u8]| {
        let mut pdu = good.clone();
        pdu[at..at + bytes.len()].copy_from_slice(bytes);
        pdu
    };
    for (wrong, fatal) in [
        (changed(8, &[1]), Fatal::Unsupported(8)),
        (changed(10, &[1]), Fatal::Unsupported(10)),
        (changed(11, &[1]), Fatal::Header(11)),
        (changed(12, &4095_u32.to_le_bytes()), Fatal::Header(12)),
        (changed(12, &4097_u32.to_le_bytes()), Fatal::Header(12)),
        (changed(0, &[0]), Fatal::Header(0)),
        ([&good[..], &good[..]].concat(), Fatal::Sequence),
        (response(0, Status::OK, 0, PLAIN), Fatal::Sequence),
    ] {
        let mut client = client(PLAIN);
        client.receive(&wrong, 0);
        assert_eq!(end(&mut client).0, Some(Ended::Wrong(fatal)));
        let said = drain(&mut client);
        assert!(said.len() > 128 && said.contains(&(Kind::H2cTerm as u8)));
    }
}

/// The target asks for so many bytes.
fn r2t(length: u32, from: Transfer) -> Vec<u8> {
    pdu::transfer(Kind::R2t, 0, PLAIN, Transfer { length, ..from }, 4)
}

#[test]
fn data_and_answers_that_nobody_asked_for_end_the_connection() {
    type Wrong = fn() -> Vec<u8>;
    let all: [(Wrong, Fatal); 9] = [
        (|| data(at(9, 0), &[1; 10], 4, PLAIN), Fatal::Header(8)),
        (|| data(at(1, 0), &[1; 101], 4, PLAIN), Fatal::OutOfRange),
        (|| data(at(1, 1), &[1; 10], 4, PLAIN), Fatal::OutOfRange),
        (|| data(at(2, 0), &[1; 10], 4, PLAIN), Fatal::OutOfRange),
        (
            || data(at(1, 0), &[1; 10], flag::SUCCESS, PLAIN),
            Fatal::Header(1),
        ),
        (|| response(9, Status::OK, 0, PLAIN), Fatal::Header(20)),
        (|| r2t(201, at(2, 0)), Fatal::OutOfRange),
        (|| r2t(10, at(2, 10)), Fatal::OutOfRange),
        (|| r2t(10, at(1, 0)), Fatal::OutOfRange),
    ];
    for (wrong, fatal) in all {
        let mut client = up(PLAIN);
        let first = client
            .call(calls::retrieve(1, b"k", 100), 0)
            .expect("taken");
        let store = calls::store(1, b"k", vec![1; 200], Condition::Any);
        let second = client.call(store, 0).expect("taken");
        client.receive(&wrong(), 0);
        let (ended, mut lost) = end(&mut client);
        lost.sort();
        assert_eq!(ended, Some(Ended::Wrong(fatal)));
        assert_eq!(lost, [first, second], "nobody knows whether they happened");
        let late = client.call(calls::exist(1, b"k"), 0);
        assert_eq!(late, Err(NotTaken::NotUp));
    }
}

#[test]
fn an_r2t_gets_its_part_of_the_data_once() {
    let mut client = up(PLAIN);
    let store = calls::store(1, b"k", (0..200).collect(), Condition::Any);
    client.call(store, 0).expect("taken");
    drain(&mut client);
    for offset in [0, 100] {
        let ask = Transfer {
            length: 100,
            tag: 5,
            ..at(1, offset)
        };
        client.receive(&pdu::transfer(Kind::R2t, 0, PLAIN, ask, 4), 0);
        let said = drain(&mut client);
        assert_eq!((said[0], said[1]), (Kind::H2cData as u8, flag::LAST));
        assert_eq!(Transfer::of(&said), ask);
        assert_eq!(u32::from(said[24]), offset);
    }
    let again = Transfer {
        length: 100,
        tag: 5,
        ..at(1, 100)
    };
    client.receive(&pdu::transfer(Kind::R2t, 0, PLAIN, again, 4), 0);
    assert_eq!(end(&mut client).0, Some(Ended::Wrong(Fatal::OutOfRange)));
}

#[test]
fn success_without_a_response_is_understood_of_other_targets() {
    let mut client = up(PLAIN);
    client
        .call(calls::retrieve(1, b"k", 100), 0)
        .expect("taken");
    client.receive(&data(at(1, 0), &[5; 60], 0, PLAIN), 0);
    client.receive(
        &data(at(1, 60), &[6; 40], flag::LAST | flag::SUCCESS, PLAIN),
        0,
    );
    let reply = answer(&mut client);
    assert_eq!((reply.status, reply.result), (Status::OK, 0));
    assert_eq!(reply.data, [[5; 60].to_vec(), [6; 40].to_vec()].concat());
}

#[test]
fn a_wrong_data_digest_fails_its_call_and_a_wrong_header_digest_the_connection() {
    let both = Digests {
        header: true,
        data: true,
    };
    let mut client = up(both);
    client
        .call(calls::retrieve(1, b"k", 100), 0)
        .expect("taken");
    client
        .call(calls::retrieve(1, b"k", 100), 0)
        .expect("taken");
    let mut pdu = data(at(1, 0), &[5; 60], flag::LAST, both);
    pdu[40] ^= 1;
    client.receive(&pdu, 0);
    client.receive(&response(1, Status::OK, 60, both), 0);
    let reply = answer(&mut client);
    assert_eq!((reply.status, reply.data.len()), (Status::TRANSPORT, 0));
    let mut wrong = response(2, Status::OK, 60, both);
    wrong[9] ^= 1;
    client.receive(&wrong, 0);
    assert_eq!(end(&mut client).0, Some(Ended::Wrong(Fatal::HeaderDigest)));
}

#[test]
fn a_target_that_says_nothing_is_left_after_a_while() {
    let mut client = up(PLAIN);
    let id = client.call(calls::exist(1, b"k"), 0).expect("taken");
    client.tick(29_000_000);
    assert!(client.is_up());
    client.tick(30_000_000);
    assert_eq!(end(&mut client), (Some(Ended::Slow), vec![id]));
    let mut silent = self::client(PLAIN);
    silent.tick(30_000_000);
    assert_eq!(end(&mut silent).0, Some(Ended::Slow));
}

#[test]
fn a_target_that_gives_up_is_heard() {
    let mut client = up(PLAIN);
    client.receive(&pdu::term(Kind::C2hTerm, Fatal::TooMuch, &[0; 72]), 0);
    assert_eq!(end(&mut client).0, Some(Ended::Peer(5)));
}
