// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis does beside a load, and how long a SET takes from its reply into Redis.
//!
//! It is asked for over Redis's unix socket, past the measured path. Only the writer whose lag is measured is an ordinary
//! client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use erb_check::net::Conn;
use erb_lab::netns::run_in;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::Beside;
use crate::stage::Stage;

/// Between two looks whether Redis is done.
const LOOK: Duration = Duration::from_millis(100);
/// From one script to the next.
const SCRIPTS: Duration = Duration::from_secs(1);
/// From one write whose lag is measured to the next.
const PROBES: Duration = Duration::from_millis(20);
/// Between two looks whether Redis has it: who looks all the time takes a processor from those who are measured.
const GLANCES: Duration = Duration::from_micros(100);
/// Longest lag.
const LAG_MAX: Duration = Duration::from_secs(10);
/// Keeps Redis busy for 5 ms.
const SCRIPT: &str = "local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end \
    local from = now() while now() - from < 5000 do end return 1";
/// The key that is written and looked at.
const PROBE: &str = "erb-bench:lag";
/// The key that is counted.
const COUNTER: &str = "erb-bench:count";

/// What was done.
#[derive(Debug, Clone, Serialize)]
pub struct Done {
    /// So often.
    pub times: u64,
    /// From a reply to when Redis had it, us: median, 99th percentile, longest; none unless that was measured.
    pub lag_us: Option<[f64; 3]>,
    /// The same of an INCR's time to its reply. Behind answered SETs it is held.
    pub incr_us: Option<[f64; 3]>,
}

impl Done {
    /// For people.
    pub fn told(&self) -> String {
        let [lag, incr] = [self.lag_us, self.incr_us].map(|all| {
            let [p50, p99, max] = all.unwrap_or_default();
            format!("p50 {p50:.0} us, p99 {p99:.0} us, longest {max:.0} us")
        });
        match self.lag_us {
            Some(_) => format!(
                "{} times from reply to Redis: {lag}; an INCR: {incr}",
                self.times
            ),
            None => format!("Redis did it {} times beside", self.times),
        }
    }
}

/// Whoever has Redis do that, until it is ended.
pub struct Companion {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Done>>>,
}

impl Companion {
    /// Begins.
    pub fn begin(stage: &Stage, what: Beside) -> Result<Self> {
        let redis = stage.redis().connect()?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let work: Box<dyn FnOnce() -> Result<Done> + Send> = match what {
            Beside::Lag => {
                let (netns, to) = stage.clients();
                let conn = run_in(netns, || Conn::connect(to, LAG_MAX))?;
                Box::new(move || lag(conn, redis, &told))
            }
            Beside::Rewrite => {
                Box::new(move || again(redis, "BGREWRITEAOF", "aof_rewrite_in_progress:0", &told))
            }
            Beside::Save => {
                Box::new(move || again(redis, "BGSAVE", "rdb_bgsave_in_progress:0", &told))
            }
            Beside::Script => Box::new(move || scripts(redis, &told)),
        };
        Ok(Self {
            ends,
            thread: Some(thread::spawn(work)),
        })
    }

    /// What was done.
    pub fn end(mut self) -> Result<Done> {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        let panicked = |_| Err(anyhow!("what was done beside panicked"));
        let done = thread.join().unwrap_or_else(panicked)?;
        ensure!(
            done.times > 0,
            "nothing was done beside: use longer --seconds"
        );
        Ok(done)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn again(
    mut redis: redis::Connection,
    command: &str,
    idle: &str,
    ends: &AtomicBool,
) -> Result<Done> {
    let mut times = 0;
    while !ends.load(Ordering::Relaxed) {
        redis::cmd(command).query::<String>(&mut redis)?;
        loop {
            thread::sleep(LOOK);
            let mut info = redis::cmd("INFO");
            let said: String = info.arg("persistence").query(&mut redis)?;
            if said.contains(idle) {
                break;
            }
        }
        times += 1;
    }
    Ok(Done {
        times,
        lag_us: None,
        incr_us: None,
    })
}

fn scripts(mut redis: redis::Connection, ends: &AtomicBool) -> Result<Done> {
    let (mut times, mut due) = (0, Instant::now());
    while !ends.load(Ordering::Relaxed) {
        if Instant::now() >= due {
            let mut script = redis::cmd("EVAL");
            script.arg(SCRIPT).arg(0).query::<i64>(&mut redis)?;
            (times, due) = (times + 1, due + SCRIPTS);
        }
        thread::sleep(PROBES);
    }
    Ok(Done {
        times,
        lag_us: None,
        incr_us: None,
    })
}

fn lag(mut writer: Conn, mut redis: redis::Connection, ends: &AtomicBool) -> Result<Done> {
    let [mut lags, mut incrs] = [Histogram::<u64>::new(3)?, Histogram::new(3)?];
    let mut number = 0u64;
    let mut call = |words: &[&str]| writer.call(words).map_err(|broken| anyhow!("{broken}"));
    let since = |begin: Instant| u64::try_from(begin.elapsed().as_nanos());
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let text = number.to_string();
        let reply = call(&["SET", PROBE, &text])?;
        let answered = Instant::now();
        ensure!(reply == b"+OK\r\n", "a SET was not stored");
        loop {
            let has: Option<String> = redis::cmd("GET").arg(PROBE).query(&mut redis)?;
            if has.as_ref() == Some(&text) {
                break;
            }
            ensure!(
                answered.elapsed() < LAG_MAX,
                "Redis has {has:?} in place of {text}"
            );
            thread::sleep(GLANCES);
        }
        lags.record(since(answered)?)?;
        thread::sleep(PROBES);
        let begin = Instant::now();
        let reply = call(&["INCR", COUNTER])?;
        ensure!(reply.starts_with(b":"), "nothing was counted");
        incrs.record(since(begin)?)?;
    }
    let spread = |all: &Histogram<u64>| {
        let at = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
        Some([at(0.5), at(0.99), all.max() as f64 / 1e3])
    };
    Ok(Done {
        times: lags.len(),
        lag_us: spread(&lags),
        incr_us: spread(&incrs),
    })
}
