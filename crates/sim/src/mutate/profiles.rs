// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Profiles that make one kind of mistake likely. They can be run and replayed like all others.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile};
use crate::time::{MS, SECOND};

/// Commands with unknown keys, transactions, monitors.
const ODD: Profile = Profile {
    name: "odd",
    about: "many commands that are not GET or SET",
    client: ClientRates {
        odd_commands: 250_000,
        keys: 6,
        ..CALM.client
    },
    ..CALM
};

/// Short lives of keys.
const EXPIRY: Profile = Profile {
    name: "expiry",
    about: "keys that expire soon",
    client: ClientRates {
        expiry: 300_000,
        keys: 6,
        think: MS,
        ..CALM.client
    },
    ..CALM
};

/// Only the lease protects.
const LEASE: Profile = Profile {
    name: "lease",
    about: "unseen changes while daemon and feed fail",
    duration: 6 * SECOND,
    client: ClientRates {
        keys: 4,
        reads: 950_000,
        ..CALM.client
    },
    events: Events {
        unseen: 15 * MS,
        daemon_crash: 2 * SECOND,
        daemon_stall: SECOND,
        feed_cut: SECOND,
        redis_stall: SECOND,
        ..CALM.events
    },
    ..CALM
};

/// The path MTU shrinks.
const PMTU: Profile = Profile {
    name: "pmtu",
    about: "large values over a path whose MTU shrinks",
    client: ClientRates {
        big_values: 500_000,
        value_bytes_max: 9_000,
        ..CALM.client
    },
    link: LinkRates {
        too_big: 20_000,
        ..CALM.link
    },
    ..CALM
};

/// All of them.
pub const PROFILES: &[Profile] = &[ODD, EXPIRY, LEASE, PMTU];

/// The profile of this name, of these or of all others.
#[must_use]
pub fn find(name: &str) -> Option<&'static Profile> {
    crate::profile::find(name).or_else(|| PROFILES.iter().find(|profile| profile.name == name))
}
