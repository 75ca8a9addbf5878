// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may do what: a user is named, or loses rights, while requests and CLIENT LIST are on their
//! way; and clients that wait, or listen, while they could be admitted.

use erb_abi as abi;

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

const REFUSED: &[u8] = b"-NOPERM";
const VALUE: &[u8] = b"$1\r\nv\r\n";

fn is_fast(s: &Scenario, client: ConnId) -> bool {
    s.entry(client)
        .is_some_and(|entry| u32::from(entry.state) == abi::CONN_FAST)
}

/// A world in which `k` is cached, and an administrator.
fn world(seed: u64) -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup {
        seed,
        ..Setup::default()
    });
    s.cached(b"k", b"v");
    let admin = s.fast();
    (s, admin)
}

fn user(s: &mut Scenario, admin: ConnId, name: &[u8], keys: &[u8]) {
    let rules: [&[u8]; 7] = [b"ACL", b"SETUSER", name, b"on", b"nopass", keys, b"+@all"];
    assert_eq!(s.call(admin, &rules), b"+OK\r\n");
    warm(s, admin);
}

/// Reads `k` until that is answered by the fast path.
fn warm(s: &mut Scenario, reader: ConnId) {
    for _ in 0..400 {
        let before = s.stat(abi::STAT_FAST_GET);
        assert_eq!(s.call(reader, &[b"GET", b"k"]), VALUE);
        if s.stat(abi::STAT_FAST_GET) > before {
            return;
        }
        s.run(5 * MS);
    }
    panic!("never answered: {}", s.counters());
}

/// The same with a client that is answered as a user of all rights, and one of the default user.
fn admitted(seed: u64) -> (Scenario, ConnId, ConnId) {
    let (mut s, admin) = world(seed);
    user(&mut s, admin, b"full", b"~*");
    let (client, reader) = (s.fast(), s.fast());
    assert_eq!(s.call(client, &[b"AUTH", b"full", b"x"]), b"+OK\r\n");
    s.run(SECOND);
    assert!(is_fast(&s, client), "it may do everything");
    (s, client, reader)
}

/// Requests follow AUTH without waiting for its answer, in its packet and in packets of their own:
/// they are those of the new user.
pub(crate) fn auth_in_flight() {
    for late in 0..8 {
        let (mut s, admin) = world(late + 1);
        user(&mut s, admin, b"few", b"~cold");
        let client = s.fast();
        assert_eq!(s.call(client, &[b"GET", b"k"]), VALUE);
        s.ask_all(client, &[&[b"AUTH", b"few", b"x"], &[b"GET", b"k"]]);
        for _ in 0..6 {
            s.run(late * MS / 40);
            s.ask(client, &[b"GET", b"k"]);
        }
        let answers = s.answers(client);
        let rest = answers.strip_prefix(b"+OK\r\n").expect("AUTH succeeds");
        let lines: Vec<&[u8]> = rest.split_inclusive(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 7, "{}", answers.escape_ascii());
        assert!(
            lines.iter().all(|line| line.starts_with(REFUSED)),
            "{}",
            answers.escape_ascii()
        );
        for _ in 0..3 {
            s.run(SECOND);
            warm(&mut s, admin);
            assert!(s.call(client, &[b"GET", b"k"]).starts_with(REFUSED));
        }
        assert!(!is_fast(&s, client), "it may not do everything");
        s.finish();
    }
}

/// A user of all rights loses them at any moment between CLIENT LIST and admission, and behind both.
pub(crate) fn rights_behind_the_list() {
    let mut admitted = 0;
    for late in 0..40 {
        let (mut s, admin) = world(late + 1);
        user(&mut s, admin, b"full", b"~*");
        let (client, reader) = (s.fast(), s.fast());
        warm(&mut s, reader);
        assert_eq!(s.call(client, &[b"AUTH", b"full", b"x"]), b"+OK\r\n");
        for _ in 0..late {
            s.call(reader, &[b"GET", b"k"]);
            s.run(5 * MS);
        }
        admitted += u32::from(is_fast(&s, client));
        s.ask(
            admin,
            &[b"ACL", b"SETUSER", b"full", b"resetkeys", b"~cold"],
        );
        s.run(late % 4 * MS / 10);
        let answer = s.call(client, &[b"GET", b"k"]);
        assert!(answer == VALUE || answer.starts_with(REFUSED));
        assert_eq!(s.answers(admin), b"+OK\r\n");
        for _ in 0..30 {
            assert!(
                s.call(client, &[b"GET", b"k"]).starts_with(REFUSED),
                "answered behind the change, which was {late} late"
            );
            assert_eq!(s.call(reader, &[b"GET", b"k"]), VALUE);
            s.run(3 * MS);
        }
        warm(&mut s, reader);
        assert!(s.call(client, &[b"GET", b"k"]).starts_with(REFUSED));
        s.call(admin, &[b"ACL", b"SETUSER", b"full", b"~*"]);
        s.run(SECOND);
        assert_eq!(s.call(client, &[b"GET", b"k"]), VALUE);
        s.run(SECOND);
        assert!(is_fast(&s, client), "it may do everything again");
        s.finish();
    }
    assert!(
        (5..35).contains(&admitted),
        "{admitted} of 40 were admitted before"
    );
}

