// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Profiles: named sets of rates and shapes. Rates of what happens per frame or per operation are
//! in parts per million; times between rare events are means, 0 = never.

mod absent;
mod absorbed;
mod aside;
mod closed;
mod edges;
mod list;
mod outside;
mod reports;
mod room;
mod through;
mod users;
mod writes;

use crate::time::Ns;

pub use list::{CALM, PROFILES};

/// Which programs see a client's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// XDP in the driver, then TC.
    Native,
    /// TC only.
    Tc,
    /// As on `lo`: TC only, both ways through both programs, sums that nobody completes.
    Loopback,
}

/// What happens to frames on a link, parts per million of frames unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "named after the kinds of faults, which are documented"
)]
pub struct LinkRates {
    /// One way.
    pub delay: Ns,
    pub jitter: u32,
    /// Added to the delay by jitter and reordering, at most.
    pub jitter_max: Ns,
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    pub corrupt: u32,
    pub split: u32,
    pub join: u32,
    pub fragment: u32,
    pub too_big: u32,
    pub old_duplicate: u32,
    pub ecn: u32,
    pub ip_options: u32,
    pub urgent: u32,
    pub tcp_option: u32,
    pub forged: u32,
    pub forged_piece: u32,
    pub stranger: u32,
    pub foreign: u32,
    pub tiny: u32,
    /// Of connections, not frames.
    pub bare_sum: u32,
    /// Mean time between blackouts of one link.
    pub blackout_every: Ns,
    /// Length of a blackout at most.
    pub blackout_max: Ns,
}

/// The server's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "named after the kinds of faults, which are documented"
)]
pub struct ServerRates {
    pub cpus: usize,
    /// `tcp-keepalive` is on.
    pub keepalive: bool,
    pub tier: Tier,
    /// The card has little room before and none behind the frame.
    pub veth: bool,
    /// Chance of a switch to another CPU at each helper call and lock, parts per million.
    pub switch: u32,
    pub cpu_change: u32,
    /// Of packets either way: routes move to another device.
    pub route: u32,
    /// Of flows.
    pub elsewhere: u32,
    pub backlog: u32,
    /// Of packets behind TC.
    pub prune: u32,
    /// Of flows: receive packet steering takes them to another CPU behind XDP.
    pub steered: u32,
    pub no_room: u32,
    pub no_meta: u32,
    pub merge: u32,
    pub offload: u32,
    /// Of reads of Redis.
    pub slow_reader: u32,
    pub sets: u32,
    /// Places in the table of connections; one address has half of them.
    pub conns: u32,
    /// `rename-command` of redis.conf: declared name, name in use.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Redis is one whose fields may expire by themselves.
    pub field_expiry: bool,
    /// Redis leaves line ends in what its errors repeat.
    pub line_ends: bool,
    /// SETs are answered in Redis's place.
    pub absorbs: bool,
}

/// What clients do, parts per million of operations unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "named after the kinds of faults, which are documented"
)]
pub struct ClientRates {
    pub machines: usize,
    /// Connections open at once per machine at most.
    pub parallel: u32,
    pub keys: u32,
    pub value_bytes_max: u32,
    /// Share of large values.
    pub big_values: u32,
    /// Share of values whose length is around a bound, or beyond all.
    pub beyond: u32,
    /// Share of reads.
    pub reads: u32,
    /// Share of reads that are GET of a usual key.
    pub plain_reads: u32,
    /// Share of commands whose keys are unknown, of stateful and odd commands.
    pub odd_commands: u32,
    /// Share of operations that change user, database, RESP version or rights, or move keys.
    pub mixed: u32,
    /// Share of operations that expire keys.
    pub expiry: u32,
    /// Share of writes that are SETs with a time.
    pub timed: u32,
    /// Share of operations that are pipelines.
    pub pipelines: u32,
    pub pipeline_max: u32,
    /// Mean pause between operations.
    pub think: Ns,
    pub torn: u32,
    pub garbage: u32,
    /// Of connections: they are another server's, on the same port.
    pub neighbour: u32,
    /// Operations are frames of the echo handler.
    pub frames: bool,
    /// Of connections.
    pub vanish: u32,
    pub reset: u32,
    pub half_close: u32,
    pub reuse: u32,
    /// Of connections: they exist before ERB is attached.
    pub old: u32,
    pub tiny_window: u32,
    pub no_timestamps: u32,
    pub no_sack: u32,
}

/// Rare events, mean times between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "named after the kinds of faults, which are documented"
)]
pub struct Events {
    pub redis_crash: Ns,
    pub redis_stall: Ns,
    pub redis_kill: Ns,
    pub daemon_crash: Ns,
    pub daemon_stall: Ns,
    pub feed_cut: Ns,
    pub machine_crash: Ns,
    pub clock_step: Ns,
    pub ticks: Ns,
    pub unseen: Ns,
    pub detach: Ns,
    pub settings: Ns,
    pub master: Ns,
    pub replace: Ns,
    pub disk: Ns,
    pub aside: Ns,
    pub reports: Ns,
    pub absorb: Ns,
    pub close: Ns,
    pub still: Ns,
}

impl Events {
    /// Nothing happens.
    pub const NONE: Self = Self {
        redis_crash: 0,
        redis_stall: 0,
        redis_kill: 0,
        daemon_crash: 0,
        daemon_stall: 0,
        feed_cut: 0,
        machine_crash: 0,
        clock_step: 0,
        ticks: 0,
        unseen: 0,
        master: 0,
        detach: 0,
        settings: 0,
        replace: 0,
        disk: 0,
        aside: 0,
        reports: 0,
        absorb: 0,
        close: 0,
        still: 0,
    };
}

/// A named set of all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Connections in all.
    pub connections: u32,
    /// Operations per connection at most.
    pub operations: u32,
    /// When faults end.
    pub duration: Ns,
    /// Addresses are IPv6.
    pub ipv6: bool,
    /// Frames carry this tag.
    pub vlan: Option<u16>,
    /// The links.
    pub link: LinkRates,
    /// The server.
    pub server: ServerRates,
    /// The clients.
    pub client: ClientRates,
    /// Rare events.
    pub events: Events,
}

/// The profile of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}
