// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's loop: connections, the target, the store. One thread, which sleeps until a socket, the ring or the stop
//! has something, or a tick is due.
//!
//! Invariants:
//! 1. A connection is read only while the target takes its bytes, so a peer that reads nothing is not read either.
//! 2. What a turn reads of a connection is bounded, so all have their turn.
//! 3. Without a descriptor for another connection it accepts nothing until the next tick: it does not spin.
//! 4. Who may connect is changed before anything more is read, so nothing that comes later of a host that was removed
//!    is done.
//! 5. A store grows when somebody has asked for that, to what its file has become: it is not looked at before.
//! 6. Who watches is answered between two turns, and never waited for.
//! 7. Told to stop, it accepts and reads nothing more, answers what it was asked, records where logs end, and then
//!    ends.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use erb_nvme::random::Random;
use erb_nvme::target::{Config, ConnectionId, Ended, Port, Target};
use erb_report::NodeStatus;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::backend::Store;
use crate::computing::Computing;
use crate::engine::micros;
use crate::error::{Error, Result, system};
use crate::hosts::HostsFile;
use crate::status::{self, Asked};
use crate::wake::Wake;
use crate::watch::Watch;

/// Bytes of a connection that a turn reads.
const READ_BYTES: usize = 256 << 10;
/// Parts of answers that one call writes: three for each get.
const PARTS: usize = 16;
/// Connections that a turn accepts.
const ACCEPTED: usize = 32;
/// Nobody sleeps longer: the target and the engine look at time.
const TICK_MS: u16 = 50;
/// Writes that wait for a segment or a freeze are tried again so soon.
const AGAIN_MS: u16 = 1;
/// For so long answers may take once the node was told to stop.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// For so long then logs may take to end. Without it the next start takes their ends for those of a crash.
const LAST_WRITES: Duration = Duration::from_secs(2);

const LISTENER: u64 = 0;
const RING: u64 = 1;
const STOP: u64 = 2;
const WAKE: u64 = 3;
const GROWTH: u64 = 4;
/// Connections' ids begin at 1.
const FIRST_CONNECTION: u64 = 4;

/// Failed authentications are told so often at most, with their number.
const FAILED_TOLD: Duration = Duration::from_secs(1);

/// What an operator may want to know.
#[derive(Debug)]
pub enum Note {
    /// Other hosts may connect from now on: so many.
    Hosts(usize),
    /// The file of hosts cannot be used, so those may connect who could before.
    HostsKept(Error),
    /// The store has become larger: it has so many bytes for keys.
    Grown(u64),
    /// It was asked to, and cannot.
    NotGrown(Error),
    /// Somebody has not proved himself, or is not listed; so many have failed since that was told last.
    Failed {
        /// From where the last of them came.
        from: IpAddr,
        /// Why.
        why: String,
        /// How many.
        count: u64,
    },
}

/// The file of hosts, and what was read of it.
pub(crate) struct Hosts {
    pub(crate) path: PathBuf,
    pub(crate) hosts: HostsFile,
}

/// Random numbers of the system.
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("a system that has given random numbers before");
    }
}

struct Peer {
    stream: TcpStream,
    from: IpAddr,
    /// What came and was not taken.
    kept: Vec<u8>,
    interest: EpollFlags,
    is_readable: bool,
    is_gone: bool,
}

pub(crate) struct Server {
    epoll: Epoll,
    listener: Option<TcpListener>,
    target: Target<Store>,
    peers: BTreeMap<ConnectionId, Peer>,
    begun: Instant,
    buffer: Vec<u8>,
    /// Told to stop, at this time.
    stopped: Option<Instant>,
    /// A connection could not be accepted: no descriptor was left.
    is_short: bool,
    wake: Wake,
    computing: Computing,
    watch: Option<(PathBuf, Watch)>,
    /// Failed authentications that were not told, and when some were told last.
    failed: Option<(IpAddr, String, u64)>,
    told: Option<Instant>,
    /// All of them.
    failures: u64,
    asked: Asked,
    /// Can be read from when the store shall grow.
    growth: Option<UnixStream>,
    shall_grow: bool,
    size_bytes: u64,
}

pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| Error::Address { address, source })
}

