// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile in which there is no room for all.

use crate::profile::{CALM, ClientRates, LinkRates, Profile, ServerRates};
use crate::time::SECOND;

pub(super) const CROWDED: Profile = Profile {
    name: "crowded",
    about: "more connections than the table holds, more keys than the cache",
    connections: 160,
    operations: 30,
    duration: 4 * SECOND,
    server: ServerRates {
        sets: 1,
        conns: 64,
        ..CALM.server
    },
    client: ClientRates {
        parallel: 22,
        keys: 60,
        reads: 970_000,
        half_close: 100_000,
        ..CALM.client
    },
    link: LinkRates {
        loss: 2_000,
        ..CALM.link
    },
    ..CALM
};
