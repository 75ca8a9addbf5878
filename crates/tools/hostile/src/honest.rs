// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that only read, and one that writes: what a read gives must have been the key's value at
//! some moment between its request and its reply.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use erb_check::net::Conn;
use erb_check::resp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::stage::Stage;

/// Clients that read.
const READERS: usize = 4;
/// Keys that are read, uniformly.
pub const KEYS: usize = 200;
/// Of these the first are written, in turn.
const WRITTEN: usize = 20;
/// Pause between two writes: few, so that they cost little of the fast answers.
const WRITE_PAUSE: Duration = Duration::from_millis(20);
/// Pause of a reader between two GETs: the machine's processors are for the hostile ones too.
const READ_PAUSE: Duration = Duration::from_micros(200);
/// Wrong replies that are spelled out.
const SHOWN_MAX: usize = 5;

/// Name of a key.
pub fn key(number: usize) -> String {
    format!("honest:{number}")
}

fn value(number: usize, version: u64) -> String {
    format!("{number}:{version}:of a value that is not too short to be told from others")
}

/// The versions of one key.
#[derive(Default)]
struct Versions {
    /// The last whose SET has been sent.
    sent: AtomicU64,
    /// The last whose SET has been answered.
    done: AtomicU64,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    gets: AtomicU64,
    /// Read by who waits for a reply to a GET, so that who writes finds none under way.
    under_way: RwLock<()>,
    keys: Vec<Versions>,
}

/// The honest clients at work.
pub struct Honest {
    shared: Arc<Shared>,
    clients: Vec<SocketAddr>,
    threads: Vec<JoinHandle<Result<Vec<String>>>>,
}

impl Honest {
    /// Writes all keys once and starts everybody.
    pub fn start(stage: &Stage<'_>) -> Result<Self> {
        let mut writer = stage.client()?;
        for number in 0..KEYS {
            writer.call(&["SET", &key(number), &value(number, 0)])?;
        }
        let shared = Arc::new(Shared {
            keys: (0..KEYS).map(|_| Versions::default()).collect(),
            ..Shared::default()
        });
        let mut honest = Self {
            shared: Arc::clone(&shared),
            clients: Vec::new(),
            threads: vec![thread::spawn(move || write(writer, &shared))],
        };
        for number in 0..READERS {
            let conn = stage.client()?;
            honest.clients.push(conn.stream().local_addr()?);
            let shared = Arc::clone(&honest.shared);
            honest
                .threads
                .push(thread::spawn(move || read(conn, number as u64, &shared)));
        }
        Ok(honest)
    }

    /// Addresses of those who read.
    pub fn clients(&self) -> Vec<SocketAddr> {
        self.clients.clone()
    }

    /// GETs that were answered so far, by whomever; and what `count` gives while none is under way.
    ///
    /// Counted one after the other instead, a busy machine once put 15 % more fast GETs than GETs into a
    /// phase of two seconds.
    pub fn gets_and<T>(&self, count: impl FnOnce() -> T) -> (u64, T) {
        let none_under_way = self.shared.under_way.write();
        let counted = count();
        let gets = self.shared.gets.load(Ordering::Relaxed);
        drop(none_under_way);
        (gets, counted)
    }

    /// Ends them; what was wrong or stuck.
    pub fn end(self) -> Result<Vec<String>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut wrong = Vec::new();
        for thread in self.threads {
            let end = thread.join().map_err(|_| anyhow!("a client panicked"))?;
            wrong.extend(end?);
        }
        Ok(wrong)
    }
}

/// Judges one reply: `None` if it may be.
fn judge(reply: &[u8], number: usize, low: u64, high: u64) -> Option<String> {
    let right = (low..=high).any(|version| {
        let text = value(number, version);
        reply == format!("${}\r\n{text}\r\n", text.len()).as_bytes()
    });
    (!right).then(|| {
        format!(
            "{} must have version {low} to {high}, and was {}",
            key(number),
            resp::show(reply, 100)
        )
    })
}

fn read(mut conn: Conn, seed: u64, shared: &Shared) -> Result<Vec<String>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut wrong = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) && wrong.len() < SHOWN_MAX {
        let number = random.random_range(0..KEYS);
        let under_way = shared
            .under_way
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let low = shared.keys[number].done.load(Ordering::SeqCst);
        let reply = match conn.call(&["GET", &key(number)]) {
            Ok(reply) => reply,
            Err(broken) => {
                wrong.push(format!("GET {}: {broken}", key(number)));
                break;
            }
        };
        let high = shared.keys[number].sent.load(Ordering::SeqCst);
        wrong.extend(judge(&reply, number, low, high));
        shared.gets.fetch_add(1, Ordering::Relaxed);
        drop(under_way);
        thread::sleep(READ_PAUSE);
    }
    Ok(wrong)
}

fn write(mut conn: Conn, shared: &Shared) -> Result<Vec<String>> {
    for round in 0_u64.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let number = usize::try_from(round % WRITTEN as u64).context("a small number")?;
        let version = round / WRITTEN as u64 + 1;
        shared.keys[number].sent.store(version, Ordering::SeqCst);
        match conn.call(&["SET", &key(number), &value(number, version)]) {
            Ok(_) => shared.keys[number].done.store(version, Ordering::SeqCst),
            Err(broken) => return Ok(vec![format!("SET {}: {broken}", key(number))]),
        }
        thread::sleep(WRITE_PAUSE);
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(number: usize, version: u64) -> Vec<u8> {
        let text = value(number, version);
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    #[test]
    fn only_versions_of_the_time_between_are_right() {
        assert_eq!(judge(&reply(3, 7), 3, 7, 7), None);
        assert_eq!(judge(&reply(3, 7), 3, 6, 8), None);
        assert!(judge(&reply(3, 6), 3, 7, 8).is_some(), "older than a reply");
        assert!(judge(&reply(3, 9), 3, 7, 8).is_some(), "of no write");
        assert!(judge(&reply(4, 7), 3, 7, 7).is_some(), "of another key");
        assert!(judge(b"$-1\r\n", 3, 7, 7).is_some());
    }
}
