// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether Redis's replicas have what was drained, for clients that ask who has their writes (`bpf/splice/order.h`, Y8).
//! Redis counts for WAIT from what it has executed for the connection that asks, and knows nothing of what was answered
//! in its place. So such a WAIT is held until every replica has all of that: then whatever Redis counts is true.
//!
//! It is a thread with a connection of its own, as WAIT keeps a connection busy until it is answered. Nobody has it as
//! long as nobody asks.
//!
//! Invariants:
//! 1. An asking begins behind the request that waits for it, and behind the drain of what that waits for. It is answered
//!    when each replica that Redis would count has acknowledged the offset that Redis had then: those that INFO calls
//!    online, by the offsets that INFO tells, which are what WAIT compares (src/replication.c,
//!    `replicationCountAcksByOffset`).
//! 2. Between that INFO and the request in Redis lies a millisecond. A replica that comes back in it may be counted
//!    although it has only what there was when it went.
//! 3. Where Redis knows WAITAOF (7.2) and keeps a log, its own log is synced, too; but for `appendfsync no`, with which it
//!    never tells that it is. Of replicas' logs nothing is known.
//! 4. From 7.2 on WAIT and WAITAOF count up to what their own connection has written last, and are true at once for one
//!    that has written nothing ([`NOTHING`]). Before that they count up to its last command.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use erb_redis::Asking;
use erb_redis::calls::{fields, word};
use erb_redis::resp::{Frame, RespStream, error, integer, pairs, text};
use erb_redis::rights::{Credentials, TRIAL_KEY, is_unknown};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::preflight::ask;
use crate::{Error, Result};

/// Redis answers a WAIT after so long at the latest: who is a replica may have changed.
const WAIT_MS: &[u8] = b"500";

/// A write that leaves nothing, in one transaction: nobody sees its key. Redis notes for this connection how far all is
/// that was written by then: 4.
const NOTHING: [&[&[u8]]; 5] = [
    &[b"MULTI"],
    &[b"SET", TRIAL_KEY, b""],
    &[b"SET", TRIAL_KEY, b"", b"PXAT", b"1"],
    // It has expired long ago: who looks at it deletes it.
    &[b"TOUCH", TRIAL_KEY],
    &[b"EXEC"],
];

/// The first Redis of which 4 holds.
const COUNTS_WRITES_FROM: (u32, u32) = (7, 2);

/// Between tries of what failed.
const RETRY: Duration = Duration::from_millis(100);

/// What both threads know.
#[derive(Default)]
struct Words {
    /// The last asking that somebody waits for.
    wanted: Option<Asking>,
    /// The last one that was answered.
    answered: Option<Asking>,
    /// Nobody will ask any more.
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    words: Mutex<Words>,
    asks: Condvar,
}

/// The daemon's side.
pub(crate) struct Replicas {
    shared: Arc<Shared>,
}

impl Replicas {
    /// Behind the drop of privileges. `marked`: its packets may pass a boosted device.
    pub(crate) fn start(
        address: RedisAddr,
        source: CredentialSource,
        marked: bool,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let mut asker = Asker {
            address,
            source,
            marked,
            stream: None,
        };
        thread::Builder::new()
            .name("replicas".to_owned())
            .spawn(move || asker.run(&theirs))
            .map_err(Error::io(
                "could not start the thread that asks for replicas",
            ))?;
        Ok(Self { shared })
    }

    /// Somebody waits for this asking. The last one that was answered.
    pub(crate) fn want(&self, asking: Asking) -> Option<Asking> {
        let mut words = self.shared.words();
        if words.wanted.replace(asking) != Some(asking) {
            self.shared.asks.notify_one();
        }
        words.answered
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.shared.words().is_over = true;
        self.shared.asks.notify_one();
    }
}

impl Shared {
    fn words(&self) -> std::sync::MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted and not answered; none: nobody will ask any more.
    fn next(&self) -> Option<Asking> {
        let rests = |words: &mut Words| words.wanted == words.answered && !words.is_over;
        let words = self.asks.wait_while(self.words(), rests);
        let words = words.unwrap_or_else(PoisonError::into_inner);
        words.wanted.filter(|_| !words.is_over)
    }
}

