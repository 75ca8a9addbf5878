// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is made of Redis's data while SETs are answered in its place: scripts, snapshots, a rewritten log, a replica.
//! At the end each has what clients were told; meanwhile each has a prefix of it.
//!
//! # What a prefix is
//! Each connection writes one after the other, keys of its own, a value at most once a key. So a view names the last
//! write of each connection that it has.
//! 1. Of a connection it has that write and all before it, and none behind it: key by key.
//! 2. Across connections it has no write that was begun when one that it lacks had been answered.
//! 3. A view that was asked for when a write had been answered has that write, if it is a view of the master.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use erb_check::net::Conn;
use erb_check::resp::{self, Reply};
use erb_e2e::calls::{call, expect};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, scaled, wait};
use erb_e2e::process::{Owned, run};
use erb_e2e::stop::Stop;
use erb_lab::End;
use erb_steady::too_slow;

use crate::master::replica;

const WRITERS: usize = 16;
/// Keys of each, hot ones and many that are written once or twice.
const KEYS: f64 = 2_000.0;
const REPLICA_PORT: u16 = 6393;
const LOADED_PORT: u16 = 6394;
/// So many are written in a row, then a pause: what is judged is compared often, and nobody else starves.
const BURST: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// What long expiries are of: nothing expires meanwhile.
const LONG_MS: u64 = 1_000_000;
/// The same of short ones: all of it has expired when the end is compared.
const SHORT_MS: u64 = 300;
/// All keys but those that expire soon, with value and expiry, at one moment.
const ALL: &str = "local out = {} \
    for _, key in ipairs(redis.call('KEYS', 'k*')) do \
    out[#out + 1] = key; out[#out + 1] = redis.call('GET', key); \
    out[#out + 1] = tostring(redis.call('PEXPIRETIME', key)) end return out";

/// Value and time of expiry, ms; -1: none.
type View = BTreeMap<String, (String, i64)>;

/// One write that was answered.
struct Write {
    key: String,
    value: String,
    /// Earliest and latest time of expiry, ms; -1: none.
    expires: (i64, i64),
    begun: Instant,
    ended: Instant,
}

/// What one connection wrote.
struct History {
    writes: Vec<Write>,
    /// Which write gave a key a value, from 1 on.
    places: HashMap<(String, String), usize>,
}

impl History {
    fn of(writes: Vec<Write>) -> Self {
        let places = (1..).zip(&writes);
        let places = places.map(|(place, write)| ((write.key.clone(), write.value.clone()), place));
        Self {
            places: places.collect(),
            writes,
        }
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.expect("a time").as_millis()).expect("fits")
}

/// Writes until told to stop: SETs of skewed keys, a few INCRs, and keys that expire soon.
fn write(mut conn: Conn, number: usize, stop: &AtomicBool) -> Vec<Write> {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let (mut writes, mut count) = (Vec::new(), 0u64);
    for round in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if round % BURST == 0 {
            sleep(PAUSE);
        }
        let index = KEYS.powf(random.f64());
        let (begun, from_ms) = (Instant::now(), now_ms());
        let (mut key, mut value) = (format!("k{number}:{index:.0}"), writes.len().to_string());
        let long = i64::try_from(LONG_MS).expect("fits");
        let mut lives = long;
        match random.u8(..50) {
            0 => {
                count += 1;
                (key, value, lives) = (format!("k{number}:n"), count.to_string(), -1);
                expect(&mut conn, &format!("INCR {key}"), &format!(":{count}\r\n"));
            }
            1..4 => {
                let words = format!("SET soon{number}:{index:.0} {value} PX {SHORT_MS}");
                expect(&mut conn, &words, "+OK\r\n");
                continue;
            }
            4..10 => {
                let words = format!("SET {key} {value} PX {LONG_MS}");
                expect(&mut conn, &words, "+OK\r\n");
            }
            10..16 => {
                let words = format!("SET {key} {value} EX {}", LONG_MS / 1000);
                expect(&mut conn, &words, "+OK\r\n");
            }
            _ => {
                value += &"x".repeat(random.usize(..120));
                lives = -1;
                expect(&mut conn, &format!("SET {key} {value}"), "+OK\r\n");
            }
        }
        let expires = match lives {
            -1 => (-1, -1),
            lives => (from_ms + lives, now_ms() + lives),
        };
        writes.push(Write {
            key,
            value,
            expires,
            begun,
            ended: Instant::now(),
        });
    }
    writes
}

