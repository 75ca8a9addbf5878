// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever way a key is written: after the answer no read shows the older value.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use erb_check::conversation::{self, ConversationArgs};
use erb_check::net::Conn;
use erb_e2e::calls::{bulk, call, expect, get, pipeline, set};
use erb_e2e::lab::{TestLab, arguments, scaled};
use erb_e2e::stop::Stop;
use erb_lab::End;
use erb_steady::too_slow;
use nix::sys::socket::{self, MsgFlags};

/// Writes of a key that is read all the time: normal, and in full.
const HOT_WRITES: (usize, usize) = (600, 20_000);
/// A fill takes about two round trips after the first miss.
const FILL: Duration = Duration::from_millis(12);

/// Reads that make `key` a hit.
fn warm(conn: &mut Conn, key: &str) {
    for _ in 0..3 {
        get(conn, key);
        sleep(FILL);
    }
    get(conn, key);
}

/// `commands` (`{key}`, and `{other}` that holds "new") on one connection, then at once GET
/// on another: it must see `want`. The key is a hit before.
fn seen_by_all(lab: &TestLab, row: usize, commands: &str, want: Option<&str>) {
    let (mut setter, mut reader) = (lab.client(), lab.client());
    let mut writer = lab.client();
    expect(&mut writer, "PING", "+PONG\r\n");
    // Each with a key of its own.
    for round in 0..scaled(1, 3) {
        let key = format!("key:{row}:{round}");
        set(&mut setter, &key, "old");
        set(&mut setter, "other", "new");
        lab.heat(&mut reader, &key);
        let commands = commands.replace("{key}", &key).replace("{other}", "other");
        for command in commands.split(';') {
            let reply = call(&mut writer, command);
            assert!(!reply.starts_with('-'), "{command}: {reply}");
        }
        let got = get(&mut reader, &key);
        assert_eq!(got.as_deref(), want, "round {round}, after {commands:?}");
    }
}

/// Commands and what the key holds afterwards.
const WRITES: &[(&str, Option<&str>)] = &[
    ("SET {key} new", Some("new")),
    ("SET {key} new KEEPTTL GET", Some("new")),
    ("SETEX {key} 100 new", Some("new")),
    ("PSETEX {key} 100000 new", Some("new")),
    ("GETSET {key} new", Some("new")),
    ("APPEND {key} +", Some("old+")),
    ("SETRANGE {key} 0 nEW", Some("nEW")),
    ("SETBIT {key} 7 0", Some("nld")),
    ("BITFIELD {key} SET u8 0 110", Some("nld")),
    ("GETDEL {key}", None),
    ("DEL {key}", None),
    ("UNLINK {key}", None),
    ("DEL nothing {key}", None),
    ("EXPIRE {key} 0", None),
    ("PEXPIREAT {key} 1", None),
    ("GETEX {key} PXAT 1", None),
    ("MSET a 1 {key} new b 2", Some("new")),
    ("RENAME {other} {key}", Some("new")),
    ("RENAME {key} elsewhere", None),
    ("COPY {other} {key} REPLACE", Some("new")),
    ("MOVE {key} 9", None),
    ("FLUSHALL", None),
    ("FLUSHDB ASYNC", None),
    ("SWAPDB 0 5", None),
    ("BITOP OR {key} {other}", Some("new")),
    ("SORT list STORE {key}", None),
    ("ZUNIONSTORE {key} 1 nothing", None),
    ("SUNIONSTORE {key} nothing", None),
    ("MULTI;SET {key} new;EXEC", Some("new")),
    (
        "WATCH {key};MULTI;SET {key} mid;SET {key} new;EXEC",
        Some("new"),
    ),
    ("MULTI;SET {key} new;DISCARD", Some("old")),
    ("EVAL redis.call('set','{key}','new') 0", Some("new")),
    ("EVAL redis.call('del','{key}') 0", None),
    ("SELECT 1;SET {key} new;SELECT 0", Some("old")),
    ("SELECT 1;SELECT 0;SET {key} new", Some("new")),
    ("AUTH default x;SET {key} new", Some("new")),
    ("HELLO 3;SET {key} new", Some("new")),
    ("RESET;SET {key} new", Some("new")),
    ("CLIENT NO-EVICT on;SET {key} new", Some("new")),
    ("OBJECT FREQ {key}", Some("old")),
];

#[test]
fn every_way_to_write_is_seen_by_other_connections_at_once() {
    let lab = TestLab::boosted_with(
        "writes",
        &["--direct", "--redis-arg", "maxmemory-policy=allkeys-lfu"],
    );
    for (row, (commands, want)) in WRITES.iter().enumerate() {
        seen_by_all(&lab, row, commands, *want);
    }
    lab.assert_settled();
}

