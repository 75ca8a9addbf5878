// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile in which SETs are answered in Redis's place, and drained into it.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND, US};

pub(super) const WRITES: Profile = Profile {
    name: "writes",
    about: "SETs are answered in Redis's place and drained, beside all other commands, with loss",
    connections: 24,
    operations: 200,
    duration: 3 * SECOND,
    link: LinkRates {
        loss: 10_000,
        duplicate: 10_000,
        reorder: 10_000,
        jitter: 300_000,
        jitter_max: 200 * US,
        split: 5_000,
        join: 5_000,
        ..CALM.link
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        backlog: 2_000,
        sets: 4,
        absorbs: true,
        ..CALM.server
    },
    client: ClientRates {
        parallel: 5,
        keys: 6,
        reads: 500_000,
        plain_reads: 600_000,
        odd_commands: 10_000,
        expiry: 30_000,
        pipelines: 50_000,
        think: MS,
        ..CALM.client
    },
    events: Events {
        redis_stall: 2 * SECOND,
        daemon_stall: 3 * SECOND,
        daemon_crash: 4 * SECOND,
        ..CALM.events
    },
    ..CALM
};