/// All that a server has, at one moment.
fn view(conn: &mut Conn) -> View {
    let reply = conn.call(&["EVAL_RO", ALL, "0"]).expect("EVAL_RO");
    let parts = resp::elements(&reply).unwrap_or_else(|| panic!("{}", resp::show(&reply, 200)));
    let text = |part: &[u8]| match Reply::parse(part) {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => panic!("{}", resp::show(part, 200)),
    };
    let three = parts.chunks(3).map(|three| {
        let [key, value, expires] = three else {
            panic!("{} parts", parts.len());
        };
        let expires = text(expires).parse().expect("a time");
        (text(key), (text(value), expires))
    });
    three.collect()
}

/// Of a connection's first writes the last of each key.
fn last_of(writes: &[Write]) -> BTreeMap<&str, &Write> {
    writes
        .iter()
        .map(|write| (write.key.as_str(), write))
        .collect()
}

/// How many of a connection's writes a view has: rule 1.
fn has_of(view: &View, number: usize, history: &History) -> usize {
    let mine = format!("k{number}:");
    let mine: Vec<_> = view
        .range(mine.clone()..)
        .take_while(|(key, _)| key.starts_with(&mine))
        .collect();
    let place = |key: &String, value: &String| {
        let place = history.places.get(&(key.clone(), value.clone()));
        *place.unwrap_or_else(|| panic!("{key} has {value}, which nobody was told of"))
    };
    let has = mine.iter().map(|(key, (value, _))| place(key, value)).max();
    let has = has.unwrap_or(0);
    let wanted = last_of(&history.writes[..has]);
    for (key, (value, expires)) in &mine {
        let last = wanted.get(key.as_str());
        let last = last.unwrap_or_else(|| panic!("{key} was written behind write {has}"));
        assert_eq!(*value, last.value, "{key}, of {has} writes");
        let (from, to) = last.expires;
        assert!(
            (from..=to).contains(expires),
            "{key} expires at {expires}, not {from} to {to}"
        );
    }
    assert_eq!(mine.len(), wanted.len(), "keys of {has} writes");
    has
}

/// Whether it is a prefix; since: a master was asked for it then.
fn judge(what: &str, view: &View, all: &[History], since: Option<Instant>) {
    let has: Vec<usize> = (0..)
        .zip(all)
        .map(|(number, history)| has_of(view, number, history))
        .collect();
    let last = |(history, &has): (&History, _)| {
        Some(history.writes.get(usize::checked_sub(has, 1)?)?.begun)
    };
    let newest = all.iter().zip(&has).filter_map(last).max();
    let bound = since.max(newest);
    for (number, (history, &has)) in all.iter().zip(&has).enumerate() {
        let Some(next) = history.writes.get(has) else {
            continue;
        };
        assert!(
            bound.is_none_or(|bound| next.ended >= bound),
            "{what}: of connection {number} it has {has} writes, but the next one had been answered"
        );
    }
    println!("{what}: {has:?} writes");
}

/// Starts saving or rewriting, and waits until that is done.
fn in_background(lab: &TestLab, command: &str, under_way: &str, status: &str) {
    let mut conn = lab.client();
    let started = call(&mut conn, command);
    assert!(started.starts_with("+Background"), "{started}");
    wait(STATE_WAIT, || {
        let info = call(&mut conn, "INFO persistence");
        let done =
            info.contains(&format!("{under_way}:0")) && info.contains(&format!("{status}:ok"));
        done.then_some(()).ok_or(info)
    });
}

