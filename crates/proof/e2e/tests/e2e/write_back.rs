// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs answered in Redis's place by a daemon that drains them: what clients are told is what Redis has, whatever
//! becomes of daemon, feed and gate meanwhile.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use erb_check::history::{self, HistoryArgs};
use erb_check::net::Conn;
use erb_check::resp;
use erb_check::shadow::{self, ShadowArgs};
use erb_e2e::calls::{call, expect, get, pipeline, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, arguments, scaled, wait};
use erb_e2e::process::{Owned, Still};
use erb_e2e::stop::Stop;
use erb_lab::End;
use erb_steady::out_of_patience;
use nix::sys::signal::{Signal, kill};

/// Writers at once.
const WRITERS: usize = 8;
/// Keys of each.
const KEYS: usize = 200;
/// How long they write beside what happens.
const BESIDE: Duration = Duration::from_millis(700);
/// What is not answered by then will not be while Redis stands still: the lease is over, which is a fifth of it.
const PROMISED_MAX: Duration = Duration::from_millis(500);
/// Longer than any test needs: a pause that is ended by a word.
const PAUSE: &str = "CLIENT PAUSE 600000 WRITE";
/// The words with which the lab's Redis is boosted again.
pub(super) const AGAIN: [&str; 6] = ["--dev", "s0", "--dev", "lo", "--mode", "write-back"];

pub(super) fn boosted(name: &str, words: &[&str]) -> TestLab {
    let lab = TestLab::up(name, &[&["--mode", "write-back"], words].concat());
    ready(&lab);
    lab
}

/// The same of a Redis that listens to a unix socket, too, whose clients are not seen.
pub(super) fn boosted_beside_a_socket(name: &str) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct", "--redis-arg", "unixsocket=redis.sock"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    let output = lab.boost(&[&AGAIN[..], &["--allow-unseen"]].concat());
    assert!(output.status.success(), "{output:?}");
    ready(&lab);
    lab
}

/// SETs are answered.
pub(super) fn ready(lab: &TestLab) {
    lab.wait_admitting();
    lab.never_aside();
    wait_open(lab);
}

/// Redis stands still, and these SETs were answered in its place, on a connection of their own. `first` is called
/// before them, and told so to undo what it does: where the lease was over too soon, all is tried again.
pub(super) fn promised(
    lab: &TestLab,
    sets: &[(&str, &str)],
    first: impl Fn(bool),
) -> (Still, Conn) {
    promised_in(lab, "0", sets, first)
}

/// The same in another database.
pub(super) fn promised_in(
    lab: &TestLab,
    db: &str,
    sets: &[(&str, &str)],
    first: impl Fn(bool),
) -> (Still, Conn) {
    wait(STATE_WAIT, || {
        wait(STATE_WAIT, || {
            let writes = lab.try_status()?.writes;
            let good = writes.open && writes.waiting == 0;
            good.then_some(()).ok_or(format!("{writes:?}"))
        });
        let mut conn = lab.client();
        expect(&mut conn, &format!("SELECT {db}"), "+OK\r\n");
        set(&mut conn, sets[0].0, "v");
        lab.heat(&mut conn, sets[0].0);
        let still = Still::of(lab.redis_pid());
        first(false);
        if sets
            .iter()
            .all(|(key, value)| is_answered(&mut conn, key, value))
        {
            return Ok((still, conn));
        }
        drop(still);
        first(true);
        Err("the lease was over before all was answered".to_owned())
    })
}

/// Whether a SET is answered although Redis stands still.
fn is_answered(conn: &mut Conn, key: &str, value: &str) -> bool {
    conn.send(&resp::command(&["SET", key, value]))
        .expect("send");
    let (mut stream, mut reply) = (conn.stream(), [0; 5]);
    stream
        .set_read_timeout(Some(PROMISED_MAX))
        .expect("an option");
    let is_answered = stream.read_exact(&mut reply).is_ok();
    assert!(!is_answered || reply == *b"+OK\r\n", "{reply:?}");
    is_answered
}

/// What speaks against answering SETs.
fn against(lab: &TestLab) -> Result<Vec<String>, String> {
    let writes = lab.try_status()?.writes;
    let unmet = writes.conditions.into_iter().filter(|one| !one.met);
    Ok(unmet.map(|one| one.condition).collect())
}

