// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gets of values that lie on the disk.

use std::time::Instant;

use anyhow::{Result, ensure};
use erb_kv::Selector;
use erb_kv::crowd::Ask;
use erb_node::Answer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::args::KvArgs;
use super::local::{self, InProcess};
use super::node::{self, Running};
use super::report::{Rounds, Row, percentile, us};
use super::{Bench, VALUE_BYTES};

const WAITING: u64 = 32;
/// Three blocks hold a record of 8 KiB with its head, wherever it begins.
const RAW_BYTES: usize = 12 << 10;

fn is_whole(answer: &Answer) -> bool {
    matches!(answer, Answer::Value { bytes, .. } if bytes.len() == VALUE_BYTES)
}

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    bench.begins("gets of 8 KiB from the disk")?;
    let keys = bench.args.puts();
    let gets = keys * 2;
    let alone = u64::from(bench.args.pairs) * 4;
    let bytes = KvArgs::store_bytes(keys, 0);
    let value = vec![0x5a; VALUE_BYTES];
    let mut store = InProcess::make(bench.folder.path(), "flash", bytes)?;
    store.many(
        WAITING,
        keys,
        |number| local::put(number, &value),
        |answer| matches!(answer, Answer::Version(_)),
    )?;
    let node = Running::start(bench.folder.path(), "flash-node", bytes)?;
    node.fill(keys, local::key, &value)?;
    bench.rocks.fill(keys, VALUE_BYTES)?;
    let mut crowd = node.crowd(WAITING as usize)?;
    let mut client = node.client()?;
    let mut random = SmallRng::seed_from_u64(2);
    let mut all: [Rounds; 7] = Default::default();
    for round in 0..=bench.args.rounds {
        bench.interrupt.check()?;
        let raw = bench.raw.reads(RAW_BYTES, WAITING, gets)?;
        let mut any = || random.random_range(0..keys);
        let erb = store.many(WAITING, gets, |_| local::get(any()), is_whole)?;
        let remote = node::many(&mut crowd, gets, |_| Ask::Get {
            key: local::key(any()),
            at: Selector::Head,
        })?;
        let rocks = bench
            .rocks
            .gets(keys, WAITING, gets / WAITING, VALUE_BYTES)?;
        let mut one: [Vec<f64>; 3] = Default::default();
        for _ in 0..alone {
            one[0].push(us(bench.raw.read(RAW_BYTES)?));
            one[1].push(us(store.one(local::get(any()), is_whole)?));
            let begun = Instant::now();
            let found = client.get(&local::key(any()), Selector::Head)?;
            one[2].push(us(begun.elapsed()));
            ensure!(found.value == value, "a wrong value");
        }
        if round == 0 {
            continue;
        }
        all[0].push(raw);
        all[1].push(erb);
        all[2].push(remote);
        all[3].0.extend(rocks);
        for (to, of) in all[4..].iter_mut().zip(&one) {
            to.push(percentile(of, 50));
        }
    }
    rows(bench, &all);
    Ok(())
}

fn rows(bench: &mut Bench<'_>, [raw, erb, remote, rocks, raw_us, erb_us, remote_us]: &[Rounds; 7]) {
    let more = |over: &Rounds| {
        let more = over.0.iter().zip(&raw_us.0).map(|(over, raw)| over - raw);
        Rounds(more.collect())
    };
    let beside = "raw 12 KiB x 32";
    bench.rows.extend([
        Row::new("get of 8 KiB, 32 waiting, in process", "/s", erb)
            .beside(beside, erb, raw)
            .bar(">= 90 % of raw", |ratio| ratio >= 0.9),
        Row::new("get of 8 KiB, 32 connections, NVMe/TCP", "/s", remote)
            .beside(beside, remote, raw),
        Row::new("get of 8 KiB, 32 connections, NVMe/TCP", "/s", remote).beside(
            "RocksDB, 32 threads, direct",
            remote,
            rocks,
        ),
        Row::new(
            "get of 8 KiB, one alone, in process, p50, over raw",
            "us",
            &more(erb_us),
        )
        .beside("raw 12 KiB, p50", erb_us, raw_us)
        .bar_of_figure("<= raw + 15 us", |more| more <= 15.0),
        Row::new(
            "get of 8 KiB, one alone, NVMe/TCP, p50, over raw",
            "us",
            &more(remote_us),
        )
        .beside("raw 12 KiB, p50", remote_us, raw_us)
        .bar_of_figure("<= raw + 60 us", |more| more <= 60.0),
    ]);
}
