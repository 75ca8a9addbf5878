// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running data path, reached through its pins.

use std::path::Path;
use std::ptr::{addr_of, addr_of_mut};

use erb_abi::{
    self as abi, CommandKey, ConnView, FillEntry, FillToken, Meaning, SweepReport, Touched,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::control::Control;
use crate::load::check_shapes;
use crate::mapped::{Mapped, MappedAll};
use crate::rings::{MissRing, WakeRing};
use crate::run::Runnable;
use crate::{Error, Result};

struct Programs {
    tick: Runnable,
    sweep: Runnable,
    release: Runnable,
    admit: Runnable,
    fill_begin: Runnable,
    fill_insert: Runnable,
    invalidate: Runnable,
    clear: Runnable,
    settle: Runnable,
    touched: Runnable,
}

/// The running data path: maps and programs, opened from their pins.
pub struct Datapath {
    ifindex: u32,
    control: Control,
    fill: Mapped<abi::fill_io>,
    walk: Mapped<abi::walk_io>,
    place_lines: MappedAll<abi::place_line>,
    sweep: Mapped<abi::sweep_io>,
    release: Mapped<abi::release_io>,
    admit: Mapped<abi::admit_io>,
    miss_counts: Mapped<[u64; MISS_WORDS]>,
    sets: MapHandle,
    large: MapHandle,
    stats: MapHandle,
    conns: MapHandle,
    unseen: MapHandle,
    commands: MapHandle,
    pub(crate) listeners: MapHandle,
    misses: MapHandle,
    wakes: MapHandle,
    programs: Programs,
}

/// The miss counts seen as words, so that halving touches eight at a time.
const MISS_WORDS: usize = abi::MISS_COUNTS as usize / 8;

/// A miss count byte halves by a shift; this keeps the bit that crosses into the byte below.
const MISS_HALF_MASK: u64 = 0x7f7f_7f7f_7f7f_7f7f;

impl Datapath {
    /// Opens what is pinned in `root`. `ifindex` is a boosted device of the caller's namespace,
    /// on which timer and sweep are run.
    ///
    /// # Errors
    /// [`Error::OtherVersion`] if it was made by another version, [`Error::Pin`] if pins are
    /// missing.
    pub fn open(root: &Path, ifindex: u32) -> Result<Self> {
        check_shapes(root)?;
        let map = |name: &'static str| {
            MapHandle::from_pinned_path(root.join(name)).map_err(|error| Error::map(name, error))
        };
        let control = Control::new(Mapped::new("erb_control", &map("erb_control")?)?);
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
        Ok(Self {
            ifindex,
            control,
            fill: Mapped::new("erb_fill_io", &map("erb_fill_io")?)?,
            walk: Mapped::new("erb_walk_io", &map("erb_walk_io")?)?,
            place_lines: MappedAll::new("erb_place_lines", &map("erb_place_lines")?)?,
            sweep: Mapped::new("erb_sweep_io", &map("erb_sweep_io")?)?,
            release: Mapped::new("erb_release_io", &map("erb_release_io")?)?,
            admit: Mapped::new("erb_admit_io", &map("erb_admit_io")?)?,
            miss_counts: Mapped::new("erb_miss_counts", &map("erb_miss_counts")?)?,
            sets: map("erb_sets")?,
            large: map("erb_large")?,
            stats: map("erb_stats")?,
            conns: map("erb_conns")?,
            unseen: map("erb_unseen")?,
            commands: map("erb_commands")?,
            listeners: map("erb_listeners")?,
            misses: map("erb_misses")?,
            wakes: map("erb_wakes")?,
            programs: Programs {
                tick: Runnable::open(root, "erb_tick")?,
                sweep: Runnable::open(root, "erb_sweep")?,
                release: Runnable::open(root, "erb_release")?,
                admit: Runnable::open(root, "erb_admit")?,
                fill_begin: Runnable::open(root, "erb_fill_begin")?,
                fill_insert: Runnable::open(root, "erb_fill_insert")?,
                invalidate: Runnable::open(root, "erb_invalidate")?,
                clear: Runnable::open(root, "erb_clear")?,
                settle: Runnable::open(root, "erb_settle")?,
                touched: Runnable::open(root, "erb_touched")?,
            },
        })
    }

    /// The control block.
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// Runs timer and sweep on this device from now on.
    pub const fn run_on(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }

    /// Places on a list, from this one on, so many at most; fewer: these are the last.
    #[must_use]
    pub fn places(&self, list: abi::place_list, from: u32, most: usize) -> Vec<u32> {
        assert!(list < abi::PLACE_LISTS, "a list has a number");
        abi::places_on(self.place_lines.count(), from, most, |index| {
            let line = self.place_lines.at(index);
            // SAFETY: the line is within the live mapping and list within its array; what programs
            // change meanwhile is seen at the next call.
            unsafe { addr_of!((*line).on[list as usize]).read_volatile() }
        })
    }

    /// Runs the retransmission timer for these places, at most `WALK_PLACES`; returns how many have
    /// unacknowledged fast bytes.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn tick(&self, places: &[u32]) -> Result<u32> {
        self.put_places(places);
        self.programs.tick.call_on(self.ifindex)
    }

    /// Sweeps these places of the connection table, at most `WALK_PLACES`.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn sweep(&self, places: &[u32]) -> Result<SweepReport> {
        self.put_places(places);
        self.programs.sweep.call_on(self.ifindex)?;
        // SAFETY: a live mapping of a sweep_io; the program that writes it has returned and only
        // this thread runs it.
        Ok(SweepReport::of(unsafe { &*self.sweep.ptr() }))
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

    fn put_places(&self, places: &[u32]) {
        assert!(
            places.len() <= abi::WALK_PLACES as usize,
            "a walk is bounded by WALK_PLACES"
        );
        let io = self.walk.ptr();
        // SAFETY: io is a live mapping of a walk_io that only this thread uses; the copy is bounded
        // by the array's length, checked above.
        unsafe {
            addr_of_mut!((*io).count).write_volatile(places.len() as u32);
            let to = addr_of_mut!((*io).places).cast::<u32>();
            to.copy_from_nonoverlapping(places.as_ptr(), places.len());
        }
    }

    /// Releases the marks and the fence share of a connection for which there is proof; with
    /// `remove` its entry goes too. True if the program did so.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn release(&self, row: &abi::sweep_row, remove: bool) -> Result<bool> {
        let request = abi::release_request(row, remove);
        let io = self.release.ptr();
        // SAFETY: io is a live mapping of a release_io that only this thread uses.
        unsafe { io.write_volatile(request) };
        self.programs.release.call_on(self.ifindex)?;
        // SAFETY: as above; the program has returned.
        Ok(unsafe { addr_of!((*io).done).read_volatile() } == 1)
    }

    /// Takes a connection in, or notes what a list said of it; true if it was still what the sweep
    /// saw.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn admit(&self, request: &abi::admit_io) -> Result<bool> {
        let io = self.admit.ptr();
        // SAFETY: io is a live mapping of an admit_io that only this thread uses.
        unsafe { io.write_volatile(*request) };
        self.programs.admit.call_on(self.ifindex)?;
        // SAFETY: as above; the program has returned.
        Ok(unsafe { addr_of!((*io).done).read_volatile() } == 1)
    }

    /// Notes versions of at most `FILL_BATCH` keys before Redis is asked for them.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn fill_begin(&self, keys: &[&[u8]]) -> Result<Vec<FillToken>> {
        self.put_keys(keys);
        self.programs.fill_begin.call()?;
        Ok((0..keys.len()).map(|index| self.token(index)).collect())
    }

    /// Inserts at most `FILL_BATCH` values; returns a `fill_status` for each.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn fill_insert(&self, entries: &[FillEntry<'_>]) -> Result<Vec<u32>> {
        let keys: Vec<&[u8]> = entries.iter().map(|entry| entry.key).collect();
        self.put_keys(&keys);
        for (index, entry) in entries.iter().enumerate() {
            let slot = self.slot(index);
            let length = entry.value.len().min(abi::CLASS3_BYTES as usize);
            // SAFETY: slot points into the live mapping (index checked there); the copy is bounded
            // by the value array's length, and source and target do not overlap.
            unsafe {
                addr_of_mut!((*slot).set).write_volatile(entry.token.set);
                addr_of_mut!((*slot).cache_epoch).write_volatile(entry.token.cache_epoch);
                addr_of_mut!((*slot).version).write_volatile(entry.token.version);
                addr_of_mut!((*slot).global_version).write_volatile(entry.token.global_version);
                addr_of_mut!((*slot).expiry_ms).write_volatile(entry.expiry_ms);
                addr_of_mut!((*slot).value_len).write_volatile(length as u16);
                addr_of_mut!((*slot).db).write_volatile(entry.db);
                addr_of_mut!((*slot).type_).write_volatile(entry.kind.byte());
                let value = addr_of_mut!((*slot).value).cast::<u8>();
                value.copy_from_nonoverlapping(entry.value.as_ptr(), length);
            }
        }
        self.programs.fill_insert.call()?;
        Ok((0..entries.len())
            .map(|index| self.token(index).status)
            .collect())
    }

    /// Removes keys from the cache and moves their sets' versions. Keys longer than
    /// `KEY_BYTES_MAX` are never cached and are left out.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn invalidate(&self, keys: &[&[u8]]) -> Result<()> {
        let cacheable: Vec<&[u8]> = keys
            .iter()
            .copied()
            .filter(|key| key.len() <= abi::KEY_BYTES_MAX as usize)
            .collect();
        for batch in cacheable.chunks(abi::FILL_BATCH as usize) {
            self.put_keys(batch);
            self.programs.invalidate.call()?;
        }
        Ok(())
    }

    /// Empties the cache and voids all fills under way.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn clear(&self) -> Result<()> {
        self.programs.clear.call().map(|_| ())
    }

    /// Gives back the shares of the fence that were answered up to this count.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn settle(&self, answered: u64) -> Result<()> {
        self.control.set_settle_to(answered);
        self.programs.settle.call().map(|_| ())
    }

    /// Collects keys that were answered since the last look, from this set on.
    ///
    /// # Errors
    /// [`Error::Run`] if the kernel does not run the program.
    pub fn touched(&self, from_set: u32) -> Result<Touched> {
        let io = self.fill.ptr();
        // SAFETY: io is a live mapping of a fill_io that this thread alone uses; the program that
        // writes it has returned when it is read.
        unsafe {
            addr_of_mut!((*io).set).write_volatile(from_set);
            self.programs.touched.call()?;
            Ok(Touched::of(&*io))
        }
    }

    /// Halves all miss counts, so that old misses are forgotten.
    pub fn halve_miss_counts(&self) {
        let words = self.miss_counts.ptr().cast::<u64>();
        for index in 0..MISS_WORDS {
            // SAFETY: index is below the number of words of the live mapping. Updates lost to a
            // concurrent program are harmless: the counts are a heuristic.
            unsafe {
                let word = words.add(index);
                let value = word.read_volatile();
                if value != 0 {
                    word.write_volatile((value >> 1) & MISS_HALF_MASK);
                }
            }
        }
    }

    /// All counters, summed over the CPUs, in the order of [`erb_abi::REASONS`].
    ///
    /// # Errors
    /// [`Error::Map`] if the map cannot be read.
    pub fn stats(&self) -> Result<Vec<u64>> {
        (0..abi::STAT_MAX).map(|stat| self.stat(stat)).collect()
    }

    /// One counter, summed over the CPUs.
    ///
    /// # Errors
    /// [`Error::Map`] if the map cannot be read.
    pub fn stat(&self, stat: abi::erb_stat) -> Result<u64> {
        let values = self
            .stats
            .lookup_percpu(&stat.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| Error::map("erb_stats", error))?
            .unwrap_or_default();
        let words = values.iter().filter_map(|bytes| bytes.first_chunk());
        Ok(words.map(|bytes| u64::from_ne_bytes(*bytes)).sum())
    }

    /// Whether payload of a connection has passed for which the table had no room.
    ///
    /// # Errors
    /// [`Error::Map`] if the map cannot be read.
    pub fn was_unseen(&self, key: &abi::conn_key) -> Result<bool> {
        let place = self.control.hash_secret().unseen_place(key);
        let time = self
            .unseen
            .lookup(&place.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| Error::map("erb_unseen", error))?;
        Ok(time.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)))
    }

    /// Address pairs of all tracked connections.
    #[must_use]
    pub fn conn_keys(&self) -> Vec<abi::conn_key> {
        self.conns
            .keys()
            .filter(|key| key.len() == size_of::<abi::conn_key>())
            .map(|key| {
                // SAFETY: the length was checked; conn_key is plain data for which any bytes are
                // valid, and the read does not ask for alignment.
                unsafe { key.as_ptr().cast::<abi::conn_key>().read_unaligned() }
            })
            .collect()
    }

    /// All rows of the command table.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be read.
    pub fn command_rows(&self) -> Result<Vec<(CommandKey, Meaning)>> {
        let mut rows = Vec::new();
        for key in self.commands.keys() {
            let found = self
                .commands
                .lookup(&key, MapFlags::ANY)
                .map_err(|error| Error::map("erb_commands", error))?;
            let meaning = found.as_deref().and_then(Meaning::read);
            rows.extend(CommandKey::try_from(key).ok().zip(meaning));
        }
        Ok(rows)
    }

    /// Changes a row of the command table; `None` removes it.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be changed.
    pub fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) -> Result<()> {
        match meaning {
            Some(meaning) => self.commands.update(key, &meaning.bytes(), MapFlags::ANY),
            None => self.commands.delete(key),
        }
        .map_err(|error| Error::map("erb_commands", error))
    }

    /// All tracked connections. Copies every entry: for people, not for the loop.
    #[must_use]
    pub fn conn_views(&self) -> Vec<ConnView> {
        self.conns
            .keys()
            .filter_map(|key| self.conns.lookup(&key, MapFlags::ANY).ok().flatten())
            .filter(|bytes| bytes.len() == size_of::<abi::conn>())
            .map(|bytes| view(&bytes))
            .collect()
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
        MissRing::new(&self.misses)
    }

    /// The ring that says when the daemon is wanted.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be mapped.
    pub fn wake_ring(&self) -> Result<WakeRing> {
        WakeRing::new(&self.wakes)
    }

    fn put_keys(&self, keys: &[&[u8]]) {
        assert!(
            keys.len() <= abi::FILL_BATCH as usize,
            "a batch is bounded by FILL_BATCH"
        );
        // SAFETY: the mapping is live and used by this thread only.
        unsafe { addr_of_mut!((*self.fill.ptr()).count).write_volatile(keys.len() as u32) };
        for (index, key) in keys.iter().enumerate() {
            let slot = self.slot(index);
            let length = key.len().min(abi::KEY_BYTES_MAX as usize);
            // SAFETY: slot points into the live mapping; the copy is bounded by the key array.
            unsafe {
                addr_of_mut!((*slot).key_len).write_volatile(length as u16);
                addr_of_mut!((*slot).status).write_volatile(abi::FILL_BUSY);
                let to = addr_of_mut!((*slot).key).cast::<u8>();
                to.copy_from_nonoverlapping(key.as_ptr(), length);
            }
        }
    }

    fn slot(&self, index: usize) -> *mut abi::fill_slot {
        assert!(
            index < abi::FILL_BATCH as usize,
            "a batch is bounded by FILL_BATCH"
        );
        // SAFETY: the mapping is live and the index is within the array.
        unsafe {
            addr_of_mut!((*self.fill.ptr()).slots)
                .cast::<abi::fill_slot>()
                .add(index)
        }
    }

    fn token(&self, index: usize) -> FillToken {
        let slot = self.slot(index);
        // SAFETY: slot points into the live mapping; the program that writes it has returned.
        unsafe {
            FillToken {
                status: addr_of!((*slot).status).read_volatile(),
                set: addr_of!((*slot).set).read_volatile(),
                cache_epoch: addr_of!((*slot).cache_epoch).read_volatile(),
                version: addr_of!((*slot).version).read_volatile(),
                global_version: addr_of!((*slot).global_version).read_volatile(),
            }
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

fn view(bytes: &[u8]) -> ConnView {
    // SAFETY: the caller checked the length; conn is plain data for which any bytes are valid, and
    // the read does not ask for alignment.
    let entry: abi::conn = unsafe { bytes.as_ptr().cast::<abi::conn>().read_unaligned() };
    ConnView::from(&entry)
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

    #[test]
    fn halving_keeps_bytes_apart() {
        let word = u64::from_ne_bytes([3, 2, 1, 0, 255, 1, 7, 128]);
        let halved = ((word >> 1) & MISS_HALF_MASK).to_ne_bytes();
        assert_eq!(halved, [1, 1, 0, 0, 127, 0, 3, 64]);
    }
}
