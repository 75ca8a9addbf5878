// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of the admin queue, but for pages: features, events, keep alive, abort.

use super::commands::{Outcome, Reply};
use super::config::Role;
use super::connection::{Connection, Context, Phase};
use super::controller::Controller;
use super::{identify, logs};
use crate::backend::{Operation, Request};
use crate::command::Sqe;
use crate::layout;
use crate::limits::EVENT_REQUESTS_MAX;
use crate::opcode::{Way, admin};
use crate::status::Status;

/// Features.
pub mod feature {
    /// How many I/O queues.
    pub const QUEUES: u8 = 0x07;
    /// Which events are told.
    pub const EVENTS: u8 = 0x0b;
    /// After how many milliseconds of silence a controller ends.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Which command sets.
    pub const COMMAND_SETS: u8 = 0x19;
    /// Of a KV namespace: bit 0: the delete of a missing key is an error.
    pub const KEYS: u8 = 0x20;
    /// Ours: how long versions are kept.
    pub const RETENTION: u8 = 0xc0;
}

/// Events that are known: capacity, namespaces, discovery.
const EVENTS_KNOWN: u32 = 1 | 1 << 8 | 1 << 31;
/// Abort: nothing was aborted.
const NOT_ABORTED: u64 = 1;
/// Of the retention feature: it is locked, and otherwise stays.
const LOCK: u32 = 1;
const SAVE: u32 = 1 << 31;
const SELECT: u32 = 7 << 8;

/// Whether a command may be, before its data is asked for.
pub(super) fn admit(sqe: &Sqe, controller: &Controller) -> Result<(), Status> {
    let is_known = matches!(
        sqe.opcode(),
        admin::GET_LOG
            | admin::IDENTIFY
            | admin::ABORT
            | admin::SET_FEATURES
            | admin::GET_FEATURES
            | admin::ASYNC_EVENT
            | admin::KEEP_ALIVE
    );
    if !is_known || (controller.is_discovery && sqe.opcode() == admin::ABORT) {
        return Err(Status::INVALID_OPCODE);
    }
    if sqe.way() == Way::ToNode {
        let is_retention = sqe.word(10).to_le_bytes()[0] == feature::RETENTION;
        let wanted = if is_retention {
            layout::RETENTION_BYTES
        } else {
            0
        };
        if wanted > 0 && sqe.data_bytes() as usize != wanted {
            return Err(Status::DATA_LENGTH);
        }
        if sqe.data_bytes() as usize > wanted {
            return Err(Status::INVALID_FIELD);
        }
    }
    Ok(())
}

impl Connection {
    pub(super) fn admin(&mut self, cx: &mut Context<'_>, sqe: &Sqe, data: &[u8]) -> Outcome {
        match sqe.opcode() {
            admin::IDENTIFY => identify::identify(self, cx, sqe).into(),
            admin::GET_LOG => logs::get(self, cx, sqe),
            admin::ASYNC_EVENT => self.event_request(),
            // What is under way has gone to the backend, or waits for its host; it cannot be had back.
            admin::ABORT => Outcome::Reply(Reply::result(Status::OK, NOT_ABORTED)),
            admin::KEEP_ALIVE => {
                let now_us = cx.now_us;
                if let Some(controller) = self.controller(cx) {
                    controller.keep_alive(now_us);
                }
                Status::OK.into()
            }
            admin::SET_FEATURES => self.set_features(cx, sqe, data),
            _ => self.get_features(cx, sqe),
        }
    }

    pub(super) fn controller<'a>(&self, cx: &'a mut Context<'_>) -> Option<&'a mut Controller> {
        let queue = self.queue.as_ref()?;
        cx.subsystem.controller(queue.controller, queue.serial)
    }

    fn event_request(&self) -> Outcome {
        let waiting = self.slots.values();
        let waiting = waiting.filter(|slot| slot.phase == Phase::Event).count();
        if waiting >= EVENT_REQUESTS_MAX {
            Status::EVENT_LIMIT.into()
        } else {
            // The next turn answers at once if something has happened already.
            Outcome::Wait(Phase::Event)
        }
    }

