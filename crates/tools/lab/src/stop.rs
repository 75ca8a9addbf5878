// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGINT and SIGTERM end what works in a lab at its next look, so that the lab is removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether one of the two signals came since it was made.
pub struct Stop {
    came: Arc<AtomicBool>,
    at_once: Arc<AtomicBool>,
}

impl Stop {
    /// Starts watching; from then on the signals do not end the process.
    ///
    /// # Errors
    /// If a signal cannot be watched.
    pub fn watch() -> Result<Self> {
        let (came, at_once) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&at_once))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&came)))
                .with_context(|| format!("could not watch signal {signal}"))?;
        }
        Ok(Self { came, at_once })
    }

    /// From now on the signals end the process where it stands, or do not any more: for as long as nothing is there that would
    /// be left behind.
    pub fn ends_at_once(&self, ends: bool) {
        self.at_once.store(ends, Ordering::SeqCst);
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// Once a signal came.
    pub fn check(&self) -> Result<()> {
        ensure!(
            !self.came.load(Ordering::Relaxed),
            "interrupted by a signal; the lab was removed"
        );
        Ok(())
    }
}
