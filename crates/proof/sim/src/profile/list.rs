// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profiles themselves: each names what it changes of a calm day.

use crate::profile::edges::{FORGED, HOLES, NARROW, STEERED, UPLINKS};
use crate::profile::outside::{BEYOND, NEIGHBOURS, STRANGERS, TICKS};
use crate::profile::{ClientRates, Events, LinkRates, Profile, ServerRates, Tier};
use crate::profile::{
    absent::ABSENT, absorbed::ABSORBED, aside::ASIDE, closed::CLOSED, reports::REPORTS,
    room::CROWDED, through::THROUGH, users::USERS, writes,
};
use crate::time::{MS, SECOND, US};

pub(super) const QUIET_LINK: LinkRates = LinkRates {
    delay: 30 * US,
    jitter: 100_000,
    jitter_max: 20 * US,
    loss: 0,
    duplicate: 0,
    reorder: 0,
    corrupt: 0,
    split: 0,
    join: 0,
    fragment: 0,
    too_big: 0,
    old_duplicate: 0,
    ecn: 0,
    ip_options: 0,
    urgent: 0,
    tcp_option: 0,
    forged: 0,
    forged_piece: 0,
    stranger: 0,
    foreign: 0,
    tiny: 0,
    bare_sum: 200_000,
    blackout_every: 0,
    blackout_max: 0,
};

/// No faults; every part works as on a good day.
pub const CALM: Profile = Profile {
    name: "calm",
    about: "no faults: the common case in all its forms",
    connections: 12,
    operations: 120,
    duration: 3 * SECOND,
    ipv6: false,
    vlan: None,
    link: QUIET_LINK,
    server: ServerRates {
        cpus: 2,
        keepalive: true,
        tier: Tier::Native,
        veth: true,
        switch: 50_000,
        cpu_change: 0,
        route: 0,
        elsewhere: 0,
        backlog: 0,
        prune: 0,
        steered: 0,
        no_room: 100_000,
        no_meta: 0,
        merge: 0,
        offload: 300_000,
        slow_reader: 0,
        sets: 16,
        conns: 128,
        renamed: &[],
        field_expiry: false,
        line_ends: false,
        absorbs: false,
    },
    client: ClientRates {
        machines: 3,
        parallel: 3,
        keys: 8,
        value_bytes_max: 100,
        big_values: 20_000,
        beyond: 0,
        reads: 900_000,
        plain_reads: 0,
        odd_commands: 10_000,
        mixed: 0,
        expiry: 10_000,
        timed: 0,
        pipelines: 100_000,
        pipeline_max: 6,
        think: 3 * MS,
        torn: 0,
        garbage: 0,
        neighbour: 0,
        frames: false,
        vanish: 0,
        reset: 0,
        half_close: 0,
        reuse: 0,
        old: 0,
        tiny_window: 0,
        no_timestamps: 100_000,
        no_sack: 50_000,
    },
    events: Events::NONE,
};

const LOSSY: Profile = Profile {
    name: "lossy",
    about: "frames are lost and doubled, links black out",
    duration: 6 * SECOND,
    link: LinkRates {
        loss: 40_000,
        duplicate: 20_000,
        jitter: 300_000,
        jitter_max: MS,
        blackout_every: 4 * SECOND,
        blackout_max: 700 * MS,
        ..QUIET_LINK
    },
    ..CALM
};

const REORDER: Profile = Profile {
    name: "reorder",
    about: "frames overtake each other, copies arrive seconds later",
    duration: 5 * SECOND,
    link: LinkRates {
        reorder: 80_000,
        jitter: 500_000,
        jitter_max: 2 * MS,
        duplicate: 30_000,
        old_duplicate: 20_000,
        loss: 5_000,
        ..QUIET_LINK
    },
    client: ClientRates {
        pipelines: 400_000,
        pipeline_max: 20,
        ..CALM.client
    },
    ..CALM
};

const CORRUPT: Profile = Profile {
    name: "corrupt",
    about: "bytes change, odd headers, segments of strangers",
    duration: 5 * SECOND,
    link: LinkRates {
        corrupt: 30_000,
        ecn: 10_000,
        ip_options: 10_000,
        urgent: 3_000,
        tcp_option: 10_000,
        forged: 20_000,
        loss: 5_000,
        ..QUIET_LINK
    },
    ..CALM
};

const SEGMENTS: Profile = Profile {
    name: "segments",
    about: "segments are split, joined, merged, fragmented; the path MTU shrinks",
    duration: 5 * SECOND,
    link: LinkRates {
        split: 150_000,
        join: 100_000,
        fragment: 4_000,
        too_big: 2_000,
        loss: 10_000,
        reorder: 10_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        merge: 400_000,
        ..CALM.server
    },
    client: ClientRates {
        torn: 150_000,
        pipelines: 400_000,
        pipeline_max: 30,
        big_values: 100_000,
        value_bytes_max: 6_000,
        ..CALM.client
    },
    ..CALM
};

