// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data path as the daemon drives it: control block and control programs. What the production
//! daemon does through mapped memory and `bpf_prog_run` is done here on the simulator's maps; each
//! call is a point at which another CPU may run, or the daemon may die.

use std::cell::Cell;
use std::ptr::{addr_of, addr_of_mut};
use std::rc::Rc;

use erb_abi::{
    self as abi, CommandKey, ConnView, FillEntry, FillToken, Meaning, SweepReport, Touched, Wanted,
    conn_key, erb_stat, sweep_row,
};
use erb_core::{DataPath, Result};
use erb_sim_path::{Path, Prog};

use crate::server::{Boost, IFINDEX};

/// Misses taken out of the ring at once at most, as in production.
const DRAIN_MAX: usize = 4096;

/// [`DataPath`] of a server.
pub struct Control {
    path: Path,
    ifindex: u32,
    die_in: Rc<Cell<Option<u32>>>,
}

impl Control {
    /// Drives these maps. The process dies when the counter has run down.
    #[must_use]
    pub const fn new(path: Path, die_in: Rc<Cell<Option<u32>>>) -> Self {
        Self {
            path,
            ifindex: IFINDEX,
            die_in,
        }
    }

    fn step(&self) {
        Boost::step(&self.die_in);
    }

    fn slot(&self, index: usize) -> *mut abi::fill_slot {
        assert!(
            index < abi::FILL_BATCH as usize,
            "a batch has {} slots",
            abi::FILL_BATCH
        );
        // SAFETY: the map's value lives as long as the path, and the index is in the array.
        unsafe {
            addr_of_mut!((*self.path.fill_io()).slots)
                .cast::<abi::fill_slot>()
                .add(index)
        }
    }

    fn put_keys(&self, keys: &[&[u8]]) {
        for (index, key) in keys.iter().enumerate() {
            let slot = self.slot(index);
            let len = key.len().min(abi::KEY_BYTES_MAX as usize);
            // SAFETY: slot points into the live map; the copy is bounded by the key array.
            unsafe {
                (*slot).key_len = u16::try_from(key.len()).unwrap_or(u16::MAX);
                addr_of_mut!((*slot).key)
                    .cast::<u8>()
                    .copy_from_nonoverlapping(key.as_ptr(), len);
            }
        }
        // SAFETY: as above.
        unsafe { (*self.path.fill_io()).count = u32::try_from(keys.len()).unwrap_or(0) };
    }

    fn token(&self, index: usize) -> FillToken {
        let slot = self.slot(index);
        // SAFETY: slot points into the live map, and no program runs while this reads.
        unsafe {
            FillToken {
                status: (*slot).status,
                set: (*slot).set,
                cache_epoch: (*slot).cache_epoch,
                version: (*slot).version,
                global_version: (*slot).global_version,
            }
        }
    }
}

macro_rules! getters {
    ($($field:ident: $type:ty;)*) => {
        $(fn $field(&self) -> $type {
            self.step();
            // SAFETY: the control block lives as long as the path; fields are plain integers.
            unsafe { addr_of!((*self.path.control()).$field).read_volatile() }
        })*
    };
}

macro_rules! setters {
    ($($set:ident $field:ident: $type:ty;)*) => {
        $(fn $set(&self, value: $type) {
            self.step();
            // SAFETY: as for reading; one task runs at a time.
            unsafe { addr_of_mut!((*self.path.control()).$field).write_volatile(value) };
        })*
    };
}

