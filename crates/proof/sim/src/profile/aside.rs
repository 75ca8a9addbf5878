// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile in which the daemon steps aside and comes back all the time.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, US};

pub(super) const ASIDE: Profile = Profile {
    name: "aside",
    about: "which sets are looked into moves all the time, with writes, seen and unseen",
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
        sets: 4,
        ..CALM.server
    },
    client: ClientRates {
        keys: 5,
        reads: 850_000,
        pipelines: 300_000,
        think: MS,
        ..CALM.client
    },
    events: Events {
        unseen: 60 * MS,
        aside: 30 * MS,
        ..CALM.events
    },
    ..CALM
};
