// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One thread: a listener, its clients, its open files.
//!
//! Invariants:
//! 1. A client is looked at only by its own thread, and by the generation in its token: an event that was
//!    under way when its client ended is nobody's.
//! 2. At most so many clients of all threads as there is room for; who comes then is closed at once and counted.
//!    How many a thread has of them is left to the kernel, which wakes whoever waits.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dax_send::Sender;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use slab::Slab;

use crate::answer::Date;
use crate::client::{Client, Next};
use crate::counts::Counters;
use crate::files::{Files, LEASE_SIGNAL};

const LISTENER: u64 = u64::MAX;
const LEASES: u64 = u64::MAX - 1;
const STOP: u64 = u64::MAX - 2;
/// Events of one look.
const EVENTS: usize = 256;
/// Connections that are accepted before the others have their turn.
const ACCEPT_MAX: usize = 64;
/// Clients that wait for what no event tells are looked at so often.
const SOON: Duration = Duration::from_millis(5);
/// All clients are looked at so often, for what is due.
const TICK: Duration = Duration::from_millis(500);
/// What is under way when the server is told to stop has so long.
const STOP_TIME: Duration = Duration::from_secs(5);
/// Before the kernel takes a lease away there must be time for some ticks.
const LEASE_ROOM: Duration = Duration::from_secs(5);
/// A process without a free descriptor accepts nothing for so long.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// What all clients of a thread use.
pub struct Shop {
    pub files: Files,
    pub date: Date,
    pub counters: Arc<Counters>,
    pub index: String,
    /// Time without a client taking or acknowledging anything.
    pub deadline: Duration,
    /// For a writer that waits for a lease: shorter than the kernel's patience, behind which it takes the lease away.
    pub lease_time: Duration,
    /// A thread that took so long from one look to the next may have lost its leases.
    pub stands_still: Duration,
}

/// How much of each there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// For all threads.
    pub clients: usize,
    /// Files that each thread keeps open for the next request.
    pub files: usize,
}

/// One client's place among those of all threads, given back when dropped.
pub struct Place(Arc<AtomicUsize>);

