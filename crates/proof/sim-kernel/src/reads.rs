// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon and the checks read and write of the maps, beside programs.

use erb_abi::ControlPlane as _;

use crate::datapath::{Datapath, DatapathConfig};
use crate::map::Map;

impl Datapath {
    /// Programs run outside of tasks run on this CPU from now on.
    pub fn set_outside_cpu(&self, cpu: u32) {
        self.0.outside.set(cpu);
    }

    /// Programs run so far.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.0.runs.get()
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn config(&self) -> &DatapathConfig {
        &self.0.config
    }

    /// What the loader puts into them.
    pub(crate) fn fill_maps(&self) {
        for command in &erb_abi::COMMANDS {
            let done = self.set_command(&command.key(), Some(&command.meaning()));
            done.expect("the command table is large enough");
        }
        // SAFETY: no program runs yet.
        let control = unsafe { &mut *self.control() };
        control.port_be = self.0.config.port.to_be();
        let devices = self.0.config.devices;
        control.devices[..devices.len()].copy_from_slice(devices);
        control.set_mask = u64::from(self.0.config.sets) - 1;
        control.hash = erb_abi::hash_secret::of_seed(self.0.config.hash_seed);
        control.conns_max = self.0.config.conns;
        control.client_conns_max = self.0.config.client_conns;
        control.fills = 1;
        control.abi_version = erb_abi::ERB_ABI_VERSION;
    }

    fn only_value<T>(&self, number: usize) -> *mut T {
        match self.0.map(number) {
            Map::Array(values) => values.get(0).cast(),
            _ => panic!("map {number} is an array"),
        }
    }

    /// The control block, as the daemon maps it. Valid as long as the data path.
    #[must_use]
    pub fn control(&self) -> *mut erb_abi::control {
        self.only_value(self.0.known.control)
    }

    /// Whose a place is, if there is such a place.
    #[must_use]
    pub fn place_key(&self, place: u32) -> Option<erb_abi::conn_key> {
        let Map::Array(places) = self.0.map(self.0.known.places) else {
            panic!("erb_places is an array")
        };
        let index = (place as usize).checked_sub(1)?;
        // SAFETY: values of this map are this type and stay where they are: M1.
        (index < places.count())
            .then(|| unsafe { (*places.get(index).cast::<erb_abi::place>()).key })
    }

    /// One counter, summed over the CPUs.
    #[must_use]
    pub fn stat(&self, stat: erb_abi::erb_stat) -> u64 {
        let Map::PerCpu { values, entries } = self.0.map(self.0.known.stats) else {
            panic!("erb_stats is a per-CPU array")
        };
        let place = |cpu| values.get(cpu * *entries + stat as usize).cast::<u64>();
        // SAFETY: values of the map are u64; no program runs while this reads.
        (0..self.0.config.cpus)
            .map(|cpu| unsafe { place(cpu).read() })
            .sum()
    }

    /// All counters, in the order of [`erb_abi::REASONS`].
    #[must_use]
    pub fn stats(&self) -> Vec<u64> {
        (0..erb_abi::STAT_MAX).map(|stat| self.stat(stat)).collect()
    }

    /// Misses reported since the last call, at most so many.
    #[must_use]
    pub fn take_misses(&self, most: usize) -> Vec<erb_abi::Wanted> {
        self.take_keys(self.0.known.misses, most)
    }

    /// Keys of sampled packets that were reported since the last call.
    #[must_use]
    pub fn take_heat(&self) -> Vec<erb_abi::Wanted> {
        self.take_keys(self.0.known.heat, usize::MAX)
    }

    fn take_keys(&self, map: usize, most: usize) -> Vec<erb_abi::Wanted> {
        self.take_records(map, most, erb_abi::Wanted::of_miss)
    }

    fn take_records<T>(&self, map: usize, most: usize, read: fn(&[u8]) -> Option<T>) -> Vec<T> {
        let Map::Ring(ring) = self.0.map(map) else {
            panic!("records are told in a ring buffer")
        };
        std::iter::from_fn(|| ring.take())
            .take(most)
            .filter_map(|record| read(&record))
            .collect()
    }

    /// Whether the data path has asked for the daemon since the last call.
    #[must_use]
    pub fn take_wakes(&self) -> bool {
        match self.0.map(self.0.known.wakes) {
            Map::Ring(ring) => std::iter::from_fn(|| ring.take()).count() > 0,
            _ => panic!("erb_wakes is a ring buffer"),
        }
    }

    /// Copies of packets that wait, since the last call, at most so many.
    #[must_use]
    pub fn take_held(&self, most: usize) -> Vec<erb_abi::HeldPacket> {
        self.take_records(self.0.known.held, most, erb_abi::HeldPacket::of_record)
    }

    /// Copies that are still in their ring.
    #[must_use]
    pub fn held_waiting(&self) -> usize {
        match self.0.map(self.0.known.held) {
            Map::Ring(ring) => ring.len(),
            _ => panic!("erb_held is a ring buffer"),
        }
    }

    /// Records in the ring of misses.
    #[must_use]
    pub fn misses_waiting(&self) -> usize {
        match self.0.map(self.0.known.misses) {
            Map::Ring(ring) => ring.len(),
            _ => panic!("erb_misses is a ring buffer"),
        }
    }

    fn conns(&self) -> &crate::map::Hash {
        match self.0.map(self.0.known.conns) {
            Map::Hash(hash) => hash,
            _ => panic!("erb_conns is a hash"),
        }
    }

