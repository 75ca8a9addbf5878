// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two equal servers reply the same to every sequence, so what is found elsewhere is not the table's own doing. What
//! answers too early, or changes a byte, is found.

// The servers and the proxy that lies are those of the checks that drive any address.
#[path = "../../check/tests/common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{Lie, Redis, get_key, lying_proxy};
use erb_check::net::Conn;
use erb_check::resp;
use erb_reports::crew::{self, Outcome, Plan, Prefixes};
use erb_reports::cut::Cuts;
use erb_reports::ground::{Ground, Side};
use erb_reports::table;
use erb_steady::scaled;

/// A guard that no slow machine meets.
const STALL: Duration = Duration::from_secs(120);
/// Silence that counts as an end where one is to be found.
const STALL_SOON: Duration = Duration::from_secs(1);

/// Plays the sequences with these names, or all, against a plain server.
fn played(target: SocketAddr, only: &[&str], stall: Duration) -> HashMap<&'static str, Outcome> {
    let twin = Redis::start();
    let ground = Ground {
        target: Side::here(target),
        twin: Side::here(twin.socket_addr()),
        in_front: false,
        primary: false,
    };
    let plan = Plan {
        cuts: Cuts::Few,
        workers: 4,
        stall,
        seed: 7,
    };
    let prefixes = Prefixes::default();
    let all = table::all().into_iter();
    all.filter(|one| !one.threads && (only.is_empty() || only.contains(&one.name)))
        .map(|one| {
            let outcome = crew::play(&one, &ground, &plan, &prefixes, &|| false).expect("a play");
            (one.name, outcome)
        })
        .collect()
}

/// Sequences that take seconds for what no cut changes.
const LONG: [&str; 2] = ["idle-but-for-fast-reads", "multi-a-thousand-times"];

#[test]
fn two_equal_servers_reply_the_same_to_every_sequence() {
    erb_check::net::raise_file_limit(8192).expect("open files");
    let redis = Redis::start();
    let all: Vec<_> = table::all().iter().map(|one| one.name).collect();
    let some: Vec<_> = all
        .iter()
        .copied()
        .filter(|one| !LONG.contains(one))
        .collect();
    let outcomes = played(redis.socket_addr(), &scaled(some, all), STALL);
    let mut count = 0;
    for (name, outcome) in outcomes {
        assert_eq!(outcome.difference, None, "{name}");
        assert_eq!(outcome.broken, None, "{name}");
        assert!(outcome.plays > 0 || outcome.skipped.is_some(), "{name}");
        count += usize::from(outcome.skipped.is_none());
    }
    assert!(count > 50, "only {count} sequences were played");
}

/// Passes everything on, but answers a GET that comes alone at once: a cache that does not count replies.
fn eager_cache(redis: &Redis) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address");
    let to = redis.socket_addr();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || answer_early(client, to));
        }
    });
    address
}

fn answer_early(mut client: TcpStream, redis: SocketAddr) {
    let mut cache = Conn::connect(redis, STALL).expect("redis");
    let mut server = TcpStream::connect(redis).expect("redis");
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("an option");
    }
    let (mut from, mut to) = (
        server.try_clone().expect("a socket"),
        client.try_clone().expect("a socket"),
    );
    std::thread::spawn(move || {
        // Ends with either of them.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let mut bytes = [0; 65536];
    while let Ok(read @ 1..) = client.read(&mut bytes) {
        let bytes = &bytes[..read];
        let alone = resp::frame_len(bytes).is_ok_and(|length| length == Some(read));
        let done = match get_key(bytes) {
            Some(key) if alone => {
                let value = cache.call(&[&b"GET"[..], &key]).expect("a value");
                client.write_all(&value)
            }
            _ => server.write_all(bytes),
        };
        if done.is_err() {
            break;
        }
    }
    let _ = server.shutdown(std::net::Shutdown::Both);
}

/// What it does to a reply's place: in a transaction, and beside a command that waits.
const EARLY: [&str; 3] = ["get-beside-exec", "two-lines-of-function", "replies-off"];

fn found_early() -> usize {
    let redis = Redis::start();
    let cache = eager_cache(&redis);
    let outcomes = played(cache, &EARLY, STALL_SOON);
    let differs = |outcome: &Outcome| outcome.difference.is_some();
    outcomes.into_values().filter(differs).count()
}

#[test]
fn a_cache_that_does_not_count_replies_is_found() {
    assert_eq!(found_early(), EARLY.len());
}

#[test]
fn one_wrong_byte_and_one_reply_too_many_are_found_and_both_byte_strings_are_told() {
    let redis = Redis::start();
    for (lie, said) in [
        (Lie::FlippedByte(3), "shadow: $4\\r\\nwarm\\r\\n"),
        (Lie::Twice(5), "target"),
    ] {
        let target = lying_proxy(&redis, lie).parse().expect("an address");
        let outcomes = played(target, &["ping-in-multi"], STALL_SOON);
        let found = outcomes["ping-in-multi"].difference.as_deref();
        assert!(
            found.is_some_and(|it| it.contains(said)),
            "{lie:?}: {found:?}"
        );
    }
}

/// A canary of the kernel lane: replies in a wrong place, of a cache in place of ERB.
mod canary {
    #[test]
    fn a_reply_in_a_wrong_place_is_red() {
        assert_eq!(super::found_early() == 0, erb_steady::is_canary());
    }
}
