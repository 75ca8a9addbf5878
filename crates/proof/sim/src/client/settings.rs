// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an administrator changes of a running Redis: everything that the daemon must notice before
//! it may go on answering.

use fastrand::Rng;

use crate::client::mixed;
use crate::client::resp::request;
use crate::plan::Plan;

/// A change.
#[must_use]
pub fn draw(random: &mut Rng) -> Vec<u8> {
    let argv: &[&[u8]] = match random.u8(0..14) {
        0 => &[b"CONFIG", b"SET", b"timeout", b"0"],
        1 | 2 => &[b"CONFIG", b"SET", b"timeout", b"2"],
        3 => &[b"CONFIG", b"SET", b"maxmemory", b"3000"],
        4 => &[b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru"],
        5 => &[b"CONFIG", b"SET", b"maxmemory", b"0"],
        6 => &[b"CONFIG", b"SET", b"requirepass", b"secret"],
        7 => &[b"CONFIG", b"SET", b"requirepass", b""],
        8 => &[b"CONFIG", b"RESETSTAT"],
        9 => &[b"REPLICAOF", b"10.0.0.99", b"6379"],
        11 => &[b"CONFIG", b"SET", b"notify-keyspace-events", b"KEm"],
        12 => &[b"CONFIG", b"SET", b"notify-keyspace-events", b"AKE"],
        10 => &[b"REPLICAOF", b"NO", b"ONE"],
        _ => &[b"ACL", b"SETUSER", b"somebody", b"on", b"nopass"],
    };
    request(argv)
}

/// A change in a run of this plan.
#[must_use]
pub fn draw_for(plan: &Plan, random: &mut Rng) -> Vec<u8> {
    if plan.profile.client.mixed > 0 {
        return mixed::rights(random);
    }
    draw(random)
}

/// Takes back what keeps clients from being served.
#[must_use]
pub fn defaults() -> Vec<Vec<u8>> {
    let all: [&[&[u8]]; 9] = [
        // An error if none is asked for.
        &[b"AUTH", b"secret"],
        &[b"SELECT", b"0"],
        &[b"ACL", b"SETUSER", b"default", b"~*"],
        &[b"CONFIG", b"SET", b"timeout", b"0"],
        &[b"CONFIG", b"SET", b"maxmemory", b"0"],
        &[b"CONFIG", b"SET", b"requirepass", b""],
        &[b"CONFIG", b"SET", b"notify-keyspace-events", b""],
        &[b"CONFIG", b"SET", b"replica-serve-stale-data", b"yes"],
        &[b"REPLICAOF", b"NO", b"ONE"],
    ];
    all.into_iter().map(request).collect()
}
