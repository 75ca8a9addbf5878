// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store with no network before it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use erb_kv::{Change, Condition, Key, Selector, Write};
use erb_node::{Answer, Format, Local, NEW_RETENTION, Operation, Retention};

use super::report::ms;

/// Memory of the index: more than any experiment takes.
pub const MEMORY_BYTES: u64 = 2 << 30;

/// Makes a store with one shard.
pub fn format(folder: &Path, name: &str, bytes: u64, keeps: Retention) -> Result<PathBuf> {
    let path = folder.join(name);
    let wanted = Format {
        path: path.clone(),
        bytes: Some(bytes),
        shards: 1,
        may_overwrite: false,
    };
    erb_node::format_keeping(&wanted, keeps, &mut |_, _| {})?;
    Ok(path)
}

/// A store that is open, and its answers' times.
pub struct InProcess {
    local: Local,
    path: PathBuf,
}

/// A key of the paper's size.
pub fn key(number: u64) -> Vec<u8> {
    u32::try_from(number)
        .expect("fewer keys than that")
        .to_be_bytes()
        .to_vec()
}

fn write(key: Vec<u8>, change: Change) -> Operation {
    Operation::Write {
        write: Write {
            key: Key::Plain(key),
            change,
            condition: Condition::Any,
        },
        must_exist: false,
    }
}

/// A put.
pub fn put(number: u64, value: &[u8]) -> Operation {
    write(key(number), Change::Put(value.to_vec()))
}

/// A get of a whole value.
pub fn get(number: u64) -> Operation {
    Operation::Get {
        key: Key::Plain(key(number)),
        at: Selector::Head,
        bytes: 1 << 20,
    }
}

/// A restore of what a key was before.
pub fn restore(number: u64) -> Operation {
    write(key(number), Change::Restore(Selector::Back(1)))
}

impl InProcess {
    pub fn make(folder: &Path, name: &str, bytes: u64) -> Result<Self> {
        Self::keeping(folder, name, bytes, NEW_RETENTION)
    }

    pub fn keeping(folder: &Path, name: &str, bytes: u64, keeps: Retention) -> Result<Self> {
        let path = format(folder, name, bytes, keeps)?;
        let local = Local::open(&path, MEMORY_BYTES)?;
        Ok(Self { local, path })
    }

    /// Does so many operations, so many at a time: operations a second. `check` sees each answer.
    pub fn many(
        &mut self,
        depth: u64,
        count: u64,
        operation: impl FnMut(u64) -> Operation,
        check: impl Fn(&Answer) -> bool,
    ) -> Result<f64> {
        let begun = Instant::now();
        self.each(depth, count, operation, |_, answer| check(answer))?;
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    /// The same: how many milliseconds each of them took, in the order in which they were answered.
    pub fn timed(
        &mut self,
        depth: u64,
        count: u64,
        mut operation: impl FnMut(u64) -> Operation,
        check: impl Fn(&Answer) -> bool,
    ) -> Result<Vec<f64>> {
        let begun = vec![Cell::new(Instant::now()); usize::try_from(count)?];
        let mut times = Vec::with_capacity(begun.len());
        let ask = |number| {
            let operation = operation(number);
            begun[number as usize].set(Instant::now());
            operation
        };
        self.each(depth, count, ask, |number, answer| {
            times.push(ms(begun[number as usize].get().elapsed()));
            check(answer)
        })?;
        Ok(times)
    }

    fn each(
        &mut self,
        depth: u64,
        count: u64,
        mut operation: impl FnMut(u64) -> Operation,
        mut check: impl FnMut(u64, &Answer) -> bool,
    ) -> Result<()> {
        let mut asked = depth.min(count);
        for number in 0..asked {
            self.local.ask(number, operation(number));
        }
        let mut answered = 0;
        while let Some((number, outcome)) = self.local.answer()? {
            let answer = outcome.map_err(|refused| anyhow!("refused: {refused:?}"))?;
            if !check(number, &answer) {
                bail!("a wrong answer to {number}: {answer:?}");
            }
            answered += 1;
            if asked < count {
                self.local.ask(asked, operation(asked));
                asked += 1;
            }
            if answered == count {
                break;
            }
        }
        Ok(())
    }

    /// One operation.
    pub fn one(
        &mut self,
        operation: Operation,
        check: impl Fn(&Answer) -> bool,
    ) -> Result<Duration> {
        let mut operation = Some(operation);
        let begun = Instant::now();
        self.many(1, 1, |_| operation.take().expect("one"), check)?;
        Ok(begun.elapsed())
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        // The folder goes too; but space is needed before.
        let _ = std::fs::remove_file(&self.path);
    }
}
