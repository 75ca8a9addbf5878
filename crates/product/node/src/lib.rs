// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storage node: [`erb_store`]'s engine over a file or block device, served by [`erb_nvme`]'s target.
//!
//! - [`format`] makes a store, [`grow`] makes it larger, also while a node serves it, [`check`] recovers one without
//!   writing, [`check_all`] reads all of it too, [`repair`] makes one open that does not, [`Node`] serves one, [`stop`]
//!   ends a node.
//! - [`HostsFile`] has the hosts that may connect over a network, with their secrets and roles.
//!
//! What does not stand yet: a thread for each shard.
//!
//! Invariants, each held by the file that is named:
//! 1. A store has one node: `file.rs`.
//! 2. What is acknowledged is durable, and what was read no crash takes back: `backend.rs`, over the engine's.
//! 3. Memory that the kernel uses is there until it has done with it: `disk.rs`.
//! 4. Peers have bounds, and none of them can end the node: `server.rs`, over the target's.
//! 5. Whoever comes from another machine has proved that he knows his secret, unless the operator has said that nobody
//!    has to: [`Node::open`].
//! 6. A host that was removed is not let in again by an older copy of the file: [`Node::open`], `server.rs`.

mod backend;
mod buffer;
mod computing;
mod disk;
mod engine;
mod error;
mod file;
mod grow;
mod hosts;
mod listing;
mod local;
mod locks;
mod private;
mod reads;
mod server;
mod status;
mod wake;
mod watch;
mod words;
mod writes;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_nvme::auth::{Policy, Secrets};
use erb_nvme::limits::Limits;
use erb_nvme::target::{Config, Namespace, Port, Proof};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

pub use erb_nvme::backend::{Answer, Operation, Refused, Retention};
pub use erb_nvme::target::Role;
pub use erb_store::Rot;
pub use erb_store::growth::NoGrowth;
pub use error::{Error, Result};
pub use file::{Format, NEW_RETENTION, format, format_keeping, layout};
pub use grow::{GROWTH_SIGNAL, Grow, Grown, grow};
pub use hosts::{HostsFile, NoHosts};
pub use local::{Bare, Local};
pub use private::{read_secrets, write_private};
pub use server::Note;
pub use status::Asking;

use nix::sys::resource::{Resource, getrlimit};

use backend::Store;
use buffer::Aligned;
use engine::{Engine, Recovery};
use file::StoreFile;
use server::{Hosts, Server, SystemRandom};
use status::Asked;
use wake::Wake;

/// The subsystem's name, if nobody chooses another.
pub const NQN: &str = "nqn.2026-11.org.erb:node";
/// The port of NVMe/TCP.
pub const PORT: u16 = 4420;
/// A node has up to 20 files open itself, and those who watch it have 32.
const DESCRIPTORS_MIN: u64 = 64;
/// So long a repair may take to write, once it has read.
const REPAIR_PATIENCE: Duration = Duration::from_secs(120);
/// The one namespace.
pub const NAMESPACE: u32 = 1;

/// How a node serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The store: a file or block device.
    pub path: PathBuf,
    /// Where it listens. Port 0: a free one.
    pub address: SocketAddr,
    /// The subsystem's name.
    pub nqn: String,
    /// Memory of the index.
    pub memory_bytes: u64,
    /// Memory of values that were read or written lately; 0: none are kept.
    pub value_cache_bytes: u64,
    /// What whoever connects may do, where there is no file of hosts.
    pub role: Role,
    /// Who may connect, and has to prove himself. Without it only this machine may, and proves nothing.
    pub hosts: Option<PathBuf>,
    /// Without a file of hosts everybody may connect, from everywhere.
    pub is_open_to_all: bool,
    /// The wall clock is right, whatever the store has seen.
    pub is_clock_sure: bool,
}

/// What is in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Keys, deleted ones that are still kept too.
    pub keys: u64,
    /// Shards.
    pub shards: u16,
    /// Bytes of the store.
    pub store_bytes: u64,
    /// Bytes of segments, and of those that are used.
    pub size_bytes: u64,
    /// See there.
    pub used_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Memory that the index takes.
    pub memory_bytes: u64,
    /// Roll backs that wait for a checkpoint.
    pub roll_backs: u64,
    /// Moments that snapshots hold.
    pub snapshots: u64,
    /// What recovery has found to be damaged among what was written last; [`check_all`]: and everywhere else.
    pub damaged: Vec<Rot>,
    /// A repair has left out entries of the control log, from this byte of the store on.
    pub lost_entries_at: Option<u64>,
    /// How long recovery took.
    pub recovery: Duration,
}