/// The thread's side.
struct Asker {
    address: RedisAddr,
    source: CredentialSource,
    marked: bool,
    stream: Option<RespStream<Connection>>,
}

impl Asker {
    fn run(&mut self, shared: &Shared) {
        let mut told = None;
        while let Some(asking) = shared.next() {
            // A connection that was made for an earlier one may be gone by now.
            let is_old = self.stream.is_some();
            match self.is_synced() {
                Ok(true) => {
                    shared.words().answered = Some(asking);
                    told = None;
                }
                Ok(false) => {}
                Err(_) if is_old => self.stream = None,
                Err(why) => {
                    self.stream = None;
                    let why = why.to_string();
                    if told.as_ref() != Some(&why) {
                        tracing::warn!(
                            "whether replicas have what was answered cannot be found out, so who asks for them (WAIT) waits: {why}"
                        );
                    }
                    told = Some(why);
                    thread::sleep(RETRY);
                }
            }
        }
    }

    fn connect(&self) -> io::Result<RespStream<Connection>> {
        let mut stream = RespStream::new(Connection::new(&self.address, self.marked)?);
        let credentials = self.source.read().map_err(io::Error::other)?;
        let hello = Credentials::hello(credentials.as_ref());
        refused(&ask(&mut stream, &[&hello])?)?;
        Ok(stream)
    }

    /// Whether all replicas have what was drained when this was called: invariants 1 to 4.
    fn is_synced(&mut self) -> io::Result<bool> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let stream = self.stream.insert(stream);
        let before = Replication::ask(stream)?;
        let is_behind = !before.have(before.offset);
        let syncs = before.has_log && before.counts_writes && does_sync(stream)?;
        if before.counts_writes && (is_behind || syncs) {
            executed(&ask(stream, &NOTHING)?)?;
        }
        if is_behind {
            // Replicas acknowledge each second, or when somebody waits for them.
            let all = before.acknowledged.len().to_string();
            refused(&ask(stream, &[&[b"WAIT", all.as_bytes(), WAIT_MS]])?)?;
            if !Replication::ask(stream)?.have(before.offset) {
                return Ok(false);
            }
        }
        if !syncs {
            return Ok(true);
        }
        let answer = ask(stream, &[&[b"WAITAOF", b"1", b"0", WAIT_MS]])?;
        match error(&answer[0]) {
            Some(text) if is_unknown(&text) => Ok(true),
            Some(text) => Err(io::Error::other(text)),
            None => Ok(own_log(&answer[0]) == Some(1)),
        }
    }
}

/// Whether Redis ever syncs its log by itself.
fn does_sync(stream: &mut RespStream<Connection>) -> io::Result<bool> {
    let config = ask(stream, &[&[b"CONFIG", b"GET", b"appendfsync"]])?;
    refused(&config)?;
    let found = pairs(&config[0]);
    Ok(!found.iter().any(|(_, value)| value == "no"))
}

/// The transaction was, and wrote: EXEC's reply is the last one.
fn executed(replies: &[Frame]) -> io::Result<()> {
    refused(replies)?;
    match replies.last() {
        Some(Frame::Array { data, .. }) => refused(data),
        other => Err(io::Error::other(format!("EXEC was answered by {other:?}"))),
    }
}

/// The first error among replies.
fn refused(replies: &[Frame]) -> io::Result<()> {
    match replies.iter().find_map(error) {
        Some(text) => Err(io::Error::other(text)),
        None => Ok(()),
    }
}

/// Of WAITAOF's answer: how many logs of its own Redis has synced.
fn own_log(answer: &Frame) -> Option<u64> {
    match answer {
        Frame::Array { data, .. } => data.first().and_then(integer),
        _ => None,
    }
}

