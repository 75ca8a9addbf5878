// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of a connection, from their capsule to their response. The invariants stand in `connection.rs`.
//!
//! ```text
//! begin ─► refused ─► response
//!   ├─ data in the capsule ─► Capsule ─┐
//!   ├─ data by R2T ─► (Room) ─► Transfer ─┤
//!   └─ no data, or data to the host ─► (Room) ─┴─► run ─► response
//!                                                   ├─► Running ─► complete ─► response
//!                                                   └─► Event, Message, Fence ─► response
//! ```

use std::sync::Arc;

use super::connection::{Connection, Context, Phase, Slot};
use super::io;
use crate::backend::{Answer, Refused, Request, Ticket};
use crate::command::{Cqe, SGL_IN_CAPSULE, SGL_TRANSPORT, Sqe};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::opcode::{FABRICS, Way, versioned};
use crate::pdu::{self, Fatal, Kind, Transfer, flag};
use crate::status::Status;

/// Commands that a connection may have under way before its host is known.
const STRANGER_COMMANDS: usize = 4;

/// How a command ends.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) data: Vec<u8>,
}

impl Reply {
    pub(super) fn of(status: Status) -> Self {
        Self::result(status, 0)
    }

    pub(super) fn result(status: Status, result: u64) -> Self {
        Self {
            status,
            result,
            data: Vec::new(),
        }
    }

    pub(super) fn data(result: u64, data: Vec<u8>) -> Self {
        Self {
            status: Status::OK,
            result,
            data,
        }
    }
}

/// What came of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Taken,
    /// The queue has as much as a queue may have.
    QueueIsFull,
    /// The pool has none for this host.
    PoolIsFull,
}

/// What becomes of a command that is whole.
#[derive(Debug)]
pub(super) enum Outcome {
    Reply(Reply),
    Submit(Request),
    Wait(Phase),
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        Self::Reply(Reply::of(status))
    }
}