fn contents(store: &erb_store::opened::Opened, recovery: Duration) -> Contents {
    let (state, layout) = (store.control.state(), store.layout());
    let account = state.account();
    let segments = |count: u32| u64::from(count) * layout.segment_bytes;
    let shards = || store.shards.iter().map(|shard| shard.versions());
    Contents {
        keys: shards().map(|versions| versions.keys_len() as u64).sum(),
        shards: layout.shards,
        store_bytes: layout.store_bytes,
        size_bytes: segments(layout.segments()),
        used_bytes: segments(account.logs + account.checkpoints),
        segment_bytes: layout.segment_bytes,
        memory_bytes: shards()
            .map(|versions| versions.memory_bytes() as u64)
            .sum(),
        roll_backs: state.rows.len() as u64,
        snapshots: state.retention.snapshots().count() as u64,
        damaged: store
            .shards
            .iter()
            .flat_map(|shard| shard.met_by_start().to_vec())
            .collect(),
        lost_entries_at: store.lost_entries_at,
        recovery,
    }
}

/// Recovers a store without writing anything: whether it opens, and what is in it.
///
/// # Errors
/// It does not open; a node has it.
pub fn check(path: &Path) -> Result<Contents> {
    let begun = Instant::now();
    let file = StoreFile::open(path)?;
    let store = engine::recover(&file, u64::MAX, 0, Recovery::Sound)?;
    Ok(contents(&store, begun.elapsed()))
}

/// The same, and reads all that its logs hold, as the scrub does. `tell` gets how many bytes were read, and of how many.
///
/// # Errors
/// As [`check`].
pub fn check_all(path: &Path, tell: &mut dyn FnMut(u64, u64)) -> Result<Contents> {
    let begun = Instant::now();
    let file = StoreFile::open(path)?;
    let mut store = engine::recover(&file, u64::MAX, 0, Recovery::Sound)?;
    let mut contents = contents(&store, begun.elapsed());
    let all = store.shards.iter().map(|shard| shard.scrubbed_bytes());
    let (mut read_bytes, all) = (0, all.sum());
    for shard in &mut store.shards {
        while let Some(read) = shard.take_scrub_of_all() {
            let bytes = file.read(read.address, read.bytes);
            shard.scrub_done(bytes.as_ref().map(Aligned::slice));
            read_bytes += read.bytes as u64;
            tell(read_bytes.min(all), all);
        }
        let met = shard.met_by_start();
        let found = shard.rotten().filter(|rot| !met.contains(rot)).cloned();
        contents.damaged.extend(found);
    }
    Ok(contents)
}

/// What a store would have that is opened without what cannot be read of its logs. Nothing is written.
///
/// # Errors
/// It does not open so either; a node has it.
pub fn check_repair(path: &Path) -> Result<Contents> {
    let begun = Instant::now();
    let file = StoreFile::open(path)?;
    let store = engine::recover(&file, u64::MAX, 0, Recovery::Repair)?;
    Ok(contents(&store, begun.elapsed()))
}

/// Opens a store without what cannot be read of its logs, and makes it one that opens.
///
/// # Errors
/// It does not open so either; a node has it; it cannot be written.
pub fn repair(path: &Path, is_clock_sure: bool) -> Result<Contents> {
    let begun = Instant::now();
    let mut engine = Engine::open(path, u64::MAX, is_clock_sure, Recovery::Repair)?;
    let contents = contents(&engine.store, begun.elapsed());
    engine.checkpoint(REPAIR_PATIENCE)?;
    engine.end(REPAIR_PATIENCE)?;
    Ok(contents)
}

/// Secrets from the system's random numbers, for both directions.
#[must_use]
pub fn new_secrets() -> Secrets {
    Secrets::drawn(&mut SystemRandom, true)
}

/// The process of the node that has a store.
///
/// # Errors
/// The file is not there.
pub fn holder(path: &Path) -> Result<Option<i32>> {
    file::holder(path)
}

