// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench`, with ERB's daemon for `--server erb`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use erb_bench::args::{BenchArgs, Op};
use erb_bench::booster::{BoostRequest, Boosted, Booster, Packets};
use erb_daemon::{Request, RunDir, Status, request};
use serde_json::Value;

use crate::args::Tier;
use crate::exit;
use crate::lab::{check, erb_in};

/// Keys per request: a line of some hundred kilobytes.
const KEYS_PER_FILL: usize = 10_000;

/// Time until the daemon serves and admits connections.
const READY_MAX: Duration = Duration::from_secs(5);

/// Runs `erb bench ...`.
pub fn run(args: &BenchArgs) -> ExitCode {
    match erb_bench::run(args, Some(&DaemonBooster)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit::FAILED)
        }
    }
}

/// Boosts by this very program, as a user would.
pub struct DaemonBooster;

impl Booster for DaemonBooster {
    fn boost(&self, wanted: &BoostRequest<'_>) -> Result<Box<dyn Boosted>> {
        // The bench removes its folder itself; ours goes with the detach.
        let path = wanted.run_dir.join("erb");
        let redis = wanted.redis.to_string();
        let run_dir = path.display().to_string();
        let output = erb_in(
            wanted.netns,
            &[
                "boost",
                "--dev",
                wanted.device,
                "--redis",
                &redis,
                "--run-dir",
                &run_dir,
                "--cache-size",
                wanted.cache_size,
                "--tier",
                if wanted.tc_alone { Tier::Tc } else { Tier::Xdp }.word(),
            ],
        )?;
        check(&output, "boost")?;
        let mut boosted = DaemonBoosted {
            netns: wanted.netns.to_owned(),
            run_dir: RunDir::new(&path),
            path,
            pid: 0,
        };
        boosted.wait_until_serving()?;
        Ok(Box::new(boosted))
    }
}

struct DaemonBoosted {
    netns: String,
    run_dir: RunDir,
    path: PathBuf,
    pid: u32,
}

impl DaemonBoosted {
    fn status(&self) -> Result<Status> {
        Ok(request(&self.run_dir, &Request::Status)?)
    }

    fn wait_until_serving(&mut self) -> Result<()> {
        let until = Instant::now() + READY_MAX;
        loop {
            let status = self.status()?;
            self.pid = status.pid;
            if status.serving && status.admitting {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("ERB does not serve: {}", status.not_serving.join("; "));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn fill_batch(&self, keys: Vec<String>, hashes: bool) -> Result<u64> {
        let answer: Value = request(&self.run_dir, &Request::Fill { keys, hashes })?;
        if let Some(error) = answer.get("error") {
            bail!("ERB does not fill: {error}");
        }
        answer
            .get("filled")
            .and_then(Value::as_u64)
            .context("no count of filled keys in the answer")
    }
}

fn counted(status: &Status, name: &str) -> Result<u64> {
    let counter = status.counters.iter().find(|counter| counter.name == name);
    let counter = counter.with_context(|| format!("no counter {name} in the status"))?;
    Ok(counter.count)
}

impl Boosted for DaemonBoosted {
    fn pids(&self) -> Vec<u32> {
        vec![self.pid]
    }

    fn fill(&mut self, op: Op, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<u64> {
        loop {
            let batch: Vec<String> = keys
                .take(KEYS_PER_FILL)
                .map(String::from_utf8)
                .collect::<Result<_, _>>()?;
            if batch.is_empty() {
                return Ok(self.status()?.cache.entries_estimate);
            }
            self.fill_batch(batch, op == Op::Hgetall)?;
        }
    }

    fn set_fills(&mut self, on: bool) -> Result<()> {
        request::<Value>(&self.run_dir, &Request::Fills { on })?;
        Ok(())
    }

    fn hits(&self, op: Op) -> Result<u64> {
        let name = match op {
            Op::Get => "FAST_GET",
            Op::Mget => "FAST_MGET",
            Op::Hgetall => "FAST_HGETALL",
        };
        counted(&self.status()?, name)
    }

    fn packets(&self) -> Result<Packets> {
        let status = self.status()?;
        Ok(Packets {
            xdp: counted(&status, "FAST_PACKET")?,
            tc: counted(&status, "FAST_PACKET_TC")?,
        })
    }

    fn status_json(&self) -> Result<Value> {
        Ok(serde_json::to_value(self.status()?)?)
    }

    fn detach(self: Box<Self>) -> Result<()> {
        let run_dir = self.path.display().to_string();
        check(
            &erb_in(&self.netns, &["detach", "--force", "--run-dir", &run_dir])?,
            "detach",
        )
    }
}
