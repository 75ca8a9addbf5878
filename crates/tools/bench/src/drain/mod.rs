// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench drain`: what it costs to bring writes to Redis that were answered in its place, on made-up
//! records; beside it what the same SETs cost a Redis that gets them from clients.
//!
//! What answers the clients is not in it: these figures are the drain's part, and the most that a
//! sustained load can gain.
//!
//! # Layout
//! - `args`: command line; `keys`: which key; `report`: results.
//! - `log`: rings, and who writes them; `drainer`: the drain over a socket; `sets`: ordinary clients.

mod args;
mod drainer;
mod keys;
mod log;
mod report;
mod sets;

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use erb_lab::{Erb, process};
use erb_redis::resp::RespStream;

use self::args::{Aof, DIGITS, Plan, Way};
use self::drainer::{Connection, Did};
use self::keys::Keys;
use self::log::{Author, Memory, Wrote};
use self::report::{CaseReport, DrainFigures};
use self::sets::Sets;
use crate::args::{Over, Server};
use crate::capacity::check_machine;
use crate::cputime;
use crate::crew::Crew;
use crate::interrupt::Interrupt;
use crate::pace::Pace;
use crate::redis_server::{Launch, RedisServer};
use crate::report::Machine;
use crate::stage::{Scene, Stage};

pub use self::args::{Case, DrainArgs};
pub use self::report::{DrainReport, DrainRun};

/// Caches settle within this.
const WARM_UP: Duration = Duration::from_millis(300);
/// Keys of one look at what Redis holds.
const CHECKED_AT_ONCE: u32 = 1000;
/// Redis rewrites its log between runs within this.
const REWRITE_MAX: Duration = Duration::from_secs(60);

/// Builds, runs, takes everything down.
pub fn measure(args: &DrainArgs, erb: &Erb) -> Result<DrainReport> {
    check_machine(&[
        ("--server-core", args.server_core),
        ("--drain-core", args.drain_core),
        ("--client-core", args.client_core),
    ])?;
    let interrupt = Interrupt::watch()?;
    let mut clients = Clients::build(args, erb, &interrupt)?;
    let mut drains = Drains::build(args, erb, &interrupt)?;
    let mut found = vec![Vec::new(); args.case.len()];
    for number in 1..=args.runs {
        for (case, runs) in args.case.iter().zip(&mut found) {
            let plan = case.plan();
            let run = match plan.batch {
                Some(batch) => clients.run(args, plan, batch, u64::from(number), &interrupt),
                None => drains.run(args, plan, u64::from(number), &interrupt),
            };
            let run = run.with_context(|| format!("run {number} of {} failed", case.name()))?;
            runs.push(run);
        }
    }
    let cases = args.case.iter().zip(found);
    let cases = cases.filter_map(|(case, runs)| CaseReport::new(*case, runs));
    Ok(DrainReport::new(Machine::this()?, args, cases.collect()))
}

fn stage(args: &DrainArgs, erb: &Erb, over: Over, interrupt: &Interrupt) -> Result<Stage> {
    let mut launch = Launch::for_clients("redis-server".into(), args.conns)?;
    let settings: &[&str] = match args.aof {
        Aof::Everysec => &[],
        Aof::No => &["appendfsync=no"],
        Aof::Off => &["appendonly=no"],
    };
    for setting in settings {
        launch.settings.push(setting.parse()?);
    }
    let scene = Scene {
        server: Server::Redis,
        over,
        server_cores: &[args.server_core],
        client_cores: &[args.client_core],
        cache_size: "",
    };
    Stage::build(&scene, erb, |netns| {
        RedisServer::start(netns, &[args.server_core], &launch, interrupt)
    })
}

/// So that its log does not fill the disk, and no rewrite falls into a run.
fn rewrite(redis: &RedisServer, aof: Aof, interrupt: &Interrupt) -> Result<()> {
    if aof == Aof::Off {
        return Ok(());
    }
    let mut connection = redis.connect()?;
    redis::cmd("BGREWRITEAOF").exec(&mut connection)?;
    let end = Instant::now() + REWRITE_MAX;
    loop {
        interrupt.sleep(Duration::from_millis(50))?;
        let info: String = redis::cmd("INFO")
            .arg("persistence")
            .query(&mut connection)?;
        let idle = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
        if idle.iter().all(|line| info.contains(line)) {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "Redis does not come to an end with rewriting its log"
        );
    }
}

fn softirq_ns() -> Result<u64> {
    cputime::of_processes(&process::named("ksoftirqd/")?)
}