/// What another redis-server makes of these files; it is gone when this returns.
fn loaded(lab: &TestLab, dir: &Path, words: &[&str]) -> View {
    let mut command = lab.redis(End::Server, LOADED_PORT);
    let _redis = Owned::start(command.arg("--dir").arg(dir).args(words));
    let mut conn = wait(STATE_WAIT, || {
        let to = SocketAddr::from(([127, 0, 0, 1], LOADED_PORT));
        let conn = lab.inside(End::Server, || Conn::connect(to, STALL));
        let mut conn = conn.map_err(|error| format!("{error:#}"))?;
        let reply = conn.call(&["PING"]).map_err(|broken| broken.to_string())?;
        let good = reply == b"+PONG\r\n";
        good.then_some(conn).ok_or("it loads".to_owned())
    });
    view(&mut conn)
}

/// A view of a server under load, and since when a master has been asked for it.
type Taken = (String, View, Option<Instant>);

/// What happens beside the writers: each view that is taken, and the snapshots' files.
fn taken_under_load(lab: &TestLab, follower: &mut Conn, to: &Path) -> (Vec<Taken>, Vec<PathBuf>) {
    let (mut views, mut snapshots) = (Vec::new(), Vec::new());
    let mut master = lab.client();
    for round in 0..scaled(3, 30) {
        sleep(Duration::from_millis(300));
        let since = Some(Instant::now());
        views.push((format!("script {round}"), view(&mut master), since));
        views.push((format!("replica {round}"), view(follower), None));
        match round % 2 {
            0 => in_background(
                lab,
                "BGSAVE",
                "rdb_bgsave_in_progress",
                "rdb_last_bgsave_status",
            ),
            _ => in_background(
                lab,
                "BGREWRITEAOF",
                "aof_rewrite_in_progress",
                "aof_last_bgrewrite_status",
            ),
        }
        if round % 2 == 0 {
            let file = to.join(format!("{round}.rdb"));
            let saved = lab.lab().state().redis_dir.join("dump.rdb");
            fs::copy(saved, &file).expect("a snapshot");
            snapshots.push(file);
        }
    }
    (views, snapshots)
}

/// What a replica has when it has all.
fn caught_up(lab: &TestLab, follower: &mut Conn) -> View {
    let mut master = lab.client();
    wait(STATE_WAIT, || {
        let line = |info: &str, name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::to_owned)
        };
        let of_master = line(
            &call(&mut master, "INFO replication"),
            "master_repl_offset:",
        );
        let of_replica = line(&call(follower, "INFO replication"), "slave_repl_offset:");
        let same = of_master.is_some() && of_master == of_replica;
        same.then_some(())
            .ok_or(format!("{of_master:?}, {of_replica:?}"))
    });
    view(follower)
}

/// The log as it is now: whole by redis-check-aof, and what a server makes of it.
fn logged(lab: &TestLab, to: &Path) -> View {
    let log = to.join("appendonlydir");
    fs::create_dir(&log).expect("a folder");
    let dir = lab.lab().state().redis_dir.join("appendonlydir");
    for file in fs::read_dir(dir).expect("a log") {
        let file = file.expect("a file");
        fs::copy(file.path(), log.join(file.file_name())).expect("a copy");
    }
    let manifest = log.join("appendonly.aof.manifest");
    println!("{}", run(Command::new("redis-check-aof").arg(manifest)));
    loaded(lab, to, &["--appendonly", "yes"])
}