    fn set_features(&self, cx: &mut Context<'_>, sqe: &Sqe, data: &[u8]) -> Outcome {
        let (word, value) = (sqe.word(10), sqe.word(11));
        let limits = cx.subsystem.config.limits;
        let now_us = cx.now_us;
        let Some(controller) = self.controller(cx) else {
            return Status::SEQUENCE.into();
        };
        if word & SAVE != 0 {
            return Status::INVALID_FIELD.into();
        }
        let number = word.to_le_bytes()[0];
        if controller.is_discovery && !matches!(number, feature::EVENTS | feature::KEEP_ALIVE) {
            return Status::INVALID_FIELD.into();
        }
        match number {
            feature::QUEUES => set_queues(controller, value, limits.io_queues),
            feature::EVENTS => {
                controller.event_settings = value & EVENTS_KNOWN;
                Status::OK.into()
            }
            feature::KEEP_ALIVE => {
                controller.keep_alive_ms = value;
                controller.keep_alive(now_us);
                Status::OK.into()
            }
            feature::COMMAND_SETS if value & 0x1ff == 0 => Status::OK.into(),
            feature::KEYS => match controller.role(sqe.namespace()) {
                None => Status::INVALID_NAMESPACE.into(),
                Some(_) => {
                    let namespace = sqe.namespace();
                    if value & 1 == 0 {
                        controller.strict_deletes.remove(&namespace);
                    } else {
                        controller.strict_deletes.insert(namespace);
                    }
                    Status::OK.into()
                }
            },
            feature::RETENTION => {
                let operation = match value {
                    0 => layout::retention_of(data).map(Operation::SetRetention),
                    LOCK => layout::lock_of(data).map(Operation::Lock),
                    _ => return Status::INVALID_FIELD.into(),
                };
                let Some(operation) = operation else {
                    return Status::DATA_LENGTH.into();
                };
                for_namespace(controller, sqe, Role::Admin, operation)
            }
            _ => Status::INVALID_FIELD.into(),
        }
    }

    fn get_features(&self, cx: &mut Context<'_>, sqe: &Sqe) -> Outcome {
        let word = sqe.word(10);
        let Some(controller) = self.controller(cx) else {
            return Status::SEQUENCE.into();
        };
        let number = word.to_le_bytes()[0];
        let is_general = matches!(number, feature::EVENTS | feature::KEEP_ALIVE);
        if word & SELECT != 0 || (controller.is_discovery && !is_general) {
            return Status::INVALID_FIELD.into();
        }
        let value = match number {
            feature::QUEUES => queues(controller.granted),
            feature::EVENTS => u64::from(controller.event_settings),
            feature::KEEP_ALIVE => u64::from(controller.keep_alive_ms),
            feature::COMMAND_SETS => 0,
            feature::KEYS if controller.role(sqe.namespace()).is_none() => {
                return Status::INVALID_NAMESPACE.into();
            }
            feature::KEYS => u64::from(controller.strict_deletes.contains(&sqe.namespace())),
            feature::RETENTION => {
                return for_namespace(controller, sqe, Role::Reader, Operation::Retention);
            }
            _ => return Status::INVALID_FIELD.into(),
        };
        Outcome::Reply(Reply::result(Status::OK, value))
    }
}

/// Counted from 0, twice.
fn queues(granted: u16) -> u64 {
    let last = u64::from(granted - 1);
    last | last << 16
}

fn set_queues(controller: &mut Controller, value: u32, most: u16) -> Outcome {
    let (submission, completion) = (value & 0xffff, value >> 16);
    if submission == 0xffff || completion == 0xffff {
        return Status::INVALID_FIELD.into();
    }
    if !controller.queues.is_empty() {
        return Status::SEQUENCE.into();
    }
    let wanted = submission.max(completion) + 1;
    controller.granted = u16::try_from(wanted).unwrap_or(most).min(most);
    Outcome::Reply(Reply::result(Status::OK, queues(controller.granted)))
}

/// A request for a namespace, if the host's role there is enough.
pub(super) fn for_namespace(
    controller: &Controller,
    sqe: &Sqe,
    needed: Role,
    operation: Operation,
) -> Outcome {
    match controller.role(sqe.namespace()) {
        None => Status::INVALID_NAMESPACE.into(),
        Some(role) if role < needed => Status::DENIED.into(),
        Some(role) => Outcome::Submit(Request {
            namespace: sqe.namespace(),
            writer: controller.host.number,
            may_use_reserve: role >= Role::Restorer,
            operation,
        }),
    }
}
