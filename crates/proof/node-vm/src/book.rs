// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients outside of the guest know of the store: what was acknowledged to them, and what they have read.
//!
//! Invariants:
//! 1. A number is noted as tried before its write is sent, and as acknowledged or read when the answer is there.
//! 2. What is found later lies between: at least what was acknowledged or read, at most what was tried.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_kv::{Change, Client, Condition, Error, RollBack, Selector, Status, Target, Write};

/// A node may be busy for so long.
const BUSY: Duration = Duration::from_secs(30);
/// Writers at once.
pub const WRITERS: u64 = 8;
/// Keys of a writer. 0 and 1 change together; 2 and 3 too, and are then rolled back.
const KEYS: u64 = 7;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    tried: u64,
    acknowledged: u64,
    seen: u64,
}

/// A write that was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Entry {
    writer: u64,
    key: u64,
    version: u64,
    number: u64,
}

/// What is known.
#[derive(Default)]
pub struct Book {
    keys: Mutex<BTreeMap<(u64, u64), Known>>,
    log: Mutex<Vec<Entry>>,
    numbers: Mutex<[u64; WRITERS as usize]>,
    /// Reads that were answered.
    reads: Mutex<u64>,
}

fn key_of(writer: u64, key: u64) -> Vec<u8> {
    format!("w{writer}-{key}").into_bytes()
}

/// The value with a number: its bytes tell whether all of it is of one write.
fn value_of(number: u64) -> Vec<u8> {
    let words = 1 + (number * 37 % 1200) as usize;
    number.to_le_bytes().repeat(words)
}

fn number_of(value: &[u8]) -> Result<u64> {
    let number = value.first_chunk().context("a value of no byte")?;
    let number = u64::from_le_bytes(*number);
    ensure!(
        value == value_of(number),
        "a value is not of one write: {number}"
    );
    Ok(number)
}

fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody has failed with it")
}