/// Tells the node that has a store to end, and waits for it. False: it has not ended in time.
///
/// A process that does not wait to be told is no node, and is left alone: it makes a store, checks one, or makes one
/// larger.
///
/// # Errors
/// There is no node, or it cannot be told.
pub fn stop(path: &Path, patience: Duration) -> Result<bool> {
    let Some(process) = file::holder(path)? else {
        return Err(Error::NotRunning(path.to_owned()));
    };
    if !locks::catches(process, Signal::SIGTERM) {
        let path = path.to_owned();
        return Err(match file::holder(&path)? {
            Some(process) => Error::NotANode { path, process },
            None => Error::NotRunning(path),
        });
    }
    let told = nix::sys::signal::kill(Pid::from_raw(process), Signal::SIGTERM);
    told.map_err(|error| error::system("the node cannot be told to end")(error.into()))?;
    let begun = Instant::now();
    while file::holder(path)? == Some(process) {
        if begun.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// A node whose store is open and whose port listens.
pub struct Node {
    engine: Engine,
    listener: TcpListener,
    address: SocketAddr,
    config: Config,
    contents: Contents,
    hosts: Option<Hosts>,
    wake: Wake,
    asking: Asking,
    asked: Asked,
    growth: Option<UnixStream>,
}

impl Node {
    /// Opens the store and begins to listen. Whoever connects is answered once it [runs](Self::run).
    ///
    /// # Errors
    /// The store does not open, the address is not to be had, or the file of hosts is not to be used.
    pub fn open(options: &Options) -> Result<Self> {
        let begun = Instant::now();
        if !hosts::is_subsystem_nqn(&options.nqn) {
            return Err(Error::SubsystemNqn(options.nqn.clone()));
        }
        // With fewer it would begin to serve, and then take nobody in.
        let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        if most < DESCRIPTORS_MIN {
            return Err(Error::Descriptors(most));
        }
        let hosts = options.hosts.as_deref().map(HostsFile::read).transpose()?;
        let is_known = hosts.is_some() || options.is_open_to_all;
        if !is_known && !options.address.ip().to_canonical().is_loopback() {
            return Err(Error::NotLoopback(options.address));
        }
        let listener = server::listen(options.address)?;
        let address = listener
            .local_addr()
            .map_err(error::system("the socket has no address"))?;
        let mut engine = Engine::open(
            &options.path,
            options.memory_bytes,
            options.is_clock_sure,
            Recovery::Sound,
        )?;
        engine.set_value_cache(options.value_cache_bytes);
        let hosts = options.hosts.clone().zip(hosts);
        if let Some((path, hosts)) = &hosts {
            engine.serve_hosts(path, hosts)?;
        }
        let contents = contents(&engine.store, begun.elapsed());
        let mut config = config(options, address, contents.size_bytes);
        let hosts = hosts.map(|(path, hosts)| {
            config.hosts.clone_from(&hosts.hosts);
            Hosts { path, hosts }
        });
        let wake = Wake::new()?;
        let (asking, asked) = Asking::new(wake.clone());
        Ok(Self {
            engine,
            listener,
            address,
            config,
            contents,
            hosts,
            wake,
            asking,
            asked,
            growth: None,
        })
    }

    /// The store grows to what its file has become, whenever something can be read from this. The file has to have its
    /// blocks by then.
    #[must_use]
    pub fn growing(self, asked: UnixStream) -> Self {
        let growth = Some(asked);
        Self { growth, ..self }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks it how it is, once it runs.
    #[must_use]
    pub fn asking(&self) -> Asking {
        self.asking.clone()
    }

    /// What is in its store.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Serves until `stop` can be read from.
    ///
    /// # Errors
    /// A write has failed, or the system refuses something.
    pub fn run(self, stop: BorrowedFd<'_>) -> Result<()> {
        self.run_and_tell(stop, &mut |_| {})
    }

    /// The same, and tells what an operator may want to know.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_and_tell(self, stop: BorrowedFd<'_>, tell: &mut dyn FnMut(Note)) -> Result<()> {
        let store = Store::new(self.engine);
        let (config, hosts) = (self.config, self.hosts);
        let watched = (self.wake, self.asked);
        let server = Server::new(
            self.listener,
            config,
            store,
            hosts,
            self.growth,
            stop,
            watched,
        )?;
        server.run(stop, tell)
    }
}

fn config(options: &Options, address: SocketAddr, size_bytes: u64) -> Config {
    Config {
        nqn: options.nqn.clone(),
        serial: "ERB".to_owned(),
        model: "ERB storage node".to_owned(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        namespaces: vec![Namespace {
            id: NAMESPACE,
            nguid: *b"ERB-NAMESPACE--1",
            uuid: *b"ERB-NAMESPACE--1",
            size_bytes,
        }],
        hosts: Vec::new(),
        guests: match options.hosts {
            Some(_) => BTreeMap::new(),
            None => [(NAMESPACE, options.role)].into(),
        },
        // Also over loopback: a proxy there would bring everybody in.
        proof: match (&options.hosts, options.is_open_to_all) {
            (Some(_), _) => Proof::Always,
            (None, false) => Proof::NotOnLoopback,
            (None, true) => Proof::Never,
        },
        policy: Policy::default(),
        ports: vec![Port {
            address: address.ip().to_string(),
            port: address.port(),
        }],
        limits: Limits::default(),
    }
}
