// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the feed asks for a fill, and which answers fill.

use super::*;
use crate::cached_hash::Encoding;
use crate::size::Size;

#[test]
fn sizes_are_asked_for_by_commands_whose_answers_are_short() {
    let mut fixture = Fixture::ready();
    let key = |name: &str| Wanted::string(name.as_bytes().to_vec());
    let mut batch: Vec<Wanted> = ["h", "s", "l", "x", "n"].map(key).into();
    for at in [0, 3, 4] {
        batch[at].kind = ValueKind::Hash;
    }
    fixture.redis.heard();
    fixture.feed.ask_sizes(batch.clone(), 9, false);
    fixture.feed.flush().unwrap();
    let heard = fixture.redis.heard();
    for reads in ["GET", "HKEYS", "HVALS", "HGETALL", "HRANDFIELD"] {
        assert!(!heard.contains(reads), "{heard}");
    }
    fixture.say(("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(12)).as_bytes());
    fixture.say(b"*12\r\n+OK\r\n$8\r\nlistpack\r\n:3\r\n:128\r\n:4194304\r\n-WRONGTYPE x\r\n");
    fixture.say(b"$9\r\nhashtable\r\n:1000000\r\n:90000000\r\n_\r\n:0\r\n_\r\n");
    let Event::Sized(found) = fixture.events.remove(0) else {
        panic!("{:?}", fixture.events)
    };
    let hash = |encoding, fields, memory| Size::Hash {
        encoding,
        fields: Some(fields),
        memory,
    };
    let small = hash(Encoding::Listpack, 3, 128);
    let large = hash(Encoding::Table, 1_000_000, 90_000_000);
    let none = Size::None;
    let sizes = [small, Size::String(4_194_304), none, large, Size::Absent];
    for ((wanted, size), (expected, key)) in found.into_iter().zip(sizes.into_iter().zip(batch)) {
        assert_eq!((&wanted, size), (&key, Some(expected)));
    }
    fixture.feed.ask_sizes(vec![key("a")], 9, false);
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT x\r\n");
    assert!(matches!(&fixture.events[..], [Event::Sized(found)] if found[0].1.is_none()));
}

#[test]
fn an_answer_that_no_fill_can_have_ends_the_feed() {
    let mut fixture = Fixture::ready();
    fixture.feed.ask_fill(asked(&["a"]), 9);
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    let error = fixture.try_say(b"*3\r\n+OK\r\n$1048577\r\n").unwrap_err();
    assert!(error.to_string().contains("longer than 1048576"), "{error}");
}

/// A hash of one field that does not expire.
const READ: &str = "*1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n:-1\r\n";

/// INFO was answered by this version.
fn say_version(fixture: &mut Fixture, version: &str) {
    let info = format!("redis_version:{version}\r\n");
    fixture.feed.ask_state(0);
    fixture.say(format!("*0\r\n*0\r\n${}\r\n{info}\r\n", info.len()).as_bytes());
    fixture.events.clear();
}

#[test]
fn a_table_is_filled_where_its_fields_do_not_expire() {
    let end = |version: Option<&str>, keyspace: Option<&str>| {
        let mut fixture = Fixture::ready();
        if let Some(version) = version {
            say_version(&mut fixture, version);
        }
        let mut batch = asked(&["h"]);
        batch[0].wanted.kind = ValueKind::Hash;
        fixture.redis.heard();
        fixture.feed.ask_fill(batch, 9);
        fixture.feed.flush().unwrap();
        let asks = fixture.redis.heard().contains("keyspace");
        assert_eq!(asks, keyspace.is_some());
        let keyspace = keyspace.map(|text| format!("${}\r\n{text}\r\n", text.len()));
        let replies = 4 + usize::from(asks);
        fixture.say(format!("+OK\r\n{}", "+QUEUED\r\n".repeat(replies)).as_bytes());
        let keyspace = keyspace.unwrap_or_default();
        fixture.say(format!("*{replies}\r\n{keyspace}+OK\r\n$9\r\nhashtable\r\n{READ}").as_bytes());
        let Some(Event::Filled(ends)) = fixture.events.pop() else {
            panic!("{:?}", fixture.events)
        };
        ends[0].1
    };
    let (counted, none) = (
        "db0:keys=1,subexpiry=1",
        "db0:keys=1,subexpiry=0\r\ndb1:keys=1,subexpiry=1",
    );
    assert_eq!(end(Some("7.2.5"), None), Filled::Inserted);
    assert_eq!(end(Some("7.4.0"), Some(none)), Filled::Inserted);
    assert_eq!(end(Some("7.4.0"), Some(counted)), Filled::Never);
    assert_eq!(
        end(None, Some("db0:keys=1")),
        Filled::Never,
        "not known yet"
    );
}

#[test]
fn a_hash_is_filled_whole_or_not_at_all() {
    let mut fixture = Fixture::ready();
    say_version(&mut fixture, "7.0.15");
    let mut batch = asked(&["h", "s", "x", "w"]);
    for at in [0, 2, 3] {
        batch[at].wanted.kind = ValueKind::Hash;
    }
    fixture.feed.ask_fill(batch, 9);
    fixture.say(("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(12)).as_bytes());
    assert!(
        fixture
            .redis
            .heard()
            .contains("HRANDFIELD\r\n$1\r\nh\r\n$2\r\n65\r\n$10\r\nWITHVALUES\r\n")
    );
    fixture.say(format!("*12\r\n+OK\r\n$8\r\nlistpack\r\n{READ}$1\r\nv\r\n:-1\r\n").as_bytes());
    fixture.say(format!("$10\r\nlistpackex\r\n{READ}").as_bytes());
    fixture.say(b"$6\r\nembstr\r\n-WRONGTYPE x\r\n:-1\r\n");
    let Event::Filled(ends) = &fixture.events[0] else {
        panic!("{:?}", fixture.events)
    };
    let ends: Vec<_> = ends.iter().map(|(_, end)| *end).collect();
    let (yes, never) = (Filled::Inserted, Filled::Never);
    assert_eq!(ends, [yes, yes, never, never]);
}

#[test]
fn where_misses_are_told_a_size_is_asked_for_without_one() {
    let mut fixture = Fixture::ready();
    let key = |name: &str| Wanted::string(name.as_bytes().to_vec());
    let mut batch: Vec<Wanted> = ["s", "l", "n", "h", "x"].map(key).into();
    batch[3].kind = ValueKind::Hash;
    batch[4].kind = ValueKind::Hash;
    fixture.feed.ask_state(0);
    fixture.say(b"*2\r\n$22\r\nnotify-keyspace-events\r\n$2\r\nEm\r\n*0\r\n$0\r\n\r\n");
    fixture.events.clear();
    fixture.redis.heard();
    fixture.feed.ask_sizes(batch.clone(), 9, false);
    fixture.feed.flush().unwrap();
    let heard = fixture.redis.heard();
    assert!(heard.contains("ENCODING") && heard.contains("USAGE"));
    for loud in ["STRLEN", "HLEN", "GETRANGE", "PEXPIRETIME"] {
        assert!(!heard.contains(loud), "{heard}");
    }
    fixture.say(("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(11)).as_bytes());
    fixture.say(b"*11\r\n+OK\r\n$6\r\nembstr\r\n:56\r\n$9\r\nquicklist\r\n:90\r\n_\r\n_\r\n");
    fixture.say(b"$8\r\nlistpack\r\n:200\r\n$9\r\nhashtable\r\n:200\r\n");
    let Event::Sized(found) = fixture.events.remove(0) else {
        panic!("{:?}", fixture.events)
    };
    let (none, string) = (Size::None, Size::StringMemory(56));
    let hash = |encoding| Size::Hash {
        encoding,
        fields: None,
        memory: 200,
    };
    let (listpack, table) = (hash(Encoding::Listpack), hash(Encoding::Table));
    let sizes = [string, none, Size::Absent, listpack, table];
    for ((wanted, size), (expected, key)) in found.into_iter().zip(sizes.into_iter().zip(batch)) {
        assert_eq!((&wanted, size), (&key, Some(expected)));
    }
}
