// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of I/O queues: what they need, what is asked of the backend, and what is answered. The KV commands are
//! those of the KV command set 1.3; ours stand in docs/internals/nvme.md.

use super::commands::{Outcome, Reply};
use super::config::Role;
use super::connection::{Connection, Context, Phase};
use super::controller::Controller;
use crate::backend::{Answer, Change, Condition, Key, Operation, Request, Selector, Write};
use crate::bytes::u64_at;
use crate::command::{ALL_NAMESPACES, Sqe};
use crate::layout::{self, HEAD_BYTES, VERSION_ROW_BYTES, flag};
use crate::limits::{ROWS_MAX, SHORT_KEY_BYTES_MAX, TRANSFER_BYTES_MAX};
use crate::opcode::{Way, kv, versioned};
use crate::status::Status;

const ONLY_PRESENT: u8 = 1;
const ONLY_ABSENT: u8 = 2;
const NO_COMPRESSION: u8 = 4;
const LIST_HEAD_BYTES: usize = 4;
const TAKE: u8 = 0;
const RELEASE: u8 = 1;

/// The fields of CDW10 to CDW13, as all commands have them.
#[derive(Clone, Copy, Debug)]
struct Fields {
    size: usize,
    key_bytes: usize,
    options: u8,
    selector: u8,
    flags: u8,
    argument: u64,
}

