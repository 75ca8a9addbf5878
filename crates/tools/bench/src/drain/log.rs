// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log rings in memory that two threads share, and who writes them in the programs' place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use erb_abi::{LOG_RECORD_BYTES_MAX, LogWriter, Logs, Values, Written, log_order, log_ring};
use memmap2::{MmapOptions, MmapRaw};

use super::args::{DIGITS, DrainArgs, Plan};
use super::keys::{Keys, put_digits};

/// How long who finds no room, or is ahead of the rate, rests: much less than a ring lasts.
const REST: Duration = Duration::from_micros(50);
/// Of so many records one is asked when it was in Redis.
const SAMPLED: u64 = 32;
/// Until when values of the expiring cases live.
const LIFE: Duration = Duration::from_secs(3600);
/// Records between two looks at the clock.
const LOOK_EVERY: u64 = 16;

/// Zeroed memory for rings.
#[derive(Clone)]
pub struct Memory {
    rings: Arc<MmapRaw>,
    order: Arc<MmapRaw>,
    count: usize,
}

impl Memory {
    /// For so many rings.
    pub fn new(count: usize) -> Result<Self> {
        let area = |bytes| -> Result<Arc<MmapRaw>> {
            let area = MmapOptions::new().len(bytes).map_anon();
            Ok(Arc::new(area.context("no memory for the rings")?.into()))
        };
        Ok(Self {
            rings: area(count * size_of::<log_ring>())?,
            order: area(size_of::<log_order>())?,
            count,
        })
    }

    /// One thread's view.
    pub fn logs(&self) -> Logs {
        let (rings, order) = (Arc::clone(&self.rings), Arc::clone(&self.order));
        // SAFETY: the area has so many rings, zeroed and aligned to a page, and lives as long as the
        // keeper; other threads access them as `Logs` does.
        let rings = unsafe {
            let (at, stride) = (rings.as_mut_ptr(), size_of::<log_ring>());
            Values::new(at, stride, self.count, rings)
        };
        // SAFETY: the same of the one order.
        let order = unsafe {
            let at = order.as_mut_ptr();
            Values::new(at, size_of::<log_order>(), 1, order)
        };
        Logs::new(rings, order)
    }
}

/// What was written of a run.
#[derive(Default)]
pub struct Wrote {
    /// Records.
    pub records: u64,
    /// Of some: LSN, and when it was given, since the run's start.
    pub sampled: Vec<(u64, Duration)>,
    /// Times for which there was no room, or the rate was ahead.
    pub rests: u64,
}

/// Writes records; knows what each key holds in the end.
pub struct Author {
    /// By key: the number its last value begins with.
    pub last: Vec<u64>,
    value: Vec<u8>,
    key: [u8; DIGITS as usize],
}

impl Author {
    /// Of values of this length.
    pub fn new(args: &DrainArgs) -> Self {
        Self {
            last: vec![0; args.keys as usize],
            value: vec![b'v'; args.value_size as usize],
            key: [b'0'; DIGITS as usize],
        }
    }

    fn put(&mut self, writer: &mut LogWriter<'_>, key: u32, expiry_ms: u64) -> u64 {
        let lsn = writer.next_lsn();
        put_digits(&mut self.key, u64::from(key));
        put_digits(&mut self.value, lsn);
        self.last[key as usize] = lsn;
        writer.put(&Written {
            lsn,
            db: 0,
            key: &self.key,
            value: &self.value,
            expiry_ms,
        });
        lsn
    }

    /// Writes until the time since the run's start is over, or it is told to stop.
    pub fn write(
        &mut self,
        args: &DrainArgs,
        plan: Plan,
        logs: &Logs,
        (mut keys, time, start): (Keys, Duration, Instant),
        stop: &AtomicBool,
    ) -> Result<Wrote> {
        let mut writers: Vec<_> = (0..logs.count())
            .map(|ring| LogWriter::new(logs, ring))
            .collect();
        let expiry_ms = if plan.expires { expiry_ms()? } else { 0 };
        let (mut wrote, mut now) = (Wrote::default(), Duration::ZERO);
        while now < time && !stop.load(Ordering::Relaxed) {
            let due = now.as_nanos() * u128::from(args.rate) / 1_000_000_000;
            let ahead = args.rate != 0 && u128::from(wrote.records) >= due;
            let ring = wrote.records as usize % writers.len();
            if ahead || writers[ring].room() < u64::from(LOG_RECORD_BYTES_MAX) {
                wrote.rests += 1;
                sleep(REST);
                now = start.elapsed();
                continue;
            }
            let lsn = self.put(&mut writers[ring], keys.draw(), expiry_ms);
            wrote.records += 1;
            if wrote.records % LOOK_EVERY == 0 {
                now = start.elapsed();
            }
            if wrote.records % SAMPLED == 0 {
                wrote.sampled.push((lsn, start.elapsed()));
            }
        }
        Ok(wrote)
    }

    /// Writes each key once.
    pub fn write_all(&mut self, logs: &Logs, stop: &AtomicBool) {
        let mut writer = LogWriter::new(logs, 0);
        for key in 0..self.last.len() as u32 {
            while writer.room() < u64::from(LOG_RECORD_BYTES_MAX) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                sleep(REST);
            }
            self.put(&mut writer, key, 0);
        }
    }
}

fn expiry_ms() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let then = now.context("the clock is before 1970")? + LIFE;
    Ok(u64::try_from(then.as_millis())?)
}
