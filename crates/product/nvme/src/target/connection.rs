// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of the target: PDUs in and out, time, room. What becomes of its commands is in `commands.rs`.
//!
//! Invariants:
//! 1. Bytes of the peer are allocated for only after they were counted: in the pool, or, before the host is known, by
//!    the few small commands that a stranger may have under way.
//! 2. While replies of more than their bound wait, nothing is read.
//! 3. Data goes where an R2T, or a command with data in its capsule, has room for exactly these bytes, once.
//! 4. What it has of the pool while its peer takes or brings nothing it has for a time, which is short while another host
//!    waits that has less. Of replies it has to take as much as a PDU has, or all: a byte now and then does not
//!    make it longer.
//! 5. What has ended takes no byte any more, sends its last words, and leaves its controller without a queue: then the
//!    controller ends too, unless that was an I/O queue with nothing under way, or one that had not proved itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::config::{Host, Port};
use super::subsystem::{ConnectionId, Subsystem};
use crate::auth::{Computed, Failure, Job, Verifier};
use crate::backend::{Backend, Ticket};
use crate::bytes::u16_at;
use crate::command::Sqe;
use crate::outbox::Outbox;
use crate::pdu::{self, Digests, End, Fatal, Kind, Transfer, flag};
use crate::reader::{Input, Reader};

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// Something wrong came.
    #[error("{0}")]
    Wrong(Fatal),
    /// The peer said that something wrong came; its fatal error status.
    #[error("the peer ended the connection with fatal error status {0}")]
    Peer(u16),
    /// The peer has not connected in time.
    #[error("nobody connected in time")]
    Stranger,
    /// A PDU, data of an R2T, or the reading of replies took too long.
    #[error("the peer is too slow")]
    Slow,
    /// The controller has ended: another queue of it did, its host was silent, or a fence came.
    #[error("the controller has ended")]
    Controller,
    /// Authentication failed.
    #[error("authentication failed: {0}")]
    Authentication(Failure),
}

/// What a connection works with.
pub(super) struct Context<'a> {
    pub(super) subsystem: &'a mut Subsystem,
    pub(super) backend: &'a mut dyn Backend,
    pub(super) jobs: &'a mut VecDeque<(ConnectionId, Job)>,
    pub(super) now_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Open,
    Over(Ended),
}

/// Where data of the present PDU goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    Nowhere,
    /// To a command, without so many bytes first.
    Command(u16, usize),
}

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Room in the pool.
    Room,
    /// Data in its capsule, or all of it is there.
    Capsule,
    /// Data of its R2T.
    Transfer,
    /// The backend.
    Running(Ticket),
    /// An event.
    Event,
    /// A message of authentication.
    Message,
    /// A fence.
    Fence(u64),
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) sqe: Sqe,
    pub(super) phase: Phase,
    /// What came from the host.
    pub(super) data: Vec<u8>,
    /// Bytes to come from the host, or room for bytes to it.
    pub(super) wanted: usize,
    pub(super) reserved: usize,
    pub(super) is_spoiled: bool,
    pub(super) tag: u16,
    pub(super) until_us: u64,
}