impl Fields {
    fn of(sqe: &Sqe) -> Self {
        let [key_bytes, options, selector, flags] = sqe.word(11).to_le_bytes();
        Self {
            size: sqe.word(10) as usize,
            key_bytes: usize::from(key_bytes),
            options,
            selector,
            flags,
            argument: sqe.pair(12),
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The role that a command needs. Nothing: there is no such command.
fn needed(sqe: &Sqe, fields: &Fields) -> Option<Role> {
    Some(match sqe.opcode() {
        kv::FLUSH
        | kv::RETRIEVE
        | kv::LIST
        | kv::EXIST
        | versioned::GET
        | versioned::VERSIONS
        | versioned::KEYS
        | versioned::OPEN_LISTING => Role::Reader,
        kv::STORE
        | kv::DELETE
        | versioned::PUT
        | versioned::BATCH
        | versioned::DELETE
        | versioned::RESTORE => Role::Writer,
        versioned::ROLL_BACK => Role::Restorer,
        versioned::SNAPSHOT if fields.selector == TAKE => Role::Restorer,
        versioned::SNAPSHOT => Role::Admin,
        _ => return None,
    })
}

/// Whether a command may be, before its data is asked for.
pub(super) fn admit(sqe: &Sqe, controller: &Controller) -> Result<(), Status> {
    let fields = Fields::of(sqe);
    if sqe.opcode() == versioned::FENCE {
        return Ok(());
    }
    let needed = needed(sqe, &fields).ok_or(Status::INVALID_OPCODE)?;
    if sqe.namespace() == ALL_NAMESPACES {
        return Err(Status::INVALID_FIELD);
    }
    let role = controller.role(sqe.namespace());
    let role = role.ok_or(Status::INVALID_NAMESPACE)?;
    if role < needed {
        return Err(Status::DENIED);
    }
    let bytes = sqe.data_bytes() as usize;
    match sqe.way() {
        Way::ToNode => {
            let has_size = matches!(sqe.opcode(), kv::STORE | versioned::PUT);
            if has_size && fields.size > TRANSFER_BYTES_MAX {
                return Err(Status::VALUE_SIZE);
            }
            if bytes > TRANSFER_BYTES_MAX {
                return Err(Status::INVALID_FIELD);
            }
            if fields.size != bytes {
                return Err(Status::DATA_LENGTH);
            }
        }
        Way::FromNode if fields.size > bytes => return Err(Status::DATA_LENGTH),
        _ => {}
    }
    // All but the data has to make sense.
    match (sqe.way(), sqe.opcode()) {
        (Way::ToNode, _) => check_key(sqe, &fields),
        (_, kv::FLUSH) => Ok(()),
        _ => operation(sqe, Vec::new(), controller).map(|_| ()),
    }
}

fn check_key(sqe: &Sqe, fields: &Fields) -> Result<(), Status> {
    match sqe.opcode() {
        kv::STORE => {
            condition(fields.options)?;
            key(sqe, fields).map(|_| ())
        }
        versioned::PUT if !fields.has(flag::LONG) => key(sqe, fields).map(|_| ()),
        _ => Ok(()),
    }
}

fn key(sqe: &Sqe, fields: &Fields) -> Result<Vec<u8>, Status> {
    match fields.key_bytes {
        0 => Err(Status::KEY_SIZE),
        length @ 1..=SHORT_KEY_BYTES_MAX => Ok(sqe.key_field()[..length].to_vec()),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// A key, or the digest of a long one.
fn any_key(sqe: &Sqe, fields: &Fields) -> Result<Key, Status> {
    if fields.has(flag::LONG) {
        Ok(Key::Digest(sqe.key_field()))
    } else {
        key(sqe, fields).map(Key::Plain)
    }
}

/// What a key begins with, also nothing.
fn start(sqe: &Sqe, fields: &Fields) -> Result<Vec<u8>, Status> {
    if fields.key_bytes == 0 {
        Ok(Vec::new())
    } else {
        key(sqe, fields)
    }
}

fn condition(options: u8) -> Result<Condition, Status> {
    match options & !NO_COMPRESSION {
        0 => Ok(Condition::Any),
        ONLY_PRESENT => Ok(Condition::Present),
        ONLY_ABSENT => Ok(Condition::Absent),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn expected(fields: &Fields) -> Condition {
    if fields.has(flag::IF_VERSION) {
        Condition::Head(fields.argument)
    } else {
        Condition::Any
    }
}

fn selector(fields: &Fields) -> Result<Selector, Status> {
    layout::selector_of(fields.selector, fields.argument).ok_or(Status::INVALID_FIELD)
}

fn write(key: Key, change: Change, condition: Condition) -> Operation {
    Operation::Write {
        write: Write {
            key,
            change,
            condition,
        },
        must_exist: false,
    }
}

/// What is asked of the backend.
fn operation(sqe: &Sqe, data: Vec<u8>, controller: &Controller) -> Result<Operation, Status> {
    let fields = Fields::of(sqe);
    Ok(match sqe.opcode() {
        kv::STORE => {
            let key = Key::Plain(key(sqe, &fields)?);
            write(key, Change::Put(data), condition(fields.options)?)
        }
        kv::RETRIEVE => Operation::Get {
            key: Key::Plain(key(sqe, &fields)?),
            at: Selector::Head,
            bytes: fields.size,
        },
        kv::LIST => Operation::List {
            from: start(sqe, &fields)?,
            bytes: fields.size.saturating_sub(LIST_HEAD_BYTES),
        },
        kv::DELETE => Operation::Write {
            write: Write {
                key: Key::Plain(key(sqe, &fields)?),
                change: Change::Delete,
                condition: Condition::Any,
            },
            must_exist: controller.strict_deletes.contains(&sqe.namespace()),
        },
        kv::EXIST => Operation::Exist(Key::Plain(key(sqe, &fields)?)),
        versioned::PUT => put(sqe, &fields, data)?,
        versioned::GET => get(sqe, &fields)?,
        versioned::VERSIONS => {
            let rows = fields.size.saturating_sub(HEAD_BYTES) / VERSION_ROW_BYTES;
            Operation::Versions {
                key: any_key(sqe, &fields)?,
                below: fields.argument,
                rows: rows.min(ROWS_MAX),
            }
        }
        versioned::DELETE => write(any_key(sqe, &fields)?, Change::Delete, expected(&fields)),
        versioned::RESTORE => {
            if fields.has(flag::IF_VERSION) {
                return Err(Status::INVALID_FIELD);
            }
            let change = Change::Restore(selector(&fields)?);
            write(any_key(sqe, &fields)?, change, Condition::Any)
        }
        versioned::SNAPSHOT => match fields.selector {
            TAKE => Operation::Snapshot(fields.argument),
            RELEASE => Operation::Release(fields.argument),
            _ => return Err(Status::INVALID_FIELD),
        },
        versioned::KEYS => keys(sqe, &fields)?,
        _ => from_data(sqe, &data)?,
    })
}

/// GET of a version; what is told of it stands before the value.
fn get(sqe: &Sqe, fields: &Fields) -> Result<Operation, Status> {
    let head = if fields.has(flag::HEAD) {
        HEAD_BYTES
    } else {
        0
    };
    Ok(Operation::Get {
        key: any_key(sqe, fields)?,
        at: selector(fields)?,
        bytes: fields.size.saturating_sub(head),
    })
}

fn keys(sqe: &Sqe, fields: &Fields) -> Result<Operation, Status> {
    Ok(Operation::Keys {
        prefix: if fields.has(flag::LONG) {
            Vec::new()
        } else {
            start(sqe, fields)?
        },
        cursor: fields.argument,
        moment: None,
        changed_since: 0,
        has_deleted: false,
        bytes: fields.size.saturating_sub(HEAD_BYTES),
    })
}

fn put(sqe: &Sqe, fields: &Fields, data: Vec<u8>) -> Result<Operation, Status> {
    if !fields.has(flag::LONG) {
        let key = Key::Plain(key(sqe, fields)?);
        return Ok(write(key, Change::Put(data), expected(fields)));
    }
    let (key, value) = layout::long_of(&data).ok_or(Status::INVALID_FIELD)?;
    let change = Change::Put(value.to_vec());
    Ok(write(Key::Plain(key.to_vec()), change, expected(fields)))
}

fn from_data(sqe: &Sqe, data: &[u8]) -> Result<Operation, Status> {
    let operation = match sqe.opcode() {
        versioned::BATCH => layout::batch_of(data).map(Operation::Batch),
        versioned::ROLL_BACK => layout::roll_back_of(data).map(Operation::RollBack),
        versioned::OPEN_LISTING => {
            layout::listing_of(data).map(|listing| Operation::Moment(listing.moment))
        }
        _ => return Err(Status::INVALID_OPCODE),
    };
    operation.ok_or(Status::INVALID_FIELD)
}

impl Connection {
    pub(super) fn io(&mut self, cx: &mut Context<'_>, sqe: &Sqe, data: Vec<u8>) -> Outcome {
        let Some(queue) = &self.queue else {
            return Status::SEQUENCE.into();
        };
        if sqe.opcode() == versioned::FENCE {
            let fence = cx
                .subsystem
                .fence(queue.controller, &queue.host.nqn, queue.host_id);
            return Outcome::Wait(Phase::Fence(fence));
        }
        if sqe.opcode() == kv::FLUSH {
            // What was acknowledged is durable already.
            return Status::OK.into();
        }
        let until_us = cx.now_us + cx.subsystem.config.limits.listing_us;
        let controller = cx.subsystem.controller(queue.controller, queue.serial);
        let Some(controller) = controller else {
            return Status::SEQUENCE.into();
        };
        let listing = (sqe.opcode() == versioned::OPEN_LISTING).then(|| data.clone());
        let mut operation = match operation(sqe, data, controller) {
            Ok(operation) => operation,
            Err(status) => return status.into(),
        };
        if sqe.opcode() == versioned::KEYS && Fields::of(sqe).has(flag::LONG) {
            let handle = u64_at(&sqe.key_field(), 0);
            let listing = controller.listing(handle, cx.now_us, until_us);
            let listing = listing.filter(|listing| listing.namespace == sqe.namespace());
            let Some(listing) = listing else {
                return Status::INVALID_FIELD.into();
            };
            if let Operation::Keys {
                prefix,
                moment,
                changed_since,
                has_deleted,
                ..
            } = &mut operation
            {
                prefix.clone_from(&listing.request.prefix);
                *moment = Some(listing.request.moment);
                *changed_since = listing.request.changed_since;
                *has_deleted = listing.request.has_deleted;
            }
        }
        let role = controller.role(sqe.namespace());
        let request = Request {
            namespace: sqe.namespace(),
            writer: controller.host.number,
            may_use_reserve: role >= Some(Role::Restorer),
            operation,
        };
        if let Some((data, slot)) = listing.zip(self.slots.get_mut(&sqe.id())) {
            // It is needed again when the moment is known.
            slot.data = data;
        }
        Outcome::Submit(request)
    }

    /// The moment of a listing is known: it gets a handle.
    pub(super) fn open_listing(&mut self, cx: &mut Context<'_>, id: u16, moment: u64) -> Reply {
        let limits = cx.subsystem.config.limits;
        let Some((queue, slot)) = self.queue.as_ref().zip(self.slots.get(&id)) else {
            return Reply::of(Status::INTERNAL);
        };
        let Some(mut request) = layout::listing_of(&slot.data) else {
            return Reply::of(Status::INVALID_FIELD);
        };
        request.moment = moment;
        let namespace = slot.sqe.namespace();
        let controller = cx.subsystem.controller(queue.controller, queue.serial);
        let until_us = cx.now_us + limits.listing_us;
        let handle = controller.and_then(|controller| {
            controller.open_listing(request, namespace, limits.listings, until_us, cx.now_us)
        });
        match handle {
            Some(handle) => Reply::result(Status::OK, handle),
            None => Reply::of(Status::BUSY),
        }
    }
}

/// What a command answers.
pub(super) fn reply(sqe: &Sqe, answer: Answer) -> Reply {
    let fields = Fields::of(sqe);
    let cut = |mut data: Vec<u8>| {
        data.truncate(fields.size);
        data
    };
    match answer {
        Answer::Version(version) => {
            // The standard's commands have no result.
            let is_ours = sqe.opcode() & 0x80 != 0;
            Reply::result(Status::OK, if is_ours { version } else { 0 })
        }
        Answer::Value { head, bytes } => {
            let has_head = sqe.opcode() == versioned::GET && fields.has(flag::HEAD);
            let data = if has_head {
                let mut data = layout::head_bytes(&head).to_vec();
                data.extend_from_slice(&bytes);
                data
            } else {
                bytes
            };
            Reply::data(u64::from(head.bytes), cut(data))
        }
        Answer::Done => Reply::of(Status::OK),
        Answer::Keys(keys) => Reply::data(0, cut(layout::list_bytes(&keys))),
        Answer::Versions {
            rows,
            has_more,
            floor,
        } => Reply::data(0, cut(layout::versions_bytes(&rows, has_more, floor))),
        Answer::Page {
            rows,
            cursor,
            cut: at,
        } => Reply::data(0, cut(layout::page_bytes(&rows, cursor, at))),
        // Logs and features are the admin queue's.
        Answer::Health(_) | Answer::Marks(..) | Answer::Damage(..) | Answer::Retention(_) => {
            super::logs::reply(sqe, &answer)
        }
    }
}
