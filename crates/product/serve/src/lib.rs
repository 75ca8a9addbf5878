// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Static files over HTTP/1.1 (`erb serve`), sent by [`dax_send`]: from persistent memory and from the page
//! cache without a copy. No TLS, no listings, no rewriting: a web server stands in front where these are wanted.
//!
//! - `request`: heads; `conditions`: what a request gets of a file; `answer`: heads of answers. All pure.
//! - `files`: what a thread has open, with read leases.
//! - `client`: one connection; `worker`: one thread; `counts`: what they count.
//!
//! A body that ends is whole and of one version of its file. Otherwise the connection is reset.

mod answer;
mod client;
mod conditions;
mod counts;
mod files;
mod request;
mod worker;

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use dax_send::{Guard, Options, Sender};
use erb_report::Serve;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use socket2::{Domain, Protocol, Socket, Type};

use crate::counts::Counters;
use crate::worker::Plan;

/// Connections that may wait to be accepted; the kernel takes less if `net.core.somaxconn` is.
const BACKLOG: i32 = 4096;
/// Descriptors that a thread keeps for other things than clients.
const OTHER_FILES: u64 = 600;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder.
    pub root: PathBuf,
    /// Where to listen; port 0: a free one.
    pub address: SocketAddr,
    /// Threads, each with a processor of its own as far as there are.
    pub threads: usize,
    /// Connections in all.
    pub connections_max: usize,
    /// File that stands for a folder.
    pub index: String,
    /// Bounds of what is pinned, deadline, and how the page cache is sent.
    pub send: Options,
    /// Holds what is sent zero-copy, should this process be killed.
    pub guard: Option<Arc<Guard>>,
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be opened.
    #[error("cannot serve {}: {source}; give a folder that this user may read", path.display())]
    Root {
        /// As given.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The address cannot be used.
    #[error(
        "cannot listen on {address}: {source}; give another address by --listen, or end who has it"
    )]
    Address {
        /// As given.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

const fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System { what, source }
}

/// A server at work. Dropped, it ends within seconds; [`Server::stop`] waits for that.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    threads: Vec<JoinHandle<io::Result<()>>>,
    thread_count: usize,
    counters: Arc<Counters>,
    sender: Arc<Sender>,
    stop: Arc<AtomicBool>,
    woken: Arc<EventFd>,
}

impl Server {
    /// Listens and begins. Blocks SIGIO, which tells of leases, in the calling thread for good: call it before
    /// other threads begin, or SIGIO would end the process.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(config: &Config) -> Result<Self, Error> {
        let root = open_root(&config.root)?;
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGIO);
        signals
            .thread_block()
            .map_err(|error| system("SIGIO cannot be blocked")(error.into()))?;
        let clients_max = clients_max(config);
        let woken =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let woken = woken.map_err(|error| system("no eventfd")(error.into()))?;
        let mut server = Self {
            address: config.address,
            threads: Vec::new(),
            thread_count: config.threads.max(1),
            counters: Arc::default(),
            sender: match &config.guard {
                Some(guard) => Sender::guarded(config.send.clone(), Arc::clone(guard)),
                None => Sender::new(config.send.clone()),
            },
            stop: Arc::default(),
            woken: Arc::new(woken),
        };
        let address = config.address;
        let listener = listen(address).map_err(|source| Error::Address { address, source })?;
        server.address = listener.local_addr().map_err(system("no address"))?;
        for number in 0..config.threads.max(1) {
            let plan = Plan {
                root: Arc::clone(&root),
                listener: listener.try_clone().map_err(system("no descriptor"))?,
                sender: Arc::clone(&server.sender),
                counters: Arc::clone(&server.counters),
                index: config.index.clone(),
                clients_max,
                stop: Arc::clone(&server.stop),
                woken: Arc::clone(&server.woken),
            };
            let thread = thread::Builder::new().name(format!("serve-{number}"));
            let pinned = config.threads > 1;
            let thread = thread.spawn(move || {
                if pinned {
                    pin(number);
                }
                worker::run(plan)
            });
            server.threads.push(thread.map_err(system("no thread"))?);
        }
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was counted so far.
    #[must_use]
    pub fn report(&self) -> Serve {
        self.counters
            .report(&self.address.to_string(), self.thread_count, &self.sender)
    }

    /// Lets what is under way end, for some seconds; then ends. Returns what was counted.
    ///
    /// # Errors
    /// If a thread has failed.
    pub fn stop(mut self) -> Result<Serve, Error> {
        self.wake();
        let mut failed = None;
        for thread in std::mem::take(&mut self.threads) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(io::Error::other("a thread has panicked")),
            }
        }
        match failed {
            Some(error) => Err(system("serving has failed")(error)),
            None => Ok(self.report()),
        }
    }

    fn wake(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // It can only fail when it was written to 2^64 times.
        let _ = self.woken.write(1);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.wake();
    }
}

fn open_root(path: &Path) -> Result<Arc<File>, Error> {
    let error = |source| Error::Root {
        path: path.to_owned(),
        source,
    };
    let root = File::open(path).map_err(error)?;
    if !root.metadata().map_err(error)?.is_dir() {
        return Err(error(io::ErrorKind::NotADirectory.into()));
    }
    Ok(Arc::new(root))
}

/// One listener for all threads: ports that are shared would also be shared with another server.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connections of each thread, as many as there are descriptors for.
fn clients_max(config: &Config) -> usize {
    let threads = config.threads.max(1);
    let wanted = (config.connections_max / threads).max(1);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return wanted;
    };
    let need = threads as u64 * (wanted as u64 + OTHER_FILES);
    let soft = if soft < need && setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard).is_ok() {
        need.min(hard)
    } else {
        soft
    };
    let each = (soft / threads as u64).saturating_sub(OTHER_FILES).max(1);
    wanted.min(usize::try_from(each).unwrap_or(usize::MAX))
}

/// Gives the thread a processor, if it may have that one.
fn pin(number: usize) {
    let mut processors = CpuSet::new();
    if processors.set(number).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &processors);
    }
}
