// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For tests: a data path that records, and a Redis whose every byte the test says.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::rc::Rc;

use erb_abi::{
    self as abi, CommandKey, ConnView, FillEntry, FillToken, Meaning, SweepReport, Touched, Wanted,
    admit_io, conn_key, sweep_row,
};

use crate::outside::{DataPath, Error, Listener, Machine, Result, TcpPair, Traffic};
use crate::rights::Credentials;

/// Both directions of a connection; the test holds one handle, the feed the other.
#[derive(Clone, Default)]
pub(crate) struct Pipe(Rc<RefCell<Wires>>);

#[derive(Default)]
struct Wires {
    to_feed: VecDeque<u8>,
    from_feed: Vec<u8>,
    closed: bool,
}

impl Pipe {
    /// What Redis says.
    pub(crate) fn say(&self, bytes: impl AsRef<[u8]>) {
        self.0.borrow_mut().to_feed.extend(bytes.as_ref());
    }

    /// What Redis heard since the last call.
    pub(crate) fn heard(&self) -> String {
        let bytes = std::mem::take(&mut self.0.borrow_mut().from_feed);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Redis ends the connection.
    pub(crate) fn close(&self) {
        self.0.borrow_mut().closed = true;
    }
}

impl Read for Pipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wires = self.0.borrow_mut();
        if wires.to_feed.is_empty() && !wires.closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wires.to_feed.read(bytes)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wires = self.0.borrow_mut();
        if wires.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        wires.from_feed.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a Redis that has no commands but the daemon's says to COMMAND LIST and COMMAND INFO.
pub(crate) fn few_commands() -> String {
    let needed = crate::commands::needed();
    let list = needed.iter().map(|name| format!("+{name}\r\n"));
    let asked = crate::commands::asked(&[]);
    let info = asked.iter().map(|name| {
        if needed.contains(name.as_str()) {
            format!("*10\r\n+{name}\r\n:-1\r\n~0\r\n:0\r\n:0\r\n:0\r\n~0\r\n~0\r\n~0\r\n~0\r\n")
        } else {
            "_\r\n".to_owned()
        }
    });
    let (list, info) = (list.collect::<String>(), info.collect::<String>());
    format!("~{}\r\n{list}*{}\r\n{info}", needed.len(), asked.len())
}

/// Records what is done to the data path, and lets the test set what is read from it.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) log: RefCell<Vec<String>>,
    pub(crate) commands: RefCell<BTreeMap<CommandKey, Meaning>>,
    pub(crate) listeners: RefCell<BTreeMap<u64, abi::erb_listener>>,
    pub(crate) control: RefCell<abi::control>,
    pub(crate) stats: RefCell<std::collections::HashMap<abi::erb_stat, u64>>,
    /// What each piece of a sweep finds.
    pub(crate) sweep: RefCell<SweepReport>,
    /// Places by list, and which were looked at by timer and sweep.
    pub(crate) places: RefCell<[Vec<u32>; abi::PLACE_LISTS as usize]>,
    pub(crate) walked: RefCell<Vec<(abi::place_list, Vec<u32>)>>,
    pub(crate) keys: RefCell<Vec<conn_key>>,
    pub(crate) views: RefCell<Vec<ConnView>>,
    /// Ports of clients whose payload passed unseen, network order.
    pub(crate) unseen_ports: RefCell<Vec<u16>>,
    pub(crate) misses: RefCell<Vec<Wanted>>,
    /// What the next look for used keys finds.
    pub(crate) used: RefCell<Vec<(u16, Vec<u8>)>>,
    /// When versions are noted, what this Redis has heard by then goes to `heard`.
    pub(crate) heard_at_note: RefCell<Option<Pipe>>,
    pub(crate) heard: RefCell<String>,
    pub(crate) is_unacked: Cell<bool>,
    pub(crate) is_device_gone: Cell<bool>,
    pub(crate) is_broken: Cell<bool>,
}

impl Recorder {
    pub(crate) fn take_log(&self) -> Vec<String> {
        self.log.take()
    }

    fn note(&self, line: impl Into<String>) -> Result<()> {
        self.log.borrow_mut().push(line.into());
        if self.is_broken.get() {
            return Err(Error::Failed("the data path is broken".into()));
        }
        Ok(())
    }
}

macro_rules! setters {
    ($($set:ident $field:ident: $type:ty;)*) => {
        $(fn $set(&self, value: $type) {
            self.control.borrow_mut().$field = value;
        })*
    };
}