impl DataPath for Control {
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
        self.step();
        Ok(self.path.command_rows())
    }

    fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) -> Result<()> {
        self.step();
        self.path.set_command(key, meaning);
        Ok(())
    }

    fn listeners(&self) -> Result<Vec<(u64, abi::erb_listener)>> {
        self.step();
        Ok(self.path.listeners())
    }

    fn set_listener(&self, cookie: u64, whose: Option<abi::erb_listener>) -> Result<bool> {
        self.step();
        Ok(self.path.set_listener(cookie, whose))
    }

    fn places(&self, list: abi::place_list, from: u32, most: usize) -> Vec<u32> {
        self.step();
        self.path.places(list, from, most)
    }

    fn tick(&self, places: &[u32]) -> Result<u32> {
        self.step();
        self.path.put_places(places);
        let found = self.path.run_prog(Prog::Tick {
            ifindex: self.ifindex,
        });
        Ok(u32::try_from(found).unwrap_or(0))
    }

    fn sweep(&self, places: &[u32]) -> Result<SweepReport> {
        self.step();
        self.path.put_places(places);
        self.path.run_prog(Prog::Sweep {
            ifindex: self.ifindex,
        });
        // SAFETY: the map's value lives as long as the path; the daemon alone runs the program.
        Ok(SweepReport::of(unsafe { &*self.path.sweep_io() }))
    }

    fn release(&self, row: &sweep_row, remove: bool) -> Result<bool> {
        self.step();
        let request = abi::release_request(row, remove);
        let io = self.path.release_io();
        // SAFETY: as for sweep.
        unsafe { io.write(request) };
        self.path.run_prog(Prog::Release {
            ifindex: self.ifindex,
        });
        // SAFETY: as for sweep.
        Ok(unsafe { (*io).done } == 1)
    }

    fn admit(&self, request: &abi::admit_io) -> Result<bool> {
        self.step();
        let io = self.path.admit_io();
        // SAFETY: as for sweep.
        unsafe { io.write(*request) };
        self.path.run_prog(Prog::Admit {
            ifindex: self.ifindex,
        });
        // SAFETY: as for sweep.
        Ok(unsafe { (*io).done } == 1)
    }

    fn fill_begin(&self, keys: &[&[u8]]) -> Result<Vec<FillToken>> {
        self.step();
        self.put_keys(keys);
        self.path.run_prog(Prog::FillBegin);
        Ok((0..keys.len()).map(|index| self.token(index)).collect())
    }

    fn fill_insert(&self, entries: &[FillEntry<'_>]) -> Result<Vec<u32>> {
        self.step();
        let keys: Vec<&[u8]> = entries.iter().map(|entry| entry.key).collect();
        self.put_keys(&keys);
        for (index, entry) in entries.iter().enumerate() {
            let slot = self.slot(index);
            let len = entry.value.len().min(abi::CLASS3_BYTES as usize);
            // SAFETY: slot points into the live map; the copy is bounded by the value array.
            unsafe {
                (*slot).set = entry.token.set;
                (*slot).cache_epoch = entry.token.cache_epoch;
                (*slot).version = entry.token.version;
                (*slot).global_version = entry.token.global_version;
                (*slot).expiry_ms = entry.expiry_ms;
                (*slot).value_len = u16::try_from(len).unwrap_or(0);
                (*slot).db = entry.db;
                (*slot).type_ = entry.kind.byte();
                let value = addr_of_mut!((*slot).value).cast::<u8>();
                value.copy_from_nonoverlapping(entry.value.as_ptr(), len);
            }
        }
        self.path.run_prog(Prog::FillInsert);
        Ok((0..entries.len())
            .map(|index| self.token(index).status)
            .collect())
    }

    fn invalidate(&self, keys: &[&[u8]]) -> Result<()> {
        self.step();
        let cacheable: Vec<&[u8]> = keys
            .iter()
            .copied()
            .filter(|key| key.len() <= abi::KEY_BYTES_MAX as usize)
            .collect();
        for batch in cacheable.chunks(abi::FILL_BATCH as usize) {
            self.put_keys(batch);
            self.path.run_prog(Prog::Invalidate);
        }
        Ok(())
    }

    fn settle(&self, answered: u64) -> Result<()> {
        self.step();
        // SAFETY: as for the other fields; the daemon alone writes it.
        unsafe { (*self.path.control()).settle_to = answered };
        self.path.run_prog(Prog::Settle);
        Ok(())
    }

    fn clear(&self) -> Result<()> {
        self.step();
        self.path.run_prog(Prog::Clear);
        Ok(())
    }

    fn sets(&self) -> u32 {
        // SAFETY: the control block lives as long as the path.
        let mask = unsafe { addr_of!((*self.path.control()).set_mask).read_volatile() };
        u32::try_from(mask + 1).unwrap_or(u32::MAX)
    }

    fn touched(&self, from_set: u32) -> Result<Touched> {
        self.step();
        let io = self.path.fill_io();
        // SAFETY: the map's value lives as long as the path; the daemon alone runs the program.
        unsafe { (*io).set = from_set };
        self.path.run_prog(Prog::Touched);
        // SAFETY: as above.
        Ok(Touched::of(unsafe { &*io }))
    }

    fn halve_miss_counts(&self) {
        self.step();
        // SAFETY: the map's value lives as long as the path; updates lost to a program are harmless.
        for count in unsafe { (*self.path.miss_counts()).iter_mut() } {
            *count >>= 1;
        }
    }

    fn stat(&self, stat: erb_stat) -> Result<u64> {
        Ok(self.path.stat(stat))
    }

    fn was_unseen(&self, key: &conn_key) -> Result<bool> {
        self.step();
        Ok(self.path.unseen_time(key) != 0)
    }

    fn conn_keys(&self) -> Vec<conn_key> {
        self.step();
        let mut keys = Vec::new();
        self.path.each_conn(|key, _| keys.push(*key));
        keys
    }

    fn conn_views(&self) -> Vec<ConnView> {
        self.step();
        let mut views = Vec::new();
        self.path.each_conn(|key, conn| {
            views.push(ConnView {
                key: *key,
                cookie: conn.cookie,
                state: conn.state,
                flags: conn.flags,
                in_delta: conn.in_delta,
                out_delta: conn.out_delta,
                requests: conn.requests,
                replies: conn.replies,
            });
        });
        views
    }

    fn drain_misses(&mut self) -> Vec<Wanted> {
        self.step();
        self.path.take_misses(DRAIN_MAX)
    }

    fn run_on(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }
}
