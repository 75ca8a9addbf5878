// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's mistakes: its data path with a fault between the two. What the daemon decides stays
//! as it is; what arrives is what a daemon with the mistake would have done.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use erb_abi::{
    Again, Buffers, CMD_FENCE, CMD_HARMLESS, COMMANDS, CommandKey, Control, ControlBlock,
    ControlPlane, FILL_OK, FillEntry, HeldPacket, LEASE_MS, Logs, Meaning, Program, SWEEP_F_GONE,
    SweepReport, Table, Touched, Wanted, erb_stat, sweep_row,
};
use erb_redis::{DataPath, Error, Result};

use crate::time::{MS, Ns, SECOND};

/// Commands that make a key which is neither a string nor a hash.
const MAKERS: [&str; 5] = ["lpush", "rpush", "sadd", "rpoplpush", "brpoplpush"];

/// A mistake of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonMistake {
    /// The lease is renewed whether or not `+PONG` came.
    LeaseWithoutPong,
    /// The lease counts from when `+PONG` came, not from when its PING was written.
    LeaseFromPong,
    /// The cache is not emptied when the feed is made anew, nor by a flush.
    NeverCleared,
    /// Invalidations are dropped.
    InvalidationsDropped,
    /// Invalidations are handled when the next ones come.
    InvalidationsLate,
    /// A fill's versions are noted after the value was read.
    VersionsNotedLate,
    /// The gate is acknowledged without reading Redis's state.
    GateUnread,
    /// What a sweep reports is released without asking Redis.
    ReleasedWithoutProof,
    /// Nothing is ever released.
    NeverReleased,
    /// The table is never swept.
    NeverSwept,
    /// Of the table only the first places are swept.
    PieceSkipped,
    /// A step of the wall clock goes unnoticed.
    ClockUnwatched,
    /// Serving goes on whatever Redis's state is.
    ServingRegardless,
    /// Redis, which evicts by use, is not told which keys are used.
    UseHidden,
    /// The names of fast commands are not checked.
    FastNamesUnchecked,
    /// Redis's command table is not loaded.
    TableNotLoaded,
    /// What makes lists and sets is taken for harmless, as it changes no string.
    MakersHarmless,
    /// Names that nobody knows are taken for commands that only write keys.
    UnknownIsNoState,
    /// What a daemon finds in the cache of another it takes for its own.
    CacheTakenOver,
    /// So it does with admissions.
    RightsTakenOver,
    /// Values are read whole, without asking for their sizes.
    SizesUnasked,
    /// Where Redis closes no idle client, nobody sends a heartbeat.
    HeartbeatByLimitAlone,
    /// What a proof lets it acknowledge of the gate is left to the next tick.
    GateLeftToTick,
    /// Shares of the fence are settled when the daemon hears of them.
    SettledUnread,
    /// A key that was written is not read before it is missed.
    WrittenForgotten,
    /// Absences are answered whoever hears of them.
    AbsentRegardless,
    /// The cache is kept when Redis begins to tell of what was read alone.
    KeptAtSwitch,
    /// Redis is asked to tell of nothing instead.
    ReportsOfNothing,
    /// What is not drained is not seen.
    OutstandingUnseen,
    /// Copies of what waits are taken, and thrown away.
    CopiesForgotten,
    /// Another daemon does not go on with the operator's word.
    ClosedForgotten,
    /// Who takes over believes that nobody closed the cache by hand.
    ClosedByItself,
    /// Nobody waits until programs have ended that were under way.
    ProgramsUnawaited,
}

/// How a daemon asks to be told of what it has read.
const OF_READ: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\nON\r\n";
const OF_NOTHING: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$3\r\nOFF\r\n";

