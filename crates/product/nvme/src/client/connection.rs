// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of the client. Its states and invariants stand in `client/mod.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::calls::{self, Connect};
use super::pending::{Owner, Pending};
use super::{Call, CallId, Ended, Event, NotTaken, Reply};
use crate::auth::{Computed, MESSAGE_BYTES_MAX, Names, Next, Policy, Prover, Secrets};
use crate::bytes::{u16_at, u32_at};
use crate::command::{Cqe, SGL_IN_CAPSULE, SGL_TRANSPORT};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::opcode::admin;
use crate::outbox::Outbox;
use crate::pdu::{self, Digests, End, Fatal, Kind, Transfer, flag};
use crate::random::Random;
use crate::reader::{Input, Reader};
use crate::status::Status;
use crate::target::{DISCOVERY_NQN, RESULT_AUTHENTICATION, feature, property};

/// Linux refuses a target that takes less at a time.
const H2C_DATA_BYTES_MIN: u32 = 4096;
/// CC: enabled, all command sets, entries of 64 and 16 bytes.
const CONFIGURATION: u32 = 1 | 6 << 4 | 6 << 16 | 4 << 20;
const READY: u64 = 1;

/// How a connection begins.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The host's NQN.
    pub host: String,
    /// The host's id.
    pub host_id: [u8; 16],
    /// The subsystem's NQN.
    pub subsystem: String,
    /// Of an I/O queue: the controller that the admin queue got. Of an admin queue: any.
    pub controller: u16,
    /// The queue; 0: the admin queue.
    pub queue: u16,
    /// Commands under way at most, 2 to 128.
    pub depth: u16,
    /// Silence after which the controller ends; 0: never.
    pub keep_alive_ms: u32,
    /// Which digests are wanted.
    pub digests: Digests,
    /// Data begins at multiples of 4 x (this + 1) bytes in PDUs from the node.
    pub alignment: u8,
    /// I/O queues that are wanted. Of the admin queue alone.
    pub io_queues: u16,
    /// What both ends prove that they know.
    pub secrets: Option<Secrets>,
    /// Hashes and groups.
    pub policy: Policy,
    /// Bytes of data that go with a capsule.
    pub in_capsule_bytes: usize,
    /// For so long a call may take.
    pub timeout_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Connecting,
    Proving,
    /// The last message of authentication is on its way: success, or why not.
    Closing(Option<Ended>),
    Configuring(Step),
    Up,
    Over,
}

/// Steps of an admin queue's way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Enable,
    Wait,
    Queues,
}

/// One connection of the client.
pub struct Connection {
    settings: Settings,
    random: Box<dyn Random + Send>,
    stage: Stage,
    reader: Reader,
    outbox: Outbox,
    digests: Digests,
    h2c_data_bytes: usize,
    pending: BTreeMap<u16, Pending>,
    next_command: u16,
    next_call: u64,
    events: VecDeque<Event>,
    prover: Option<Prover>,
    controller: u16,
    io_queues: u16,
    /// Where data of the present PDU goes, and whether no response follows.
    sink: Option<(u16, bool)>,
    term_status: u16,
    keep_alive_us: u64,
    until_us: u64,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = formatter.debug_struct("Connection");
        all.field("stage", &self.stage);
        all.field("pending", &self.pending.len());
        all.finish_non_exhaustive()
    }
}

impl Connection {
    /// Begins.
    #[must_use]
    pub fn new(settings: Settings, random: Box<dyn Random + Send>, now_us: u64) -> Self {
        let mut outbox = Outbox::default();
        let (alignment, digests) = (settings.alignment, settings.digests);
        outbox.push(pdu::ic(Kind::IcReq, alignment, digests, 0));
        Self {
            stage: Stage::Starting,
            reader: Reader::new(End::Host, TRANSFER_BYTES_MAX, 0),
            outbox,
            digests: Digests::default(),
            h2c_data_bytes: 0,
            pending: BTreeMap::new(),
            next_command: 0,
            next_call: 0,
            events: VecDeque::new(),
            prover: None,
            controller: settings.controller,
            io_queues: 0,
            sink: None,
            term_status: 0,
            keep_alive_us: now_us,
            until_us: now_us.saturating_add(settings.timeout_us),
            settings,
            random,
        }
    }

    /// The controller's id, once the queue is connected.
    #[must_use]
    pub fn controller(&self) -> u16 {
        self.controller
    }

    /// I/O queues that the controller grants.
    #[must_use]
    pub fn io_queues(&self) -> u16 {
        self.io_queues
    }

