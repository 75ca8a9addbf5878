// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One server under measurement: its two namespaces, its threads on their cores, its connections.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_lab::netns::run_in;
use erb_lab::{Boost, Erb, process};
use libbpf_rs::Link;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::args::{CapacityArgs, Server};
use crate::boosted::{BoostRequest, Boosted};
use crate::cputime::{self, Pinned};
use crate::echo::Echo;
use crate::generator::{Generator, Workload, attach_pass};
use crate::interrupt::Interrupt;
use crate::journal::Sink;
use crate::mirror::{BENCH_PORT_BASE, bench_totals};
use crate::netns::{CLIENT_IP, Pair};
use crate::redis_server::{PORT, RedisServer};
use crate::report::Run;
use crate::watched::Watchers;
use crate::work::{Work, key};

/// Caches and branch predictors settle well within this.
const WARM_UP: Duration = Duration::from_millis(300);
/// A loop that did not move for this long is kicked again. Longer than TCP's smallest time-out, so
/// that the server's own retransmission comes first.
const STALL: Duration = Duration::from_millis(500);
/// The last replies come within a round trip, unless one was lost and is retransmitted: four times by then, if TCP's
/// time-out has grown to a second (RFC 6298) on a machine that does other things.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Linux delays an ACK by at most 200 ms (TCP_DELACK_MAX), by 40 ms usually.
const LAST_ACK: Duration = Duration::from_millis(250);
/// For replies to the warm-up commands.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections whose first commands are under way together; a queue of veth holds 256 packets.
const OPENED_AT_ONCE: u32 = 100;
/// Name of the daemon's thread that sees to the journal.
const JOURNAL_THREAD: &str = "journal";
/// Names of the kernel module's threads begin so.
const MODULE_THREADS: &str = "erb_io_";

/// What distinguishes the instances of one measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which server.
    pub server: Server,
    /// What is asked for.
    pub work: Work,
    /// Cache given to ERB.
    pub cache_size: String,
    /// Keys that Redis has before the runs.
    pub loaded: u32,
    /// Keys filled before the runs.
    pub filled: u32,
    /// Whether ERB may fill during the runs.
    pub fills: bool,
    /// What a boost is told, beside the rest.
    pub options: Vec<String>,
    /// Who writes the journal, if that is what is measured.
    pub journal: Option<Sink>,
}

/// A server that can be run; everything is undone when it is dropped.
pub struct Instance {
    plan: Plan,
    watchers: Option<Watchers>,
    boosted: Option<Boosted>,
    generator: Generator,
    echo: Option<Echo>,
    _pass: Option<Link>,
    server_napi: u32,
    server_core: usize,
    /// The kernel module's threads.
    module: Option<Pinned>,
    filled: Option<u64>,
    // From here on the order of dropping matters: device, then Redis; see Pair.
    pair: Pair,
    redis: RedisServer,
    run_dir: TempDir,
}

struct Snapshot {
    at: Instant,
    totals: bench_totals,
    napi_ns: u64,
    redis_ns: u64,
    daemon_ns: u64,
    journal_ns: Option<u64>,
    core_ns: u64,
}

impl Instance {
    /// Builds everything up to the point where the generator can be started.
    pub fn build(
        plan: Plan,
        args: &CapacityArgs,
        erb: &Erb,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let pair = Pair::make()?;
        let redis = RedisServer::loaded(
            &pair.server,
            args.server_core,
            &plan.work,
            [plan.loaded, args.conns],
            interrupt,
        )?;
        let workload = Workload {
            work: plan.work,
            drawn: args.distribution,
            conns: args.conns,
            check_key: plan.server != Server::Echo,
            port: PORT,
        };
        let generator = Generator::attach(&pair.client, &pair.client_dev, &workload)?;
        let run_dir = tempfile::Builder::new().prefix("erb-bench-").tempdir()?;
        let mut instance = Self {
            watchers: None,
            boosted: None,
            generator,
            echo: None,
            _pass: None,
            server_napi: 0,
            server_core: args.server_core,
            module: None,
            filled: None,
            pair,
            redis,
            run_dir,
            plan,
        };
        instance.attach_server(erb)?;
        instance.pin_receive_threads(args)?;
        instance.fill()?;
        instance.close_it()?;
        instance.watch_it(args)?;
        instance.open_connections(args.conns, interrupt)?;
        Ok(instance)
    }

    /// The plan it was built by.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Keys that ERB said were in its cache before the runs; `None` if none were filled.
    pub fn filled(&self) -> Option<u64> {
        self.filled
    }

