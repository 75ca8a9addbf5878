// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Profiles that make one kind of mistake likely. They can be run and replayed like all others.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND, US};

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

/// Values that fill their slots.
const EDGES: Profile = Profile {
    name: "edges",
    about: "values around the edges of the smallest slots, with and without expiry",
    client: ClientRates {
        expiry: 800_000,
        big_values: 1_000_000,
        value_bytes_max: 112,
        keys: 6,
        think: MS,
        ..CALM.client
    },
    ..CALM
};

/// The same packets on several CPUs at once.
const TWINS: Profile = Profile {
    name: "twins",
    about: "short connections, packets doubled, each copy on a CPU of its own",
    connections: 48,
    operations: 8,
    server: ServerRates {
        cpus: 4,
        switch: 30_000,
        cpu_change: 500_000,
        ..CALM.server
    },
    client: ClientRates {
        machines: 4,
        parallel: 6,
        ..CALM.client
    },
    link: LinkRates {
        duplicate: 400_000,
        ..CALM.link
    },
    ..CALM
};

/// Writes wait for Redis when their connection ceases to be countable.
const PROOF: Profile = Profile {
    name: "proof",
    about: "a slow Redis, many writes and commands that end counting",
    client: ClientRates {
        odd_commands: 300_000,
        reads: 200_000,
        think: 100 * US,
        ..CALM.client
    },
    events: Events {
        redis_stall: 400 * MS,
        ..CALM.events
    },
    ..CALM
};

/// What other profiles have too seldom to count on.
const SELDOM: Profile = Profile {
    name: "seldom",
    about: "power cuts, a dead Redis, no metadata, forged segments",
    connections: 60,
    operations: 10,
    duration: 4 * SECOND,
    server: ServerRates {
        no_meta: 30_000,
        ..CALM.server
    },
    link: LinkRates {
        forged: 10_000,
        ..CALM.link
    },
    events: Events {
        machine_crash: 2 * SECOND,
        redis_crash: 800 * MS,
        settings: 300 * MS,
        ..CALM.events
    },
    ..CALM
};

/// All of them.
pub const PROFILES: &[Profile] = &[ODD, EXPIRY, LEASE, PMTU, EDGES, TWINS, PROOF, SELDOM];

/// The profile of this name, of these or of all others.
#[must_use]
pub fn find(name: &str) -> Option<&'static Profile> {
    crate::profile::find(name).or_else(|| PROFILES.iter().find(|profile| profile.name == name))
}
