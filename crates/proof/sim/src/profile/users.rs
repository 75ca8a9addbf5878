// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile of users, databases and keys that move; its operations are in `client/mixed.rs`.

use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile};
use crate::time::{MS, SECOND, US};

pub(super) const USERS: Profile = Profile {
    name: "users",
    about: "users with all and with some rights, databases, RESP versions, keys that move, with loss",
    connections: 24,
    operations: 300,
    duration: 5 * SECOND,
    link: LinkRates {
        loss: 10_000,
        duplicate: 10_000,
        reorder: 20_000,
        jitter: 300_000,
        jitter_max: 500 * US,
        ..CALM.link
    },
    client: ClientRates {
        parallel: 4,
        keys: 4,
        reads: 940_000,
        plain_reads: 800_000,
        mixed: 50_000,
        odd_commands: 5_000,
        think: 3 * MS,
        ..CALM.client
    },
    events: Events {
        unseen: 200 * MS,
        settings: 2 * SECOND,
        master: 3 * SECOND,
        daemon_crash: 5 * SECOND,
        feed_cut: 5 * SECOND,
        ..CALM.events
    },
    ..CALM
};
