// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which keys to fill next, each once, in batches. First Redis is asked for their sizes; only what is
//! small enough is read.
//!
//! Invariants:
//! 1. A value is read only if its size, asked for before, is below the bound of its kind.
//! 2. What a batch takes, question and answer, and what all under way take, is bounded in bytes. So
//!    Redis's memory for the feed is, unless a hash grows between question and answer (edges.md, E-1).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

use erb_abi::{self as abi, ValueKind, Wanted};

use crate::never::Never;
use crate::size::{Reading, Size};

/// Keys waiting at most; a key that does not fit is missed again.
const WAITING_MAX: usize = 65_536;

/// Tries per key that somebody asked for by name.
const TRIES_MAX: u32 = 40;

/// Bytes that one batch may take, questions and answers: what Redis has at hand for the replies of
/// one client (`PROTO_REPLY_CHUNK_BYTES`), so that it needs no more memory for it.
pub(crate) const BATCH_BYTES_MAX: usize = 16 * 1024;

/// Bytes that all batches under way may take. Redis counts them as its own when it looks whether it
/// must evict.
const UNDER_WAY_BYTES_MAX: usize = 64 * 1024;

/// Batches under way at most: bounds what Redis does for us between two clients' turns.
const BATCHES_MAX: usize = 8;

/// Bytes of a key's questions and answers beside key and value: some words of RESP.
const WORDS_BYTES: usize = 256;

/// Tries per key that was missed, or that a write has thrown out: a write to its set or a command with
/// unknown keys may come between. The next miss or write asks for it anew.
const TRIES: u32 = 3;

/// Keys thrown out by writes that may wait; more are missed again.
const AGAIN_MAX: usize = 1024;

/// Keys that may wait to be read: more are not asked for their sizes.
const SIZED_MAX: usize = BATCHES_MAX * abi::FILL_BATCH as usize;

/// How one key's fill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// It is in the cache.
    Inserted,
    /// A mark, the fence or a change came in between: worth another try.
    Later,
    /// Of another type, too large, or an absence that must not be cached: another try would end the same way for a while.
    Never,
}

/// Bytes that a key's questions and answers take, less the value.
pub(crate) fn words_of(wanted: &Wanted) -> usize {
    let times = match wanted.kind {
        ValueKind::String => 2,
        ValueKind::Hash => 3,
    };
    WORDS_BYTES + times * wanted.key.len()
}

/// What may still be begun while batches are under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room(usize);

impl Room {
    /// The room beside so many batches of so many bytes; none: nothing may be begun.
    pub(crate) fn beside(batches: usize, bytes: usize) -> Option<Self> {
        let room = UNDER_WAY_BYTES_MAX.saturating_sub(bytes);
        // Whole batches only: many small ones cost Redis more than one.
        (batches < BATCHES_MAX && room >= BATCH_BYTES_MAX).then_some(Self(BATCH_BYTES_MAX))
    }
}

/// Takes keys from the front while they fit; the bytes that they take.
fn take_while<T>(
    from: &mut VecDeque<T>,
    room: Room,
    bytes: impl Fn(&T) -> usize,
) -> (Vec<T>, usize) {
    let (mut taken, mut sum) = (Vec::new(), 0);
    while let Some(next) = from.front().map(&bytes)
        && sum + next <= room.0
        && taken.len() < abi::FILL_BATCH as usize
    {
        sum += next;
        taken.extend(from.pop_front());
    }
    (taken, sum)
}

/// Keys to be read, and what that takes.
type ToRead = Vec<(Wanted, Reading)>;

/// What is asked for its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizing {
    /// Keys that were missed.
    Missed,
    /// Keys that were thrown out by writes: what they hold now may be no value of their kind.
    Again,
    /// Hash tables that were missed and are worth measuring.
    Tables,
}

/// Keys to be asked for their sizes, or to be read; and the bytes that this takes.
#[derive(Debug)]
pub(crate) enum Batch {
    Sizes {
        keys: Vec<Wanted>,
        bytes: usize,
        of: Sizing,
    },
    Values(ToRead, usize),
}

/// Of which keys something new may be begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) missed: bool,
    pub(crate) again: bool,
}

/// A key that waits or is under way.
struct Known {
    /// Tries left, this one included.
    tries: u32,
    /// Thrown out by a write.
    again: bool,
}

