// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fabrics commands: Connect, properties, authentication. What a command needs before its data is asked for is judged
//! here too. Checked against Linux, `include/linux/nvme.h` (`struct nvmf_*`).

use super::commands::{Outcome, Reply};
use super::connection::{Connection, Context, Phase, Queue};
use super::{admin, io};
use crate::auth::{MESSAGE_BYTES_MAX, Names, Verifier};
use crate::bytes::{text_at, u16_at};
use crate::command::Sqe;
use crate::opcode::{FABRICS, fabrics};
use crate::status::Status;

/// The name under which every discovery service is found.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of Connect's data.
pub const CONNECT_BYTES: usize = 1024;
/// Where they have what.
pub mod connect_field {
    /// The host's id, 16 bytes.
    pub const HOST_ID: usize = 0;
    /// The controller's id.
    pub const CONTROLLER: usize = 16;
    /// The subsystem's NQN.
    pub const SUBSYSTEM: usize = 256;
    /// The host's NQN.
    pub const HOST: usize = 512;
}
/// On the admin queue: any controller.
pub const ANY_CONTROLLER: u16 = u16::MAX;
/// In Connect's result: authentication has to follow.
pub const RESULT_AUTHENTICATION: u64 = 1 << 17;
/// Properties.
pub mod property {
    /// Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Configuration.
    pub const CC: u32 = 0x14;
    /// Status.
    pub const CSTS: u32 = 0x1c;
}

/// 128 commands, contiguous, 15 s, the command sets NVM and "as the controller says".
const CAPABILITIES: u64 = 127 | 1 << 16 | 30 << 24 | 1 << 37 | 1 << 43;
/// 2.0.
pub(super) const VERSION: u32 = 0x0002_0000;
const NQN_BYTES: usize = 256;
const NO_FLOW: u8 = 1 << 2;
/// In the result of a refused Connect: the offset lies in its data.
const IN_DATA: u64 = 1 << 16;
/// SECP E9h, SPSP 1 and 1.
const SECURITY: [u8; 3] = [1, 1, 0xe9];

impl Connection {
    /// Whether a command may be, now and here, before anything is done for it.
    pub(super) fn admit(&mut self, cx: &mut Context<'_>, sqe: &Sqe) -> Result<(), Status> {
        if !sqe.has_usual_flags() {
            return Err(Status::INVALID_FIELD);
        }
        if sqe.opcode() == FABRICS {
            return self.admit_fabrics(sqe);
        }
        let Some(queue) = &self.queue else {
            return Err(Status::SEQUENCE);
        };
        if !self.is_established() {
            return Err(Status::AUTHENTICATION);
        }
        let controller = cx.subsystem.controller(queue.controller, queue.serial);
        let controller = controller.filter(|it| it.is_enabled());
        let controller = controller.ok_or(Status::SEQUENCE)?;
        if queue.number == 0 {
            admin::admit(sqe, controller)
        } else {
            io::admit(sqe, controller)
        }
    }

