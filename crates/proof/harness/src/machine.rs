// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine was short of while tests ran: processor time above all. A test that fails while no
//! processor was to be had for seconds may be right; its report says so.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that wakes so much too late was kept from a processor.
const STALL_MIN: Duration = Duration::from_millis(1_000);
/// Stalls that are kept; more say nothing new.
const STALLS_MAX: usize = 10_000;
/// Less free memory than this is told, MB.
const MEMORY_MIN_MB: u64 = 500;

/// A moment in which no processor was to be had.
#[derive(Clone, Copy, Debug)]
struct Stall {
    at: Instant,
    late: Duration,
}

/// Looks at the machine for as long as the process runs.
#[derive(Clone, Debug, Default)]
pub struct Machine(Arc<Mutex<Vec<Stall>>>);

impl Machine {
    /// Begins to look, on a thread of its own.
    pub fn watched() -> Self {
        let machine = Self::default();
        let stalls = machine.0.clone();
        thread::spawn(move || {
            let mut before = Instant::now();
            loop {
                thread::sleep(LOOK);
                let now = Instant::now();
                let late = now.duration_since(before).saturating_sub(LOOK);
                before = now;
                if late >= STALL_MIN {
                    let mut stalls = stalls.lock().unwrap_or_else(PoisonError::into_inner);
                    if stalls.len() < STALLS_MAX {
                        stalls.push(Stall { at: now, late });
                    }
                }
            }
        });
        machine
    }

    /// What it was short of since `began`, a line each.
    pub fn short_since(&self, began: Instant) -> Vec<String> {
        let stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = stalls.iter().filter(|stall| stall.at >= began);
        let mut said = Vec::new();
        if let Some(longest) = since.map(|stall| stall.late).max() {
            said.push(format!("no processor for {:.1} s", longest.as_secs_f32()));
        }
        if let Some(free) = memory_free_mb().filter(|free| *free < MEMORY_MIN_MB) {
            said.push(format!("{free} MB of memory left"));
        }
        said
    }
}

/// MemAvailable of /proc/meminfo.
fn memory_free_mb() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kb: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kb / 1024)
}

/// Load, memory and room, in a line.
pub fn now() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    let memory = memory_free_mb().map_or_else(|| "?".to_owned(), |mb| mb.to_string());
    format!("load {}, {memory} MB of memory free", load.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_since_a_moment_are_told_with_the_longest() {
        let machine = Machine::default();
        let began = Instant::now();
        let late = |ms| Duration::from_millis(ms);
        let old = began.checked_sub(late(1)).expect("a clock that has run");
        let stalls = [(old, 9_000), (began, 1_200), (began, 3_400)];
        let stalls = stalls.map(|(at, ms)| Stall { at, late: late(ms) });
        machine.0.lock().expect("a lock").extend(stalls);
        assert_eq!(machine.short_since(began), ["no processor for 3.4 s"]);
    }

    #[test]
    fn the_machine_says_how_it_is() {
        assert!(memory_free_mb().is_some_and(|mb| mb > 0));
        assert!(now().starts_with("load "));
    }
}