    /// By which ERB is asked; `None` for other servers.
    pub fn boost(&self) -> Option<&Boost> {
        self.boosted.as_ref().map(Boosted::boost)
    }

    /// What ERB says about itself; `None` for other servers.
    pub fn status(&self) -> Result<Option<serde_json::Value>> {
        self.boosted
            .as_ref()
            .map(|boosted| boosted.status_json())
            .transpose()
    }

    /// One run: start all loops, warm up, measure, stop all loops.
    pub fn run(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Run> {
        let watched = self.watchers.as_ref().map_or(0, Watchers::answers);
        let hits = self.hits()?;
        let name = self.plan.work.op.name();
        let calls = self.redis.calls(name)?;
        let replies = self.generator.totals()?.replies;
        self.generator.start()?;
        interrupt.sleep(WARM_UP)?;
        let before = self.snapshot()?;
        let stalled = self.watch(time, interrupt)?;
        let mut after = self.snapshot()?;
        self.generator.pause()?;
        let stuck = self.wait_until_parked(interrupt)?;
        if self.plan.server == Server::ErbWriteBack {
            if let Some(boosted) = &self.boosted {
                boosted.wait_until_drained()?;
                if matches!(self.plan.journal, Some(Sink::Daemon | Sink::Kmod)) {
                    boosted.wait_until_kept()?;
                }
            }
            after = self.snapshot()?;
        }
        self.generator.acknowledge()?;
        self.closed().map_or(Ok(()), Boosted::check_closed)?;
        if let Some(watchers) = &self.watchers {
            let now = watchers.answers();
            ensure!(now > watched, "nobody has watched");
        }
        let replies = self.generator.totals()?.replies - replies;
        let all = replies.max(1) as f64;
        let calls = self.redis.calls(name)? - calls;
        let mut run = difference(&before, &after)?;
        run.replies = replies;
        run.stalled_conns = stalled.union(&stuck).count() as u32;
        run.answered_by_redis = calls as f64 / all;
        if let (Some(before), Some(after)) = (hits, self.hits()?) {
            run.hit_ratio = Some(after.saturating_sub(before) as f64 / all);
        }
        Ok(run)
    }

    fn attach_server(&mut self, erb: &Erb) -> Result<()> {
        let pair = &self.pair;
        match self.plan.server {
            Server::Redis => {}
            Server::Echo => {
                let work = &self.plan.work;
                self.echo = Some(Echo::attach(&pair.server, &pair.server_dev, PORT, work)?);
            }
            server => {
                let options: Vec<&str> = self.plan.options.iter().map(String::as_str).collect();
                let request = BoostRequest {
                    netns: &pair.server,
                    device: &pair.server_dev,
                    tc_alone: server == Server::ErbTc,
                    options: &options,
                    redis: RedisServer::address(),
                    cache_size: &self.plan.cache_size,
                    folder: self.run_dir.path(),
                };
                let boosted = Boosted::begin(erb, &request).context("ERB could not be started")?;
                self.boosted = Some(boosted);
            }
        }
        if matches!(self.plan.server, Server::Redis | Server::ErbTc) {
            // Behind the boost, which refuses a device with an XDP program on it.
            self._pass = Some(attach_pass(&pair.server, &pair.server_dev)?);
        }
        Ok(())
    }

    /// After all XDP programs are attached; see [`Pair::receive_threads`].
    fn pin_receive_threads(&mut self, args: &CapacityArgs) -> Result<()> {
        let threads = self
            .pair
            .receive_threads(args.generator_core, args.server_core)?;
        self.server_napi = threads.server;
        for pid in self.daemon_pids() {
            cputime::pin(pid, args.server_core)?;
        }
        if self.plan.journal == Some(Sink::Kmod) {
            self.module = Some(Pinned::of(&module_threads()?, args.server_core)?);
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let Some(boosted) = &self.boosted else {
            return Ok(());
        };
        if self.plan.filled > 0 {
            let filled = boosted
                .fill(self.plan.work.op, (0..self.plan.filled).map(key))
                .context("ERB could not fill its cache")?;
            self.filled = Some(filled);
        }
        boosted
            .set_fills(self.plan.fills)
            .context("ERB could not turn fills on or off")
    }

    fn close_it(&mut self) -> Result<()> {
        match self.closed() {
            Some(boosted) => boosted
                .close_cache()
                .context("ERB could not close its cache"),
            None => Ok(()),
        }
    }

    /// ERB, if its cache is to be closed.
    fn closed(&self) -> Option<&Boosted> {
        let boosted = self.boosted.as_ref();
        boosted.filter(|_| self.plan.server == Server::ErbClosed)
    }

    /// Behind the pinning: `erb top` is to run where all of the server does.
    fn watch_it(&mut self, args: &CapacityArgs) -> Result<()> {
        if let Some(boosted) = &self.boosted {
            if self.plan.server == Server::ErbWatched {
                let (netns, cores) = (&self.pair.server, [args.server_core, args.generator_core]);
                self.watchers = Some(Watchers::begin(boosted.boost(), netns, cores)?);
            }
        }
        Ok(())
    }

    /// Real handshakes and a first exchange on each connection; then only the generator speaks, and
    /// the sockets go without the server's hearing of it.
    fn open_connections(&mut self, conns: u32, interrupt: &Interrupt) -> Result<()> {
        let sockets: Vec<TcpStream> = run_in(&self.pair.client, || {
            let mut sockets = Vec::new();
            for first in (0..conns).step_by(OPENED_AT_ONCE as usize) {
                interrupt.check()?;
                sockets.extend(open(first..conns.min(first + OPENED_AT_ONCE))?);
            }
            Ok(sockets)
        })?;
        interrupt.sleep(LAST_ACK)?;
        let unlearned = self.generator.unlearned()?;
        ensure!(
            unlearned == 0,
            "{unlearned} connections without TCP timestamps; are they off?"
        );
        if self.plan.server == Server::ErbWriteBack {
            self.boosted.iter().try_for_each(Boosted::wait_until_open)?;
        }
        let unseen = self.boosted.as_ref().map_or(Ok(0), Boosted::unseen)?;
        ensure!(
            unseen == 0,
            "ERB has no room for {unseen} of the connections, as this machine has too little memory \
             for its table: use fewer --conns"
        );
        self.pair.silence_client()?;
        drop(sockets);
        if let Some(echo) = &mut self.echo {
            echo.enable()?;
        }
        Ok(())
    }

    fn daemon_pids(&self) -> Vec<u32> {
        let top = self.watchers.iter().map(Watchers::pid);
        self.boosted.iter().map(Boosted::pid).chain(top).collect()
    }

    fn hits(&self) -> Result<Option<u64>> {
        let boosted = self
            .boosted
            .as_ref()
            .filter(|_| !self.plan.work.op.writes());
        boosted
            .map(|boosted| boosted.hits(self.plan.work.op.name()))
            .transpose()
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let thread_ns = self.journal_thread_ns()?;
        let module_ns = self
            .module
            .as_ref()
            .map_or(Ok(0), |module| cputime::of_processes(&module.pids()))?;
        let daemon_ns = cputime::of_processes(&self.daemon_pids())?;
        Ok(Snapshot {
            totals: self.generator.totals()?,
            napi_ns: cputime::of_process(self.server_napi)?,
            redis_ns: cputime::of_process(self.redis.pid())?,
            daemon_ns: daemon_ns.saturating_sub(thread_ns.unwrap_or(0)),
            journal_ns: thread_ns.map(|thread_ns| thread_ns + module_ns),
            core_ns: cputime::of_core(self.server_core)?,
            at: Instant::now(),
        })
    }

    /// Of the daemon's thread that sees to the journal; none: it is not measured.
    fn journal_thread_ns(&self) -> Result<Option<u64>> {
        let of = |boosted: &Boosted| cputime::of_thread(boosted.pid(), JOURNAL_THREAD);
        let measured = self.boosted.iter().filter(|_| self.plan.journal.is_some());
        measured.map(of).next().transpose()
    }

    /// Waits and wakes lanes that stand still; returns the connections on which they did.
    fn watch(&self, time: Duration, interrupt: &Interrupt) -> Result<BTreeSet<u32>> {
        let end = Instant::now() + time;
        let mut stalled = BTreeSet::new();
        let mut before = self.generator.replies()?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            interrupt.sleep(left.min(STALL))?;
            if left < STALL {
                return Ok(stalled);
            }
            let now = self.generator.replies()?;
            let still = before.iter().zip(&now).enumerate();
            let still = still.filter(|(_, (a, b))| a == b).map(|(lane, _)| lane);
            let still: Vec<usize> = still.collect();
            stalled.extend(self.generator.wake(&still)?);
            before = now;
        }
    }

    /// Waits until nothing is outstanding; returns the connections on which the request was sent again for it.
    fn wait_until_parked(&self, interrupt: &Interrupt) -> Result<BTreeSet<u32>> {
        let began = Instant::now();
        let mut sent = began;
        let mut stuck = BTreeSet::new();
        loop {
            let left = self.generator.in_flight()?;
            if left.is_empty() {
                return Ok(stuck);
            }
            ensure!(
                began.elapsed() < PAUSE_TIMEOUT,
                "{} of the connections got no reply for {} s, although the request was sent again every {} ms; the \
                 server or ERB has lost them",
                left.len(),
                PAUSE_TIMEOUT.as_secs(),
                STALL.as_millis()
            );
            if sent.elapsed() >= STALL {
                sent = Instant::now();
                self.generator.resend(&left)?;
                stuck.extend(left);
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        drop(self.watchers.take());
        if let Some(boosted) = self.boosted.take() {
            if let Err(error) = boosted.detach() {
                eprintln!(
                    "could not detach ERB from {}: {error:#}",
                    self.pair.server_dev
                );
            }
        }
    }
}

fn module_threads() -> Result<Vec<u32>> {
    let pids = process::named(MODULE_THREADS)?;
    ensure!(
        !pids.is_empty(),
        "the kernel module's threads ({MODULE_THREADS}*) are not seen here: is this a container?"
    );
    Ok(pids)
}

fn difference(before: &Snapshot, after: &Snapshot) -> Result<Run> {
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let requests = after.totals.replies - before.totals.replies;
    ensure!(
        requests > 0,
        "no request was answered in {seconds:.1} s, in which the server's receive thread had a processor \
         for {} ms and Redis for {} ms: where other work has the processors, use longer --seconds",
        after.napi_ns.saturating_sub(before.napi_ns) / 1_000_000,
        after.redis_ns.saturating_sub(before.redis_ns) / 1_000_000
    );
    let per_request =
        |before: u64, after: u64| after.saturating_sub(before) as f64 / requests as f64;
    let napi_ns = per_request(before.napi_ns, after.napi_ns);
    let redis_ns = per_request(before.redis_ns, after.redis_ns);
    let daemon_ns = per_request(before.daemon_ns, after.daemon_ns);
    let both = before.journal_ns.zip(after.journal_ns);
    let journal_ns = both.map(|(before, after)| per_request(before, after));
    let cpu_ns = napi_ns + redis_ns + daemon_ns + journal_ns.unwrap_or(0.0);
    ensure!(
        cpu_ns > 0.0,
        "the server used no processor time; is CONFIG_SCHED_INFO missing?"
    );
    let core_ns = after.core_ns.saturating_sub(before.core_ns) as f64;
    let foreign = ((core_ns - cpu_ns * requests as f64) / (seconds * 1e9)).max(0.0);
    Ok(Run {
        seconds,
        requests,
        replies: requests,
        requests_per_s: requests as f64 / seconds,
        server_cpu_ns_per_request: cpu_ns,
        requests_per_core_s: 1e9 / cpu_ns,
        napi_ns_per_request: napi_ns,
        redis_ns_per_request: redis_ns,
        daemon_ns_per_request: daemon_ns,
        journal_ns_per_request: journal_ns,
        hit_ratio: None,
        answered_by_redis: 0.0,
        foreign_share: foreign,
        mismatches: after.totals.mismatches - before.totals.mismatches,
        stalled_conns: 0,
        repeated: after.totals.repeated - before.totals.repeated,
        pieces: after.totals.pieces - before.totals.pieces,
        odd: after.totals.odd - before.totals.odd,
        no_room: after.totals.no_room - before.totals.no_room,
    })
}

/// Opens these connections and exchanges PING and a GET that misses on each.
fn open(indices: Range<u32>) -> Result<Vec<TcpStream>> {
    let open = |index| {
        connect((BENCH_PORT_BASE + index) as u16)
            .with_context(|| format!("could not open connection {index} to the server"))
    };
    let mut streams: Vec<TcpStream> = indices.map(open).collect::<Result<_>>()?;
    for (request, reply) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], &b"+PONG\r\n"[..]),
        (
            &b"*2\r\n$3\r\nGET\r\n$13\r\nbench:missing\r\n"[..],
            &b"$-1\r\n"[..],
        ),
    ] {
        for stream in &mut streams {
            stream.write_all(request)?;
        }
        let mut got = vec![0; reply.len()];
        for stream in &mut streams {
            stream
                .read_exact(&mut got)
                .context("no reply to the warm-up")?;
            ensure!(
                got == reply,
                "odd reply to the warm-up: {}",
                String::from_utf8_lossy(&got)
            );
        }
    }
    Ok(streams)
}

/// Connects from a fixed port.
fn connect(port: u16) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Closed by reset: no FIN that its kernel would repeat.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&SocketAddr::from((CLIENT_IP, port)).into())?;
    socket.connect_timeout(&RedisServer::address().into(), READ_TIMEOUT)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
#[path = "instance_tests.rs"]
mod tests;