    fn admit_fabrics(&self, sqe: &Sqe) -> Result<(), Status> {
        let kind = sqe.fabrics_kind();
        if kind == fabrics::CONNECT {
            let is_whole = sqe.data_bytes() as usize == CONNECT_BYTES;
            return match (&self.queue, is_whole) {
                (Some(_), _) => Err(Status::SEQUENCE),
                (None, false) => Err(Status::DATA_LENGTH),
                (None, true) => Ok(()),
            };
        }
        let Some(queue) = &self.queue else {
            return Err(Status::SEQUENCE);
        };
        match kind {
            fabrics::AUTH_SEND | fabrics::AUTH_RECEIVE => {
                let length = sqe.data_bytes();
                let is_possible = (1..=MESSAGE_BYTES_MAX).contains(&(length as usize));
                if self.verifier.is_none() || self.is_established() {
                    Err(Status::SEQUENCE)
                } else if sqe.0[41..44] != SECURITY || !is_possible || sqe.word(11) != length {
                    Err(Status::INVALID_FIELD)
                } else {
                    Ok(())
                }
            }
            fabrics::PROPERTY_GET | fabrics::PROPERTY_SET => {
                if !self.is_established() {
                    Err(Status::AUTHENTICATION)
                } else if queue.number > 0 {
                    Err(Status::INVALID_FIELD)
                } else {
                    Ok(())
                }
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    pub(super) fn fabrics(&mut self, cx: &mut Context<'_>, sqe: &Sqe, data: &[u8]) -> Outcome {
        match sqe.fabrics_kind() {
            fabrics::CONNECT => {
                let connected = self.connect(cx, sqe, data);
                let reply = connected.map_or_else(
                    |(status, result)| Reply::result(status, result),
                    |result| Reply::result(Status::OK, result),
                );
                Outcome::Reply(reply)
            }
            fabrics::AUTH_SEND => self.auth_send(cx, data),
            fabrics::AUTH_RECEIVE => self
                .next_message(cx)
                .map_or(Outcome::Wait(Phase::Message), Outcome::Reply),
            fabrics::PROPERTY_GET => self.property_get(cx, sqe),
            _ => self.property_set(cx, sqe),
        }
    }

    fn auth_send(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Outcome {
        let Some(verifier) = &mut self.verifier else {
            return Status::SEQUENCE.into();
        };
        let job = verifier.send(data, &mut *cx.subsystem.random);
        if verifier.is_done() {
            self.note_authenticated(cx);
        }
        if let Some(job) = job {
            cx.jobs.push_back((self.id, job));
        }
        Status::OK.into()
    }

    /// The queue's host is known. With an admin queue it may connect I/O queues; an I/O queue has its number now.
    pub(super) fn note_authenticated(&mut self, cx: &mut Context<'_>) {
        let Some(queue) = &self.queue else {
            return;
        };
        if let Some(controller) = cx.subsystem.controller(queue.controller, queue.serial) {
            match queue.number {
                0 => controller.is_authenticated = true,
                number if controller.resets == queue.resets => {
                    controller.queues.insert(number);
                }
                // A reset has taken it meanwhile.
                _ => {}
            }
        }
    }

    fn connect(
        &mut self,
        cx: &mut Context<'_>,
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<u64, (Status, u64)> {
        let in_data = |at: usize| (Status::CONNECT_PARAMETER, IN_DATA | at as u64);
        let in_sqe = |at: u64| (Status::CONNECT_PARAMETER, at);
        let (number, size) = (u16_at(&sqe.0, 42), u16_at(&sqe.0, 44));
        if u16_at(&sqe.0, 40) != 0 {
            return Err((Status::CONNECT_FORMAT, 0));
        }
        let limits = cx.subsystem.config.limits;
        if size == 0 || usize::from(size) >= limits.commands {
            return Err(in_sqe(44));
        }
        let subsystem = text_at(data, connect_field::SUBSYSTEM, NQN_BYTES);
        let subsystem = subsystem.ok_or(in_data(connect_field::SUBSYSTEM))?;
        let is_discovery = subsystem == DISCOVERY_NQN;
        if !is_discovery && subsystem != cx.subsystem.config.nqn {
            return Err(in_data(connect_field::SUBSYSTEM));
        }
        let nqn = text_at(data, connect_field::HOST, NQN_BYTES);
        let nqn = nqn.filter(|nqn| !nqn.is_empty());
        let nqn = nqn.ok_or(in_data(connect_field::HOST))?;
        let (host, asks) = if is_discovery {
            (super::discovery::host(nqn), false)
        } else {
            let found = cx.subsystem.listed(self.id, nqn, self.is_loopback);
            found.ok_or((Status::CONNECT_HOST, 0))?
        };
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&data[connect_field::HOST_ID..connect_field::HOST_ID + 16]);
        let id = u16_at(data, connect_field::CONTROLLER);
        let mut queue = Queue {
            controller: id,
            serial: 0,
            host,
            host_id,
            number,
            size: size + 1,
            // This command is the queue's first.
            head: 1,
            has_flow: sqe.0[46] & NO_FLOW == 0,
            is_discovery,
            resets: 0,
        };
        if number == 0 {
            if id != ANY_CONTROLLER {
                return Err(in_data(connect_field::CONTROLLER));
            }
            self.connect_admin(cx, sqe, &mut queue, asks)?;
        } else {
            if number > limits.io_queues || is_discovery {
                return Err(in_sqe(42));
            }
            connect_io(cx, &mut queue, asks)?;
        }
        let result = u64::from(queue.controller) | if asks { RESULT_AUTHENTICATION } else { 0 };
        let names = Names {
            host: queue.host.nqn.clone(),
            subsystem: subsystem.to_owned(),
        };
        let secrets = queue.host.secrets.clone().filter(|_| asks);
        let policy = cx.subsystem.config.policy.clone();
        self.verifier = secrets.map(|secrets| Verifier::new(names, secrets, policy));
        self.queue = Some(queue);
        Ok(result)
    }

    fn connect_admin(
        &mut self,
        cx: &mut Context<'_>,
        sqe: &Sqe,
        queue: &mut Queue,
        asks: bool,
    ) -> Result<(), (Status, u64)> {
        let added =
            cx.subsystem
                .add_controller(queue.host.clone(), queue.host_id, queue.is_discovery);
        let (id, serial) = added.ok_or((Status::CONNECT_BUSY, 0))?;
        (queue.controller, queue.serial) = (id, serial);
        if let Some(controller) = cx.subsystem.controller(id, serial) {
            controller.is_authenticated = !asks;
            controller.keep_alive_ms = sqe.word(12);
            controller.keep_alive(cx.now_us);
        }
        Ok(())
    }

    fn property_get(&mut self, cx: &mut Context<'_>, sqe: &Sqe) -> Outcome {
        let is_long = sqe.0[40] & 7;
        let offset = sqe.word(11);
        if is_long > 1 || (offset == property::CAP) != (is_long == 1) {
            return Status::INVALID_FIELD.into();
        }
        let Some(queue) = &self.queue else {
            return Status::SEQUENCE.into();
        };
        let controller = cx.subsystem.controller(queue.controller, queue.serial);
        let Some(controller) = controller else {
            return Status::SEQUENCE.into();
        };
        let value = match offset {
            property::CAP => CAPABILITIES,
            property::VS => u64::from(VERSION),
            property::CC => u64::from(controller.configuration),
            property::CSTS => u64::from(controller.status()),
            _ => 0,
        };
        Outcome::Reply(Reply::result(Status::OK, value))
    }

    fn property_set(&mut self, cx: &mut Context<'_>, sqe: &Sqe) -> Outcome {
        let (size, offset, value) = (sqe.0[40] & 7, sqe.word(11), sqe.word(12));
        let Some(queue) = &self.queue else {
            return Status::SEQUENCE.into();
        };
        let controller = cx.subsystem.controller(queue.controller, queue.serial);
        let is_set = size == 0
            && offset == property::CC
            && controller.is_some_and(|controller| controller.configure(value));
        if is_set {
            // A reset takes the I/O queues.
            cx.subsystem.touch_all();
            Status::OK.into()
        } else {
            Status::INVALID_FIELD.into()
        }
    }
}

/// An I/O queue joins the controller of the same host. If it has to prove itself, it takes its number only then: nobody
/// else can keep it from the host.
fn connect_io(cx: &mut Context<'_>, queue: &mut Queue, asks: bool) -> Result<(), (Status, u64)> {
    let wrong = (
        Status::CONNECT_PARAMETER,
        IN_DATA | connect_field::CONTROLLER as u64,
    );
    let (nqn, host_id) = (queue.host.nqn.clone(), queue.host_id);
    let controller = cx
        .subsystem
        .find_controller(queue.controller, &nqn, host_id);
    let controller = controller.filter(|it| it.is_authenticated);
    let controller = controller.ok_or(wrong)?;
    if !controller.is_enabled() {
        return Err((Status::SEQUENCE, 0));
    }
    if queue.number > controller.granted {
        return Err((Status::CONNECT_PARAMETER, 42));
    }
    if controller.queues.contains(&queue.number) {
        return Err((Status::SEQUENCE, 0));
    }
    if !asks {
        controller.queues.insert(queue.number);
    }
    queue.serial = controller.serial;
    queue.resets = controller.resets;
    // What the host may do was said when it connected the admin queue.
    queue.host = controller.host.clone();
    Ok(())
}
