// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench workload`: what traffic like a user's own gains, server by server, run by run in turn.
//!
//! # Layout
//! - `args`: command line; `plan`: the same, checked; `report`: results; `tables`: for people.
//! - `draw`: which key; `trace`: operations of a file.
//! - `beside`: what Redis does beside.
//! - `asker`: one client's requests, and whether replies are right; `value`, `ledger`: by what it
//!   knows.

mod args;
mod asker;
mod beside;
pub mod draw;
mod ledger;
mod plan;
mod report;
mod tables;
mod trace;
mod value;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_lab::Erb;

use crate::boosted::{Boosted, Packets};
use crate::capacity::check_machine;
use crate::crew::Crew;
use crate::interrupt::Interrupt;
use crate::redis_server::{Launch, OTHER_CLIENTS, RedisServer, make_room};
use crate::report::Machine;
use crate::stage::{Scene, Spent, Stage};
use crate::tally::Tally;

use self::args::WorkloadServer;
use self::asker::{Asker, MODIFY, READ};
use self::beside::Companion;
use self::ledger::Ledger;
use self::plan::Plan;
use self::report::{Answered, Latency, Offered, Second, ServerRuns};

pub use self::args::{Mix, WorkloadArgs};
pub use self::report::{PER_S, WorkloadReport, WorkloadRun, WorkloadServerReport};

/// A series counts once in so long.
const SECOND: Duration = Duration::from_secs(1);
/// Whether a connection may have the port of one that is in TIME_WAIT.
const TIME_WAIT_REUSE: &str = "/proc/sys/net/ipv4/tcp_tw_reuse";

/// Builds, runs, takes everything down.
pub fn measure(args: &WorkloadArgs, erb: &Erb) -> Result<WorkloadReport> {
    Session::new(args.clone(), erb)?.measure()
}

/// Servers that stay for several measurements on the same keys, with other operations each.
pub struct Session<'a> {
    setting: Setting<'a>,
    kept: Vec<Option<Contest>>,
}

impl<'a> Session<'a> {
    /// Checks what is asked for. Servers are made when they are first measured.
    pub fn new(args: WorkloadArgs, erb: &'a Erb) -> Result<Self> {
        let plan = Arc::new(Plan::of(&args)?);
        let threads = args.threads.map_or(args.client_core.len(), |n| n as usize);
        check(&args, threads)?;
        let cores = args.client_core.iter().copied().cycle().take(threads);
        Ok(Self {
            kept: args.server.iter().map(|_| None).collect(),
            setting: Setting {
                plan,
                erb,
                cores: cores.collect(),
                launches: launches(&args)?,
                interrupt: Interrupt::watch()?,
                args,
            },
        })
    }

    /// From now on clients do this, in a closed loop if there is no rate.
    pub fn turn_to(&mut self, mix: Mix, rate: Option<f64>) -> Result<()> {
        let args = &mut self.setting.args;
        (args.mix, args.rate) = (Some(mix), rate);
        self.setting.plan = Arc::new(Plan::of(args)?);
        Ok(())
    }

    /// All runs of all servers, in turn.
    pub fn measure(&mut self) -> Result<WorkloadReport> {
        let setting = &self.setting;
        let args = &setting.args;
        let mut servers: Vec<ServerRuns> =
            args.server.iter().map(|&it| ServerRuns::of(it)).collect();
        for number in 1..=args.runs {
            for (runs, kept) in servers.iter_mut().zip(&mut self.kept) {
                let name = runs.server.name();
                let contest = match kept.take() {
                    Some(contest) => contest,
                    None => Contest::build(setting, runs.server)
                        .with_context(|| format!("could not set up server {name}"))?,
                };
                let run = contest.run(setting, number);
                runs.add(run.with_context(|| format!("run {number} of server {name} failed"))?);
                if !setting.plan.cold {
                    *kept = Some(contest);
                }
            }
        }
        let machine = Machine::with(&setting.launches[0].program)?;
        WorkloadReport::new(machine, args, &setting.plan, servers)
    }

    /// What `erb status` says of the first boosted server that was kept, for error messages.
    pub fn status(&self) -> Result<String> {
        let mut boosted = self
            .kept
            .iter()
            .flatten()
            .filter_map(|it| it.stage.boosted());
        boosted.next().context("no server is boosted")?.status()
    }
}

