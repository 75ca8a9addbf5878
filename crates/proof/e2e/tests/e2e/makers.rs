// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Absence is answered from the cache, so a write that may make a key must be known as one. Here real servers are
//! asked: no write that `bpf/redis/commands.def` calls harmless makes a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{sleep, spawn};
use std::time::Duration;

use erb_abi::{CMD_HARMLESS, COMMANDS};
use erb_check::net::Conn;
use erb_check::resp;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_e2e::process::signal;
use erb_lab::servers::{CANNOT_BE_HAD, ServerProgram};
use erb_steady::skipped;
use nix::sys::signal::Signal;

const LIST: &str = "RPUSH K a b c";
const SET: &str = "SADD K a b c";
const SORTED: &str = "ZADD K 1 a 1 b 3 c";
const STREAM: &str = "XADD K 1-1 f v;XGROUP CREATE K g 0";
const READ: &str = "XADD K 1-1 f v;XGROUP CREATE K g 0;XREADGROUP GROUP g c STREAMS K >";

/// Each such write: what makes its key `K`, and the command. Its name is one that a server lists.
const HARMLESS: [(&str, &str, &str); 47] = [
    ("lpushx", LIST, "LPUSHX K x y"),
    ("rpushx", LIST, "RPUSHX K x y"),
    ("lpop", LIST, "LPOP K 2"),
    ("rpop", LIST, "RPOP K"),
    ("lrem", LIST, "LREM K 0 a"),
    ("lset", LIST, "LSET K 0 x"),
    ("ltrim", LIST, "LTRIM K 0 1"),
    ("linsert", LIST, "LINSERT K BEFORE b x"),
    ("lmpop", LIST, "LMPOP 2 other K LEFT COUNT 2"),
    ("blpop", LIST, "BLPOP other K 0.01"),
    ("brpop", LIST, "BRPOP K 0.01"),
    ("blmpop", LIST, "BLMPOP 0.01 2 other K RIGHT"),
    ("srem", SET, "SREM K a x"),
    ("spop", SET, "SPOP K 2"),
    ("zrem", SORTED, "ZREM K a x"),
    ("zpopmin", SORTED, "ZPOPMIN K 2"),
    ("zpopmax", SORTED, "ZPOPMAX K"),
    ("zmpop", SORTED, "ZMPOP 2 other K MIN COUNT 2"),
    ("bzpopmin", SORTED, "BZPOPMIN other K 0.01"),
    ("bzpopmax", SORTED, "BZPOPMAX K 0.01"),
    ("bzmpop", SORTED, "BZMPOP 0.01 2 other K MAX"),
    ("zremrangebyscore", SORTED, "ZREMRANGEBYSCORE K 0 1"),
    ("zremrangebyrank", SORTED, "ZREMRANGEBYRANK K 0 1"),
    ("zremrangebylex", SORTED, "ZREMRANGEBYLEX K - +"),
    ("xdel", STREAM, "XDEL K 1-1"),
    ("xtrim", STREAM, "XTRIM K MAXLEN 0"),
    ("xsetid", STREAM, "XSETID K 9-9"),
    (
        "xsetid",
        STREAM,
        "XSETID K 9-9 ENTRIESADDED 5 MAXDELETEDID 2-1",
    ),
    ("xreadgroup", STREAM, "XREADGROUP GROUP g c STREAMS K >"),
    (
        "xreadgroup",
        STREAM,
        "XREADGROUP GROUP g c BLOCK 10 NOACK STREAMS K >",
    ),
    ("xreadgroup", READ, "XREADGROUP GROUP g new STREAMS K 0"),
    ("xack", READ, "XACK K g 1-1"),
    ("xclaim", READ, "XCLAIM K g d 0 1-1"),
    ("xclaim", READ, "XCLAIM K g d 0 7-7 FORCE JUSTID"),
    (
        "xclaim",
        READ,
        "XCLAIM K g d 0 1-1 IDLE 5 RETRYCOUNT 2 LASTID 8-8",
    ),
    ("xautoclaim", READ, "XAUTOCLAIM K g d 0 0 COUNT 5"),
    ("xautoclaim", READ, "XAUTOCLAIM K g d 0 0 JUSTID"),
    (
        "xgroup|createconsumer",
        STREAM,
        "XGROUP CREATECONSUMER K g c",
    ),
    ("xgroup|delconsumer", READ, "XGROUP DELCONSUMER K g c"),
    ("xgroup|destroy", STREAM, "XGROUP DESTROY K g"),
    ("xgroup|setid", STREAM, "XGROUP SETID K g 0"),
    ("xgroup|setid", STREAM, "XGROUP SETID K g $ ENTRIESREAD 1"),
    ("lpop", LIST, "LPOP K 0"),
    ("ltrim", LIST, "LTRIM K 5 9"),
    ("linsert", LIST, "LINSERT K AFTER none x"),
    ("zpopmax", SORTED, "ZPOPMAX K 0"),
    ("spop", SET, "SPOP K 0"),
];

