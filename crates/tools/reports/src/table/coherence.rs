// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was read before must not be shown after it has changed: time, rights, watched keys.

use crate::sequence::Who::{A, B};
use crate::sequence::{Need, Sequence};

/// See above.
pub fn all() -> Vec<Sequence> {
    [expiry(), rights(), others()].concat()
}

/// A hash whose fields are warm.
fn warm_fields(name: &'static str, report: &'static str) -> Sequence {
    Sequence::new(name, report)
        .needs(Need::Command("hpexpire"))
        .given("HSET {p}h f v g w")
        .hot("HGET {p}h f ; HGETALL {p}h ; HLEN {p}h ; HEXISTS {p}h f ; HMGET {p}h f g")
}

fn expiry() -> Vec<Sequence> {
    const FIELDS: &str = "redis #13839";
    vec![
        Sequence::new("key-that-expires", "dragonfly #3598")
            .ask(A, "PEXPIRE {p}w 50")
            .moment(A, "GET {p}w")
            .wait_ms(120)
            .ask(A, "GET {p}w ; EXISTS {p}w ; PTTL {p}w")
            .ask(B, "GET {p}w"),
        warm_fields("field-that-expires", FIELDS)
            .ask(A, "HPEXPIRE {p}h 50 FIELDS 1 f")
            .moment(A, "HGET {p}h f ; HGETALL {p}h")
            .wait_ms(120)
            .ask(
                A,
                "HGET {p}h f ; HGETALL {p}h ; HEXISTS {p}h f ; HMGET {p}h f g",
            )
            .ask(B, "HGET {p}h f"),
        warm_fields("field-that-nobody-removes", FIELDS)
            .alone()
            .given("DEBUG SET-ACTIVE-EXPIRE 0")
            .finally("DEBUG SET-ACTIVE-EXPIRE 1")
            .ask(A, "HPEXPIRE {p}h 50 FIELDS 1 f")
            .wait_ms(120)
            .ask(A, "HGET {p}h f ; HLEN {p}h"),
        warm_fields("time-for-a-warm-field", FIELDS)
            .ask(
                A,
                "HEXPIRE {p}h 1000 FIELDS 1 f ; HGET {p}h f ; HPERSIST {p}h FIELDS 1 f",
            )
            .ask(A, "HGETALL {p}h ; HGET {p}h f"),
        warm_fields("fields-written-with-a-time", FIELDS)
            .needs(Need::Command("hgetex"))
            .ask(
                A,
                "HGETEX {p}h EX 1000 FIELDS 1 f ; HSETEX {p}h EX 2000 FIELDS 1 g x",
            )
            .ask(
                B,
                "HGETALL {p}h ; HPERSIST {p}h FIELDS 2 f g ; HGETALL {p}h",
            ),
        Sequence::nowhere(
            "field-of-a-replica",
            FIELDS,
            "its labs have no primary that stands still",
        ),
    ]
}

fn rights() -> Vec<Sequence> {
    const SORT: &str = "redis PR #15478";
    let user = |name, rules: &str| {
        Sequence::new(name, SORT)
            .alone()
            .given(&format!("ACL SETUSER {{p}}u on >p {rules}"))
            .finally("ACL DELUSER {p}u")
    };
    vec![
        user("rights-of-sort", "~{p}a* +get +sort")
            .given("RPUSH {p}ax 1 2 ; SET {p}aw v")
            .hot("GET {p}aw")
            .ask(
                A,
                "AUTH {p}u p ; SORT {p}ax BY {p}a* GET {p}b* ; GET {p}aw ; GET {p}w",
            ),
        user("rights-that-are-taken-away", "~* &* +@all")
            .ask(A, "AUTH {p}u p ; GET {p}w")
            .ask(B, "ACL SETUSER {p}u resetkeys ~{p}x*")
            .ask(A, "GET {p}w"),
        user("rights-taken-from-a-fast-one", "~* &* +@all")
            .uncut()
            .ask(A, "AUTH {p}u p ; GET {p}w")
            .in_front(A, "GET {p}w")
            .ask(B, "ACL SETUSER {p}u resetkeys ~{p}x*")
            .ask(A, "GET {p}w"),
        user("rights-of-a-database", "~* &* +@all")
            .needs(Need::Accepts("ACL SETUSER erb-probe db=0,1"))
            .given("SELECT 2 ; SET {p}w two ; GET {p}w ; SELECT 0")
            .ask(A, "AUTH {p}u p ; SELECT 2 ; GET {p}w")
            .ask(B, "ACL SETUSER {p}u resetdbs db=0,1")
            .ask(A, "GET {p}w"),
        Sequence::nowhere(
            "rights-of-the-feed",
            "redis PR #15371",
            "no server here filters pushes by the subscriber's rights (Redis 8.10)",
        ),
    ]
}

fn others() -> Vec<Sequence> {
    vec![
        Sequence::new("last-element-watched", "garnet #1675")
            .given("RPUSH {p}l x")
            .ask(A, "WATCH {p}l")
            .ask(B, "LPOP {p}l")
            .ask(A, "MULTI ; GET {p}w ; EXEC ; GET {p}w"),
        Sequence::nowhere(
            "hot-key-that-is-evicted",
            "rueidis #838",
            "what is evicted is drawn by lot, so two equal servers differ",
        ),
        Sequence::new("hot-keys-that-are-told", "redis #14680")
            .needs(Need::Command("hotkeys"))
            .ask(A, "HOTKEYS GET ; GET {p}w"),
    ]
}
