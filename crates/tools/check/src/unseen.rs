// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check unseen`: how long a change that does not pass the target stays hidden behind it.
//!
//! Each round makes a key hot on the target, changes it by the direct way in one of the ways in
//! which Redis can change a key, and reads it on the target until the change shows. In every other pair of
//! rounds the target has just seen a SET of the key. What counts is when the last stale read was *sent*, after the change was answered (or had to happen: expiry).
//!
//! With `--master` the target's Redis is a replica, and changes are made at its master: each counts
//! from when the replica itself shows it by the direct way.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::net::{self, Conn};
use crate::resp;

/// A reply that takes longer counts as stuck.
const STALL: Duration = Duration::from_secs(30);
/// Reads that make a key hot, and the pause between them: a cache is filled beside the data path.
const HEAT_READS: u32 = 8;
const HEAT_PAUSE: Duration = Duration::from_millis(2);
/// A key that is to expire does so after this time.
const EXPIRY: Duration = Duration::from_millis(20);
/// A change that does not show for this long never does.
const NEVER: Duration = Duration::from_secs(10);

/// Arguments of `check unseen`.
#[derive(Debug, Clone, Args)]
pub struct UnseenArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// The same Redis by a way that bypasses the target.
    #[arg(long)]
    pub direct: String,
    /// The master whose replica that Redis is: changes are made there.
    #[arg(long)]
    pub master: Option<String>,
    /// Rounds of each kind of change.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rounds: u32,
    /// How long a change may stay hidden, ms (the lease).
    #[arg(long, default_value_t = 100)]
    pub bound_ms: u64,
    /// Connections that read and write other keys on the target meanwhile.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub load: u32,
    /// Also FLUSHALL and SWAPDB, which touch every key of the server.
    #[arg(long)]
    pub allow_flush: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A way to change a key: `{k}` is the hot one, `{o}` another, whose value is `new`.
struct Change {
    name: &'static str,
    /// Commands; the key has changed when the last is answered.
    commands: &'static [&'static str],
    /// What the key holds then; none: nothing.
    becomes: Option<&'static str>,
    /// It changes this much later than the last answer.
    after: Duration,
    /// Touches other keys.
    flushes: bool,
    /// Takes it back.
    undo: &'static [&'static str],
}

const fn change(
    name: &'static str,
    commands: &'static [&'static str],
    becomes: Option<&'static str>,
) -> Change {
    Change {
        name,
        commands,
        becomes,
        after: Duration::ZERO,
        flushes: false,
        undo: &[],
    }
}

const CHANGES: &[Change] = &[
    change("set", &["SET {k} new"], Some("new")),
    change("del", &["DEL {k}"], None),
    change("append", &["APPEND {k} x"], Some("oldx")),
    change("rename", &["RENAME {o} {k}"], Some("new")),
    change("copy", &["COPY {o} {k} REPLACE"], Some("new")),
    change(
        "transaction",
        &["MULTI", "SET {k} new", "EXEC"],
        Some("new"),
    ),
    change(
        "script",
        &["EVAL redis.call('SET',ARGV[1],'new') 0 {k}"],
        Some("new"),
    ),
    change("function", &["FCALL erb_unseen 0 {k}"], Some("new")),
    Change {
        after: EXPIRY,
        ..change("expiry", &["PEXPIRE {k} 20"], None)
    },
    Change {
        flushes: true,
        ..change("flushall", &["FLUSHALL"], None)
    },
    Change {
        flushes: true,
        undo: &["SWAPDB 0 1"],
        ..change("swapdb", &["SWAPDB 0 1"], None)
    },
];

/// The function of one of the changes.
const LIBRARY: &str = "#!lua name=erb_unseen\n\
    redis.register_function('erb_unseen', function(keys, args) \
    return redis.call('SET', args[1], 'new') end)";

/// How long one kind of change stayed hidden, ms after it was done; 0: not at all.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Hidden {
    /// Kind of change.
    pub change: String,
    /// Rounds.
    pub rounds: u64,
    /// Rounds in which a read that was sent after the change did not show it.
    pub stale_rounds: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Longest.
    pub max_ms: f64,
}

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// By kind of change.
    pub changes: Vec<Hidden>,
    /// Requests per second of the load beside it.
    pub load_requests_per_s: f64,
    /// Replies that were neither the old nor the new value.
    pub wrong: Vec<String>,
    /// No change stayed hidden for longer than the bound, and nothing was wrong.
    pub passed: bool,
}

