// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench clients`: the servers under an ordinary client on this machine, over `lo` or a veth,
//! run by run in turn. All keys are cached.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use erb_lab::Erb;

use crate::args::{ClientsArgs, Over, Server};
use crate::capacity::check_machine;
use crate::crew::Crew;
use crate::fixed::Fixed;
use crate::interrupt::Interrupt;
use crate::ordinary_report::{ClientsReport, OrdinaryReport, OrdinaryRun};
use crate::pace::Pace;
use crate::redis_server::RedisServer;
use crate::report::Machine;
use crate::stage::{Scene, Stage};
use crate::work::{Work, key};

/// Caches settle within this, and an ERB that rested is awake again (a tenth of a second).
pub const WARM_UP: Duration = Duration::from_millis(500);

/// Builds, runs, takes everything down.
pub fn measure(args: &ClientsArgs, erb: &Erb) -> Result<ClientsReport> {
    let work = Work::of(&args.work)?;
    if args.server.iter().any(|server| server.boosted()) {
        work.check_cacheable()?;
    }
    check_servers(args)?;
    let clients = args.client_core.iter().map(|&core| ("--client-core", core));
    let cores: Vec<_> = clients
        .chain([("--server-core", args.server_core)])
        .collect();
    check_machine(&cores)?;
    let interrupt = Interrupt::watch()?;
    let mut contests = Vec::new();
    for &server in &args.server {
        let contest = Contest::build(server, work, args, erb, &interrupt)
            .with_context(|| format!("could not set up server {}", server.name()))?;
        contests.push((contest, Vec::new()));
    }
    let time = Duration::from_secs_f64(args.seconds);
    for number in 1..=args.runs {
        for (contest, runs) in &mut contests {
            let run = contest.run(time, &interrupt).with_context(|| {
                format!("run {number} of server {} failed", contest.server.name())
            })?;
            runs.push(run);
        }
    }
    let servers = contests
        .iter_mut()
        .map(|(one, runs)| OrdinaryReport::new(one.server, args, &work, std::mem::take(runs)))
        .collect::<Result<_>>()?;
    Ok(ClientsReport::new(Machine::this()?, servers))
}

/// What makes no sense is said before anything is made.
fn check_servers(args: &ClientsArgs) -> Result<()> {
    ensure!(
        !args.server.contains(&Server::Echo),
        "echo keeps no connections; ordinary clients need them: leave it out, or use `erb bench \
         capacity`"
    );
    if let Some(other) = args.server.iter().find(|server| !server.serves_clients()) {
        bail!("{} is measured by `erb bench capacity`", other.name());
    }
    ensure!(
        args.over == Over::Veth || !args.server.contains(&Server::ErbTc),
        "on lo ERB works by its TC tier anyway: use --server erb"
    );
    ensure!(
        args.client_core.len() <= args.conns as usize,
        "{} clients for {} connections; use fewer --client-core or more --conns",
        args.client_core.len(),
        args.conns
    );
    Ok(())
}

/// A server with its clients.
struct Contest {
    server: Server,
    work: Work,
    // Sockets close before their device goes.
    crew: Crew<Fixed>,
    stage: Stage,
}

impl Contest {
    fn build(
        server: Server,
        work: Work,
        args: &ClientsArgs,
        erb: &Erb,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let scene = Scene {
            server,
            over: args.over,
            server_cores: &[args.server_core],
            client_cores: &args.client_core,
            cache_size: &args.cache_size,
        };
        let stage = Stage::build(&scene, erb, |netns| {
            RedisServer::loaded(
                netns,
                args.server_core,
                &work,
                [work.keys, args.conns],
                interrupt,
            )
        })?;
        if let Some(boosted) = stage.boosted() {
            // All keys are in the cache, which is then frozen.
            boosted
                .fill(work.op, (0..work.keys).map(key))
                .and_then(|_| boosted.set_fills(false))
                .context("ERB could not fill its cache")?;
        }
        let crew = stage.among_clients(|address| {
            Crew::connect(address, &args.client_core, args.conns, |client| {
                Ok((Fixed::new(work, client), Pace::Closed))
            })
        })?;
        Ok(Self {
            server,
            work,
            crew,
            stage,
        })
    }

    /// One run: warm up, measure.
    fn run(&mut self, time: Duration, interrupt: &Interrupt) -> Result<OrdinaryRun> {
        let (name, stage) = (self.work.op.name(), &self.stage);
        self.crew.drive(WARM_UP, interrupt)?;
        let (hits, packets) = (stage.hits(name)?, stage.packets()?);
        let calls = stage.redis().calls(name)?;
        let (start, before) = (Instant::now(), stage.spent()?);
        let tally = self.crew.drive(time, interrupt)?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), stage.spent()?);
        let latencies = &tally.latencies[0];
        let requests = latencies.len();
        ensure!(requests > 0, "no request was answered");
        let calls = stage.redis().calls(name)? - calls;
        let share = |count: u64| count as f64 / requests as f64;
        let hits = hits.zip(stage.hits(name)?);
        let packets = packets.zip(stage.packets()?);
        Ok(OrdinaryRun {
            seconds,
            requests,
            requests_per_s: requests as f64 / seconds,
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
            cost: after.since(&before, tally.cpu_ns, requests, stage),
            hit_ratio: hits.map(|(before, after)| share(after.saturating_sub(before))),
            tc_share: packets.map(|(before, after)| after.tc_share_since(&before)),
            answered_by_redis: share(calls),
        })
    }
}
