// SPDX-License-Identifier: Apache-2.0 OR MIT
//! redis-server, the daemon and both killed at random moments under load, while SETs are answered in Redis's place:
//! nothing that a client was told is lost, and nothing is done twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use erb_check::net::{Broken, Conn};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, scaled, wait};
use erb_e2e::process::Owned;
use erb_e2e::stop::Stop;
use erb_lab::End;
use erb_steady::out_of_patience;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Writers at once.
const WRITERS: usize = 6;
/// Keys of each.
const KEYS: usize = 12;
/// So many times more rounds than are asked for a run may have until it has shown enough.
const ROUNDS_MAX: u64 = 10;
/// A killed Redis has written what it answered, if it syncs nothing meanwhile: with `everysec` it may postpone that,
/// and loses it as it does without ERB.
const LOG: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

/// What a key may hold by what its only writer was told: one thing, but for what was under way when a connection broke.
type May = Vec<Option<String>>;

struct Writer<'a> {
    lab: &'a TestLab,
    conn: Option<Conn>,
    number: usize,
    random: fastrand::Rng,
    keys: BTreeMap<String, May>,
    /// Commands that were answered, of all.
    answered: &'a AtomicU64,
}

impl Writer<'_> {
    /// A reply; none: the connection broke, and whether the command was executed is not known.
    fn call(&mut self, words: &[&str]) -> Option<String> {
        loop {
            let conn = match &mut self.conn {
                Some(conn) => conn,
                None => {
                    let to = self.lab.address();
                    let conn = self.lab.inside(End::Client, || Conn::connect(to, STALL));
                    let Ok(conn) = conn else {
                        sleep(Duration::from_millis(20));
                        continue;
                    };
                    self.conn.insert(conn)
                }
            };
            match conn.call(words) {
                Ok(reply) if reply.starts_with(b"-LOADING") => sleep(Duration::from_millis(5)),
                Ok(reply) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return Some(String::from_utf8_lossy(&reply).into_owned());
                }
                Err(Broken::Eof | Broken::Reset(_)) => {
                    self.conn = None;
                    return None;
                }
                Err(broken) => panic!("{words:?}: {broken}"),
            }
        }
    }

    /// The key's value, which must be one that it may have, and is the only one from now on.
    fn read(&mut self, key: &str) -> Option<Option<String>> {
        let reply = self.call(&["GET", key])?;
        let value = reply.split("\r\n").nth(1).filter(|_| reply != "$-1\r\n");
        let value = value.map(str::to_owned);
        let may = self.keys.entry(key.to_owned()).or_insert(vec![None]);
        assert!(may.contains(&value), "{key}: {reply:?}, not {may:?}");
        *may = vec![value.clone()];
        Some(value)
    }

    /// The key may have this now: for certain, if its command was answered.
    fn has(&mut self, key: &str, value: Option<String>, is_answered: bool) {
        let may = self.keys.entry(key.to_owned()).or_insert(vec![None]);
        if is_answered {
            may.clear();
        }
        may.push(value);
    }

    fn step(&mut self, round: u64) {
        let key = format!("w{}:{}", self.number, self.random.usize(..KEYS));
        let key = key.as_str();
        match self.random.u8(..10) {
            0 | 1 => {
                self.read(key);
            }
            2 => {
                let Some(was) = self.read(key) else { return };
                let reply = self.call(&["DEL", key]);
                let want = format!(":{}\r\n", u8::from(was.is_some()));
                assert!(
                    reply.as_ref().is_none_or(|reply| *reply == want),
                    "{key}: {reply:?}"
                );
                self.has(key, None, reply.is_some());
            }
            3 | 4 => {
                // Twice done would be two more.
                let Some(Some(was)) = self.read(key) else {
                    return;
                };
                let next = was.parse::<u64>().expect("a number") + 1;
                let reply = self.call(&["INCR", key]);
                let want = format!(":{next}\r\n");
                assert!(
                    reply.as_ref().is_none_or(|reply| *reply == want),
                    "{key}: {reply:?}"
                );
                self.has(key, Some(next.to_string()), reply.is_some());
            }
            _ => {
                let value = (round * 1000).to_string();
                let reply = self.call(&["SET", key, &value]);
                assert!(
                    reply.as_ref().is_none_or(|reply| reply == "+OK\r\n"),
                    "{key}: {reply:?}"
                );
                self.has(key, Some(value), reply.is_some());
            }
        }
    }
}