const RACES: Profile = Profile {
    name: "races",
    about: "four CPUs that switch often, few keys, flows that move",
    connections: 24,
    server: ServerRates {
        cpus: 4,
        switch: 400_000,
        cpu_change: 100_000,
        backlog: 3_000,
        merge: 100_000,
        sets: 2,
        ..CALM.server
    },
    client: ClientRates {
        machines: 4,
        parallel: 6,
        keys: 3,
        reads: 800_000,
        think: 100 * US,
        ..CALM.client
    },
    link: LinkRates {
        loss: 3_000,
        duplicate: 10_000,
        jitter: 500_000,
        jitter_max: 100 * US,
        ..QUIET_LINK
    },
    ..CALM
};

const CHURN: Profile = Profile {
    name: "churn",
    about: "short connections that end in every way, ports taken again",
    connections: 80,
    operations: 12,
    duration: 6 * SECOND,
    client: ClientRates {
        parallel: 5,
        vanish: 100_000,
        reset: 200_000,
        half_close: 200_000,
        reuse: 400_000,
        garbage: 10_000,
        ..CALM.client
    },
    link: LinkRates {
        loss: 10_000,
        duplicate: 10_000,
        old_duplicate: 10_000,
        ..QUIET_LINK
    },
    events: Events {
        redis_kill: 500 * MS,
        ..Events::NONE
    },
    ..CALM
};

const CRASH: Profile = Profile {
    name: "crash",
    about: "Redis, the daemon and the machine end without warning and come back",
    connections: 30,
    duration: 12 * SECOND,
    client: ClientRates {
        think: 15 * MS,
        ..CALM.client
    },
    link: LinkRates {
        loss: 5_000,
        ..QUIET_LINK
    },
    events: Events {
        redis_crash: 5 * SECOND,
        redis_stall: 3 * SECOND,
        daemon_crash: 3 * SECOND,
        daemon_stall: 3 * SECOND,
        feed_cut: 3 * SECOND,
        machine_crash: 20 * SECOND,
        replace: 4 * SECOND,
        ..Events::NONE
    },
    ..CALM
};

const BIG_VALUES: Profile = Profile {
    name: "bigvalues",
    about: "values up to several segments and slots of every class",
    client: ClientRates {
        big_values: 500_000,
        value_bytes_max: 9_000,
        keys: 24,
        ..CALM.client
    },
    link: LinkRates {
        loss: 10_000,
        ..QUIET_LINK
    },
    ..CALM
};

const WINDOWS: Profile = Profile {
    name: "windows",
    about: "clients with tiny or closed windows, a Redis that does not read",
    duration: 8 * SECOND,
    client: ClientRates {
        tiny_window: 600_000,
        big_values: 200_000,
        value_bytes_max: 5_000,
        pipelines: 300_000,
        pipeline_max: 20,
        ..CALM.client
    },
    server: ServerRates {
        slow_reader: 30_000,
        ..CALM.server
    },
    link: LinkRates {
        loss: 5_000,
        ..QUIET_LINK
    },
    ..CALM
};

const TC_ONLY: Profile = Profile {
    name: "tc-only",
    about: "a device without XDP: the TC tier alone",
    server: ServerRates {
        tier: Tier::Tc,
        merge: 100_000,
        cpu_change: 20_000,
        ..CALM.server
    },
    link: LinkRates {
        loss: 10_000,
        reorder: 10_000,
        duplicate: 10_000,
        ..QUIET_LINK
    },
    ..CALM
};

const LOOPBACK: Profile = Profile {
    name: "loopback",
    about: "clients on the server's own machine: TC alone, one device for both directions",
    server: ServerRates {
        tier: Tier::Loopback,
        offload: 300_000,
        cpu_change: 20_000,
        ..CALM.server
    },
    ..CALM
};

const VLAN: Profile = Profile {
    name: "vlan",
    about: "tagged frames",
    vlan: Some(5),
    link: LinkRates {
        loss: 20_000,
        reorder: 20_000,
        duplicate: 10_000,
        corrupt: 10_000,
        ..QUIET_LINK
    },
    ..CALM
};

const IPV6: Profile = Profile {
    name: "ipv6",
    about: "IPv6, with faults of every kind at low rates",
    ipv6: true,
    link: LinkRates {
        loss: 20_000,
        reorder: 20_000,
        duplicate: 10_000,
        corrupt: 10_000,
        split: 20_000,
        too_big: 1_000,
        fragment: 4_000,
        urgent: 1_000,
        ..QUIET_LINK
    },
    ..CALM
};

const OLD: Profile = Profile {
    name: "oldconns",
    about: "connections older than ERB, detach and attach",
    duration: 8 * SECOND,
    client: ClientRates {
        old: 500_000,
        think: 20 * MS,
        ..CALM.client
    },
    link: LinkRates {
        loss: 5_000,
        ..QUIET_LINK
    },
    events: Events {
        detach: 4 * SECOND,
        daemon_crash: 5 * SECOND,
        ..Events::NONE
    },
    ..CALM
};

