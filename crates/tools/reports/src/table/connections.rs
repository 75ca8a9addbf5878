// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection is: its user, its protocol, its subscriptions, its end.

use crate::sequence::Sequence;
use crate::sequence::Who::{A, B};

/// See above.
pub fn all() -> Vec<Sequence> {
    [passwords(), protocol(), listening(), ends()].concat()
}

fn passwords() -> Vec<Sequence> {
    const PIPELINE: &str = "dragonfly #8006";
    const LIMITS: &str = "envoy #12689";
    vec![
        Sequence::new("auth-in-a-pipeline", PIPELINE)
            .password()
            .ask(A, "PING ; GET {p}w ; AUTH pw ; PING ; GET {p}w"),
        Sequence::new("reset-in-a-pipeline", PIPELINE)
            .password()
            .ask(A, "AUTH pw")
            .hello(A, "3")
            .ask(
                A,
                "SELECT 1 ; GET {p}w ; RESET ; GET {p}w ; AUTH pw ; GET {p}w",
            ),
        Sequence::new("wrong-password-in-hello", "garnet #1328")
            .password()
            .given("HSET {p}h f v")
            .hot("HGETALL {p}h")
            .ask(A, "AUTH pw")
            .ask(A, "HELLO 3 AUTH default bad ; HGETALL {p}h ; GET {p}no")
            .hello(A, "3 AUTH default pw")
            .ask(A, "HGETALL {p}h ; GET {p}no"),
        Sequence::new("unauthenticated-count", LIMITS)
            .password()
            .raw(A, "*11\r\n")
            .all(A),
        Sequence::new("unauthenticated-length", LIMITS)
            .password()
            .raw(A, "*1\r\n$16385\r\n")
            .all(A),
        Sequence::new("setinfo-refused", "garnet #2026")
            .alone()
            .given("ACL SETUSER {p}u on >p ~* &* +@all")
            .given("ACL SETUSER {p}u -client|setname")
            .finally("ACL DELUSER {p}u")
            .ask(
                A,
                "AUTH {p}u p ; CLIENT SETINFO LIB-NAME x ; CLIENT SETNAME x ; GET {p}w",
            ),
    ]
}

fn protocol() -> Vec<Sequence> {
    vec![
        Sequence::new("name-in-a-pipeline", "dragonfly #8016")
            .ask(A, "CLIENT SETNAME n ; CLIENT GETNAME ; GET {p}w"),
        Sequence::new("hello-of-every-kind", "kvrocks #2150")
            .hello(A, "")
            .hello(A, "2")
            .ask(A, "GET {p}w")
            .hello(A, "3")
            .ask(A, "GET {p}w")
            .ask(A, "HELLO 4 ; GET {p}w")
            .hello(A, "3 SETNAME x")
            .ask(A, "CLIENT GETNAME ; GET {p}no"),
        Sequence::new("what-clients-say-at-first", "go-redis #3536").ask(
            A,
            "CLIENT SETINFO LIB-VER 1 ; CLIENT MAINT_NOTIFICATIONS ON ; GET {p}w",
        ),
    ]
}

fn listening() -> Vec<Sequence> {
    const SUBSCRIBED: &str = "garnet #1669";
    vec![
        Sequence::new("subscribed", SUBSCRIBED)
            .ask(A, "SUBSCRIBE {p}c ; GET {p}w ; PING ; PING x")
            .ask(B, "PUBLISH {p}c m")
            .get(A, 1)
            .ask(A, "UNSUBSCRIBE {p}c ; PING ; GET {p}w"),
        Sequence::new("subscribed-resp3", SUBSCRIBED)
            .hello(A, "3")
            .ask(A, "SUBSCRIBE {p}c ; GET {p}w ; PING ; PING x")
            .ask(B, "PUBLISH {p}c m")
            .get(A, 1)
            .ask(A, "UNSUBSCRIBE {p}c ; PING ; GET {p}w"),
    ]
}

/// The server closes a connection that it takes for idle.
fn ends() -> Vec<Sequence> {
    const IDLE: &str = "redis-py #4156";
    vec![
        Sequence::new("idle-but-for-fast-reads", IDLE)
            .alone()
            .uncut()
            .given("CONFIG SET timeout 2")
            .finally("CONFIG SET timeout 0")
            .keep_ms(A, "GET {p}w", 5_000)
            .wait_ms(4_500)
            .say(A, "GET {p}w")
            .all(A),
        Sequence::nowhere(
            "evicted-for-its-memory",
            IDLE,
            "which client maxmemory-clients evicts depends on the memory of each server",
        ),
    ]
}
