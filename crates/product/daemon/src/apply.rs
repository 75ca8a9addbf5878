// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Brings records of a journal to Redis, because somebody has said so.

use std::collections::BTreeMap;

use erb_journal::Entry;
use erb_redis::resp::{Frame, RespStream, error};
use erb_redis::rights::{Credentials, advice};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::preflight::{ask, silent, unreachable};
use crate::{Error, Result};

/// Commands that are answered before more are sent.
const AT_ONCE: usize = 500;

/// The last write of each key, by database and key.
#[derive(Debug, Default)]
pub struct LastWrites(BTreeMap<(u16, Vec<u8>), Entry>);

impl LastWrites {
    /// Takes a record; of two of a key the one with the higher LSN counts.
    pub fn take(&mut self, entry: Entry) {
        let key = (entry.db, entry.key.clone());
        let is_old = |has: &Entry| has.lsn > entry.lsn;
        if !self.0.get(&key).is_some_and(is_old) {
            self.0.insert(key, entry);
        }
    }

    /// Takes those of a later journal: whatever their LSNs, they come last.
    pub fn overlay(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing to apply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Applied {
    /// Keys that Redis has taken.
    pub keys: usize,
    /// Keys that it has not.
    pub refused: usize,
    /// What it said to the first of these.
    pub why: Option<String>,
}

/// Sends SETs as any client does: what is answered in Redis's place meanwhile stands behind them in order.
///
/// # Errors
/// [`Error::Redis`]: it cannot be reached, or does not answer; part of it may have been done. To apply again is harmless
/// while nobody else writes.
pub fn apply(
    address: &RedisAddr,
    source: &CredentialSource,
    writes: &LastWrites,
) -> Result<Applied> {
    let failed = |reason: String| Error::Redis {
        address: address.to_string(),
        reason,
    };
    let credentials = source.read()?;
    let mut stream = Connection::new(address, false)
        .map(RespStream::new)
        .map_err(|error| failed(unreachable(address, &error)))?;
    let hello = Credentials::hello(credentials.as_ref());
    let replies = ask(&mut stream, &[&hello]).map_err(|error| failed(silent(&error)))?;
    if let Some(text) = replies.iter().find_map(error) {
        let advised = advice(source.user(), &text).unwrap_or(text);
        return Err(failed(advised));
    }
    let mut done = Applied::default();
    let mut db = 0;
    let all: Vec<&Entry> = writes.0.values().collect();
    for some in all.chunk_by(|a, b| a.db == b.db) {
        if some[0].db != db {
            db = some[0].db;
            let number = db.to_string();
            let replies = ask(&mut stream, &[&[b"SELECT", number.as_bytes()]])
                .map_err(|error| failed(silent(&error)))?;
            if let Some(text) = replies.iter().find_map(error) {
                return Err(failed(format!("database {db}: {text}")));
            }
        }
        for some in some.chunks(AT_ONCE) {
            let replies = send(&mut stream, some).map_err(|error| failed(silent(&error)))?;
            for reply in &replies {
                match error(reply) {
                    None => done.keys += 1,
                    Some(text) => {
                        done.refused += 1;
                        done.why.get_or_insert(text);
                    }
                }
            }
        }
    }
    Ok(done)
}

fn send(stream: &mut RespStream<Connection>, some: &[&Entry]) -> std::io::Result<Vec<Frame>> {
    let expiries: Vec<String> = some.iter().map(|one| one.expiry_ms.to_string()).collect();
    let command = |(entry, expiry): (&&Entry, &String)| -> Vec<Vec<u8>> {
        let mut words = vec![b"SET".to_vec(), entry.key.clone(), entry.value.clone()];
        if entry.expiry_ms != 0 {
            words.extend([b"PXAT".to_vec(), expiry.clone().into_bytes()]);
        }
        words
    };
    let commands: Vec<Vec<Vec<u8>>> = some.iter().zip(&expiries).map(command).collect();
    let commands: Vec<Vec<&[u8]>> = commands
        .iter()
        .map(|words| words.iter().map(Vec::as_slice).collect())
        .collect();
    let commands: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
    ask(stream, &commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_key_the_last_write_counts_whatever_order_they_come_in() {
        let entry = |lsn, db, key: &str| Entry {
            lsn,
            db,
            expiry_ms: 0,
            key: key.into(),
            value: lsn.to_string().into(),
        };
        let mut writes = LastWrites::default();
        for (lsn, db, key) in [
            (3, 0, "a"),
            (2, 0, "a"),
            (4, 1, "a"),
            (1, 0, "b"),
            (5, 0, "b"),
        ] {
            writes.take(entry(lsn, db, key));
        }
        let lsns: Vec<u64> = writes.0.values().map(|one| one.lsn).collect();
        assert_eq!((lsns, writes.len()), (vec![3, 5, 4], 3));
    }
}
