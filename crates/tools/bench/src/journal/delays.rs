// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long after its reply a SET is synced: seen from without, by what `erb status` says again and again.
//!
//! The reply to the SET with an LSN was sent when that many were answered, and it is synced when that LSN is durable. A look
//! tells both numbers. So each figure is as exact as looks are close to each other; of the kernel module the daemon asks
//! each 0.2 s, and no look is newer than that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use erb_lab::Boost;
use serde::Serialize;

use crate::boosted::kept;

/// Between looks. Each starts a process; more would be a load of their own.
const LOOK: Duration = Duration::from_millis(10);

/// What a look told.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// When it had begun, and when it was answered, since the first one began.
    pub began: Duration,
    /// See above.
    pub ended: Duration,
    /// SETs that were answered in Redis's place.
    pub answered: u64,
    /// LSN up to which they are synced.
    pub durable: u64,
}

/// From reply to sync, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delays {
    /// Half of the SETs took less.
    pub p50_ms: f64,
    /// 99 of 100 did.
    pub p99_ms: f64,
    /// Half of the looks were less apart.
    pub look_ms: f64,
}

/// Looks until it is told to stop.
pub fn watch(boost: &Boost, stop: &AtomicBool) -> Result<Vec<Look>> {
    let first = Instant::now();
    let mut looks = Vec::new();
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        let began = first.elapsed();
        let (answered, journal) = kept(boost)?;
        looks.push(Look {
            began,
            ended: first.elapsed(),
            answered,
            durable: journal.durable_lsn,
        });
        if is_last {
            return Ok(looks);
        }
        sleep(LOOK);
    }
}

/// None: nothing was answered between looks, or not all of that was synced.
pub fn delays(looks: &[Look]) -> Option<Delays> {
    let mut found: Vec<(f64, u64)> = Vec::new();
    let mut at = 0;
    for pair in looks.windows(2) {
        let (before, now) = (&pair[0], &pair[1]);
        let count = now.answered.saturating_sub(before.answered);
        if count == 0 {
            continue;
        }
        // They were answered between the looks, one after the other: the middle one stands for all.
        let answered = (middle(before) + middle(now)) / 2.0;
        at += looks[at..]
            .iter()
            .position(|look| look.durable >= now.answered)?;
        found.push(((middle(&looks[at]) - answered).max(0.0), count));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut apart: Vec<f64> = looks
        .windows(2)
        .map(|pair| middle(&pair[1]) - middle(&pair[0]))
        .collect();
    apart.sort_by(f64::total_cmp);
    Some(Delays {
        p50_ms: below(&found, 0.50)?,
        p99_ms: below(&found, 0.99)?,
        look_ms: *apart.get(apart.len() / 2)?,
    })
}

/// When a look was, in ms.
fn middle(look: &Look) -> f64 {
    (look.began + look.ended).as_secs_f64() * 500.0
}

/// What so large a share of the counted is at most.
fn below(sorted: &[(f64, u64)], share: f64) -> Option<f64> {
    let all: u64 = sorted.iter().map(|(_, count)| count).sum();
    let wanted = all as f64 * share;
    let mut sum = 0.0;
    let mut found = sorted.iter().filter(|(_, count)| {
        sum += *count as f64;
        sum >= wanted
    });
    found.next().map(|(delay, _)| *delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look each 10 ms, at once answered.
    fn looks(told: &[(u64, u64)]) -> Vec<Look> {
        let look = |(number, &(answered, durable)): (u32, &(u64, u64))| Look {
            began: LOOK * number,
            ended: LOOK * number,
            answered,
            durable,
        };
        (0..).zip(told).map(look).collect()
    }

    #[test]
    fn a_delay_is_from_reply_to_sync() {
        // 100 are answered between 0 and 10 ms, in the middle at 5, and are synced when it is looked at 30.
        let found = delays(&looks(&[(0, 0), (100, 0), (100, 0), (100, 100)])).expect("delays");
        assert!((found.p50_ms - 25.0).abs() < 1e-9, "{found:?}");
        assert!((found.p99_ms - 25.0).abs() < 1e-9, "{found:?}");
        assert!((found.look_ms - 10.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn each_counts_as_often_as_sets_were_answered() {
        // 2 wait for 25 ms, 98 for 15.
        let found = delays(&looks(&[(0, 0), (2, 0), (100, 0), (100, 100)])).expect("delays");
        assert!((found.p50_ms - 15.0).abs() < 1e-9, "{found:?}");
        assert!((found.p99_ms - 25.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_is_synced_between_the_same_looks_took_no_time() {
        let found = delays(&looks(&[(0, 0), (10, 10), (10, 10)])).expect("delays");
        assert!(found.p99_ms <= 5.0, "{found:?}");
    }

    #[test]
    fn without_an_end_nothing_is_said() {
        assert_eq!(delays(&[]), None);
        assert_eq!(delays(&looks(&[(5, 5), (5, 5)])), None, "nothing answered");
        assert_eq!(
            delays(&looks(&[(0, 0), (9, 8), (9, 8)])),
            None,
            "nine of them"
        );
    }
}
