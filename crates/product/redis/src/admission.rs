// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which missed keys are filled. While insertions find room, all: what was read once may be read again,
//! and nobody goes for it. Once insertions evict, a fill pays only if its key is read more often than the
//! one that goes, and a fill costs Redis about what an answer saves it. Then
//! - one of [`ONE_OF`] misses is reported, and counted by a sketch that forgets (TinyLFU: Einziger,
//!   Friedman, Manes, ACM ToS 2017);
//! - only keys that were counted often enough are filled, and how often that is follows from what fills
//!   have brought;
//! - fills are a small part of all requests, whatever is counted.

use std::hash::{DefaultHasher, Hash, Hasher};

use erb_abi as abi;
use erb_abi::Wanted;

use crate::outside::{DataPath, Result};

/// While insertions evict, one of so many misses is reported.
const ONE_OF: u32 = 8;
/// Insertions evict: more than one of so many did, within a second.
const EVICTS_ONE_OF: u64 = 8;
/// Fewer insertions within a second say nothing.
const TELLING: u64 = 64;
/// While insertions evict, one fill for so many requests.
const REQUESTS_PER_FILL: u64 = 50;
/// So many fills a second are always allowed.
const FILLS_MIN: u64 = 50;
/// Answers that a fill must bring to be worth it, and those from which on more are wanted. Both take
/// Redis about the same time.
const WORTH: (u64, u64) = (2, 8);
/// Counts at which a key is filled: the bounds of what is learned.
const AT_LEAST: (u8, u8) = (2, COUNT_MAX);
/// A counter of the sketch has four bits.
const COUNT_MAX: u8 = 15;
/// Counters of the sketch for each entry that the cache can hold.
const COUNTERS_PER_ENTRY: usize = 8;
/// 8 MB.
const COUNTERS_MAX: usize = 1 << 24;
/// Counters of one key.
const ROWS: u64 = 4;
/// All counts are halved after so many reports for each entry.
const REPORTS_PER_ENTRY: usize = 10;

/// How often keys were counted, about. Bounded in memory; a key's count is never below the truth, but for
/// what was forgotten.
struct Sketch {
    /// Sixteen counters each.
    words: Vec<u64>,
    /// Until all are halved.
    left: usize,
    period: usize,
}

impl Sketch {
    fn new(entries: usize) -> Self {
        let counters = (entries * COUNTERS_PER_ENTRY).next_power_of_two();
        let period = entries * REPORTS_PER_ENTRY;
        Self {
            words: vec![0; counters.clamp(16, COUNTERS_MAX) / 16],
            left: period,
            period,
        }
    }

    /// Counts it once more; how often that was.
    fn count(&mut self, key: &Wanted) -> u8 {
        let mut hasher = DefaultHasher::new();
        (&key.key, key.db).hash(&mut hasher);
        let hash = hasher.finish();
        let counters = self.words.len() as u64 * 16;
        let places = [0, 1, 2, 3].map(|row: u64| {
            debug_assert!(row < ROWS);
            let place = hash.wrapping_add((hash >> 32 | 1).wrapping_mul(row)) % counters;
            ((place / 16) as usize, (place % 16 * 4) as u32)
        });
        let of = |words: &[u64], (word, shift): (usize, u32)| (words[word] >> shift & 15) as u8;
        let least = places.map(|place| of(&self.words, place));
        let least = least.into_iter().min().unwrap_or(0);
        if least < COUNT_MAX {
            // Only the smallest: the others are larger by keys that share them.
            for place in places {
                if of(&self.words, place) == least {
                    self.words[place.0] += 1 << place.1;
                }
            }
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.left = self.period;
            for word in &mut self.words {
                *word = *word >> 1 & 0x7777_7777_7777_7777;
            }
        }
        (least + 1).min(COUNT_MAX)
    }
}

/// What was counted, ever or within a second.
#[derive(Clone, Copy, Default)]
struct Counts {
    inserted: u64,
    evicted: u64,
    answered: u64,
    missed: u64,
}

impl Counts {
    fn read(path: &impl DataPath) -> Result<Self> {
        Ok(Self {
            inserted: path.stat(abi::STAT_FILL_INSERTED)?,
            evicted: path.stat(abi::STAT_CACHE_EVICTED)?,
            answered: path.stat(abi::STAT_FAST_PACKET)? + path.stat(abi::STAT_FAST_PACKET_TC)?,
            missed: path.stat(abi::STAT_REFUSE_MISS)?,
        })
    }

