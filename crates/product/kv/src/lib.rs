// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of the storage node, over NVMe/TCP in user space: no privilege and no kernel driver are needed.
//!
//! ```no_run
//! let mut store = erb_kv::Client::connect(&"nvme://127.0.0.1:4420".parse()?)?;
//! let version = store.put(b"key", b"value", None)?;
//! assert_eq!(store.get(b"key", erb_kv::Selector::Head)?.value, b"value");
//! # Ok::<(), erb_kv::Error>(())
//! ```
//!
//! A node that other machines can reach asks for proof: [`Identity`] has what a host is known by.
//!
//! A client makes one call at a time. Who wants several under way connects several times, which is cheap: a
//! [`Crowd`](crowd::Crowd) does it with one thread. What `erb kv export` writes is an [`archive`].
//!
//! Invariants:
//! 1. A call that is lost is not repeated: who made it hears [`Error::Lost`].
//! 2. Each client has a host id of its own, so no fence of another ends it.

pub mod archive;
mod connection;
pub mod crowd;
mod error;
mod once;
mod url;

use std::cmp::Ordering;

use erb_nvme::auth::Policy;
pub use erb_nvme::auth::{NoSecret, Secret, Secrets};
use erb_nvme::client::{Settings, calls};
use erb_nvme::layout::{self, HEAD_BYTES, LOG_HEAD_BYTES, ListingRequest, STATUS_BYTES};
use erb_nvme::limits::{KEY_BYTES_MAX, SHORT_KEY_BYTES_MAX, TRANSFER_BYTES_MAX};
use erb_nvme::random::Random;
use erb_nvme::target::{ANY_CONTROLLER, log};
use sha2::{Digest, Sha256};

pub use erb_nvme::backend::{
    Change, Condition, Damage, Head, Health, Kept, Key, Listed, Mark, MarkKind, Retention,
    RollBack, Selector, Target, Write,
};
pub use erb_nvme::pdu::Digests;
pub use erb_nvme::status::Status;
pub use error::{Error, NotLetIn, Result};
pub use url::Url;

use connection::{Queue, SystemRandom};

/// Bytes of the longest value: what one call carries.
pub const VALUE_BYTES_MAX: usize = TRANSFER_BYTES_MAX;
/// Bytes of data of one call.
const ROOM: usize = TRANSFER_BYTES_MAX;
const TIMEOUT_US: u64 = 60_000_000;
/// Bytes of a page of keys, and of a list of versions.
const PAGE_BYTES: usize = 128 << 10;
/// A log of marks is read in pieces of this many bytes.
const LOG_PIECE: usize = 64 << 10;

/// A value and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// What is known of it.
    pub head: Head,
    /// The value.
    pub value: Vec<u8>,
}

impl Identity {
    /// A name that nobody else has, and no secret.
    fn drawn() -> Self {
        let mut drawn = [0; 16];
        random(&mut drawn);
        let hex: String = drawn.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            host: format!("nqn.2026-11.org.erb:host:{hex}"),
            secrets: None,
        }
    }
}

/// A client of one namespace.
pub struct Client {
    // The controller lives as long as its admin queue.
    admin: Queue,
    queue: Queue,
    namespace: u32,
}

fn random(bytes: &mut [u8]) {
    SystemRandom.fill(bytes);
}

/// A key in full, as a [`Write`] names it.
#[must_use]
pub fn plain(key: &[u8]) -> Key {
    Key::Plain(key.to_vec())
}

/// As commands name it.
fn named(key: &[u8]) -> Result<Key> {
    match key.len() {
        0 => Err(Error::Size),
        1..=SHORT_KEY_BYTES_MAX => Ok(Key::Plain(key.to_vec())),
        length if length <= KEY_BYTES_MAX => {
            let mut digest = [0; SHORT_KEY_BYTES_MAX];
            digest.copy_from_slice(&Sha256::digest(key)[..SHORT_KEY_BYTES_MAX]);
            Ok(Key::Digest(digest))
        }
        _ => Err(Error::Size),
    }
}

