// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running data path, reached through its pins.

use std::path::Path;

use erb_abi::{
    self as abi, Buffers, Control, ControlBlock, ControlPlane, Program, SweepReport, Table,
};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::load::{check_shapes, open_map};
use crate::mapped::mapped;
use crate::rings::{HeldRing, MissRing, WakeRing};
use crate::run::Runnable;
use crate::{Error, Result};

/// The running data path: maps and programs, opened from their pins.
pub struct Datapath {
    ifindex: u32,
    control: Control,
    buffers: Buffers,
    programs: Vec<Runnable>,
    tables: Vec<MapHandle>,
    sets: MapHandle,
    large: MapHandle,
    misses: MapHandle,
    heat: MapHandle,
    wakes: MapHandle,
    held: MapHandle,
}

impl Datapath {
    /// Opens what is pinned in `root`. `ifindex` is a boosted device of the caller's namespace,
    /// on which timer and sweep are run.
    ///
    /// # Errors
    /// [`Error::OtherVersion`] if it was made by another version, [`Error::Pin`] if pins are
    /// missing.
    pub fn open(root: &Path, ifindex: u32) -> Result<Self> {
        check_shapes(root)?;
        let control = Control::new(mapped(root, "erb_control")?);
        if control.abi_version() != abi::ERB_ABI_VERSION {
            return Err(Error::OtherVersion {
                path: root.to_path_buf(),
                what: format!(
                    "layout {}, this program has {}",
                    control.abi_version(),
                    abi::ERB_ABI_VERSION
                ),
            });
        }
        let programs = Program::ALL.map(|program| Runnable::open(root, program.name()));
        let tables = Table::ALL.map(|table| open_map(root, table.map()));
        Ok(Self {
            ifindex,
            control,
            buffers: Buffers::new(|name| mapped(root, name))?,
            programs: programs.into_iter().collect::<Result<_>>()?,
            tables: tables.into_iter().collect::<Result<_>>()?,
            sets: open_map(root, "erb_sets")?,
            large: open_map(root, "erb_large")?,
            misses: open_map(root, "erb_misses")?,
            heat: open_map(root, "erb_heat")?,
            wakes: open_map(root, "erb_wakes")?,
            held: open_map(root, "erb_held")?,
        })
    }

    /// The control block.
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// Writes that were answered in the server's place and are not in it.
    #[must_use]
    pub fn undrained(&self) -> u64 {
        self.control.lsn().saturating_sub(self.control.drained())
    }

    /// Runs timer and sweep on this device from now on.
    pub const fn run_on(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }

    /// Timer and sweep for all places that need them, piece by piece: for who does nothing else. The
    /// report has all rows.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the programs.
    pub fn walk(&self) -> Result<SweepReport> {
        self.each_piece(abi::PLACES_TIMER, |places| self.tick(places).map(drop))?;
        let mut all = SweepReport::default();
        self.each_piece(abi::PLACES_USED, |places| {
            let piece = self.sweep(places)?;
            all.count(&piece);
            all.rows.extend(piece.rows);
            all.admit.extend(piece.admit);
            Ok(())
        })?;
        Ok(all)
    }

    fn each_piece(
        &self,
        list: abi::place_list,
        mut work: impl FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        let mut next = Some(1);
        while let Some(from) = next {
            let places = self.places(list, from, abi::WALK_PLACES as usize);
            next = places.last().map(|last| last + 1);
            work(&places)?;
        }
        Ok(())
    }

    /// All counters, summed over the CPUs, in the order of [`erb_abi::REASONS`].
    ///
    /// # Errors
    /// [`Error::Map`] if the map cannot be read.
    pub fn stats(&self) -> Result<Vec<u64>> {
        (0..abi::STAT_MAX).map(|stat| self.stat(stat)).collect()
    }

    /// Entries in the cache, estimated from a sample of its sets. For people, not for the loop.
    #[must_use]
    pub fn entries_estimate(&self) -> u64 {
        let sets = self.control.set_mask() + 1;
        let sampled = sets.min(SETS_SAMPLED);
        let epoch = self.control.cache_epoch();
        let found: u64 = (0..sampled)
            .filter_map(|number| {
                // Sets are chosen by hash, so any of them is as good as another.
                let index = (number * (sets / sampled)) as u32;
                let half = |map: &MapHandle| {
                    map.lookup(&index.to_ne_bytes(), MapFlags::ANY)
                        .ok()
                        .flatten()
                };
                // The larger classes follow the small one, as if the two maps were one.
                Some([half(&self.sets)?, half(&self.large)?].concat())
            })
            .map(|bytes| entries_of_set(&bytes, epoch))
            .sum();
        found * sets / sampled
    }

