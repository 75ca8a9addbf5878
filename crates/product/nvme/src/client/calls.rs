// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands, ready to be submitted. What they answer is read by [`layout`](crate::layout).

use crate::backend::{Condition, Key, Retention, RollBack, Selector, Write};
use crate::bytes::{put, put_text, put_u16, put_u32};
use crate::command::Sqe;
use crate::layout::{self, ListingRequest, flag};
use crate::limits::SHORT_KEY_BYTES_MAX;
use crate::opcode::{admin, fabrics, kv, versioned};
use crate::target::{CONNECT_BYTES, connect_field, feature};

/// A command with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The command. The connection gives it an id and points it to its data.
    pub sqe: Sqe,
    /// Data to the node.
    pub data: Vec<u8>,
    /// Room for data from the node.
    pub room: usize,
}

impl Call {
    /// Without data.
    #[must_use]
    pub fn plain(sqe: Sqe) -> Self {
        Self {
            sqe,
            data: Vec::new(),
            room: 0,
        }
    }

    fn to_node(sqe: Sqe, data: Vec<u8>) -> Self {
        let size = size(data.len());
        Self {
            sqe: sqe.with_word(10, size),
            data,
            room: 0,
        }
    }

    fn from_node(sqe: Sqe, room: usize) -> Self {
        Self {
            sqe: sqe.with_word(10, size(room)),
            data: Vec::new(),
            room,
        }
    }
}

fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn with_flags(sqe: Sqe, selector: u8, flags: u8) -> Sqe {
    let word = sqe.word(11) | u32::from(selector) << 16 | u32::from(flags) << 24;
    sqe.with_word(11, word)
}

/// A key of at most 16 bytes, or the digest of a longer one.
fn named(opcode: u8, namespace: u32, key: &Key) -> (Sqe, u8) {
    let sqe = Sqe::new(opcode).in_namespace(namespace);
    match key {
        Key::Plain(key) => (sqe.with_key(key), 0),
        Key::Digest(digest) => {
            let sqe = sqe.with_key(digest);
            (sqe.with_word(11, 0), flag::LONG)
        }
    }
}

/// What Connect asks for.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    /// The host's NQN.
    pub host: &'a str,
    /// The host's id.
    pub host_id: [u8; 16],
    /// The subsystem's NQN.
    pub subsystem: &'a str,
    /// The controller; on the admin queue any.
    pub controller: u16,
    /// The queue.
    pub queue: u16,
    /// Commands of the queue.
    pub depth: u16,
    /// Silence after which the controller ends; 0: never.
    pub keep_alive_ms: u32,
}

/// Connect.
#[must_use]
pub fn connect(connect: &Connect<'_>) -> Call {
    let mut sqe = Sqe::fabrics(fabrics::CONNECT);
    put_u16(&mut sqe.0, 42, connect.queue);
    put_u16(&mut sqe.0, 44, connect.depth.saturating_sub(1));
    put_u32(&mut sqe.0, 48, connect.keep_alive_ms);
    let mut data = vec![0; CONNECT_BYTES];
    put(&mut data, connect_field::HOST_ID, &connect.host_id);
    put_u16(&mut data, connect_field::CONTROLLER, connect.controller);
    // One byte is left for the zero behind a name.
    put_text(
        &mut data,
        connect_field::SUBSYSTEM,
        255,
        connect.subsystem,
        0,
    );
    put_text(&mut data, connect_field::HOST, 255, connect.host, 0);
    Call { sqe, data, room: 0 }
}

/// Reads a property.
#[must_use]
pub fn property_get(offset: u32) -> Call {
    let mut sqe = Sqe::fabrics(fabrics::PROPERTY_GET).with_word(11, offset);
    sqe.0[40] = u8::from(offset == 0);
    Call::plain(sqe)
}

/// Sets a property of 4 bytes.
#[must_use]
pub fn property_set(offset: u32, value: u32) -> Call {
    let sqe = Sqe::fabrics(fabrics::PROPERTY_SET);
    Call::plain(sqe.with_word(11, offset).with_word(12, value))
}

fn security(kind: u8, bytes: usize) -> Sqe {
    let mut sqe = Sqe::fabrics(kind).with_word(11, size(bytes));
    put(&mut sqe.0, 41, &[1, 1, 0xe9]);
    sqe
}

/// Sends a message of authentication.
#[must_use]
pub fn auth_send(message: Vec<u8>) -> Call {
    Call {
        sqe: security(fabrics::AUTH_SEND, message.len()),
        data: message,
        room: 0,
    }
}

