// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that take all the room that they can get and give none of it back: how long another host waits for a read. Time
//! is virtual, so the bounds are those of the timers, and no machine is too slow for them.

use std::collections::BTreeSet;

use erb_nvme::backend::Condition;
use erb_nvme::client::{Call, calls};
use erb_nvme::limits::Limits;
use erb_nvme::pdu::{Digests, Kind, Transfer};
use erb_nvme::target::{ANY_CONTROLLER, ConnectionId, Role, property};

use crate::raw::{Raw, connect};
use crate::world::{ALICE, World, config, host};

const MIB: usize = 1 << 20;
const SECOND_US: u64 = 1_000_000;
/// So often something is done.
const STEP_US: u64 = 50_000;
/// The target looks at all of its connections so often.
const TICK_US: u64 = 100_000;
const FOR_US: u64 = 60 * SECOND_US;
/// Controllers of each such host, and commands that it sends to the I/O queue of each.
const CONTROLLERS: usize = 4;
const COMMANDS: usize = 8;
/// Room for so many commands of a mebibyte.
const POOL_BYTES: usize = 32 * MIB;

/// How a host sits on its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It reads no reply.
    ReadsNothing,
    /// It reads a byte each step.
    ReadsBytes,
    /// It reads one PDU a second.
    ReadsSlowly,
    /// It sends no data for its R2Ts.
    SendsNothing,
    /// It sends a byte each step.
    SendsBytes,
}

impl Way {
    fn call(self) -> Call {
        match self {
            Self::SendsNothing | Self::SendsBytes => {
                calls::store(1, b"other", vec![7; MIB], Condition::Any)
            }
            _ => calls::retrieve(1, b"k", MIB),
        }
    }

    /// For so long such a host has what others wait for.
    fn bound_us(self, limits: &Limits) -> u64 {
        match self {
            Self::ReadsSlowly | Self::SendsBytes => limits.stall_us,
            _ => limits.pressed_us,
        }
    }
}

/// A controller of a host that gives nothing back.
struct Sitting {
    nqn: String,
    way: Way,
    admin: Raw,
    io: Raw,
    asked: Option<Transfer>,
    sent: u32,
    moved_us: u64,
}

/// Admin queue and I/O queue of a host that need not say that it lives.
fn controller(world: &mut World, nqn: &str) -> (Raw, Raw) {
    let mut admin = Raw::agreed(world, Digests::default());
    let mut call = connect(nqn, 0, ANY_CONTROLLER);
    call.sqe = call.sqe.with_word(12, 0);
    let connected = admin.call(world, call);
    assert!(connected.status.is_ok(), "{connected:?}");
    let enable = calls::property_set(property::CC, 0x0046_0061);
    assert!(admin.call(world, enable).status.is_ok());
    let id = u16::try_from(connected.result & 0xffff).expect("16 bits");
    let (io, _) = Raw::queue(world, nqn, 1, id);
    (admin, io)
}

impl Sitting {
    fn begin(world: &mut World, nqn: &str, way: Way) -> Self {
        let (admin, mut io) = controller(world, nqn);
        let is_asked = matches!(way, Way::SendsNothing | Way::SendsBytes);
        let commands: Vec<u8> = (0..COMMANDS)
            .flat_map(|_| io.capsule(&way.call(), is_asked).0)
            .collect();
        io.send(world, &commands);
        Self {
            nqn: nqn.to_owned(),
            way,
            admin,
            io,
            asked: None,
            sent: 0,
            moved_us: world.now_us,
        }
    }

    fn step(&mut self, world: &mut World) {
        match self.way {
            Way::ReadsNothing | Way::SendsNothing => {}
            Way::ReadsBytes => self.takes(world, 1),
            Way::ReadsSlowly => {
                if world.now_us >= self.moved_us + SECOND_US {
                    self.moved_us = world.now_us;
                    // A header, or its data.
                    self.takes(world, usize::MAX);
                    self.takes(world, usize::MAX);
                }
            }
            Way::SendsBytes => self.sends(world),
        }
    }

    fn takes(&mut self, world: &mut World, most: usize) {
        let count = world.target.output(self.io.id).len().min(most);
        world.target.sent(self.io.id, count, world.now_us);
    }

    fn sends(&mut self, world: &mut World) {
        if self.asked.is_none() {
            let pdus = self.io.pdus(world);
            let r2t = pdus.iter().find(|pdu| pdu[0] == Kind::R2t as u8);
            self.asked = r2t.map(|pdu| Transfer::of(pdu));
        }
        if let Some(asked) = self.asked {
            let offset = self.sent;
            let pdu = self.io.data(Transfer { offset, ..asked }, &[7], false);
            self.io.send(world, &pdu);
            self.sent += 1;
        }
    }

