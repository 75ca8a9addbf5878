// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store of many keys: how long it takes to be there again behind kill -9, in what memory, and what roll backs cost in it.
//!
//! `cargo run --release -p erb-node --example large -- FOLDER [keys] [times]`
//!
//! Keys of 16 bytes, values of 16. Half of them are rolled back at once, beside 5,000 others, so many times each, in turn with
//! two durable writes of 4 KiB in a row; then the same beside 40 puts that wait. 10 million keys take 14 GB of the folder's
//! disk, and as long as the disk and a processor take for 15 million puts.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use erb_node::{Answer, Bare, Format, Local, Operation, Retention};
use erb_nvme::backend::{Change, Condition, Key, Log, RollBack, Target, Write};

type Failed = Box<dyn Error>;

const KEYS: u64 = 10_000_000;
const FEW: u64 = 5000;
const TIMES: usize = 100;
/// Puts that wait while keys are filled in, and beside roll backs.
const FILLING: u64 = 512;
const BESIDE: u64 = 40;
/// What the index may take, not what it takes: each roll back keeps room for a version of each key until a sweep has passed.
const MEMORY_BYTES: u64 = 1 << 40;
/// A record of the log, with its share of a directory.
const RECORD_BYTES: u64 = 400;
/// What is rolled back to is kept.
const KEPT: Retention = Retention {
    min_age_us: 3_600_000_000,
    keep_deleted_us: 3_600_000_000,
    min_count: 2,
};

/// Half of the keys are called m, the others r; few are called f.
fn key(number: u64, keys: u64) -> Vec<u8> {
    let (name, number) = match number {
        number if number >= keys => (b'f', number - keys),
        number if number % 2 == 0 => (b'm', number / 2),
        number => (b'r', number / 2),
    };
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [&[name; 8][..], &spread.to_be_bytes()].concat()
}

fn put(key: Vec<u8>, byte: u8) -> Operation {
    Operation::Write {
        write: Write {
            key: Key::Plain(key),
            change: Change::Put(vec![byte; 16]),
            condition: Condition::Any,
        },
        must_exist: false,
    }
}

fn version((_, outcome): (u64, Result<Answer, erb_node::Refused>)) -> Result<u64, Failed> {
    match outcome {
        Ok(Answer::Version(version)) => Ok(version),
        other => Err(format!("{other:?}").into()),
    }
}

/// Puts all of these: the newest version.
fn fill(local: &mut Local, names: impl Iterator<Item = Vec<u8>>, byte: u8) -> Result<u64, Failed> {
    let (mut asked, mut answered, mut newest) = (0, 0, 0);
    for name in names {
        if asked - answered >= FILLING {
            newest = version(local.answer()?.ok_or("an answer")?)?.max(newest);
            answered += 1;
        }
        local.ask(asked, put(name, byte));
        asked += 1;
    }
    while let Some(answer) = local.answer()? {
        newest = version(answer)?.max(newest);
    }
    Ok(newest)
}

/// Fills a store, says so, and does nothing more: it is killed then.
fn filler(path: &Path, keys: u64) -> Result<(), Failed> {
    let mut local = Local::open(path, MEMORY_BYTES)?;
    let newest = fill(&mut local, (0..keys + FEW).map(|at| key(at, keys)), b'g')?;
    println!("{newest}");
    loop {
        std::thread::park();
    }
}

/// What the store says of its space.
fn space(local: &mut Local) -> Result<String, Failed> {
    local.ask(0, Operation::Log(Log::Status));
    match local.answer()?.ok_or("an answer")?.1 {
        Ok(Answer::Health(it)) => Ok(format!(
            "{} of {} MiB used",
            it.used_bytes >> 20,
            it.size_bytes >> 20
        )),
        other => Err(format!("{other:?}").into()),
    }
}

fn resident_bytes() -> Result<u64, Failed> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("pages")?.parse()?;
    Ok(pages * 4096)
}

fn percentile(times: &[f64], share: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * share / 100).min(sorted.len() - 1)]
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default()
}

/// Milliseconds of one roll back; puts that wait beside it are asked anew, and how long they took is noted.
struct Rolling<'a> {
    local: &'a mut Local,
    next: u64,
    keys: u64,
    /// By number: when a put was asked for.
    puts: std::collections::HashMap<u64, Instant>,
    put_ms: Vec<f64>,
}

