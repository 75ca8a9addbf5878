// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether keys come once each, in bounded memory. The newest stand in a table; when that is full they are sorted and go
//! to a temporary file, 16 bytes each. At the end all of these runs are gone through at once.
//!
//! Invariants:
//! 1. Memory is the table's, and a piece of each run: [`RECENT_MAX`] and [`PIECE`].
//! 2. A key that came twice is told at once if it stands in the table, and at the end in any case.
//! 3. Keys are compared by 128 bits of SHA-256: two that have the same are not found by trying.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

/// Keys of the table: what fills 2^20 places of it to seven eighths, 18 MB.
const RECENT_MAX: usize = (1 << 20) / 8 * 7;
/// Digests of a run that are read together.
const PIECE: usize = 1024;
const DIGEST_BYTES: usize = 16;

/// Keys that have come.
pub(crate) struct Once {
    recent: HashSet<u128>,
    recent_max: usize,
    file: Option<File>,
    /// Where runs begin in the file, in digests, and where the last one ends.
    bounds: Vec<u64>,
}

impl Default for Once {
    fn default() -> Self {
        Self::with_room(RECENT_MAX)
    }
}

/// A sorted run.
struct Run {
    next: u64,
    end: u64,
    /// The lowest last.
    piece: Vec<u128>,
}

impl Run {
    fn next(&mut self, file: &File) -> io::Result<Option<u128>> {
        if self.piece.is_empty() {
            let count = (self.end - self.next).min(PIECE as u64);
            let mut bytes = vec![0; count as usize * DIGEST_BYTES];
            file.read_exact_at(&mut bytes, self.next * DIGEST_BYTES as u64)?;
            let digests = bytes
                .chunks_exact(DIGEST_BYTES)
                .map(|bytes| u128::from_le_bytes(bytes.try_into().expect("a digest's bytes")));
            self.piece = digests.rev().collect();
            self.next += count;
        }
        Ok(self.piece.pop())
    }
}

impl Once {
    fn with_room(recent_max: usize) -> Self {
        Self {
            recent: HashSet::new(),
            recent_max,
            file: None,
            bounds: vec![0],
        }
    }

    /// A key has come. False: it is known to have come before.
    pub(crate) fn add(&mut self, key: &[u8]) -> io::Result<bool> {
        if self.recent.len() >= self.recent_max {
            self.spill()?;
        }
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&Sha256::digest(key)[..DIGEST_BYTES]);
        Ok(self.recent.insert(u128::from_le_bytes(digest)))
    }

    /// The table becomes a run.
    fn spill(&mut self) -> io::Result<()> {
        let mut sorted: Vec<u128> = self.recent.drain().collect();
        sorted.sort_unstable();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let mut out = io::BufWriter::new(&mut *file);
        for digest in &sorted {
            out.write_all(&digest.to_le_bytes())?;
        }
        out.flush()?;
        let last = self.bounds.last().copied().unwrap_or(0);
        self.bounds.push(last + sorted.len() as u64);
        Ok(())
    }

    /// No more keys come. False: one came twice.
    pub(crate) fn finish(&mut self) -> io::Result<bool> {
        if self.file.is_none() {
            return Ok(true);
        }
        self.spill()?;
        let Some(file) = self.file.take() else {
            return Ok(true);
        };
        let bounds = self.bounds.windows(2);
        let runs = bounds.map(|pair| Run {
            next: pair[0],
            end: pair[1],
            piece: Vec::new(),
        });
        let mut runs: Vec<Run> = runs.collect();
        let mut lowest = BinaryHeap::new();
        for (number, run) in runs.iter_mut().enumerate() {
            lowest.extend(run.next(&file)?.map(|digest| Reverse((digest, number))));
        }
        let mut last = None;
        while let Some(Reverse((digest, number))) = lowest.pop() {
            if last == Some(digest) {
                return Ok(false);
            }
            last = Some(digest);
            let next = runs[number].next(&file)?;
            lowest.extend(next.map(|digest| Reverse((digest, number))));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(keys: impl IntoIterator<Item = u32>, room: usize) -> (bool, bool) {
        let mut once = Once::with_room(room);
        let mut all = true;
        for key in keys {
            all &= once.add(&key.to_le_bytes()).expect("a table");
        }
        (all, once.finish().expect("runs"))
    }

    #[test]
    fn keys_that_come_once_are_let_through_however_many_they_are() {
        for room in [1, 7, 1000, 5000, 1 << 20] {
            assert_eq!(told(0..5000, room), (true, true), "{room}");
        }
        assert_eq!(told([], 1), (true, true));
    }

    #[test]
    fn a_key_that_comes_twice_is_told_wherever_both_are() {
        for (first, second) in [(0, 4999), (0, 1), (2500, 2600), (999, 1000)] {
            let keys = || (0..5000).map(move |key| if key == second { first } else { key });
            for room in [1, 1000, 2500, 5000] {
                let (at_once, at_end) = told(keys(), room);
                assert!(!at_once || !at_end, "{first} and {second} of {room}");
            }
            assert!(!told(keys(), 1 << 20).0, "within the table at once");
        }
    }
}
