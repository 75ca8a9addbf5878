// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durable puts: the paper's fillseq, and small ones.

use anyhow::Result;
use erb_kv::crowd::Ask;
use erb_node::Answer;

use super::args::KvArgs;
use super::local::{self, InProcess};
use super::node::{self, Running};
use super::report::{Rounds, Row, us};
use super::{Bench, VALUE_BYTES, WRITERS};

/// Small puts that wait at a time, and bytes of their values.
const SMALL_WAITING: u64 = 64;
const SMALL_BYTES: usize = 100;
/// What values of 8 KiB from 40 connections come to on the disk: 40 times 8 KiB in five writes.
const FILL_WRITE_BYTES: usize = 64 << 10;
const FILL_WRITES: u64 = 5;
/// Writes one at a time, for each of a connection's pairs.
const ALONE_SHARE: u64 = 4;

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    fill(bench)?;
    small(bench)
}

/// 4 B keys, 8 KiB values, 40 connections.
fn fill(bench: &mut Bench<'_>) -> Result<()> {
    bench.begins("puts of 8 KiB from 40 connections")?;
    let puts = bench.args.puts();
    let rounds = u64::from(bench.args.rounds);
    let bytes = KvArgs::store_bytes((rounds + 1) * puts, 0);
    let node = Running::start(bench.folder.path(), "fill", bytes)?;
    let mut crowd = node.crowd(WRITERS)?;
    let value = vec![0x5a; VALUE_BYTES];
    let (mut erb, mut raw, mut rocks) = <(Rounds, Rounds, Rounds)>::default();
    let mb = |rate: f64, bytes: usize| rate * bytes as f64 / 1e6;
    for round in 0..=rounds {
        bench.interrupt.check()?;
        let of_raw = bench.raw.writes(
            FILL_WRITE_BYTES,
            FILL_WRITES,
            puts * VALUE_BYTES as u64 / FILL_WRITE_BYTES as u64 + FILL_WRITES,
        )?;
        let of_erb = node::many(&mut crowd, puts, |number| Ask::Put {
            key: local::key(round * puts + number),
            value: value.clone(),
        })?;
        let threads = WRITERS as u64;
        let of_rocks = bench
            .rocks
            .puts(threads, u64::from(bench.args.pairs), VALUE_BYTES)?;
        // The first is for warmth alone.
        if round > 0 {
            raw.push(mb(of_raw, FILL_WRITE_BYTES));
            erb.push(mb(of_erb, VALUE_BYTES));
            rocks.0.extend(of_rocks.map(|rate| mb(rate, VALUE_BYTES)));
        }
    }
    let what = "fillseq, 8 KiB x 40, NVMe/TCP";
    let paper = "845 (970 EVO, 10 GbE, not durable)";
    let of_raw = Row::new(what, "MB/s", &erb)
        .beside("raw 64 KiB x 5, durable", &erb, &raw)
        .paper(paper)
        .bar(">= 60 % of raw", |ratio| ratio >= 0.6);
    // The disk itself has to have that much more.
    let room = Row::new("", "", &raw).beside("", &raw, &rocks).ratio;
    let of_rocks = Row::new(what, "MB/s", &erb).beside("RocksDB, sync, 40 threads", &erb, &rocks);
    let of_rocks = match room {
        Some(room) if room.median < 6.7 => of_rocks.bar_not_asked(format!(
            ">= 4x where raw is >= 6.7x; raw is {:.1}x",
            room.median
        )),
        _ => of_rocks.bar(">= 4x RocksDB", |ratio| ratio >= 4.0),
    };
    bench.rows.extend([of_raw, of_rocks]);
    Ok(())
}

fn is_version(answer: &Answer) -> bool {
    matches!(answer, Answer::Version(_))
}

/// 100 B, 64 waiting, and one alone, with no network.
fn small(bench: &mut Bench<'_>) -> Result<()> {
    bench.begins("puts of 100 B, 64 waiting")?;
    let each = u64::from(bench.args.pairs) * 5;
    let puts = each * SMALL_WAITING;
    let alone = u64::from(bench.args.pairs) * ALONE_SHARE;
    let rounds = u64::from(bench.args.rounds);
    let bytes = KvArgs::store_bytes((rounds + 1) * alone, 2 * (rounds + 1) * puts);
    let mut store = InProcess::make(bench.folder.path(), "small", bytes)?;
    let value = [0x5a; SMALL_BYTES];
    let (mut erb, mut rocks, mut one, mut raw) = <(Rounds, Rounds, Rounds, Rounds)>::default();
    for round in 0..=rounds {
        bench.interrupt.check()?;
        let put = |number| local::put(round * puts + number, &value);
        let of_erb = store.many(SMALL_WAITING, puts, put, is_version)?;
        let of_rocks = bench.rocks.puts(SMALL_WAITING, each, SMALL_BYTES)?;
        let (mut of_one, mut of_raw) = (Vec::new(), Vec::new());
        for number in 0..alone {
            of_raw.push(us(bench.raw.write_in_a_row(1)?));
            of_one.push(us(store.one(local::put(number, &value), is_version)?));
        }
        if round > 0 {
            erb.push(of_erb);
            rocks.0.extend(of_rocks);
            one.push(super::report::percentile(&of_one, 50));
            raw.push(super::report::percentile(&of_raw, 50));
        }
    }
    bench.rows.push(
        Row::new("put of 100 B, 64 waiting, in process", "/s", &erb)
            .beside("RocksDB, sync, 64 threads", &erb, &rocks)
            .bar(">= 5x RocksDB", |ratio| ratio >= 5.0),
    );
    bench.rows.push(
        Row::new("put of 100 B, one alone, in process, p50", "us", &one)
            .beside("raw 4 KiB, durable, p50", &one, &raw)
            .bar("<= 1.3x raw", |ratio| ratio <= 1.3),
    );
    Ok(())
}