fn wait_open(lab: &TestLab) {
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        writes.open.then_some(()).ok_or(format!("{writes:?}"))
    });
}

/// Waits until this condition alone shuts the gate.
fn wait_shut(lab: &TestLab, condition: &str) {
    wait(STATE_WAIT, || {
        let found = against(lab)?;
        let good = found.iter().any(|one| one == condition) && !lab.try_status()?.writes.open;
        good.then_some(())
            .ok_or(format!("{found:?}, not {condition}"))
    });
}

/// What a writer was told, by key.
type Told = BTreeMap<String, String>;

/// Writes keys of its own until told to stop: SETs, reads of them, and commands that go up after them.
fn write(mut conn: Conn, number: usize, stop: &AtomicBool) -> Told {
    let (mut told, mut random) = (Told::new(), fastrand::Rng::with_seed(number as u64));
    let mut round = 0u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let key = format!("w{number}:{}", random.usize(..KEYS));
        match random.u8(..20) {
            0 => {
                set(&mut conn, &key, &round.to_string());
                let next = (round + 1).to_string();
                expect(&mut conn, &format!("INCR {key}"), &format!(":{next}\r\n"));
                told.insert(key, next);
            }
            1 => {
                let was = u8::from(told.remove(&key).is_some());
                expect(&mut conn, &format!("DEL {key}"), &format!(":{was}\r\n"));
            }
            2..5 => assert_eq!(get(&mut conn, &key).as_ref(), told.get(&key), "{key}"),
            5 => {
                let value = format!("{round}-for-long");
                expect(&mut conn, &format!("SET {key} {value} EX 1000"), "+OK\r\n");
                told.insert(key, value);
            }
            _ => {
                let value = format!("{round}-{}", "x".repeat(random.usize(..120)));
                set(&mut conn, &key, &value);
                told.insert(key, value);
            }
        }
    }
    told
}

/// Lets them write while something happens; then Redis has what each was told, key by key, and no more.
fn written_beside(lab: &TestLab, happens: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let told: Vec<Told> = scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (conn, stop) = (lab.client(), &stop);
                threads.spawn(move || write(conn, number, stop))
            })
            .collect();
        let end = Stop(&stop);
        sleep(BESIDE);
        happens();
        sleep(BESIDE);
        drop(end);
        let ends = writers.into_iter().map(|writer| writer.join());
        ends.map(|end| end.expect("a thread of this test panicked"))
            .collect()
    });
    compare(lab, &told.into_iter().flatten().collect());
}

fn compare(lab: &TestLab, told: &Told) {
    let mut conn = lab.unseen();
    assert!(told.len() > WRITERS * KEYS / 4, "{} keys", told.len());
    for (key, value) in told {
        // Within a script: no cache answers that.
        let words = ["EVAL", "return redis.call('GET',KEYS[1])", "1", key];
        let reply = conn.call(&words).expect("EVAL");
        let want = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(String::from_utf8_lossy(&reply), want, "{key}");
    }
    expect(&mut conn, "DBSIZE", &format!(":{}\r\n", told.len()));
}

#[test]
fn redis_has_what_clients_were_told() {
    let lab = boosted("wb", &["--direct"]);
    let before = lab.counters();
    written_beside(&lab, || {
        wait(STATE_WAIT, || {
            let answered = lab.counters().since(&before, "ABSORBED");
            (answered > 1_000)
                .then_some(())
                .ok_or(format!("{answered} answered"))
        });
    });
    let counters = lab.assert_settled();
    let writes = lab.status().writes;
    assert_eq!(
        writes.drained,
        counters.since(&before, "ABSORBED"),
        "{writes:?}"
    );
    assert_eq!(
        (writes.waiting, writes.refused_writes),
        (0, 0),
        "{writes:?}"
    );
}