/// A call that a busy node has to be asked for again, as it says itself: for so long.
fn repeated<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match call() {
            Err(error) if error.status() == Some(Status::BUSY) && begun.elapsed() < BUSY => {
                thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// The number of a key's value; 0: it has none.
fn found(client: &mut Client, writer: u64, key: u64, at: Selector) -> Result<u64> {
    match repeated(|| client.get(&key_of(writer, key), at)) {
        Ok(value) => number_of(&value.value),
        Err(error) if error.status() == Some(Status::ABSENT) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

impl Book {
    /// Acknowledged writes, and reads.
    pub fn counts(&self) -> (usize, u64) {
        (whole(&self.log).len(), *whole(&self.reads))
    }

    /// Writes until the connection ends, or it is told to stop.
    ///
    /// # Errors
    /// The node refuses a write.
    pub fn write(&self, client: &mut Client, writer: u64, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let number = {
                let number = &mut whole(&self.numbers)[writer as usize];
                *number += 1;
                *number
            };
            let key = number % KEYS;
            let keys = match key {
                0 | 1 => vec![0, 1],
                2 | 3 => vec![2, 3],
                key => vec![key],
            };
            for key in &keys {
                whole(&self.keys).entry((writer, *key)).or_default().tried = number;
            }
            let done = match self.change(client, writer, &keys, number) {
                // Whether it happened nobody knows. A node whose drive has failed may say that too.
                Err(error) if is_lost(&error) || stop.load(Ordering::Relaxed) => return Ok(()),
                done => done?,
            };
            for key in &keys {
                let entry = Entry {
                    writer,
                    key: *key,
                    version: done,
                    number,
                };
                whole(&self.keys)
                    .entry((writer, *key))
                    .or_default()
                    .acknowledged = number;
                whole(&self.log).push(entry);
            }
        }
        Ok(())
    }

    /// One write of a number. Keys 2 and 3 get another value, and are then rolled back to this one.
    fn change(
        &self,
        client: &mut Client,
        writer: u64,
        keys: &[u64],
        number: u64,
    ) -> Result<u64, Error> {
        let batch = |client: &mut Client, number: u64| {
            let writes: Vec<Write> = keys
                .iter()
                .map(|key| Write {
                    key: erb_kv::plain(&key_of(writer, *key)),
                    change: Change::Put(value_of(number)),
                    condition: Condition::Any,
                })
                .collect();
            repeated(|| client.batch(&writes))
        };
        match keys[..] {
            [key] => repeated(|| client.put(&key_of(writer, key), &value_of(number), None)),
            [2, 3] => {
                let version = batch(client, number)?;
                // A number that is never acknowledged: nobody may find it once the roll back is.
                batch(client, number + SPOILT)?;
                let roll_back = RollBack {
                    prefix: format!("w{writer}-").into_bytes(),
                    target: Target::Moment(version),
                    unless_written_since: None,
                    is_dry_run: false,
                };
                repeated(|| client.roll_back(&roll_back))?;
                Ok(version)
            }
            _ => batch(client, number),
        }
    }

    /// Reads until the connection ends, or it is told to stop.
    ///
    /// # Errors
    /// The node refuses a read, or a value is not of one write.
    pub fn read(&self, client: &mut Client, stop: &AtomicBool) -> Result<()> {
        for round in 0_u64.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (writer, key) = (round % WRITERS, round / WRITERS % KEYS);
            if is_rolled(key) {
                continue;
            }
            match found(client, writer, key, Selector::Head) {
                Ok(number) => self.saw(writer, key, number),
                Err(error) if error.downcast_ref::<Error>().is_some_and(is_lost) => break,
                Err(error) if error.is::<Error>() && stop.load(Ordering::Relaxed) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn saw(&self, writer: u64, key: u64, number: u64) {
        let mut keys = whole(&self.keys);
        let known = keys.entry((writer, key)).or_default();
        known.seen = known.seen.max(number);
        *whole(&self.reads) += 1;
    }

    /// Compares what is there with what is known. What is read here may not be taken back later either.
    ///
    /// # Errors
    /// Something was lost, taken back, halved or made up.
    pub fn check(&self, client: &mut Client) -> Result<()> {
        let keys: Vec<_> = whole(&self.keys)
            .iter()
            .map(|(key, known)| (*key, *known))
            .collect();
        for ((writer, key), known) in keys {
            let number = found(client, writer, key, Selector::Head)?;
            let about = || format!("w{writer}-{key}: {number} is there, {known:?}");
            if is_rolled(key) {
                let plain = number % SPOILT;
                ensure!(
                    plain >= known.acknowledged,
                    "acknowledged and lost: {}",
                    about()
                );
                ensure!(plain <= known.tried, "never written: {}", about());
                let is_undone = number == known.acknowledged + SPOILT;
                ensure!(
                    !is_undone,
                    "a roll back was acknowledged and lost: {}",
                    about()
                );
                continue;
            }
            ensure!(
                number >= known.acknowledged,
                "acknowledged and lost: {}",
                about()
            );
            ensure!(number >= known.seen, "read and taken back: {}", about());
            ensure!(number <= known.tried, "never written: {}", about());
            self.saw(writer, key, number);
        }
        for writer in 0..WRITERS {
            for pair in [[0, 1], [2, 3]] {
                let mut numbers = [0; 2];
                for (number, key) in numbers.iter_mut().zip(pair) {
                    *number = found(client, writer, key, Selector::Head)?;
                }
                ensure!(
                    numbers[0] == numbers[1],
                    "half of a batch: w{writer}-{pair:?}: {numbers:?}"
                );
            }
        }
        self.check_history(client)
    }

    fn check_history(&self, client: &mut Client) -> Result<()> {
        let log = whole(&self.log).clone();
        for entry in log.iter().rev().take(40).chain(log.iter().take(5)) {
            let at = Selector::Version(entry.version);
            let number = found(client, entry.writer, entry.key, at)
                .with_context(|| format!("history: {entry:?}"))?;
            ensure!(number == entry.number, "history: {entry:?} is {number}");
        }
        Ok(())
    }
}

/// Added to a number whose value a roll back takes away at once.
const SPOILT: u64 = 1 << 40;

fn is_rolled(key: u64) -> bool {
    key == 2 || key == 3
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Lost | Error::NotTaken(_))
}
