// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices come and go between two calls of a turn, and between two answers of the machine. Whoever drives the core
//! need not know: what could not be done at this moment is done with the next tick.

use super::{Core, LOOPBACK_IFINDEX};
use crate::clock::SECOND_NS;
use crate::outside::{Cause, DataPath, Error, Machine, Result};

/// A machine that has not said for so long what it has will not say it.
const UNTOLD_MAX_NS: u64 = 5 * SECOND_NS;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Covers devices that have come, and leaves those that have gone: for whoever hears of that.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn look_at_devices(&mut self) -> Result<()> {
        let done = self.cover();
        self.outlive(done)
    }

    pub(super) fn cover(&self) -> Result<()> {
        for name in self.machine.cover_egress()? {
            tracing::info!("replies by {name} are watched from now on");
        }
        Ok(())
    }

    /// What came of something that the next tick does again: a moment at which a device, or an answer of the machine, is
    /// not there is no failure.
    pub(super) fn outlive(&mut self, done: Result<()>) -> Result<()> {
        let done = match done {
            Err(Error::DeviceGone(_)) => self.change_device(),
            done => done,
        };
        match done {
            Err(Error::Untold(why)) => self.ask_machine_again(why),
            done => done,
        }
    }

    fn ask_machine_again(&mut self, why: Cause) -> Result<()> {
        let now = self.machine.monotonic_ns();
        let since_ns = *self.untold_since_ns.get_or_insert_with(|| {
            tracing::warn!("{why}: asked again");
            now
        });
        if now.saturating_sub(since_ns) >= UNTOLD_MAX_NS {
            return Err(Error::Untold(why));
        }
        // By devices that have come meanwhile clients may write unseen.
        self.writes.gate().forget_machine();
        self.writes.gate().shut(&self.path);
        // All that is done once a second, whatever of it was done.
        self.next_second_ns = self.next_second_ns.min(now);
        Ok(())
    }

    /// The device on which programs are run is gone: takes the next one. After the last one
    /// connections may go on by devices that are not boosted, and need translation there.
    fn change_device(&mut self) -> Result<()> {
        if let Some(ifindex) = self.machine.present_device()? {
            self.path.run_on(ifindex);
            return Ok(());
        }
        self.path.run_on(LOOPBACK_IFINDEX);
        if self.detach.is_running() {
            tracing::warn!("no boosted device is left");
            self.stop(false)?;
        }
        Ok(())
    }
}