    /// Entries in the table of connections.
    #[must_use]
    pub fn conn_count(&self) -> usize {
        self.conns().len()
    }

    /// Shows every tracked connection: its key in the table, and the entry.
    pub fn each_conn(&self, mut each: impl FnMut(&erb_abi::conn_key, &erb_abi::conn)) {
        let hash = self.conns();
        for place in 0..hash.places() {
            if let Some((key, value)) = hash.at(place) {
                // SAFETY: key and value of this map are these types, checked by the sizes below;
                // no program runs meanwhile.
                unsafe {
                    let key = key.as_ptr().cast::<erb_abi::conn_key>().read_unaligned();
                    each(&key, &*value.cast::<erb_abi::conn>());
                }
            }
        }
    }

    /// The entry of one connection.
    #[must_use]
    pub fn conn(&self, key: &erb_abi::conn_key) -> Option<&erb_abi::conn> {
        // SAFETY: conn_key is plain data without padding bytes that are not fields.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(key).cast::<u8>(),
                size_of::<erb_abi::conn_key>(),
            )
        };
        let hash = self.conns();
        let place = hash.find(bytes)?;
        // SAFETY: values of this map are struct conn and stay where they are: M1.
        Some(unsafe { &*hash.value(place).cast::<erb_abi::conn>() })
    }

    /// The buffers for payload beyond a hole, by number - 1. Read them while no program runs.
    pub fn aheads(&self) -> impl Iterator<Item = &erb_abi::ahead> {
        let Map::Array(values) = self.0.map(self.0.known.ahead) else {
            panic!("erb_ahead is an array")
        };
        // SAFETY: values of this map are this type and stay where they are: M1.
        (0..values.count()).map(|index| unsafe { &*values.get(index).cast() })
    }

    fn word(&self, map: usize, place: u32) -> u32 {
        match self.0.map(map) {
            // SAFETY: values of these maps are this type and stay where they are: M1.
            Map::Array(words) => unsafe { *words.get(place as usize).cast::<u32>() },
            _ => panic!("it is an array"),
        }
    }

    /// From now on an address has so many places in the table at most.
    pub fn set_client_share(&self, places: u32) {
        // SAFETY: the map has one value, which stays where it is; no program runs.
        unsafe { (*self.control()).client_conns_max = places };
    }

    /// How many entries are counted for the client's address. Read it while no program runs.
    #[must_use]
    pub fn client_count(&self, key: &erb_abi::conn_key) -> u32 {
        // SAFETY: the map has one value, which stays where it is.
        let place = unsafe { &(*self.control()).hash }.client_place(key);
        self.word(self.0.known.clients, place)
    }

    /// Where that is counted.
    #[must_use]
    pub fn client_place(&self, key: &erb_abi::conn_key) -> u32 {
        // SAFETY: as above.
        unsafe { &(*self.control()).hash }.client_place(key)
    }

    /// When payload of the connection last passed unseen, 2^20 ns; 0: never.
    #[must_use]
    pub fn unseen_time(&self, key: &erb_abi::conn_key) -> u32 {
        // SAFETY: as above.
        let place = unsafe { &(*self.control()).hash }.unseen_place(key);
        self.word(self.0.known.unseen, place)
    }

    /// Number of cache sets.
    #[must_use]
    pub fn set_count(&self) -> usize {
        self.0.config.sets as usize
    }

    /// A cache set's digest. Read it while no program runs.
    ///
    /// # Panics
    /// If there is no such set.
    #[must_use]
    pub fn digest(&self, index: usize) -> &erb_abi::cache_digest {
        match self.0.map(self.0.known.digests) {
            // SAFETY: values of this map are this type and stay where they are: M1.
            Map::Array(digests) => unsafe { &*digests.get(index).cast() },
            _ => panic!("the digests are an array"),
        }
    }

    /// A cache set and its larger slots. Read it while no program runs.
    ///
    /// # Panics
    /// If there is no such set.
    #[must_use]
    pub fn set(&self, index: usize) -> (&erb_abi::cache_set, &erb_abi::cache_large) {
        match (
            self.0.map(self.0.known.sets),
            self.0.map(self.0.known.large),
        ) {
            // SAFETY: values of these maps are these types and stay where they are: M1.
            (Map::Array(sets), Map::Array(large)) => unsafe {
                (&*sets.get(index).cast(), &*large.get(index).cast())
            },
            _ => panic!("the cache's maps are arrays"),
        }
    }

    /// A set's last absorbed write has this LSN. No program runs meanwhile.
    ///
    /// # Panics
    /// If there is no such set.
    pub fn note_lsn(&self, index: usize, lsn: u64) {
        match self.0.map(self.0.known.sets) {
            // SAFETY: values of this map are this type and stay where they are: M1.
            Map::Array(sets) => unsafe {
                (*sets.get(index).cast::<erb_abi::cache_set>()).lsn = lsn as u32;
            },
            _ => panic!("the sets are an array"),
        }
    }

    /// This CPU answers a write of this set, or is done with that; it does the one or the other once more.
    pub fn set_busy(&self, cpu: usize, set: Option<usize>) {
        match self.0.map(self.0.known.busy) {
            // SAFETY: values of this map are this type and stay where they are: M1; one task runs.
            Map::Array(lines) => unsafe {
                let word = &raw mut (*lines.get(cpu).cast::<erb_abi::busy_line>()).word;
                let count = (word.read() >> 32) + 1;
                word.write(count << 32 | set.map_or(0, |set| set as u64 + 1));
            },
            _ => panic!("erb_busy is an array"),
        }
    }
}
