// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Edges of the protocol's reader: numbers, empty requests, kinds of nothing.

use fastrand::Rng;

use crate::sequence::Sequence;
use crate::sequence::Who::{A, B};

/// Commands of a random pipeline.
const PIPELINE: usize = 200;

/// See above.
pub fn all() -> Vec<Sequence> {
    [lines(), lengths(), pipelines(), nothing(), arguments()].concat()
}

fn lines() -> Vec<Sequence> {
    vec![
        Sequence::new("line-feeds-alone", "envoy #41201")
            .raw(A, "*2\n$3\nGET\n$17\n{p}w\n")
            .all(A)
            .raw(A, "\r\nPING\r\n")
            .all(A),
        Sequence::new("empty-requests", "kvrocks #633")
            .raw(A, "*0\r\n*-1\r\n*2\r\n$3\r\nGET\r\n$17\r\n{p}w\r\n")
            .get(A, 1)
            .ask(A, "PING"),
        Sequence::new("empty-lines", "kvrocks #808")
            .raw(A, "\r\n\r\nGET {p}w\r\n")
            .get(A, 1)
            .ask(A, "PING"),
    ]
}

/// Counts and lengths as they should not be, in front of a read that is warm.
fn lengths() -> Vec<Sequence> {
    const ODD: &str = "redis #12092";
    const HUGE: &str = "envoy #45388";
    let rows: [(&str, &str, &str); 13] = [
        (
            "length-with-zeros",
            ODD,
            "*2\r\n$3\r\nGET\r\n$00000000000000000017\r\n{p}w\r\n",
        ),
        (
            "length-after-a-blank",
            ODD,
            "*2\r\n$3\r\nGET\r\n$ 17\r\n{p}w\r\n",
        ),
        (
            "length-with-a-plus",
            ODD,
            "*2\r\n$3\r\nGET\r\n$+17\r\n{p}w\r\n",
        ),
        (
            "length-of-minus-zero",
            ODD,
            "*2\r\n$3\r\nGET\r\n$-0\r\n\r\n",
        ),
        (
            "length-before-a-blank",
            ODD,
            "*2\r\n$3\r\nGET\r\n$17 \r\n{p}w\r\n",
        ),
        (
            "count-with-a-plus",
            ODD,
            "*+2\r\n$3\r\nGET\r\n$17\r\n{p}w\r\n",
        ),
        (
            "count-with-a-zero",
            ODD,
            "*02\r\n$3\r\nGET\r\n$17\r\n{p}w\r\n",
        ),
        (
            "two-carriage-returns",
            ODD,
            "*2\r\r\n$3\r\nGET\r\n$17\r\n{p}w\r\n",
        ),
        ("count-of-two-billion", HUGE, "*2000000000\r\n"),
        ("count-beyond-32-bits", HUGE, "*2147483648\r\n"),
        ("count-of-a-million", HUGE, "*1048577\r\n"),
        ("length-beyond-the-limit", HUGE, "*1\r\n$536870913\r\n"),
        ("length-missing", HUGE, "*2\r\n$3\r\nGET\r\n17\r\n{p}w\r\n"),
    ];
    let sequence = |(name, report, bytes): (_, _, &str)| {
        Sequence::new(name, report)
            .raw(A, format!("{bytes}*2\r\n$3\r\nGET\r\n$17\r\n{{p}}w\r\n"))
            .all(A)
            .ask(B, "GET {p}w")
    };
    rows.into_iter().map(sequence).collect()
}

/// Commands at random, the same ones each time.
fn pipelines() -> Vec<Sequence> {
    const SPLIT: &str = "redis-cluster-proxy #21";
    let names = [
        "random-pipeline",
        "another-random-pipeline",
        "third-random-pipeline",
    ];
    let pipeline = |(seed, name)| {
        let mut rng = Rng::with_seed(seed);
        let mut commands = Vec::new();
        for number in 1..=PIPELINE {
            commands.push(match rng.u32(..9) {
                0 => "PING".to_owned(),
                1 => "EXISTS {p}w {p}k".to_owned(),
                2 => format!(
                    "XADD {{p}}s {number}-1 field {}",
                    "v".repeat(rng.usize(1..40))
                ),
                3 => format!("SET {{p}}k {}", "x".repeat(rng.usize(1..90))),
                4 => "GET {p}k".to_owned(),
                5 => "INCR {p}n".to_owned(),
                6 => "XLEN {p}s".to_owned(),
                _ => "GET {p}w".to_owned(),
            });
        }
        Sequence::new(name, SPLIT).ask(A, commands.join(" ; "))
    };
    (1..).zip(names).map(pipeline).collect()
}

fn nothing() -> Vec<Sequence> {
    const KINDS: &str = "dragonfly #8085";
    const COMMANDS: &str = "GET {p}no ; HGETALL {p}no ; HKEYS {p}no ; LPOP {p}no 2 ; SRANDMEMBER {p}no ; \
                            HGET {p}h no ; MGET {p}no {p}no ; BLPOP {p}no 0.01 ; GET {p}no";
    let hot = |sequence: Sequence| {
        sequence
            .given("HSET {p}h f v")
            .hot("GET {p}no ; HGETALL {p}no ; HKEYS {p}no ; HGET {p}h no ; MGET {p}no {p}no")
    };
    let aborted = |sequence: Sequence| {
        sequence
            .ask(A, "WATCH {p}w")
            .ask(B, "SET {p}w x")
            .ask(A, "MULTI ; GET {p}w ; EXEC ; GET {p}w")
    };
    vec![
        hot(Sequence::new("kinds-of-nothing", KINDS)).ask(A, COMMANDS),
        hot(Sequence::new("kinds-of-nothing-resp3", KINDS))
            .hello(A, "3")
            .ask(A, COMMANDS),
        Sequence::new("rank-with-score", "dragonfly #8098")
            .ask(A, "ZRANK {p}no m WITHSCORE ; GET {p}w")
            .hello(A, "3")
            .ask(A, "ZRANK {p}no m WITHSCORE ; GET {p}w"),
        aborted(Sequence::new("aborted-exec", "redis #7776")),
        aborted(Sequence::new("aborted-exec-resp3", "KeyDB #25").hello(A, "3")),
    ]
}

fn arguments() -> Vec<Sequence> {
    const REPORT: &str = "garnet #1969";
    vec![
        Sequence::new("odd-arguments", REPORT)
            .given("RPUSH {p}l x y x ; HSET {p}h f v")
            .ask(
                A,
                "SCAN 0 MATCH ; LMPOP 0 {p}l LEFT ; LMPOP -1 {p}l LEFT ; \
                 HRANDFIELD {p}h -9223372036854775808 ; GET {p}w",
            ),
        Sequence::new("odd-ranges", "garnet #2031")
            .given("RPUSH {p}l x y x")
            .hot("STRLEN {p}w")
            .ask(
                A,
                "GETRANGE {p}no -1 -1 ; LREM {p}l -2147483648 x ; LRANGE {p}l 0 -100 ; \
                 GETRANGE {p}w 0 9223372036854775807 ; STRLEN {p}w ; GET {p}w",
            ),
        Sequence::new("replies-nested-deeply", "envoy #45388").to_the_mark(
            A,
            "EVAL 'local t={} local r=t for i=1,1000 do local n={} t[1]=n t=n end return r' 0 ; \
             GET {p}w",
        ),
        Sequence::new("replies-nested-less-deeply", "envoy #12689").to_the_mark(
            A,
            "EVAL 'local t={} local r=t for i=1,100 do local n={} t[1]=n t=n end return r' 0 ; \
             GET {p}w",
        ),
    ]
}
