// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGINT and SIGTERM end what works in a lab at its next look, so that the lab is removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether one of the two signals came since it was made.
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Starts watching; from then on the signals do not end the process.
    ///
    /// # Errors
    /// If a signal cannot be watched.
    pub fn watch() -> Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&raised))
                .with_context(|| format!("could not watch signal {signal}"))?;
        }
        Ok(Self(raised))
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// Once a signal came.
    pub fn check(&self) -> Result<()> {
        ensure!(
            !self.0.load(Ordering::Relaxed),
            "interrupted by a signal; the lab was removed"
        );
        Ok(())
    }
}