/// What a daemon with this mistake writes in place of these bytes; notes in `switches` that it asks to be told of
/// what it has read.
#[must_use]
pub fn said_by(mistake: DaemonMistake, bytes: &[u8], switches: &Cell<bool>) -> Vec<u8> {
    let asks = |at: &[u8]| at == OF_READ;
    if bytes.windows(OF_READ.len()).any(asks) {
        switches.set(true);
    }
    match mistake {
        // Whether the key is there, which is 1 and so a small size, then its value to the end.
        DaemonMistake::SizesUnasked => edited(
            bytes,
            &[
                (b"$6\r\nSTRLEN\r\n", b"$6\r\nEXISTS\r\n"),
                (b"$1\r\n0\r\n$1\r\n1\r\n", b"$1\r\n0\r\n$2\r\n-1\r\n"),
            ],
        ),
        DaemonMistake::ReportsOfNothing => edited(bytes, &[(OF_READ, OF_NOTHING)]),
        _ => bytes.to_vec(),
    }
}

fn edited(bytes: &[u8], edits: &[(&[u8], &[u8])]) -> Vec<u8> {
    let (mut made, mut rest) = (Vec::new(), bytes);
    while let Some(first) = rest.first() {
        match edits.iter().find(|(find, _)| rest.starts_with(find)) {
            Some((find, replace)) => {
                made.extend_from_slice(replace);
                rest = &rest[find.len()..];
            }
            None => {
                made.push(*first);
                rest = &rest[1..];
            }
        }
    }
    made
}

/// A data path, driven by a daemon that may have a mistake.
pub struct Mistaken<D> {
    inner: D,
    mistake: Option<DaemonMistake>,
    now: Box<dyn Fn() -> Ns>,
    late: RefCell<Vec<Vec<u8>>>,
    served: Cell<bool>,
    clock_set: Cell<bool>,
    released_at: Cell<Ns>,
    /// The maps are another daemon's, and this one has not served yet.
    takes_over: Cell<bool>,
    /// It has asked to be told of what it has read, and the cache is not emptied yet.
    switches: Rc<Cell<bool>>,
}

impl<D: DataPath> Mistaken<D> {
    /// Puts `mistake`, if any, before the data path, with what [`said_by`] notes. `now` is the monotonic
    /// clock; `adopts`: the maps are another daemon's.
    pub fn new(
        inner: D,
        mistake: Option<(DaemonMistake, Rc<Cell<bool>>)>,
        now: impl Fn() -> Ns + 'static,
        adopts: bool,
    ) -> Self {
        let (mistake, switches) = mistake.unzip();
        Self {
            inner,
            mistake,
            switches: switches.unwrap_or_default(),
            now: Box::new(now),
            late: RefCell::default(),
            served: Cell::default(),
            clock_set: Cell::default(),
            released_at: Cell::default(),
            takes_over: Cell::new(adopts),
        }
    }

    fn has(&self, mistake: DaemonMistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn take_makers_for_harmless(&self) {
        let makers = COMMANDS.iter().filter(|row| MAKERS.contains(&row.name));
        for maker in makers.filter(|_| self.has(DaemonMistake::MakersHarmless)) {
            let meaning = Meaning {
                class: CMD_HARMLESS,
                ..maker.meaning()
            };
            let loaded = self.inner.set_command(&maker.key(), Some(&meaning));
            loaded.expect("the simulator's table has room");
        }
    }

    fn lease_from_now(&self) -> u64 {
        (self.now)() + u64::from(LEASE_MS) * MS
    }

    /// Called at whatever the daemon does often.
    fn meanwhile(&self) {
        if self.has(DaemonMistake::LeaseWithoutPong) && self.inner.lease_until_ns() > 0 {
            self.inner.set_lease_until_ns(self.lease_from_now());
        }
        if self.has(DaemonMistake::GateUnread) {
            self.inner.set_gate_ack(self.inner.gate_seen());
        }
    }
}

impl<D: DataPath> ControlBlock for Mistaken<D> {
    fn control(&self) -> &Control {
        self.inner.control()
    }

    fn outstanding(&self) -> bool {
        !self.has(DaemonMistake::OutstandingUnseen) && self.inner.outstanding()
    }

