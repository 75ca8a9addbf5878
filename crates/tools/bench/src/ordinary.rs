// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench clients`: the servers under an ordinary client on this machine, over `lo` or a veth,
//! run by run in turn.
//!
//! On `lo` the sender's system call also does the receiver's work in the kernel, ERB's TC programs
//! among it. So who paid says little there: what counts is the processor time of both sides
//! together, less of which is left for others, and how many requests one core of client gets.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use erb_lab::netns::run_in;
use erb_lab::{Erb, process};
use hdrhistogram::Histogram;
use libbpf_rs::Link;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::args::{ClientsArgs, Over, Server};
use crate::boosted::{BoostRequest, Boosted, Packets};
use crate::capacity::check_machine;
use crate::cputime;
use crate::generator::attach_pass;
use crate::interrupt::Interrupt;
use crate::load::Load;
use crate::netns::Pair;
use crate::ordinary_report::{ClientsReport, OrdinaryReport, OrdinaryRun};
use crate::redis_server::{PORT, RedisServer};
use crate::report::Machine;
use crate::work::{Work, key};

/// Caches settle within this, and an ERB that rested is awake again (a tenth of a second).
const WARM_UP: Duration = Duration::from_millis(500);
/// The device of clients on the server's own machine.
const LOOPBACK: &str = "lo";

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
    let mut stages = Vec::new();
    for &server in &args.server {
        let stage = Stage::build(server, work, args, erb, &interrupt)
            .with_context(|| format!("could not set up server {}", server.name()))?;
        stages.push((stage, Vec::new()));
    }
    let time = Duration::from_secs_f64(args.seconds);
    for number in 1..=args.runs {
        for (stage, runs) in &mut stages {
            let run = stage.run(time, &interrupt).with_context(|| {
                format!("run {number} of server {} failed", stage.server.name())
            })?;
            runs.push(run);
        }
    }
    let servers = stages
        .iter_mut()
        .map(|(stage, runs)| OrdinaryReport::new(stage.server, args, &work, std::mem::take(runs)))
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

/// A server with its clients; everything is undone when it is dropped.
struct Stage {
    server: Server,
    work: Work,
    boosted: Option<Boosted>,
    loads: Vec<(usize, Load)>,
    server_pids: Vec<u32>,
    client_pids: Vec<u32>,
    _pass: Vec<Link>,
    // From here on the order of dropping matters: device, then Redis; see Pair.
    pair: Pair,
    redis: RedisServer,
    run_dir: TempDir,
}

/// Processor time so far, in nanoseconds.
struct Spent {
    server: u64,
    client: u64,
    softirq: u64,
}

impl Stage {
    fn build(
        server: Server,
        work: Work,
        args: &ClientsArgs,
        erb: &Erb,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let pair = Pair::make()?;
        let redis = RedisServer::loaded(&pair.server, args.server_core, &work, interrupt)?;
        let run_dir = tempfile::Builder::new().prefix("erb-bench-").tempdir()?;
        let (address, clients) = match args.over {
            Over::Lo => ((Ipv4Addr::LOCALHOST, PORT).into(), &pair.server),
            Over::Veth => (RedisServer::address(), &pair.client),
        };
        let request = BoostRequest {
            netns: &pair.server,
            device: match args.over {
                Over::Lo => LOOPBACK,
                Over::Veth => &pair.server_dev,
            },
            tc_alone: server == Server::ErbTc,
            redis: address,
            cache_size: &args.cache_size,
            folder: run_dir.path(),
        };
        let boosted = boost(server, &work, erb, &request)?;
        let mut server_pids = vec![redis.pid()];
        let mut client_pids = Vec::new();
        for pid in boosted.iter().map(Boosted::pid) {
            cputime::pin(pid, args.server_core)?;
            server_pids.push(pid);
        }
        let mut pass = Vec::new();
        if args.over == Over::Veth {
            // Linux does not wake a veth for XDP_TX without an XDP program on it, and without one
            // the sender's system call does the receiver's work. Behind the boost, which refuses a
            // device that has one.
            pass.push(attach_pass(&pair.client, &pair.client_dev)?);
            if server != Server::Erb {
                pass.push(attach_pass(&pair.server, &pair.server_dev)?);
            }
            let threads = pair.receive_threads(args.client_core[0], args.server_core)?;
            client_pids.push(threads.client);
            server_pids.push(threads.server);
        }
        let loads = run_in(clients, || connect(address, args, work))?;
        Ok(Self {
            server,
            work,
            boosted,
            loads,
            server_pids,
            client_pids,
            _pass: pass,
            pair,
            redis,
            run_dir,
        })
    }