#[test]
fn conversations_of_every_class_are_those_with_redis_wherever_they_are_cut() {
    let mut lab = TestLab::boosted_with("conversation", &["--direct"]);
    let (target, plain) = (lab.address(), lab.plain_redis());
    let (rounds, cuts) = scaled((1, "some"), (5, "every"));
    let words = format!(
        "--target {target} --shadow {plain} --allow-flush --require-fast --rounds {rounds} \
         --cuts {cuts} --warm-pause-ms 5"
    );
    let report = lab.inside(End::Client, || {
        conversation::execute(&arguments::<ConversationArgs>(&words)).expect("conversation")
    });
    let (differences, slow) = (&report.differences, &report.slow);
    assert!(
        differences.is_empty(),
        "seed {}: {differences:#?}",
        report.seed
    );
    assert!(report.cases.len() > 90, "{} cases", report.cases.len());
    assert!(report.cuts() > 4_000, "{} cuts", report.cuts());
    lab.assert_settled();
    if !report.passed {
        too_slow(format_args!(
            "seed {}: not answered in front of Redis: {slow:?}",
            report.seed
        ));
    }
}

/// Ways to give `hot` the value `{n}` by several kinds of command, all answered before the next.
const FORMS: [&str; 9] = [
    "SET hot {n}",
    "MSET x 1 hot {n}",
    "MULTI;SET hot {n};EXEC",
    "EVAL return(redis.call('set','hot',ARGV[1])) 0 {n}",
    "SET tmp {n};RENAME tmp hot",
    "SET tmp {n};COPY tmp hot REPLACE",
    "GETSET hot {n}",
    "SETEX hot 1000 {n}",
    "INCRBY hot 1",
];

fn read_until(stop: &AtomicBool, acknowledged: &AtomicU64, mut conn: Conn) {
    let _stop = Stop(stop);
    while !stop.load(Ordering::Relaxed) {
        let floor = acknowledged.load(Ordering::SeqCst);
        let seen: u64 = get(&mut conn, "hot").map_or(0, |value| value.parse().expect("a number"));
        assert!(seen >= floor, "read {seen} after {floor} was acknowledged");
    }
}

#[test]
fn readers_of_a_hot_key_never_see_what_was_overwritten_in_any_form() {
    let lab = TestLab::boosted_with("forms", &["--direct"]);
    let mut writer = lab.client();
    set(&mut writer, "hot", "1");
    let readers: Vec<Conn> = (0..3).map(|_| lab.client()).collect();
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(1));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for conn in readers {
            scope.spawn(|| read_until(&stop, &acknowledged, conn));
        }
        let writes = scaled(HOT_WRITES.0, HOT_WRITES.1);
        for (number, form) in (2u64..).zip(FORMS.iter().cycle().take(writes)) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            for command in form.replace("{n}", &number.to_string()).split(';') {
                let reply = call(&mut writer, command);
                assert!(!reply.starts_with('-'), "{command}: {reply}");
            }
            acknowledged.store(number, Ordering::SeqCst);
            sleep(Duration::from_millis(number % 12));
        }
    });
    let counters = lab.assert_settled();
    assert!(counters.get("FAST_GET") > 0, "no read was a hit");
}

/// A connection that sends `words` and then waits; hits on another connection must go on.
fn does_not_stop_hits(lab: &TestLab, idle: &str) {
    let (mut reader, mut waiting) = (lab.client(), lab.client());
    set(&mut reader, "hot", "v");
    expect(&mut waiting, "PING", "+PONG\r\n");
    for command in idle.split(';') {
        let words: Vec<&str> = command.split_whitespace().collect();
        waiting
            .send(&erb_check::resp::command(&words))
            .expect("send");
        sleep(Duration::from_millis(30));
    }
    lab.heat(&mut reader, "hot");
    lab.assert_fast(&mut reader, "hot", &format!("{idle}: no more hits"));
    assert_eq!(
        lab.status().fence,
        0,
        "{idle} closes the fence while it waits"
    );
}

#[test]
fn commands_that_wait_do_not_stop_others_from_being_answered() {
    let lab = TestLab::boosted_with("waiting", &["--direct"]);
    for idle in [
        "BLPOP nothing 0",
        "BLMOVE nothing other LEFT LEFT 0",
        "BZPOPMIN nothing 0",
        "XREAD BLOCK 0 STREAMS nothing $",
        "XGROUP CREATE s g $ MKSTREAM;XREADGROUP GROUP g c BLOCK 0 STREAMS s >",
        "SUBSCRIBE channel",
        "MULTI;SET other 1",
        "WATCH hot",
        "CLIENT REPLY OFF",
        "CLIENT REPLY OFF;EVAL return(1) 0",
    ] {
        does_not_stop_hits(&lab, idle);
    }
    lab.assert_settled();
}