/// What would fail half-way is said before anything is made.
fn check(args: &WorkloadArgs, threads: usize) -> Result<()> {
    ensure!(
        threads <= args.conns as usize,
        "{threads} threads for {} connections; use fewer --threads or --client-core, or more --conns",
        args.conns
    );
    let servers = &args.server;
    let io_threads = io_threads(args);
    ensure!(
        !servers.contains(&WorkloadServer::RedisIo)
            || (2..=args.server_core.len()).contains(&io_threads),
        "redis-io has {io_threads} threads and --server-core {} of them: they wait by spinning, so \
         each needs a processor, and two are the least",
        args.server_core.len()
    );
    let on_lo = args.over == crate::args::Over::Lo;
    ensure!(
        !on_lo || !servers.contains(&WorkloadServer::ErbTc),
        "on lo ERB works by its TC tier anyway: use --server erb"
    );
    ensure!(
        !on_lo || !servers.contains(&WorkloadServer::ErbWriteBack),
        "on lo no SET is answered: use --over veth"
    );
    make_room(args.conns)?;
    let cores = |option, cores: &[usize]| -> Vec<(&'static str, usize)> {
        cores.iter().map(|&core| (option, core)).collect()
    };
    let clients = cores("--client-core", &args.client_core);
    check_machine(&[clients, cores("--server-core", &args.server_core)].concat())
}

fn io_threads(args: &WorkloadArgs) -> usize {
    args.io_threads.map_or(args.server_core.len(), usize::from)
}

/// What Redis is started as, by itself and with io-threads.
fn launches(args: &WorkloadArgs) -> Result<[Launch; 2]> {
    let mut plain = Launch::for_clients(args.program.program()?, args.conns)?;
    plain.settings.extend(args.redis_arg.iter().cloned());
    let mut io = plain.clone();
    let threads =
        u8::try_from(io_threads(args)).context("too many --server-core for io-threads")?;
    io.settings.extend(args.program.thread_settings(threads)?);
    Ok([plain, io])
}

/// What all contests share.
struct Setting<'a> {
    plan: Arc<Plan>,
    args: WorkloadArgs,
    erb: &'a Erb,
    /// Of the clients' threads.
    cores: Vec<usize>,
    launches: [Launch; 2],
    interrupt: Interrupt,
}

/// A server, and what was written to it.
struct Contest {
    stage: Stage,
    ledger: Arc<Ledger>,
    server: WorkloadServer,
}

/// What is counted while no request is under way.
struct Look {
    hits: Option<u64>,
    repeated: u64,
    packets: Option<Packets>,
    calls: u64,
    spent: Spent,
    answered: Option<Answered>,
}

impl Contest {
    fn build(setting: &Setting<'_>, server: WorkloadServer) -> Result<Self> {
        let (args, plan) = (&setting.args, &setting.plan);
        let scene = Scene {
            server: server.server(),
            over: args.over,
            server_cores: &args.server_core,
            client_cores: &args.client_core,
            cache_size: &args.cache_size,
        };
        let launch = &setting.launches[usize::from(server == WorkloadServer::RedisIo)];
        let stage = Stage::build(&scene, setting.erb, |netns| {
            let redis = RedisServer::start(netns, &args.server_core, launch, &setting.interrupt)?;
            redis.load(plan.keys, |index| plan.store(index), &setting.interrupt)?;
            Ok(redis)
        })?;
        // Those who left keep their ports for a minute: more runs than one need them again.
        stage.among_clients(|_| fs::write(TIME_WAIT_REUSE, "1").context(TIME_WAIT_REUSE))?;
        let ledger = Arc::new(Ledger::new(plan.keys));
        let contest = Self {
            stage,
            ledger,
            server,
        };
        let closed = contest.boosted_as(WorkloadServer::ErbClosed);
        closed
            .map_or(Ok(()), Boosted::close_cache)
            .context("ERB could not close its cache")?;
        if !plan.cold {
            let warm_up = Duration::from_secs_f64(args.warm_up);
            let mut crew = contest.connect(setting, 0)?;
            crew.drive(warm_up, &setting.interrupt)?;
            contest.leave(setting, crew)?;
        }
        Ok(contest)
    }

    /// ERB, if it is this one.
    fn boosted_as(&self, server: WorkloadServer) -> Option<&Boosted> {
        self.stage.boosted().filter(|_| self.server == server)
    }

    /// The clients of one run. They leave with it: a server that has its turn shares processors with
    /// others that nobody is connected to.
    fn connect(&self, setting: &Setting<'_>, run: u32) -> Result<Crew<Asker>> {
        let clients = setting.cores.len() as u32;
        let seed = setting.args.seed.wrapping_add(u64::from(run) << 16);
        self.stage.among_clients(|address| {
            Crew::connect(address, &setting.cores, setting.args.conns, |client| {
                let (plan, ledger) = (Arc::clone(&setting.plan), Arc::clone(&self.ledger));
                let pace = plan.pace(client, clients);
                Ok((Asker::new(plan, ledger, seed, client, clients), pace))
            })
        })
    }

    fn leave(&self, setting: &Setting<'_>, crew: Crew<Asker>) -> Result<()> {
        drop(crew);
        let redis = self.stage.redis();
        redis.wait_for_leaving(OTHER_CLIENTS.into(), &setting.interrupt)
    }