macro_rules! getters {
    ($($field:ident: $type:ty;)*) => {
        $(fn $field(&self) -> $type {
            self.control.borrow().$field
        })*
    };
}

fn words(keys: &[&[u8]]) -> String {
    let keys: Vec<_> = keys
        .iter()
        .map(|key| String::from_utf8_lossy(key))
        .collect();
    keys.join(",")
}

impl DataPath for Recorder {
    getters! {
        serving: u32; fills: u32; lease_until_ns: u64; fence: u64;
        gate_seen: u64; gate_ack: u64; rights: u32; fast_off: u32; unknown_class: u32;
        fence_answered: u64; fence_settled: u64;
    }
    setters! {
        set_fast_off fast_off: u32; set_unknown_class unknown_class: u32;
        set_serving serving: u32; set_stopping stopping: u32; set_admit admit: u32;
        set_lease_until_ns lease_until_ns: u64; set_wall_minus_mono_ns wall_minus_mono_ns: i64;
        set_heartbeat_up_ns heartbeat_up_ns: u64; set_gate_ack gate_ack: u64;
        set_rights rights: u32; set_open open: u32;
    }

    fn command_rows(&self) -> Result<Vec<(CommandKey, Meaning)>> {
        let rows = self.commands.borrow();
        Ok(rows.iter().map(|(key, meaning)| (*key, *meaning)).collect())
    }
    fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) -> Result<()> {
        let mut rows = self.commands.borrow_mut();
        match meaning {
            Some(meaning) => rows.insert(*key, *meaning),
            None => rows.remove(key),
        };
        Ok(())
    }

    fn listeners(&self) -> Result<Vec<(u64, abi::erb_listener)>> {
        let rows = self.listeners.borrow();
        Ok(rows
            .iter()
            .map(|(cookie, whose)| (*cookie, *whose))
            .collect())
    }
    fn set_listener(&self, cookie: u64, whose: Option<abi::erb_listener>) -> Result<bool> {
        let mut rows = self.listeners.borrow_mut();
        match whose {
            Some(whose) => rows.insert(cookie, whose),
            None => rows.remove(&cookie),
        };
        Ok(true)
    }

    fn places(&self, list: abi::place_list, from: u32, most: usize) -> Vec<u32> {
        let places = self.places.borrow();
        let on = places.get(list as usize).into_iter().flatten();
        let found = on.copied().filter(|place| *place >= from);
        found.take(most).collect()
    }
    fn tick(&self, places: &[u32]) -> Result<u32> {
        self.note("tick")?;
        self.walked
            .borrow_mut()
            .push((abi::PLACES_TIMER, places.to_vec()));
        if self.is_device_gone.get() {
            return Err(Error::DeviceGone("no such device".into()));
        }
        Ok(u32::from(self.is_unacked.get()))
    }
    fn admit(&self, request: &admit_io) -> Result<bool> {
        let admit_io {
            row, act, db, resp, ..
        } = request;
        self.note(format!(
            "admit {} act={act} db={db} resp={resp}",
            row.cookie
        ))?;
        Ok(true)
    }
    fn sweep(&self, places: &[u32]) -> Result<SweepReport> {
        self.walked
            .borrow_mut()
            .push((abi::PLACES_USED, places.to_vec()));
        Ok(self.sweep.borrow().clone())
    }
    fn release(&self, row: &sweep_row, remove: bool) -> Result<bool> {
        self.note(format!("release {} remove={remove}", row.cookie))?;
        Ok(true)
    }
    fn fill_begin(&self, keys: &[&[u8]]) -> Result<Vec<FillToken>> {
        self.note(format!("note {}", words(keys)))?;
        if let Some(redis) = &*self.heard_at_note.borrow() {
            self.heard.borrow_mut().push_str(&redis.heard());
        }
        Ok(vec![FillToken::default(); keys.len()])
    }
    fn fill_insert(&self, entries: &[FillEntry<'_>]) -> Result<Vec<u32>> {
        for entry in entries {
            let (key, value) = (words(&[entry.key]), words(&[entry.value]));
            let db = Some(entry.db).filter(|db| *db != 0);
            let db = db.map_or_else(String::new, |db| format!("{db}:"));
            self.note(format!(
                "insert {db}{key}={value} until {}",
                entry.expiry_ms
            ))?;
        }
        Ok(vec![abi::FILL_OK; entries.len()])
    }
    fn invalidate(&self, keys: &[&[u8]]) -> Result<()> {
        self.note(format!("invalidate {}", words(keys)))
    }
    fn settle(&self, answered: u64) -> Result<()> {
        self.note(format!("settle {answered}"))?;
        let mut control = self.control.borrow_mut();
        control.fence -= answered - control.fence_settled;
        control.fence_settled = answered;
        Ok(())
    }
    fn clear(&self) -> Result<()> {
        self.note("clear")
    }
    fn sets(&self) -> u32 {
        64
    }
    fn touched(&self, from_set: u32) -> Result<Touched> {
        self.note(format!("touched from {from_set}"))?;
        let keys = self.used.take();
        Ok(Touched {
            keys,
            next_set: (from_set + 8) % self.sets(),
        })
    }
    fn halve_miss_counts(&self) {}
    fn stat(&self, stat: abi::erb_stat) -> Result<u64> {
        Ok(self.stats.borrow().get(&stat).copied().unwrap_or(0))
    }
    fn was_unseen(&self, key: &conn_key) -> Result<bool> {
        Ok(self.unseen_ports.borrow().contains(&key.client_port_be))
    }
    fn conn_keys(&self) -> Vec<conn_key> {
        self.keys.borrow().clone()
    }
    fn conn_views(&self) -> Vec<ConnView> {
        self.views.borrow().clone()
    }
    fn drain_misses(&mut self) -> Vec<Wanted> {
        self.misses.take()
    }
    fn run_on(&mut self, ifindex: u32) {
        self.log.borrow_mut().push(format!("run_on {ifindex}"));
    }
}

