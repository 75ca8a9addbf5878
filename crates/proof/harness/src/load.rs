// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Busy processes beside the tests, for `--load`: a machine that does other things.

use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::run::in_a_session;

/// Processes that compute at normal priority until this is dropped, each in a session of its own: the
/// scheduler may give each session the same share.
#[derive(Debug)]
pub struct Load(Vec<Child>);

impl Load {
    /// Starts so many.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(count: usize) -> Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("bash");
            command.args(["-c", "while :; do :; done"]);
            command.stdin(Stdio::null());
            in_a_session(&mut command);
            load.0.push(command.spawn().context("cannot run bash")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
