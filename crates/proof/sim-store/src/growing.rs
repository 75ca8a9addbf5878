// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store on a simulated disk gets more segments: while nobody has it open, and while it runs.

use erb_sim_disk::CrashMode;
use erb_store::growth::{Growth, GrowthIo};
use erb_store::layout::{Layout, SUPERBLOCKS};

use crate::node::{Hidden, Node, SEGMENT_BYTES};

/// A running store does not grow beyond it: areas of the control log are short.
const SEGMENTS_MOST: u32 = 240;

impl Node {
    /// The machine stops, and the store gets so many segments more, unless it stops again behind so many reads and
    /// writes of that. Then it is opened again. True: the growth has come to its end.
    pub(crate) fn grow(&mut self, segments: u64, cut_off: Option<u32>) -> Result<bool, String> {
        self.halt(CrashMode::Power);
        let has = self.store.layout();
        let wants = has.segments_end() + segments * has.segment_bytes;
        self.disk.grow(wants as usize);
        let copies: [_; SUPERBLOCKS] = std::array::from_fn(|copy| {
            let address = Layout::superblock_at(copy) as usize;
            self.disk.read(address, 4096).ok()
        });
        let growth = Growth::new(&copies, wants);
        let mut growth = growth.map_err(|error| error.to_string())?;
        let mut left = cut_off;
        let is_over = loop {
            let Some(io) = growth.io() else {
                break true;
            };
            match io {
                GrowthIo::Zeros { address, bytes } => {
                    self.disk.write(address as usize, vec![0; bytes as usize]);
                }
                GrowthIo::Superblock { address, bytes } => {
                    self.disk.write(address as usize, bytes);
                }
                GrowthIo::Flush => {
                    let flushed = self.disk.flush();
                    flushed.map_err(|_| "a flush failed".to_owned())?;
                }
            }
            // What is cut off has begun: its sectors may be there.
            if left == Some(0) {
                break false;
            }
            left = left.map(|left| left - 1);
            if let Some((_, ended)) = self.disk.complete_one() {
                ended.map_err(|_| "a write failed".to_owned())?;
            }
            growth.done();
        };
        self.disk.crash(CrashMode::Power);
        self.open_again(Hidden::new())?;
        Ok(is_over)
    }

    /// The store gets so many segments more while it runs. What lies there is anything, and durable.
    /// False: it is large enough, or grows already.
    pub(crate) fn grow_running(&mut self, segments: u64) -> bool {
        let mut layout = self.store.layout();
        if layout.segments() >= SEGMENTS_MOST {
            return false;
        }
        layout.store_bytes = layout.segments_end() + segments * SEGMENT_BYTES;
        // It may be there since a growth that a crash has cut off.
        let there = self.disk.bytes().max(layout.store_bytes as usize);
        self.disk.grow(there);
        self.store.control.grow(layout)
    }
}
