// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log pages. Each piece is cut from a page that is built for it, so a page that grows between two pieces shows by
//! its generation (logs of discovery, marks and damage). Behind a page's end come zeros; a piece that begins there is
//! refused.

use super::admin::for_namespace;
use super::commands::{Outcome, Reply};
use super::config::Role;
use super::connection::{Connection, Context};
use super::discovery;
use crate::backend::{Answer, Log, Operation, Request};
use crate::bytes::{put_text, put_u32, put_u64};
use crate::command::Sqe;
use crate::layout;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::opcode::{admin, kv, versioned};
use crate::status::Status;

/// Log pages.
pub mod log {
    /// Which there are.
    pub const SUPPORTED: u8 = 0x00;
    /// Errors, of which none are kept.
    pub const ERRORS: u8 = 0x01;
    /// Health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that changed.
    pub const CHANGED: u8 = 0x04;
    /// What commands there are, and what they do.
    pub const EFFECTS: u8 = 0x05;
    /// Subsystems of this host.
    pub const DISCOVERY: u8 = 0x70;
    /// Ours: how the store is.
    pub const STATUS: u8 = 0xc0;
    /// Ours: roll backs, dry runs and snapshots.
    pub const MARKS: u8 = 0xc1;
    /// Ours: what the scrub has found damaged.
    pub const DAMAGE: u8 = 0xc2;
}

const ALL: [u8; 9] = [
    log::SUPPORTED,
    log::ERRORS,
    log::HEALTH,
    log::FIRMWARE,
    log::CHANGED,
    log::EFFECTS,
    log::STATUS,
    log::MARKS,
    log::DAMAGE,
];
/// In a page of effects: the command is there; it changes content.
const SUPPORTED: u32 = 1;
const CHANGES: u32 = 2;
/// RAE: the event that the log tells of is not cleared.
const RETAIN: u32 = 1 << 15;

pub(super) fn get(connection: &Connection, cx: &mut Context<'_>, sqe: &Sqe) -> Outcome {
    let number = sqe.word(10).to_le_bytes()[0];
    let set = sqe.word(14).to_le_bytes()[3];
    let (bytes, offset) = piece(sqe);
    if bytes > sqe.data_bytes() as usize || bytes > TRANSFER_BYTES_MAX || offset % 4 != 0 {
        return Status::INVALID_FIELD.into();
    }
    let health = cx.backend.health();
    let config = cx.subsystem.config.clone();
    let generation = cx.subsystem.generation;
    let Some(controller) = connection.controller(cx) else {
        return Status::SEQUENCE.into();
    };
    if controller.is_discovery != (number == log::DISCOVERY) {
        return Status::INVALID_LOG.into();
    }
    if sqe.word(10) & RETAIN == 0 {
        controller.log_was_read(number);
    }
    let page = match number {
        log::SUPPORTED => {
            let mut page = vec![0; 1024];
            ALL.iter()
                .for_each(|number| put_u32(&mut page, 4 * usize::from(*number), SUPPORTED));
            page
        }
        log::ERRORS => vec![0; 64],
        log::HEALTH => {
            let mut page = vec![0; 512];
            let is_damaged = u8::from(health.damaged > 0);
            let is_read_only = u8::from(health.is_read_only);
            page[0] = u8::from(health.is_full) | (is_damaged << 2) | (is_read_only << 3);
            // Media and data integrity errors.
            put_u64(&mut page, 160, health.damaged);
            let used = health.used_bytes.saturating_mul(100);
            let used = used.checked_div(health.size_bytes).unwrap_or(0).min(100);
            let used = u8::try_from(used).unwrap_or(100);
            (page[3], page[4]) = (100 - used, 10);
            page
        }
        log::FIRMWARE => {
            let mut page = vec![0; 512];
            page[0] = 1;
            put_text(&mut page, 8, 8, &config.firmware, b' ');
            page
        }
        log::CHANGED => vec![0; 4096],
        log::EFFECTS => effects(set),
        log::DISCOVERY => {
            let found_at = connection.found_at.as_ref();
            discovery::page(&config, found_at, &controller.host.nqn, generation)
        }
        log::STATUS => {
            return general(controller.host.number, Operation::Log(Log::Status));
        }
        log::MARKS | log::DAMAGE if sqe.namespace() == 0 => {
            return Status::INVALID_NAMESPACE.into();
        }
        log::MARKS | log::DAMAGE => {
            let log = match number {
                log::MARKS => Log::Marks,
                _ => Log::Damage,
            };
            return for_namespace(controller, sqe, Role::Reader, Operation::Log(log));
        }
        _ => return Status::INVALID_LOG.into(),
    };
    Outcome::Reply(cut(sqe, &page))
}

