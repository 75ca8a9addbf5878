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

/// So many keys that were refused are named.
const NAMED_MAX: usize = 10;

/// What came of it.
#[derive(Debug, Default)]
pub struct Applied {
    /// Keys that Redis has taken, or would take.
    pub keys: usize,
    /// Keys that it has not, or would not.
    pub refused: usize,
    /// The first of these: database, key, and what it said.
    pub named: Vec<(u16, Vec<u8>, String)>,
    /// Why the rest was not even sent; none: all was.
    pub broke: Option<Error>,
}

impl Applied {
    fn refuse(&mut self, entry: &Entry, why: &str) {
        self.refused += 1;
        if self.named.len() < NAMED_MAX {
            let named = (entry.db, entry.key.clone(), why.to_owned());
            self.named.push(named);
        }
    }
}

/// Whether keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// They are.
    Truly,
    /// Redis is asked whether it would take each of them, and none is written.
    OnTrial,
}

/// Sends SETs as any client does: what is answered in Redis's place meanwhile stands behind them in order.
///
/// # Errors
/// [`Error::Redis`]: it cannot be reached, or lets nobody in; nothing was done. To apply again is harmless while nobody
/// else writes.
pub fn apply(
    address: &RedisAddr,
    source: &CredentialSource,
    writes: &LastWrites,
    applies: Applies,
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
    let all: Vec<&Entry> = writes.0.values().collect();
    for of_db in all.chunk_by(|a, b| a.db == b.db) {
        if let Err(error) = apply_to_db(&mut stream, of_db, applies, &mut done) {
            done.broke = Some(failed(silent(&error)));
            break;
        }
    }
    Ok(done)
}

fn apply_to_db(
    stream: &mut RespStream<Connection>,
    entries: &[&Entry],
    applies: Applies,
    done: &mut Applied,
) -> std::io::Result<()> {
    let db = entries[0].db.to_string();
    let replies = ask(stream, &[&[b"SELECT", db.as_bytes()]])?;
    if let Some(text) = replies.iter().find_map(error) {
        let why = format!("database {db}: {text}");
        entries.iter().for_each(|entry| done.refuse(entry, &why));
        return Ok(());
    }
    for some in entries.chunks(AT_ONCE) {
        let replies = send(stream, some, applies)?;
        for (entry, reply) in some.iter().zip(&replies) {
            match error(reply) {
                None => done.keys += 1,
                Some(text) => done.refuse(entry, &text),
            }
        }
    }
    Ok(())
}

/// The reply to each. On trial they are queued in a transaction that is given up: Redis looks at rights, memory, disk
/// and role when it queues.
fn send(
    stream: &mut RespStream<Connection>,
    some: &[&Entry],
    applies: Applies,
) -> std::io::Result<Vec<Frame>> {
    let command = |entry: &&Entry| -> Vec<Vec<u8>> {
        let mut words = vec![b"SET".to_vec(), entry.key.clone(), entry.value.clone()];
        if entry.expiry_ms != 0 {
            words.extend([b"PXAT".to_vec(), entry.expiry_ms.to_string().into_bytes()]);
        }
        words
    };
    let mut commands: Vec<Vec<Vec<u8>>> = some.iter().map(command).collect();
    if applies == Applies::OnTrial {
        commands.insert(0, vec![b"MULTI".to_vec()]);
        commands.push(vec![b"DISCARD".to_vec()]);
    }
    let commands: Vec<Vec<&[u8]>> = commands
        .iter()
        .map(|words| words.iter().map(Vec::as_slice).collect())
        .collect();
    let commands: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
    let mut replies = ask(stream, &commands)?;
    if applies == Applies::OnTrial {
        replies.remove(0);
        replies.truncate(some.len());
    }
    Ok(replies)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    fn entry(lsn: u64, db: u16, key: &str) -> Entry {
        Entry {
            lsn,
            db,
            expiry_ms: 0,
            key: key.into(),
            value: lsn.to_string().into(),
        }
    }

    #[test]
    fn of_a_key_the_last_write_counts_whatever_order_they_come_in() {
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

    /// A redis-server on a socket in a folder, with two databases and keys that begin with `ok`.
    struct Redis(Child, PathBuf);

    impl Redis {
        fn start(folder: &Path) -> Self {
            let socket = folder.join("redis");
            let mut command = Command::new("redis-server");
            command.args(["--port", "0", "--save", "", "--databases", "2"]);
            command.args(["--user", "default", "on", "nopass", "~ok*", "+@all"]);
            command.arg("--unixsocket").arg(&socket).current_dir(folder);
            let child = command.stdout(Stdio::null()).spawn();
            let redis = Self(child.expect("redis-server is installed"), socket);
            let end = Instant::now() + Duration::from_secs(20);
            while std::os::unix::net::UnixStream::connect(&redis.1).is_err() {
                assert!(Instant::now() < end, "redis-server did not start");
                sleep(Duration::from_millis(10));
            }
            redis
        }

        fn keys(&self) -> usize {
            let address = RedisAddr::Unix(self.1.clone());
            let stream = Connection::new(&address, false).expect("a connection");
            let mut stream = RespStream::new(stream);
            let replies = ask(&mut stream, &[&[b"DBSIZE"]]).expect("an answer");
            match replies[0] {
                Frame::Number { data, .. } => usize::try_from(data).expect("a count"),
                ref other => panic!("{other:?}"),
            }
        }
    }

    impl Drop for Redis {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_redis_refuses_is_named_and_hinders_no_other_key_and_a_trial_writes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let redis = Redis::start(folder.path());
        let mut writes = LastWrites::default();
        for number in 0..700 {
            writes.take(entry(1 + number, 0, &format!("ok{number}")));
        }
        writes.take(entry(1_001, 0, "another's"));
        writes.take(entry(1_002, 1, "ok"));
        writes.take(entry(1_003, 9, "ok"));
        let address = RedisAddr::Unix(redis.1.clone());
        let source = CredentialSource::new(None, None).expect("none");
        for (applies, keys) in [(Applies::OnTrial, 0), (Applies::Truly, 700)] {
            let done = apply(&address, &source, &writes, applies).expect("Redis");
            assert_eq!((done.keys, done.refused), (701, 2), "{done:?}");
            assert!(done.broke.is_none());
            let named: Vec<(u16, &[u8])> =
                done.named.iter().map(|one| (one.0, &one.1[..])).collect();
            assert_eq!(named, [(0, &b"another's"[..]), (9, &b"ok"[..])]);
            assert!(done.named[0].2.contains("permission"), "{done:?}");
            assert!(done.named[1].2.contains("database 9"), "{done:?}");
            assert_eq!(redis.keys(), keys);
        }
    }
}
