// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the clients of the test of writes say, one call after the other: guest and host know it by client and number.
//!
//! Three set keys of their own. One sets a key to a number, has Redis add one to it, and to a sum: what is done twice shows.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Who only sets.
const SETTERS: u64 = 3;
/// Who also counts.
pub(crate) const COUNTER: u64 = SETTERS;
/// All of them.
pub(crate) const CLIENTS: u64 = SETTERS + 1;
/// In the place of a client: the guest only says what time it is.
const CLOCK: u64 = u64::MAX;
/// Behind each key in its value.
const VALUE_BYTES: usize = 100;
/// The first letters of each client's keys.
const LETTERS: [char; CLIENTS as usize] = ['a', 'b', 'c', 'm'];
/// What who counts has counted.
pub(crate) const SUM: &str = "msum";

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Set(String),
    /// And Redis says that it is this then.
    Add(u64),
}

/// What a client says, from its first call, 0, on.
pub(crate) fn call(client: u64, number: u64) -> (String, Does) {
    let letter = LETTERS[client as usize];
    if client != COUNTER {
        let key = format!("{letter}{number}");
        let value = format!("{key} {}", "v".repeat(VALUE_BYTES));
        return (key, Does::Set(value));
    }
    let turn = number / 3;
    match number % 3 {
        0 => (
            format!("{letter}{turn}"),
            Does::Set((10 * turn).to_string()),
        ),
        1 => (format!("{letter}{turn}"), Does::Add(10 * turn + 1)),
        _ => (SUM.to_owned(), Does::Add(turn + 1)),
    }
}

/// Whose key it is.
pub(crate) fn owner(key: &str) -> Option<u64> {
    let at = LETTERS.iter().position(|letter| key.starts_with(*letter))?;
    Some(at as u64)
}

/// Which call has set it.
pub(crate) fn setter(key: &str) -> Option<(u64, u64)> {
    let client = owner(key)?;
    let number: u64 = key[1..].parse().ok()?;
    Some((
        client,
        if client == COUNTER {
            3 * number
        } else {
            number
        },
    ))
}

/// What a client's keys are behind so many calls.
pub(crate) fn after(client: u64, calls: u64) -> BTreeMap<String, String> {
    let said = (0..calls).map(|number| call(client, number));
    said.map(|(key, does)| match does {
        Does::Set(value) => (key, value),
        Does::Add(sum) => (key, sum.to_string()),
    })
    .collect()
}

/// A call that was answered. Times are of the guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) client: u64,
    pub(crate) number: u64,
    pub(crate) sent_us: u64,
    pub(crate) answered_us: u64,
}

impl Told {
    pub(crate) const BYTES: usize = 32;

    /// Nothing but the time.
    pub(crate) const fn clock(now_us: u64) -> Self {
        Self {
            client: CLOCK,
            number: 0,
            sent_us: now_us,
            answered_us: now_us,
        }
    }

    pub(crate) const fn is_clock(&self) -> bool {
        self.client == CLOCK
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let words = [self.client, self.number, self.sent_us, self.answered_us];
        words.into_iter().flat_map(u64::to_be_bytes).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut words = bytes.chunks_exact(8);
        let mut next = || -> Result<u64> {
            let word = words.next().context("four words")?;
            Ok(u64::from_be_bytes(word.try_into()?))
        };
        Ok(Self {
            client: next()?,
            number: next()?,
            sent_us: next()?,
            answered_us: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_who_has_set_it_and_when() {
        for (client, number) in [(0, 0), (1, 17), (2, 3), (COUNTER, 6)] {
            let (key, does) = call(client, number);
            assert!(matches!(does, Does::Set(_)));
            assert_eq!(setter(&key), Some((client, number)));
        }
        let (key, does) = call(COUNTER, 7);
        assert_eq!((&key[..], does), ("m2", Does::Add(21)));
        assert_eq!(call(COUNTER, 8), (SUM.to_owned(), Does::Add(3)));
        assert_eq!((setter(SUM), owner(SUM)), (None, Some(COUNTER)));
        let keys = after(COUNTER, 5);
        let wanted = [("m0", "1"), ("m1", "11"), (SUM, "1")];
        let wanted = wanted.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(keys, BTreeMap::from(wanted));
    }

    #[test]
    fn what_is_told_is_read() {
        let told = Told {
            client: 1,
            number: 2,
            sent_us: 3,
            answered_us: 1 << 40,
        };
        let bytes = told.to_bytes().try_into().expect("its length");
        assert_eq!(Told::from_bytes(&bytes).expect("told"), told);
        assert!(Told::clock(5).is_clock() && !told.is_clock());
    }
}
