// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What puts cost the disk: bytes that it gets for each byte of a value, by how many puts are under way at once. All that
//! the store writes counts: heads, padding, its control log, checkpoints. Nothing is collected, as there is room.

use anyhow::Result;
use erb_node::Answer;

use super::args::KvArgs;
use super::disk;
use super::local::{self, InProcess};
use super::report::{Rounds, Row};
use super::{Bench, VALUE_BYTES, WRITERS};

/// Puts under way at once.
const DEPTHS: [u64; 3] = [1, 4, 64];
/// Bytes of values.
const VALUES: [usize; 2] = [100, VALUE_BYTES];
/// A batch of one put takes so much more than its value at most: heads, and padding.
const BATCH_BYTES: u64 = 4096 + 128;

/// Puts of a round.
fn puts(args: &KvArgs, depth: u64) -> u64 {
    u64::from(args.pairs) * depth.min(WRITERS as u64)
}

/// Bytes of a store for values of so many bytes.
fn store_bytes(args: &KvArgs, value_bytes: usize) -> u64 {
    let in_a_round: u64 = DEPTHS.iter().map(|depth| puts(args, *depth)).sum();
    let all = (u64::from(args.rounds) + 1) * in_a_round;
    KvArgs::store_bytes(0, all) + all * (value_bytes as u64 + BATCH_BYTES)
}

/// Bytes of disk that this takes.
pub fn needed_bytes(args: &KvArgs) -> u64 {
    let all = VALUES.iter().map(|bytes| store_bytes(args, *bytes));
    all.max().unwrap_or_default()
}

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    bench.begins("bytes that puts write")?;
    for value_bytes in VALUES {
        let bytes = store_bytes(bench.args, value_bytes);
        let mut store = InProcess::make(bench.folder.path(), "amplified", bytes)?;
        let value = vec![0x5a; value_bytes];
        let mut by_depth = DEPTHS.map(|depth| (depth, Rounds::default()));
        let mut next = 0;
        for round in 0..=bench.args.rounds {
            bench.interrupt.check()?;
            for (depth, amplified) in &mut by_depth {
                let count = puts(bench.args, *depth);
                let put = |number| local::put(next + number, &value);
                let before = disk::written_bytes()?;
                store.many(*depth, count, put, |it| matches!(it, Answer::Version(_)))?;
                let written = disk::written_bytes()? - before;
                next += count;
                // The first is for warmth alone.
                if round > 0 {
                    amplified.push(written as f64 / (count * value_bytes as u64) as f64);
                }
            }
        }
        for (depth, amplified) in &by_depth {
            bench
                .rows
                .push(Row::new(what(value_bytes, *depth), "x", amplified));
        }
    }
    Ok(())
}

fn what(value_bytes: usize, depth: u64) -> String {
    let size = match value_bytes {
        VALUE_BYTES => "8 KiB".to_owned(),
        other => format!("{other} B"),
    };
    format!("put of {size}, {depth} under way, in process: bytes written, by those of values")
}
