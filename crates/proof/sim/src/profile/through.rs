// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile of hot keys that are written as often as they are read.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND, US};

pub(super) const THROUGH: Profile = Profile {
    name: "through",
    about: "hot keys, as many writes as reads, some of them unseen, with loss",
    connections: 24,
    operations: 300,
    duration: 3 * SECOND,
    link: LinkRates {
        loss: 5_000,
        duplicate: 10_000,
        reorder: 10_000,
        jitter: 300_000,
        jitter_max: 200 * US,
        ..CALM.link
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        backlog: 2_000,
        sets: 4,
        ..CALM.server
    },
    client: ClientRates {
        parallel: 5,
        keys: 4,
        reads: 500_000,
        plain_reads: 800_000,
        odd_commands: 5_000,
        expiry: 5_000,
        pipelines: 50_000,
        think: MS,
        ..CALM.client
    },
    events: Events {
        unseen: 20 * MS,
        ..CALM.events
    },
    ..CALM
};
