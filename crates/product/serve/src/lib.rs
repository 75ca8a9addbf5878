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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
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
use crate::worker::{Plan, Room};

/// Connections that may wait to be accepted; the kernel takes less if `net.core.somaxconn` is.
const BACKLOG: i32 = 4096;
/// Files that a thread keeps open for the next request, where there are descriptors enough.
const FILES_MAX: u64 = 256;
/// Descriptors of a thread for other things: its events, its listener, its share of the process's own.
const OTHER_FILES: u64 = 16;

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

/// Tells what a server has counted. It keeps nothing of the server alive.
#[derive(Clone, Debug)]
pub struct Reporter {
    address: String,
    threads: usize,
    counters: Arc<Counters>,
    sender: Weak<Sender>,
}

impl Reporter {
    /// What was counted so far; nothing once the server has ended.
    #[must_use]
    pub fn report(&self) -> Option<Serve> {
        let sender = self.sender.upgrade()?;
        Some(self.counters.report(&self.address, self.threads, &sender))
    }
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
        let (room, taken) = (room(config), Arc::default());
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
                room,
                taken: Arc::clone(&taken),
                stop: Arc::clone(&server.stop),
                woken: Arc::clone(&server.woken),
            };
            let thread = thread::Builder::new().name(format!("serve-{number}"));
            let pinned = config.threads > 1;
            let thread = thread.spawn(move || {
                if pinned {
                    pin(number);
                }
                let _ends = EndsAll(Arc::clone(&plan.stop), Arc::clone(&plan.woken));
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

    /// Tells the same to other threads, as long as it serves.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter {
            address: self.address.to_string(),
            threads: self.thread_count,
            counters: Arc::clone(&self.counters),
            sender: Arc::downgrade(&self.sender),
        }
    }

    /// Whether it ends by itself, because a thread has failed: [`Self::stop`] tells why.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
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
        tell_all(&self.stop, &self.woken);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A thread that ends, by a failure or a panic too, ends all: its share of the connections would never be accepted.
struct EndsAll(Arc<AtomicBool>, Arc<EventFd>);

impl Drop for EndsAll {
    fn drop(&mut self) {
        tell_all(&self.0, &self.1);
    }
}

fn tell_all(stop: &AtomicBool, woken: &EventFd) {
    stop.store(true, Ordering::Relaxed);
    // It can only fail when it was written to 2^64 times.
    let _ = woken.write(1);
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

/// What there may be, as far as there are descriptors for it.
fn room(config: &Config) -> Room {
    let (threads, wanted) = (config.threads.max(1) as u64, config.connections_max.max(1));
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return room_of(u64::MAX, threads, wanted);
    };
    let need = wanted as u64 + threads * (2 * FILES_MAX + OTHER_FILES);
    let soft = if soft < need && setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard).is_ok() {
        need.min(hard)
    } else {
        soft
    };
    room_of(soft, threads, wanted)
}

/// Of so many descriptors. A file that is kept no more may still be sent from, so each counts twice.
fn room_of(descriptors: u64, threads: u64, wanted: usize) -> Room {
    let files = FILES_MAX.min(descriptors / threads / 8).max(1);
    let others = threads * (2 * files + OTHER_FILES);
    let clients = descriptors.saturating_sub(others).max(1);
    Room {
        clients: wanted.min(usize::try_from(clients).unwrap_or(usize::MAX)),
        files: files as usize,
    }
}

/// Gives the thread a processor, if it may have that one.
fn pin(number: usize) {
    let mut processors = CpuSet::new();
    if processors.set(number).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &processors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_are_shared_by_clients_and_files() {
        let room = |descriptors| room_of(descriptors, 2, 8192);
        let is = |clients, files| Room { clients, files };
        assert_eq!(room(1 << 20), is(8192, 256));
        assert_eq!(room(1024), is(736, 64));
        assert_eq!(room(128), is(64, 8));
        assert_eq!(room(3), is(1, 1));
    }

    #[test]
    fn a_thread_that_panics_ends_the_others() {
        let (stop, woken) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(EventFd::new().expect("one")),
        );
        let ends = EndsAll(Arc::clone(&stop), Arc::clone(&woken));
        let thread = thread::spawn(move || {
            let _ends = ends;
            panic!("as a thread that fails");
        });
        assert!(thread.join().is_err() && stop.load(Ordering::Relaxed));
        assert_eq!(woken.read(), Ok(1));
    }
}