/// What a node knows a host by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its NQN.
    pub host: String,
    /// The host's secret, and the node's if the node has to prove itself too.
    ///
    /// ```
    /// # let text = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";
    /// assert!(erb_kv::Secrets::parse(text).is_ok());
    /// ```
    pub secrets: Option<Secrets>,
}

/// Whether a key can have such a value.
fn check_put(key: &[u8], value: &[u8]) -> Result<()> {
    if fits(key, value.len()) {
        Ok(())
    } else {
        Err(Error::Size)
    }
}

/// Whether a store takes a key and a value of so many bytes.
fn fits(key: &[u8], value_bytes: usize) -> bool {
    let is_long = key.len() > SHORT_KEY_BYTES_MAX;
    let beside = if is_long { key.len() + 2 } else { 0 };
    (1..=KEY_BYTES_MAX).contains(&key.len()) && value_bytes + beside <= ROOM
}

/// What a get with a head has brought.
enum Got {
    Whole(Value),
    /// The head has taken the place of the value's end: of the largest values alone.
    Cut(Head),
}

fn got(mut data: Vec<u8>) -> Result<Got> {
    let head = layout::head_of(&data).ok_or(Error::Answer)?;
    data.drain(..HEAD_BYTES.min(data.len()));
    match data.len().cmp(&(head.bytes as usize)) {
        Ordering::Less => Ok(Got::Cut(head)),
        Ordering::Equal => Ok(Got::Whole(Value { head, value: data })),
        Ordering::Greater => Err(Error::Answer),
    }
}

impl Client {
    /// Connects to a node that asks for no proof, under a name that nobody else has.
    ///
    /// # Errors
    /// The node cannot be reached, or does not want this host.
    pub fn connect(url: &Url) -> Result<Self> {
        Self::connect_as(url, &Identity::drawn())
    }

