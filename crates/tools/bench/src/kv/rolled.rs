// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Versions back, and roll backs.

use std::time::Instant;

use anyhow::{Result, ensure};
use erb_kv::crowd::Ask;
use erb_kv::{Client, RollBack, Selector, Target};
use erb_node::Answer;

use super::args::KvArgs;
use super::local::{self, InProcess};
use super::node::{self, Running};
use super::report::{Rounds, Row, ms, percentile, us};
use super::{Bench, VALUE_BYTES};

/// How many versions before the newest.
const BACK: [u32; 6] = [0, 1, 3, 10, 100, 1000];
/// Keys with so many versions.
const DEEP_KEYS: u64 = 4;
/// Restores that wait at a time, and how many of them: the paper's way to roll back.
const WAITING: u64 = 128;

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let keys = u64::from(bench.args.roll_back_keys);
    let deep = DEEP_KEYS * 1001;
    let bytes = KvArgs::store_bytes(keys * 24 / 10 + deep, keys);
    let node = Running::start(bench.folder.path(), "rolled", bytes)?;
    let mut client = node.client()?;
    let deep = deepen(bench, &node)?;
    back(bench, &mut client)?;
    roll(bench, &node, &deep)?;
    restores(bench, &node)
}

fn deep_key(number: u64) -> Vec<u8> {
    format!("deep{number}").into_bytes()
}

/// A set of keys, and two moments between which all of them differ.
struct Set {
    name: String,
    prefix: &'static [u8],
    moments: [u64; 2],
}

/// Keys with 1,001 versions.
fn deepen(bench: &Bench<'_>, node: &Running) -> Result<Set> {
    bench.begins("keys with 1,001 versions")?;
    let first = node.fill(DEEP_KEYS, deep_key, &vec![0; VALUE_BYTES])?;
    let mut last = first;
    for number in 1..=1000_u64 {
        last = node.fill(DEEP_KEYS, deep_key, &vec![number as u8; VALUE_BYTES])?;
    }
    Ok(Set {
        name: format!("{DEEP_KEYS} keys over 1,000 versions"),
        prefix: b"deep",
        moments: [first, last],
    })
}

/// Gets of older versions, one by one, in turn.
fn back(bench: &mut Bench<'_>, client: &mut Client) -> Result<()> {
    bench.begins("gets against older versions")?;
    let times = u64::from(bench.args.pairs) * 4;
    let mut all: [Rounds; BACK.len()] = Default::default();
    for round in 0..=bench.args.rounds {
        bench.interrupt.check()?;
        let mut one: [Vec<f64>; BACK.len()] = Default::default();
        for time in 0..times {
            for turn in 0..BACK.len() {
                let at = (turn + time as usize) % BACK.len();
                let key = deep_key(time % DEEP_KEYS);
                let begun = Instant::now();
                let found = client.get(&key, Selector::Back(BACK[at]))?;
                one[at].push(us(begun.elapsed()));
                ensure!(found.value[0] == (1000 - BACK[at]) as u8, "a wrong version");
            }
        }
        if round > 0 {
            for (to, of) in all.iter_mut().zip(&one) {
                to.push(percentile(of, 50));
            }
        }
    }
    for (at, back) in BACK.into_iter().enumerate().skip(1) {
        let what = format!("get of 8 KiB, {back} back, NVMe/TCP, p50");
        let mut row = Row::new(what, "us", &all[at])
            .beside("the newest, p50", &all[at], &all[0])
            .bar("equal within 2 %", |ratio| (ratio - 1.0).abs() <= 0.02);
        if back == 3 {
            row = row.paper("1391.2 against 1390.8");
        }
        bench.rows.push(row);
    }
    Ok(())
}

fn many_key(number: u64) -> Vec<u8> {
    [b"m".to_vec(), local::key(number)].concat()
}

fn few_key(number: u64) -> Vec<u8> {
    [b"f".to_vec(), local::key(number)].concat()
}

/// Of those that no roll back concerns.
fn still_key(number: u64) -> Vec<u8> {
    [b"s".to_vec(), local::key(number)].concat()
}

type KeyOf = fn(u64) -> Vec<u8>;

fn set(node: &Running, keys: u64, prefix: &'static [u8], key: KeyOf) -> Result<Set> {
    let mut moments = [0; 2];
    for (moment, byte) in moments.iter_mut().zip([b'g', b'b']) {
        *moment = node.fill(keys, key, &vec![byte; VALUE_BYTES])?;
    }
    Ok(Set {
        name: format!("{keys} keys of 8 KiB"),
        prefix,
        moments,
    })
}

/// Times of one thing, each time that it was done.
type Times = Vec<f64>;

fn roll(bench: &mut Bench<'_>, node: &Running, deep: &Set) -> Result<()> {
    let keys = u64::from(bench.args.roll_back_keys);
    bench.begins(&format!("roll backs of {keys} keys"))?;
    let many = set(node, keys, b"m", many_key)?;
    let few = set(node, keys / 10, b"f", few_key)?;
    set(node, keys / 10, b"s", still_key)?;
    let mut client = node.client()?;
    let sets = [&many, &few, deep];
    let mut rolled: [Times; 3] = Default::default();
    let (mut raw, mut gets) = (Times::new(), Gets::default());
    for time in 0..u64::from(bench.args.times) {
        bench.interrupt.check()?;
        for turn in 0..sets.len() {
            let at = (turn + time as usize) % sets.len();
            let wanted = RollBack {
                prefix: sets[at].prefix.to_vec(),
                target: Target::Moment(sets[at].moments[(time % 2) as usize]),
                unless_written_since: None,
                is_dry_run: false,
            };
            let begun = Instant::now();
            client.roll_back(&wanted)?;
            rolled[at].push(ms(begun.elapsed()));
            raw.push(ms(bench.raw.write_in_a_row(2)?));
        }
        gets.measure(&mut client, time, keys)?;
    }
    roll_rows(bench, [&many, &few, deep], (&rolled, &raw), &gets);
    Ok(())
}

