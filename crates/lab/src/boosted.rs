// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the boost of a lab says of itself, asked of this very program, which carries it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{End, Lab};

/// The daemon serves a fraction of a second after the boost.
const SERVING_WAIT: Duration = Duration::from_secs(10);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

impl Lab {
    /// What `erb status` prints of the lab's boost, with these words more.
    ///
    /// # Errors
    /// If it cannot be run or fails.
    pub fn boost_status(&self, words: &[&str]) -> Result<String> {
        let program = std::env::current_exe().context("cannot tell the path of this program")?;
        let output = self
            .exec(End::Server, program)?
            .args(["status", "--run-dir"])
            .arg(&self.state().run_dir)
            .args(words)
            .output()
            .context("cannot run `erb status`")?;
        ensure!(
            output.status.success(),
            "erb status failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until ERB answers, new connections included.
    ///
    /// # Errors
    /// If it does not, with what it says of itself.
    pub fn wait_until_serving(&self) -> Result<()> {
        let end = Instant::now() + SERVING_WAIT;
        loop {
            let status: Value = serde_json::from_str(&self.boost_status(&["--json"])?)
                .context("`erb status --json` printed no JSON")?;
            let is = |field: &str| status.get(field) == Some(&Value::Bool(true));
            if is("serving") && is("admitting") {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "ERB does not serve after {SERVING_WAIT:?}; it says:\n{}",
                self.boost_status(&[])?
            );
            thread::sleep(PAUSE);
        }
    }
}