/// Keys wanted in the cache.
#[derive(Default)]
pub(crate) struct Fills {
    waiting: VecDeque<Wanted>,
    /// Hash tables to be measured.
    tables: VecDeque<Wanted>,
    /// Small enough.
    sized: VecDeque<(Wanted, Reading)>,
    /// Thrown out by a write.
    again: VecDeque<Wanted>,
    /// The last new batch was of these: they and those that wait take turns.
    again_last: bool,
    known: HashMap<Wanted, Known>,
    /// Asked for by name: tried again when something came in between.
    named: HashSet<Wanted>,
    never: Never,
    /// Keys that were filled.
    filled: u64,
    /// Keys asked for by name that could not be filled.
    named_failed: u64,
}

impl Fills {
    /// A key was missed, and shall be filled.
    pub(crate) fn missed(&mut self, key: Wanted) {
        if self.waiting.len() < WAITING_MAX && !self.never.holds(&key) {
            self.want(key, TRIES);
        }
    }

    /// Somebody asks for this key to be filled.
    pub(crate) fn ask(&mut self, key: Wanted) {
        self.never.forget(&key);
        self.named.insert(key.clone());
        self.want(key, TRIES_MAX);
    }

    /// A key that was read between its writes has been written.
    pub(crate) fn written_again(&mut self, key: Wanted) {
        match self.known.entry(key) {
            // What is under way may have been read before the write.
            Entry::Occupied(mut known) => {
                let tries = &mut known.get_mut().tries;
                *tries = (*tries).max(TRIES);
            }
            Entry::Vacant(place) if self.again.len() < AGAIN_MAX => {
                self.again.push_back(place.key().clone());
                let (tries, again) = (TRIES, true);
                place.insert(Known { tries, again });
            }
            Entry::Vacant(_) => {}
        }
    }

    /// Whether it waits or is under way.
    pub(crate) fn knows(&self, key: &Wanted) -> bool {
        self.known.contains_key(key)
    }

    /// What was to be read need not be, for now.
    pub(crate) fn leave(&mut self, key: &Wanted) {
        self.known.remove(key);
    }

    fn want(&mut self, key: Wanted, tries: u32) {
        if let Entry::Vacant(place) = self.known.entry(key) {
            self.waiting.push_back(place.key().clone());
            let again = false;
            place.insert(Known { tries, again });
        }
    }

    /// Something came between: another try, if there is one left.
    fn want_once_more(&mut self, key: Wanted, known: Known) {
        if known.tries <= 1 {
            self.failed(&key);
            return;
        }
        let to = if known.again {
            &mut self.again
        } else {
            &mut self.waiting
        };
        to.push_back(key.clone());
        let tries = known.tries - 1;
        self.known.insert(key, Known { tries, ..known });
    }

    /// Keys asked for by name that are not done yet.
    pub(crate) fn named_left(&self) -> usize {
        self.named.len()
    }

    /// Keys waiting.
    pub(crate) fn waiting(&self) -> usize {
        let begun = self.tables.len() + self.sized.len();
        self.waiting.len() + begun + self.again.len()
    }

    /// Keys that were filled, and keys asked for by name that could not be.
    pub(crate) const fn counts(&self) -> (u64, u64) {
        (self.filled, self.named_failed)
    }

