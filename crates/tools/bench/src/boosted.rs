// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ERB as it is measured: boosted and asked by the command `erb`, as by an operator.

use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_lab::{Boost, Erb};
use erb_report::{JournalReport, Status, WritesReport};
use serde_json::Value;

use crate::args::Op;

/// Longest wait for the gate, the drain or the journal: many times what an emulated machine takes.
const WRITES_WAIT: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// What to boost.
#[derive(Debug, Clone, Copy)]
pub struct BoostRequest<'a> {
    /// Named network namespace (below /run/netns) of device and Redis.
    pub netns: &'a str,
    /// The server's device. It is up, has no XDP program and no threaded NAPI yet: the bench turns
    /// threaded NAPI on after the boost. From then on XDP must not be detached and attached again
    /// (Linux 6.18 loses the veth queue); an atomic replacement is fine.
    pub device: &'a str,
    /// Address on which redis-server listens in that namespace; it holds all keys already.
    pub redis: SocketAddr,
    /// The TC tier alone, whatever the driver can do.
    pub tc_alone: bool,
    /// Cache size as on the command line, for example `1G`.
    pub cache_size: &'a str,
    /// Options of `erb boost` beside those.
    pub options: &'a [&'a str],
    /// An empty folder, removed by the bench after the detach.
    pub folder: &'a Path,
}

/// Packets answered since a boost, by tier.
#[derive(Debug, Clone, Copy)]
pub struct Packets {
    /// In XDP.
    pub xdp: u64,
    /// In TC.
    pub tc: u64,
}

impl Packets {
    /// Of the packets answered since an earlier look, the share that TC answered; 0 if there were
    /// none.
    pub fn tc_share_since(&self, before: &Self) -> f64 {
        let (xdp, tc) = (self.xdp - before.xdp, self.tc - before.tc);
        tc as f64 / (xdp + tc).max(1) as f64
    }
}

/// SETs that were answered in Redis's place since the boost: as many LSNs were given.
fn answered(status: &Status) -> u64 {
    status.counter("ABSORBED").unwrap_or(0)
}

/// These, and what is kept of them.
pub fn kept(boost: &Boost) -> Result<(u64, JournalReport)> {
    let status = boost.status()?;
    Ok((answered(&status), status.writes.journal))
}

/// A boosted device.
pub struct Boosted {
    boost: Boost,
    pid: u32,
}

impl Boosted {
    /// Boosts and returns once connections opened from now on can become fast.
    pub fn begin(erb: &Erb, wanted: &BoostRequest<'_>) -> Result<Self> {
        // The bench removes its folder itself; ERB's goes with the detach.
        let boost = erb.boost_in(wanted.netns, &wanted.folder.join("erb"));
        let redis = wanted.redis.to_string();
        let words = [
            "--dev",
            wanted.device,
            "--redis",
            &redis,
            "--cache-size",
            wanted.cache_size,
            "--tier",
            if wanted.tc_alone { "tc" } else { "xdp" },
        ];
        boost.begin(&[&words, wanted.options].concat())?;
        boost.wait_until_serving()?;
        let pid = boost.status()?.pid;
        Ok(Self { boost, pid })
    }

    /// By which it is asked.
    pub fn boost(&self) -> &Boost {
        &self.boost
    }

    /// The daemon's process, whose time counts as the server's.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Puts these keys, which hold what `op` asks for, into the cache; returns how many are in it
    /// afterwards. Keys that do not fit into their set are not an error.
    pub fn fill(&self, op: Op, keys: impl Iterator<Item = String>) -> Result<u64> {
        self.boost.fill(keys, op.of_hash())?;
        Ok(self.boost.status()?.cache.entries_estimate)
    }

    /// Turns filling by misses on or off; off also means that misses are no longer recorded.
    pub fn set_fills(&self, on: bool) -> Result<()> {
        self.boost.set_fills(on)
    }

