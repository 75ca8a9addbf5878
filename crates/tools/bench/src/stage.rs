// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that ordinary clients can reach over `lo` or a veth: its namespaces, its threads on their
//! processors, and what it all has cost.
//!
//! On `lo` the sender's system call also does the receiver's work in the kernel, ERB's TC programs
//! among it. So who paid says little there: what counts is the processor time of both sides
//! together, less of which is left for others, and how many requests one core of client gets.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Context, Result};
use erb_lab::netns::run_in;
use erb_lab::{Erb, process};
use libbpf_rs::Link;
use serde::Serialize;
use tempfile::TempDir;

use crate::args::{Over, Server};
use crate::boosted::{BoostRequest, Boosted, Packets};
use crate::cputime;
use crate::generator::attach_pass;
use crate::netns::Pair;
use crate::redis_server::{PORT, RedisServer};

/// The device of clients on the server's own machine.
const LOOPBACK: &str = "lo";

/// What stages differ by.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// Not echo, which keeps no connections.
    pub server: Server,
    /// Device between clients and server.
    pub over: Over,
    /// Processors of the server's side.
    pub server_cores: &'a [usize],
    /// Those of the clients; their receive thread has the first.
    pub client_cores: &'a [usize],
    /// Cache given to ERB.
    pub cache_size: &'a str,
}

/// A server that can be asked; everything is undone when it is dropped.
pub struct Stage {
    address: SocketAddr,
    clients: String,
    boosted: Option<Boosted>,
    server_pids: Vec<u32>,
    client_pids: Vec<u32>,
    cores: BTreeSet<usize>,
    _pass: Vec<Link>,
    // From here on the order of dropping matters: device, then Redis; see Pair.
    pair: Pair,
    redis: RedisServer,
    run_dir: TempDir,
}

/// Processor time so far, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    at: Instant,
    server: u64,
    client: u64,
    softirq: u64,
    /// By anybody, on the processors of both sides.
    cores: u64,
}

/// Processor time per request, in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// Of both sides: the sum of the three below.
    pub cpu_ns_per_request: f64,
    /// Share of redis-server, ERB's daemon and, on a veth, the server's receive thread.
    pub server_ns_per_request: f64,
    /// Share of the client and, on a veth, its receive thread.
    pub client_ns_per_request: f64,
    /// Share of the kernel's softirq threads.
    pub softirq_ns_per_request: f64,
    /// Share of the time for which the processors of both sides worked for anybody else. It makes all
    /// slower, and by cold caches dearer.
    pub foreign_share: f64,
}

impl Spent {
    /// What `requests` have cost since an earlier look; the clients' own threads spent `own`
    /// nanoseconds.
    pub fn since(&self, before: &Self, own: u64, requests: u64, stage: &Stage) -> Cost {
        let server = (self.server - before.server) as f64;
        let client = (self.client - before.client + own) as f64;
        let softirq = (self.softirq - before.softirq) as f64;
        let all = server + client + softirq;
        let foreign = (self.cores - before.cores) as f64 - all;
        let time = (self.at - before.at).as_nanos() as f64 * stage.cores.len() as f64;
        let requests = requests as f64;
        Cost {
            cpu_ns_per_request: all / requests,
            server_ns_per_request: server / requests,
            client_ns_per_request: client / requests,
            softirq_ns_per_request: softirq / requests,
            foreign_share: (foreign / time).max(0.0),
        }
    }
}

impl Stage {
    /// Builds it; `redis` starts a loaded Redis in the namespace that it is given.
    pub fn build(
        scene: &Scene<'_>,
        erb: &Erb,
        redis: impl FnOnce(&str) -> Result<RedisServer>,
    ) -> Result<Self> {
        let pair = Pair::make()?;
        let redis = redis(&pair.server)?;
        let run_dir = tempfile::Builder::new().prefix("erb-bench-").tempdir()?;
        let (address, clients) = match scene.over {
            Over::Lo => ((Ipv4Addr::LOCALHOST, PORT).into(), &pair.server),
            Over::Veth => (RedisServer::address(), &pair.client),
        };
        let mut stage = Self {
            address,
            clients: clients.clone(),
            boosted: None,
            server_pids: vec![redis.pid()],
            client_pids: Vec::new(),
            cores: [scene.server_cores, scene.client_cores]
                .concat()
                .into_iter()
                .collect(),
            _pass: Vec::new(),
            pair,
            redis,
            run_dir,
        };
        if scene.server.boosted() {
            stage.boost(scene, erb)?;
        }
        if scene.over == Over::Veth {
            stage.set_up_veth(scene)?;
        }
        Ok(stage)
    }

    fn boost(&mut self, scene: &Scene<'_>, erb: &Erb) -> Result<()> {
        let request = BoostRequest {
            netns: &self.pair.server,
            device: match scene.over {
                Over::Lo => LOOPBACK,
                Over::Veth => &self.pair.server_dev,
            },
            tc_alone: scene.server == Server::ErbTc,
            redis: self.address,
            cache_size: scene.cache_size,
            options: scene.server.options(),
            folder: self.run_dir.path(),
        };
        let boosted = Boosted::begin(erb, &request).context("ERB could not be started")?;
        let pid = self.boosted.insert(boosted).pid();
        self.server_pids.push(pid);
        cputime::pin_to(pid, scene.server_cores)
    }

    fn set_up_veth(&mut self, scene: &Scene<'_>) -> Result<()> {
        let pair = &self.pair;
        // Linux does not wake a veth for XDP_TX without an XDP program on it, and without one the
        // sender's system call does the receiver's work. Behind the boost, which refuses a device
        // that has one.
        self._pass
            .push(attach_pass(&pair.client, &pair.client_dev)?);
        if matches!(scene.server, Server::Redis | Server::ErbTc) {
            self._pass
                .push(attach_pass(&pair.server, &pair.server_dev)?);
        }
        let threads = pair.receive_threads(scene.client_cores[0], scene.server_cores[0])?;
        cputime::pin_to(threads.server, scene.server_cores)?;
        self.client_pids.push(threads.client);
        self.server_pids.push(threads.server);
        Ok(())
    }

    /// Runs `work` where the clients are; it is given the server's address.
    pub fn among_clients<T: Send>(
        &self,
        work: impl FnOnce(SocketAddr) -> Result<T> + Send,
    ) -> Result<T> {
        run_in(&self.clients, || work(self.address))
    }

    /// The clients' namespace, and the server's address as they use it.
    pub fn clients(&self) -> (&str, SocketAddr) {
        (&self.clients, self.address)
    }

    /// ERB, if it is there.
    pub fn boosted(&self) -> Option<&Boosted> {
        self.boosted.as_ref()
    }

    /// Redis.
    pub fn redis(&self) -> &RedisServer {
        &self.redis
    }

    /// Commands of this name that ERB has answered; none without it.
    pub fn hits(&self, command: &str) -> Result<Option<u64>> {
        self.boosted.as_ref().map(|it| it.hits(command)).transpose()
    }

    /// Packets that ERB has answered; none without it.
    pub fn packets(&self) -> Result<Option<Packets>> {
        self.boosted.as_ref().map(Boosted::packets).transpose()
    }

    /// Processor time so far, without the clients' own threads.
    pub fn spent(&self) -> Result<Spent> {
        let cores = self.cores.iter().map(|&core| cputime::of_core(core));
        Ok(Spent {
            at: Instant::now(),
            cores: cores.sum::<Result<_>>()?,
            server: cputime::of_processes(&self.server_pids)?,
            client: cputime::of_processes(&self.client_pids)?,
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