/// Ordinary clients, with a Redis of their own.
struct Clients {
    stage: Stage,
}

impl Clients {
    fn build(args: &DrainArgs, erb: &Erb, interrupt: &Interrupt) -> Result<Self> {
        let stage = stage(args, erb, args.over, interrupt)?;
        let store = |index: u32| {
            let key = format!("{index:0width$}", width = DIGITS as usize);
            let value = "v".repeat(args.value_size as usize);
            redis::cmd("SET").arg(key).arg(value).clone()
        };
        stage.redis().load(args.keys, store, interrupt)?;
        if args.case.iter().any(|case| case.plan().hashes) {
            let store = |index: u32| sets::hash_of(index, args.value_size);
            stage.redis().load(args.keys, store, interrupt)?;
        }
        Ok(Self { stage })
    }

    fn run(
        &mut self,
        args: &DrainArgs,
        plan: Plan,
        batch: u32,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<DrainRun> {
        rewrite(self.stage.redis(), args.aof, interrupt)?;
        let mut crew = self.stage.among_clients(|address| {
            Crew::connect(address, &[args.client_core], args.conns, |_| {
                let keys = Keys::new(args, plan.zipf, seed)?;
                let sets = match plan.hashes {
                    true => Sets::hashes(keys, batch, args.value_size),
                    false => Sets::new(keys, batch, args.value_size, plan.expires),
                };
                let packets = f64::from(args.rate) / f64::from(batch);
                let pace = match args.rate {
                    0 => Pace::Closed,
                    _ => Pace::even(packets, 0, 1),
                };
                Ok((sets, pace))
            })
        })?;
        crew.drive(WARM_UP, interrupt)?;
        let pid = self.stage.redis().pid();
        let (start, before, redis) = (
            Instant::now(),
            self.stage.spent()?,
            cputime::of_process(pid)?,
        );
        let tally = crew.drive(Duration::from_secs_f64(args.seconds), interrupt)?;
        let seconds = start.elapsed().as_secs_f64();
        let (after, redis) = (self.stage.spent()?, cputime::of_process(pid)? - redis);
        let writes = tally.latencies[0].len() * u64::from(batch);
        ensure!(writes > 0, "no SET was answered");
        let cost = after.since(&before, 0, writes, &self.stage);
        let redis_ns = redis as f64 / writes as f64;
        Ok(DrainRun {
            seconds,
            writes,
            writes_per_s: writes as f64 / seconds,
            all_ns: cost.server_ns_per_request + cost.softirq_ns_per_request,
            redis_ns,
            drain_ns: 0.0,
            receive_ns: (cost.server_ns_per_request - redis_ns).max(0.0),
            softirq_ns: cost.softirq_ns_per_request,
            drained: None,
        })
    }
}

/// Rings and a drain on the server's own machine.
struct Drains {
    stage: Stage,
    author: Author,
    memory: Memory,
}

impl Drains {
    fn build(args: &DrainArgs, erb: &Erb, interrupt: &Interrupt) -> Result<Self> {
        let mut drains = Self {
            stage: stage(args, erb, Over::Lo, interrupt)?,
            author: Author::new(args),
            memory: Memory::new(usize::from(args.rings))?,
        };
        let all = |author: &mut Author, memory: &Memory, _: Instant, stop: &AtomicBool| {
            author.write_all(&memory.logs(), stop);
            Ok(Wrote::default())
        };
        drains.drain(args, true, all)?;
        Ok(drains)
    }

