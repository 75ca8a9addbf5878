// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench kv`: the storage node beside the same disk without it and beside RocksDB, and the experiments of the
//! VNetKV paper.
//!
//! - `args`: what is measured at which size; `disk`: the disk alone; `rocks`: db_bench; `node`: a node that runs, and
//!   what its clients do; `local`: a store with no network before it.
//! - `durable`, `amplified`, `flash`, `versions`, `collected`, `rolled`: the experiments; `report`: rows, table.
//!
//! All that is compared runs in the same round, one after the other, and a ratio is that of a round. So what else the
//! machine does meets both.

mod amplified;
mod args;
mod collected;
mod disk;
mod durable;
mod flash;
mod local;
mod node;
mod report;
mod rocks;
mod rolled;
mod versions;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

pub use args::{Experiment, KvArgs};
pub use report::{KvReport, Row};

use crate::interrupt::Interrupt;
use disk::Raw;
use rocks::Rocks;

/// Bytes of the paper's values.
const VALUE_BYTES: usize = 8192;
/// Connections of the paper's writers.
const WRITERS: usize = 40;

/// What all experiments have.
struct Bench<'a> {
    args: &'a KvArgs,
    folder: TempDir,
    raw: Raw,
    rocks: Rocks,
    interrupt: Interrupt,
    rows: Vec<Row>,
}

type Measure = fn(&mut Bench<'_>) -> Result<()>;

impl Bench<'_> {
    fn begins(&self, what: &str) -> Result<()> {
        if !self.args.json {
            eprintln!("{what} ...");
        }
        self.interrupt.check()
    }
}

/// Measures, in a folder of its own within the one that is named, which is gone afterwards.
///
/// # Errors
/// The folder has no direct I/O or too little space, or something fails.
pub fn measure(args: &KvArgs) -> Result<KvReport> {
    let begun = Instant::now();
    args.check()?;
    let folder = tempfile::Builder::new()
        .prefix("erb-bench-kv-")
        .tempdir_in(&args.folder)
        .with_context(|| format!("{}: no folder can be made there", args.folder.display()))?;
    let (free, needed) = (disk::free_bytes(folder.path())?, args.needed_bytes());
    ensure!(
        free > needed,
        "{}: {} MiB are free, {} are needed: name another folder, or take fewer --pairs and keys",
        args.folder.display(),
        free >> 20,
        needed >> 20
    );
    let load_before = disk::load();
    let mut bench = Bench {
        args,
        raw: Raw::make(folder.path())?,
        rocks: Rocks::find(&args.db_bench, folder.path()),
        interrupt: Interrupt::watch()?,
        folder,
        rows: Vec::new(),
    };
    let all: [(Experiment, Measure); 6] = [
        (Experiment::Durable, durable::measure),
        (Experiment::Amplified, amplified::measure),
        (Experiment::Flash, flash::measure),
        (Experiment::Versions, versions::measure),
        (Experiment::Collected, collected::measure),
        (Experiment::Rolled, rolled::measure),
    ];
    for (experiment, measure) in all {
        if args.runs(experiment) {
            measure(&mut bench)?;
        }
    }
    Ok(KvReport {
        processors: std::thread::available_parallelism().map_or(0, Into::into),
        load_before,
        load_after: disk::load(),
        seconds: begun.elapsed().as_secs_f64(),
        rounds: args.rounds,
        rocksdb: bench.rocks.told(),
        rows: bench.rows,
    })
}
