// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile in which an operator closes the cache and opens it all the time.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND, US};

pub(super) const CLOSED: Profile = Profile {
    name: "closed",
    about: "the cache is closed and opened under load, with daemons that die and follow each other",
    duration: 12 * SECOND,
    connections: 24,
    operations: 1_200,
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
        cpu_change: 100_000,
        ..CALM.server
    },
    client: ClientRates {
        keys: 5,
        reads: 800_000,
        pipelines: 400_000,
        think: 8 * MS,
        ..CALM.client
    },
    events: Events {
        unseen: 200 * MS,
        close: 800 * MS,
        still: 400 * MS,
        daemon_crash: 5 * SECOND,
        replace: 6 * SECOND,
        ..CALM.events
    },
    ..CALM
};