/// Whether the table calls it harmless; a sub-command without a row has that of its container.
fn is_harmless(name: &str) -> bool {
    let class = |name: &str| COMMANDS.iter().find(|row| row.name == name);
    let container = name.split_once('|').map(|(name, _)| format!("{name}|*"));
    class(name)
        .or_else(|| class(&container?))
        .is_some_and(|row| row.class == CMD_HARMLESS)
}

/// The writes that the server knows of, in small letters.
fn writes(conn: &mut Conn) -> Vec<String> {
    let reply = call(conn, "COMMAND LIST FILTERBY ACLCAT write").to_lowercase();
    let names = reply.lines().filter(|line| !line.starts_with(['$', '*']));
    names.map(str::to_owned).collect()
}

fn assert_none_makes_a_key(server: ServerProgram, lab: &str, words: &[&str]) {
    if let Err(error) = server.program() {
        let error = format!("{error:#}");
        assert!(error.contains(CANNOT_BE_HAD), "{error}");
        skipped(error);
        return;
    }
    let lab = TestLab::up(lab, words);
    let mut conn = lab.client();
    let writes = writes(&mut conn);
    assert!(writes.len() > 100, "{writes:?}");
    for name in writes.iter().filter(|name| is_harmless(name)) {
        let known = HARMLESS.iter().any(|(of, ..)| of == name);
        assert!(known, "{name}: harmless, they say, but nobody has tried it");
    }
    for (name, made, command) in HARMLESS {
        assert!(is_harmless(name) && writes.iter().any(|one| one == name));
        // Its form is right, and it makes no second key.
        for words in made.split(';') {
            let reply = call(&mut conn, &words.replace(" K", " key"));
            assert!(!reply.starts_with('-'), "{words}: {reply}");
        }
        let command = command.replace(" K", " key");
        let reply = call(&mut conn, &command);
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        let keys = call(&mut conn, "DBSIZE");
        assert!([":0\r\n", ":1\r\n"].contains(&&*keys), "{command}: {keys}");
        // Where no key is, none is made, whatever it answers.
        expect(&mut conn, "FLUSHALL", "+OK\r\n");
        let reply = call(&mut conn, &command);
        expect(&mut conn, "DBSIZE", ":0\r\n");
        assert!(!reply.contains("syntax"), "{command}: {reply}");
    }
}

#[test]
fn no_harmless_write_of_redis_7_makes_a_key() {
    assert_none_makes_a_key(ServerProgram::Redis7, "makers7", &[]);
}

#[test]
fn no_harmless_write_of_redis_8_makes_a_key() {
    let words = ["--server", "redis8"];
    assert_none_makes_a_key(ServerProgram::Redis8, "makers8", &words);
}

#[test]
fn no_harmless_write_of_valkey_8_makes_a_key() {
    let words = ["--server", "valkey8"];
    assert_none_makes_a_key(ServerProgram::Valkey8, "makersv", &words);
}