    /// Whether keys wait or are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.known.is_empty()
    }

    /// The next keys to be read, and the bytes that this takes.
    fn take_sized(&mut self, room: Room) -> (ToRead, usize) {
        take_while(&mut self.sized, room, |(key, reading)| {
            words_of(key) + reading.bytes
        })
    }

    /// The next batch: what has begun, then what may begin; none: nothing waits.
    pub(crate) fn next(&mut self, room: Room, fresh: Fresh) -> Option<Batch> {
        let (keys, bytes) = self.take_sized(room);
        if !keys.is_empty() {
            return Some(Batch::Values(keys, bytes));
        }
        if !self.tables.is_empty() {
            let (keys, bytes) = take_while(&mut self.tables, room, words_of);
            let of = Sizing::Tables;
            return Some(Batch::Sizes { keys, bytes, of });
        }
        let missed = fresh.missed && !self.waiting.is_empty();
        let again = fresh.again && !self.again.is_empty();
        if (!missed && !again) || self.sized.len() >= SIZED_MAX {
            return None;
        }
        // In turn, so that neither many writes nor many misses keep the others waiting.
        self.again_last = !missed || (again && !self.again_last);
        let (from, of) = if self.again_last {
            (&mut self.again, Sizing::Again)
        } else {
            (&mut self.waiting, Sizing::Missed)
        };
        let (keys, bytes) = take_while(from, room, words_of);
        Some(Batch::Sizes { keys, bytes, of })
    }

    /// Whether keys wait to be measured or read, of which something is known.
    pub(crate) fn has_begun(&self) -> bool {
        !self.sized.is_empty() || !self.tables.is_empty()
    }

    /// Redis has said how large a value is.
    pub(crate) fn sized(&mut self, key: Wanted, size: Size, now_ns: u64) {
        match size.reading() {
            Some(reading) => self.sized.push_back((key, reading)),
            None if size == Size::Unmeasured => self.tables.push_back(key),
            None => self.ended(key, Filled::Never, now_ns),
        }
    }

    /// A key was written: what was known of it is over.
    pub(crate) fn written(&mut self, key: &[u8]) {
        self.never.written(key);
    }

    /// A fill ended, or could not begin.
    pub(crate) fn ended(&mut self, key: Wanted, end: Filled, now_ns: u64) {
        let known = self.known.remove(&key).unwrap_or(Known {
            tries: 1,
            again: false,
        });
        match end {
            Filled::Inserted => {
                self.filled += 1;
                self.named.remove(&key);
            }
            Filled::Later => self.want_once_more(key, known),
            Filled::Never => {
                self.failed(&key);
                self.never.note(&key, now_ns);
            }
        }
    }

    /// The connection is gone: what was under way is not coming.
    pub(crate) fn forget_all(&mut self) {
        self.named_failed += self.named.len() as u64;
        self.waiting.clear();
        self.tables.clear();
        self.sized.clear();
        self.again.clear();
        self.known.clear();
        self.named.clear();
    }

    fn failed(&mut self, key: &Wanted) {
        if self.named.remove(key) {
            self.named_failed += 1;
        }
    }

    /// Called now and then: lets keys that could not be filled be asked for again.
    pub(crate) fn forgive(&mut self, now_ns: u64) {
        self.never.forgive(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cached_hash::Encoding;

    fn key(name: &str) -> Wanted {
        Wanted::string(name.as_bytes().to_vec())
    }

    fn room() -> Room {
        Room::beside(0, 0).unwrap()
    }

    impl Fills {
        /// The next keys to be asked for their sizes, and the bytes that this takes.
        fn take_unsized(&mut self, room: Room) -> (Vec<Wanted>, usize) {
            take_while(&mut self.waiting, room, words_of)
        }

        /// The next keys, after their sizes were asked for and found small.
        fn take(&mut self) -> Vec<Wanted> {
            let (keys, _) = self.take_unsized(room());
            for key in keys {
                self.sized(key, Size::String(5), 0);
            }
            let (keys, _) = self.take_sized(room());
            keys.into_iter().map(|(key, _)| key).collect()
        }
    }

    #[test]
    fn a_key_is_asked_for_once() {
        let mut fills = Fills::default();
        for _ in 0..3 {
            fills.missed(key("a"));
        }
        assert_eq!(fills.take(), [key("a")]);
        fills.missed(key("a"));
        assert!(fills.take().is_empty(), "under way");
        fills.ended(key("a"), Filled::Inserted, 0);
        assert_eq!(fills.filled, 1);
        fills.missed(key("a"));
        assert_eq!(fills.take().len(), 1);
    }

    #[test]
    fn keys_that_cannot_be_filled_rest() {
        let mut fills = Fills::default();
        fills.missed(key("a"));
        let (keys, _) = fills.take_unsized(room());
        for key in keys {
            fills.sized(key, Size::String(1 << 22), 0);
        }
        assert!(
            fills.take_sized(room()).0.is_empty(),
            "too large is not read"
        );
        fills.forgive(120_000_000_000);
        fills.missed(key("a"));
        assert_eq!(fills.waiting(), 0, "asked for again after two minutes");
        fills.written(b"a");
        fills.missed(key("a"));
        assert_eq!(fills.take(), [key("a")], "written meanwhile");
        fills.ended(key("a"), Filled::Never, 0);
        fills.ask(key("a"));
        assert_eq!(fills.waiting(), 1, "asked for by name");
    }

    #[test]
    fn batches_and_what_is_under_way_are_bounded_in_bytes() {
        let mut fills = Fills::default();
        for number in 0..500 {
            let mut wanted = Wanted::string(format!("{number:0256}").into_bytes());
            if number % 2 == 1 {
                wanted.kind = ValueKind::Hash;
            }
            fills.missed(wanted);
        }
        let (mut batches, mut under_way, mut keys) = (0, 0, Vec::new());
        while let Some(room) = Room::beside(batches, under_way) {
            let (taken, bytes) = fills.take_unsized(room);
            assert!(!taken.is_empty() && taken.len() <= 32 && bytes <= BATCH_BYTES_MAX);
            let asked: usize = taken.iter().map(|wanted| wanted.key.len()).sum();
            assert!(bytes > 2 * asked);
            (batches, under_way) = (batches + 1, under_way + bytes);
            keys.extend(taken);
        }
        assert!(batches > 1 && under_way <= UNDER_WAY_BYTES_MAX);
        for key in keys {
            let size = match key.kind {
                ValueKind::String => Size::String(1451),
                ValueKind::Hash => Size::Hash {
                    encoding: Encoding::Listpack,
                    fields: Some(64),
                    memory: 4096,
                },
            };
            fills.sized(key, size, 0);
        }
        let (mut batches, mut under_way) = (0, 0);
        while let Some(room) = Room::beside(batches, under_way) {
            let (taken, bytes) = fills.take_sized(room);
            let size: usize = taken.iter().map(|(_, reading)| reading.bytes).sum();
            assert!(size > 0 && size < bytes && bytes <= BATCH_BYTES_MAX);
            (batches, under_way) = (batches + 1, under_way + bytes);
        }
        assert!(batches > 1 && under_way <= UNDER_WAY_BYTES_MAX);
        assert!(Room::beside(BATCHES_MAX, 0).is_none());
    }

    #[test]
    fn named_keys_are_tried_again_and_end() {
        let mut fills = Fills::default();
        fills.ask(key("a"));
        let mut rounds = 0;
        while let Some(key) = fills.take().pop() {
            fills.ended(key, Filled::Later, 0);
            rounds += 1;
        }
        assert_eq!(rounds, TRIES_MAX);
        assert_eq!((fills.named_left(), fills.named_failed), (0, 1));
    }

    fn both(may: bool) -> Fresh {
        Fresh {
            missed: may,
            again: may,
        }
    }

    /// The next keys to be asked for their sizes, and whether writes threw them out.
    fn sizes(fills: &mut Fills) -> (Vec<Wanted>, bool) {
        match fills.next(room(), both(true)) {
            Some(Batch::Sizes { keys, of, .. }) => (keys, of == Sizing::Again),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_write_has_thrown_out_is_tried_some_times() {
        let mut fills = Fills::default();
        fills.written_again(key("a"));
        assert_eq!(sizes(&mut fills), (vec![key("a")], true));
        fills.written_again(key("a"));
        assert!(fills.next(room(), both(true)).is_none(), "it is under way");
        for _ in 1..TRIES {
            fills.ended(key("a"), Filled::Later, 0);
            assert_eq!(sizes(&mut fills), (vec![key("a")], true));
        }
        fills.ended(key("a"), Filled::Later, 0);
        assert_eq!(fills.waiting(), 0);
    }

    #[test]
    fn misses_and_what_writes_threw_out_take_turns() {
        let mut fills = Fills::default();
        for number in 0..200 {
            fills.written_again(key(&format!("w{number}")));
            fills.missed(key(&format!("m{number}")));
        }
        assert!(
            fills.next(room(), both(false)).is_none(),
            "nothing has begun"
        );
        let turns: Vec<bool> = (0..6).map(|_| sizes(&mut fills).1).collect();
        assert_eq!(turns, [true, false, true, false, true, false]);
        fills.sized(key("s"), Size::String(9), 0);
        let Some(Batch::Values(keys, _)) = fills.next(room(), both(false)) else {
            panic!("what has begun goes on");
        };
        let reading = Reading {
            bytes: 9,
            ..Reading::default()
        };
        assert_eq!(keys, [(key("s"), reading)]);
        for number in 0..2 * AGAIN_MAX {
            fills.written_again(key(&format!("x{number}")));
        }
        assert_eq!(fills.again.len(), AGAIN_MAX);
    }

    #[test]
    fn waiting_keys_are_bounded() {
        let mut fills = Fills::default();
        for number in 0..WAITING_MAX + 10 {
            fills.missed(Wanted::string(number.to_ne_bytes().to_vec()));
        }
        assert_eq!(fills.waiting(), WAITING_MAX);
    }
}
