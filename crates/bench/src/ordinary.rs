// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench clients`: the servers under an ordinary client on this machine, over `lo` or a veth,
//! run by run in turn.
//!
//! On `lo` the sender's system call also does the receiver's work in the kernel, ERB's TC programs
//! among it. So who paid says little there: what counts is the processor time of both sides
//! together, less of which is left for others, and how many requests one core of client gets.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libbpf_rs::Link;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::args::{ClientsArgs, Over, Server};
use crate::booster::{BoostRequest, Boosted, Booster};
use crate::capacity::check_machine;
use crate::cputime;
use crate::generator::attach_pass;
use crate::interrupt::Interrupt;
use crate::load::Load;
use crate::netns::{Pair, within};
use crate::ordinary_report::{ClientsReport, OrdinaryReport, OrdinaryRun};
use crate::redis_server::{PORT, RedisServer};
use crate::report::Machine;
use crate::work::{Work, key};

/// Caches settle within this, and an ERB that rested is awake again (a tenth of a second).
const WARM_UP: Duration = Duration::from_millis(500);
/// The device of clients on the server's own machine.
const LOOPBACK: &str = "lo";

/// Builds, runs, takes everything down.
pub fn measure(args: &ClientsArgs, booster: Option<&dyn Booster>) -> Result<ClientsReport> {
    let work = Work::of(&args.work)?;
    check_servers(args)?;
    check_machine(&[
        ("--server-core", args.server_core),
        ("--client-core", args.client_core),
    ])?;
    let interrupt = Interrupt::watch()?;
    let mut stages = Vec::new();
    for &server in &args.server {
        let stage = Stage::build(server, work, args, booster, &interrupt)
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
    Ok(())
}

/// A server with its clients; everything is undone when it is dropped.
struct Stage {
    server: Server,
    work: Work,
    boosted: Option<Box<dyn Boosted>>,
    load: Load,
    server_pids: Vec<u32>,
    client_pids: Vec<u32>,
    client_core: usize,
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
        booster: Option<&dyn Booster>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let pair = Pair::make()?;
        let redis = RedisServer::start(&pair.server, interrupt)?;
        cputime::pin(redis.pid(), args.server_core)?;
        redis.load(&work, work.keys, interrupt)?;
        let run_dir = tempfile::Builder::new().prefix("erb-bench-").tempdir()?;
        let (address, clients) = match args.over {
            Over::Lo => ((Ipv4Addr::LOCALHOST, PORT).into(), &pair.server),
            Over::Veth => (RedisServer::address(), &pair.client),
        };
        let request = BoostRequest {
            netns: &pair.server,
            client_netns: clients,
            device: match args.over {
                Over::Lo => LOOPBACK,
                Over::Veth => &pair.server_dev,
            },
            tc_alone: server == Server::ErbTc,
            redis: address,
            cache_size: &args.cache_size,
            run_dir: run_dir.path(),
        };
        let boosted = boost(server, &work, booster, &request)?;
        let mut server_pids = vec![redis.pid()];
        let mut client_pids = Vec::new();
        for pid in boosted.iter().flat_map(|boosted| boosted.pids()) {
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
            let threads = pair.receive_threads(args.client_core, args.server_core)?;
            client_pids.push(threads.client);
            server_pids.push(threads.server);
        }
        let load = within(clients, || connect(address, args.conns, work))?;
        Ok(Self {
            server,
            work,
            boosted,
            load,
            server_pids,
            client_pids,
            client_core: args.client_core,
            _pass: pass,
            pair,
            redis,
            run_dir,
        })
    }

    /// One run in a thread of its own on the clients' processor: warm up, measure.
    fn run(&mut self, time: Duration, interrupt: &Interrupt) -> Result<OrdinaryRun> {
        let name = self.work.op.name();
        let kernel_threads = softirq_threads()?;
        let (load, boosted, redis) = (&mut self.load, &self.boosted, &self.redis);
        let (servers, clients, op) = (&self.server_pids, &self.client_pids, self.work.op);
        on_core(self.client_core, || load.drive(WARM_UP, interrupt))?;
        let hits = boosted.as_ref().map(|it| it.hits(op)).transpose()?;
        let packets = boosted.as_ref().map(|it| it.packets()).transpose()?;
        let calls = redis.calls(name)?;
        let (latencies, seconds, before, after) = on_core(self.client_core, || {
            let spent = || -> Result<Spent> {
                let own = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
                Ok(Spent {
                    server: cputime::of_processes(servers)?,
                    client: cputime::of_processes(clients)?
                        + u64::try_from(Duration::from(own).as_nanos())?,
                    softirq: cputime::of_processes(&kernel_threads)?,
                })
            };
            let (start, before) = (Instant::now(), spent()?);
            let latencies = load.drive(time, interrupt)?;
            Ok((latencies, start.elapsed().as_secs_f64(), before, spent()?))
        })?;
        let requests = latencies.len();
        ensure!(requests > 0, "no request was answered");
        let calls = redis.calls(name)? - calls;
        let hits = match (hits, boosted) {
            (Some(before), Some(it)) => Some(it.hits(op)?.saturating_sub(before)),
            _ => None,
        };
        let tc_share = match (packets, boosted) {
            (Some(before), Some(it)) => Some(it.packets()?.tc_share_since(&before)),
            _ => None,
        };
        let per_request = |ns: u64| ns as f64 / requests as f64;
        let (server, client, softirq) = (
            per_request(after.server - before.server),
            per_request(after.client - before.client),
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
            hit_ratio: hits.map(|hits| hits as f64 / requests as f64),
            tc_share,
            answered_by_redis: calls as f64 / requests as f64,
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
    booster: Option<&dyn Booster>,
    request: &BoostRequest<'_>,
) -> Result<Option<Box<dyn Boosted>>> {
    if !server.boosted() {
        return Ok(None);
    }
    let booster = booster
        .context("this program does not carry ERB itself; use `erb bench clients --server erb`")?;
    let mut boosted = booster.boost(request).context("ERB could not be started")?;
    let mut keys = (0..work.keys).map(|index| key(index).into_bytes());
    let filled = boosted
        .fill(work.op, &mut keys)
        .and_then(|_| boosted.set_fills(false));
    if let Err(error) = filled {
        boosted.detach()?;
        return Err(error.context("ERB could not fill its cache"));
    }
    Ok(Some(boosted))
}

fn connect(address: SocketAddr, conns: u32, work: Work) -> Result<Load> {
    Load::connect(address, conns, work).context("the clients could not connect")
}

/// What is left of softirqs is done by these, on every processor.
fn softirq_threads() -> Result<Vec<u32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc").context("could not list /proc")? {
        let path = entry?.path();
        let pid: Option<u32> = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let comm = fs::read_to_string(path.join("comm"));
        if comm.is_ok_and(|comm| comm.starts_with("ksoftirqd/")) {
            threads.extend(pid);
        }
    }
    Ok(threads)
}

/// Runs `work` in a thread on one processor.
fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(move || {
                let mut set = CpuSet::new();
                set.set(core)
                    .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
                    .with_context(|| format!("cannot run on processor {core}"))?;
                work()
            })
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the client's thread panicked")))
    })
}
