// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What collecting costs: keys of a store that is 80 % full are written again and again at random.
//!
//! Full is counted without what no value can have: the reserve, two checkpoints, and what waits to be free again. Nothing
//! but the newest version of a key is kept, so all that is overwritten may be collected. By default the store has some
//! 120 segments: with fewer the reserve is more than its 3 %.

use anyhow::Result;
use erb_node::Answer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::args::KvArgs;
use super::disk::written_bytes;
use super::local::{self, InProcess};
use super::report::{Rounds, Row, ms, percentile};
use super::versions::NOTHING;
use super::{Bench, VALUE_BYTES, WRITERS};

/// Segments that values cannot have: two checkpoints and one that is being written.
const CHECKPOINTS: u64 = 3;
/// The reserve: where writers end.
const RESERVE: u64 = 5;
/// What waits for checkpoints, this part of all segments.
const WAITING_SHARE: u64 = 16;
/// Of what values can have.
const FULL_PERCENT: u64 = 80;
/// What a value takes in the log, with its head.
const RECORD_BYTES: u64 = VALUE_BYTES as u64 + 64;
/// Before it is measured each key is overwritten so often, on average: collecting goes on evenly then.
const WARM: u64 = 2;
/// Durable writes of the bare disk in a round.
const RAW_WRITES: usize = 300;

fn is_version(answer: &Answer) -> bool {
    matches!(answer, Answer::Version(_))
}

/// Keys of a store of so many bytes that is so full.
fn keys(store_bytes: u64) -> Result<u64> {
    let layout = erb_node::layout(store_bytes, 1)?;
    let segments = u64::from(layout.segments());
    let taken = CHECKPOINTS + RESERVE + segments / WAITING_SHARE;
    let bytes = segments.saturating_sub(taken) * layout.segment_bytes;
    Ok(bytes * FULL_PERCENT / 100 / RECORD_BYTES)
}

/// Bytes of the store in which nothing has to be collected.
fn room_bytes(args: &KvArgs, keys: u64) -> u64 {
    let rounds = u64::from(args.rounds);
    KvArgs::store_bytes(2 * (keys + (rounds + 1) * args.puts()), 0)
}

/// Bytes of disk.
pub fn needed_bytes(args: &KvArgs) -> u64 {
    let bytes = args.full_bytes();
    bytes + room_bytes(args, bytes / RECORD_BYTES)
}

/// One of two stores, and what was measured of it.
struct Store {
    store: InProcess,
    keys: u64,
    random: SmallRng,
    amplified: Rounds,
    p99: Rounds,
    longest: Rounds,
}

impl Store {
    fn make(bench: &Bench<'_>, name: &str, bytes: u64, keys: u64) -> Result<Self> {
        let mut store = InProcess::keeping(bench.folder.path(), name, bytes, NOTHING)?;
        let value = [1; VALUE_BYTES];
        store.many(
            WRITERS as u64,
            keys,
            |number| local::put(number, &value),
            is_version,
        )?;
        Ok(Self {
            store,
            keys,
            random: SmallRng::seed_from_u64(2),
            amplified: Rounds::default(),
            p99: Rounds::default(),
            longest: Rounds::default(),
        })
    }

    fn overwrite(&mut self, puts: u64) -> Result<Vec<f64>> {
        let value = [2; VALUE_BYTES];
        let (random, keys) = (&mut self.random, self.keys);
        let put = |_| local::put(random.random_range(0..keys), &value);
        self.store.timed(WRITERS as u64, puts, put, is_version)
    }

    fn measure(&mut self, puts: u64) -> Result<()> {
        let before = written_bytes()?;
        let times = self.overwrite(puts)?;
        let written = written_bytes()? - before;
        self.amplified
            .push(written as f64 / (puts * VALUE_BYTES as u64) as f64);
        self.p99.push(percentile(&times, 99));
        self.longest.push(times.iter().copied().fold(0.0, f64::max));
        Ok(())
    }
}

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let rounds = u64::from(bench.args.rounds);
    let puts = bench.args.puts();
    bench.begins("overwriting a store that is 80 % full")?;
    let bytes = bench.args.full_bytes();
    let keys = keys(bytes)?;
    let mut full = Store::make(bench, "full", bytes, keys)?;
    // All of it has room, so nothing is collected.
    let room = room_bytes(bench.args, keys);
    let mut wide = Store::make(bench, "wide", room, keys)?;
    let mut warmed = 0;
    while warmed < WARM * keys {
        bench.interrupt.check()?;
        full.overwrite(puts)?;
        warmed += puts;
    }
    let mut over = Rounds::default();
    for _ in 0..rounds {
        bench.interrupt.check()?;
        full.measure(puts)?;
        wide.measure(puts)?;
        let mut worst = 0.0_f64;
        for _ in 0..RAW_WRITES {
            worst = worst.max(ms(bench.raw.write_in_a_row(1)?));
        }
        over.push(full.longest.0.last().copied().unwrap_or(f64::NAN) - worst);
    }
    let what = "80 % full, overwritten at random, 8 KiB x 40, in process";
    let row = |figure: &str, unit, of: &Rounds| Row::new(format!("{what}: {figure}"), unit, of);
    let amplified = row("bytes written, by those of values", "x", &full.amplified);
    let wide_name = "in a store with room";
    bench.rows.extend([
        amplified
            .beside(wide_name, &full.amplified, &wide.amplified)
            .bar_of_figure("<= 3", |times| times <= 3.0),
        row("put, p99", "ms", &full.p99)
            .beside(wide_name, &full.p99, &wide.p99)
            .bar("<= 4x", |ratio| ratio <= 4.0),
        row(
            "longest put, over the bare disk's longest write",
            "ms",
            &over,
        )
        .bar_of_figure("<= 50 ms more", |more| more <= 50.0),
    ]);
    Ok(())
}
