// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether Redis's replicas have what was drained, for clients that ask who has their writes (`bpf/splice/order.h`, Y8).
//! Redis counts for WAIT from what it has executed for the connection that asks, and knows nothing of what was answered
//! in its place. So such a WAIT is held until every replica has all of that: then whatever Redis counts is true.
//!
//! It is a thread with a connection of its own, as WAIT keeps a connection busy until it is answered. Nobody has it as
//! long as nobody asks.
//!
//! Invariants:
//! 1. What is called synced was drained before the connection's last command before its WAIT. Redis notes at the end of
//!    each command of a connection how far it was (`woff`, src/server.c), and that is what the WAIT counts from.
//! 2. Every replica that Redis would count is asked for: those that INFO calls online, which are the same. One that
//!    comes up in the moment between may be counted although it has only what was there when its copy began.
//! 3. Where Redis knows WAITAOF (7.2) and keeps a log, its own log is synced, too. Of replicas' logs nothing is known.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use erb_redis::resp::{Frame, RespStream, error, integer, text};
use erb_redis::rights::{Credentials, is_unknown};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::preflight::ask;
use crate::{Error, Result};

/// Redis answers a WAIT after so long at the latest: who is a replica may have changed.
const WAIT_MS: &[u8] = b"500";

/// Between tries of what failed.
const RETRY: Duration = Duration::from_millis(100);

/// What both threads know.
#[derive(Default)]
struct Shared {
    /// As far as somebody wants all to be synced, LSN; and whether nobody will any more.
    wanted: Mutex<(u64, bool)>,
    asks: Condvar,
    /// As far as it is.
    synced: AtomicU64,
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

    /// All that is drained up to this LSN is to be synced. As far as it is.
    pub(crate) fn want(&self, drained: u64) -> u64 {
        let mut wanted = self.shared.wanted();
        if drained > wanted.0 {
            wanted.0 = drained;
            self.shared.asks.notify_one();
        }
        self.shared.synced.load(Ordering::Acquire)
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.shared.wanted().1 = true;
        self.shared.asks.notify_one();
    }
}

impl Shared {
    fn wanted(&self) -> std::sync::MutexGuard<'_, (u64, bool)> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted and not there; none: nobody will ask any more.
    fn next(&self) -> Option<u64> {
        let synced = self.synced.load(Ordering::Relaxed);
        let rests = |(wanted, is_over): &mut (u64, bool)| *wanted <= synced && !*is_over;
        let wanted = self.asks.wait_while(self.wanted(), rests);
        let (wanted, is_over) = *wanted.unwrap_or_else(PoisonError::into_inner);
        (!is_over).then_some(wanted)
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
        while let Some(lsn) = shared.next() {
            match self.is_synced() {
                Ok(true) => {
                    shared.synced.fetch_max(lsn, Ordering::Release);
                    told = None;
                }
                Ok(false) => {}
                Err(why) => {
                    self.stream = None;
                    let why = why.to_string();
                    if told.as_ref() != Some(&why) {
                        tracing::warn!(
                            "who asks for replicas (WAIT) after a write that was answered in Redis's place is not answered: {why}"
                        );
                    }
                    told = Some(why);
                    thread::sleep(RETRY);
                }
            }
        }
    }

    /// Whether all replicas have what was drained when this was called: invariants 1 to 3.
    fn is_synced(&mut self) -> io::Result<bool> {
        if self.stream.is_none() {
            let mut stream = RespStream::new(Connection::new(&self.address, self.marked)?);
            let credentials = self.source.read().map_err(io::Error::other)?;
            let hello = Credentials::hello(credentials.as_ref());
            refused(&ask(&mut stream, &[&hello])?)?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        // The last command before the WAIT is one that came behind all that was drained.
        let info = ask(stream, &[&[b"INFO", b"replication", b"persistence"]])?;
        refused(&info)?;
        let info = text(&info[0]).map_or(&[][..], |info| &info[..]);
        let seen = Replication::of(&String::from_utf8_lossy(info));
        if seen.online > 0 {
            let online = seen.online.to_string();
            let answer = ask(stream, &[&[b"WAIT", online.as_bytes(), WAIT_MS]])?;
            refused(&answer)?;
            if integer(&answer[0]).is_none_or(|count| count < seen.online) {
                return Ok(false);
            }
        }
        if !seen.has_log {
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
#[derive(Debug, PartialEq, Eq)]
struct Replication {
    /// Replicas that Redis would count.
    online: u64,
    /// It keeps a log of its own.
    has_log: bool,
}

impl Replication {
    fn of(info: &str) -> Self {
        let is_online = |line: &&str| {
            line.split_once(':').is_some_and(|(name, value)| {
                let number = name.strip_prefix("slave");
                number.is_some_and(|number| number.parse::<u32>().is_ok())
                    && value.split(',').any(|field| field == "state=online")
            })
        };
        Self {
            online: info.lines().filter(is_online).count() as u64,
            has_log: info.lines().any(|line| line.trim_end() == "aof_enabled:1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_redis_counts_are_those_that_are_online() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\n\
            slave0:ip=10.0.0.1,port=1,state=online,offset=5,lag=0\r\n\
            slave1:ip=10.0.0.2,port=1,state=wait_bgsave,offset=0,lag=0\r\n\
            slave12:ip=10.0.0.3,port=1,state=online,offset=1,lag=0\r\n\
            slave_expires_tracked_keys:0\r\nmaster_replid:abc\r\n# Persistence\r\naof_enabled:1\r\n";
        let (online, has_log) = (2, true);
        assert_eq!(Replication::of(info), Replication { online, has_log });
        let (online, has_log) = (0, false);
        assert_eq!(Replication::of(""), Replication { online, has_log });
    }

    #[test]
    fn what_is_wanted_again_is_not_asked_again() {
        let shared = Arc::new(Shared::default());
        let replicas = Replicas {
            shared: Arc::clone(&shared),
        };
        assert_eq!(replicas.want(5), 0);
        assert_eq!(shared.next(), Some(5));
        shared.synced.store(5, Ordering::Relaxed);
        assert_eq!((replicas.want(4), replicas.want(7)), (5, 5));
        assert_eq!(shared.next(), Some(7));
        drop(replicas);
        assert_eq!(shared.next(), None);
    }
}