/// What INFO says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Replication {
    /// How far Redis itself is.
    offset: u64,
    /// What replicas have acknowledged: those that Redis would count.
    acknowledged: Vec<u64>,
    /// It keeps a log of its own.
    has_log: bool,
    /// Invariant 4 holds of it, or it does not say which Redis it is.
    counts_writes: bool,
}

impl Replication {
    fn ask(stream: &mut RespStream<Connection>) -> io::Result<Self> {
        let info = ask(
            stream,
            &[&[b"INFO", b"server", b"replication", b"persistence"]],
        )?;
        refused(&info)?;
        let said = text(&info[0]).map_or(&[][..], |info| &info[..]);
        Self::of(&String::from_utf8_lossy(said)).ok_or_else(|| {
            io::Error::other("INFO does not tell how far replicas are: is this a Redis?")
        })
    }

    /// Whether all have acknowledged this offset.
    fn have(&self, offset: u64) -> bool {
        self.acknowledged.iter().all(|of| *of >= offset)
    }

    fn of(info: &str) -> Option<Self> {
        let mut found = Self {
            counts_writes: true,
            ..Self::default()
        };
        let mut tells = false;
        for (name, value) in fields(info) {
            let number = name.strip_prefix("slave");
            match name {
                "master_repl_offset" => {
                    found.offset = value.parse().ok()?;
                    tells = true;
                }
                "aof_enabled" => found.has_log = value == "1",
                "redis_version" => {
                    found.counts_writes =
                        version(value).is_none_or(|version| version >= COUNTS_WRITES_FROM);
                }
                _ if number.is_some_and(|number| number.parse::<u32>().is_ok())
                    && word(value, "state=") == Some("online") =>
                {
                    found
                        .acknowledged
                        .push(word(value, "offset=")?.parse().ok()?);
                }
                _ => {}
            }
        }
        tells.then_some(found)
    }
}

/// Its first two numbers.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_redis_counts_up_to_a_connections_last_command() {
        let counts = |version: &str| {
            let info = format!("{version}master_repl_offset:9\r\n");
            Replication::of(&info).expect("what is told").counts_writes
        };
        let of = |number: &str| counts(&format!("redis_version:{number}\r\n"));
        assert!(!of("7.0.15") && !of("6.2"));
        assert!(of("7.2.4") && of("7.10.0") && of("8.0.2") && of("255.255.255"));
        assert!(of("unstable") && counts(""));
    }

    #[test]
    fn replicas_that_redis_counts_are_those_that_are_online() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\n\
            slave0:ip=10.0.0.1,port=1,state=online,offset=5,lag=0\r\n\
            slave1:ip=10.0.0.2,port=1,state=wait_bgsave,offset=0,lag=0\r\n\
            slave12:ip=10.0.0.3,port=1,state=online,offset=7,lag=0\r\n\
            slave_expires_tracked_keys:0\r\nmaster_repl_offset:7\r\n# Persistence\r\naof_enabled:1\r\n";
        let found = Replication::of(info).expect("what is told");
        assert_eq!(found.acknowledged, [5, 7]);
        assert!(found.has_log && found.have(5) && !found.have(found.offset));
        let alone = Replication::of("master_repl_offset:9\r\n").expect("what is told");
        assert!(alone.have(alone.offset) && !alone.has_log);
        assert_eq!(Replication::of("role:master\r\n"), None);
    }

    #[test]
    fn what_is_wanted_again_is_not_asked_again() {
        let shared = Arc::new(Shared::default());
        let replicas = Replicas {
            shared: Arc::clone(&shared),
        };
        let asking = |number| Asking {
            number,
            lsn: 10 * u64::from(number),
        };
        assert_eq!(replicas.want(asking(5)), None);
        assert_eq!(shared.next(), Some(asking(5)));
        shared.words().answered = Some(asking(5));
        assert_eq!(replicas.want(asking(5)), Some(asking(5)));
        assert_eq!(replicas.want(asking(7)), Some(asking(5)));
        assert_eq!(shared.next(), Some(asking(7)));
        drop(replicas);
        assert_eq!(shared.next(), None);
    }
}