impl Place {
    /// None: all are taken.
    pub fn take(taken: &Arc<AtomicUsize>, places: usize) -> Option<Self> {
        let room = |count: usize| (count < places).then_some(count + 1);
        let place = taken.fetch_update(Relaxed, Relaxed, room);
        place.is_ok().then(|| Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What a thread is made of.
pub struct Plan {
    pub root: Arc<File>,
    pub listener: TcpListener,
    pub sender: Arc<Sender>,
    pub counters: Arc<Counters>,
    pub index: String,
    pub room: Room,
    /// Clients of all threads.
    pub taken: Arc<AtomicUsize>,
    pub stop: Arc<AtomicBool>,
    /// Readable when `stop` was set.
    pub woken: Arc<EventFd>,
}

struct Worker {
    epoll: Epoll,
    listener: Option<TcpListener>,
    leases: SignalFd,
    clients: Slab<(u32, Client)>,
    generation: u32,
    shop: Shop,
    sender: Arc<Sender>,
    taken: Arc<AtomicUsize>,
    clients_max: usize,
    stop: Arc<AtomicBool>,
    again: VecDeque<u64>,
    soon: Vec<u64>,
}

/// Serves until it is told to stop.
///
/// # Errors
/// If the thread cannot begin, or its events cannot be read.
pub fn run(plan: Plan) -> io::Result<()> {
    let woken = Arc::clone(&plan.woken);
    let mut worker = Worker::new(plan)?;
    worker.epoll.add(
        &*woken,
        EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, STOP),
    )?;
    worker.serve()
}

impl Worker {
    fn new(plan: Plan) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut signals = SigSet::empty();
        signals.add(Signal::try_from(LEASE_SIGNAL)?);
        let leases =
            SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // One thread is woken for one connection.
        let accepts = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
        epoll.add(&plan.listener, EpollEvent::new(accepts, LISTENER))?;
        epoll.add(&leases, EpollEvent::new(EpollFlags::EPOLLIN, LEASES))?;
        Ok(Self {
            epoll,
            listener: Some(plan.listener),
            leases,
            clients: Slab::new(),
            generation: 0,
            shop: Shop {
                files: Files::new(plan.root, plan.room.files),
                date: Date::default(),
                counters: plan.counters,
                index: plan.index,
                deadline: plan.sender.options().deadline,
                lease_time: lease_time().min(plan.sender.options().deadline),
                // As long as it waits between two looks, it does not stand still.
                stands_still: lease_time().max(2 * TICK),
            },
            sender: plan.sender,
            taken: plan.taken,
            clients_max: plan.room.clients,
            stop: plan.stop,
            again: VecDeque::new(),
            soon: Vec::new(),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut ticked = Instant::now();
        let mut looked = ticked;
        let mut stop_at = None;
        loop {
            let count = match self.epoll.wait(&mut events, self.patience()) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            if now.duration_since(looked) >= self.shop.stands_still {
                self.stood_still(now);
            }
            looked = now;
            for event in &events[..count] {
                match event.data() {
                    LISTENER => self.accept(now),
                    LEASES => self.leases_wanted(now),
                    STOP => {}
                    token => self.event(token, event.events(), now),
                }
            }
            self.turns(now);
            if now.duration_since(ticked) >= TICK {
                ticked = now;
                self.tick(now);
            }
            if self.stop.load(Relaxed) {
                let at = *stop_at.get_or_insert(now + STOP_TIME);
                if self.stopping(now, at) {
                    return Ok(());
                }
            }
        }
    }

    /// The machine or the process was suspended, or a disk has taken that long. With clients there is a look at each
    /// tick; without them nothing is under way.
    fn stood_still(&mut self, now: Instant) {
        let shop = &self.shop;
        let epoll = &self.epoll;
        self.clients.retain(|_, (_, client)| {
            let over = client.is_leased();
            if over {
                client.reset(shop);
                let _ = epoll.delete(client.stream());
            }
            !over
        });
        self.shop.files.give_back(now);
    }

    fn patience(&self) -> EpollTimeout {
        let wait = if !self.again.is_empty() {
            Duration::ZERO
        } else if !self.soon.is_empty() {
            SOON
        } else if self.clients.is_empty()
            && self.shop.files.is_empty()
            && self.sender.counts().leftovers == 0
        {
            return EpollTimeout::NONE;
        } else {
            TICK
        };
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPT_MAX {
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Ok((stream, _)) => {
                    let Some(place) = Place::take(&self.taken, self.clients_max) else {
                        self.shop.counters.refused.fetch_add(1, Relaxed);
                        continue;
                    };
                    self.shop.counters.connections.fetch_add(1, Relaxed);
                    // Heads and bodies are joined by MSG_MORE; nothing is to wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    let Ok(connection) = self.sender.connection(stream) else {
                        continue;
                    };
                    self.insert(connection, place, now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
                    ) =>
                {
                    std::thread::sleep(FULL_PAUSE);
                    return;
                }
                // The client has gone before it was accepted.
                Err(_) => {}
            }
        }
    }

    fn insert(&mut self, connection: dax_send::Connection, place: Place, now: Instant) {
        self.generation = self.generation.wrapping_add(1) & 0x7fff_ffff;
        let entry = self.clients.vacant_entry();
        let token = token(self.generation, entry.key());
        let events = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        let event = EpollEvent::new(events, token);
        // The kernel bounds what a user watches, and may lack memory: that is this client's end and no other's.
        if self.epoll.add(connection.stream(), event).is_err() {
            self.shop.counters.refused.fetch_add(1, Relaxed);
            return;
        }
        entry.insert((self.generation, Client::new(connection, place, now)));
        self.turn(token, now);
    }

    fn client(&mut self, token: u64) -> Option<(usize, &mut Client, &mut Shop)> {
        let index = usize::try_from(token & 0xffff_ffff).ok()?;
        let (generation, client) = self.clients.get_mut(index)?;
        (u64::from(*generation) == token >> 32).then_some((index, client, &mut self.shop))
    }

    fn event(&mut self, token: u64, events: EpollFlags, now: Instant) {
        let Some((_, client, _)) = self.client(token) else {
            return;
        };
        client.told(events);
        self.turn(token, now);
    }

    fn turn(&mut self, token: u64, now: Instant) {
        if let Some((index, client, shop)) = self.client(token) {
            let next = client.turn(shop, now);
            self.then(token, index, next);
        }
    }

    fn then(&mut self, token: u64, index: usize, next: Next) {
        match next {
            Next::Wait => {}
            Next::Soon => self.soon.push(token),
            Next::Again => self.again.push_back(token),
            Next::Drop => {
                let (_, client) = self.clients.remove(index);
                // Closing alone would not take it out: the guard may have the socket open for a moment longer.
                let _ = self.epoll.delete(client.stream());
            }
        }
    }

    fn turns(&mut self, now: Instant) {
        for token in std::mem::take(&mut self.soon) {
            self.turn(token, now);
        }
        for token in std::mem::take(&mut self.again) {
            self.turn(token, now);
        }
        // An event and a turn may both have asked for another.
        self.soon.sort_unstable();
        self.soon.dedup();
    }

    fn tick(&mut self, now: Instant) {
        self.shop.files.tidy(now);
        self.shop.files.give_back(now);
        self.sender.reap();
        let indices: Vec<usize> = self.clients.iter().map(|(index, _)| index).collect();
        for index in indices {
            if let Some((generation, client)) = self.clients.get_mut(index) {
                let token = token(*generation, index);
                let next = client.tick(&mut self.shop, now);
                self.then(token, index, next);
            }
        }
    }

    fn leases_wanted(&mut self, now: Instant) {
        // Signals of one kind join, so all leases are looked at.
        while let Ok(Some(_)) = self.leases.read_signal() {}
        self.shop.files.give_back(now);
        // Whose body the peer has holds no lease any more.
        let tokens = self.clients.iter();
        let tokens: Vec<u64> = tokens
            .map(|(index, (generation, _))| token(*generation, index))
            .collect();
        for token in tokens {
            if let Some((_, client, _)) = self.client(token) {
                client.told(EpollFlags::EPOLLERR);
            }
            self.turn(token, now);
        }
    }

    /// Nothing new; whether nothing is left.
    fn stopping(&mut self, now: Instant, at: Instant) -> bool {
        self.listener = None;
        let indices: Vec<usize> = self.clients.iter().map(|(index, _)| index).collect();
        for index in indices {
            if let Some((generation, client)) = self.clients.get_mut(index) {
                client.end();
                let token = token(*generation, index);
                self.turn(token, now);
            }
        }
        if now >= at {
            self.clients.clear();
            self.sender.reap();
        }
        self.clients.is_empty()
    }
}

/// For how long a broken lease is kept: with room before the kernel takes it away (`fs.lease-break-time`).
fn lease_time() -> Duration {
    let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap_or_default();
    let seconds = text.trim().parse().unwrap_or(45);
    lease_time_of(Duration::from_secs(seconds))
}

/// 0: the kernel waits for ever.
fn lease_time_of(patience: Duration) -> Duration {
    if patience.is_zero() {
        return Duration::MAX;
    }
    patience.saturating_sub(LEASE_ROOM).max(patience / 2)
}

/// What epoll says of a client.
fn token(generation: u32, index: usize) -> u64 {
    u64::from(generation) << 32 | index as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_given_back_before_the_kernel_takes_it() {
        for seconds in [1, 2, 5, 10, 45, 3600] {
            let patience = Duration::from_secs(seconds);
            let time = lease_time_of(patience);
            assert!(!time.is_zero() && time < patience, "{seconds}: {time:?}");
        }
        assert_eq!(lease_time_of(Duration::from_secs(45)).as_secs(), 40);
        assert_eq!(lease_time_of(Duration::ZERO), Duration::MAX);
    }
}
