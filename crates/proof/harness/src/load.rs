// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Busy processes beside the tests, for `--load`: a machine that does other things.

use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::child::{in_a_session, session};
use crate::stop::Stop;

/// Processes that compute at normal priority until this is dropped, each in a session of its own: the
/// scheduler may give each session the same share.
#[derive(Debug, Default)]
pub struct Load(Vec<Child>, Stop);

impl Load {
    /// Starts so many.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(count: usize, stop: &Stop) -> Result<Self> {
        let mut load = Self(Vec::new(), stop.clone());
        for _ in 0..count {
            let mut command = Command::new("bash");
            command.args(["-c", "while :; do :; done"]);
            command.stdin(Stdio::null());
            in_a_session(&mut command);
            let child = command.spawn().context("cannot run bash")?;
            stop.started(session(&child));
            load.0.push(child);
        }
        Ok(load)
    }

    /// How many have ended, and of how many, if any has.
    pub fn ended(&mut self) -> Option<(usize, usize)> {
        let all = self.0.len();
        let has_ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        let ended = self.0.iter_mut().map(has_ended).filter(|it| *it).count();
        (ended > 0).then_some((ended, all))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only if it has ended.
            let _ = child.kill();
            self.1.ended(session(child));
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, kill};

    use super::*;

    impl Load {
        /// Two processes, of which one has ended.
        pub fn that_has_ended() -> Self {
            let mut load = Self::start(2, &Stop::default()).expect("bash");
            assert_eq!(load.ended(), None);
            kill(session(&load.0[0]), Signal::SIGKILL).expect("it runs");
            while load.ended().is_none() {
                std::thread::yield_now();
            }
            load
        }
    }

    #[test]
    fn load_that_has_ended_is_noticed() {
        assert_eq!(Load::that_has_ended().ended(), Some((1, 2)));
    }

    #[test]
    fn load_ends_with_the_thread_that_started_it() {
        let started = std::thread::spawn(|| Load::start(1, &Stop::default()).expect("bash"));
        let mut load = started.join().expect("started");
        while load.ended().is_none() {
            std::thread::yield_now();
        }
    }
}