struct Run {
    target: Conn,
    direct: Conn,
    master: Option<Conn>,
    bound: Duration,
    wrong: Vec<String>,
}

fn bulk(value: Option<&str>) -> Vec<u8> {
    value.map_or_else(
        || b"$-1\r\n".to_vec(),
        |value| format!("${}\r\n{value}\r\n", value.len()).into_bytes(),
    )
}

impl Run {
    /// Sends a command past the target, to the master if there is one; an error reply is an error.
    fn change(&mut self, words: &[&str]) -> Result<Vec<u8>> {
        let reply = match &mut self.master {
            Some(master) => master.call(words).context("--master")?,
            None => self.direct.call(words).context("--direct")?,
        };
        if reply.starts_with(b"-") {
            bail!("{words:?} was answered {}", resp::show(&reply, 200));
        }
        Ok(reply)
    }

    fn change_all(&mut self, commands: &[&str], key: &str, other: &str) -> Result<()> {
        for command in commands {
            let words: Vec<String> = command
                .split(' ')
                .map(|word| word.replace("{k}", key).replace("{o}", other))
                .collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.change(&words)?;
        }
        Ok(())
    }

    /// When the server has what `key` is now, by a command of `name` that has been answered and takes effect
    /// `after` its answer.
    fn done(&mut self, name: &str, after: Duration, key: &str, new: &[u8]) -> Result<Instant> {
        let answered = Instant::now();
        if self.master.is_none() {
            return Ok(answered + after);
        }
        while self.direct.call(&["GET", key]).context("--direct")? != new {
            if answered.elapsed() > NEVER {
                bail!(
                    "{}: {key} has not come from --master to --direct within {} s; is that its replica, and the \
                     link up (INFO replication)?",
                    name,
                    NEVER.as_secs()
                );
            }
        }
        Ok(Instant::now())
    }

    /// Reads through the target until it shows `new`, and returns how long behind `done` something else was
    /// shown. What is shown until then must be in `older`, if that says what was there before, or be older still and
    /// hidden: `made` says since when `older` was there.
    fn shown(
        &mut self,
        name: &str,
        key: &str,
        (new, older): (&[u8], Option<(&[u8], Instant)>),
        done: Instant,
    ) -> Result<Duration> {
        let mut hidden = Duration::ZERO;
        while hidden <= NEVER {
            let sent = Instant::now();
            let reply = self.target.call(&["GET", key])?;
            if reply == new {
                break;
            }
            let since = match older {
                Some((older, made)) if reply != older => {
                    let late = sent.saturating_duration_since(made);
                    if late > self.bound {
                        let (reply, ms) = (resp::show(&reply, 100), late.as_millis());
                        let wrong = format!("{name}: {key} is {reply}, {ms} ms after it was not");
                        self.wrong.push(wrong);
                        break;
                    }
                    made
                }
                _ => done,
            };
            hidden = hidden.max(sent.saturating_duration_since(since));
        }
        Ok(hidden)
    }

    /// Reads until the key was `old` several times in a row. What Redis has not reported yet may be shown again
    /// behind what is newer: a read that Redis answered, then one from the cache. Returns how long behind `made`.
    fn heat(&mut self, key: &str, old: &[u8], made: Instant) -> Result<Duration> {
        let (mut hidden, mut steady) = (Duration::ZERO, 0);
        while steady < HEAT_READS && hidden <= NEVER {
            let sent = Instant::now();
            if self.target.call(&["GET", key])? == old {
                steady += 1;
            } else {
                steady = 0;
                hidden = hidden.max(sent.saturating_duration_since(made));
            }
            std::thread::sleep(HEAT_PAUSE);
        }
        Ok(hidden)
    }

    /// One round; how long a change stayed hidden: that which makes the key, or the one at hand. said: what the
    /// key holds is written by way of the target just before.
    fn round(&mut self, change: &Change, key: &str, said: bool) -> Result<Duration> {
        let (name, other) = (change.name, format!("{key}:other"));
        let (old, new) = (bulk(Some("old")), bulk(change.becomes));
        self.change(&["SET", key, "old"])?;
        self.change(&["SET", &other, "new"])?;
        let made = self.done(name, Duration::ZERO, key, &old)?;
        // Something of the last round may be cached, and be it that the key is absent.
        let mut hidden = self.shown(name, key, (&old, None), made)?;
        hidden = hidden.max(self.heat(key, &old, made)?);
        if said {
            let reply = self.target.call(&["SET", key, "old"])?;
            if reply != b"+OK\r\n" {
                bail!("SET {key} was answered {}", resp::show(&reply, 200));
            }
        }
        self.change_all(change.commands, key, &other)?;
        let done = self.done(name, change.after, key, &new)?;
        hidden = hidden.max(self.shown(name, key, (&new, Some((&old, made))), done)?);
        self.change_all(change.undo, key, &other)?;
        self.change(&["DEL", key, &other])?;
        Ok(hidden)
    }

