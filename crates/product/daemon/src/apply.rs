// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Brings records of a journal to Redis, because somebody has said so.

use std::collections::BTreeMap;

use erb_journal::Entry;
use erb_redis::resp::{Frame, RespStream, error};
use erb_redis::rights::{Credentials, advice};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::preflight::{ask, ask_for, silent, unreachable};
use crate::{Error, Result};

/// Commands that are answered before more are sent.
const AT_ONCE: usize = 500;

/// And bytes of their keys and values, so that a slow way to Redis has time for them.
const BYTES_AT_ONCE: usize = 1 << 20;

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
    /// Keys that were sent and not answered: they may be written.
    pub unknown: usize,
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
        if let Err(reason) = apply_to_db(&mut stream, of_db, applies, &mut done) {
            done.broke = Some(failed(reason));
            break;
        }
    }
    Ok(done)
}

/// Why the rest was not sent, if it was not.
fn apply_to_db(
    stream: &mut RespStream<Connection>,
    entries: &[&Entry],
    applies: Applies,
    done: &mut Applied,
) -> std::result::Result<(), String> {
    let db = entries[0].db.to_string();
    let replies = ask(stream, &[&[b"SELECT", db.as_bytes()]]).map_err(|error| silent(&error))?;
    if let Some(text) = replies.iter().find_map(error) {
        let why = format!("database {db}: {text}");
        entries.iter().for_each(|entry| done.refuse(entry, &why));
        return Ok(());
    }
    let mut rest = entries;
    while !rest.is_empty() {
        let (some, others) = rest.split_at(at_once(rest));
        rest = others;
        let mut replies = Vec::new();
        let sent = send(stream, some, applies, &mut replies);
        for (entry, reply) in some.iter().zip(&replies) {
            match error(reply) {
                None => done.keys += 1,
                Some(text) => done.refuse(entry, &text),
            }
        }
        if applies == Applies::Truly {
            done.unknown += some.len() - replies.len();
        }
        sent?;
    }
    Ok(())
}

/// How many of these are sent at once, one at least.
fn at_once(entries: &[&Entry]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&&Entry| {
        bytes += entry.key.len() + entry.value.len();
        bytes <= BYTES_AT_ONCE
    };
    let count = entries.iter().take(AT_ONCE).take_while(fits).count();
    count.max(1)
}

/// Adds the reply to each. On trial they are queued in a transaction that is given up: Redis looks at rights, memory,
/// disk and role when it queues. Where it begins none, all that follows would be done: so it is asked first.
fn send(
    stream: &mut RespStream<Connection>,
    some: &[&Entry],
    applies: Applies,
    replies: &mut Vec<Frame>,
) -> std::result::Result<(), String> {
    let command = |entry: &&Entry| -> Vec<Vec<u8>> {
        let mut words = vec![b"SET".to_vec(), entry.key.clone(), entry.value.clone()];
        if entry.expiry_ms != 0 {
            words.extend([b"PXAT".to_vec(), entry.expiry_ms.to_string().into_bytes()]);
        }
        words
    };
    let commands: Vec<Vec<Vec<u8>>> = some.iter().map(command).collect();
    let commands: Vec<Vec<&[u8]>> = commands
        .iter()
        .map(|words| words.iter().map(Vec::as_slice).collect())
        .collect();
    let commands: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
    if applies == Applies::OnTrial {
        agreed(stream, b"MULTI")?;
    }
    ask_for(stream, &commands, replies).map_err(|error| silent(&error))?;
    match applies {
        Applies::OnTrial => agreed(stream, b"DISCARD"),
        Applies::Truly => Ok(()),
    }
}