/// Fetches a message of authentication.
#[must_use]
pub fn auth_receive(room: usize) -> Call {
    Call {
        sqe: security(fabrics::AUTH_RECEIVE, room),
        data: Vec::new(),
        room,
    }
}

/// Identify.
#[must_use]
pub fn identify(page: u8, namespace: u32, set: u8) -> Call {
    let sqe = Sqe::new(admin::IDENTIFY).in_namespace(namespace);
    let sqe = sqe.with_word(11, u32::from(set) << 24);
    Call {
        room: 4096,
        ..Call::plain(sqe.with_word(10, u32::from(page)))
    }
}

/// A piece of a log page.
#[must_use]
pub fn log(number: u8, namespace: u32, set: u8, offset: u64, bytes: usize) -> Call {
    let words = size(bytes / 4).saturating_sub(1);
    let sqe = Sqe::new(admin::GET_LOG).in_namespace(namespace);
    let sqe = sqe.with_word(10, u32::from(number) | words << 16);
    let sqe = sqe.with_word(11, words >> 16).with_pair(12, offset);
    Call {
        room: bytes,
        ..Call::plain(sqe.with_word(14, u32::from(set) << 24))
    }
}

/// Sets a feature.
#[must_use]
pub fn set_feature(number: u8, namespace: u32, value: u32) -> Call {
    let sqe = Sqe::new(admin::SET_FEATURES).in_namespace(namespace);
    Call::plain(sqe.with_word(10, u32::from(number)).with_word(11, value))
}

/// Reads a feature.
#[must_use]
pub fn get_feature(number: u8, namespace: u32) -> Call {
    let sqe = Sqe::new(admin::GET_FEATURES).in_namespace(namespace);
    Call::plain(sqe.with_word(10, u32::from(number)))
}

/// Reads how long versions are kept.
#[must_use]
pub fn retention(namespace: u32) -> Call {
    Call {
        room: layout::RETENTION_BYTES,
        ..get_feature(feature::RETENTION, namespace)
    }
}

/// Changes how long versions are kept.
#[must_use]
pub fn set_retention(namespace: u32, retention: &Retention) -> Call {
    Call {
        data: layout::retention_bytes(retention),
        ..set_feature(feature::RETENTION, namespace, 0)
    }
}

/// Locks how long versions are kept, for so many microseconds that the node runs.
#[must_use]
pub fn lock_retention(namespace: u32, for_us: u64) -> Call {
    Call {
        data: layout::lock_bytes(for_us),
        ..set_feature(feature::RETENTION, namespace, 1)
    }
}

/// Waits for an event.
#[must_use]
pub fn event() -> Call {
    Call::plain(Sqe::new(admin::ASYNC_EVENT))
}

/// The host lives.
#[must_use]
pub fn keep_alive() -> Call {
    Call::plain(Sqe::new(admin::KEEP_ALIVE))
}

/// The standard's Store.
#[must_use]
pub fn store(namespace: u32, key: &[u8], value: Vec<u8>, condition: Condition) -> Call {
    let options: u32 = match condition {
        Condition::Present => 1,
        Condition::Absent => 2,
        Condition::Any | Condition::Head(_) => 0,
    };
    let sqe = Sqe::new(kv::STORE).in_namespace(namespace).with_key(key);
    let sqe = sqe.with_word(11, sqe.word(11) | options << 8);
    Call::to_node(sqe, value)
}

/// The standard's Retrieve.
#[must_use]
pub fn retrieve(namespace: u32, key: &[u8], room: usize) -> Call {
    let sqe = Sqe::new(kv::RETRIEVE).in_namespace(namespace).with_key(key);
    Call::from_node(sqe, room)
}

/// The standard's List.
#[must_use]
pub fn list(namespace: u32, from: &[u8], room: usize) -> Call {
    let sqe = Sqe::new(kv::LIST).in_namespace(namespace).with_key(from);
    Call::from_node(sqe, room)
}

/// The standard's Delete.
#[must_use]
pub fn delete(namespace: u32, key: &[u8]) -> Call {
    Call::plain(Sqe::new(kv::DELETE).in_namespace(namespace).with_key(key))
}

/// The standard's Exist.
#[must_use]
pub fn exist(namespace: u32, key: &[u8]) -> Call {
    Call::plain(Sqe::new(kv::EXIST).in_namespace(namespace).with_key(key))
}

fn conditional(sqe: Sqe, flags: u8, expected: Option<u64>) -> Sqe {
    match expected {
        Some(version) => with_flags(sqe.with_pair(12, version), 0, flags | flag::IF_VERSION),
        None => with_flags(sqe, 0, flags),
    }
}

