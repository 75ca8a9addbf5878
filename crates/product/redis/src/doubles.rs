// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For tests: a data path that records, and a Redis whose every byte the test says.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::rc::Rc;

use erb_abi::{
    self as abi, Buffers, Control, ControlBlock, ControlPlane, HeldPacket, Program, SweepReport,
    Table, Values, Wanted,
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

/// Rows of all tables, by table and key.
type Rows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// Records what is done to the data path, and lets the test set what is read from it.
pub(crate) struct Recorder {
    pub(crate) log: RefCell<Vec<String>>,
    pub(crate) rows: RefCell<Rows>,
    pub(crate) stats: RefCell<HashMap<abi::erb_stat, u64>>,
    /// What each piece of a sweep finds.
    pub(crate) sweep: RefCell<SweepReport>,
    /// Places by list, and which were looked at by timer and sweep.
    pub(crate) places: RefCell<[Vec<u32>; abi::PLACE_LISTS as usize]>,
    pub(crate) walked: RefCell<Vec<(abi::place_list, Vec<u32>)>>,
    pub(crate) misses: RefCell<Vec<Wanted>>,
    /// What the next look for used keys finds.
    pub(crate) used: RefCell<Vec<(u16, Vec<u8>)>>,
    /// When versions are noted, what this Redis has heard by then goes to `heard`.
    pub(crate) heard_at_note: RefCell<Option<Pipe>>,
    pub(crate) heard: RefCell<String>,
    /// Packets that wait, and what the program says to each: `enum inject`, `waits_for`.
    pub(crate) held: RefCell<Vec<HeldPacket>>,
    pub(crate) injected: RefCell<VecDeque<(u32, u64)>>,
    pub(crate) is_unacked: Cell<bool>,
    pub(crate) is_device_gone: Cell<bool>,
    pub(crate) is_broken: Cell<bool>,
    block: *mut abi::control,
    control: Control,
    buffers: Buffers,
}

/// Cache sets.
const SETS: u32 = 64;

impl Default for Recorder {
    fn default() -> Self {
        let zeros = |name: &str| {
            let shape = abi::MAPS.iter().find(|shape| shape.name == name);
            let bytes = shape.map(|shape| shape.value_bytes);
            Ok::<_, String>(Values::zeros(bytes.ok_or(name)?, 1))
        };
        let values = zeros("erb_control").unwrap();
        let recorder = Self {
            block: values.at(0),
            control: Control::new(values),
            buffers: Buffers::new(zeros).unwrap(),
            log: RefCell::default(),
            rows: RefCell::default(),
            stats: RefCell::default(),
            sweep: RefCell::default(),
            places: RefCell::default(),
            walked: RefCell::default(),
            misses: RefCell::default(),
            used: RefCell::default(),
            heard_at_note: RefCell::default(),
            heard: RefCell::default(),
            held: RefCell::default(),
            injected: RefCell::default(),
            is_unacked: Cell::default(),
            is_device_gone: Cell::default(),
            is_broken: Cell::default(),
        };
        recorder.set_set_mask(u64::from(SETS) - 1);
        recorder
            .control
            .set_hash_secret(abi::hash_secret::of_seed(1));
        recorder
    }
}

impl Recorder {
    pub(crate) fn take_log(&self) -> Vec<String> {
        self.log.take()
    }

    /// What programs do to the control block.
    pub(crate) fn set(&self, change: impl FnOnce(&mut abi::control)) {
        // SAFETY: the block lives as long as `control`; the test's one thread accesses it.
        change(unsafe { &mut *self.block });
    }

    /// Puts an entry into the table of connections.
    pub(crate) fn track(&self, conn: &abi::conn) {
        let row = (Table::Conns, bytes_of(&conn.key));
        self.rows.borrow_mut().insert(row, bytes_of(conn));
    }

    /// Payload of this connection passes unseen.
    pub(crate) fn pass_unseen(&self, key: &abi::conn_key) {
        let place = self.control.hash_secret().unseen_place(key);
        let row = (Table::Unseen, bytes_of(&place));
        self.rows.borrow_mut().insert(row, bytes_of(&1u32));
    }

    fn note(&self, line: impl Into<String>) -> Result<()> {
        self.log.borrow_mut().push(line.into());
        if self.is_broken.get() {
            return Err(Error::Failed("the data path is broken".into()));
        }
        Ok(())
    }

    fn note_walk(&self, list: abi::place_list) {
        let places = self
            .buffers
            .walk(|io| io.places[..io.count as usize].to_vec());
        self.walked.borrow_mut().push((list, places));
    }

    fn finds_device(&self) -> Result<()> {
        match self.is_device_gone.get() {
            true => Err(Error::DeviceGone("no such device".into())),
            false => Ok(()),
        }
    }

    fn run_tick(&self) -> Result<u32> {
        self.note("tick")?;
        self.note_walk(abi::PLACES_TIMER);
        self.finds_device()?;
        Ok(u32::from(self.is_unacked.get()))
    }

    fn run_sweep(&self) {
        self.note_walk(abi::PLACES_USED);
        let found = self.sweep.borrow();
        self.buffers.sweep(|io| {
            *io = abi::sweep_io {
                count: found.rows.len() as u32,
                admits: found.admit.len() as u32,
                waiting: found.waiting,
                conns: found.conns,
                by_state: found.by_state,
                translated: found.translated,
                ..*io
            };
            io.rows[..found.rows.len()].copy_from_slice(&found.rows);
            io.admit[..found.admit.len()].copy_from_slice(&found.admit);
        });
    }

    fn note_keys(&self, what: &str) -> Result<()> {
        let keys = self.slots(|slot| text(&slot.key, slot.key_len));
        self.slots(|slot| slot.status = abi::FILL_OK);
        self.note(format!("{what} {}", keys.join(",")))
    }

    fn slots<R>(&self, each: impl FnMut(&mut abi::fill_slot) -> R) -> Vec<R> {
        self.buffers.fill(|io| {
            let slots = io.slots.iter_mut().take(io.count as usize);
            slots.map(each).collect()
        })
    }

    fn run_insert(&self) -> Result<()> {
        let lines = self.slots(|slot| {
            slot.status = abi::FILL_OK;
            let (key, value) = (
                text(&slot.key, slot.key_len),
                text(&slot.value, slot.value_len),
            );
            let db = Some(slot.db).filter(|db| *db != 0);
            let db = db.map_or_else(String::new, |db| format!("{db}:"));
            match slot.absent {
                0 => format!("insert {db}{key}={value} until {}", slot.expiry_ms),
                _ => format!("insert {db}{key} as absent"),
            }
        });
        lines.into_iter().try_for_each(|line| self.note(line))
    }

    fn run_touched(&self) -> Result<()> {
        self.note(format!("touched from {}", self.buffers.fill(|io| io.set)))?;
        let keys = self.used.take();
        self.buffers.fill(|io| {
            io.count = keys.len() as u32;
            io.set = (io.set + 8) % SETS;
            for (slot, (db, key)) in io.slots.iter_mut().zip(&keys) {
                slot.db = *db;
                slot.key_len = key.len() as u16;
                slot.key[..key.len()].copy_from_slice(key);
            }
        });
        Ok(())
    }
}

fn text(bytes: &[u8], length: u16) -> String {
    String::from_utf8_lossy(&bytes[..usize::from(length)]).into_owned()
}

fn bytes_of<T: Copy>(of: &T) -> Vec<u8> {
    let at = std::ptr::from_ref(of).cast();
    // SAFETY: the mirror's types are integers without padding.
    unsafe { std::slice::from_raw_parts(at, size_of::<T>()) }.to_vec()
}

impl ControlBlock for Recorder {
    fn control(&self) -> &Control {
        &self.control
    }
}

impl ControlPlane for Recorder {
    type Error = Error;

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }
    fn run(&self, program: Program) -> Result<u32> {
        let io = &self.buffers;
        if program.is_on_device() && program != Program::Tick {
            self.finds_device()?;
        }
        match program {
            Program::Tick => return self.run_tick(),
            Program::Sweep => self.run_sweep(),
            Program::Release => {
                let (cookie, remove) = io.release(|io| (io.cookie, io.remove == 1));
                self.note(format!("release {cookie} remove={remove}"))?;
                io.release(|io| io.done = 1);
            }
            Program::Admit => {
                let asked = io.admit(|io| *io);
                let (cookie, act) = (asked.row.cookie, asked.act);
                let (db, resp) = (asked.db, asked.resp);
                self.note(format!("admit {cookie} act={act} db={db} resp={resp}"))?;
                io.admit(|io| io.done = 1);
            }
            Program::FillBegin => {
                self.note_keys("note")?;
                if let Some(redis) = &*self.heard_at_note.borrow() {
                    self.heard.borrow_mut().push_str(&redis.heard());
                }
            }
            Program::FillInsert => self.run_insert()?,
            Program::Invalidate => self.note_keys("invalidate")?,
            Program::Clear => self.note("clear")?,
            Program::Settle => {
                let answered = self.settle_to();
                self.note(format!("settle {answered}"))?;
                self.set(|control| {
                    control.fence -= answered - control.fence_settled;
                    control.fence_settled = answered;
                });
            }
            Program::Touched => self.run_touched()?,
            Program::Inject => return Err(Error::Failed("it is run on a frame".into())),
        }
        Ok(0)
    }
    fn run_on_frame(&self, _: Program, frame: &[u8]) -> Result<u32> {
        self.note(format!("inject {}", text(frame, frame.len() as u16)))?;
        self.finds_device()?;
        let said = self.injected.borrow_mut().pop_front();
        let (said, waits_for) = said.unwrap_or_default();
        self.buffers.inject(|io| io.waits_for = waits_for);
        Ok(said)
    }
    fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        let rows = self.rows.borrow();
        let keys = rows.keys().filter(|(of, _)| *of == table);
        keys.map(|(_, key)| key.clone()).collect()
    }
    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if table == Table::Stats {
            let stat = key.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            let count = stat.and_then(|stat| self.stats.borrow().get(&stat).copied());
            return Ok(count.map(|count| count.to_ne_bytes().to_vec()));
        }
        Ok(self.rows.borrow().get(&(table, key.to_vec())).cloned())
    }
    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let (mut rows, row) = (self.rows.borrow_mut(), (table, key.to_vec()));
        match value {
            Some(value) => rows.insert(row, value.to_vec()),
            None => rows.remove(&row),
        };
        Ok(())
    }
    fn places(&self, list: abi::place_list, from: u32, most: usize) -> Vec<u32> {
        let places = self.places.borrow();
        let on = places.get(list as usize).into_iter().flatten();
        let found = on.copied().filter(|place| *place >= from);
        found.take(most).collect()
    }
}

