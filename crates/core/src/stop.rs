// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detach: stop answering, wait until no connection needs translation.

use erb_abi::ConnView;

use crate::client_list::addresses;
use crate::outside::{DataPath, Machine, Result, TcpPair};
use crate::turn::{Core, MS, Stage};

/// After `stopping` is set, a packet that was being answered at that moment is done by now.
const SETTLE_NS: u64 = 20 * MS;

/// Fills under way when detach is asked for have this long.
const FILLS_MAX_NS: u64 = 1000 * MS;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// The last act before another daemon takes over: nothing is answered in between. What is
    /// attached stays.
    pub fn hand_over(&self) {
        self.path.set_serving(0);
        self.path.set_lease_until_ns(0);
    }

    /// Stops answering; with `force` resets what still needs translation and leaves at once.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn stop(&mut self, force: bool) -> Result<()> {
        self.path.set_stopping(1);
        self.path.set_serving(0);
        self.path.set_admit(0);
        self.path.set_lease_until_ns(0);
        if self.stage == Stage::Running {
            tracing::info!("detaching");
            self.stage = Stage::Stopping {
                since_ns: self.machine.monotonic_ns(),
            };
        }
        if force {
            reset_translated(&self.path.conn_views(), |pair, cookie| {
                self.machine.destroy(pair, cookie)
            })?;
            self.stage = Stage::Leaving;
        } else {
            self.sweep_anew()?;
        }
        Ok(())
    }

    /// Leaves when fills are done and the sweep that began at `swept_ns` found nothing to translate.
    pub(crate) fn leave_if_unneeded(&mut self, since_ns: u64, swept_ns: u64) {
        let now = self.machine.monotonic_ns();
        if self.feed.is_some() && (self.fills_in_flight() == 0 || now > since_ns + FILLS_MAX_NS) {
            self.feed = None;
            self.watch.no_feed("detaching");
        }
        if self.feed.is_none() && self.sweep.translated == 0 && swept_ns > since_ns + SETTLE_NS {
            self.stage = Stage::Leaving;
        }
    }
}

/// Ends every connection that cannot go on without translation.
///
/// # Errors
/// Those of `destroy`.
pub fn reset_translated<E>(
    views: &[ConnView],
    destroy: impl Fn(&TcpPair, u64) -> std::result::Result<bool, E>,
) -> std::result::Result<(), E> {
    let mut reset = 0;
    let needed = |view: &&ConnView| view.in_delta != 0 || view.out_delta != 0;
    for view in views.iter().filter(needed) {
        let (client, server) = addresses(&view.key);
        if destroy(&TcpPair { client, server }, view.cookie)? {
            reset += 1;
        }
    }
    if reset > 0 {
        tracing::warn!("{reset} connections were reset");
    }
    Ok(())
}
