// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs are answered in Redis's place (`bpf/splice/absorb.h`), and what they said is drained by a connection of the
//! drain's own: the product's drain, on the data path's log. Each write enters the history with its LSN, whatever Redis
//! knows by then; what the drain writes into Redis is no change of the history.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::rc::Rc;

use bytes::BytesMut;
use erb_abi::{ControlBlock, Logs};
use erb_redis::drain::{BATCH_NS, Drain, DrainSettings, Next};
use erb_sim_kernel::{Context, Datapath, point};
use erb_sim_redis::{Bytes, ClientId};

use super::absorbed::set_of;
use super::pipe::Pipe;
use super::{Server, Way};
use crate::inner::Event;
use crate::story::Place;
use crate::time::{MS, Ns, US};
use crate::violation::Violation;

/// Redis's databases.
const DATABASES: u32 = 16;
/// Between two looks of the drain, while something waits, at most.
const LOOK_MAX: Ns = 500 * US;
/// And while nothing does.
const REST: Ns = 20 * MS;

/// A write that was answered.
pub(crate) struct Written {
    /// Database.
    pub(crate) db: u32,
    /// Key.
    pub(crate) key: Bytes,
    /// Value.
    pub(crate) value: Bytes,
    /// When it expires: wall clock, ms.
    pub(crate) expire_at_ms: Option<u64>,
    /// Set of the key.
    pub(super) set: usize,
}

/// What is answered, and the drain.
pub(super) struct Writes {
    path: Datapath,
    logs: Logs,
    drain: Drain<Logs>,
    pipe: Option<Pipe>,
    input: Vec<u8>,
    /// How far each ring was read for the history, and the last LSN that it has.
    read_to: Vec<u64>,
    told: u64,
    early: BTreeMap<u64, Written>,
}

impl Writes {
    fn new(path: &Datapath) -> Self {
        let (logs, settings) = (
            path.logs(),
            DrainSettings {
                databases: DATABASES,
                batch_ns: BATCH_NS,
                secret: ControlBlock::control(path).hash_secret(),
            },
        );
        let read_to = (0..logs.count()).map(|ring| logs.tail(ring)).collect();
        let told = logs.drained();
        Self {
            path: path.clone(),
            drain: Drain::new(path.logs(), &settings),
            logs,
            pipe: None,
            input: Vec::new(),
            read_to,
            told,
            early: BTreeMap::new(),
        }
    }

    /// The writes that have come since the last call, in the order of their LSNs; one whose predecessor's record is
    /// not whole yet waits for it.
    fn news(&mut self) -> Vec<(u64, Written)> {
        for ring in 0..self.logs.count() {
            while self.read_to[ring] < self.logs.head(ring) {
                let (record, next) = self.logs.record(ring, self.read_to[ring]);
                let written = Written {
                    set: set_of(&self.path, &record.key),
                    db: record.db.into(),
                    key: record.key.into(),
                    value: record.value.into(),
                    expire_at_ms: Some(record.expiry_ms).filter(|expiry| *expiry > 0),
                };
                self.early.insert(record.lsn, written);
                self.read_to[ring] = next;
            }
        }
        let mut news = Vec::new();
        while let Some(written) = self.early.remove(&(self.told + 1)) {
            self.told += 1;
            news.push((self.told, written));
        }
        news
    }
}

impl Server {
    /// The drain's turn: it opens the gate for the first time, sends what waits, and takes what Redis says to it.
    pub fn drain_writes(self: &Rc<Self>) {
        let server = self.clone();
        self.cpus.spawn(self.draw_cpu(), Context::Process, move || {
            let waits = server.drain_turn();
            let mut random = server.inner.random.borrow_mut();
            let after = if waits {
                random.u64(50 * US..LOOK_MAX)
            } else {
                REST
            };
            let now = server.inner.now();
            server.inner.at(now + after, Event::Drain);
        });
    }