/// A client that waits in BLPOP has an answer outstanding: no list admits it; served, it comes back.
pub(crate) fn blocked_is_not_admitted() {
    for seed in 1..=4 {
        let (mut s, admin) = world(seed);
        let client = s.fast();
        assert_eq!(s.call(client, &[b"SELECT", b"1"]), b"+OK\r\n");
        s.ask(client, &[b"BLPOP", b"list", b"0"]);
        s.run(3 * SECOND);
        assert!(!is_fast(&s, client), "it waits");
        s.call(admin, &[b"SELECT", b"1"]);
        assert_eq!(s.call(admin, &[b"RPUSH", b"list", b"x"]), b":1\r\n");
        let answers = s.answers(client);
        let want: &[u8] = b"*2\r\n$4\r\nlist\r\n$1\r\nx\r\n";
        assert_eq!(answers, want, "{}", answers.escape_ascii());
        s.run(SECOND);
        assert!(is_fast(&s, client), "{}", s.counters());
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
        s.finish();
    }
}

/// Messages just before, and just behind, the last UNSUBSCRIBE of a RESP3 client: none is taken for
/// an answer, whenever it is admitted.
pub(crate) fn push_around_unsubscribe() {
    for late in 0..24 {
        let (mut s, admin) = world(late + 1);
        let client = s.fast();
        assert!(s.call(client, &[b"HELLO", b"3"]).starts_with(b"%7"));
        // Answered by pushes, which no client counts as answers.
        s.write(client, b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n", 0);
        s.run(20 * MS);
        s.ask(admin, &[b"PUBLISH", b"c", b"one"]);
        // Within one turn of Redis's loop the model could not tell which it wrote first.
        s.run(2 * MS);
        s.write(client, b"*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\nc\r\n", 0);
        s.run(MS);
        s.ask(admin, &[b"PUBLISH", b"c", b"two"]);
        s.run(late * 5 * MS);
        s.answers(admin);
        s.run(20 * MS);
        let heard = s.answers(client);
        assert!(
            heard.ends_with(b"$1\r\nc\r\n:0\r\n"),
            "{}",
            heard.escape_ascii()
        );
        for _ in 0..4 {
            assert_eq!(s.call(client, &[b"GET", b"k"]), VALUE);
            s.run(300 * MS);
        }
        s.call(admin, &[b"PUBLISH", b"c", b"three"]);
        assert_eq!(s.call(client, &[b"GET", b"none"]), b"_\r\n");
        s.finish();
    }
}

/// While programs are replaced nobody listens to Redis: a value changes, and a user loses rights. The
/// next daemon must believe neither what is cached nor who was admitted.
pub(crate) fn replaced_unawares() {
    for seed in 1..=6 {
        let (mut s, client, reader) = admitted(seed);
        warm(&mut s, reader);
        warm(&mut s, client);
        s.world.server.replace_programs();
        for change in [&b"SET k w"[..], b"ACL SETUSER full resetkeys ~cold"] {
            let words: Vec<&[u8]> = change.split(|byte| *byte == b' ').collect();
            s.world.server.ask_unseen(&request(&words));
        }
        s.run(u64::from(abi::LEASE_MS) * MS);
        let fast = s.stat(abi::STAT_FAST_GET);
        for _ in 0..40 {
            assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$1\r\nw\r\n");
            let refused = s.call(client, &[b"GET", b"k"]);
            assert!(refused.starts_with(REFUSED), "{}", refused.escape_ascii());
            s.run(20 * MS);
        }
        assert!(s.stat(abi::STAT_FAST_GET) > fast, "{}", s.counters());
        s.finish();
    }
}

/// A user who was admitted loses rights, and its client goes on asking: its refusals say nothing that
/// is not known, and must not keep others from being answered.
pub(crate) fn refused_again_and_again() {
    for seed in 1..=4 {
        let (mut s, client, reader) = admitted(seed);
        s.unseen(&[b"ACL", b"SETUSER", b"full", b"resetkeys", b"~cold"]);
        s.call(client, &[b"GET", b"none"]);
        warm(&mut s, reader);
        let (fast, shut) = (s.stat(abi::STAT_FAST_GET), s.stat(abi::STAT_GATE_SHUT));
        for _ in 0..20 {
            assert!(s.call(client, &[b"GET", b"k"]).starts_with(REFUSED));
            assert_eq!(s.call(reader, &[b"GET", b"k"]), VALUE);
            s.run(3 * MS);
        }
        assert_eq!(s.stat(abi::STAT_GATE_SHUT), shut, "{}", s.counters());
        assert!(s.stat(abi::STAT_FAST_GET) > fast + 10, "{}", s.counters());
        s.finish();
    }
}
