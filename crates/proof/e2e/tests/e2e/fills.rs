// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What filling costs Redis: nothing that Redis alone would not have done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_check::resp;
use erb_e2e::calls::{call, expect, get};
use erb_e2e::lab::{STATE_WAIT, TestLab, scaled, wait};
use erb_e2e::process::signal;
use erb_steady::too_slow;
use nix::sys::signal::Signal;

/// Large strings, each of so many bytes, beside small keys: the review's numbers.
const LARGE: usize = 32;
const SMALL: usize = 2_000;

fn large_bytes() -> usize {
    scaled(4 << 20, 100_000_000)
}

/// More than a SET may wait for with ERB beyond what it waits for without. Reading a million fields
/// takes Redis 700 ms.
const STALL_MAX: Duration = Duration::from_millis(250);
/// So often the two are compared that do not compare well: the longest of many is what others did meanwhile, too.
const TRIES: u32 = 3;

/// A number of INFO.
fn info(conn: &mut Conn, name: &str) -> u64 {
    let text = call(conn, "INFO everything");
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    let number = found.and_then(|rest| rest.strip_prefix(':'));
    number.expect(name).trim_end().parse().expect(name)
}

/// Reads the large keys in every way.
fn read_large(conn: &mut Conn, rounds: usize) {
    let names: Vec<String> = (0..LARGE).map(|number| format!("large{number}")).collect();
    let exists = format!("EXISTS {}", names.join(" "));
    let length = format!(":{}\r\n", large_bytes());
    for round in 0..rounds {
        expect(conn, &exists, &format!(":{LARGE}\r\n"));
        for name in &names {
            expect(conn, &format!("STRLEN {name}"), &length);
            expect(conn, &format!("TTL {name}"), ":-1\r\n");
            expect(
                conn,
                &format!("GETRANGE {name} {} -1", large_bytes() - 1),
                "$1\r\nx\r\n",
            );
        }
        // Once more than the second miss, and not all of them: a reply takes Redis's memory, too.
        let name = &names[round % 4];
        let value = get(conn, name).expect("a value");
        assert_eq!(value.len(), large_bytes());
        sleep(Duration::from_millis(30));
    }
}

#[test]
fn reading_large_values_evicts_nothing() {
    let lab = TestLab::boosted_with("fills-evict", &["--direct"]);
    let (mut admin, mut client) = (lab.unseen(), lab.client());
    for number in 0..SMALL {
        expect(
            &mut admin,
            &format!("SET small{number} value{number}"),
            "+OK\r\n",
        );
    }
    for number in 0..LARGE {
        let last = large_bytes() - 1;
        let words = format!("SETRANGE large{number} {last} x");
        expect(&mut admin, &words, &format!(":{}\r\n", large_bytes()));
    }
    lab.heat(&mut client, "small7");
    let most = info(&mut admin, "used_memory") + 3 * large_bytes() as u64; // room for three replies
    expect(
        &mut admin,
        "CONFIG SET maxmemory-policy allkeys-lru",
        "+OK\r\n",
    );
    expect(
        &mut admin,
        &format!("CONFIG SET maxmemory {most}"),
        "+OK\r\n",
    );
    let rounds = scaled(12, 60);
    read_large(&mut admin, rounds);
    assert_eq!(info(&mut admin, "evicted_keys"), 0, "without ERB");
    let before = lab.counters();
    read_large(&mut client, rounds);
    sleep(Duration::from_secs(2));
    read_large(&mut client, rounds);
    assert_eq!(info(&mut admin, "evicted_keys"), 0, "with ERB");
    let moved = lab.counters();
    assert!(moved.since(&before, "MISS_REPORTED") > 0, "never missed");
    lab.assert_fast(&mut client, "small7", "nothing is answered");
    assert_eq!(lab.status().redis.feeds_made, 1);
}