#[test]
fn histories_are_linearizable_and_replies_those_of_redis_on_a_lossy_link() {
    let mut lab = boosted("wbloss", &[]);
    lab.link("loss=1% dup=1% reorder=2% delay=300us");
    let (target, plain) = (lab.address(), lab.plain_redis());
    let ops = scaled(20_000, 500_000);
    let words = format!("--target {target} --ops {ops} --conns 24 --keys 8");
    let report = lab.inside(End::Client, || {
        history::execute(&arguments::<HistoryArgs>(&words)).expect("history")
    });
    assert!(report.passed, "{report:#?}");
    let seconds = scaled(5, 60);
    let words = format!("--target {target} --shadow {plain} --seconds {seconds} --conns 16");
    // Where others have the processors the lease lapses, and the gate is shut for most of a run.
    for rounds_left in (0..5).rev() {
        let report = lab.inside(End::Client, || {
            shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
        });
        assert!(report.passed, "{report:#?}");
        let counters = lab.assert_settled();
        let found = ["ABSORBED", "HELD_INJECTED"].map(|name| counters.get(name));
        if found[0] > 100 && found[1] > 10 {
            return;
        }
        if rounds_left == 0 {
            out_of_patience(format_args!("{found:?}"));
        }
    }
}

#[test]
fn daemons_that_die_are_replaced_or_detach_leave_nothing_behind() {
    let lab = boosted("wbkill", &["--direct"]);
    written_beside(&lab, || {
        for round in 0..4 {
            kill(lab.daemon_pid(), Signal::SIGKILL).expect("the daemon");
            sleep(Duration::from_millis(50 + 70 * round));
            let output = lab.boost(&AGAIN);
            assert!(output.status.success(), "{output:?}");
            sleep(BESIDE);
        }
        let output = lab.boost(&[&AGAIN[..], &["--take-over"]].concat());
        assert!(output.status.success(), "{output:?}");
        sleep(BESIDE);
    });
    wait_open(&lab);
    call(&mut lab.unseen(), "FLUSHALL");
    let other = lab.boost(&["--dev", "s0", "--dev", "lo"]);
    assert!(!other.status.success(), "a mode is for the life of a boost");
    // It leaves when the writers have gone, whose connections are translated.
    written_beside(&lab, || {
        let begun = lab.erb(&["detach", "--wait", "1s"]);
        assert!(!begun.status.success(), "{begun:?}");
    });
    wait(STATE_WAIT, || match lab.try_status() {
        Ok(status) => Err(status.daemon),
        Err(_) => Ok(()),
    });
}

#[test]
fn a_redis_that_stands_still_loses_nothing_and_a_forced_detach_waits_for_it() {
    let lab = boosted("wbstop", &["--direct"]);
    let redis = lab.redis_pid();
    written_beside(&lab, || {
        let _still = Still::of(redis);
        sleep(Duration::from_millis(1_500));
        wait(STATE_WAIT, || {
            let writes = lab.try_status()?.writes;
            (!writes.open).then_some(()).ok_or(format!("{writes:?}"))
        });
    });
    let (still, _conn) = promised(&lab, &[("last", "answered")], |_| ());
    assert_eq!(lab.status().writes.waiting, 1);
    scope(|threads| {
        let detach = threads.spawn(|| lab.erb(&["detach", "--force"]));
        sleep(Duration::from_millis(500));
        assert!(!detach.is_finished(), "what was answered is not in Redis");
        drop(still);
        let done = detach.join().expect("a thread of this test panicked");
        assert!(done.status.success(), "{done:?}");
    });
    assert_eq!(get(&mut lab.client(), "last").as_deref(), Some("answered"));
}

#[test]
fn each_condition_shuts_the_gate_and_lets_it_open_again() {
    let lab = boosted("wbgate", &["--direct", "--redis-arg", "appendonly=yes"]);
    let mut conn = lab.client();
    let settings = [
        (
            "replicas",
            "min-replicas-to-write 1",
            "min-replicas-to-write 0",
        ),
        ("log", "appendfsync always", "appendfsync everysec"),
        (
            "events",
            "notify-keyspace-events Kg",
            "notify-keyspace-events \"\"",
        ),
        ("memory", "maxmemory 1gb", "maxmemory 0"),
    ];
    for (condition, bad, good) in settings {
        for (words, is_bad) in [(bad, true), (good, false)] {
            let words = words.replace("\"\"", " ");
            let (name, value) = words.split_once(' ').expect("a setting");
            let reply = conn.call(&["CONFIG", "SET", name, value.trim()]);
            assert_eq!(reply.expect("CONFIG"), b"+OK\r\n");
            match is_bad {
                true => wait_shut(&lab, condition),
                false => wait_open(&lab),
            }
        }
    }
    expect(&mut conn, "REPLICAOF 10.77.0.9 6379", "+OK\r\n");
    wait_shut(&lab, "role");
    expect(&mut conn, "REPLICAOF NO ONE", "+OK\r\n");
    wait_open(&lab);
    expect(&mut conn, "ACL SETUSER default -mset", "+OK\r\n");
    wait_shut(&lab, "trial");
    expect(&mut conn, "ACL SETUSER default +mset", "+OK\r\n");
    wait_open(&lab);
    expect(&mut conn, PAUSE, "+OK\r\n");
    wait_shut(&lab, "trial");
    expect(&mut conn, "CLIENT UNPAUSE", "+OK\r\n");
    wait_open(&lab);
    let device = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        lab.exec(End::Server, &[&["ip", "link"], &words[..]].concat());
    };
    device("add more0 type veth peer name more1");
    device("set more0 up");
    wait_shut(&lab, "clients");
    device("del more0");
    wait_open(&lab);
    let mut monitor = lab.client();
    expect(&mut monitor, "MONITOR", "+OK\r\n");
    wait_shut(&lab, "serving");
    drop(monitor);
    wait_open(&lab);
    assert!(lab.status().writes.opened >= 10);
    lab.assert_settled();
}

