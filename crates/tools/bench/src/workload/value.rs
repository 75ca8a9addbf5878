// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values that say of themselves what they are.
//!
//! A value begins with 16 letters: whose it is, which version, how long, and a semicolon. These are
//! repeated to its end. So a byte of another key, version or length shows wherever it stands.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// Letters of the head.
const HEAD: usize = 16;
/// What the head's parts take of it; 6 bits a letter.
const OWNER: Range<usize> = 0..6;
const VERSION: Range<usize> = 6..11;
const BYTES: Range<usize> = 11..15;
const END: u8 = b';';
const LETTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";

/// The head must fit in.
pub const VALUE_BYTES_MIN: u32 = HEAD as u32;
/// As long as the head can tell.
pub const VALUE_BYTES_MAX: u32 = (1 << 24) - 1;
/// As many as the head can tell.
pub const VERSIONS_MAX: u32 = (1 << 30) - 1;

/// Appends a value.
pub fn push(to: &mut Vec<u8>, owner: u64, version: u32, bytes: u32) {
    let begin = to.len();
    push_number(to, owner, OWNER.len());
    push_number(to, version.into(), VERSION.len());
    push_number(to, bytes.into(), BYTES.len());
    to.push(END);
    let end = begin + bytes as usize;
    while to.len() < end {
        // Whole heads, so that each copy goes on where the one before it ends.
        let have = (to.len() - begin).min(end - to.len());
        to.extend_from_within(begin..begin + have);
    }
}

/// The version that a value of this owner has.
pub fn version_of(value: &[u8], owner: u64) -> Result<u32> {
    let head = value.get(..HEAD).context("it is too short")?;
    ensure!(head[HEAD - 1] == END, "it does not begin as values do");
    let number =
        |range: Range<usize>| number(&head[range]).context("it does not begin as values do");
    let (whose, version) = (number(OWNER)?, number(VERSION)?);
    ensure!(
        whose == owner,
        "it is the value of another key, number {whose} instead of {owner}"
    );
    ensure!(
        number(BYTES)? == value.len() as u64,
        "it has {} bytes, version {version} was written with {}",
        value.len(),
        number(BYTES)?
    );
    ensure!(
        value[HEAD..] == value[..value.len() - HEAD],
        "it begins as version {version} and goes on as something else"
    );
    Ok(version as u32)
}

fn push_number(to: &mut Vec<u8>, number: u64, letters: usize) {
    for place in (0..letters).rev() {
        to.push(LETTERS[(number >> (6 * place)) as usize & 63]);
    }
}

fn number(letters: &[u8]) -> Option<u64> {
    letters.iter().try_fold(0, |number, &letter| {
        let digit = match letter {
            b'0'..=b'9' => letter - b'0',
            b'A'..=b'Z' => letter - b'A' + 10,
            b'_' => 36,
            b'a'..=b'z' => letter - b'a' + 37,
            b'-' => 63,
            _ => return None,
        };
        Some(number << 6 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(owner: u64, version: u32, bytes: u32) -> Vec<u8> {
        let mut value = b"before".to_vec();
        push(&mut value, owner, version, bytes);
        value.split_off(6)
    }

    #[test]
    fn every_letter_is_read_as_it_is_written() {
        for (digit, &letter) in (0..).zip(LETTERS) {
            assert_eq!(number(&[letter]), Some(digit));
        }
        assert_eq!(number(b" "), None);
    }

    #[test]
    fn a_value_says_its_version() {
        for bytes in [16, 17, 31, 32, 33, 47, 100, 1000, VALUE_BYTES_MAX] {
            for (owner, version) in [(0, 0), (42, 7), ((1 << 36) - 1, VERSIONS_MAX)] {
                let value = value(owner, version, bytes);
                assert_eq!(value.len(), bytes as usize);
                assert_eq!(version_of(&value, owner).unwrap(), version);
            }
        }
    }

    #[test]
    fn torn_short_and_foreign_values_are_told() {
        let error = |value: &[u8]| version_of(value, 42).unwrap_err().to_string();
        let (older, newer) = (value(42, 7, 100), value(42, 8, 100));
        for cut in 11..100 {
            let torn = [&older[..cut], &newer[cut..]].concat();
            // In the head's last letters both versions are the same.
            if torn != older && torn != newer {
                assert!(error(&torn).contains("goes on as something else"), "{cut}");
            }
        }
        for cut in 16..100 {
            assert!(error(&older[..cut]).contains("bytes"), "{cut}");
        }
        assert!(error(&older[..15]).contains("too short"));
        assert!(error(&value(41, 7, 100)).contains("another key"));
        assert!(error(&[b'x'; 100]).contains("does not begin"));
        let longer = [&older[..], b"0"].concat();
        assert!(error(&longer).contains("101 bytes"));
    }
}