#[test]
fn a_blocking_pop_that_is_served_by_a_push_is_answered() {
    let lab = TestLab::boosted_with("blpop", &["--direct"]);
    let (mut popper, mut pusher) = (lab.client(), lab.client());
    expect(&mut popper, "PING", "+PONG\r\n");
    popper
        .send(&erb_check::resp::command(&["BLPOP", "list", "0"]))
        .expect("send");
    set(&mut pusher, "hot", "v");
    lab.heat(&mut pusher, "hot");
    expect(&mut pusher, "RPUSH list item", ":1\r\n");
    let reply = popper.reply().expect("the item");
    assert_eq!(reply, b"*2\r\n$4\r\nlist\r\n$4\r\nitem\r\n");
    expect(&mut popper, "GET hot", &bulk("v"));
    lab.assert_settled();
}

#[test]
fn silent_writes_are_seen_after_the_next_answer_of_their_connection() {
    let lab = TestLab::boosted_with("silent", &["--direct"]);
    let mut reader = lab.client();
    for round in 0..20 {
        let key = format!("silent:{round}");
        let mut writer = lab.client();
        set(&mut writer, &key, "old");
        warm(&mut reader, &key);
        let silent = ["CLIENT REPLY OFF", "CLIENT REPLY SKIP"][round % 2];
        for command in [silent, &format!("SET {key} new")] {
            let words: Vec<&str> = command.split_whitespace().collect();
            writer
                .send(&erb_check::resp::command(&words))
                .expect("send");
        }
        let on = if round % 2 == 0 {
            "CLIENT REPLY ON"
        } else {
            "PING"
        };
        assert!(call(&mut writer, on).starts_with('+'), "{on}");
        assert_eq!(
            get(&mut reader, &key).as_deref(),
            Some("new"),
            "round {round}"
        );
    }
    lab.heat(&mut reader, "silent:0");
    lab.assert_settled();
}

/// Redis does not read a byte that comes as urgent, and so runs another command than the bytes say: ERB reads
/// none of that connection, and nobody reads what was before.
#[test]
fn a_write_with_an_urgent_byte_is_a_write_of_what_redis_reads() {
    let lab = TestLab::boosted_with("urgent", &["--direct"]);
    let mut reader = lab.client();
    for round in 0..scaled(8, 20) {
        let key = format!("k{round:02}");
        set(&mut reader, &key, "old");
        lab.heat(&mut reader, &key);
        let mut writer = lab.client();
        expect(&mut writer, "PING", "+PONG\r\n");
        let (head, rest) = (
            format!("*3\r\n$3\r\nSET\r\n$3\r\n{key}\r\n$"),
            b"3\r\nnew\r\n",
        );
        writer.send(head.as_bytes()).expect("send");
        let socket = writer.stream().as_raw_fd();
        assert_eq!(socket::send(socket, b"1", MsgFlags::MSG_OOB), Ok(1));
        writer.send(rest).expect("send");
        assert_eq!(writer.reply().expect("OK"), b"+OK\r\n");
        assert_eq!(get(&mut reader, &key).as_deref(), Some("new"), "{round}");
        expect(&mut writer, &format!("GET {key}"), &bulk("new"));
    }
    assert!(lab.counters().get("ODD_URGENT") > 0, "none was urgent");
    lab.assert_settled();
}

#[test]
fn a_pipeline_reads_its_own_writes_while_others_keep_the_key_hot() {
    let lab = TestLab::boosted_with("pipeline", &["--direct"]);
    let stop = AtomicBool::new(false);
    let mut conn = lab.client();
    set(&mut conn, "hot", "0");
    let readers: Vec<Conn> = (0..2).map(|_| lab.client()).collect();
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for mut reader in readers {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    get(&mut reader, "hot");
                }
            });
        }
        for number in 1..scaled(1_000, 50_000) {
            let before = bulk(&(number - 1).to_string());
            let now = bulk(&number.to_string());
            let got = pipeline(&mut conn, &format!("GET hot;SET hot {number};GET hot;PING"));
            let want = format!("{before}+OK\r\n{now}+PONG\r\n");
            assert_eq!(got, want);
        }
    });
    assert!(
        conn.rest(Duration::from_millis(50)).is_empty(),
        "bytes nobody asked for"
    );
    lab.assert_settled();
}
