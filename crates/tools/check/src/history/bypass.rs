// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A writer that reaches Redis without passing the target, and reads of its keys through it.
//!
//! What the target shows of such keys may be older by a stated bound (its lease): a read must
//! not be older than the newest write that was completed `bound` before the read began.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::drive::{Plan, value_bytes, version_of};
use super::{Report, Violation};
use crate::net::{self, Conn};
use crate::resp::{self, Reply};

/// Keys of the bypassing writer.
const KEYS: usize = 4;
/// Pause between its writes: long enough that reads in between become cache hits.
const WRITE_PAUSE: Duration = Duration::from_millis(5);

/// A write completed at this time made this version the newest.
type Writes = Vec<(u64, u64)>;
/// A read: when it began, key, version seen (0: nil).
type Reads = Vec<(u64, usize, u64)>;

/// The two threads.
pub struct Bypass {
    writer: JoinHandle<Result<Vec<Writes>>>,
    reader: JoinHandle<Result<Reads>>,
}

fn key_name(plan: &Plan, key: usize) -> String {
    format!("h{:x}:direct:{key}", plan.seed)
}

/// Starts a writer on `direct` and a reader on the plan's target.
///
/// # Errors
/// If `direct` is no address or not reachable.
pub fn start(direct: &str, plan: &Arc<Plan>) -> Result<Bypass> {
    let direct = net::resolve(direct)?;
    let to_redis = Conn::connect(direct, plan.timeout).context("--direct")?;
    let to_target = Conn::connect(plan.target, plan.timeout)?;
    let (p1, p2) = (Arc::clone(plan), Arc::clone(plan));
    Ok(Bypass {
        writer: std::thread::spawn(move || write(to_redis, &p1)),
        reader: std::thread::spawn(move || read(to_target, &p2)),
    })
}

fn write(mut conn: Conn, plan: &Plan) -> Result<Vec<Writes>> {
    let mut done = vec![Writes::new(); KEYS];
    for version in 1u64.. {
        if plan.stop.load(Ordering::Relaxed) {
            break;
        }
        let key = version as usize % KEYS;
        let name = key_name(plan, key);
        let reply = conn
            .call(&[b"SET", name.as_bytes(), &value_bytes(&name, version)])
            .context("the bypassing writer")?;
        if reply != b"+OK\r\n" {
            return Err(anyhow!(
                "the bypassing SET was answered {}",
                resp::show(&reply, 100)
            ));
        }
        done[key].push((plan.now_ns(), version));
        std::thread::sleep(WRITE_PAUSE);
    }
    Ok(done)
}

fn read(mut conn: Conn, plan: &Plan) -> Result<Reads> {
    let mut reads = Reads::new();
    while !plan.stop.load(Ordering::Relaxed) {
        let key = reads.len() % KEYS;
        let name = key_name(plan, key);
        let began = plan.now_ns();
        let reply = conn
            .call(&["GET", &name])
            .context("reading keys of the bypassing writer")?;
        let version = match Reply::parse(&reply) {
            Reply::Nil => Some(0),
            Reply::Bulk(value) => version_of(&name, value),
            _ => None,
        };
        let version = version
            .ok_or_else(|| anyhow!("GET {name} was answered {}", resp::show(&reply, 200)))?;
        reads.push((began, key, version));
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(reads)
}

impl Bypass {
    /// Stops both and adds what they saw.
    ///
    /// # Errors
    /// If one of the connections failed.
    pub fn finish(self, plan: &Plan, bound_ms: u64, report: &mut Report) -> Result<()> {
        plan.stop.store(true, Ordering::Relaxed);
        let writes = self
            .writer
            .join()
            .map_err(|_| anyhow!("the bypassing writer panicked"))??;
        let reads = self
            .reader
            .join()
            .map_err(|_| anyhow!("the reader panicked"))??;
        report.direct_reads = reads.len() as u64;
        report.reads += reads.len() as u64;
        for (began, key, version) in reads {
            let stale_ms = staleness_ns(&writes[key], began, version) as f64 / 1e6;
            report.direct_staleness_ms_max = report.direct_staleness_ms_max.max(stale_ms);
            if stale_ms > bound_ms as f64 {
                report.violate(Violation {
                    key: key_name(plan, key),
                    what: format!(
                        "bypassing write: version {version} read {stale_ms:.1} ms after it was \
                         replaced; the bound is {bound_ms} ms"
                    ),
                    context: Vec::new(),
                });
            }
        }
        Ok(())
    }
}

/// How long before the read began the version it saw had been replaced for sure; 0: it was not.
fn staleness_ns(writes: &Writes, began: u64, version: u64) -> u64 {
    // Versions of a key grow, so the first newer one is the one that replaced it.
    let replaced = writes.partition_point(|&(_, v)| v <= version);
    writes
        .get(replaced)
        .map_or(0, |&(at, _)| began.saturating_sub(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_counts_from_the_completed_replacement() {
        let writes = vec![(10, 1), (20, 5), (30, 9)];
        assert_eq!(staleness_ns(&writes, 25, 5), 0);
        assert_eq!(staleness_ns(&writes, 25, 1), 5);
        assert_eq!(staleness_ns(&writes, 45, 0), 35);
        assert_eq!(staleness_ns(&writes, 45, 9), 0);
        assert_eq!(staleness_ns(&writes, 15, 9), 0);
    }
}
