// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random histories, played on the model and on the oracle at once.

use fastrand::Rng;

use crate::model::{Held, Mistake, Model, Refused};
use crate::oracle::{NEVER, Oracle, Past, RollBack, Target};

const KEYS: [&[u8]; 6] = [b"a", b"ab", b"abc", b"b", b"ba", b"c"];
/// None is of every key, one is of none.
const PREFIXES: [&[u8]; 6] = [b"", b"", b"a", b"ab", b"b", b"x"];
/// How far back a moment is asked for.
const MOMENTS_BACK: u64 = 40;

/// What a comparison finds.
type Judgement = Result<(), String>;

struct Comparison {
    random: Rng,
    model: Model,
    oracle: Oracle,
}

/// Plays one history of so many steps.
///
/// # Errors
/// Where model and oracle differ.
pub fn compare(seed: u64, steps: u32, mistake: Option<Mistake>) -> Judgement {
    let mut random = Rng::with_seed(seed);
    let min_age = [3, 10, 30][random.usize(..3)];
    let min_count = [1, 2, 4][random.usize(..3)];
    let mut comparison = Comparison {
        random,
        model: Model::new(min_age, min_count, mistake),
        oracle: Oracle::default(),
    };
    let mut play = || {
        for _ in 0..steps {
            comparison.step()?;
        }
        comparison.heads()
    };
    play().map_err(|difference| format!("seed {seed}: {difference}"))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, model: &T, oracle: &T) -> Judgement {
    if model == oracle {
        return Ok(());
    }
    Err(format!("{what}: model {model:?}, oracle {oracle:?}"))
}

fn held(past: &Past) -> Held {
    Held {
        version: past.version,
        source: past.source,
        origin: past.origin,
    }
}

impl Comparison {
    fn step(&mut self) -> Judgement {
        let key = KEYS[self.random.usize(..KEYS.len())];
        match self.random.u32(..100) {
            0..34 => self.write(key),
            34..40 => self.write_if(key),
            40..46 => self.restore(key),
            46..60 => self.roll_back(),
            60..64 => {
                self.model.snapshot(self.random.u8(..3));
                Ok(())
            }
            64..66 => {
                self.model.release(self.random.u8(..3));
                Ok(())
            }
            66..72 => {
                self.model.collect();
                Ok(())
            }
            72..76 => {
                self.model.checkpoint();
                Ok(())
            }
            76..80 => {
                self.model.recover();
                Ok(())
            }
            _ => self.read(key),
        }
    }

    fn write(&mut self, key: &[u8]) -> Judgement {
        match self.model.write(key, None) {
            Ok(version) => self.oracle.write(key, version, false),
            Err(refused) => return Err(format!("a write was refused: {refused:?}")),
        }
        Ok(())
    }

    fn write_if(&mut self, key: &[u8]) -> Judgement {
        let head = self.oracle.past(key).last().map_or(0, |head| head.version);
        let guess = if self.random.u8(..3) == 0 {
            head.wrapping_sub(1)
        } else {
            head
        };
        match self.model.write(key, Some(guess)) {
            Ok(version) => {
                self.oracle.write(key, version, false);
                same("condition met", &guess, &head)
            }
            Err(refused) => {
                same("refusal", &refused, &Refused::Mismatch)?;
                same("condition failed", &(guess != head), &true)
            }
        }
    }

    fn restore(&mut self, key: &[u8]) -> Judgement {
        let Some(chosen) = self.random.choice(self.oracle.past(key)) else {
            return Ok(());
        };
        let from = chosen.version;
        if let Ok(version) = self.model.restore(key, from) {
            self.oracle.restore(key, version, from);
            return Ok(());
        }
        let trimmed = from <= self.model.floor();
        same("only a trimmed version is refused", &trimmed, &true)
    }

    fn roll_back(&mut self) -> Judgement {
        let prefix = PREFIXES[self.random.usize(..PREFIXES.len())];
        let newest = self.model.newest();
        let mut target = if self.random.u8(..3) > 0 {
            let moment = self
                .random
                .u64(newest.saturating_sub(MOMENTS_BACK)..=newest);
            Target::Moment(moment)
        } else {
            Target::Back(self.random.u32(..5))
        };
        // An undo of the last one.
        if let (Some(last), 0..3) = (self.model.last_row(), self.random.u8(..10)) {
            target = Target::Moment(last - 1);
        }
        let since = newest.saturating_sub(self.random.u64(..10));
        let unless = (self.random.u8(..3) == 0).then_some(since);
        if let (Some(held), 0..2) = (
            self.random.choice(self.model.snapshots()),
            self.random.u8(..10),
        ) {
            target = Target::Moment(held);
        }
        let known = match target {
            Target::Moment(moment) => self.model.knows(moment),
            Target::Back(back) => (back as usize) < self.model.min_count(),
        };
        let known = known && unless.is_none_or(|since| since >= self.model.floor());
        match self.model.roll_back(prefix, target, unless) {
            Ok(row) => self.rolled_back(&row),
            Err(refused) => {
                same("refusal", &refused, &Refused::Trimmed)?;
                same("refused only if unknown", &known, &false)?;
            }
        }
        Ok(())
    }

    fn rolled_back(&mut self, row: &RollBack) {
        self.oracle.roll_back(row);
    }

    fn read(&mut self, key: &[u8]) -> Judgement {
        let name = String::from_utf8_lossy(key);
        let full: Vec<Held> = self.oracle.past(key).iter().map(held).collect();
        let back = self.random.usize(..4);
        if back < self.model.min_count() {
            let wanted = full.iter().rev().nth(back).copied();
            same(
                &format!("{name} -{back}"),
                &self.model.back(key, back),
                &wanted,
            )?;
        }
        let moment = self.random.u64(..=self.model.newest());
        if self.model.knows(moment) {
            let source = self.oracle.at(key, moment).map_or(NEVER, |it| it.source);
            let found = self.model.as_of(key, moment);
            same(&format!("{name} at {moment}"), &found, &Ok(source))?;
        }
        let mine = self.model.list(key);
        let part: Vec<Held> = full
            .iter()
            .filter(|it| mine.contains(it))
            .copied()
            .collect();
        same(
            &format!("{name}: part of the whole, in order"),
            &mine,
            &part,
        )?;
        same(&format!("{name}: the head"), &mine.last(), &full.last())
    }

    fn heads(&mut self) -> Judgement {
        for key in KEYS {
            let name = format!("{} at the end", String::from_utf8_lossy(key));
            let head = self.oracle.past(key).last().map(held);
            same(&name, &self.model.list(key).last().copied(), &head)?;
        }
        Ok(())
    }
}
