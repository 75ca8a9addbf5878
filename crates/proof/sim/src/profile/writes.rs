// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profiles in which SETs are answered in Redis's place, and drained into it.

use crate::profile::through::THROUGH;
use crate::profile::{CALM, ClientRates, Events, LinkRates, Profile, ServerRates};
use crate::time::{MS, SECOND, US};

pub(super) const WRITES: Profile = Profile {
    name: "writes",
    about: "SETs of hot keys are answered in Redis's place and drained, beside all that writes them, with loss",
    connections: 24,
    operations: 300,
    duration: 2 * SECOND,
    link: LinkRates {
        split: 30_000,
        join: 5_000,
        ..THROUGH.link
    },
    server: ServerRates {
        cpus: 3,
        switch: 200_000,
        backlog: 1_000,
        cpu_change: 50_000,
        sets: 2,
        absorbs: true,
        ..CALM.server
    },
    client: ClientRates {
        parallel: 6,
        keys: 4,
        value_bytes_max: 1_000,
        big_values: 100_000,
        reads: 400_000,
        plain_reads: 800_000,
        odd_commands: 2_000,
        expiry: 0,
        timed: 50_000,
        pipelines: 100_000,
        think: 300 * US,
        ..CALM.client
    },
    ..CALM
};

pub(super) const WRITES_MIXED: Profile = Profile {
    name: "writes-mixed",
    about: "the same of clients with databases, rights and times, while Redis and the daemon stall",
    duration: 3 * SECOND,
    server: ServerRates {
        sets: 4,
        switch: 100_000,
        ..WRITES.server
    },
    client: ClientRates {
        keys: 6,
        odd_commands: 10_000,
        expiry: 30_000,
        timed: 200_000,
        mixed: 6_000,
        think: MS,
        ..WRITES.client
    },
    events: Events {
        redis_stall: 2 * SECOND,
        daemon_stall: 3 * SECOND,
        daemon_crash: 4 * SECOND,
        ..CALM.events
    },
    ..WRITES
};

pub(super) const WRITES_DAEMONS: Profile = Profile {
    name: "writes-daemons",
    about: "the same while the feed breaks, daemons die and follow each other, programs are replaced, and ERB is detached",
    duration: 4 * SECOND,
    events: Events {
        redis_stall: 4 * SECOND,
        daemon_stall: 4 * SECOND,
        daemon_crash: 2 * SECOND,
        feed_cut: SECOND,
        detach: 4 * SECOND,
        replace: 3 * SECOND,
        settings: 3 * SECOND,
        aside: SECOND,
        reports: SECOND,
        ..CALM.events
    },
    ..WRITES_MIXED
};

pub(super) const WRITES_CRASHES: Profile = Profile {
    name: "writes-crashes",
    about: "the same while Redis crashes and comes back with all in its log, and daemons die",
    duration: 4 * SECOND,
    events: Events {
        redis_crash: SECOND,
        redis_stall: 4 * SECOND,
        daemon_crash: 2 * SECOND,
        daemon_stall: 4 * SECOND,
        feed_cut: 3 * SECOND,
        ..CALM.events
    },
    ..WRITES_MIXED
};

pub(super) const WRITES_REFUSED: Profile = Profile {
    name: "writes-refused",
    about: "the same while a full or failing disk has Redis refuse what is drained, and it may crash with writes that it postpones",
    events: Events {
        redis_crash: 2 * SECOND,
        disk: 500 * MS,
        ..WRITES_CRASHES.events
    },
    ..WRITES_CRASHES
};