/// The longest that a SET waited while `work` went on.
fn longest_set(mut probe: Conn, work: impl FnOnce()) -> (Conn, Duration) {
    static OVER: AtomicBool = AtomicBool::new(false);
    OVER.store(false, Ordering::Relaxed);
    let prober = spawn(move || {
        let mut longest = Duration::ZERO;
        while !OVER.load(Ordering::Relaxed) {
            let began = Instant::now();
            expect(&mut probe, "SET probe v", "+OK\r\n");
            longest = longest.max(began.elapsed());
            sleep(Duration::from_millis(1));
        }
        (probe, longest)
    });
    work();
    OVER.store(true, Ordering::Relaxed);
    prober.join().expect("a thread of this test panicked")
}

#[test]
fn reading_fields_of_a_huge_hash_stops_nobody() {
    let lab = TestLab::boosted_with("fills-hash", &["--direct"]);
    let (mut admin, mut client) = (lab.unseen(), lab.client());
    let fields = scaled(1_000_000, 10_000_000);
    let script =
        "for i=ARGV[1],ARGV[1]+49999 do redis.call('hset',KEYS[1],'field'..i,'value'..i) end";
    for from in (0..fields).step_by(50_000) {
        let from = from.to_string();
        let reply = admin
            .call(&["EVAL", script, "1", "huge", &from])
            .expect("EVAL");
        assert_eq!(reply, b"$-1\r\n");
    }
    expect(&mut admin, "HLEN huge", &format!(":{fields}\r\n"));
    expect(&mut admin, "SET probed v", "+OK\r\n");
    lab.heat(&mut client, "probed");
    let read = |conn: &mut Conn| {
        for round in 0..scaled(30, 300) {
            let value = format!("value{round}");
            let reply = format!("${}\r\n{value}\r\n", value.len());
            expect(conn, &format!("HGET huge field{round}"), &reply);
            sleep(Duration::from_millis(100));
        }
    };
    let before = lab.counters();
    for tries_left in (0..TRIES).rev() {
        let (_, alone) = longest_set(lab.unseen(), || read(&mut admin));
        let (_, with) = longest_set(lab.client(), || read(&mut client));
        println!("a SET waited {alone:?} at most without ERB, {with:?} with it");
        if with < alone + STALL_MAX {
            break;
        }
        if tries_left == 0 {
            too_slow(format_args!(
                "a SET waited {with:?} at most, {alone:?} without ERB"
            ));
        }
    }
    assert!(
        lab.counters().since(&before, "MISS_REPORTED") > 0,
        "never missed"
    );
    assert_eq!(lab.status().redis.feeds_made, 1, "the feed was made anew");
    lab.wait_admitting();
}

/// A connection goes on, and is answered fast again, after more bytes than half of all sequence
/// numbers: of replies while nothing was answered, of replies and of requests between two answers.
#[test]
fn gigabytes_pass_between_two_answers() {
    const BYTES: usize = 100_000_000;
    const TIMES: usize = 23;
    let lab = TestLab::boosted_with("gigabytes", &["--direct"]);
    let mut conn = lab.client();
    let body = "x".repeat(BYTES);
    expect(&mut conn, &format!("SET large {body}"), "+OK\r\n");
    let answered = |conn: &mut Conn| {
        wait(STATE_WAIT, || {
            let before = lab.counters();
            for _ in 0..3 {
                expect(conn, "PING", "+PONG\r\n");
            }
            let after = lab.counters();
            let all = after.since(&before, "FAST_PING") == 3;
            all.then_some(()).ok_or_else(|| after.moved(&before))
        });
    };
    // The second time the connection has been answered before.
    for _ in 0..scaled(1, 2) {
        for _ in 0..TIMES {
            assert_eq!(get(&mut conn, "large").expect("a value").len(), BYTES);
        }
        answered(&mut conn);
    }
    for _ in 0..scaled(0, TIMES) {
        expect(&mut conn, &format!("SET large {body}"), "+OK\r\n");
    }
    answered(&mut conn);
    lab.assert_settled();
}

/// A listener is told so often of keys with these words, and no more often for a while after that.
fn assert_told(listener: &mut Conn, words: &[&str], times: usize) {
    let mut events = String::new();
    let heard =
        |events: &str| -> usize { words.iter().map(|word| events.matches(word).count()).sum() };
    wait(STATE_WAIT, || {
        events += &String::from_utf8_lossy(&listener.rest(Duration::from_millis(100)));
        (heard(&events) >= times)
            .then_some(())
            .ok_or_else(|| events.clone())
    });
    events += &String::from_utf8_lossy(&listener.rest(Duration::from_millis(400)));
    assert_eq!(heard(&events), times, "{events}");
}