    const fn since(&self, before: &Self) -> Self {
        Self {
            inserted: self.inserted.saturating_sub(before.inserted),
            evicted: self.evicted.saturating_sub(before.evicted),
            answered: self.answered.saturating_sub(before.answered),
            missed: self.missed.saturating_sub(before.missed),
        }
    }
}

/// What is known while insertions evict.
struct Full {
    sketch: Sketch,
    at_least: u8,
    /// Fills that may still be begun in this second.
    fills: u64,
}

/// Which missed keys are filled.
#[derive(Default)]
pub(crate) struct Admission {
    before: Counts,
    full: Option<Full>,
}

impl Admission {
    /// What the data path shall report from now on: a new daemon knows of no eviction.
    pub(crate) fn begin(path: &impl DataPath) -> Self {
        path.set_miss_fill_at(1);
        path.set_miss_one_of(0);
        Self::default()
    }

    /// Whether a missed key is filled.
    pub(crate) fn takes(&mut self, key: &Wanted) -> bool {
        let Some(full) = &mut self.full else {
            return true;
        };
        let takes = full.sketch.count(key) >= full.at_least && full.fills > 0;
        full.fills -= u64::from(takes);
        takes
    }

    /// Once a second: learns from what was counted. Whether anything was missed.
    pub(crate) fn learn(&mut self, path: &impl DataPath) -> Result<bool> {
        let now = Counts::read(path)?;
        let second = now.since(&self.before);
        self.before = now;
        let evicts = second.evicted * EVICTS_ONE_OF > second.inserted;
        match &mut self.full {
            None if evicts && second.evicted >= TELLING => {
                let entries = path.sets() as usize * abi::WAYS as usize;
                self.full = Some(Full {
                    sketch: Sketch::new(entries),
                    at_least: AT_LEAST.0,
                    fills: 0,
                });
                path.set_miss_one_of(ONE_OF);
            }
            Some(_) if !evicts && second.inserted >= FILLS_MIN => {
                self.full = None;
                path.set_miss_one_of(0);
            }
            Some(full) => full.learn(&second),
            None => {}
        }
        if let Some(full) = &mut self.full {
            let requests = second.answered + second.missed;
            full.fills = (requests / REQUESTS_PER_FILL).max(FILLS_MIN);
        }
        Ok(second.missed > 0)
    }
}

