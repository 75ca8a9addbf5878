// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile in which Redis tells the daemon now of all changes, now of what it has read.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, US};

pub(super) const REPORTS: Profile = Profile {
    name: "reports",
    about: "of which changes Redis tells moves all the time, with writes, seen and unseen",
    link: LinkRates {
        loss: 5_000,
        duplicate: 10_000,
        jitter: 300_000,
        jitter_max: 100 * US,
        ..CALM.link
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        ..CALM.server
    },
    client: ClientRates {
        keys: 5,
        reads: 850_000,
        pipelines: 300_000,
        odd_commands: 20_000,
        expiry: 50_000,
        think: MS,
        ..CALM.client
    },
    events: Events {
        unseen: 30 * MS,
        reports: 150 * MS,
        ..CALM.events
    },
    ..CALM
};