    /// SETs are answered from now on, if they were not.
    pub fn open_writes(&self) {
        let Some(path) = self.attached_path() else {
            return;
        };
        let mut slot = self.writes.borrow_mut();
        let same = |writes: &&mut Writes| writes.path.control() == path.control();
        if slot.as_mut().filter(same).is_none() {
            *slot = Some(Writes::new(&path));
            let control = ControlBlock::control(&path);
            control.set_watch(self.inner.plan.profile.server.cpus as u32);
            control.set_absorb(true);
        }
    }

    /// Whether something waits still.
    fn drain_turn(&self) -> bool {
        self.open_writes();
        self.note_writes();
        point();
        if let Err(text) = self.drain_speaks() {
            let now = self.inner.now();
            self.inner.fail(Violation::new("drain", now, text));
        }
        let slot = self.writes.borrow();
        slot.as_ref()
            .is_some_and(|writes| writes.logs.lsn() != writes.logs.drained())
    }

    /// Commands to Redis, replies from it.
    fn drain_speaks(&self) -> Result<(), String> {
        let now = self.inner.now();
        let mut output = BytesMut::new();
        let mut slot = self.writes.borrow_mut();
        let Some(writes) = slot.as_mut() else {
            return Ok(());
        };
        if writes.pipe.is_none() {
            writes.pipe = self.dial_inside();
            writes.drain.lost();
            writes.input.clear();
        }
        let Some(pipe) = &mut writes.pipe else {
            return Ok(());
        };
        let mut bytes = [0; 4096];
        loop {
            match pipe.read(&mut bytes) {
                Ok(0) => {
                    writes.pipe = None;
                    return Ok(());
                }
                Ok(len) => writes.input.extend(&bytes[..len]),
                Err(_) => break,
            }
        }
        if writes.drain.is_under_way() {
            let taken = writes.drain.take(&writes.input, now);
            let (taken, next) = taken.map_err(|error| error.to_string())?;
            writes.input.drain(..taken);
            if next == Next::Done {
                let drained = writes.logs.drained();
                self.inner.checks.borrow_mut().drained(drained);
            }
        }
        if let Some(refused) = writes.drain.take_refused_writes().first() {
            return Err(format!("Redis refuses what was answered: {}", refused.why));
        }
        writes
            .drain
            .begin(now, &mut output)
            .map_err(|error| error.to_string())?;
        if !output.is_empty() {
            pipe.write_all(&output).map_err(|error| error.to_string())?;
        }
        drop(slot);
        self.wake_redis();
        Ok(())
    }

    /// What was answered enters the history.
    pub fn note_writes(&self) {
        let mut slot = self.writes.borrow_mut();
        let Some(writes) = slot.as_mut() else { return };
        let now = self.inner.now();
        let news = writes.news();
        drop(slot);
        for (lsn, written) in news {
            self.inner.tell_with(Place::World, None, || {
                let key = String::from_utf8_lossy(&written.key).into_owned();
                format!("LSN {lsn} is of {key:?}, set {}", written.set)
            });
            self.arrivals.borrow_mut().give(lsn, written.set);
            self.inner.checks.borrow_mut().absorbed(now, lsn, written);
        }
    }

    /// Whether SETs were answered in Redis's place.
    pub fn has_absorbed(&self) -> bool {
        let slot = self.writes.borrow();
        slot.as_ref().is_some_and(|writes| writes.told > 0)
    }

    /// Whether a client of Redis's is the drain.
    pub(super) fn is_of_drain(&self, client: ClientId) -> bool {
        let (peers, slot) = (self.peers.borrow(), self.writes.borrow());
        let own = slot.as_ref().and_then(|writes| writes.pipe.as_ref());
        match peers.get(&client).map(|peer| &peer.way) {
            Some(Way::Inside(pipe)) => own.is_some_and(|own| own.is(pipe)),
            _ => false,
        }
    }
}
