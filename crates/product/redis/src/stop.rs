// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detach: stop answering, wait until no connection needs translation.

use erb_abi::{self as abi, ConnView};

use crate::client_list::addresses;
use crate::clock::MS;
use crate::lease;
use crate::outside::{DataPath, TcpPair};

/// After `stopping` is set, a packet that was being answered at that moment is done by now.
const SETTLE_NS: u64 = 20 * MS;

/// Fills under way when detach is asked for have this long.
const FILLS_MAX_NS: u64 = 1000 * MS;

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// At work.
    Running,
    /// Detach was asked for at this time; leaves when nothing needs translation.
    Stopping {
        /// When, `CLOCK_MONOTONIC`, ns.
        since_ns: u64,
    },
    /// Leave now.
    Leaving,
}

/// How far it has come.
#[derive(Debug)]
pub(crate) struct Detach {
    stage: Stage,
    /// Whoever needed translation was reset.
    insists: bool,
}

impl Default for Detach {
    fn default() -> Self {
        Self {
            stage: Stage::Running,
            insists: false,
        }
    }
}

impl Detach {
    pub(crate) const fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether it was not asked for.
    pub(crate) fn is_running(&self) -> bool {
        self.stage == Stage::Running
    }

    /// It is asked for: nothing is answered any more, nobody taken in.
    pub(crate) fn begin(&mut self, path: &impl DataPath, now: u64) {
        // Where requests pass unread they go on to: entries do not know what has passed.
        path.set_stopping(path.stopping().max(abi::STOPPING_ANSWERS));
        path.set_admit(0);
        lease::end(path);
        if self.is_running() {
            tracing::info!("detaching");
            self.stage = Stage::Stopping { since_ns: now };
        }
    }

    /// Whether what is under way with Redis is waited for no longer.
    pub(crate) const fn may_hang_up(&self, now: u64, fills: usize) -> bool {
        match self.stage {
            Stage::Stopping { since_ns } => fills == 0 || now > since_ns + FILLS_MAX_NS,
            Stage::Running | Stage::Leaving => false,
        }
    }

    /// The feed has ended, and the sweep that began at `swept_ns` found so many that need
    /// translation.
    pub(crate) const fn leave_if_unneeded(&mut self, swept_ns: u64, translated: u32) {
        if let Stage::Stopping { since_ns } = self.stage
            && translated == 0
            && swept_ns > since_ns + SETTLE_NS
        {
            self.stage = Stage::Leaving;
        }
    }

    /// Whoever needed translation was reset: nobody is waited for.
    pub(crate) const fn insist(&mut self) {
        self.insists = true;
    }

    /// Whether what was being answered when it was asked for is done.
    pub(crate) const fn is_settled(&self, now: u64) -> bool {
        match self.stage {
            Stage::Stopping { since_ns } => now > since_ns + SETTLE_NS,
            Stage::Running => false,
            Stage::Leaving => true,
        }
    }

    /// Leaves, if that was insisted on.
    pub(crate) const fn leave_if_insisted(&mut self) {
        if self.insists {
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

#[cfg(test)]
mod tests {
    use erb_abi::ControlBlock as _;

    use super::*;
    use crate::doubles::Recorder;

    #[test]
    fn it_leaves_after_a_sweep_that_began_when_nothing_was_answered_any_more() {
        let (mut detach, path) = (Detach::default(), Recorder::default());
        path.set_admit(1);
        detach.leave_if_unneeded(u64::MAX, 0);
        assert!(detach.is_running() && !detach.may_hang_up(u64::MAX, 0));
        detach.begin(&path, 1000 * MS);
        detach.begin(&path, 5000 * MS);
        assert_eq!((path.control().admit(), path.stopping()), (0, 1));
        assert!(!detach.may_hang_up(2000 * MS, 1) && detach.may_hang_up(2001 * MS, 1));
        detach.leave_if_unneeded(1020 * MS, 0);
        detach.leave_if_unneeded(1021 * MS, 1);
        assert_ne!(detach.stage(), Stage::Leaving);
        detach.leave_if_unneeded(1021 * MS, 0);
        assert_eq!(detach.stage(), Stage::Leaving);
    }
}
