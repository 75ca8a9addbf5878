// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server becomes another: a replica, paused, one of many.

use crate::sequence::Who::{A, B, C};
use crate::sequence::{Mask, Need, Sequence};

/// See above.
pub fn all() -> Vec<Sequence> {
    [replicas(), pauses(), crowds()].concat()
}

/// Nobody is there to be a replica of.
const DEMOTED: &str = "REPLICAOF 127.0.0.1 1";

/// A sequence after which the server is what it was.
fn demoted(name: &'static str, report: &'static str) -> Sequence {
    Sequence::new(name, report)
        .alone()
        .finally("REPLICAOF NO ONE")
}

fn replicas() -> Vec<Sequence> {
    vec![
        demoted("redirected-reads", "valkey #821")
            .needs(Need::Command("client|capa"))
            .ask(A, "CLIENT CAPA redirect ; GET {p}w")
            .ask(B, DEMOTED)
            .ask(A, "GET {p}w ; READONLY ; GET {p}w ; READWRITE ; GET {p}w"),
        demoted("demoted-server", "valkey #871")
            .ask(B, DEMOTED)
            .ask(A, "PING ; GET {p}w ; SET {p}w x ; GET {p}w")
            .say(A, "ROLE")
            .masked(A, Mask::RoleState),
        demoted("replica-without-its-primary", "valkey #2329")
            .given("CONFIG SET replica-serve-stale-data no")
            .finally("CONFIG SET replica-serve-stale-data yes")
            .ask(B, DEMOTED)
            .ask(A, "PING ; GET {p}w ; PING")
            .ask(B, "REPLICAOF NO ONE")
            .ask(A, "GET {p}w"),
        demoted("replica-that-is-loaded-anew", "valkey #2991")
            .uncut()
            .needs(Need::Primary)
            .given("CONFIG SET repl-diskless-load swapdb")
            .finally("CONFIG SET repl-diskless-load disabled")
            .ask(B, "REPLICAOF 127.0.0.1 6400")
            .says("INFO replication", "master_link_status:up")
            .ask(A, "GET {p}w ; EXISTS {p}w")
            .ask(B, "REPLICAOF NO ONE ; SET {p}w again")
            .ask(A, "GET {p}w"),
        Sequence::nowhere(
            "failover-to-a-replica",
            "valkey #1291",
            "its labs have no replica of the boosted server",
        ),
        Sequence::nowhere(
            "slot-in-migration",
            "valkey #4545",
            "a cluster's node is not boosted",
        ),
    ]
}

fn pauses() -> Vec<Sequence> {
    const PAUSE: &str = "redis #1083";
    vec![
        Sequence::new("paused-for-all", PAUSE)
            .alone()
            .ask(A, "CLIENT PAUSE 100 ALL")
            .to_the_mark(B, "GET {p}w ; SET {p}w new ; GET {p}w")
            .ask(A, "GET {p}w"),
        Sequence::new("paused-for-writes", PAUSE)
            .alone()
            .finally("CLIENT UNPAUSE")
            .ask(A, "CLIENT PAUSE 100000 WRITE")
            .ask(B, "GET {p}w")
            .say(B, "SET {p}w new")
            .blocked(B)
            .ask(C, "GET {p}w")
            .ask(A, "CLIENT UNPAUSE")
            .get(B, 1)
            .ask(C, "GET {p}w"),
    ]
}

/// A transaction does not keep a connection from being answered for ever.
fn crowds() -> Vec<Sequence> {
    const GATEWAY: &str = "envoy #44338";
    vec![
        Sequence::new("fast-after-a-transaction", GATEWAY)
            .alone()
            .uncut()
            .ask(A, "MULTI ; GET {p}w ; EXEC ; GET {p}w")
            .in_front(A, "GET {p}w")
            .ask(A, "WATCH {p}w ; MULTI ; SET {p}w x ; EXEC ; GET {p}w")
            .in_front(A, "GET {p}w"),
        Sequence::new("crowd-of-transactions", GATEWAY)
            .alone()
            .uncut()
            .crowd(
                1000,
                "GET {p}w ; MULTI ; GET {p}w ; EXEC ; GET {p}w".to_owned(),
            )
            .ask(A, "GET {p}w"),
    ]
}
