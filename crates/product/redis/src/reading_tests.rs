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
    fixture.feed.ask_sizes(batch.clone(), 9, Sizing::Missed);
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
    let none = Size::None;
    let sizes = [small, Size::String(4_194_304), none, none, Size::Absent];
    for ((wanted, size), (expected, key)) in found.into_iter().zip(sizes.into_iter().zip(batch)) {
        assert_eq!((&wanted, size), (&key, Some(expected)));
    }
    fixture.feed.ask_sizes(vec![key("a")], 9, Sizing::Missed);
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

/// What a table takes of which two looks are enough.
const SMALL_TABLE: usize = 46;

/// How the fill of a table ends, if INFO of its transaction says this; none: it was measured as a listpack.
/// `memory`: what it takes by then.
fn end_of_table(version: Option<&str>, info: Option<&str>, memory: usize) -> Filled {
    let mut fixture = Fixture::ready();
    if let Some(version) = version {
        say_version(&mut fixture, version);
    }
    let mut batch = asked(&["h"]);
    batch[0].wanted.kind = ValueKind::Hash;
    if info.is_some() {
        // One field of two bytes, and buckets in what is left.
        (batch[0].reading.table_memory, batch[0].reading.steps_max) = (SMALL_TABLE, 2);
    }
    fixture.redis.heard();
    fixture.feed.ask_fill(batch, 9);
    fixture.feed.flush().unwrap();
    let heard = fixture.redis.heard();
    let step = "\r\n$8\r\n00000000";
    let samples = "SAMPLES\r\n$3\r\n128\r\n*4";
    let steps = format!("{samples}\r\n$5\r\nHMGET\r\n$1\r\nh{step}{step}\r\n*4");
    assert_eq!(heard.contains("keyspace"), info.is_some());
    assert_eq!(heard.contains(&steps), info.is_some(), "{heard}");
    let replies = if info.is_some() { 7 } else { 4 };
    fixture.say(format!("+OK\r\n{}*{replies}\r\n", "+QUEUED\r\n".repeat(replies)).as_bytes());
    if let Some(info) = info {
        fixture.say(format!("${}\r\n{info}\r\n", info.len()).as_bytes());
    }
    let looks = format!(":{memory}\r\n*2\r\n_\r\n_\r\n");
    let looks = info.map_or("", |_| &looks);
    fixture.say(format!("+OK\r\n$9\r\nhashtable\r\n{looks}{READ}").as_bytes());
    match fixture.events.pop() {
        Some(Event::Filled(ends)) => ends[0].1,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_table_is_filled_where_it_rests_and_its_fields_do_not_expire() {
    let info = |child: u8, expire: u8| {
        format!("rdb_bgsave_in_progress:{child}\r\ndb0:keys=1,subexpiry={expire}\r\n")
    };
    let ends = [
        (Some("7.2.5"), info(0, 1), Filled::Inserted),
        (Some("7.2.5"), info(1, 0), Filled::Later),
        (Some("7.4.0"), info(0, 0), Filled::Inserted),
        (Some("7.4.0"), info(0, 1), Filled::Never),
        (None, info(0, 1), Filled::Never),
    ];
    for (version, info, end) in ends {
        assert_eq!(
            end_of_table(version, Some(&info), SMALL_TABLE),
            end,
            "{version:?} {info}"
        );
    }
    let now = info(0, 0);
    let grown = end_of_table(Some("7.2.5"), Some(&now), SMALL_TABLE + 10 * 8 * 8);
    assert_eq!(grown, Filled::Later, "it has grown since it was measured");
    let listpack = end_of_table(Some("7.2.5"), None, SMALL_TABLE);
    assert_eq!(listpack, Filled::Later);
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
    fixture.feed.ask_sizes(batch.clone(), 9, Sizing::Missed);
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
    let sizes = [
        string,
        none,
        Size::Absent,
        hash(Encoding::Listpack),
        Size::Unmeasured,
    ];
    for ((wanted, size), (expected, key)) in found.into_iter().zip(sizes.into_iter().zip(batch)) {
        assert_eq!((&wanted, size), (&key, Some(expected)));
    }
}