fn general(writer: u32, operation: Operation) -> Outcome {
    Outcome::Submit(Request {
        namespace: 0,
        writer,
        may_use_reserve: false,
        operation,
    })
}

/// Bytes and offset that are asked for.
fn piece(sqe: &Sqe) -> (usize, u64) {
    let (low, high) = (sqe.word(10) >> 16, sqe.word(11) & 0xffff);
    let words = u64::from(low | high << 16) + 1;
    let bytes = usize::try_from(4 * words).unwrap_or(usize::MAX);
    (bytes, sqe.pair(12))
}

/// The piece of a page that is asked for.
fn cut(sqe: &Sqe, page: &[u8]) -> Reply {
    let (bytes, offset) = piece(sqe);
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let Some(rest) = page.get(offset..).filter(|rest| !rest.is_empty()) else {
        return Reply::of(Status::INVALID_FIELD);
    };
    let mut data = rest[..rest.len().min(bytes)].to_vec();
    data.resize(bytes, 0);
    Reply::data(0, data)
}

/// What the store said of itself.
pub(super) fn reply(sqe: &Sqe, answer: &Answer) -> Reply {
    let is_log = sqe.opcode() == admin::GET_LOG;
    match answer {
        Answer::Health(health) if is_log => cut(sqe, &layout::health_bytes(health)),
        Answer::Marks(generation, marks) if is_log => {
            cut(sqe, &layout::marks_bytes(*generation, marks))
        }
        Answer::Damage(generation, damage) if is_log => {
            cut(sqe, &layout::damage_bytes(*generation, damage))
        }
        Answer::Retention(kept) if sqe.opcode() == admin::GET_FEATURES => {
            Reply::data(0, layout::kept_bytes(kept))
        }
        _ => Reply::of(Status::INTERNAL),
    }
}

fn effects(set: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let admin = [
        (admin::GET_LOG, SUPPORTED),
        (admin::IDENTIFY, SUPPORTED),
        (admin::ABORT, SUPPORTED),
        (admin::SET_FEATURES, SUPPORTED),
        (admin::GET_FEATURES, SUPPORTED),
        (admin::ASYNC_EVENT, SUPPORTED),
        (admin::KEEP_ALIVE, SUPPORTED),
    ];
    for (opcode, bits) in admin {
        put_u32(&mut page, 4 * usize::from(opcode), bits);
    }
    if set != 1 {
        return page;
    }
    let io = [
        (kv::FLUSH, SUPPORTED),
        (kv::STORE, SUPPORTED | CHANGES),
        (kv::RETRIEVE, SUPPORTED),
        (kv::LIST, SUPPORTED),
        (kv::DELETE, SUPPORTED | CHANGES),
        (kv::EXIST, SUPPORTED),
        (versioned::PUT, SUPPORTED | CHANGES),
        (versioned::GET, SUPPORTED),
        (versioned::BATCH, SUPPORTED | CHANGES),
        (versioned::VERSIONS, SUPPORTED),
        (versioned::DELETE, SUPPORTED | CHANGES),
        (versioned::ROLL_BACK, SUPPORTED | CHANGES),
        (versioned::KEYS, SUPPORTED),
        (versioned::RESTORE, SUPPORTED | CHANGES),
        (versioned::SNAPSHOT, SUPPORTED),
        (versioned::FENCE, SUPPORTED),
        (versioned::OPEN_LISTING, SUPPORTED),
    ];
    for (opcode, bits) in io {
        put_u32(&mut page, 1024 + 4 * usize::from(opcode), bits);
    }
    page
}