    fn rounds(&mut self, change: &Change, rounds: u32) -> Result<Hidden> {
        let mut times = Histogram::<u64>::new_with_bounds(1, 2 * NEVER.as_nanos() as u64, 3)?;
        let mut stale_rounds = 0;
        for round in 0..rounds {
            // Two keys in turn: one may rest for a while because it could not be filled.
            let key = format!("unseen:{}:{}", change.name, round % 2);
            let said = self.master.is_none() && round % 4 < 2;
            let hidden = self.round(change, &key, said)?;
            stale_rounds += u64::from(!hidden.is_zero());
            times.saturating_record(hidden.as_nanos() as u64);
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        Ok(Hidden {
            change: change.name.to_owned(),
            rounds: rounds.into(),
            stale_rounds,
            p50_ms: ms(times.value_at_quantile(0.5)),
            p99_ms: ms(times.value_at_quantile(0.99)),
            max_ms: ms(times.max()),
        })
    }
}

/// Reads and writes keys of its own until told to stop; checks nothing.
fn load(
    target: SocketAddr,
    master: Option<SocketAddr>,
    number: u32,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Result<()> {
    let mut conn = Conn::connect(target, STALL)?;
    let mut master = master
        .map(|master| Conn::connect(master, STALL))
        .transpose()?;
    let value = "v".repeat(100);
    for request in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("unseen:load:{number}:{}", request % 8);
        if request % 10 == 0 {
            let writer = master.as_mut().unwrap_or(&mut conn);
            writer.call(&["SET", &key, &value])?;
        } else {
            conn.call(&["GET", &key])?;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs the check.
///
/// # Errors
/// If an argument is wrong, a connection breaks or Redis refuses a command.
pub fn execute(args: &UnseenArgs) -> Result<Report> {
    let target = net::resolve(&args.target)?;
    let direct = net::resolve(&args.direct)?;
    let master = args.master.as_deref().map(net::resolve).transpose()?;
    let mut run = Run {
        target: Conn::connect(target, STALL)?,
        direct: Conn::connect(direct, STALL).context("--direct")?,
        master: master
            .map(|master| Conn::connect(master, STALL).context("--master"))
            .transpose()?,
        bound: Duration::from_millis(args.bound_ms),
        wrong: Vec::new(),
    };
    run.change(&["FUNCTION", "LOAD", "REPLACE", LIBRARY])?;
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let threads: Vec<JoinHandle<Result<()>>> = (0..args.load)
        .map(|number| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || load(target, master, number, &stop, &done))
        })
        .collect();
    let began = Instant::now();
    let changes = CHANGES
        .iter()
        .filter(|change| args.allow_flush || !change.flushes)
        .map(|change| run.rounds(change, args.rounds))
        .collect::<Result<Vec<_>>>();
    let load_requests_per_s = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow!("a thread of the load panicked"))??;
    }
    let changes = changes?;
    run.change(&["FUNCTION", "DELETE", "erb_unseen"])?;
    let late = changes
        .iter()
        .any(|hidden| hidden.max_ms > args.bound_ms as f64);
    Ok(Report {
        passed: !late && run.wrong.is_empty(),
        changes,
        load_requests_per_s,
        wrong: run.wrong,
    })
}

/// `check unseen`: prints the report; exit code 0 if every change showed within the bound, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &UnseenArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for wrong in &report.wrong {
            println!("WRONG {wrong}");
        }
        for one in &report.changes {
            println!(
                "{:>12}: {} rounds, {} with a stale read, hidden p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
                one.change, one.rounds, one.stale_rounds, one.p50_ms, one.p99_ms, one.max_ms
            );
        }
        println!(
            "{}: bound {} ms, load {:.0} requests/s",
            if report.passed { "passed" } else { "FAILED" },
            args.bound_ms,
            report.load_requests_per_s
        );
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