/// A key that is not there is answered fast until it is made, and while no client hears of its reads.
#[test]
fn absent_keys_are_answered_until_they_are_made_or_told_of() {
    let lab = TestLab::boosted_with("absent", &["--direct"]);
    let (mut client, mut writer, mut unseen) = (lab.client(), lab.client(), lab.unseen());
    lab.heat(&mut client, "nobody");
    assert!(lab.counters().get("FOUND_ABSENT") > 0);
    for round in 0..20 {
        lab.heat(&mut client, "nobody");
        let make = ["SET nobody v", "APPEND nobody v", "COPY other nobody"][round % 3];
        expect(&mut unseen, "SET other v", "+OK\r\n");
        call(&mut writer, make);
        assert_eq!(get(&mut client, "nobody").as_deref(), Some("v"), "{make}");
        expect(&mut writer, "DEL nobody", ":1\r\n");
        assert_eq!(get(&mut client, "nobody"), None);
    }
    lab.heat(&mut client, "nobody");
    expect(&mut unseen, "SET nobody v", "+OK\r\n");
    sleep(Duration::from_millis(120));
    assert_eq!(get(&mut client, "nobody").as_deref(), Some("v"));
    expect(&mut unseen, "DEL nobody", ":1\r\n");
    lab.heat(&mut client, "nobody");
    let mut listener = lab.unseen();
    let subscribe = ["SUBSCRIBE", "__keyevent@0__:keymiss"];
    listener.call(&subscribe).expect("a reply");
    for _ in 0..5 {
        expect(
            &mut writer,
            "CONFIG SET notify-keyspace-events AEm",
            "+OK\r\n",
        );
        for read in 0..60 {
            assert_eq!(get(&mut client, "nobody"), None);
            sleep(Duration::from_millis(read % 7));
        }
        assert_told(&mut listener, &["nobody"], 60);
        expect(
            &mut writer,
            "CONFIG SET notify-keyspace-events AE",
            "+OK\r\n",
        );
        lab.heat(&mut client, "nobody");
    }
    assert_told(&mut listener, &["nobody"], 0);
    lab.assert_settled();
}

/// Commands that make a key which is neither a string nor a hash: `{key}`, and `src`, which has a member.
const MAKERS: [&str; 13] = [
    "LPUSH {key} v",
    "RPUSH {key} v",
    "LMOVE src {key} LEFT LEFT",
    "RPOPLPUSH src {key}",
    "BLMOVE src {key} LEFT LEFT 0",
    "BRPOPLPUSH src {key} 0",
    "SADD {key} v",
    "SMOVE set {key} v",
    "ZADD {key} 1 v",
    "ZINCRBY {key} 1 v",
    "XADD {key} * f v",
    "XGROUP CREATE {key} g $ MKSTREAM",
    "GEOADD {key} 1 1 v",
];

/// A key is cached as absent, and becomes another type while the daemon stands still: no report of it is
/// handled, and the command's own packet ends the absence.
#[test]
fn what_becomes_a_list_or_a_set_is_not_absent_any_more() {
    let lab = TestLab::boosted_with("makers", &["--direct"]);
    let (mut client, mut other) = (lab.client(), lab.client());
    let (mut writer, mut unseen) = (lab.client(), lab.unseen());
    let mut round = 0;
    // Where the fast path was closed each time, by a lease that ran out, nothing was shown.
    wait(STATE_WAIT, || {
        round += 1;
        let open = makers_round(
            &lab,
            round,
            [&mut client, &mut other, &mut writer, &mut unseen],
        );
        (open > 0)
            .then_some(())
            .ok_or("the fast path was always closed".to_owned())
    });
    lab.assert_settled();
}