impl DataPath for Recorder {
    fn drain_misses(&mut self) -> Vec<Wanted> {
        self.misses.take()
    }
    fn drain_held(&mut self) -> Vec<HeldPacket> {
        self.held.take()
    }
    fn run_on(&mut self, ifindex: u32) {
        self.log.borrow_mut().push(format!("run_on {ifindex}"));
    }
}

/// A machine on which the test sets the time and who is connected.
#[derive(Default)]
pub(crate) struct Stand {
    pub(crate) now_ns: Cell<u64>,
    /// How much later it is at each look.
    pub(crate) step_ns: Cell<u64>,
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
    /// It does not say what it has.
    pub(crate) is_mute: Cell<bool>,
    /// How often it covered its devices.
    pub(crate) covered: Cell<u32>,
}

impl Stand {
    fn say<T>(&self, what: T) -> Result<T> {
        match self.is_mute.get() {
            true => Err(Error::Untold("it does not say".into())),
            false => Ok(what),
        }
    }
}

impl Machine for Stand {
    type Stream = Pipe;

    fn monotonic_ns(&self) -> u64 {
        self.now_ns.set(self.now_ns.get() + self.step_ns.get());
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
        self.say(self.open.borrow().clone())
    }
    fn listeners(&self) -> Result<Vec<Listener>> {
        self.say(self.listeners.borrow().clone())
    }
    fn local_addresses(&self) -> Result<Vec<IpAddr>> {
        self.say(vec![[10, 0, 0, 1].into()])
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
        self.say(HashSet::from([[127, 0, 0, 1].into()]))
    }
    fn destroy(&self, _: &TcpPair, cookie: u64) -> Result<bool> {
        self.destroyed.borrow_mut().push(cookie);
        Ok(true)
    }
    fn cover_egress(&self) -> Result<Vec<String>> {
        self.covered.set(self.covered.get() + 1);
        self.say(Vec::new())
    }
    fn present_device(&self) -> Result<Option<u32>> {
        self.say(self.device.get())
    }
}