/// Puts a value; the result is its version. `expected`: the head that there has to be, 0: none.
#[must_use]
pub fn put_value(namespace: u32, key: &[u8], value: Vec<u8>, expected: Option<u64>) -> Call {
    let sqe = Sqe::new(versioned::PUT).in_namespace(namespace);
    if key.len() <= SHORT_KEY_BYTES_MAX {
        Call::to_node(conditional(sqe.with_key(key), 0, expected), value)
    } else {
        let data = layout::long_bytes(key, &value);
        Call::to_node(conditional(sqe, flag::LONG, expected), data)
    }
}

/// Gets a value; `has_head`: what is known of it comes before it.
#[must_use]
pub fn get(namespace: u32, key: &Key, at: Selector, has_head: bool, room: usize) -> Call {
    let (sqe, flags) = named(versioned::GET, namespace, key);
    let (selector, argument) = layout::selector_numbers(at);
    let head = if has_head { flag::HEAD } else { 0 };
    let sqe = with_flags(sqe, selector, flags | head);
    Call::from_node(sqe.with_pair(12, argument), room)
}

/// Lists a key's versions below one; 0: from the head.
#[must_use]
pub fn versions(namespace: u32, key: &Key, below: u64, room: usize) -> Call {
    let (sqe, flags) = named(versioned::VERSIONS, namespace, key);
    let sqe = with_flags(sqe, 0, flags).with_pair(12, below);
    Call::from_node(sqe, room)
}

/// Puts a delete marker; the result is its version.
#[must_use]
pub fn delete_key(namespace: u32, key: &Key, expected: Option<u64>) -> Call {
    let (sqe, flags) = named(versioned::DELETE, namespace, key);
    Call::plain(conditional(sqe, flags, expected))
}

/// Makes a version's content the head again; the result is the new version.
#[must_use]
pub fn restore(namespace: u32, key: &Key, from: Selector) -> Call {
    let (sqe, flags) = named(versioned::RESTORE, namespace, key);
    let (selector, argument) = layout::selector_numbers(from);
    Call::plain(with_flags(sqe, selector, flags).with_pair(12, argument))
}

/// All or none; the result is the version.
#[must_use]
pub fn batch(namespace: u32, rows: &[Write]) -> Call {
    let sqe = Sqe::new(versioned::BATCH).in_namespace(namespace);
    Call::to_node(sqe, layout::batch_bytes(rows))
}

/// Rolls a scope back; the result is its id.
#[must_use]
pub fn roll_back(namespace: u32, roll_back: &RollBack) -> Call {
    let sqe = Sqe::new(versioned::ROLL_BACK).in_namespace(namespace);
    Call::to_node(sqe, layout::roll_back_bytes(roll_back))
}

/// Lists keys with a prefix, a page at a time.
#[must_use]
pub fn keys(namespace: u32, prefix: &[u8], cursor: u64, room: usize) -> Call {
    let sqe = Sqe::new(versioned::KEYS).in_namespace(namespace);
    Call::from_node(sqe.with_key(prefix).with_pair(12, cursor), room)
}

/// Opens a listing of a moment; the result is its handle.
#[must_use]
pub fn open_listing(namespace: u32, listing: &ListingRequest) -> Call {
    let sqe = Sqe::new(versioned::OPEN_LISTING).in_namespace(namespace);
    Call::to_node(sqe, layout::listing_bytes(listing))
}

/// The next page of a listing.
#[must_use]
pub fn listed_keys(namespace: u32, handle: u64, cursor: u64, room: usize) -> Call {
    let sqe = Sqe::new(versioned::KEYS).in_namespace(namespace);
    let sqe = sqe.with_key(&handle.to_le_bytes());
    let sqe = with_flags(sqe, 0, flag::LONG).with_pair(12, cursor);
    Call::from_node(sqe, room)
}

/// Takes a snapshot for so many seconds, 0: until it is released; the result is its version.
#[must_use]
pub fn snapshot(namespace: u32, seconds: u64) -> Call {
    let sqe = Sqe::new(versioned::SNAPSHOT).in_namespace(namespace);
    Call::plain(sqe.with_pair(12, seconds))
}

/// Releases a snapshot.
#[must_use]
pub fn release(namespace: u32, version: u64) -> Call {
    let sqe = Sqe::new(versioned::SNAPSHOT).in_namespace(namespace);
    Call::plain(with_flags(sqe, 1, 0).with_pair(12, version))
}

/// Ends this host's other controllers. When it is answered, nothing that they were sent can happen any more: what was
/// lost with them may be asked for again.
#[must_use]
pub fn fence() -> Call {
    Call::plain(Sqe::new(versioned::FENCE))
}
