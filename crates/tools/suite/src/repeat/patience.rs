// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often a read is sent, and how long is waited in between.
//!
//! ERB has a key after its first miss, when the daemon has looked: within 10 ms or so. Where it never
//! answers (a large hash, EXISTS of a key that nobody reads) each wait is in vain. So a command and key
//! that were waited for in vain are waited for more and more rarely.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use erb_abi::FastCommand;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Before each further try of a read that is waited for: two misses at once, then 32 ms for the daemon.
const WAITING: [Duration; 8] = [ms(0), ms(1), ms(2), ms(3), ms(4), ms(6), ms(8), ms(8)];
/// The same of one that is not.
const HASTY: [Duration; 1] = [ms(0)];
/// So often in a row it is waited in vain before it is waited more rarely: some forms of a command are
/// Redis's (a range that ends before its string), others of the same key are not.
const VAIN_MAX: u32 = 4;
/// Reads that are not waited for, at most, before the next one is.
const SKIPPED_MAX: u32 = 16;

/// What is known of a command and key that were waited for in vain.
#[derive(Clone, Copy, Default)]
struct Vain {
    /// So often in a row.
    waits: u32,
    /// Not to be waited for so often next time.
    skips: u32,
    /// Of these are left.
    left: u32,
}

/// What all connections know.
#[derive(Default)]
pub struct Patience(Mutex<HashMap<u64, Vain>>);

/// A number for a command and its first key.
pub fn subject(command: &FastCommand, request: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (command.name, key(request)).hash(&mut hasher);
    hasher.finish()
}

/// The first key of a whole request.
pub fn key(request: &[u8]) -> Option<&[u8]> {
    // Count, length, name, length, key.
    let mut heads = request.splitn(5, |byte| *byte == b'\n');
    let length = heads.nth(3)?.strip_prefix(b"$")?.strip_suffix(b"\r")?;
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    heads.next()?.get(..length)
}

impl Patience {
    /// The pauses before each further try.
    pub fn pauses(&self, subject: u64) -> &'static [Duration] {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&subject) {
            Some(vain) if vain.left > 0 => {
                vain.left -= 1;
                &HASTY
            }
            _ => &WAITING,
        }
    }

    /// Whether ERB answered one that had these pauses.
    pub fn learn(&self, subject: u64, pauses: &[Duration], answered: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            all.remove(&subject);
            return;
        }
        if pauses.len() > HASTY.len() {
            let vain = all.entry(subject).or_default();
            vain.waits += 1;
            if vain.waits >= VAIN_MAX {
                vain.skips = (2 * vain.skips).clamp(1, SKIPPED_MAX);
                vain.left = vain.skips;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_in_vain_is_waited_for_more_and_more_rarely() {
        let patience = Patience::default();
        let mut waited = Vec::new();
        for read in 0..90 {
            let pauses = patience.pauses(1);
            if pauses == WAITING {
                waited.push(read);
            }
            patience.learn(1, pauses, false);
        }
        assert_eq!(waited, [0, 1, 2, 3, 5, 8, 13, 22, 39, 56, 73]);
        assert_eq!(patience.pauses(2), WAITING, "another key");
        patience.learn(1, &HASTY, true);
        assert_eq!(patience.pauses(1), WAITING, "answered by ERB");
    }

    #[test]
    fn a_subject_is_a_command_and_a_key() {
        let [get, other] = [&erb_abi::FAST_COMMANDS[0], &erb_abi::FAST_COMMANDS[2]];
        let a = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        let b = b"*2\r\n$3\r\nget\r\n$1\r\nb\r\n";
        assert_ne!(subject(get, a), subject(get, b));
        assert_ne!(subject(get, a), subject(other, a));
        assert_eq!(
            key(b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"),
            Some(&b"a\r\nb"[..])
        );
        assert_eq!(key(b"*1\r\n$4\r\nPING\r\n"), None);
        let lower = a.to_ascii_lowercase();
        assert_eq!(subject(get, a), subject(get, &lower));
    }
}