/// Gets right behind roll backs. What a first get costs beside the roll back that it applies to its key is that its
/// value comes from the disk: the second of the same key finds it in the device's cache. So it stands beside the first
/// get of a key that no roll back concerns.
#[derive(Default)]
struct Gets {
    first: Times,
    second: Times,
    still: Times,
}

impl Gets {
    fn measure(&mut self, client: &mut Client, time: u64, keys: u64) -> Result<()> {
        let wanted = if time % 2 == 0 { b'g' } else { b'b' };
        // Whoever slept wakes by this one.
        client.get(&deep_key(0), Selector::Head)?;
        let rolled = many_key(time * 7919 % keys);
        let still = still_key(time * 7919 % (keys / 10));
        let turns = if time % 4 < 2 {
            [true, false]
        } else {
            [false, true]
        };
        for is_rolled in turns {
            let (key, byte, times) = match is_rolled {
                true => (&rolled, wanted, &mut self.first),
                false => (&still, b'b', &mut self.still),
            };
            times.push(timed_get(client, key, byte)?);
        }
        self.second.push(timed_get(client, &rolled, wanted)?);
        Ok(())
    }
}

/// Microseconds.
fn timed_get(client: &mut Client, key: &[u8], byte: u8) -> Result<f64> {
    let begun = Instant::now();
    let found = client.get(key, Selector::Head)?;
    let time = us(begun.elapsed());
    ensure!(
        found.value == vec![byte; VALUE_BYTES],
        "a key is not what it was rolled back to"
    );
    Ok(time)
}

fn roll_rows(
    bench: &mut Bench<'_>,
    [many, few, deep]: [&Set; 3],
    (rolled, raw): (&[Times; 3], &Times),
    gets: &Gets,
) {
    let of = |times: &Times, share| Rounds(vec![percentile(times, share)]);
    let beside = "two durable writes of 4 KiB in a row";
    let row = |set: &Set, at: usize, share: usize| {
        let what = format!("{} rolled back, durable, p{share}", set.name);
        Row::new(what, "ms", &of(&rolled[at], share))
    };
    let (raw50, raw99) = (of(raw, 50), of(raw, 99));
    let (many50, many99) = (of(&rolled[0], 50), of(&rolled[0], 99));
    let p50 = row(many, 0, 50)
        .paper("25 (not durable)")
        .beside(beside, &many50, &raw50);
    let equal = |ratio: f64| (ratio - 1.0).abs() <= 0.1;
    bench
        .rows
        .push(p50.bar_of_figure("<= 1 ms", |ms| ms <= 1.0));
    let p99 = row(many, 0, 99).beside(beside, &many99, &raw99);
    bench.rows.push(p99.bar("<= 1.5x", |ratio| ratio <= 1.5));
    for (set, at) in [(few, 1), (deep, 2)] {
        let p50 = of(&rolled[at], 50);
        let row = row(set, at, 50).beside(format!("the same of {}", many.name), &p50, &many50);
        bench.rows.push(row.bar("equal within 10 %", equal));
    }
    let [first, second, still] = [&gets.first, &gets.second, &gets.still].map(|it| of(it, 50));
    let more = Rounds(vec![first.0[0] - still.0[0]]);
    bench.rows.push(
        Row::new(
            "first get behind a roll back, NVMe/TCP, p50, over one of a key that was not rolled back",
            "us",
            &more,
        )
        .beside("that one", &first, &still)
        .bar_of_figure("<= 2 us more", |more| more <= 2.0),
    );
    bench.rows.push(
        Row::new("first get behind a roll back, NVMe/TCP, p50", "us", &first).beside(
            "the second, of what the device has just read",
            &first,
            &second,
        ),
    );
}

/// The paper's loop: each key is restored on its own.
fn restores(bench: &mut Bench<'_>, node: &Running) -> Result<()> {
    let keys = u64::from(bench.args.roll_back_keys);
    bench.begins(&format!("{keys} restores one by one, {WAITING} waiting"))?;
    let bytes = KvArgs::store_bytes(0, keys * (3 + u64::from(bench.args.rounds)));
    let mut store = InProcess::make(bench.folder.path(), "restores", bytes)?;
    let is_version = |answer: &Answer| matches!(answer, Answer::Version(_));
    for byte in [b'g', b'b'] {
        store.many(
            WAITING,
            keys,
            |number| local::put(number, &[byte; 16]),
            is_version,
        )?;
    }
    let mut crowd = node.crowd(WAITING as usize)?;
    let (mut erb, mut remote) = <(Rounds, Rounds)>::default();
    for _ in 0..bench.args.rounds {
        bench.interrupt.check()?;
        let rate = store.many(WAITING, keys, local::restore, is_version)?;
        erb.push(keys as f64 / rate);
        let rate = node::many(&mut crowd, keys, |number| Ask::Restore {
            key: many_key(number),
            from: Selector::Back(1),
        })?;
        remote.push(keys as f64 / rate);
    }
    let paper = "0.025 (one version back), 0.050 (two), not durable";
    bench.rows.push(
        Row::new(
            format!("{keys} restores, {WAITING} waiting, in process"),
            "s",
            &erb,
        )
        .paper(paper)
        .bar_of_figure("<= 0.4 s", |seconds| seconds <= 0.4),
    );
    bench.rows.push(
        Row::new(
            format!("{keys} restores, {WAITING} connections, NVMe/TCP"),
            "s",
            &remote,
        )
        .paper(paper),
    );
    Ok(())
}