/// Writes one key until told otherwise; what was answered last, and what was said then.
fn write_until_refused(mut conn: Conn, key: &str) -> (u64, String) {
    let mut number = 0;
    loop {
        let reply = call(&mut conn, &format!("SET {key} {}", number + 1));
        if reply != "+OK\r\n" {
            return (number, reply);
        }
        number += 1;
    }
}

#[test]
fn what_was_answered_before_redis_refuses_writes_is_in_its_data() {
    let lab = boosted("wbrole", &["--direct"]);
    let mut unseen = lab.unseen();
    let refusals = [
        ("REPLICAOF 10.77.0.9 6379", "REPLICAOF NO ONE", "-READONLY"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "-NOREPLICAS",
        ),
        (
            "ACL SETUSER default -set -mset",
            "ACL SETUSER default +set +mset",
            "-NOPERM",
        ),
    ];
    for round in 0..6 {
        let (bad, good, code) = refusals[round % 3];
        let ends: Vec<(String, (u64, String))> = scope(|threads| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let (key, conn) = (format!("r{round}:{number}"), lab.client());
                    threads.spawn(move || {
                        let end = write_until_refused(conn, &key);
                        (key, end)
                    })
                })
                .collect();
            sleep(BESIDE);
            expect(&mut lab.client(), bad, "+OK\r\n");
            writers
                .into_iter()
                .map(|w| w.join().expect("a thread of this test panicked"))
                .collect()
        });
        for (key, (number, refusal)) in ends {
            assert!(refusal.starts_with(code), "{refusal}");
            let words = ["EVAL_RO", "return redis.call('GET',KEYS[1])", "1", &key];
            let reply = unseen.call(&words).expect("EVAL_RO");
            let want = format!("${}\r\n{number}\r\n", number.to_string().len());
            assert_eq!(String::from_utf8_lossy(&reply), want, "{key}");
        }
        expect(&mut lab.client(), good, "+OK\r\n");
        wait_open(&lab);
    }
    lab.assert_settled();
}

/// Writes one key until the connection breaks; what was answered last.
fn write_until_broken(mut conn: Conn, key: &str) -> u64 {
    let mut number = 0u64;
    loop {
        let next = (number + 1).to_string();
        match conn.call(&["SET", key, &next]) {
            Ok(reply) if reply == b"+OK\r\n" => number += 1,
            _ => return number,
        }
    }
}

