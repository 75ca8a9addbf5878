// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile of keys that are asked for before they are made, as those do who keep a cache in Redis.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND, US};

pub(super) const ABSENT: Profile = Profile {
    name: "absent",
    about: "keys that are absent, made and gone again, reads of which are sometimes told of, with loss",
    connections: 24,
    operations: 200,
    duration: 5 * SECOND,
    link: LinkRates {
        loss: 5_000,
        duplicate: 10_000,
        reorder: 10_000,
        jitter: 300_000,
        jitter_max: 300 * US,
        ..CALM.link
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        sets: 4,
        ..CALM.server
    },
    client: ClientRates {
        keys: 24,
        reads: 900_000,
        odd_commands: 20_000,
        expiry: 400_000,
        think: MS,
        ..CALM.client
    },
    events: Events {
        unseen: 40 * MS,
        settings: 2 * SECOND,
        feed_cut: 5 * SECOND,
        ..CALM.events
    },
    ..CALM
};