    /// Lets a writer and a drain work, each in a thread on its processor.
    fn drain(
        &mut self,
        args: &DrainArgs,
        tracked: bool,
        write: impl FnOnce(&mut Author, &Memory, Instant, &AtomicBool) -> Result<Wrote> + Send,
    ) -> Result<(Wrote, Did)> {
        let mut stream = self.connect(args, tracked)?;
        let (author, memory) = (&mut self.author, &self.memory);
        let (written, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let start = Instant::now();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let wrote =
                    pin(args.client_core).and_then(|()| write(author, memory, start, &stop));
                written.store(true, Ordering::Release);
                wrote
            });
            let drain = scope.spawn(|| {
                let times = (args.batch_us * 1000, start);
                let did = pin(args.drain_core)
                    .and_then(|()| drainer::drain(memory.logs(), &mut stream, times, &written));
                stop.store(true, Ordering::Relaxed);
                did
            });
            let panicked = || anyhow!("a thread panicked");
            let wrote = writer.join().map_err(|_| panicked())?;
            let did = drain.join().map_err(|_| panicked())??;
            Ok((wrote?, did))
        })
    }

    fn connect(&self, args: &DrainArgs, tracked: bool) -> Result<RespStream<Connection>> {
        let connection = match args.way {
            Way::Tcp => self.stage.among_clients(|address| {
                let stream = TcpStream::connect(address).context("no connection to Redis")?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Connection::Tcp(stream))
            })?,
            Way::Unix => {
                let stream = UnixStream::connect(self.stage.redis().socket());
                let stream = stream.context("no connection to Redis")?;
                stream.set_nonblocking(true)?;
                Connection::Unix(stream)
            }
        };
        drainer::begin(connection, tracked)
    }

    fn run(
        &mut self,
        args: &DrainArgs,
        plan: Plan,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<DrainRun> {
        rewrite(self.stage.redis(), args.aof, interrupt)?;
        let write = |time: Duration, seed: u64| {
            move |author: &mut Author, memory: &Memory, start: Instant, stop: &AtomicBool| {
                let keys = Keys::new(args, plan.zipf, seed)?;
                author.write(args, plan, &memory.logs(), (keys, time, start), stop)
            }
        };
        self.drain(args, plan.tracked, write(WARM_UP, !seed))?;
        let pid = self.stage.redis().pid();
        let (redis, softirq) = (cputime::of_process(pid)?, softirq_ns()?);
        let time = Duration::from_secs_f64(args.seconds);
        let (wrote, did) = self.drain(args, plan.tracked, write(time, seed))?;
        let redis = cputime::of_process(pid)? - redis;
        let softirq = softirq_ns()? - softirq;
        interrupt.check()?;
        let (writes, keys) = (wrote.records, did.drained.keys as f64);
        ensure!(
            writes > 0 && did.drained.records == writes,
            "{writes} records were written, {} drained",
            did.drained.records
        );
        let (p50, p99) = lags(&wrote, &did);
        let per = |ns: u64| ns as f64 / writes as f64;
        Ok(DrainRun {
            seconds: did.time.as_secs_f64(),
            writes,
            writes_per_s: writes as f64 / did.time.as_secs_f64(),
            all_ns: per(redis + did.own_ns + softirq),
            redis_ns: per(redis),
            drain_ns: per(did.own_ns),
            receive_ns: 0.0,
            softirq_ns: per(softirq),
            drained: Some(DrainFigures {
                redis_ns_per_key: redis as f64 / keys,
                all_ns_per_key: (redis + did.own_ns) as f64 / keys,
                coalescing: writes as f64 / keys,
                keys_per_batch: keys / did.drained.batches as f64,
                batches: did.drained.batches,
                lag_p50_us: p50,
                lag_p99_us: p99,
                mismatches: self.mismatches(args)?,
            }),
        })
    }

    /// Keys that do not hold what was written to them last.
    fn mismatches(&self, args: &DrainArgs) -> Result<u64> {
        let mut connection = self.stage.redis().connect()?;
        let mut wrong = 0;
        for first in (0..args.keys).step_by(CHECKED_AT_ONCE as usize) {
            let numbers = first..args.keys.min(first + CHECKED_AT_ONCE);
            let mut command = redis::cmd("MGET");
            for number in numbers.clone() {
                command.arg(format!("{number:0width$}", width = DIGITS as usize));
            }
            let values: Vec<Option<Vec<u8>>> = command.query(&mut connection)?;
            for (number, value) in numbers.zip(values) {
                let value = value.unwrap_or_default();
                let last = self.author.last[number as usize];
                let right = keys::digits_of(&value) == Some(last)
                    && value.len() == args.value_size as usize;
                wrong += u64::from(!right);
            }
        }
        Ok(wrong)
    }
}

/// Median and 99th percentile of the time from a write to Redis's reply, us.
fn lags(wrote: &Wrote, did: &Did) -> (f64, f64) {
    let mut moments = did.moments.iter().peekable();
    let mut lags: Vec<f64> = Vec::new();
    for (lsn, at) in &wrote.sampled {
        while moments.peek().is_some_and(|(drained, _)| drained < lsn) {
            moments.next();
        }
        let Some((_, then)) = moments.peek() else {
            break;
        };
        lags.push(then.saturating_sub(*at).as_secs_f64() * 1e6);
    }
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (lags.len() as f64 * share) as usize;
        lags.get(index).copied().unwrap_or(0.0)
    };
    (at(0.5), at(0.99))
}

fn pin(core: usize) -> Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(core)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set))
        .with_context(|| format!("cannot run on processor {core}"))
}
