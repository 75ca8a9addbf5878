// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks, and how they are told.

pub mod copies;
pub mod freed;
pub mod kills;
pub mod traps;

use std::fs;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Result;

/// A check that takes longer hangs, as does what waits for the kernel.
const HANGS: Duration = Duration::from_secs(240);

/// How many have failed.
#[derive(Debug, Default)]
pub struct Tally {
    /// What each line begins with.
    pub place: String,
    /// Part of a check's name; all that have it are done.
    pub only: Option<String>,
    /// Those that ran.
    pub done: u32,
    /// Those that failed.
    pub failed: u32,
}

impl Tally {
    /// Runs one. Its words are what was seen.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<String>) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only)) {
            return;
        }
        let begin = Instant::now();
        let watch = self.watch(name);
        let result = check();
        drop(watch);
        let (verdict, words) = match result {
            Ok(words) => ("ok", words),
            Err(error) => {
                self.failed += 1;
                ("FAILED", format!("{error:#}"))
            }
        };
        self.done += 1;
        let seconds = begin.elapsed().as_secs_f32();
        println!(
            "{verdict:<6} {} {name:<28} {words} [{seconds:.1} s]",
            self.place
        );
    }

    /// Ends the program when what is returned has lived for too long; the kernel says who waits where.
    fn watch(&self, name: &str) -> mpsc::Sender<()> {
        let (alive, watched) = mpsc::channel();
        let name = format!("{} {name}", self.place);
        std::thread::spawn(move || {
            if watched.recv_timeout(HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
                println!("FAILED {name} hangs");
                // Best effort, for people.
                let _ = fs::write("/proc/sysrq-trigger", "w");
                std::process::exit(1);
            }
        });
        alive
    }
}