impl Rolling<'_> {
    fn begin_put(&mut self) {
        let at = self.next;
        let name = key((at * 7919 * 2 + 1) % self.keys, self.keys);
        self.puts.insert(at, Instant::now());
        self.local.ask(at, put(name, b'p'));
        self.next += 1;
    }

    fn answer(&mut self, is_again: bool) -> Result<u64, Failed> {
        let answer = self.local.answer()?.ok_or("an answer")?;
        let number = answer.0;
        version(answer)?;
        if let Some(begun) = self.puts.remove(&number) {
            self.put_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            if is_again {
                self.begin_put();
            }
        }
        Ok(number)
    }

    fn roll(&mut self, name: u8, moment: u64) -> Result<f64, Failed> {
        let row = RollBack {
            prefix: vec![name],
            target: Target::Moment(moment),
            unless_written_since: None,
            is_dry_run: false,
        };
        let (number, begun) = (self.next, Instant::now());
        self.next += 1;
        self.local.ask(number, Operation::RollBack(row));
        while self.answer(true)? != number {}
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}

fn roll_backs(
    local: &mut Local,
    raw: &mut Bare,
    keys: u64,
    moments: [u64; 2],
    times: usize,
) -> Result<(), Failed> {
    let mut rolling = Rolling {
        local,
        next: 0,
        keys,
        puts: Default::default(),
        put_ms: Vec::new(),
    };
    for beside in [0, BESIDE] {
        (0..beside).for_each(|_| rolling.begin_put());
        let mut all: [Vec<f64>; 3] = Default::default();
        for time in 0..times {
            let names = if time % 2 == 0 {
                [(0, b'm'), (1, b'f')]
            } else {
                [(1, b'f'), (0, b'm')]
            };
            for (at, name) in names {
                all[at].push(rolling.roll(name, moments[time % 2])?);
                let begun = Instant::now();
                for half in 0..2 {
                    raw.write((time * 2 + half) as u64 * 4096 % raw.bytes(), &[7; 4096]);
                    raw.ended()?;
                }
                all[2].push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        let of = [
            "roll back of half of the keys",
            "roll back of 5,000 keys",
            "two durable writes of 4 KiB",
        ];
        println!("beside {beside} puts, load {}", load().trim());
        for (of, times) in of.into_iter().zip(&all) {
            println!(
                "  {of}: p50 {:.3} ms, p99 {:.3} ms",
                percentile(times, 50),
                percentile(times, 99)
            );
        }
        while !rolling.puts.is_empty() {
            rolling.answer(false)?;
        }
        if beside > 0 {
            let puts = &rolling.put_ms;
            println!(
                "  puts: p50 {:.3} ms, p99 {:.3} ms, {} of them",
                percentile(puts, 50),
                percentile(puts, 99),
                puts.len()
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("FOLDER [keys] [times]")?;
    let keys: u64 = arguments.next().map_or(Ok(KEYS), |it| it.parse())?;
    let times: usize = arguments.next().map_or(Ok(TIMES), |it| it.parse())?;
    let path = Path::new(&folder).join("large");
    if arguments.next().is_some() {
        return filler(&path, keys);
    }
    let wanted = Format {
        path: path.clone(),
        bytes: Some((keys * RECORD_BYTES * 3 + (2 << 30)).next_multiple_of(1 << 20)),
        shards: 1,
        may_overwrite: false,
    };
    erb_node::format_keeping(&wanted, KEPT, &mut |_, _| {})?;
    let outcome = measure(&path, &folder, keys, times);
    std::fs::remove_file(&path)?;
    outcome
}

fn measure(path: &Path, folder: &str, keys: u64, times: usize) -> Result<(), Failed> {
    let begun = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args([folder, &keys.to_string(), &times.to_string(), "fill"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let said = child.stdout.take().ok_or("its output")?;
    BufReader::new(said).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    let first: u64 = line.trim().parse()?;
    println!(
        "filled in {:.1} s, killed; load {}",
        begun.elapsed().as_secs_f64(),
        load().trim()
    );
    let (before, begun) = (resident_bytes()?, Instant::now());
    let mut local = Local::open(path, MEMORY_BYTES)?;
    let bytes = resident_bytes()? - before;
    println!(
        "opened in {:.2} s, {:.1} bytes a key; load {}",
        begun.elapsed().as_secs_f64(),
        bytes as f64 / (keys + FEW) as f64,
        load().trim()
    );
    println!("{}", space(&mut local)?);
    let rolled = (0..keys + FEW).filter(|at| *at >= keys || at % 2 == 0);
    let second = fill(&mut local, rolled.map(|at| key(at, keys)), b'b')?;
    println!("half of it and few again: {}", space(&mut local)?);
    let mut raw = Bare::make(&Path::new(folder).join("raw"), 64 << 20)?;
    roll_backs(&mut local, &mut raw, keys, [first, second], times)
}
