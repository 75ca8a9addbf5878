// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Profiles of the world's edges: strangers' segments, packets that change processors, routes that
//! move, more connections than there is room for.

use crate::profile::list::QUIET_LINK;
use crate::profile::{CALM, ClientRates, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND};

pub(super) const FORGED: Profile = Profile {
    name: "forged",
    about: "segments that TCP throws away, of every kind, between large replies",
    duration: 5 * SECOND,
    link: LinkRates {
        forged: 100_000,
        forged_piece: 10_000,
        stranger: 200,
        tiny: 10_000,
        loss: 5_000,
        ..QUIET_LINK
    },
    client: ClientRates {
        big_values: 100_000,
        value_bytes_max: 20_000,
        ..CALM.client
    },
    ..CALM
};

pub(super) const STEERED: Profile = Profile {
    name: "steered",
    about: "receive packet steering: most flows reach TC on another CPU, later",
    duration: 4 * SECOND,
    link: LinkRates {
        loss: 2_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        cpus: 3,
        steered: 700_000,
        merge: 100_000,
        backlog: 500,
        ..CALM.server
    },
    client: ClientRates {
        pipelines: 300_000,
        pipeline_max: 12,
        torn: 50_000,
        think: MS,
        ..CALM.client
    },
    ..CALM
};

pub(super) const HOLES: Profile = Profile {
    name: "holes",
    about: "long pipelines with holes, of which TCP forgets what it holds behind them",
    duration: 4 * SECOND,
    link: LinkRates {
        loss: 20_000,
        reorder: 60_000,
        jitter: 200_000,
        jitter_max: MS,
        duplicate: 10_000,
        split: 60_000,
        join: 60_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        cpus: 3,
        cpu_change: 20_000,
        steered: 100_000,
        merge: 100_000,
        prune: 20_000,
        ..CALM.server
    },
    client: ClientRates {
        pipelines: 700_000,
        pipeline_max: 60,
        big_values: 100_000,
        value_bytes_max: 8_000,
        odd_commands: 20_000,
        torn: 50_000,
        think: MS,
        ..CALM.client
    },
    ..CALM
};

pub(super) const UPLINKS: Profile = Profile {
    name: "uplinks",
    about: "several devices, not all boosted: routes move, either way by itself",
    link: LinkRates {
        loss: 10_000,
        reorder: 10_000,
        duplicate: 5_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        route: 5_000,
        elsewhere: 200_000,
        offload: 100_000,
        merge: 50_000,
        ..CALM.server
    },
    client: ClientRates {
        reads: 900_000,
        plain_reads: 900_000,
        ..CALM.client
    },
    ..CALM
};

pub(super) const NARROW: Profile = Profile {
    name: "narrow",
    about: "more connections than the table has places, and than an address may have",
    connections: 40,
    duration: 20 * SECOND,
    link: LinkRates {
        loss: 5_000,
        reorder: 5_000,
        duplicate: 5_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        steered: 300_000,
        backlog: 500,
        conns: 6,
        ..CALM.server
    },
    client: ClientRates {
        parallel: 6,
        odd_commands: 10_000,
        vanish: 50_000,
        reset: 100_000,
        half_close: 100_000,
        reuse: 200_000,
        ..CALM.client
    },
    ..CALM
};