    /// The same, and digests tell of what was damaged on its way and TCP's sums have overlooked.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(url: &Url, digests: Digests) -> Result<Self> {
        Self::open(url, &Identity::drawn(), digests)
    }

    /// Connects as a host that the node knows.
    ///
    /// # Errors
    /// The node cannot be reached, or does not let this host in; it has not proved itself, and should have.
    pub fn connect_as(url: &Url, identity: &Identity) -> Result<Self> {
        Self::open(url, identity, Digests::default())
    }

    fn open(url: &Url, identity: &Identity, digests: Digests) -> Result<Self> {
        let mut host_id = [0; 16];
        random(&mut host_id);
        let mut settings = Settings {
            host: identity.host.clone(),
            host_id,
            subsystem: url.nqn.clone(),
            controller: ANY_CONTROLLER,
            queue: 0,
            depth: 32,
            // A client that says nothing for hours is still one. TCP tells when its machine is gone.
            keep_alive_ms: 0,
            digests,
            alignment: 0,
            io_queues: 1,
            secrets: identity.secrets.clone(),
            policy: Policy::default(),
            in_capsule_bytes: 8192,
            timeout_us: TIMEOUT_US,
        };
        let admin = Queue::open(url, settings.clone())?;
        settings.queue = 1;
        settings.controller = admin.controller();
        let queue = Queue::open(url, settings)?;
        Ok(Self {
            admin,
            queue,
            namespace: url.namespace,
        })
    }

    /// Gives a key a value: its version. `expected`: the version that it has to have, 0: no value.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn put(&mut self, key: &[u8], value: &[u8], expected: Option<u64>) -> Result<u64> {
        check_put(key, value)?;
        let call = calls::put_value(self.namespace, key, value.to_vec(), expected);
        Ok(self.queue.call(call)?.result)
    }

    /// A key's value.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn get(&mut self, key: &[u8], at: Selector) -> Result<Value> {
        let name = named(key)?;
        let call = calls::get(self.namespace, &name, at, true, ROOM);
        let reply = self.queue.call(call)?;
        let head = match got(reply.data)? {
            Got::Whole(value) => return Ok(value),
            Got::Cut(head) => head,
        };
        let at = Selector::Version(head.version);
        let call = calls::get(self.namespace, &name, at, false, ROOM);
        let value = self.queue.call(call)?.data;
        if value.len() != head.bytes as usize {
            return Err(Error::Answer);
        }
        Ok(Value { head, value })
    }

    /// Deletes a key: the version of its delete marker; 0: it had no value.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn delete(&mut self, key: &[u8], expected: Option<u64>) -> Result<u64> {
        let call = calls::delete_key(self.namespace, &named(key)?, expected);
        Ok(self.queue.call(call)?.result)
    }

    /// Makes a version's content the key's value again: the new version.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn restore(&mut self, key: &[u8], from: Selector) -> Result<u64> {
        let call = calls::restore(self.namespace, &named(key)?, from);
        Ok(self.queue.call(call)?.result)
    }

    /// Changes keys, all or none: the one version.
    ///
    /// # Errors
    /// As the node says; it is not there.
    ///
    /// # Panics
    /// A key is a digest.
    pub fn batch(&mut self, writes: &[Write]) -> Result<u64> {
        let call = calls::batch(self.namespace, writes);
        Ok(self.queue.call(call)?.result)
    }

    /// A key's versions below one, newest first, and whether there are more. 0: from the newest.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn versions(&mut self, key: &[u8], below: u64) -> Result<(Vec<Head>, bool)> {
        let call = calls::versions(self.namespace, &named(key)?, below, PAGE_BYTES);
        let reply = self.queue.call(call)?;
        let (rows, has_more, _) = layout::versions_of(&reply.data).ok_or(Error::Answer)?;
        Ok((rows, has_more))
    }

    /// Opens a listing of what keys with a prefix were at a moment; 0: now.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn listing(&mut self, prefix: &[u8], moment: u64, changed_since: u64) -> Result<Listing> {
        self.open_listing(prefix, moment, changed_since, false)
    }

    /// The same of what has changed since, with keys that were deleted: their flags say so.
    ///
    /// # Errors
    /// As the node says, also if keys that were deleted since may be forgotten; it is not there.
    pub fn changes(&mut self, prefix: &[u8], moment: u64, since: u64) -> Result<Listing> {
        self.open_listing(prefix, moment, since, true)
    }

    fn open_listing(
        &mut self,
        prefix: &[u8],
        moment: u64,
        since: u64,
        has_deleted: bool,
    ) -> Result<Listing> {
        let listing = ListingRequest {
            moment,
            changed_since: since,
            has_deleted,
            prefix: prefix.to_vec(),
        };
        if prefix.len() > KEY_BYTES_MAX {
            return Err(Error::Size);
        }
        let call = calls::open_listing(self.namespace, &listing);
        let handle = self.queue.call(call)?.result;
        Ok(Listing {
            handle,
            cursor: Some(0),
            moment,
            since,
            has_deleted,
        })
    }

    /// The next page of a listing; none: that was all.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn page(&mut self, listing: &mut Listing) -> Result<Option<Vec<Listed>>> {
        let Some(cursor) = listing.cursor else {
            return Ok(None);
        };
        let call = calls::listed_keys(self.namespace, listing.handle, cursor, PAGE_BYTES);
        let reply = self.queue.call(call)?;
        let (rows, next, cut) = layout::page_of(&reply.data).ok_or(Error::Answer)?;
        listing.cursor = Some(next).filter(|next| *next != 0);
        listing.moment = cut;
        Ok(Some(rows))
    }

    /// Opens a listing again that nobody has read for so long that the node has let it go. It goes on where it was.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn reopen(&mut self, listing: &mut Listing, prefix: &[u8]) -> Result<()> {
        let (since, has_deleted) = (listing.since, listing.has_deleted);
        let again = self.open_listing(prefix, listing.moment, since, has_deleted)?;
        listing.handle = again.handle;
        Ok(())
    }

    /// Rolls keys back: the id, which undoes it, or names what a dry run has counted.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn roll_back(&mut self, roll_back: &RollBack) -> Result<u64> {
        if roll_back.prefix.len() > KEY_BYTES_MAX {
            return Err(Error::Size);
        }
        let call = calls::roll_back(self.namespace, roll_back);
        Ok(self.queue.call(call)?.result)
    }

    /// How many keys a roll back would change.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn count(&mut self, roll_back: &RollBack) -> Result<u64> {
        let dry = RollBack {
            is_dry_run: true,
            ..roll_back.clone()
        };
        let id = self.roll_back(&dry)?;
        let marks = self.marks()?.into_iter();
        let mut counted = marks.filter(|mark| mark.kind == MarkKind::DryRun && mark.id == id);
        Ok(counted.next().ok_or(Error::Answer)?.keys)
    }

    /// Holds the present moment until it is released: its version.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn snapshot(&mut self) -> Result<u64> {
        self.snapshot_for(0)
    }

    /// Holds the present moment for so many seconds that the node runs: its version.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn snapshot_for(&mut self, seconds: u64) -> Result<u64> {
        let call = calls::snapshot(self.namespace, seconds);
        Ok(self.queue.call(call)?.result)
    }

    /// Lets a moment go that a snapshot holds.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn release(&mut self, version: u64) -> Result<()> {
        let call = calls::release(self.namespace, version);
        self.queue.call(call).map(|_| ())
    }

    /// How the store is.
    ///
    /// # Errors
    /// The node says why; it is not there.
    pub fn health(&mut self) -> Result<Health> {
        let call = calls::log(log::STATUS, self.namespace, 1, 0, STATUS_BYTES);
        let reply = self.admin.call(call)?;
        layout::health_of(&reply.data).ok_or(Error::Answer)
    }

    /// A log that is read in pieces, of which the first says how many bytes there are.
    fn log(&mut self, number: u8, length: fn(&[u8]) -> Option<usize>) -> Result<Vec<u8>> {
        'changed: loop {
            let mut all: Vec<u8> = Vec::new();
            loop {
                let (offset, namespace) = (all.len() as u64, self.namespace);
                let call = calls::log(number, namespace, 1, offset, LOG_PIECE);
                all.extend_from_slice(&self.admin.call(call)?.data);
                if all.len() >= length(&all).ok_or(Error::Answer)? {
                    break;
                }
            }
            if all.len() > LOG_PIECE {
                // Pieces belong together if nothing has moved meanwhile.
                let call = calls::log(number, self.namespace, 1, 0, LOG_HEAD_BYTES);
                let again = self.admin.call(call)?.data;
                if again.get(..8) != all.get(..8) {
                    continue 'changed;
                }
            }
            return Ok(all);
        }
    }

    /// Roll backs that a checkpoint does not have yet, the last dry runs, and snapshots.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn marks(&mut self) -> Result<Vec<Mark>> {
        let all = self.log(log::MARKS, layout::marks_len)?;
        Ok(layout::marks_of(&all).ok_or(Error::Answer)?.1)
    }

    /// What the node's scrub has found damaged since its start: of this namespace, and what is not known whose it was.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn damage(&mut self) -> Result<Vec<Damage>> {
        let all = self.log(log::DAMAGE, layout::damage_len)?;
        Ok(layout::damage_of(&all).ok_or(Error::Answer)?.1)
    }

    /// How long versions are kept.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn retention(&mut self) -> Result<Retention> {
        Ok(self.kept()?.retention)
    }

    /// The same, with its lock and what is to become less.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn kept(&mut self) -> Result<Kept> {
        let reply = self.admin.call(calls::retention(self.namespace))?;
        layout::kept_of(&reply.data).ok_or(Error::Answer)
    }

    /// Locks it: for so many microseconds that the node runs it becomes no less. Nobody can take that back.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn lock_retention(&mut self, for_us: u64) -> Result<()> {
        let call = calls::lock_retention(self.namespace, for_us);
        self.admin.call(call).map(|_| ())
    }

    /// Changes how long versions are kept.
    ///
    /// # Errors
    /// As the node says; it is not there.
    pub fn set_retention(&mut self, retention: &Retention) -> Result<()> {
        let call = calls::set_retention(self.namespace, retention);
        self.admin.call(call).map(|_| ())
    }
}

/// A listing of a moment, which a client goes through.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    handle: u64,
    cursor: Option<u64>,
    moment: u64,
    since: u64,
    has_deleted: bool,
}

impl Listing {
    /// The moment whose keys it has; 0: it is not known before the first page.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.moment
    }
}