impl Server {
    pub(crate) fn new(
        listener: TcpListener,
        config: Config,
        store: Store,
        hosts: Option<Hosts>,
        growth: Option<UnixStream>,
        stop: BorrowedFd<'_>,
        (wake, asked): (Wake, Asked),
    ) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).and_then(|epoll| {
            let wakes = |number| EpollEvent::new(EpollFlags::EPOLLIN, number);
            epoll.add(&listener, wakes(LISTENER))?;
            // Each end rings anew, so nobody has to read what rang before.
            let rings = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            epoll.add(store.engine.disk().event(), EpollEvent::new(rings, RING))?;
            epoll.add(stop, wakes(STOP))?;
            epoll.add(&wake, wakes(WAKE))?;
            if let Some(growth) = &growth {
                epoll.add(growth, wakes(GROWTH))?;
            }
            Ok(epoll)
        });
        let epoll = epoll.map_err(|error| system("epoll does not work")(error.into()))?;
        let watch = match hosts {
            Some(Hosts { path, hosts }) => {
                Some((path.clone(), Watch::start(path, hosts, wake.clone())?))
            }
            None => None,
        };
        Ok(Self {
            computing: Computing::start(config.limits.computations, &wake)?,
            watch,
            wake,
            failed: None,
            told: None,
            failures: 0,
            asked,
            growth,
            shall_grow: false,
            size_bytes: store.engine.size_bytes(),
            epoll,
            listener: Some(listener),
            target: Target::new(config, store, Box::new(SystemRandom)),
            peers: BTreeMap::new(),
            begun: Instant::now(),
            buffer: vec![0; READ_BYTES],
            stopped: None,
            is_short: false,
        })
    }

    fn now_us(&self) -> u64 {
        micros(self.begun)
    }

    /// Serves until it is told to stop.
    pub(crate) fn run(mut self, stop: BorrowedFd<'_>, tell: &mut dyn FnMut(Note)) -> Result<()> {
        loop {
            self.sleep(stop)?;
            self.take_hosts(tell);
            self.answer_watchers();
            self.grow(tell);
            self.read();
            self.target.backend().turn()?;
            while let Some((id, computed)) = self.computing.done() {
                self.target.computed(id, computed);
            }
            while let Some((id, job)) = self.target.next_job() {
                self.computing.begin(id, job);
            }
            self.target.turn(self.now_us());
            // What the target has asked for goes on its way at once.
            self.target.backend().turn()?;
            self.write();
            self.end_peers();
            self.tell_failed(tell);
            if self.is_over() {
                return self.target.backend().engine.end(LAST_WRITES);
            }
        }
    }

    /// Who may connect has changed.
    fn take_hosts(&mut self, tell: &mut dyn FnMut(Note)) {
        let Some((path, watch)) = &self.watch else {
            return;
        };
        while let Some(told) = watch.told() {
            let taken = told.and_then(|hosts| {
                let engine = &mut self.target.backend().engine;
                engine.serve_hosts(path, &hosts).map(|()| hosts.hosts)
            });
            match taken {
                Ok(hosts) => {
                    tell(Note::Hosts(hosts.len()));
                    self.target.set_hosts(hosts);
                }
                Err(error) => tell(Note::HostsKept(error)),
            }
        }
    }

    fn answer_watchers(&mut self) {
        while let Ok(asker) = self.asked.try_recv() {
            let mut status = NodeStatus {
                up_ms: self.now_us() / 1_000,
                connections: self.peers.len() as u64,
                failed_authentications: self.failures,
                ..status::of_store(self.target.backend())
            };
            // The store does not hear of these.
            let denied = self.target.denied();
            status.refused.insert("role".to_owned(), denied);
            // Who has not waited is not told.
            let _ = asker.try_send(status);
        }
    }

    /// The store grows to what its file has become.
    fn grow(&mut self, tell: &mut dyn FnMut(Note)) {
        let engine = &mut self.target.backend().engine;
        if self.shall_grow {
            // One that is under way comes to its end first.
            let is_begun = engine.grow();
            self.shall_grow = matches!(is_begun, Ok(false));
            is_begun.map_or_else(|error| tell(Note::NotGrown(error)), |_| ());
        }
        let size_bytes = engine.size_bytes();
        if size_bytes > self.size_bytes {
            self.size_bytes = size_bytes;
            self.target.set_size(crate::NAMESPACE, size_bytes);
            tell(Note::Grown(size_bytes));
        }
    }

    fn tell_failed(&mut self, tell: &mut dyn FnMut(Note)) {
        let is_early = self.told.is_some_and(|told| told.elapsed() < FAILED_TOLD);
        if let Some((from, why, count)) = self.failed.take_if(|_| !is_early) {
            self.told = Some(Instant::now());
            tell(Note::Failed { from, why, count });
        }
    }

    fn is_over(&mut self) -> bool {
        let Some(stopped) = self.stopped else {
            return false;
        };
        let is_said = self
            .peers
            .keys()
            .all(|id| self.target.output(*id).is_empty());
        let is_done = self.target.backend().is_idle();
        is_said && is_done || stopped.elapsed() > LAST_WORDS
    }

    fn sleep(&mut self, stop: BorrowedFd<'_>) -> Result<()> {
        let store = self.target.backend();
        let timeout_ms = match (store.is_busy(), store.has_waiting()) {
            (true, _) => 0,
            (false, true) => AGAIN_MS,
            (false, false) => TICK_MS,
        };
        let mut events = [EpollEvent::empty(); 256];
        let woken = match self.epoll.wait(&mut events, EpollTimeout::from(timeout_ms)) {
            Ok(woken) => woken,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(system("epoll does not work")(error.into())),
        };
        if self.is_short {
            // Somebody may have left since.
            self.listen_again(true)?;
        }
        for event in &events[..woken] {
            match event.data() {
                LISTENER => self.accept()?,
                RING => {}
                WAKE => self.wake.woken(),
                GROWTH => self.hear_of_growth(),
                STOP => self.stop(stop),
                number => {
                    let id = ConnectionId(number - FIRST_CONNECTION);
                    if let Some(peer) = self.peers.get_mut(&id) {
                        let broken = EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
                        let flags = event.events();
                        peer.is_readable |= flags.intersects(EpollFlags::EPOLLIN | broken);
                        // Who has hung up both ways takes nothing either.
                        peer.is_gone |= flags.intersects(broken);
                    }
                }
            }
        }
        Ok(())
    }

    fn hear_of_growth(&mut self) {
        let Some(growth) = &mut self.growth else {
            return;
        };
        let mut asked = [0; 16];
        if !matches!(growth.read(&mut asked), Ok(1..)) {
            // Nobody can ask any more.
            let _ = self.epoll.delete(&*growth);
            self.growth = None;
            return;
        }
        self.shall_grow = true;
    }

    fn stop(&mut self, stop: BorrowedFd<'_>) {
        self.stopped.get_or_insert_with(Instant::now);
        self.listener = None;
        // It stays readable: nobody has to hear of it again.
        let _ = self.epoll.delete(stop);
    }

    /// Hears of new connections, or does not.
    fn listen_again(&mut self, hears: bool) -> Result<()> {
        self.is_short = !hears;
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let flags = if hears {
            EpollFlags::EPOLLIN
        } else {
            EpollFlags::empty()
        };
        let modified = self
            .epoll
            .modify(listener, &mut EpollEvent::new(flags, LISTENER));
        modified.map_err(|error| system("epoll does not work")(error.into()))
    }

    fn accept(&mut self) -> Result<()> {
        for _ in 0..ACCEPTED {
            let Some(listener) = &self.listener else {
                return Ok(());
            };
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_passing(&error) => return Ok(()),
                // Who has gone again is nobody's concern.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(_) => return self.listen_again(false),
            };
            let set = stream.set_nonblocking(true);
            if set.and_then(|()| stream.set_nodelay(true)).is_ok() {
                self.take_in(stream, from.ip().to_canonical());
            }
        }
        Ok(())
    }

    /// Who finds no room is closed.
    fn take_in(&mut self, stream: TcpStream, from: IpAddr) {
        let now_us = self.now_us();
        let found_at = stream.local_addr().ok().map(|address| Port {
            address: address.ip().to_canonical().to_string(),
            port: address.port(),
        });
        let is_loopback = from.is_loopback();
        let mut opened = self.target.open_at(found_at.clone(), is_loopback, now_us);
        if opened.is_none() && self.make_room(from) {
            opened = self.target.open_at(found_at, is_loopback, now_us);
        }
        let Some(id) = opened else {
            return;
        };
        let interest = EpollFlags::EPOLLIN;
        let event = EpollEvent::new(interest, id.0 + FIRST_CONNECTION);
        if self.epoll.add(&stream, event).is_err() {
            self.target.close(id, now_us);
            return;
        }
        let peer = Peer {
            stream,
            from,
            kept: Vec::new(),
            interest,
            is_readable: false,
            is_gone: false,
        };
        self.peers.insert(id, peer);
    }

    /// The places of those who are not known yet are all taken. Who comes from an address with fewer of them takes the
    /// oldest place of the address with most.
    fn make_room(&mut self, from: IpAddr) -> bool {
        let mut strangers: BTreeMap<IpAddr, (usize, ConnectionId)> = BTreeMap::new();
        for (id, peer) in &self.peers {
            if self.target.is_stranger(*id) {
                // Ids rise, so the first is the oldest.
                strangers.entry(network(peer.from)).or_insert((0, *id)).0 += 1;
            }
        }
        let own = strangers.get(&network(from)).map_or(0, |(count, _)| *count);
        let most = strangers.values().max_by_key(|(count, _)| *count);
        let Some((_, oldest)) = most.filter(|(count, _)| *count > own + 1).copied() else {
            return false;
        };
        self.target.close(oldest, self.now_us());
        self.peers.remove(&oldest);
        true
    }

    /// Bytes of peers go to the target.
    fn read(&mut self) {
        let now_us = self.now_us();
        for (id, peer) in &mut self.peers {
            if self.stopped.is_some() {
                break;
            }
            let is_ready = peer.is_readable || !peer.kept.is_empty();
            if !is_ready || !self.target.wants_bytes(*id, now_us) {
                continue;
            }
            if !peer.kept.is_empty() {
                let taken = self.target.receive(*id, &peer.kept, now_us);
                peer.kept.drain(..taken);
                continue;
            }
            peer.is_readable = false;
            match peer.stream.read(&mut self.buffer) {
                Ok(0) => peer.is_gone = true,
                Ok(count) => {
                    let came = &self.buffer[..count];
                    let taken = self.target.receive(*id, came, now_us);
                    peer.kept.extend_from_slice(&came[taken..]);
                }
                Err(error) if is_passing(&error) => {}
                Err(_) => peer.is_gone = true,
            }
        }
    }

    /// Answers go to peers.
    fn write(&mut self) {
        let now_us = self.now_us();
        for (id, peer) in &mut self.peers {
            while !peer.is_gone && !self.target.output(*id).is_empty() {
                let mut parts = [IoSlice::new(&[]); PARTS];
                for (part, bytes) in parts.iter_mut().zip(self.target.outputs(*id)) {
                    *part = IoSlice::new(bytes);
                }
                match peer.stream.write_vectored(&parts) {
                    Ok(count) => self.target.sent(*id, count, now_us),
                    Err(error) if is_passing(&error) => break,
                    Err(_) => peer.is_gone = true,
                }
            }
            let mut wanted = EpollFlags::empty();
            let is_silent = self.target.output(*id).is_empty();
            wanted.set(EpollFlags::EPOLLOUT, !is_silent);
            let takes = peer.kept.is_empty() && self.stopped.is_none();
            let takes = takes && self.target.wants_bytes(*id, now_us);
            wanted.set(EpollFlags::EPOLLIN, takes);
            if wanted != peer.interest {
                let mut event = EpollEvent::new(wanted, id.0 + FIRST_CONNECTION);
                peer.is_gone |= self.epoll.modify(&peer.stream, &mut event).is_err();
                peer.interest = wanted;
            }
        }
    }

    fn has_failed(&mut self, id: ConnectionId, why: String) {
        if let Some(peer) = self.peers.get(&id) {
            self.failures += 1;
            let count = self.failed.as_ref().map_or(0, |(_, _, count)| *count);
            self.failed = Some((peer.from, why, count + 1));
        }
    }

    fn end_peers(&mut self) {
        let now_us = self.now_us();
        let over = self.target.over(now_us);
        while let Some((id, nqn)) = self.target.unlisted() {
            self.has_failed(id, format!("no host is listed as {}", nqn.escape_debug()));
        }
        for (id, ended) in &over {
            if let Ended::Authentication(_) = ended {
                self.has_failed(*id, ended.to_string());
            }
        }
        let over = over.into_iter().map(|(id, _)| id);
        let gone = self.peers.iter().filter(|(_, peer)| peer.is_gone);
        let ended: Vec<ConnectionId> = over.chain(gone.map(|(id, _)| *id)).collect();
        for id in ended {
            self.target.close(id, now_us);
            // Its end takes it out of epoll.
            self.peers.remove(&id);
        }
    }
}

/// What one owner has of addresses: of IPv6 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