    /// Commands of this name answered by the fast path with a value since the boost. Only grows.
    pub fn hits(&self, command: &str) -> Result<u64> {
        let counter = format!("FAST_{}", command.to_ascii_uppercase());
        self.boost.counter(&counter)
    }

    /// Packets answered since the boost. Only grows.
    pub fn packets(&self) -> Result<Packets> {
        Ok(Packets {
            xdp: self.boost.counter("FAST_PACKET")?,
            tc: self.boost.counter("FAST_PACKET_TC")?,
        })
    }

    /// What `erb status --json` says; goes into the report as it is.
    pub fn status_json(&self) -> Result<Value> {
        let status = self.boost.run(&["status", "--json"])?;
        serde_json::from_str(&status).context("`erb status --json` printed no JSON")
    }

    /// What `erb status` says, for people.
    pub fn status(&self) -> Result<String> {
        self.boost.run(&["status"])
    }

    /// Closes the cache by hand, and waits until it is. Nobody who was answered may still be connected.
    pub fn close_cache(&self) -> Result<()> {
        self.boost.close_cache()
    }

    /// Fails if the cache is not closed to all any more.
    pub fn check_closed(&self) -> Result<()> {
        let status = self.boost.status()?;
        ensure!(
            status.is_closed_to_all(),
            "the cache did not stay closed: {:?}",
            status.aside
        );
        Ok(())
    }

    /// Waits until SETs are answered in Redis's place.
    pub fn wait_until_open(&self) -> Result<()> {
        self.wait_for("SETs are not answered", |writes| writes.open)
    }

    /// Waits until all that was answered is in Redis.
    pub fn wait_until_drained(&self) -> Result<()> {
        self.wait_for("not all is in Redis", |writes| writes.waiting == 0)
    }

    /// Waits until all that was answered is in the journal, and synced.
    pub fn wait_until_kept(&self) -> Result<()> {
        let what = "not all is in the journal and synced";
        self.wait_for_status(what, |status| {
            status.writes.journal.durable_lsn >= answered(status)
        })
    }

    fn wait_for(&self, what: &str, good: impl Fn(&WritesReport) -> bool) -> Result<()> {
        self.wait_for_status(what, |status| good(&status.writes))
    }

    fn wait_for_status(&self, what: &str, good: impl Fn(&Status) -> bool) -> Result<()> {
        let end = Instant::now() + WRITES_WAIT;
        loop {
            let status = self.boost.status()?;
            if good(&status) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{what}: {}", why(&status.writes));
            sleep(LOOK);
        }
    }

    /// Connections that ERB has no room to see.
    pub fn unseen(&self) -> Result<u32> {
        Ok(self.boost.status()?.connections.unseen)
    }

    /// Detaches by force and ends the daemon. Connections still stand then, but nobody speaks on
    /// them any more: their client's route is a black hole.
    pub fn detach(&self) -> Result<()> {
        self.boost.detach()
    }
}

/// What speaks against answering writes; all that is told of them, if nothing does.
fn why(writes: &WritesReport) -> String {
    let unmet = writes.conditions.iter().filter(|condition| !condition.met);
    let unmet: Vec<&str> = unmet.map(|condition| condition.why.as_str()).collect();
    if unmet.is_empty() {
        format!("{writes:?}")
    } else {
        unmet.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use erb_report::ConditionReport;

    use super::*;

    #[test]
    fn whoever_waits_in_vain_is_told_what_is_not_met() {
        let condition = |met, why: &str| ConditionReport {
            condition: "disk".to_owned(),
            met,
            means: "the journal can be written".to_owned(),
            why: why.to_owned(),
        };
        let mut writes = WritesReport::default();
        assert!(why(&writes).contains("WritesReport"));
        writes.conditions = vec![condition(true, ""), condition(false, "no space is left")];
        assert_eq!(why(&writes), "no space is left");
    }
}