    /// Whether calls are taken.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// What happened next.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next bytes to send; nothing if there are none.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.outbox.front()
    }

    /// So many bytes of the output are sent.
    pub fn sent(&mut self, count: usize) {
        self.outbox.sent(count);
    }

    /// Bytes of replies and of calls that it holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let pending = self.pending.values();
        let received: usize = pending.map(|it| it.received.len() + it.data.len()).sum();
        received + self.outbox.unsent()
    }

    /// Makes a call.
    ///
    /// # Errors
    /// It is not taken, and will never happen.
    pub fn call(&mut self, call: Call, now_us: u64) -> Result<CallId, NotTaken> {
        if self.stage != Stage::Up {
            return Err(NotTaken::NotUp);
        }
        if call.data.len() > TRANSFER_BYTES_MAX || call.room > TRANSFER_BYTES_MAX {
            return Err(NotTaken::TooLarge);
        }
        // A queue of so many entries holds one command less.
        if self.pending.len() + 1 >= usize::from(self.settings.depth) {
            return Err(NotTaken::Full);
        }
        self.next_call += 1;
        let id = CallId(self.next_call);
        self.submit(call, Owner::User(id), now_us);
        Ok(id)
    }

    fn submit(&mut self, call: Call, owner: Owner, now_us: u64) {
        while self.pending.contains_key(&self.next_command) {
            self.next_command = self.next_command.wrapping_add(1);
        }
        let (id, mut sqe) = (self.next_command, call.sqe);
        self.next_command = self.next_command.wrapping_add(1);
        sqe.set_id(id);
        let is_event = self.settings.queue == 0 && sqe.opcode() == admin::ASYNC_EVENT;
        let is_in_capsule = call.data.len() <= self.settings.in_capsule_bytes;
        let number = |bytes: usize| u32::try_from(bytes).expect("1 MiB at most");
        let mut in_capsule = 0;
        if !call.data.is_empty() && is_in_capsule {
            in_capsule = call.data.len();
            sqe.set_data(SGL_IN_CAPSULE, number(in_capsule));
        } else if !call.data.is_empty() || call.room > 0 {
            sqe.set_data(SGL_TRANSPORT, number(call.data.len().max(call.room)));
        }
        let header = pdu::command(&sqe.0, self.digests, in_capsule, 4);
        self.outbox.push(header);
        let mut data = Arc::new(call.data);
        if in_capsule > 0 {
            self.push_data(&data, 0..in_capsule);
            data = Arc::new(Vec::new());
        }
        let pending = Pending {
            owner,
            way: sqe.way(),
            data,
            asked: 0,
            room: call.room,
            received: Vec::new(),
            is_spoiled: false,
            until_us: if is_event {
                // Events may be waited for without end.
                u64::MAX
            } else {
                now_us.saturating_add(self.settings.timeout_us)
            },
        };
        self.pending.insert(id, pending);
    }

    fn push_data(&mut self, data: &Arc<Vec<u8>>, range: std::ops::Range<usize>) {
        self.outbox.push_part(data, range.clone());
        if self.digests.data {
            let digest = crc32c::crc32c(&data[range]);
            self.outbox.push(digest.to_le_bytes().to_vec());
        }
    }

    /// Bytes came.
    pub fn receive(&mut self, mut bytes: &[u8], now_us: u64) {
        while self.stage != Stage::Over {
            match self.reader.next(&mut bytes) {
                Ok(None) => return,
                Ok(Some(input)) => {
                    if let Err(fatal) = self.input(input, now_us) {
                        self.fail(fatal);
                    }
                }
                Err(fatal) => self.fail(fatal),
            }
        }
    }

    fn fail(&mut self, fatal: Fatal) {
        let term = pdu::term(Kind::H2cTerm, fatal, self.reader.header());
        self.outbox.push(term);
        self.end(Ended::Wrong(fatal));
    }

    /// The connection is closed.
    pub fn close(&mut self) {
        let ended = match self.stage {
            Stage::Closing(Some(why)) => why,
            _ => Ended::Closed,
        };
        self.end(ended);
    }

    fn end(&mut self, ended: Ended) {
        if self.stage == Stage::Over {
            return;
        }
        self.stage = Stage::Over;
        for pending in std::mem::take(&mut self.pending).into_values() {
            if let Owner::User(id) = pending.owner {
                self.events.push_back(Event::Lost(id));
            }
        }
        self.events.push_back(Event::Ended(ended));
    }

    fn input(&mut self, input: Input<'_>, now_us: u64) -> Result<(), Fatal> {
        match input {
            Input::Header(kind) => {
                self.sink = None;
                match kind {
                    Kind::IcResp => self.initialized(now_us),
                    Kind::R2t => self.r2t(),
                    Kind::C2hData => self.data_header(),
                    Kind::Response => self.response(now_us),
                    _ => {
                        self.term_status = u16_at(self.reader.header(), 8);
                        Ok(())
                    }
                }
            }
            Input::Data(data) => {
                if let Some(pending) = self.sink.and_then(|(id, _)| self.pending.get_mut(&id)) {
                    pending.received.extend_from_slice(data);
                }
                Ok(())
            }
            Input::End(is_intact) => {
                if self.reader.last_kind() == Some(Kind::C2hTerm) {
                    self.end(Ended::Peer(self.term_status));
                    return Ok(());
                }
                let Some((id, is_answered)) = self.sink.take() else {
                    return Ok(());
                };
                if let Some(pending) = self.pending.get_mut(&id) {
                    pending.is_spoiled |= !is_intact;
                }
                if is_answered {
                    self.done(id, Status::OK, 0, now_us);
                }
                Ok(())
            }
        }
    }

    fn initialized(&mut self, now_us: u64) -> Result<(), Fatal> {
        let header = self.reader.header();
        let (version, alignment, digests) = (u16_at(header, 8), header[10], header[11]);
        let h2c_data_bytes = u32_at(header, 12);
        if version != 0 {
            return Err(Fatal::Unsupported(8));
        }
        if alignment != 0 {
            return Err(Fatal::Unsupported(10));
        }
        if Digests::of(digests) != self.settings.digests || digests > 3 {
            return Err(Fatal::Header(11));
        }
        if h2c_data_bytes < H2C_DATA_BYTES_MIN || h2c_data_bytes % 4 != 0 {
            return Err(Fatal::Header(12));
        }
        self.h2c_data_bytes = h2c_data_bytes as usize;
        self.digests = self.settings.digests;
        self.reader.open(self.digests);
        self.stage = Stage::Connecting;
        let settings = &self.settings;
        let call = calls::connect(&Connect {
            host: &settings.host,
            host_id: settings.host_id,
            subsystem: &settings.subsystem,
            controller: settings.controller,
            queue: settings.queue,
            depth: settings.depth,
            keep_alive_ms: settings.keep_alive_ms,
        });
        self.submit(call, Owner::Step, now_us);
        Ok(())
    }

    fn r2t(&mut self) -> Result<(), Fatal> {
        let transfer = Transfer::of(self.reader.header());
        let pending = self.pending.get_mut(&transfer.command);
        let pending = pending.ok_or(Fatal::Header(8))?;
        let range = pending.ask(transfer)?;
        let data = Arc::clone(&pending.data);
        let mut at = range.start;
        while at < range.end {
            let end = (at + self.h2c_data_bytes).min(range.end);
            let flags = if end == range.end { flag::LAST } else { 0 };
            let number = |bytes: usize| u32::try_from(bytes).expect("1 MiB at most");
            let part = Transfer {
                offset: number(at),
                length: number(end - at),
                ..transfer
            };
            let header = pdu::transfer(Kind::H2cData, flags, self.digests, part, 4);
            self.outbox.push(header);
            self.push_data(&data, at..end);
            at = end;
        }
        Ok(())
    }

    fn data_header(&mut self) -> Result<(), Fatal> {
        let header = self.reader.header();
        let (transfer, flags) = (Transfer::of(header), header[1]);
        let bytes = self.reader.data_bytes();
        let pending = self.pending.get(&transfer.command);
        let pending = pending.ok_or(Fatal::Header(8))?;
        let is_answered = pending.expect(transfer, bytes, flags)?;
        self.sink = Some((transfer.command, is_answered));
        Ok(())
    }

    fn response(&mut self, now_us: u64) -> Result<(), Fatal> {
        let cqe = Cqe::of(&self.reader.header()[pdu::COMMON_BYTES..]);
        if !self.pending.contains_key(&cqe.id) {
            return Err(Fatal::Header(20));
        }
        self.done(cqe.id, cqe.status, cqe.result, now_us);
        Ok(())
    }

    fn done(&mut self, id: u16, status: Status, result: u64, now_us: u64) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        let (owner, reply) = pending.reply(status, result);
        match owner {
            Owner::User(id) => self.events.push_back(Event::Done(id, reply)),
            Owner::KeepAlive => {}
            Owner::Step => self.step(reply, now_us),
        }
    }

    /// A step of the way up is done.
    fn step(&mut self, reply: Reply, now_us: u64) {
        if let Stage::Closing(Some(why)) = self.stage {
            self.end(why);
            return;
        }
        if !reply.status.is_ok() {
            self.end(Ended::Refused(reply.status));
            return;
        }
        match self.stage {
            Stage::Connecting => self.connected(reply.result, now_us),
            Stage::Proving if reply.data.is_empty() => {
                let call = calls::auth_receive(MESSAGE_BYTES_MAX);
                self.submit(call, Owner::Step, now_us);
            }
            Stage::Proving => {
                let Some(prover) = &mut self.prover else {
                    return;
                };
                let next = prover.received(&reply.data, &mut *self.random);
                self.prove(next, now_us);
            }
            Stage::Closing(_) => self.configure(now_us),
            Stage::Configuring(step) => self.configured(step, reply.result, now_us),
            Stage::Starting | Stage::Up | Stage::Over => {}
        }
    }

    fn connected(&mut self, result: u64, now_us: u64) {
        self.controller = (result & 0xffff) as u16;
        let asks = result & RESULT_AUTHENTICATION != 0;
        match (asks, self.settings.secrets.clone()) {
            (false, Some(secrets)) if secrets.subsystem.is_some() => self.end(Ended::NoProof),
            (false, _) => self.configure(now_us),
            (true, None) => self.end(Ended::NoSecret),
            (true, Some(secrets)) => {
                let names = Names {
                    host: self.settings.host.clone(),
                    subsystem: self.settings.subsystem.clone(),
                };
                let policy = self.settings.policy.clone();
                let (prover, message) = Prover::new(names, secrets, policy, &mut *self.random);
                self.prover = Some(prover);
                self.stage = Stage::Proving;
                self.submit(calls::auth_send(message), Owner::Step, now_us);
            }
        }
    }

    fn prove(&mut self, next: Next, now_us: u64) {
        match next {
            Next::Send(message) => {
                self.submit(calls::auth_send(message), Owner::Step, now_us);
            }
            Next::SendLast(message) => {
                self.stage = Stage::Closing(None);
                self.submit(calls::auth_send(message), Owner::Step, now_us);
            }
            Next::Compute(job) => self.events.push_back(Event::Compute(job)),
            Next::Done => self.configure(now_us),
            Next::Fail(failure, message) => {
                self.give_up(Ended::Authentication(failure), message, now_us);
            }
            Next::NoProof(message) => self.give_up(Ended::NoProof, message, now_us),
        }
    }

    fn give_up(&mut self, why: Ended, message: Vec<u8>, now_us: u64) {
        self.stage = Stage::Closing(Some(why));
        self.submit(calls::auth_send(message), Owner::Step, now_us);
    }

    /// A computation is done.
    pub fn computed(&mut self, computed: &Computed, now_us: u64) {
        if self.stage != Stage::Proving {
            return;
        }
        if let Some(prover) = &mut self.prover {
            let next = prover.computed(computed);
            self.prove(next, now_us);
        }
    }

    fn configure(&mut self, now_us: u64) {
        if self.settings.queue > 0 {
            self.up();
            return;
        }
        self.stage = Stage::Configuring(Step::Enable);
        let call = calls::property_set(property::CC, CONFIGURATION);
        self.submit(call, Owner::Step, now_us);
    }

    fn configured(&mut self, step: Step, result: u64, now_us: u64) {
        let is_discovery = self.settings.subsystem == DISCOVERY_NQN;
        let (step, call) = match step {
            Step::Wait if result & READY != 0 && !is_discovery => {
                let last = u32::from(self.settings.io_queues.max(1) - 1);
                let call = calls::set_feature(feature::QUEUES, 0, last | last << 16);
                (Step::Queues, call)
            }
            Step::Wait if result & READY != 0 => return self.up(),
            Step::Enable | Step::Wait => (Step::Wait, calls::property_get(property::CSTS)),
            Step::Queues => {
                self.io_queues = (result & 0xffff) as u16 + 1;
                return self.up();
            }
        };
        self.stage = Stage::Configuring(step);
        self.submit(call, Owner::Step, now_us);
    }

    fn up(&mut self) {
        self.stage = Stage::Up;
        self.events.push_back(Event::Up);
    }

    /// Looks at time: keep alive, and calls that take too long. To be called 10 times a second.
    pub fn tick(&mut self, now_us: u64) {
        let is_late = match self.stage {
            Stage::Over => return,
            Stage::Up => {
                let mut pending = self.pending.values();
                pending.any(|it| now_us >= it.until_us)
            }
            _ => now_us >= self.until_us,
        };
        if is_late {
            self.end(Ended::Slow);
            return;
        }
        let period_us = u64::from(self.settings.keep_alive_ms) * 500;
        let is_due = period_us > 0 && now_us >= self.keep_alive_us + period_us;
        if self.stage == Stage::Up && self.settings.queue == 0 && is_due {
            self.keep_alive_us = now_us;
            self.submit(calls::keep_alive(), Owner::KeepAlive, now_us);
        }
    }
}