/// What Connect made of a connection.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) controller: u16,
    pub(super) serial: u64,
    pub(super) host: Arc<Host>,
    pub(super) host_id: [u8; 16],
    pub(super) number: u16,
    pub(super) size: u16,
    pub(super) head: u16,
    pub(super) has_flow: bool,
    pub(super) is_discovery: bool,
    pub(super) resets: u32,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Where the peer has found this end.
    pub(super) found_at: Option<Port>,
    pub(super) is_loopback: bool,
    stage: Stage,
    reader: Reader,
    pub(super) outbox: Outbox,
    pub(super) digests: Digests,
    pub(super) align: usize,
    sink: Sink,
    /// Its command is whole once the PDU is.
    pub(super) ready: Option<u16>,
    pub(super) slots: BTreeMap<u16, Slot>,
    pub(super) waiting: VecDeque<u16>,
    pub(super) next_tag: u16,
    pub(super) queue: Option<Queue>,
    pub(super) verifier: Option<Verifier>,
    /// Bytes of the pool that this queue has.
    pub(super) reserved: usize,
    term_status: u16,
    opened_us: u64,
    /// When data of an R2T came last, or was asked for while none was to come.
    pub(super) came_us: u64,
    pdu_since_us: Option<u64>,
    unsent_since_us: Option<u64>,
    /// Since then.
    sent_bytes: usize,
    over_since_us: u64,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        found_at: Option<Port>,
        is_loopback: bool,
        cx: &Context<'_>,
    ) -> Self {
        let limits = &cx.subsystem.config.limits;
        Self {
            id,
            found_at,
            is_loopback,
            stage: Stage::Starting,
            reader: Reader::new(End::Target, limits.h2c_data_bytes, limits.in_capsule_bytes),
            outbox: Outbox::default(),
            digests: Digests::default(),
            align: 4,
            sink: Sink::Nowhere,
            ready: None,
            slots: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_tag: 0,
            queue: None,
            verifier: None,
            reserved: 0,
            term_status: 0,
            opened_us: cx.now_us,
            came_us: cx.now_us,
            pdu_since_us: None,
            unsent_since_us: None,
            sent_bytes: 0,
            over_since_us: 0,
        }
    }

    /// Whether it is a queue whose host is known.
    pub(super) fn is_established(&self) -> bool {
        let is_known = self.verifier.as_ref().is_none_or(Verifier::is_done);
        self.queue.is_some() && is_known
    }

    /// Why it has ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        match self.stage {
            Stage::Over(ended) => Some(ended),
            _ => None,
        }
    }

    /// Whether its last words are said, or nobody has listened to them.
    pub(super) fn is_over(&self, cx: &Context<'_>) -> bool {
        let until = self.over_since_us + cx.subsystem.config.limits.linger_us;
        self.ended().is_some() && (self.outbox.unsent() == 0 || cx.now_us >= until)
    }

    /// Whether it takes bytes.
    pub(super) fn wants_bytes(&self, cx: &Context<'_>) -> bool {
        let most = cx.subsystem.config.limits.unsent_bytes;
        !self.reader.is_between() || self.outbox.unsent() <= most
    }

    /// Takes bytes that came. Returns how many.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while self.ended().is_none() && self.wants_bytes(cx) {
            match self.reader.next(&mut rest) {
                Ok(None) => break,
                Ok(Some(input)) => {
                    if let Err(fatal) = self.input(cx, input) {
                        self.fail(cx, fatal);
                    }
                }
                Err(fatal) => self.fail(cx, fatal),
            }
        }
        if self.ended().is_some() {
            return bytes.len();
        }
        self.pdu_since_us = if self.reader.is_between() {
            None
        } else {
            self.pdu_since_us.or(Some(cx.now_us))
        };
        self.note_unsent(cx);
        bytes.len() - rest.len()
    }

    fn input(&mut self, cx: &mut Context<'_>, input: Input<'_>) -> Result<(), Fatal> {
        match input {
            Input::Header(kind) => {
                self.sink = Sink::Nowhere;
                match kind {
                    Kind::IcReq => self.initialize(cx),
                    Kind::Command => self.command_header(cx),
                    Kind::H2cData => self.data_header(),
                    _ => {
                        self.term_status = u16_at(self.reader.header(), 8);
                        Ok(())
                    }
                }
            }
            Input::Data(data) => {
                self.data(data, cx.now_us);
                Ok(())
            }
            Input::End(is_intact) => {
                if self.reader.last_kind() == Some(Kind::H2cTerm) {
                    self.end(cx, Ended::Peer(self.term_status));
                    return Ok(());
                }
                self.pdu_is_over(cx, is_intact);
                Ok(())
            }
        }
    }

    fn initialize(&mut self, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let header = self.reader.header();
        let (version, alignment, digests) = (u16_at(header, 8), header[10], header[11]);
        if version != 0 {
            return Err(Fatal::Unsupported(8));
        }
        if alignment > 31 {
            return Err(Fatal::Header(10));
        }
        if digests > 3 {
            return Err(Fatal::Unsupported(11));
        }
        self.digests = Digests::of(digests);
        self.align = 4 * (usize::from(alignment) + 1);
        let most = u32::try_from(cx.subsystem.config.limits.h2c_data_bytes).unwrap_or(u32::MAX);
        self.outbox
            .push(pdu::ic(Kind::IcResp, 0, self.digests, most));
        self.reader.open(self.digests);
        self.stage = Stage::Open;
        Ok(())
    }

    fn command_header(&mut self, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let header = self.reader.header();
        let mut sqe = [0; 64];
        sqe.copy_from_slice(&header[pdu::COMMON_BYTES..]);
        let in_capsule = self.reader.data_bytes();
        let taken = self.begin(cx, Sqe(sqe), in_capsule)?;
        if let Some((id, skipped)) = taken {
            self.sink = Sink::Command(id, skipped);
        }
        Ok(())
    }

    fn data_header(&mut self) -> Result<(), Fatal> {
        let header = self.reader.header();
        let (transfer, flags) = (Transfer::of(header), header[1]);
        let data_bytes = self.reader.data_bytes();
        let slot = self.slots.get_mut(&transfer.command);
        let slot = slot.filter(|slot| slot.phase == Phase::Transfer);
        let slot = slot.ok_or(Fatal::Header(8))?;
        if slot.tag != transfer.tag {
            return Err(Fatal::Header(10));
        }
        if transfer.length as usize != data_bytes {
            return Err(Fatal::Header(16));
        }
        let end = transfer.offset as usize + data_bytes;
        if transfer.offset as usize != slot.data.len() || end > slot.wanted {
            return Err(Fatal::OutOfRange);
        }
        if (flags & flag::LAST != 0) != (end == slot.wanted) {
            return Err(Fatal::Header(1));
        }
        self.sink = Sink::Command(transfer.command, 0);
        Ok(())
    }

    fn data(&mut self, mut data: &[u8], now_us: u64) {
        let Sink::Command(id, skipped) = &mut self.sink else {
            return;
        };
        let skips = (*skipped).min(data.len());
        *skipped -= skips;
        data = &data[skips..];
        if let Some(slot) = self.slots.get_mut(id) {
            // A capsule may have bytes behind those that the SGL names.
            let room = slot.wanted - slot.data.len();
            slot.data.extend_from_slice(&data[..data.len().min(room)]);
            if slot.phase == Phase::Transfer {
                self.came_us = now_us;
            }
        }
    }

    fn pdu_is_over(&mut self, cx: &mut Context<'_>, is_intact: bool) {
        if let Sink::Command(id, _) = self.sink {
            self.sink = Sink::Nowhere;
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.is_spoiled |= !is_intact;
                if slot.data.len() == slot.wanted {
                    self.ready = Some(id);
                }
            }
        }
        if let Some(id) = self.ready.take() {
            self.run(cx, id);
        }
    }

    /// Something wrong came: says so, and ends.
    fn fail(&mut self, cx: &mut Context<'_>, fatal: Fatal) {
        let term = pdu::term(Kind::C2hTerm, fatal, self.reader.header());
        self.outbox.push(term);
        self.end(cx, Ended::Wrong(fatal));
    }

    /// Ends: nothing is read any more, nothing that was not submitted will be.
    pub(super) fn end(&mut self, cx: &mut Context<'_>, ended: Ended) {
        if self.ended().is_some() {
            return;
        }
        self.stage = Stage::Over(ended);
        self.over_since_us = cx.now_us;
        cx.subsystem.over.insert(self.id);
        self.waiting.clear();
        if let Some(queue) = &self.queue {
            cx.subsystem.wait_no_more(&queue.host, self.id);
        }
        if ended == Ended::Slow {
            // There are no last words for a peer that takes none, and others may wait for their room.
            let credit = self.outbox.clear();
            self.release(cx, credit);
        }
        for slot in std::mem::take(&mut self.slots).into_values() {
            match slot.phase {
                Phase::Running(ticket) => {
                    cx.subsystem.orphan(ticket);
                    self.reserved -= slot.reserved;
                }
                Phase::Fence(fence) => cx.subsystem.drop_fence(fence),
                _ => self.release(cx, slot.reserved),
            }
        }
        self.leave(cx);
    }

    /// The controller loses this queue, and ends; but not by an I/O queue of somebody who has not proved who he is.
    fn leave(&mut self, cx: &mut Context<'_>) {
        let is_host = self.is_established();
        let Some(queue) = &self.queue else {
            return;
        };
        let (id, serial, number, resets) =
            (queue.controller, queue.serial, queue.number, queue.resets);
        let controller = cx.subsystem.controller(id, serial);
        // A reset has taken this queue from its controller already.
        match controller.filter(|it| number == 0 || it.resets == resets) {
            Some(_) if number == 0 || is_host => cx.subsystem.end_controller(id, serial),
            _ => {}
        }
    }

    /// The connection is gone: everything that it had comes back.
    pub(super) fn close(&mut self, cx: &mut Context<'_>) {
        self.step_out(cx);
        self.end(cx, Ended::Peer(0));
        let credit = self.outbox.clear();
        self.release(cx, credit);
        cx.subsystem.leave(self.id);
    }

    /// An I/O queue of which nothing can happen any more leaves its controller as it is. So does a host that shuts down:
    /// it lets its I/O queues go first, and then tells the controller over the admin queue.
    fn step_out(&mut self, cx: &mut Context<'_>) {
        let is_quiet = self.ended().is_none()
            && self.is_established()
            && self.slots.is_empty()
            && self.reader.is_between()
            && self.outbox.unsent() == 0;
        let Some(queue) = self.queue.take_if(|it| is_quiet && it.number > 0) else {
            return;
        };
        let controller = cx.subsystem.controller(queue.controller, queue.serial);
        // After a reset the number may be another queue's.
        if let Some(controller) = controller.filter(|it| it.resets == queue.resets) {
            controller.queues.remove(&queue.number);
        }
    }

    pub(super) fn release(&mut self, cx: &mut Context<'_>, bytes: usize) {
        self.reserved -= bytes;
        if let Some(queue) = &self.queue {
            cx.subsystem.release(&queue.host, bytes);
        }
    }

    /// So many bytes of the front of the outbox are sent.
    pub(super) fn sent(&mut self, cx: &mut Context<'_>, count: usize) {
        let credit = self.outbox.sent(count);
        self.release(cx, credit);
        self.sent_bytes += count;
        if self.sent_bytes >= cx.subsystem.config.limits.c2h_data_bytes {
            self.unsent_since_us = None;
        }
        self.note_unsent(cx);
    }

    fn note_unsent(&mut self, cx: &Context<'_>) {
        if self.outbox.unsent() == 0 {
            self.unsent_since_us = None;
        } else if self.unsent_since_us.is_none() {
            self.unsent_since_us = Some(cx.now_us);
            self.sent_bytes = 0;
        }
    }

    /// Looks at time, at the controller, and at what commands wait for.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) {
        if self.ended().is_some() {
            return;
        }
        if let Some(ended) = self.judge(cx) {
            self.end(cx, ended);
            return;
        }
        self.find_room(cx);
        self.look_at_held(cx);
        self.note_unsent(cx);
    }

    /// A computation is done.
    pub(super) fn computed(&mut self, computed: Computed) {
        if let Some(verifier) = &mut self.verifier {
            verifier.computed(computed);
        }
    }

    fn judge(&mut self, cx: &mut Context<'_>) -> Option<Ended> {
        let limits = cx.subsystem.config.limits;
        // Before all else: what a peer that takes nothing has is given back at once.
        if self.is_stalled(cx) {
            return Some(Ended::Slow);
        }
        if let Some(verifier) = self.verifier.as_ref().filter(|it| it.is_failed()) {
            let failure = verifier.failure().unwrap_or(Failure::Failed);
            return Some(Ended::Authentication(failure));
        }
        if !self.is_established() && cx.now_us >= self.opened_us + limits.stranger_us {
            return Some(Ended::Stranger);
        }
        if let Some(queue) = &self.queue {
            let controller = cx.subsystem.controller(queue.controller, queue.serial);
            let is_alive =
                controller.is_some_and(|it| queue.number == 0 || it.resets == queue.resets);
            if !is_alive {
                return Some(Ended::Controller);
            }
        }
        None
    }

    /// Whether data was asked for that has not come.
    pub(super) fn awaits_data(&self) -> bool {
        let mut slots = self.slots.values();
        slots.any(|slot| slot.phase == Phase::Transfer)
    }

    /// Whether a PDU, data of an R2T or the reading of replies has taken too long.
    fn is_stalled(&self, cx: &Context<'_>) -> bool {
        let limits = &cx.subsystem.config.limits;
        let is_over = |since: u64, most: u64| cx.now_us >= since + most;
        let mut since = [self.pdu_since_us, self.unsent_since_us]
            .into_iter()
            .flatten();
        let mut asked = self.slots.values().filter(|it| it.phase == Phase::Transfer);
        if since.any(|since| is_over(since, limits.stall_us))
            || asked.any(|slot| cx.now_us >= slot.until_us)
        {
            return true;
        }
        let has_stopped = |since: u64| is_over(since, limits.pressed_us);
        let is_late = self.unsent_since_us.is_some_and(has_stopped)
            || has_stopped(self.came_us) && self.awaits_data()
            || self
                .outbox
                .credit_since_us()
                .is_some_and(|since| is_over(since, limits.stall_us));
        let host = self.queue.as_ref().map(|queue| &queue.host);
        is_late && self.reserved > 0 && host.is_some_and(|it| cx.subsystem.keeps_from_others(it))
    }
}
