// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer that sends whatever a test likes.

use erb_nvme::client::Call;
use erb_nvme::client::calls::{self, Connect};
use erb_nvme::command::{Cqe, SGL_IN_CAPSULE, SGL_TRANSPORT};
use erb_nvme::pdu::{self, Digests, Kind, Transfer, flag};
use erb_nvme::target::{ANY_CONTROLLER, ConnectionId, Ended, property};

use crate::world::{NQN, World};

/// A connection to the target, by hand.
pub struct Raw {
    pub id: ConnectionId,
    pub digests: Digests,
    pub ended: Option<Ended>,
    next: u16,
}

impl Raw {
    /// A connection that has said nothing.
    pub fn silent(world: &mut World) -> Self {
        let id = world.target.open(true, world.now_us);
        Self {
            id: id.expect("there is room"),
            digests: Digests::default(),
            ended: None,
            next: 0,
        }
    }

    /// Both ends have agreed on digests.
    pub fn agreed(world: &mut World, digests: Digests) -> Self {
        let mut raw = Self::silent(world);
        raw.send(world, &pdu::ic(Kind::IcReq, 0, digests, 0));
        let answer = raw.pdus(world);
        assert_eq!((answer.len(), answer[0][0], answer[0].len()), (1, 1, 128));
        raw.digests = digests;
        raw
    }

    /// A queue, of a controller that is enabled.
    pub fn queue(world: &mut World, host: &str, queue: u16, controller: u16) -> (Self, u16) {
        let mut raw = Self::agreed(world, Digests::default());
        let connected = raw.call(world, connect(host, queue, controller));
        assert!(connected.status.is_ok(), "{connected:?}");
        if queue == 0 {
            let enabled = raw.call(world, calls::property_set(property::CC, 0x0046_0061));
            assert!(enabled.status.is_ok());
        }
        (
            raw,
            u16::try_from(connected.result & 0xffff).expect("16 bits"),
        )
    }

    /// Admin queue and I/O queue of a controller.
    pub fn controller(world: &mut World, host: &str) -> (Self, Self) {
        let (admin, id) = Self::queue(world, host, 0, ANY_CONTROLLER);
        let (io, _) = Self::queue(world, host, 1, id);
        (admin, io)
    }

    /// Sends bytes, and lets the target go on.
    pub fn send(&mut self, world: &mut World, bytes: &[u8]) {
        let taken = world.target.receive(self.id, bytes, world.now_us);
        assert_eq!(taken, bytes.len(), "the target takes what came");
        self.turn(world);
    }

    /// Lets the target go on.
    pub fn turn(&mut self, world: &mut World) {
        let now_us = world.now_us;
        world.target.turn(now_us);
        let over = world.target.over(now_us);
        let own = over.iter().find(|(id, _)| *id == self.id);
        self.ended = self.ended.or(own.map(|(_, ended)| *ended));
    }

    /// The PDUs that came, each with its data.
    pub fn pdus(&mut self, world: &mut World) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let output = world.target.output(self.id);
            if output.is_empty() {
                break;
            }
            bytes.extend_from_slice(output);
            let count = output.len();
            let now_us = world.now_us;
            world.target.sent(self.id, count, now_us);
        }
        self.turn(world);
        let mut pdus = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")) as usize;
            let rest = bytes.split_off(length);
            pdus.push(std::mem::replace(&mut bytes, rest));
        }
        pdus
    }

    /// Responses among what came.
    pub fn responses(&mut self, world: &mut World) -> Vec<Cqe> {
        let pdus = self.pdus(world).into_iter();
        pdus.filter(|pdu| pdu[0] == Kind::Response as u8)
            .map(|pdu| Cqe::of(&pdu[8..]))
            .collect()
    }

    /// A capsule with its data, and the command's id. Data is in the capsule, unless `is_asked`.
    pub fn capsule(&mut self, call: &Call, is_asked: bool) -> (Vec<u8>, u16) {
        self.next += 1;
        let mut sqe = call.sqe;
        sqe.set_id(self.next);
        let bytes = u32::try_from(call.data.len().max(call.room)).expect("small");
        let in_capsule = if is_asked { 0 } else { call.data.len() };
        if in_capsule > 0 {
            sqe.set_data(SGL_IN_CAPSULE, bytes);
        } else if bytes > 0 {
            sqe.set_data(SGL_TRANSPORT, bytes);
        }
        let mut pdu = pdu::command(&sqe.0, self.digests, in_capsule, 4);
        if in_capsule > 0 {
            pdu.extend_from_slice(&call.data);
            if self.digests.data {
                pdu.extend_from_slice(&crc32c::crc32c(&call.data).to_le_bytes());
            }
        }
        (pdu, self.next)
    }

    /// Sends a command. Its id.
    pub fn start(&mut self, world: &mut World, call: &Call, is_asked: bool) -> u16 {
        let (pdu, id) = self.capsule(call, is_asked);
        self.send(world, &pdu);
        id
    }

    /// Sends a command, and its response.
    pub fn call(&mut self, world: &mut World, call: Call) -> Cqe {
        let id = self.start(world, &call, false);
        let responses = self.responses(world);
        let own = responses.into_iter().find(|cqe| cqe.id == id);
        own.unwrap_or_else(|| panic!("no answer: {:?}", self.ended))
    }

    /// A command whose data the target asks for: its id and the R2T.
    pub fn asked(&mut self, world: &mut World, call: &Call) -> (u16, Transfer) {
        let id = self.start(world, call, true);
        let pdus = self.pdus(world);
        let r2t = pdus.iter().find(|pdu| pdu[0] == Kind::R2t as u8);
        (id, Transfer::of(r2t.expect("an R2T")))
    }

    /// An H2CData PDU.
    pub fn data(&self, transfer: Transfer, data: &[u8], is_last: bool) -> Vec<u8> {
        let flags = if is_last { flag::LAST } else { 0 };
        let transfer = Transfer {
            length: u32::try_from(data.len()).expect("small"),
            ..transfer
        };
        let mut pdu = pdu::transfer(Kind::H2cData, flags, self.digests, transfer, 4);
        pdu.extend_from_slice(data);
        if self.digests.data {
            pdu.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        }
        pdu
    }
}

/// Connect.
pub fn connect(host: &str, queue: u16, controller: u16) -> Call {
    calls::connect(&Connect {
        host,
        host_id: [7; 16],
        subsystem: NQN,
        controller,
        queue,
        depth: 32,
        keep_alive_ms: 5000,
    })
}