    fn set_heartbeat_up_ns(&self, value: u64) {
        let by_limit = self.has(DaemonMistake::HeartbeatByLimitAlone);
        // A minute is what it is without a limit.
        let none = by_limit && value >= 60 * SECOND;
        self.inner.set_heartbeat_up_ns(if none { 0 } else { value });
    }

    fn stopping(&self) -> u32 {
        let forgotten = self.has(DaemonMistake::ClosedForgotten) && self.takes_over.get();
        if forgotten { 0 } else { self.inner.stopping() }
    }

    fn closed_by_itself(&self) -> u32 {
        let believed = self.has(DaemonMistake::ClosedByItself) && self.takes_over.get();
        if believed {
            1
        } else {
            self.inner.closed_by_itself()
        }
    }

    fn set_rights(&self, value: u32) {
        if self.has(DaemonMistake::RightsTakenOver) && self.takes_over.get() {
            return;
        }
        self.inner.set_rights(value);
    }

    fn set_fast_off(&self, value: u32) {
        let forgotten = self.has(DaemonMistake::FastNamesUnchecked);
        self.inner.set_fast_off(if forgotten { 0 } else { value });
    }

    fn set_absent(&self, value: u8) {
        let regardless = self.has(DaemonMistake::AbsentRegardless);
        self.inner.set_absent(if regardless { 1 } else { value });
    }

    fn set_unknown_class(&self, value: u32) {
        let forgotten = self.has(DaemonMistake::UnknownIsNoState);
        self.inner
            .set_unknown_class(if forgotten { CMD_FENCE } else { value });
    }

    fn lease_until_ns(&self) -> u64 {
        self.meanwhile();
        self.inner.lease_until_ns()
    }

    fn set_lease_until_ns(&self, value: u64) {
        let value = match self.mistake {
            Some(DaemonMistake::LeaseWithoutPong) => self.lease_from_now(),
            Some(DaemonMistake::LeaseFromPong) if value > 0 => self.lease_from_now(),
            _ => value,
        };
        self.inner.set_lease_until_ns(value);
    }

    fn set_serving(&self, value: u32) {
        if value == 1 {
            self.take_makers_for_harmless();
            self.served.set(true);
            self.takes_over.set(false);
        }
        if self.has(DaemonMistake::ServingRegardless) && self.served.get() {
            return self.inner.set_serving(1);
        }
        self.inner.set_serving(value);
    }

    fn set_wall_minus_mono_ns(&self, value: i64) {
        if self.has(DaemonMistake::ClockUnwatched) && self.clock_set.replace(true) {
            return;
        }
        self.inner.set_wall_minus_mono_ns(value);
    }

    fn fence(&self) -> u64 {
        self.meanwhile();
        self.inner.fence()
    }

    fn gate_seen(&self) -> u64 {
        self.meanwhile();
        if self.has(DaemonMistake::GateLeftToTick) && self.released_at.get() == (self.now)() {
            return self.inner.gate_ack();
        }
        self.inner.gate_seen()
    }

    fn fence_answered(&self) -> u64 {
        let answered = self.inner.fence_answered();
        if self.has(DaemonMistake::SettledUnread) {
            // An error shows again at the daemon's own next call.
            let _ = self.inner.settle(answered);
        }
        answered
    }
}

impl<D: DataPath> ControlPlane for Mistaken<D> {
    type Error = Error;

    fn buffers(&self) -> &Buffers {
        self.inner.buffers()
    }

    fn run(&self, program: Program) -> Result<u32> {
        self.inner.run(program)
    }

    fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32> {
        self.inner.run_on_frame(program, frame)
    }

    fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        self.inner.keys(table)
    }

    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.look_up(table, key)
    }

    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.inner.put(table, key, value)
    }

    fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) -> Result<()> {
        if self.has(DaemonMistake::TableNotLoaded) {
            return Ok(());
        }
        self.inner.set_command(key, meaning)
    }

    fn stat(&self, stat: erb_stat) -> Result<u64> {
        self.meanwhile();
        self.inner.stat(stat)
    }

    fn sweep(&self, places: &[u32]) -> Result<SweepReport> {
        if self.has(DaemonMistake::NeverSwept) {
            return Ok(SweepReport::default());
        }
        let is_behind = places.first().is_some_and(|place| *place > 4);
        if is_behind && self.has(DaemonMistake::PieceSkipped) {
            return Ok(SweepReport::default());
        }
        let report = self.inner.sweep(places)?;
        if self.has(DaemonMistake::ReleasedWithoutProof) {
            for row in &report.rows {
                self.inner.release(row, row.flags & SWEEP_F_GONE != 0)?;
            }
        }
        Ok(report)
    }

    fn release(&self, row: &sweep_row, remove: bool) -> Result<bool> {
        if self.has(DaemonMistake::NeverReleased) {
            return Ok(true);
        }
        self.released_at.set((self.now)());
        self.inner.release(row, remove)
    }

    fn fill_insert(&self, entries: &[FillEntry<'_>]) -> Result<Vec<u32>> {
        if !self.has(DaemonMistake::VersionsNotedLate) {
            return self.inner.fill_insert(entries);
        }
        let keys: Vec<&[u8]> = entries.iter().map(|entry| entry.key).collect();
        let tokens = self.inner.fill_begin(&keys)?;
        let late: Vec<FillEntry<'_>> = entries
            .iter()
            .zip(tokens)
            .map(|(entry, token)| FillEntry {
                token: if token.status == FILL_OK {
                    token
                } else {
                    entry.token
                },
                ..*entry
            })
            .collect();
        self.inner.fill_insert(&late)
    }

    fn invalidate(&self, keys: &[&[u8]]) -> Result<Again> {
        match self.mistake {
            Some(DaemonMistake::InvalidationsDropped) => Ok(Again::default()),
            Some(DaemonMistake::InvalidationsLate) if !keys.is_empty() => {
                let next = keys.iter().map(|key| key.to_vec()).collect();
                let due = self.late.replace(next);
                let due: Vec<&[u8]> = due.iter().map(Vec::as_slice).collect();
                self.inner.invalidate(&due)
            }
            Some(DaemonMistake::WrittenForgotten) => {
                self.inner.invalidate(keys).map(|_| Again::default())
            }
            _ => self.inner.invalidate(keys),
        }
    }

    fn clear(&self) -> Result<()> {
        let never = [DaemonMistake::NeverCleared, DaemonMistake::ClockUnwatched];
        if self.mistake.is_some_and(|mistake| never.contains(&mistake)) {
            return Ok(());
        }
        if self.has(DaemonMistake::CacheTakenOver) && self.takes_over.get() {
            return Ok(());
        }
        let at_switch = self.switches.take();
        if at_switch && self.has(DaemonMistake::KeptAtSwitch) {
            return Ok(());
        }
        self.inner.clear()
    }

    fn touched(&self, from_set: u32) -> Result<Touched> {
        let mut touched = self.inner.touched(from_set)?;
        if self.has(DaemonMistake::UseHidden) {
            touched.keys.clear();
        }
        Ok(touched)
    }
}

impl<D: DataPath> DataPath for Mistaken<D> {
    fn wait_for_programs(&self) -> Result<()> {
        if self.has(DaemonMistake::ProgramsUnawaited) {
            return Ok(());
        }
        self.inner.wait_for_programs()
    }

    fn drain_misses(&mut self) -> Vec<Wanted> {
        self.inner.drain_misses()
    }

    fn drain_held(&mut self) -> Vec<HeldPacket> {
        let taken = self.inner.drain_held();
        if self.has(DaemonMistake::CopiesForgotten) {
            return Vec::new();
        }
        taken
    }

    fn take_logs(&mut self) -> Option<Logs> {
        self.inner.take_logs()
    }

    fn run_on(&mut self, ifindex: u32) {
        self.inner.run_on(ifindex);
    }
}