#[test]
fn what_is_made_of_redis_under_load_is_a_prefix_and_at_the_end_all() {
    let settings = ["appendonly=yes", "repl-diskless-sync-delay=0"];
    let settings = settings.map(|setting| ["--redis-arg", setting]).concat();
    let words = [&["--mode", "write-back", "--direct"], &settings[..]].concat();
    let lab = TestLab::up("wbprefix", &words);
    lab.wait_admitting();
    lab.never_aside();
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        writes.open.then_some(()).ok_or(format!("{writes:?}"))
    });
    let kept = tempfile::tempdir().expect("a folder");
    let stop = AtomicBool::new(false);
    let (all, (views, snapshots), mut follower, _replica) = scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (conn, stop) = (lab.client(), &stop);
                threads.spawn(move || write(conn, number, stop))
            })
            .collect();
        let end = Stop(&stop);
        let running = replica(&lab, REPLICA_PORT, 0);
        let to = SocketAddr::from(([127, 0, 0, 1], REPLICA_PORT));
        let follower = lab.inside(End::Client, || Conn::connect(to, STALL));
        let mut follower = follower.expect("connect");
        let taken = taken_under_load(&lab, &mut follower, kept.path());
        drop(end);
        let ends = writers.into_iter().map(|writer| writer.join());
        let all = ends.map(|end| History::of(end.expect("a thread of this test panicked")));
        let all: Vec<History> = all.collect();
        (all, taken, follower, running)
    });
    let ended = Some(Instant::now());
    let count: usize = all.iter().map(|history| history.writes.len()).sum();
    let absorbed = lab.counters().get("ABSORBED");
    println!("{count} writes, {absorbed} SETs answered");
    for (what, view, since) in &views {
        judge(what, view, &all, *since);
    }
    for file in &snapshots {
        let name = file.file_name().and_then(|name| name.to_str());
        let words = ["--appendonly", "no", "--dbfilename", name.expect("a name")];
        judge("snapshot", &loaded(&lab, kept.path(), &words), &all, None);
    }
    let master = view(&mut lab.client());
    judge("master", &master, &all, ended);
    assert_eq!(caught_up(&lab, &mut follower), master, "replica and master");
    assert_eq!(logged(&lab, kept.path()), master, "log and master");
    sleep(Duration::from_millis(SHORT_MS));
    let keys = ["EVAL_RO", "return #redis.call('KEYS', '*')", "0"];
    let keys = lab.client().call(&keys).expect("EVAL_RO");
    let wanted = format!(":{}\r\n", master.len());
    assert_eq!(String::from_utf8_lossy(&keys), wanted, "keys at the end");
    lab.assert_settled();
    if absorbed <= count as u64 / 2 {
        too_slow(format_args!(
            "{absorbed} SETs of {count} writes were answered"
        ));
    }
}

/// What is wrong, what a view has, and since when a master was asked for it.
type Bad<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<Instant>);

#[test]
fn what_is_no_prefix_is_found() {
    let start = Instant::now();
    let write = |number: usize, place: u64, key: &str| Write {
        key: format!("k{number}:{key}"),
        value: place.to_string(),
        expires: (-1, -1),
        begun: start + Duration::from_millis(10 * place),
        ended: start + Duration::from_millis(10 * place + 5),
    };
    let of = |number| {
        History::of(vec![
            write(number, 1, "a"),
            write(number, 2, "b"),
            write(number, 3, "a"),
        ])
    };
    let all = [of(0), of(1)];
    let view = |has: &[(&str, &str)]| -> View {
        let pairs = has
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ((*value).to_owned(), -1)));
        pairs.collect()
    };
    let first = [("k0:a", "1"), ("k1:a", "1")];
    judge("the first of each", &view(&first), &all, None);
    judge(
        "one more of one",
        &view(&[&first[..], &[("k0:b", "2")]].concat()),
        &all,
        None,
    );
    judge("nothing", &view(&[]), &all, None);
    let bad: [Bad<'_>; 5] = [
        ("a hole", &[("k0:a", "3"), ("k1:a", "1")], None),
        ("a value of nobody", &[("k0:a", "7"), ("k1:a", "1")], None),
        ("too old", &first, Some(start + Duration::from_millis(28))),
        (
            "one without an earlier one of the other",
            &[("k0:a", "3"), ("k0:b", "2")],
            None,
        ),
        ("a key that is gone", &[("k0:b", "2"), ("k1:a", "1")], None),
    ];
    for (what, has, since) in bad {
        let found = std::panic::catch_unwind(|| judge(what, &view(has), &all, since));
        assert!(found.is_err(), "{what} was not found");
    }
}