impl Connection {
    /// A command's header has come. Returns where data of its capsule goes: the command, and bytes to skip.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        sqe: Sqe,
        in_capsule: usize,
    ) -> Result<Option<(u16, usize)>, Fatal> {
        let most = if self.is_established() {
            cx.subsystem.config.limits.commands
        } else {
            STRANGER_COMMANDS
        };
        if self.slots.len() >= most {
            return Err(Fatal::TooMuch);
        }
        if let Some(queue) = &mut self.queue {
            queue.head = (queue.head + 1) % queue.size;
        }
        let id = sqe.id();
        if self.slots.contains_key(&id) {
            self.respond(cx, id, Status::ID_CONFLICT, 0);
            return Ok(None);
        }
        let planned = self.admit(cx, &sqe).and_then(|()| plan(&sqe, in_capsule));
        match planned {
            Err(status) => {
                self.respond(cx, id, status, 0);
                Ok(None)
            }
            Ok(wanted) => Ok(self.place(cx, sqe, wanted)),
        }
    }

    fn place(&mut self, cx: &mut Context<'_>, sqe: Sqe, wanted: usize) -> Option<(u16, usize)> {
        let id = sqe.id();
        let is_in_capsule = is_in_capsule(&sqe) && wanted > 0;
        // What waits for room goes first, but for what needs none, and for data that is here already.
        let is_first = is_in_capsule || wanted == 0 || self.waiting.is_empty();
        let room = is_first.then(|| self.reserve(cx, wanted, is_in_capsule));
        let has_room = room == Some(Room::Taken);
        if is_in_capsule && !has_room {
            self.respond(cx, id, Status::BUSY, 0);
            return None;
        }
        let slot = Slot {
            sqe,
            phase: if is_in_capsule {
                Phase::Capsule
            } else {
                Phase::Room
            },
            data: Vec::new(),
            wanted,
            reserved: 0,
            is_spoiled: false,
            tag: 0,
            until_us: 0,
        };
        self.slots.insert(id, slot);
        if !has_room {
            self.waiting.push_back(id);
            self.wait(cx, room);
            return None;
        }
        self.has_room(cx, id);
        let skipped = usize::try_from(sqe.data_address()).unwrap_or(usize::MAX);
        is_in_capsule.then_some((id, skipped))
    }

    /// Takes room for so many bytes, if there is some; `is_here`: for those that have come with their command. Those of a
    /// stranger's few commands are not counted.
    fn reserve(&mut self, cx: &mut Context<'_>, bytes: usize, is_here: bool) -> Room {
        let Some(queue) = self.queue.as_ref().filter(|_| self.is_established()) else {
            return Room::Taken;
        };
        if self.reserved + bytes > cx.subsystem.config.limits.queue_bytes {
            return Room::QueueIsFull;
        }
        if !cx.subsystem.reserve(&queue.host, bytes, is_here) {
            return Room::PoolIsFull;
        }
        self.reserved += bytes;
        Room::Taken
    }

    /// It waits for room; `room`: why, if it is the first of its queue.
    fn wait(&mut self, cx: &mut Context<'_>, room: Option<Room>) {
        cx.subsystem.hunger(self.id);
        let queue = self.queue.as_ref();
        if let Some(queue) = queue.filter(|_| room == Some(Room::PoolIsFull)) {
            cx.subsystem.wait(&queue.host, self.id);
        }
    }

    fn has_room(&mut self, cx: &mut Context<'_>, id: u16) {
        let is_counted = self.is_established();
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.reserved = if is_counted { slot.wanted } else { 0 };
        if slot.phase == Phase::Capsule {
            slot.data.reserve_exact(slot.wanted);
            return;
        }
        if slot.sqe.way() != Way::ToNode || slot.wanted == 0 {
            slot.phase = Phase::Capsule;
            // A header's command runs when its PDU is over; one that has waited runs at once.
            self.ready = Some(id);
            return;
        }
        if !self.awaits_data() {
            self.came_us = cx.now_us;
        }
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.data.reserve_exact(slot.wanted);
        self.next_tag = self.next_tag.wrapping_add(1);
        slot.tag = self.next_tag;
        slot.phase = Phase::Transfer;
        slot.until_us = cx.now_us + cx.subsystem.config.limits.stall_us;
        let transfer = Transfer {
            command: id,
            tag: slot.tag,
            offset: 0,
            length: u32::try_from(slot.wanted).expect("a transfer has at most 1 MiB"),
        };
        let r2t = pdu::transfer(Kind::R2t, 0, self.digests, transfer, 4);
        self.outbox.push(r2t);
    }

    /// Room may have come back: goes on with commands that wait for it, in their order.
    pub(super) fn find_room(&mut self, cx: &mut Context<'_>) {
        while let Some(id) = self.waiting.front().copied() {
            let wanted = self.slots.get(&id).map_or(0, |slot| slot.wanted);
            let room = self.reserve(cx, wanted, false);
            if let Some(queue) = self.queue.as_ref().filter(|_| room != Room::PoolIsFull) {
                cx.subsystem.wait_no_more(&queue.host, self.id);
            }
            if room != Room::Taken {
                return self.wait(cx, Some(room));
            }
            self.waiting.pop_front();
            // The present PDU's command, if one is half here, stays the one that is ready.
            let ready = self.ready.take();
            self.has_room(cx, id);
            if let Some(id) = self.ready.take() {
                self.run(cx, id);
            }
            self.ready = ready;
        }
    }

    /// A command is whole.
    pub(super) fn run(&mut self, cx: &mut Context<'_>, id: u16) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if slot.is_spoiled {
            self.reply(cx, id, Reply::of(Status::TRANSPORT));
            return;
        }
        let (sqe, data) = (slot.sqe, std::mem::take(&mut slot.data));
        let number = self.queue.as_ref().map_or(0, |queue| queue.number);
        let outcome = if sqe.opcode() == FABRICS {
            self.fabrics(cx, &sqe, &data)
        } else if number == 0 {
            self.admin(cx, &sqe, &data)
        } else {
            self.io(cx, &sqe, data)
        };
        match outcome {
            Outcome::Reply(reply) => self.reply(cx, id, reply),
            Outcome::Submit(request) => self.submit(cx, id, request),
            Outcome::Wait(phase) => {
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.phase = phase;
                }
            }
        }
    }

    fn submit(&mut self, cx: &mut Context<'_>, id: u16, request: Request) {
        let Some((queue, slot)) = self.queue.as_ref().zip(self.slots.get_mut(&id)) else {
            return;
        };
        let controller = (queue.controller, queue.serial);
        let place = (self.id, id);
        let ticket = cx
            .subsystem
            .submit(controller, place, slot.reserved, request, cx.backend);
        // Without a ticket the controller has ended, and the next turn ends this connection.
        if let Some(ticket) = ticket {
            slot.phase = Phase::Running(ticket);
        }
    }

    /// The backend is done.
    pub(super) fn complete(
        &mut self,
        cx: &mut Context<'_>,
        id: u16,
        ticket: Ticket,
        result: Result<Answer, Refused>,
    ) {
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        if slot.phase != Phase::Running(ticket) {
            return;
        }
        let sqe = slot.sqe;
        let reply = match result {
            Ok(Answer::Version(moment)) if self.is_listing(&sqe) => {
                self.open_listing(cx, id, moment)
            }
            Ok(answer) => io::reply(&sqe, answer),
            Err(Refused::Mismatch(head)) => Reply::result(Status::MISMATCH, head),
            Err(Refused::Full(by)) => Reply::result(Status::CAPACITY, by.result()),
            Err(refused) => Reply::of(refused.status()),
        };
        self.reply(cx, id, reply);
    }

    fn is_listing(&self, sqe: &Sqe) -> bool {
        let is_io = self.queue.as_ref().is_some_and(|queue| queue.number > 0);
        is_io && sqe.opcode() == versioned::OPEN_LISTING
    }

    /// Sends data, if there is any, and the response.
    pub(super) fn reply(&mut self, cx: &mut Context<'_>, id: u16, reply: Reply) {
        let Some(slot) = self.slots.remove(&id) else {
            return;
        };
        let is_from_node = slot.sqe.way() == Way::FromNode;
        if is_from_node && reply.status.is_ok() && !reply.data.is_empty() && slot.wanted > 0 {
            let mut data = reply.data;
            data.truncate(slot.wanted);
            let most = cx.subsystem.config.limits.c2h_data_bytes;
            // Room was for what was asked for. The answer may be shorter.
            let kept = data.len().min(slot.reserved);
            self.send_data(id, data, most);
            self.outbox.push_credit(kept, cx.now_us);
            self.release(cx, slot.reserved - kept);
        } else {
            self.release(cx, slot.reserved);
        }
        self.respond(cx, id, reply.status, reply.result);
    }

    fn send_data(&mut self, id: u16, data: Vec<u8>, most: usize) {
        let data = Arc::new(data);
        let mut at = 0;
        while at < data.len() {
            let end = (at + most).min(data.len());
            let is_last = end == data.len();
            let number = |value| u32::try_from(value).expect("a transfer has at most 1 MiB");
            let transfer = Transfer {
                command: id,
                tag: 0,
                offset: number(at),
                length: number(end - at),
            };
            let flags = if is_last { flag::LAST } else { 0 };
            let header = pdu::transfer(Kind::C2hData, flags, self.digests, transfer, self.align);
            self.outbox.push(header);
            self.outbox.push_part(&data, at..end);
            if self.digests.data {
                let digest = crc32c::crc32c(&data[at..end]);
                self.outbox.push(digest.to_le_bytes().to_vec());
            }
            at = end;
        }
    }

    fn respond(&mut self, cx: &mut Context<'_>, id: u16, status: Status, result: u64) {
        cx.subsystem.denied += u64::from(status == Status::DENIED);
        let queue = self.queue.as_ref();
        let cqe = Cqe {
            result,
            head: queue.map_or(0, |it| if it.has_flow { it.head } else { u16::MAX }),
            queue: queue.map_or(0, |it| it.number),
            id,
            status,
        };
        self.outbox.push(pdu::response(&cqe.bytes(), self.digests));
    }

    /// Events, messages and fences may have come that commands wait for.
    pub(super) fn look_at_held(&mut self, cx: &mut Context<'_>) {
        let held = self.slots.iter().filter(|(_, slot)| {
            matches!(slot.phase, Phase::Event | Phase::Message | Phase::Fence(_))
        });
        let held: Vec<(u16, Phase)> = held.map(|(id, slot)| (*id, slot.phase)).collect();
        for (id, phase) in held {
            let reply = match phase {
                Phase::Event => self.next_event(cx),
                Phase::Message => self.next_message(cx),
                Phase::Fence(fence) if cx.subsystem.is_fenced(fence) => {
                    cx.subsystem.drop_fence(fence);
                    Some(Reply::of(Status::OK))
                }
                _ => None,
            };
            if let Some(reply) = reply {
                self.reply(cx, id, reply);
            }
        }
    }

    fn next_event(&mut self, cx: &mut Context<'_>) -> Option<Reply> {
        let queue = self.queue.as_ref()?;
        let controller = cx.subsystem.controller(queue.controller, queue.serial)?;
        let event = controller.next_event()?;
        Some(Reply::result(Status::OK, event.result()))
    }

    /// The next message of authentication, unless it is still being computed.
    pub(super) fn next_message(&mut self, cx: &mut Context<'_>) -> Option<Reply> {
        let verifier = self.verifier.as_mut()?;
        if verifier.is_computing() {
            return None;
        }
        let message = verifier.receive();
        if verifier.is_done() {
            self.note_authenticated(cx);
        }
        Some(match message {
            Some(message) => Reply::data(0, message),
            None => Reply::of(Status::SEQUENCE),
        })
    }
}

fn is_in_capsule(sqe: &Sqe) -> bool {
    sqe.way() == Way::ToNode && sqe.data_kind() == SGL_IN_CAPSULE
}

/// Bytes to come from the host, or room for bytes to it. Nothing has been allocated.
fn plan(sqe: &Sqe, in_capsule: usize) -> Result<usize, Status> {
    let (way, bytes) = (sqe.way(), sqe.data_bytes() as usize);
    if way == Way::None || bytes == 0 {
        return Ok(0);
    }
    match sqe.data_kind() {
        SGL_IN_CAPSULE if way == Way::ToNode => {
            let end = sqe.data_address().checked_add(bytes as u64);
            let fits = end.is_some_and(|end| end <= in_capsule as u64);
            fits.then_some(bytes).ok_or(Status::SGL_OFFSET)
        }
        SGL_TRANSPORT if bytes > TRANSFER_BYTES_MAX => Err(Status::INVALID_FIELD),
        // Data that nobody asked for, beside data that is to be asked for.
        SGL_TRANSPORT if in_capsule > 0 => Err(Status::DATA_LENGTH),
        SGL_TRANSPORT => Ok(bytes),
        _ => Err(Status::SGL_TYPE),
    }
}