    /// One run: warm up, measure.
    fn run(&mut self, time: Duration, interrupt: &Interrupt) -> Result<OrdinaryRun> {
        let name = self.work.op.name();
        drive(&mut self.loads, WARM_UP, interrupt)?;
        let (hits, packets) = (self.hits()?, self.packets()?);
        let calls = self.redis.calls(name)?;
        let (start, before) = (Instant::now(), self.spent()?);
        let (latencies, own) = drive(&mut self.loads, time, interrupt)?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), self.spent()?);
        let requests = latencies.len();
        ensure!(requests > 0, "no request was answered");
        let calls = self.redis.calls(name)? - calls;
        let hits = hits.zip(self.hits()?);
        let tc_share = packets
            .zip(self.packets()?)
            .map(|(before, after)| after.tc_share_since(&before));
        let per_request = |ns: u64| ns as f64 / requests as f64;
        let (server, client, softirq) = (
            per_request(after.server - before.server),
            per_request(after.client - before.client + own),
            per_request(after.softirq - before.softirq),
        );
        Ok(OrdinaryRun {
            seconds,
            requests,
            requests_per_s: requests as f64 / seconds,
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
            cpu_ns_per_request: server + client + softirq,
            server_ns_per_request: server,
            client_ns_per_request: client,
            softirq_ns_per_request: softirq,
            hit_ratio: hits.map(|(before, after)| per_request(after.saturating_sub(before))),
            tc_share,
            answered_by_redis: calls as f64 / requests as f64,
        })
    }

    fn hits(&self) -> Result<Option<u64>> {
        let boosted = self.boosted.as_ref();
        boosted.map(|it| it.hits(self.work.op)).transpose()
    }

    fn packets(&self) -> Result<Option<Packets>> {
        self.boosted.as_ref().map(|it| it.packets()).transpose()
    }

    fn spent(&self) -> Result<Spent> {
        Ok(Spent {
            server: cputime::of_processes(&self.server_pids)?,
            client: cputime::of_processes(&self.client_pids)?,
            // What is left of softirqs is done by these, on every processor.
            softirq: cputime::of_processes(&process::named("ksoftirqd/")?)?,
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let Some(boosted) = self.boosted.take() else {
            return;
        };
        if let Err(error) = boosted.detach() {
            eprintln!(
                "could not detach ERB in {} ({}): {error:#}",
                self.pair.server,
                self.run_dir.path().display()
            );
        }
    }
}

/// Boosts if the server is a boosted one, fills its cache with all keys, and freezes it.
fn boost(
    server: Server,
    work: &Work,
    erb: &Erb,
    request: &BoostRequest<'_>,
) -> Result<Option<Boosted>> {
    if !server.boosted() {
        return Ok(None);
    }
    let boosted = Boosted::begin(erb, request).context("ERB could not be started")?;
    let filled = boosted
        .fill(work.op, (0..work.keys).map(key))
        .and_then(|_| boosted.set_fills(false));
    if let Err(error) = filled {
        boosted.detach()?;
        return Err(error.context("ERB could not fill its cache"));
    }
    Ok(Some(boosted))
}

/// A client for each processor, with its share of the connections.
fn connect(address: SocketAddr, args: &ClientsArgs, work: Work) -> Result<Vec<(usize, Load)>> {
    let count = args.client_core.len() as u32;
    (0..count)
        .zip(&args.client_core)
        .map(|(index, &core)| {
            let conns = args.conns / count + u32::from(index < args.conns % count);
            let load = Load::connect(address, conns, work);
            Ok((core, load.context("the clients could not connect")?))
        })
        .collect()
}

/// Runs each client in a thread on its processor; all latencies, and the threads' processor time.
fn drive(
    loads: &mut [(usize, Load)],
    time: Duration,
    interrupt: &Interrupt,
) -> Result<(Histogram<u64>, u64)> {
    thread::scope(|scope| {
        let threads: Vec<_> = loads
            .iter_mut()
            .map(|(core, load)| scope.spawn(|| drive_one(*core, load, time, interrupt)))
            .collect();
        let mut all: Option<(Histogram<u64>, u64)> = None;
        for thread in threads {
            let panicked = |_| Err(anyhow!("a client's thread panicked"));
            let (latencies, ns) = thread.join().unwrap_or_else(panicked)?;
            all = match all {
                None => Some((latencies, ns)),
                Some((mut sum, sum_ns)) => {
                    sum.add(&latencies)?;
                    Some((sum, sum_ns + ns))
                }
            };
        }
        all.context("there is no client")
    })
}

fn drive_one(
    core: usize,
    load: &mut Load,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<(Histogram<u64>, u64)> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .with_context(|| format!("cannot run on processor {core}"))?;
    let latencies = load.drive(time, interrupt)?;
    // The thread began with this run.
    let own = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
    Ok((latencies, u64::try_from(own.as_nanos())?))
}
