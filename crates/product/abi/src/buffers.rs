// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What control programs take and give: maps that the daemon has mapped.

use crate::values::Values;
use crate::{
    FILL_BATCH, FILL_BUSY, FillEntry, FillToken, ValueKind, WALK_PLACES, Wanted, admit_io, fill_io,
    fill_status, inject_io, release_io, sweep_io, walk_io,
};

/// What this process has mapped besides the control block.
pub struct Buffers {
    fill: Values,
    walk: Values,
    sweep: Values,
    release: Values,
    admit: Values,
    inject: Values,
    pub(crate) place_lines: Values,
    pub(crate) interests: Values,
}

impl Buffers {
    /// Maps them by their names.
    ///
    /// # Errors
    /// Those of `map`.
    pub fn new<E>(map: impl Fn(&'static str) -> Result<Values, E>) -> Result<Self, E> {
        Ok(Self {
            fill: map("erb_fill_io")?,
            walk: map("erb_walk_io")?,
            sweep: map("erb_sweep_io")?,
            release: map("erb_release_io")?,
            admit: map("erb_admit_io")?,
            inject: map("erb_inject_io")?,
            place_lines: map("erb_place_lines")?,
            interests: map("erb_interests")?,
        })
    }

    /// What fills and invalidations take and give; of this and the next, for who stands in for the
    /// programs.
    pub fn fill<R>(&self, work: impl FnOnce(&mut fill_io) -> R) -> R {
        self.fill.with(work)
    }

    /// What timer and sweep look at.
    pub fn walk<R>(&self, work: impl FnOnce(&mut walk_io) -> R) -> R {
        self.walk.with(work)
    }

    /// What a sweep has found.
    pub fn sweep<R>(&self, work: impl FnOnce(&mut sweep_io) -> R) -> R {
        self.sweep.with(work)
    }

    /// What is to be released.
    pub fn release<R>(&self, work: impl FnOnce(&mut release_io) -> R) -> R {
        self.release.with(work)
    }

    /// Who is to be admitted.
    pub fn admit<R>(&self, work: impl FnOnce(&mut admit_io) -> R) -> R {
        self.admit.with(work)
    }

    /// What comes again.
    pub fn inject<R>(&self, work: impl FnOnce(&mut inject_io) -> R) -> R {
        self.inject.with(work)
    }

    pub(crate) fn put_places(&self, places: &[u32]) {
        assert!(
            places.len() <= WALK_PLACES as usize,
            "a walk is bounded by WALK_PLACES"
        );
        self.walk(|io| {
            io.count = places.len() as u32;
            io.places[..places.len()].copy_from_slice(places);
        });
    }

    /// A key that is too long keeps its length: the programs refuse it.
    pub(crate) fn put_keys<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]>) {
        let count = keys.len();
        assert!(
            count <= FILL_BATCH as usize,
            "a batch is bounded by FILL_BATCH"
        );
        self.fill(|io| {
            io.count = count as u32;
            for (slot, key) in io.slots.iter_mut().zip(keys) {
                let length = key.len().min(slot.key.len());
                slot.key_len = u16::try_from(key.len()).unwrap_or(u16::MAX);
                slot.status = FILL_BUSY;
                slot.key[..length].copy_from_slice(&key[..length]);
            }
        });
    }

    pub(crate) fn put_values(&self, entries: &[FillEntry<'_>]) {
        self.put_keys(entries.iter().map(|entry| entry.key));
        self.fill(|io| {
            for (slot, entry) in io.slots.iter_mut().zip(entries) {
                let value = entry.value.unwrap_or_default();
                let length = value.len().min(slot.value.len());
                slot.set = entry.token.set;
                slot.cache_epoch = entry.token.cache_epoch;
                slot.version = entry.token.version;
                slot.global_version = entry.token.global_version;
                slot.expiry_ms = entry.expiry_ms;
                slot.value_len = length as u16;
                slot.db = entry.db;
                slot.type_ = entry.kind.byte();
                slot.absent = entry.value.is_none().into();
                slot.value[..length].copy_from_slice(&value[..length]);
            }
        });
    }

    /// Keys of which an invalidation said this.
    pub(crate) fn of_status(&self, status: fill_status) -> Vec<Wanted> {
        self.fill(|io| {
            let slots = io.slots.iter().take(io.count as usize);
            let wanted = slots.filter(|slot| slot.status == status);
            let keys = wanted.filter_map(|slot| {
                let key = slot.key.get(..usize::from(slot.key_len))?.to_vec();
                let kind = ValueKind::of(slot.type_.into())?;
                let db = slot.db;
                Some(Wanted { db, kind, key })
            });
            keys.collect()
        })
    }

    pub(crate) fn tokens(&self) -> Vec<FillToken> {
        self.fill(|io| {
            let slots = io.slots.iter().take(io.count as usize);
            slots.map(FillToken::of).collect()
        })
    }
}
