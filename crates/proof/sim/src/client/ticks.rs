// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A timestamp clock that steps, between a machine's TCP, which must not know, and its link.

use std::collections::BTreeMap;

/// Stamps that are further apart than this are of different steps.
const APART: u32 = 1 << 27;

/// What is added to the stamps of a machine's TCP.
#[derive(Debug, Default)]
pub struct Ticks {
    /// Since each step, the newest last.
    offsets: Vec<u32>,
    /// The newest stamp of each port, as TCP made it.
    made: BTreeMap<u16, u32>,
}

impl Ticks {
    fn offset(&self) -> u32 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// The clock steps by so many ticks.
    pub fn step(&mut self, by: u32) {
        self.offsets.push(self.offset().wrapping_add(by));
    }

    /// What the wire shows of a stamp.
    pub fn sent(&mut self, port: u16, stamp: u32) -> u32 {
        self.made.insert(port, stamp);
        stamp.wrapping_add(self.offset())
    }

    /// The newest stamp of a port as the wire would show it now.
    #[must_use]
    pub fn newest(&self, port: u16) -> Option<u32> {
        let made = self.made.get(&port)?;
        Some(made.wrapping_add(self.offset()))
    }

    /// The stamp of TCP's that a peer echoes: made before the newest, and not long before.
    #[must_use]
    pub fn heard(&self, port: u16, echo: u32) -> u32 {
        let Some(made) = self.made.get(&port) else {
            return echo;
        };
        let offsets = self.offsets.iter().rev().chain(&[0]);
        let mut stamps = offsets.map(|offset| echo.wrapping_sub(*offset));
        stamps
            .find(|stamp| made.wrapping_sub(*stamp) < APART)
            .unwrap_or(echo)
    }
}