#[test]
fn a_redis_that_is_killed_and_loads_its_log_has_what_was_answered() {
    let lab = boosted("wbaof", &["--direct", "--redis-arg", "appendonly=yes"]);
    let mut conn = lab.client();
    // Its log takes a while to load, and the feed comes while it does.
    for part in 0..300 {
        let many: Vec<String> = (0..100)
            .map(|number| format!("HSET h{part}:{number} f v g v"))
            .collect();
        pipeline(&mut conn, &many.join(";"));
    }
    drop(conn);
    let ends: Vec<(String, u64)> = scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (key, conn) = (format!("a{number}"), lab.client());
                threads.spawn(move || (key.clone(), write_until_broken(conn, &key)))
            })
            .collect();
        sleep(BESIDE);
        kill(lab.redis_pid(), Signal::SIGSTOP).expect("redis");
        sleep(Duration::from_millis(15));
        kill(lab.redis_pid(), Signal::SIGKILL).expect("redis");
        let ends = writers.into_iter().map(|writer| writer.join());
        ends.map(|end| end.expect("a thread of this test panicked"))
            .collect()
    });
    // That it is away is told, and nothing of what it leaves unknown.
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        let told = writes
            .conditions
            .iter()
            .find(|one| one.condition == "serving");
        let told = told.is_some_and(|one| one.why.contains("there is no feed from Redis: "));
        let unknown = ["commands", "reports", "trial", "role"];
        let others = against(&lab)?;
        (told && !others.iter().any(|one| unknown.contains(&&one[..])))
            .then_some(())
            .ok_or(format!("{writes:?}"))
    });
    let mut command = lab.redis(End::Server, lab.address().port());
    command.arg("--dir").arg(&lab.lab().state().redis_dir);
    let _redis = Owned::start(command.args(["--appendonly", "yes"]));
    wait_open(&lab);
    let mut unseen = lab.unseen();
    for (key, number) in ends {
        let words = ["EVAL", "return redis.call('GET',KEYS[1])", "1", &key];
        let reply = unseen.call(&words).expect("EVAL");
        // The last one was perhaps answered, and its client had gone.
        let may = [number, number + 1].map(|n| format!("${}\r\n{n}\r\n", n.to_string().len()));
        let has = String::from_utf8_lossy(&reply).into_owned();
        assert!(may.contains(&has), "{key}: {has:?}, not {may:?}");
    }
    lab.assert_settled();
}

#[test]
fn while_clients_are_paused_no_set_is_answered() {
    let lab = boosted("wbpause", &["--direct"]);
    let stop = AtomicBool::new(false);
    scope(|threads| {
        threads.spawn(|| write(lab.client(), 0, &stop));
        sleep(BESIDE);
        let mut conn = lab.client();
        expect(&mut conn, PAUSE, "+OK\r\n");
        let before = lab.counters();
        sleep(Duration::from_millis(1_200));
        let answered = lab.counters().since(&before, "ABSORBED");
        drop(Stop(&stop));
        expect(&mut conn, "CLIENT UNPAUSE", "+OK\r\n");
        assert_eq!(answered, 0);
    });
    wait_open(&lab);
    lab.assert_settled();
}

#[test]
fn what_a_dead_daemon_owes_is_not_taken_away() {
    let lab = boosted("wbowed", &["--direct"]);
    let (still, _conn) = promised(&lab, &[("k", "owed")], |_| ());
    kill(lab.daemon_pid(), Signal::SIGKILL).expect("the daemon");
    wait(STATE_WAIT, || match lab.try_status()?.daemon.as_str() {
        "dead" => Ok(()),
        other => Err(other.to_owned()),
    });
    let refused = lab.erb(&["detach", "--force"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("1 SETs"),
        "{said}"
    );
    drop(still);
    let output = lab.boost(&AGAIN);
    assert!(output.status.success(), "{output:?}");
    wait_open(&lab);
    let reply = lab
        .unseen()
        .call(&["EVAL", "return redis.call('GET',KEYS[1])", "1", "k"]);
    assert_eq!(reply.expect("EVAL"), b"$4\r\nowed\r\n");

    // An operator who says so may lose it; Redis has perhaps heard of it by then.
    let (still, _conn) = promised(&lab, &[("k", "perhaps")], |_| ());
    let done = lab.erb(&["detach", "--force", "--discard-undrained"]);
    drop(still);
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_load_that_does_not_suit_is_left_to_redis() {
    let lab = boosted("wbworth", &["--direct"]);
    let stop = AtomicBool::new(false);
    scope(|threads| {
        for number in 0..WRITERS {
            let (mut conn, stop) = (lab.client(), &stop);
            threads.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    set(&mut conn, &format!("a{number}"), "v");
                    call(&mut conn, &format!("INCR b{number}"));
                }
            });
        }
        let _end = Stop(&stop);
        wait(STATE_WAIT, || {
            let writes = lab.try_status()?.writes;
            let mut unmet = writes.conditions.iter().filter(|one| !one.met);
            let worth = unmet.find(|one| one.condition == "worth");
            let told = worth.is_some_and(|one| one.why.contains("tried again in"));
            (told && !writes.open)
                .then_some(())
                .ok_or(format!("{writes:?}"))
        });
    });
    wait_open(&lab);
    lab.assert_settled();
}
