// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store that recovery has opened: what a driver has of it.

use std::sync::Arc;

use crate::control::Control;
use crate::key::{Key, KeyHasher, Name};
use crate::layout::Layout;
use crate::mistake::{Rules, Sound};
use crate::shard::Shard;
use crate::version::{Doubt, Wall};
use crate::watermark::Shared;

/// A store that is open as soon as its control log has begun.
#[derive(Debug)]
pub struct Opened<R = Sound> {
    /// What concerns all shards.
    pub control: Control<R>,
    /// By number.
    pub shards: Vec<Shard<R>>,
    /// Clock and watermark.
    pub shared: Arc<Shared>,
    /// Finds a key's shard: [`Opened::shard_of`].
    pub hasher: KeyHasher,
    /// A repair has gone on without entries of the control log, from this byte of the store on.
    pub lost_entries_at: Option<u64>,
}

impl<R: Rules + Copy> Opened<R> {
    /// The shard of a key.
    #[must_use]
    pub fn shard_of(&self, key: Key<'_>) -> u16 {
        self.shard_of_name(&Name::of(key))
    }

    /// The shard of a key's name.
    #[must_use]
    pub fn shard_of_name(&self, name: &Name) -> u16 {
        self.layout().shard_of(self.hasher.hash(name))
    }

    /// What lies where. A store that grows has more of it.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.control.layout()
    }

    /// The wall clock as the node follows it from now on.
    ///
    /// # Errors
    /// The clock is in doubt by what the store has seen, and nobody `is_sure`.
    pub fn wall(&self, wall_us: u64, monotonic_us: u64, is_sure: bool) -> Result<Wall, Doubt> {
        let state = self.control.state();
        let last_tick_us = (state.wall_us > 0).then_some(state.wall_us);
        Wall::start(wall_us, monotonic_us, state.ceiling, last_tick_us, is_sure)
    }

    /// A write has failed: nothing more is acknowledged, and the store has to be opened again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.control.failed().is_some() || self.shards.iter().any(Shard::has_failed)
    }
}
