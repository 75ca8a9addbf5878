// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGINT and SIGTERM end a measurement at its next wait, so that namespaces are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Longest time until a signal is noticed.
const POLL: Duration = Duration::from_millis(50);

/// Watches the two signals while it lives.
#[derive(Debug)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Starts watching.
    pub fn watch() -> Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        let mut ids = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            let id = signal_hook::flag::register(signal, Arc::clone(&raised))
                .with_context(|| format!("could not watch signal {signal}"))?;
            ids.push(id);
        }
        Ok(Self { raised, ids })
    }

    /// An error once a signal came.
    pub fn check(&self) -> Result<()> {
        if self.raised.load(Ordering::Relaxed) {
            bail!("interrupted by a signal; the measurement was not finished");
        }
        Ok(())
    }

    /// Sleeps, unless a signal comes.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(POLL));
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
