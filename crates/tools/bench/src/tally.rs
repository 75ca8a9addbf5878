// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients saw in one drive.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

/// Latencies are kept to three digits, in nanoseconds.
const LATENCY_DIGITS: u8 = 3;
/// Who begins an operation later than this is late. A wake-up takes less, also on a virtual machine.
pub const LATE: Duration = Duration::from_millis(1);

/// Latencies, and what was late.
#[derive(Debug)]
pub struct Tally {
    /// From when an operation was due to its last reply; by its kind.
    pub latencies: Vec<Histogram<u64>>,
    /// How late operations were begun although a connection was idle; empty in a closed loop.
    pub own_delay: Histogram<u64>,
    /// Operations begun [`LATE`] as no connection was idle.
    pub late_for_server: u64,
    /// Operations begun [`LATE`] although a connection was idle.
    pub late_by_client: u64,
    /// Processor time of the clients' threads.
    pub cpu_ns: u64,
    /// The largest share of its time that one of these threads ran.
    pub busy: f64,
}

impl Tally {
    /// Of nothing yet.
    pub fn new(operations: usize) -> Result<Self> {
        let empty = Histogram::new(LATENCY_DIGITS)?;
        Ok(Self {
            latencies: vec![empty.clone(); operations],
            own_delay: empty,
            late_for_server: 0,
            late_by_client: 0,
            cpu_ns: 0,
            busy: 0.0,
        })
    }

    /// Operations of all kinds.
    pub fn operations(&self) -> u64 {
        self.latencies.iter().map(Histogram::len).sum()
    }

    /// Adds an operation that is done.
    pub fn done(&mut self, operation: usize, latency: Duration) -> Result<()> {
        Ok(self.latencies[operation].record(u64::try_from(latency.as_nanos())?)?)
    }

    /// Adds how late an operation begins now on a connection that is idle since some moment.
    pub fn late(&mut self, due: Instant, idle_since: Instant, now: Instant) -> Result<()> {
        let own = now.saturating_duration_since(due.max(idle_since));
        self.own_delay.record(u64::try_from(own.as_nanos())?)?;
        if idle_since.saturating_duration_since(due) > LATE {
            self.late_for_server += 1;
        } else if own > LATE {
            self.late_by_client += 1;
        }
        Ok(())
    }

    /// Adds another one's.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        for (mine, others) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.add(others)?;
        }
        self.own_delay.add(&other.own_delay)?;
        self.late_for_server += other.late_for_server;
        self.late_by_client += other.late_by_client;
        self.cpu_ns += other.cpu_ns;
        self.busy = self.busy.max(other.busy);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_delay_it_is_depends_on_when_a_connection_was_idle() {
        let mut tally = Tally::new(1).unwrap();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        tally.late(at(10), at(3), at(10)).unwrap();
        assert_eq!((tally.late_for_server, tally.late_by_client), (0, 0));
        tally.late(at(10), at(3), at(15)).unwrap();
        assert_eq!((tally.late_for_server, tally.late_by_client), (0, 1));
        tally.late(at(10), at(15), at(15)).unwrap();
        assert_eq!((tally.late_for_server, tally.late_by_client), (1, 1));
        assert_eq!(tally.own_delay.len(), 3);
        assert!(tally.own_delay.max() > 4_900_000, "5 ms of its own");
    }
}
