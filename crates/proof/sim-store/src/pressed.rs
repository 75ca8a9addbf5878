// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests do to a store that is short of space: write without waiting, and kill it before it has made room.

use erb_sim_disk::CrashMode;
use erb_store::shard::NotWritten;
use erb_store::space::Space;
use erb_store::{Condition, Refused, Version};

use crate::steady::{PATIENCE, Steady};

/// One of so many steps is a sweep, where there are some.
const SWEEP_STEPS: u8 = 16;

impl Steady {
    /// A writer waits: all goes on by itself. A full store is swept too, by which it may find room.
    pub(crate) fn wait_step(&mut self) {
        self.node.settle_step();
        if self.space() >= Space::Full && self.node.random.u8(..SWEEP_STEPS) == 0 {
            self.sweep_unsettled();
        }
    }

    /// Writes values over those of keys that chance takes, as fast as the store lets anybody.
    ///
    /// # Errors
    /// One is refused: its number.
    ///
    /// # Panics
    /// One is not answered.
    pub fn overwrite(&mut self, keys: u32, count: u32, value: &[u8]) -> Result<(), (u32, Refused)> {
        for number in 0..count {
            let name = format!("k{}", self.node.random.u32(..keys));
            let mut steps = 0;
            loop {
                match self.put_if_unwaited(&name, value, Condition::Any) {
                    Ok(_) => break,
                    Err(NotWritten::Refused(refused, _)) => return Err((number, refused)),
                    Err(NotWritten::Failed) => panic!("a write has failed"),
                    Err(NotWritten::Busy | NotWritten::Frozen) => steps += 1,
                }
                assert!(steps < PATIENCE, "a write is not answered");
                self.node.settle_step();
                if self.node.random.u8(..SWEEP_STEPS) == 0 {
                    self.sweep_unsettled();
                }
            }
        }
        Ok(())
    }

    /// What had ended by then is trimmed, and so many steps later the process is killed, and the store opened again.
    ///
    /// # Panics
    /// It does not open, or nothing is ever trimmed.
    pub fn trim_and_kill(&mut self, below: Version, steps: u32) {
        let is_swept = |store: &mut Self| store.node.store.shards[0].sweep(below);
        let found = (0..PATIENCE).any(|_| {
            self.node.settle_step();
            is_swept(self)
        });
        assert!(found, "a sweep is not let in");
        for _ in 0..steps {
            self.node.settle_step();
        }
        let opened = self.node.crash_sound(CrashMode::Process);
        opened.expect("the store opens");
    }
}