    /// One run: connect, warm up unless it is to begin cold, and measure.
    fn run(&self, setting: &Setting<'_>, number: u32) -> Result<WorkloadRun> {
        let (plan, args) = (&setting.plan, &setting.args);
        let boosted = self.stage.boosted();
        let writes_back = self.boosted_as(WorkloadServer::ErbWriteBack);
        writes_back.map_or(Ok(()), Boosted::wait_until_open)?;
        let mut crew = self.connect(setting, number)?;
        if !plan.cold {
            crew.drive(plan.settled(args.conns), &setting.interrupt)?;
            crew.skip_unsent();
        }
        let companion = args.beside.map(|what| Companion::begin(&self.stage, what));
        let companion = companion.transpose()?;
        let before = self.look(plan, &crew)?;
        let mut tally = Tally::new(asker::OPERATIONS.len())?;
        let mut series = Vec::new();
        let (mut took, mut left) = (Duration::ZERO, plan.time);
        let start = Instant::now();
        let (mut hits, mut repeated) = (before.hits, before.repeated);
        while !left.is_zero() && !crew.exhausted() {
            let step = if args.series { SECOND.min(left) } else { left };
            let begin = Instant::now();
            let part = crew.drive(step, &setting.interrupt)?;
            let time = begin.elapsed();
            took += time;
            left -= step;
            if args.series {
                let at_s = start.elapsed().as_secs_f64();
                let now = self.stage.hits(plan.read_command())?;
                let fast = hits
                    .zip(now)
                    .map(|(before, now)| now.saturating_sub(before));
                let again = read_again(&crew) - repeated;
                series.push(Second::of(at_s, time, &part, fast, again));
                (hits, repeated) = (now, repeated + again);
            }
            tally.add(&part)?;
        }
        writes_back.map_or(Ok(()), Boosted::wait_until_drained)?;
        let closed = self.boosted_as(WorkloadServer::ErbClosed);
        closed.map_or(Ok(()), Boosted::check_closed)?;
        let after = self.look(plan, &crew)?;
        ensure!(tally.operations() > 0, "no operation was done");
        let mut run = self.result(took, &tally, &[before, after]);
        run.series = series;
        run.offered = plan
            .timed()
            .then(|| Offered::of(plan, &tally, crew.unsent()));
        run.beside = companion.map(Companion::end).transpose()?;
        run.unseen = boosted.map_or(Ok(0), Boosted::unseen)?;
        self.leave(setting, crew)?;
        Ok(run)
    }

    fn result(&self, took: Duration, tally: &Tally, [before, after]: &[Look; 2]) -> WorkloadRun {
        let seconds = took.as_secs_f64();
        let operations = tally.operations();
        let requests = operations + tally.latencies[MODIFY].len();
        let reads = reads(tally);
        let of_reads = |count: u64| count as f64 / reads.max(1) as f64;
        let hits = before.hits.zip(after.hits).filter(|_| reads > 0);
        let packets = before.packets.zip(after.packets);
        WorkloadRun {
            seconds,
            operations,
            operations_per_s: operations as f64 / seconds,
            requests,
            requests_per_s: requests as f64 / seconds,
            latencies: Latency::of_all(tally),
            cost: (after.spent).since(&before.spent, tally.cpu_ns, requests, &self.stage),
            reads,
            hit_ratio: hits.map(|(before, after)| of_reads(after.saturating_sub(before))),
            repeated_ratio: (reads > 0).then(|| of_reads(after.repeated - before.repeated)),
            tc_share: packets.map(|(before, after)| after.tc_share_since(&before)),
            reads_by_redis: of_reads(after.calls - before.calls),
            client_busy: tally.busy,
            unseen: 0,
            offered: None,
            series: Vec::new(),
            beside: None,
            answered: before
                .answered
                .zip(after.answered)
                .map(|(before, after)| after.since(before)),
        }
    }

    fn look(&self, plan: &Plan, crew: &Crew<Asker>) -> Result<Look> {
        let command = plan.read_command();
        Ok(Look {
            hits: self.stage.hits(command)?,
            repeated: read_again(crew),
            packets: self.stage.packets()?,
            calls: self.stage.redis().calls(&command.to_lowercase())?,
            spent: self.stage.spent()?,
            answered: (self.boosted_as(WorkloadServer::ErbWriteBack))
                .map(|boosted| Answered::of(boosted.boost()))
                .transpose()?,
        })
    }
}

/// Reads so far of keys that were read since they were written.
fn read_again(crew: &Crew<Asker>) -> u64 {
    crew.traffic().map(Asker::repeated).sum()
}

/// Requests that read.
fn reads(tally: &Tally) -> u64 {
    tally.latencies[READ].len() + tally.latencies[MODIFY].len()
}
