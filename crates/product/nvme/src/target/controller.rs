// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queues of a controller share.
//!
//! Invariants:
//! 1. A controller and its queues end together, but for I/O queues that a reset takes, that are closed with nothing under
//!    way, or that have not proved themselves.
//! 2. Once it has ended nothing is submitted for it any more; what was submitted before is counted until it is done.
//! 3. Listings and event requests are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config::{Host, Role};
use crate::layout::ListingRequest;

/// CC: enabled.
const ENABLE: u32 = 1;
const COMMAND_SETS_SHIFT: u32 = 4;
const SHUTDOWN_SHIFT: u32 = 14;
/// CC.CSS: all command sets.
pub(super) const ALL_COMMAND_SETS: u32 = 6;
/// Everything that has a fixed value: MPS 0, AMS 0, IOSQES 6 or 0, IOCQES 4 or 0.
const PAGE_AND_ARBITRATION: u32 = 0x3f80;

/// Something that a host may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A namespace came, went or changed.
    Namespaces,
    /// The discovery log changed.
    Discovery,
    /// The store is nearly full or writes are refused.
    Capacity,
}

impl Event {
    /// Bit of the event's feature.
    fn bit(self) -> u32 {
        match self {
            Self::Capacity => 1,
            Self::Namespaces => 1 << 8,
            Self::Discovery => 1 << 31,
        }
    }

    /// The log that tells more, and that clears it.
    pub(super) fn log(self) -> u8 {
        match self {
            Self::Namespaces => 0x04,
            Self::Discovery => 0x70,
            Self::Capacity => 0x02,
        }
    }

    /// DW0 of a completion: type 2:0, information 15:8, log 23:16.
    pub(super) fn result(self) -> u64 {
        let (kind, information) = match self {
            Self::Namespaces => (2, 0x00),
            Self::Discovery => (2, 0xf0),
            Self::Capacity => (1, 0x02),
        };
        kind | information << 8 | u64::from(self.log()) << 16
    }
}

/// A listing of a moment.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    pub(super) request: ListingRequest,
    pub(super) namespace: u32,
    until_us: u64,
}

/// A controller.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) id: u16,
    pub(super) serial: u64,
    pub(super) host: Arc<Host>,
    pub(super) host_id: [u8; 16],
    pub(super) is_discovery: bool,
    pub(super) is_authenticated: bool,
    pub(super) is_ended: bool,
    /// Commands in the backend.
    pub(super) running: usize,
    pub(super) configuration: u32,
    /// Moves when I/O queues are taken.
    pub(super) resets: u32,
    pub(super) queues: BTreeSet<u16>,
    pub(super) granted: u16,
    pub(super) keep_alive_ms: u32,
    pub(super) alive_until_us: Option<u64>,
    pub(super) event_settings: u32,
    /// Happened, and nobody was told.
    pending: BTreeSet<Event>,
    /// Told, and the log was not read since.
    told: BTreeSet<Event>,
    /// Namespaces where a delete of a missing key is an error.
    pub(super) strict_deletes: BTreeSet<u32>,
    listings: BTreeMap<u64, Listing>,
    next_listing: u64,
}

impl Controller {
    pub(super) fn new(
        id: u16,
        serial: u64,
        host: Arc<Host>,
        host_id: [u8; 16],
        is_discovery: bool,
    ) -> Self {
        Self {
            id,
            serial,
            host,
            host_id,
            is_discovery,
            is_authenticated: false,
            is_ended: false,
            running: 0,
            configuration: 0,
            resets: 0,
            queues: BTreeSet::new(),
            granted: 1,
            keep_alive_ms: 0,
            alive_until_us: None,
            event_settings: 0,
            pending: BTreeSet::new(),
            told: BTreeSet::new(),
            strict_deletes: BTreeSet::new(),
            listings: BTreeMap::new(),
            next_listing: 1,
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.configuration & ENABLE != 0 && self.shutdown() == 0
    }

    fn shutdown(&self) -> u32 {
        self.configuration >> SHUTDOWN_SHIFT & 3
    }

    /// CSTS: ready, and whether the shutdown is over.
    pub(super) fn status(&self) -> u32 {
        let is_shut = self.shutdown() != 0;
        (self.configuration & ENABLE) | if is_shut { 2 << 2 } else { 0 }
    }

    /// Sets CC. False: it makes no sense.
    pub(super) fn configure(&mut self, configuration: u32) -> bool {
        let command_sets = configuration >> COMMAND_SETS_SHIFT & 7;
        let is_known = command_sets == 0 || command_sets == ALL_COMMAND_SETS;
        if !is_known || configuration & PAGE_AND_ARBITRATION != 0 {
            return false;
        }
        if self.configuration & ENABLE != 0 && configuration & ENABLE == 0 {
            self.resets += 1;
            self.queues.clear();
            self.listings.clear();
        }
        self.configuration = configuration;
        true
    }

    /// Whether the host enabled the KV command set.
    pub(super) fn has_keys(&self) -> bool {
        self.configuration >> COMMAND_SETS_SHIFT & 7 == ALL_COMMAND_SETS
    }

    /// The host's role in a namespace that it may see.
    pub(super) fn role(&self, namespace: u32) -> Option<Role> {
        let role = self.host.roles.get(&namespace).copied();
        role.filter(|_| self.has_keys())
    }

    pub(super) fn keep_alive(&mut self, now_us: u64) {
        let lasts_us = u64::from(self.keep_alive_ms) * 1000;
        self.alive_until_us = (lasts_us > 0).then(|| now_us.saturating_add(lasts_us));
    }

    /// Something happened.
    pub(super) fn happened(&mut self, event: Event) {
        if self.event_settings & event.bit() != 0 {
            self.pending.insert(event);
        }
    }

    /// The next event to tell. It is not told again until its log has been read.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let mut pending = self.pending.iter().copied();
        let event = pending.find(|event| !self.told.contains(event))?;
        self.pending.remove(&event);
        self.told.insert(event);
        Some(event)
    }

    pub(super) fn log_was_read(&mut self, log: u8) {
        self.told.retain(|event| event.log() != log);
    }

    /// Opens a listing, if there is room.
    pub(super) fn open_listing(
        &mut self,
        request: ListingRequest,
        namespace: u32,
        most: usize,
        until_us: u64,
        now_us: u64,
    ) -> Option<u64> {
        self.listings.retain(|_, listing| listing.until_us > now_us);
        if self.listings.len() >= most {
            return None;
        }
        let handle = self.next_listing;
        self.next_listing += 1;
        let listing = Listing {
            request,
            namespace,
            until_us,
        };
        self.listings.insert(handle, listing);
        Some(handle)
    }

    /// An open listing, which then stays open for longer.
    pub(super) fn listing(&mut self, handle: u64, now_us: u64, until_us: u64) -> Option<&Listing> {
        let listing = self.listings.get_mut(&handle)?;
        if listing.until_us <= now_us {
            return None;
        }
        listing.until_us = until_us;
        Some(listing)
    }

    pub(super) fn listings(&self) -> usize {
        self.listings.len()
    }
}
