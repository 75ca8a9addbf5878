// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Profiles of what is beside Redis and its usual clients: frames of nobody, other addresses, another
//! server, clocks that step, values that no bound allows.

use crate::profile::list::QUIET_LINK;
use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND};

pub(super) const STRANGERS: Profile = Profile {
    name: "strangers",
    about: "IPv6: payload without a connection, frames for other addresses, forged segments and fragments",
    ipv6: true,
    link: LinkRates {
        stranger: 50_000,
        foreign: 50_000,
        forged: 20_000,
        forged_piece: 20_000,
        loss: 2_000,
        ..QUIET_LINK
    },
    ..CALM
};

pub(super) const NEIGHBOURS: Profile = Profile {
    name: "neighbours",
    about: "another server on another address of the port, with clients of its own; strangers",
    connections: 24,
    link: LinkRates {
        stranger: 5_000,
        foreign: 20_000,
        loss: 5_000,
        reorder: 10_000,
        duplicate: 5_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        cpus: 3,
        merge: 50_000,
        ..CALM.server
    },
    client: ClientRates {
        neighbour: 400_000,
        parallel: 5,
        half_close: 100_000,
        reset: 100_000,
        ..CALM.client
    },
    ..CALM
};

pub(super) const TICKS: Profile = Profile {
    name: "ticks",
    about: "clients' timestamp clocks step, forward through their range and slightly back",
    duration: 6 * SECOND,
    link: LinkRates {
        loss: 5_000,
        duplicate: 5_000,
        reorder: 5_000,
        ..QUIET_LINK
    },
    client: ClientRates {
        no_timestamps: 0,
        big_values: 100_000,
        value_bytes_max: 6_000,
        odd_commands: 40_000,
        think: 10 * MS,
        ..CALM.client
    },
    events: Events {
        ticks: 80 * MS,
        unseen: 200 * MS,
        ..CALM.events
    },
    ..CALM
};

pub(super) const BEYOND: Profile = Profile {
    name: "beyond",
    about: "values around each bound of slots, answers and fills, and beyond a megabyte",
    operations: 60,
    link: LinkRates {
        loss: 1_000,
        ..QUIET_LINK
    },
    client: ClientRates {
        beyond: 400_000,
        reads: 800_000,
        keys: 12,
        odd_commands: 5_000,
        ..CALM.client
    },
    ..CALM
};