    /// The ring of misses.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be mapped.
    pub fn miss_ring(&self) -> Result<MissRing> {
        MissRing::of_keys(&self.misses, "erb_misses")
    }

    /// The ring of sampled keys.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be mapped.
    pub fn heat_ring(&self) -> Result<MissRing> {
        MissRing::of_keys(&self.heat, "erb_heat")
    }

    /// The ring that says when the daemon is wanted.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be mapped.
    pub fn wake_ring(&self) -> Result<WakeRing> {
        WakeRing::new(&self.wakes)
    }

    /// The ring of copies of packets that wait.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be mapped.
    pub fn held_ring(&self) -> Result<HeldRing> {
        HeldRing::of_packets(&self.held)
    }

    fn table(&self, table: Table) -> &MapHandle {
        &self.tables[table as usize]
    }
}

impl ControlBlock for Datapath {
    fn control(&self) -> &Control {
        &self.control
    }
}

impl ControlPlane for Datapath {
    type Error = Error;

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn run(&self, program: Program) -> Result<u32> {
        let runnable = &self.programs[program as usize];
        if program.is_on_device() {
            runnable.call_on(self.ifindex)
        } else {
            runnable.call()
        }
    }

    fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32> {
        self.programs[program as usize].call_on_frame(self.ifindex, frame)
    }

    fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        self.table(table).keys().collect()
    }

    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let map = self.table(table);
        let found = if map.map_type().is_percpu() {
            let values = map.lookup_percpu(key, MapFlags::ANY);
            values.map(|values| values.map(|values| values.concat()))
        } else {
            map.lookup(key, MapFlags::ANY)
        };
        found.map_err(|error| Error::map(table.map(), error))
    }

    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let map = self.table(table);
        let done = match value {
            Some(value) => map.update(key, value, MapFlags::ANY),
            None => map.delete(key),
        };
        match done {
            Err(error) if value.is_none() && error.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| Error::map(table.map(), error)),
        }
    }
}

/// Sets read for an estimate: 256 x 5 kB are copied in about a millisecond.
const SETS_SAMPLED: u64 = 256;

/// Slot size and number of ways of each class, in the order in which a set holds them.
const CLASSES: [(u32, u32); abi::CLASSES as usize] = [
    (abi::CLASS0_BYTES, abi::CLASS0_WAYS),
    (abi::CLASS1_BYTES, abi::CLASS1_WAYS),
    (abi::CLASS2_BYTES, abi::CLASS2_WAYS),
    (abi::CLASS3_BYTES, abi::CLASS3_WAYS),
];

/// Ways in use whose entry is of this epoch.
fn entries_of_set(bytes: &[u8], epoch: u32) -> u64 {
    let word = |at: usize, size: usize| bytes.get(at..at + size);
    let tags = std::mem::offset_of!(abi::cache_set, tags);
    let mut slot = std::mem::offset_of!(abi::cache_set, slots);
    let mut way = 0;
    let mut found = 0;
    for (size, ways) in CLASSES {
        for _ in 0..ways {
            let used = word(tags + 2 * way, 2).is_some_and(|tag| tag != [0, 0]);
            if used && word(slot, 4) == Some(epoch.to_ne_bytes().as_slice()) {
                found += 1;
            }
            way += 1;
            slot += size as usize;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_another_epoch_are_absent() {
        let mut set = vec![0u8; size_of::<abi::cache_set>() + size_of::<abi::cache_large>()];
        let tags = std::mem::offset_of!(abi::cache_set, tags);
        let slots = std::mem::offset_of!(abi::cache_set, slots);
        // The second way of class 0 in epoch 7, the first of class 1 in epoch 6.
        set[tags + 2..tags + 4].copy_from_slice(&[1, 0]);
        set[slots + 128..slots + 132].copy_from_slice(&7u32.to_ne_bytes());
        set[tags + 16..tags + 18].copy_from_slice(&[0, 1]);
        set[slots + 1024..slots + 1028].copy_from_slice(&6u32.to_ne_bytes());
        assert_eq!(entries_of_set(&set, 7), 1);
        assert_eq!(entries_of_set(&set, 6), 1);
        assert_eq!(entries_of_set(&set, 5), 0);
    }
}