/// How often the fast path was open while such keys were made.
fn makers_round(lab: &TestLab, round: u32, conns: [&mut Conn; 4]) -> u64 {
    let [client, other, writer, unseen] = conns;
    let mut open = 0;
    for (number, maker) in MAKERS.into_iter().enumerate() {
        let key = format!("absent:{round}:{number}");
        call(unseen, "DEL src set");
        expect(unseen, "RPUSH src v", ":1\r\n");
        expect(unseen, "SADD set v", ":1\r\n");
        expect(unseen, "SET hot v", "+OK\r\n");
        lab.heat(client, &key);
        lab.heat(other, "hot");
        let (before, daemon) = (lab.counters(), lab.daemon_pid());
        signal(daemon, Signal::SIGSTOP);
        let reply = call(writer, &maker.replace("{key}", &key));
        let found = call(client, &format!("EXISTS {key}"));
        expect(other, "GET hot", "$1\r\nv\r\n");
        signal(daemon, Signal::SIGCONT);
        open += lab.counters().since(&before, "FAST_GET");
        assert!(!reply.starts_with('-'), "{maker}: {reply}");
        assert_eq!(found, ":1\r\n", "{maker}");
        lab.wait_admitting();
    }
    open
}

/// The same, made by a push for which another client's move had waited for long.
#[test]
fn what_a_blocked_move_makes_is_not_absent_any_more() {
    let lab = TestLab::boosted_with("moves", &["--direct"]);
    let (mut client, mut worker, mut pusher) = (lab.client(), lab.client(), lab.client());
    expect(&mut worker, "PING", "+PONG\r\n");
    lab.heat(&mut client, "to");
    let blocks = ["BLMOVE", "src", "to", "LEFT", "LEFT", "0"];
    worker.send(&resp::command(&blocks)).expect("send");
    let before = lab.counters();
    for _ in 0..100 {
        assert_eq!(get(&mut client, "to"), None);
        sleep(Duration::from_millis(10));
    }
    assert!(lab.counters().since(&before, "FAST_GET") < 3, "cached");
    let daemon = lab.daemon_pid();
    signal(daemon, Signal::SIGSTOP);
    expect(&mut pusher, "RPUSH src v", ":1\r\n");
    let found = call(&mut client, "EXISTS to");
    signal(daemon, Signal::SIGCONT);
    assert_eq!(found, ":1\r\n");
    assert_eq!(worker.reply().expect("the item"), b"$1\r\nv\r\n");
    lab.wait_admitting();
    lab.assert_settled();
}

/// A client that subscribes to keys that were looked for and not there sees the clients' reads of them, and none of
/// the daemon's.
#[test]
fn absent_keys_cause_no_event_but_the_clients() {
    let lab = TestLab::boosted_with("keymiss", &["--direct"]);
    let (mut client, mut unseen) = (lab.client(), lab.unseen());
    expect(&mut unseen, "SET str value", "+OK\r\n");
    expect(&mut unseen, "HSET hash field value", ":1\r\n");
    let set = "CONFIG SET notify-keyspace-events Em";
    expect(&mut client, set, "+OK\r\n");
    sleep(Duration::from_secs(2));
    lab.wait_admitting();
    let mut listener = lab.unseen();
    let subscribe = ["SUBSCRIBE", "__keyevent@0__:keymiss"];
    listener.call(&subscribe).expect("a reply");
    let before = lab.counters();
    let (keys, rounds) = (5, 6);
    for _ in 0..rounds {
        for number in 0..keys {
            expect(&mut client, &format!("GET absent{number}"), "$-1\r\n");
            expect(&mut client, &format!("HGET nohash{number} f"), "$-1\r\n");
        }
        sleep(Duration::from_millis(100));
    }
    let moved = lab.counters();
    assert!(moved.since(&before, "MISS_REPORTED") > 0, "never missed");
    assert_told(&mut listener, &["absent", "nohash"], 2 * keys * rounds);
    lab.heat(&mut client, "str");
    wait(STATE_WAIT, || {
        let before = lab.counters();
        expect(&mut client, "HGET hash field", "$5\r\nvalue\r\n");
        sleep(Duration::from_millis(20));
        let fast = lab.counters().since(&before, "FAST_HGET");
        (fast > 0)
            .then_some(())
            .ok_or("the hash is never answered".to_owned())
    });
    let events = listener.rest(Duration::from_millis(300));
    assert!(events.is_empty(), "{}", String::from_utf8_lossy(&events));
}