/// Redis, and what boosts it: what is killed.
struct Killed<'a> {
    lab: &'a TestLab,
    redis: Pid,
    again: Option<Owned>,
    random: fastrand::Rng,
    /// Kills of Redis, and of daemons.
    count: [u32; 2],
}

impl Killed<'_> {
    fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.random.u64(..most_ms)));
    }

    fn kill_redis(&mut self) {
        if self.random.bool() {
            // What is answered meanwhile is in no Redis.
            kill(self.redis, Signal::SIGSTOP).expect("redis");
            self.pause(60);
        }
        kill(self.redis, Signal::SIGKILL).expect("redis");
        self.again = None;
        self.count[0] += 1;
    }

    fn kill_daemon(&mut self) {
        kill(self.lab.daemon_pid(), Signal::SIGKILL).expect("the daemon");
        self.count[1] += 1;
    }

    fn start_redis(&mut self) {
        self.pause(150);
        let mut command = self.lab.redis(End::Server, self.lab.address().port());
        command.arg("--dir").arg(&self.lab.lab().state().redis_dir);
        let redis = Owned::start(command.args(LOG));
        self.redis = redis.pid();
        self.again = Some(redis);
    }

    /// As its supervisor would, until it is there.
    fn start_daemon(&mut self) {
        self.pause(150);
        let words = ["--dev", "s0", "--dev", "lo", "--mode", "write-back"];
        wait(STATE_WAIT, || {
            let output = self.lab.boost(&words);
            let done = output.status.success().then_some(());
            done.ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
        });
    }

    fn round(&mut self) {
        self.pause(400);
        // In either order.
        let [redis, daemon, redis_again] = [
            [true, false, false],
            [false, true, false],
            [true, true, false],
            [false, true, true],
        ][self.random.usize(..4)];
        if redis {
            self.kill_redis();
        }
        if daemon {
            self.kill_daemon();
        }
        if redis_again {
            self.kill_redis();
        }
        if redis || redis_again {
            self.start_redis();
        }
        if daemon {
            self.start_daemon();
        }
        // A daemon that lost its processor to others has much to read, and Redis a log that grows with each round.
        wait(12 * STATE_WAIT, || {
            let writes = self.lab.try_status()?.writes;
            writes.open.then_some(()).ok_or(format!("{writes:?}"))
        });
    }
}

/// Also of a run that ends by a failure it is to be known how far it came.
impl Drop for Killed<'_> {
    fn drop(&mut self) {
        println!("{:?} kills of Redis and of daemons", self.count);
    }
}

#[test]
fn whatever_is_killed_nothing_told_is_lost_and_nothing_done_twice() {
    let lab = TestLab::up(
        "wbkills",
        &[
            "--mode",
            "write-back",
            "--direct",
            "--redis-arg",
            "appendonly=yes",
            "--redis-arg",
            "appendfsync=no",
        ],
    );
    lab.wait_admitting();
    lab.never_aside();
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = scaled(5, 300);
    let mut killed = Killed {
        lab: &lab,
        redis: lab.redis_pid(),
        again: None,
        random: fastrand::Rng::new(),
        count: [0; 2],
    };
    println!("the seed is {}", killed.random.get_seed());
    let (mut absorbed, mut played) = (0, 0);
    scope(|threads| {
        for number in 0..WRITERS {
            let (lab, stop, answered) = (&lab, &stop, &answered);
            threads.spawn(move || {
                let mut writer = Writer {
                    lab,
                    conn: None,
                    number,
                    random: fastrand::Rng::with_seed(number as u64),
                    keys: BTreeMap::new(),
                    answered,
                };
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    writer.step(round);
                }
                let keys: Vec<String> = writer.keys.keys().cloned().collect();
                for key in &keys {
                    while writer.read(key).is_none() {}
                }
            });
        }
        let _end = Stop(&stop);
        // On a machine that does other things little happens in a round.
        let shown =
            |absorbed, played| absorbed > 100 && answered.load(Ordering::Relaxed) > played * 100;
        while played < rounds || !shown(absorbed, rounds) {
            if played > ROUNDS_MAX * rounds {
                out_of_patience(format_args!("{absorbed} SETs answered in {played} rounds"));
            }
            killed.round();
            played += 1;
            absorbed = absorbed.max(lab.counters().get("ABSORBED"));
        }
    });
    println!("{played} rounds, {} commands", answered.into_inner());
    lab.assert_settled();
}