/// Says a word of a trial, which Redis must not refuse.
fn agreed(stream: &mut RespStream<Connection>, word: &[u8]) -> std::result::Result<(), String> {
    let replies = ask(stream, &[&[word]]).map_err(|error| silent(&error))?;
    match replies.iter().find_map(error) {
        None => Ok(()),
        Some(text) => Err(format!(
            "nothing can be tried, for {} is refused: {text}",
            String::from_utf8_lossy(word)
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

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
            let child = child.unwrap_or_else(|error| {
                erb_steady::set_up_failed(format_args!("redis-server (scripts/setup.sh): {error}"))
            });
            let redis = Self(child, socket);
            erb_steady::wait(Duration::from_secs(30), || {
                let connected = std::os::unix::net::UnixStream::connect(&redis.1);
                connected.map_err(|error| format!("redis-server did not start: {error}"))
            });
            redis
        }

        fn address(&self) -> RedisAddr {
            RedisAddr::Unix(self.1.clone())
        }

        fn says(&self, words: &[&[u8]]) -> Frame {
            let stream = Connection::new(&self.address(), false).expect("a connection");
            let mut stream = RespStream::new(stream);
            ask(&mut stream, &[words]).expect("an answer").remove(0)
        }

        fn keys(&self) -> usize {
            match self.says(&[b"DBSIZE"]) {
                Frame::Number { data, .. } => usize::try_from(data).expect("a count"),
                other => panic!("{other:?}"),
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
        let address = redis.address();
        for (applies, keys) in [(Applies::OnTrial, 0), (Applies::Truly, 700)] {
            let done = apply(&address, &no_password(), &writes, applies).expect("Redis");
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

    fn no_password() -> CredentialSource {
        CredentialSource::new(None, None).expect("none")
    }

    #[test]
    fn more_than_a_connection_takes_at_once_goes_as_redis_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let redis = Redis::start(folder.path());
        let mut writes = LastWrites::default();
        for lsn in 1..=AT_ONCE as u64 {
            let value = vec![b'v'; 8_000];
            let key = format!("ok{lsn}");
            writes.take(Entry {
                value,
                ..entry(lsn, 0, &key)
            });
        }
        for (applies, keys) in [(Applies::OnTrial, 0), (Applies::Truly, AT_ONCE)] {
            let done = apply(&redis.address(), &no_password(), &writes, applies).expect("Redis");
            assert!(done.broke.is_none(), "{done:?}");
            assert_eq!((done.keys, done.unknown), (AT_ONCE, 0), "{done:?}");
            assert_eq!(redis.keys(), keys);
        }
    }

    #[test]
    fn a_trial_writes_nothing_where_redis_begins_no_transaction() {
        let folder = tempfile::tempdir().expect("a folder");
        let redis = Redis::start(folder.path());
        redis.says(&[b"ACL", b"SETUSER", b"default", b"-multi"]);
        let mut writes = LastWrites::default();
        writes.take(entry(1, 0, "ok"));
        let done =
            apply(&redis.address(), &no_password(), &writes, Applies::OnTrial).expect("Redis");
        assert_eq!((done.keys, redis.keys()), (0, 0), "{done:?}");
        let why = done.broke.expect("it is refused").to_string();
        assert!(why.contains("MULTI is refused: NOPERM"), "{why}");
    }

    #[test]
    fn what_was_sent_and_not_answered_may_be_written_or_not() {
        use std::io::{Read as _, Write as _};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("redis");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            // To HELLO, to SELECT, and to the first two of three SETs.
            for reply in ["+hello\r\n", "+OK\r\n", "+OK\r\n+OK\r\n"] {
                let mut asked = [0; 4_096];
                assert!(stream.read(&mut asked).expect("a command") > 0);
                stream.write_all(reply.as_bytes()).expect("a reply");
            }
        });
        let mut writes = LastWrites::default();
        for (lsn, key) in [(1, "a"), (2, "b"), (3, "c")] {
            writes.take(entry(lsn, 0, key));
        }
        let address = RedisAddr::Unix(path);
        let done = apply(&address, &no_password(), &writes, Applies::Truly).expect("it answers");
        server.join().expect("the server");
        assert_eq!((done.keys, done.unknown), (2, 1), "{done:?}");
        assert!(done.broke.is_some());
    }
}