    /// What the node has ended comes again.
    fn come_again(&mut self, world: &mut World, over: &BTreeSet<ConnectionId>) {
        if over.contains(&self.io.id) || over.contains(&self.admin.id) {
            let (admin, io) = (self.admin.id, self.io.id);
            world.target.close(io, world.now_us);
            world.target.close(admin, world.now_us);
            *self = Self::begin(world, &self.nqn, self.way);
        }
    }
}

/// A host that reads a value over and over: how long the slowest read took, and how many there were.
struct Reader {
    io: Raw,
    /// The read under way.
    begun_us: Option<u64>,
    slowest_us: u64,
    reads: u32,
}

impl Reader {
    fn step(&mut self, world: &mut World) {
        let now_us = world.now_us;
        if self.begun_us.is_none() {
            let read = calls::retrieve(1, b"k", MIB);
            self.io.start(world, &read, false);
            self.begun_us = Some(now_us);
        }
        let came = self.io.responses(world);
        assert_eq!(self.io.ended, None, "the node has ended one that reads");
        let begun_us = self.begun_us.expect("one is under way");
        self.slowest_us = self.slowest_us.max(now_us - begun_us);
        if let Some(response) = came.first() {
            assert!(response.status.is_ok(), "{response:?}");
            self.begun_us = None;
            self.reads += 1;
        }
    }
}

/// A minute of a reader beside so many such hosts.
fn beside(hosts: usize, way: Way, limits: Limits) -> Reader {
    let names: Vec<String> = (0..hosts)
        .map(|number| format!("nqn.2026-11.org.erb:sitting-{number}"))
        .collect();
    let mut config = config(limits);
    let sitting = (10..).zip(&names);
    config
        .hosts
        .extend(sitting.map(|(number, nqn)| host(nqn, number, Role::Writer)));
    let mut world = World::new(config, 11);
    let (_, writer) = world.controller(ALICE);
    let value = calls::store(1, b"k", vec![7; MIB], Condition::Any);
    assert!(world.call(writer, value).status.is_ok());
    let (_, io) = controller(&mut world, ALICE);
    let mut reader = Reader {
        io,
        begun_us: None,
        slowest_us: 0,
        reads: 0,
    };
    let mut sitting: Vec<Sitting> = names
        .iter()
        .flat_map(|nqn| std::iter::repeat_n(nqn, CONTROLLERS))
        .map(|nqn| Sitting::begin(&mut world, nqn, way))
        .collect();
    let until_us = world.now_us + FOR_US;
    while world.now_us < until_us {
        world.now_us += STEP_US;
        world.target.turn(world.now_us);
        let over = world.target.over(world.now_us);
        let over: BTreeSet<ConnectionId> = over.into_iter().map(|(id, _)| id).collect();
        for one in &mut sitting {
            one.come_again(&mut world, &over);
            one.step(&mut world);
        }
        reader.step(&mut world);
        assert!(world.target.counts().reserved_bytes <= POOL_BYTES);
    }
    reader
}

const WAYS: [Way; 5] = [
    Way::ReadsNothing,
    Way::ReadsBytes,
    Way::ReadsSlowly,
    Way::SendsNothing,
    Way::SendsBytes,
];

fn limits() -> Limits {
    Limits {
        pool_bytes: POOL_BYTES,
        ..Limits::default()
    }
}

#[test]
fn eight_hosts_that_give_no_room_back_leave_another_one_room_at_once() {
    for way in WAYS {
        let reader = beside(8, way, limits());
        println!("{way:?}: {} reads, {} us", reader.reads, reader.slowest_us);
        // It may have to wait until the target looks at it again.
        assert!(reader.slowest_us <= TICK_US, "{way:?}");
    }
}

#[test]
fn where_such_hosts_have_all_the_room_a_timer_gives_another_one_some() {
    for way in WAYS {
        let limits = limits();
        let bound_us = way.bound_us(&limits) + 2 * TICK_US + STEP_US;
        let reader = beside(40, way, limits);
        println!("{way:?}: {} reads, {} us", reader.reads, reader.slowest_us);
        assert!(reader.slowest_us > 0, "{way:?}: they do not have all of it");
        assert!(
            reader.slowest_us <= bound_us,
            "{way:?}: a read took {} us, of {bound_us}",
            reader.slowest_us
        );
        let least = FOR_US / bound_us;
        assert!(u64::from(reader.reads) >= least, "{way:?}: {least} reads");
    }
}