/// A machine on which the test sets the time and who is connected.
#[derive(Default)]
pub(crate) struct Stand {
    pub(crate) now_ns: Cell<u64>,
    pub(crate) wall_minus_mono_ns: Cell<i64>,
    /// The way to Redis; none: refused.
    pub(crate) redis: RefCell<Option<Pipe>>,
    pub(crate) connects: Cell<u32>,
    pub(crate) credentials: RefCell<Option<Credentials>>,
    pub(crate) open: RefCell<HashMap<TcpPair, Traffic>>,
    pub(crate) listeners: RefCell<Vec<Listener>>,
    /// The test's end of the connections that were made to listeners.
    pub(crate) probes: RefCell<Vec<(TcpPair, Pipe)>>,
    pub(crate) device: Cell<Option<u32>>,
    pub(crate) destroyed: RefCell<Vec<u64>>,
}

impl Machine for Stand {
    type Stream = Pipe;

    fn monotonic_ns(&self) -> u64 {
        self.now_ns.get()
    }
    fn wall_minus_monotonic_ns(&self) -> i64 {
        self.wall_minus_mono_ns.get()
    }
    fn connect(&mut self) -> io::Result<Pipe> {
        self.connects.set(self.connects.get() + 1);
        let redis = self.redis.borrow().clone();
        redis.ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }
    fn credentials(&mut self) -> io::Result<Option<Credentials>> {
        Ok(self.credentials.borrow().clone())
    }
    fn passing_connections(&self) -> Result<HashMap<TcpPair, Traffic>> {
        Ok(self.open.borrow().clone())
    }
    fn listeners(&self) -> Result<Vec<Listener>> {
        Ok(self.listeners.borrow().clone())
    }
    fn local_addresses(&self) -> Result<Vec<IpAddr>> {
        Ok(vec![[10, 0, 0, 1].into()])
    }
    fn probe(&mut self, to: IpAddr) -> io::Result<(Pipe, TcpPair)> {
        let number = self.probes.borrow().len() as u16;
        let pair = TcpPair {
            client: (to, 50_000 + number).into(),
            server: (to, 6379).into(),
        };
        let pipe = Pipe::default();
        self.probes.borrow_mut().push((pair, pipe.clone()));
        Ok((pipe, pair))
    }
    fn unseen_clients(&self) -> Result<HashSet<IpAddr>> {
        Ok(HashSet::from([[127, 0, 0, 1].into()]))
    }
    fn destroy(&self, _: &TcpPair, cookie: u64) -> Result<bool> {
        self.destroyed.borrow_mut().push(cookie);
        Ok(true)
    }
    fn cover_egress(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn present_device(&self) -> Result<Option<u32>> {
        Ok(self.device.get())
    }
}
