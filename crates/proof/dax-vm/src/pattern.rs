// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What files hold: each eight bytes say which file, which version and which place they belong to.

use std::io::{Result, Write};

/// Bytes of a word.
pub const WORD_BYTES: u64 = 8;
/// The file that fills up a file system; nobody sends it.
pub const FILLER: u16 = u16::MAX;
const CHUNK_BYTES: u64 = 64 << 10;

/// The word at a place, which is counted in words.
const fn word(file: u16, version: u8, place: u64) -> u64 {
    (file as u64) << 48 | (version as u64) << 40 | place
}

/// A part of a file's content, whole words.
pub fn content(file: u16, version: u8, begin: u64, bytes: u64) -> Vec<u8> {
    let places = begin / WORD_BYTES..(begin + bytes) / WORD_BYTES;
    places
        .flat_map(|place| word(file, version, place).to_le_bytes())
        .collect()
}

/// Writes a file's content.
pub fn write(mut to: impl Write, file: u16, version: u8, bytes: u64) -> Result<()> {
    for begin in (0..bytes).step_by(CHUNK_BYTES as usize) {
        let bytes = CHUNK_BYTES.min(bytes - begin);
        to.write_all(&content(file, version, begin, bytes))?;
    }
    Ok(())
}

/// What was received of one file, from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All of it.
    pub bytes: u64,
    /// Those that are not this file's, or not of this place.
    pub foreign_bytes: u64,
    /// The oldest version.
    pub version_min: Option<u8>,
    /// The newest one.
    pub version_max: Option<u8>,
    rest: Vec<u8>,
}

impl Seen {
    /// Takes what follows.
    pub fn take(&mut self, file: u16, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() / 8 * 8;
        for (index, chunk) in self.rest[..whole].chunks_exact(8).enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            let found = u64::from_le_bytes(eight);
            let version = (found >> 40) as u8;
            let place = self.bytes / WORD_BYTES + index as u64;
            if found == word(file, version, place) {
                self.version_min = Some(self.version_min.map_or(version, |it| it.min(version)));
                self.version_max = self.version_max.max(Some(version));
            } else {
                self.foreign_bytes += WORD_BYTES;
            }
        }
        self.bytes += whole as u64;
        self.rest.drain(..whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_foreign_word_and_every_version_is_seen_however_the_bytes_come() {
        for step in [1, 7, 8, 1000, 1 << 20] {
            let mut bytes = content(3, 1, 0, 4096);
            bytes[1000..1008].copy_from_slice(&content(4, 1, 1000, 8));
            bytes[2000..2008].copy_from_slice(&content(3, 1, 2008, 8));
            bytes[3000..3008].copy_from_slice(&content(3, 2, 3000, 8));
            let mut seen = Seen::default();
            bytes.chunks(step).for_each(|part| seen.take(3, part));
            assert_eq!((seen.bytes, seen.foreign_bytes), (4096, 16));
            assert_eq!((seen.version_min, seen.version_max), (Some(1), Some(2)));
        }
    }
}