const UNSEEN: Profile = Profile {
    name: "unseen",
    about: "clients that ERB does not see, expiry, clock steps, settings",
    duration: 6 * SECOND,
    client: ClientRates {
        expiry: 150_000,
        odd_commands: 60_000,
        keys: 6,
        ..CALM.client
    },
    events: Events {
        unseen: 20 * MS,
        master: 3 * SECOND,
        clock_step: 3 * SECOND,
        settings: SECOND,
        ..Events::NONE
    },
    ..CALM
};

const ADMIN: Profile = Profile {
    name: "admin",
    about: "configuration, access rules and roles change; the log's disk fails",
    duration: 6 * SECOND,
    client: ClientRates {
        odd_commands: 40_000,
        keys: 6,
        ..CALM.client
    },
    events: Events {
        settings: 300 * MS,
        unseen: 100 * MS,
        master: SECOND,
        disk: 500 * MS,
        redis_crash: 4 * SECOND,
        feed_cut: 4 * SECOND,
        machine_crash: 15 * SECOND,
        ..Events::NONE
    },
    ..CALM
};

pub(super) const ALL: Profile = Profile {
    name: "all",
    about: "everything at once, each at a low rate",
    connections: 30,
    duration: 10 * SECOND,
    link: LinkRates {
        loss: 10_000,
        duplicate: 8_000,
        reorder: 8_000,
        jitter: 300_000,
        jitter_max: 500 * US,
        corrupt: 4_000,
        split: 10_000,
        join: 10_000,
        fragment: 500,
        too_big: 300,
        old_duplicate: 3_000,
        ecn: 1_000,
        ip_options: 1_000,
        // Connections that are older than ERB: before it comes nobody takes an urgent pointer away.
        urgent: 0,
        tcp_option: 1_000,
        forged: 2_000,
        blackout_every: 10 * SECOND,
        blackout_max: 500 * MS,
        ..QUIET_LINK
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        cpu_change: 20_000,
        backlog: 500,
        prune: 500,
        no_meta: 2_000,
        merge: 50_000,
        slow_reader: 3_000,
        sets: 8,
        ..CALM.server
    },
    client: ClientRates {
        odd_commands: 30_000,
        expiry: 30_000,
        big_values: 60_000,
        value_bytes_max: 5_000,
        torn: 20_000,
        garbage: 1_000,
        vanish: 50_000,
        reset: 50_000,
        half_close: 50_000,
        reuse: 100_000,
        old: 100_000,
        tiny_window: 50_000,
        think: 5 * MS,
        ..CALM.client
    },
    events: Events {
        redis_crash: 15 * SECOND,
        redis_stall: 8 * SECOND,
        redis_kill: 3 * SECOND,
        daemon_crash: 10 * SECOND,
        daemon_stall: 8 * SECOND,
        feed_cut: 10 * SECOND,
        machine_crash: 60 * SECOND,
        clock_step: 10 * SECOND,
        ticks: 0,
        unseen: 300 * MS,
        master: 4 * SECOND,
        detach: 30 * SECOND,
        settings: 5 * SECOND,
        replace: 15 * SECOND,
        disk: 6 * SECOND,
        aside: 2 * SECOND,
        reports: 2 * SECOND,
        ..Events::NONE
    },
    ..CALM
};

const HOT: Profile = Profile {
    name: "hot",
    about: "most reads are answered fast, over links with faults, by several CPUs",
    connections: 16,
    operations: 300,
    duration: 4 * SECOND,
    link: LinkRates {
        loss: 15_000,
        duplicate: 15_000,
        reorder: 15_000,
        jitter: 300_000,
        jitter_max: 200 * US,
        corrupt: 3_000,
        split: 5_000,
        join: 10_000,
        old_duplicate: 2_000,
        ..QUIET_LINK
    },
    server: ServerRates {
        cpus: 3,
        switch: 150_000,
        cpu_change: 10_000,
        backlog: 1_000,
        ..CALM.server
    },
    client: ClientRates {
        parallel: 5,
        keys: 5,
        reads: 985_000,
        plain_reads: 970_000,
        odd_commands: 500,
        expiry: 0,
        big_values: 5_000,
        pipelines: 150_000,
        pipeline_max: 20,
        think: 2 * MS,
        ..CALM.client
    },
    ..CALM
};

/// All profiles.
pub const PROFILES: &[Profile] = &[
    CALM,
    LOSSY,
    REORDER,
    HOLES,
    CORRUPT,
    FORGED,
    STEERED,
    SEGMENTS,
    RACES,
    CHURN,
    CRASH,
    BIG_VALUES,
    WINDOWS,
    TC_ONLY,
    LOOPBACK,
    UPLINKS,
    NARROW,
    VLAN,
    IPV6,
    OLD,
    UNSEEN,
    HOT,
    ADMIN,
    ALL,
    CROWDED,
    USERS,
    STRANGERS,
    NEIGHBOURS,
    TICKS,
    BEYOND,
    ASIDE,
    CLOSED,
    ABSENT,
    THROUGH,
    REPORTS,
    ABSORBED,
    writes::WRITES,
    writes::WRITES_MIXED,
    writes::WRITES_DAEMONS,
    writes::WRITES_CRASHES,
    writes::WRITES_REFUSED,
];