/// A queue's worker that was connected before ERB: nobody can tell which key its move will make, so absences are not
/// answered while it waits. All else is.
#[test]
fn a_worker_older_than_erb_that_waits_in_a_move_stops_no_hits() {
    let mut lab = TestLab::up("olderworker", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-olderworker");
    let mut worker = lab.client();
    expect(&mut worker, "PING", "+PONG\r\n");
    let blocks = ["BLMOVE", "src", "to", "LEFT", "LEFT", "0"];
    // It waits all the time, as workers do: it is never idle, so it is not taken in.
    worker.send(&resp::command(&blocks)).expect("send");
    lab.boost(&["--dev", "s0"]);
    lab.wait_admitting();
    let (mut client, mut pusher) = (lab.client(), lab.client());
    set(&mut client, "hot", "value");
    for item in ["one", "two"] {
        expect(&mut pusher, &format!("RPUSH src {item}"), ":1\r\n");
        let reply = format!("$3\r\n{item}\r\n");
        assert_eq!(worker.reply().expect("the item"), reply.as_bytes());
        expect(&mut pusher, "DEL to", ":1\r\n");
        worker.send(&resp::command(&blocks)).expect("send");
        lab.heat(&mut client, "hot");
        let before = lab.counters();
        for _ in 0..50 {
            assert_eq!(get(&mut client, "to"), None);
            sleep(Duration::from_millis(5));
        }
        let fast = lab.counters().since(&before, "FAST_GET");
        assert_eq!(fast, 0, "an absence was answered beside a move to any key");
    }
    let daemon = lab.daemon_pid();
    signal(daemon, Signal::SIGSTOP);
    expect(&mut pusher, "RPUSH src v", ":1\r\n");
    let found = call(&mut client, "EXISTS to");
    signal(daemon, Signal::SIGCONT);
    assert_eq!(found, ":1\r\n");
    drop(worker);
    lab.wait_admitting();
    lab.heat(&mut client, "absent");
    lab.assert_settled();
}

/// Workers that were connected before ERB, and ask again as soon as they are told that there is nothing: they are
/// taken in while they wait, and stop nobody's answers from then on.
#[test]
fn workers_older_than_erb_that_always_wait_are_taken_in() {
    let mut lab = TestLab::up("olderworkers", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-olderworkers");
    let words = [
        vec!["BLPOP", "queue", "0.3"],
        vec!["BRPOPLPUSH", "wait", "active", "0.3"],
    ];
    let workers = words.map(|words| {
        let mut worker = lab.client();
        expect(&mut worker, "PING", "+PONG\r\n");
        (worker, words)
    });
    lab.boost(&["--dev", "s0"]);
    let stop = Arc::new(AtomicBool::new(false));
    let threads = workers.map(|(mut worker, words)| {
        let stop = Arc::clone(&stop);
        spawn(move || {
            while !stop.load(Relaxed) {
                let reply = worker.call(&words).expect("a reply");
                assert!([&b"*-1\r\n"[..], b"$-1\r\n"].contains(&&*reply));
            }
        })
    });
    lab.wait_admitting();
    let mut client = lab.client();
    set(&mut client, "hot", "value");
    wait(STATE_WAIT, || {
        let before = lab.counters();
        sleep(Duration::from_secs(1));
        let taken = lab.counters().since(&before, "FENCE_PROOF");
        let said = || format!("{taken} shares of the fence a second");
        (taken == 0).then_some(()).ok_or_else(said)
    });
    lab.heat(&mut client, "hot");
    wait(STATE_WAIT, || {
        let before = lab.counters();
        for _ in 0..500 {
            assert_eq!(get(&mut client, "hot").as_deref(), Some("value"));
            sleep(Duration::from_millis(2));
        }
        let fast = lab.counters().since(&before, "FAST_GET");
        (fast > 400)
            .then_some(())
            .ok_or_else(|| format!("{fast} of 500 were answered"))
    });
    stop.store(true, Relaxed);
    for thread in threads {
        thread.join().expect("a thread of this test panicked");
    }
    lab.assert_settled();
}