impl Full {
    fn learn(&mut self, second: &Counts) {
        if second.answered < WORTH.0 * second.inserted {
            self.at_least = (self.at_least + 1).min(AT_LEAST.1);
        } else if second.answered > WORTH.1 * second.inserted {
            self.at_least = (self.at_least - 1).max(AT_LEAST.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use erb_abi::ControlBlock as _;

    use super::*;
    use crate::doubles::Recorder;

    fn key(number: u64) -> Wanted {
        Wanted::string(number.to_ne_bytes().to_vec())
    }

    fn counted(path: &Recorder, inserted: u64, evicted: u64, answered: u64) {
        let mut stats = path.stats.borrow_mut();
        for (stat, more) in [
            (abi::STAT_FILL_INSERTED, inserted),
            (abi::STAT_CACHE_EVICTED, evicted),
            (abi::STAT_FAST_PACKET, answered),
        ] {
            *stats.entry(stat).or_default() += more;
        }
    }

    #[test]
    fn with_room_all_are_taken_and_full_only_what_is_counted_again() {
        let path = Recorder::default();
        path.set_set_mask(1023);
        path.set_miss_one_of(8);
        let mut admission = Admission::begin(&path);
        assert_eq!((path.miss_fill_at(), path.miss_one_of()), (1, 0));
        assert!(admission.takes(&key(1)));
        counted(&path, 1000, 100, 0);
        admission.learn(&path).unwrap();
        assert_eq!(path.miss_one_of(), 0, "one of ten: there is room elsewhere");
        counted(&path, 1000, 200, 10_000);
        admission.learn(&path).unwrap();
        assert_eq!(path.miss_one_of(), ONE_OF);
        assert!(!admission.takes(&key(1)) && admission.takes(&key(1)));
        let taken = (0..1000).filter(|_| admission.takes(&key(1))).count();
        assert_eq!(
            taken as u64,
            10_000 / REQUESTS_PER_FILL - 1,
            "so many a second"
        );
        counted(&path, 200, 0, 0);
        admission.learn(&path).unwrap();
        assert_eq!(path.miss_one_of(), 0, "emptied: there is room again");
        assert!(admission.takes(&key(2)));
    }

    #[test]
    fn fills_that_bring_nothing_become_fewer() {
        let mut full = Full {
            sketch: Sketch::new(16),
            at_least: 2,
            fills: 0,
        };
        let second = |inserted, answered| Counts {
            inserted,
            answered,
            ..Counts::default()
        };
        full.learn(&second(100, 199));
        assert_eq!(full.at_least, 3);
        full.learn(&second(100, 500));
        assert_eq!(full.at_least, 3);
        for _ in 0..20 {
            full.learn(&second(100, 10));
        }
        assert_eq!(full.at_least, COUNT_MAX, "a count can reach it");
        for _ in 0..20 {
            full.learn(&second(0, 1));
        }
        assert_eq!(full.at_least, 2);
    }

    #[test]
    fn a_sketch_is_never_below_the_truth_and_forgets() {
        let mut sketch = Sketch::new(1000);
        for round in 1..=4 {
            for number in 0..1000 {
                assert!(sketch.count(&key(number)) >= round);
            }
        }
        let over = (0..1000).filter(|number| sketch.count(&key(*number)) > 5);
        assert!(over.count() < 50, "few share all their counters");
        for _ in 0..10_000 - 5000 {
            sketch.count(&key(1));
        }
        assert!(sketch.count(&key(2)) <= 4, "halved once");
    }

    /// Keys by their share, as `(rank + 1)^-theta`, from a generator of its own.
    struct Zipf {
        sums: Vec<f64>,
        state: u64,
    }

    impl Zipf {
        fn new(keys: u32, theta: f64) -> Self {
            let mut sum = 0.0;
            let shares = (1..=keys).map(|rank| {
                sum += f64::from(rank).powf(-theta);
                sum
            });
            Self {
                sums: shares.collect(),
                state: 1,
            }
        }

        fn next(&mut self) -> u64 {
            // Knuth's MMIX generator; the upper bits are the good ones.
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let share = (self.state >> 11) as f64 / (1u64 << 53) as f64;
            let at = share * self.sums.last().unwrap();
            self.sums.partition_point(|sum| *sum < at) as u64
        }
    }

    /// A cache that evicts what was not read since the last round of its hand (CLOCK), under a load of
    /// reads alone: answered and filled in the second half.
    fn play(keys: u32, theta: f64, entries: usize, always: bool) -> (f64, f64) {
        let (path, mut zipf) = (Recorder::default(), Zipf::new(keys, theta));
        path.set_set_mask(entries as u64 / 16 - 1);
        let mut admission = Admission::begin(&path);
        let (mut cache, mut ring) = (HashMap::new(), VecDeque::new());
        let (seconds, requests) = (40, 20_000);
        let (mut hits, mut fills, mut turn) = (0, 0, 0);
        for second in 0..seconds {
            for _ in 0..requests {
                let number = zipf.next();
                if let Some(read) = cache.get_mut(&number) {
                    *read = true;
                    counted(&path, 0, 0, 1);
                    hits += u64::from(second >= seconds / 2);
                    continue;
                }
                *path
                    .stats
                    .borrow_mut()
                    .entry(abi::STAT_REFUSE_MISS)
                    .or_default() += 1;
                turn += 1;
                let one_of = path.miss_one_of().max(1);
                if !always && (turn % one_of != 0 || !admission.takes(&key(number))) {
                    continue;
                }
                let mut evicted = 0;
                while cache.len() >= entries {
                    let first: u64 = ring.pop_front().unwrap();
                    if std::mem::take(cache.get_mut(&first).unwrap()) {
                        ring.push_back(first);
                    } else {
                        cache.remove(&first);
                        evicted += 1;
                    }
                }
                cache.insert(number, false);
                ring.push_back(number);
                counted(&path, 1, evicted, 0);
                fills += u64::from(second >= seconds / 2);
            }
            admission.learn(&path).unwrap();
        }
        let all = f64::from(requests * seconds / 2);
        (hits as f64 / all, fills as f64 / all)
    }

    #[test]
    fn on_traces_as_many_hits_for_a_small_part_of_the_fills() {
        // Skewed, sixteen times the cache: as good as filling each miss, with far fewer fills.
        let (hits, fills) = play(65_536, 0.99, 4096, false);
        let (hits_always, fills_always) = play(65_536, 0.99, 4096, true);
        assert!(hits >= hits_always, "{hits} of {hits_always}");
        assert!(
            fills < 0.021 && fills_always > 0.2,
            "{fills} of {fills_always}"
        );
        // Uniform: nothing is gained by any fill.
        let (hits, fills) = play(65_536, 0.0, 4096, false);
        assert!(fills < 0.5 * hits, "{fills} fills for {hits} answers");
        // All fit: all are taken.
        let (hits, _) = play(2048, 0.99, 4096, false);
        assert!(hits > 0.999, "{hits}");
    }
}
