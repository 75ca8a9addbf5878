// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The drain over a socket, as the daemon's loop would run it: its own thread, whose processor time counts.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_abi::{Logs, hash_secret};
use erb_redis::drain::{Drain, DrainSettings, Drained, Next};
use erb_redis::resp::{RespStream, error};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Longest sleep while nothing waits: how late the end of a run is seen at most.
const IDLE: Duration = Duration::from_micros(500);
/// Redis's databases where it is not told otherwise.
const DATABASES: u32 = 16;

/// A connection that never blocks.
pub enum Connection {
    /// Loopback.
    Tcp(TcpStream),
    /// Unix socket.
    Unix(UnixStream),
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// What one drain did.
#[derive(Default)]
pub struct Did {
    /// Of batches, records, keys.
    pub drained: Drained,
    /// Processor time of its thread.
    pub own_ns: u64,
    /// Up to which LSN all was in Redis, and since when, since the run's start.
    pub moments: Vec<(u64, Duration)>,
    /// From the start to the last record.
    pub time: Duration,
    /// Pushes that came between replies.
    pub pushes: u64,
}

/// Makes the connection as the feed's is, or without reports.
pub fn begin(connection: Connection, tracked: bool) -> Result<RespStream<Connection>> {
    let mut stream = RespStream::new(connection);
    stream.push(&[b"HELLO", b"3"]);
    stream.push(&[b"CLIENT", b"NO-EVICT", b"ON"]);
    let mut left = 2;
    if tracked {
        stream.push(&[b"CLIENT", b"TRACKING", b"ON", b"BCAST", b"NOLOOP"]);
        left += 1;
    }
    stream.flush()?;
    while left > 0 {
        wait(&stream, PollFlags::POLLIN, Duration::from_secs(5))?;
        stream.fill()?;
        while let Some(frame) = stream.next_frame()? {
            let refused = error(&frame);
            ensure!(
                refused.is_none(),
                "Redis refused the drain's connection: {refused:?}"
            );
            left -= 1;
        }
    }
    Ok(stream)
}

/// Drains until the writer is done and nothing is left. Runs in a thread of its own; `start`: of the run.
pub fn drain(
    logs: Logs,
    stream: &mut RespStream<Connection>,
    (batch_ns, start): (u64, Instant),
    written: &AtomicBool,
) -> Result<Did> {
    let settings = DrainSettings {
        batch_ns,
        secret: hash_secret::of_seed(7),
    };
    let (mut drain, mut did) = (Drain::new(logs, &settings), Did::default());
    drain.set_databases(DATABASES);
    // 0 stands for "never" where a time is kept.
    let now_ns = || start.elapsed().as_nanos() as u64 + 1;
    loop {
        let is_written = written.load(Ordering::Acquire);
        let began = drain.begin(now_ns(), stream.output())?;
        if began || stream.wants_write() {
            stream.flush()?;
        }
        if !drain.is_under_way() && drain.backlog(now_ns()).records == 0 && is_written {
            break;
        }
        let wanted = match stream.wants_write() {
            true => PollFlags::POLLIN | PollFlags::POLLOUT,
            false => PollFlags::POLLIN,
        };
        let until = drain.next_ns().map(|due| due.saturating_sub(now_ns()));
        let most = if drain.is_under_way() {
            Duration::from_secs(5)
        } else {
            IDLE
        };
        wait(stream, wanted, until.map_or(most, Duration::from_nanos))?;
        stream.fill()?;
        take(&mut drain, stream, now_ns(), &mut did)?;
        let refusal = drain.refusal();
        ensure!(refusal.is_none(), "Redis refused a batch: {refusal:?}");
        if did.moments.last().map(|last| last.0) != Some(drain.log().drained()) {
            did.moments.push((drain.log().drained(), start.elapsed()));
        }
    }
    did.time = start.elapsed();
    did.drained = drain.done();
    let own = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
    did.own_ns = u64::try_from(own.as_nanos())?;
    Ok(did)
}

fn take(
    drain: &mut Drain<Logs>,
    stream: &mut RespStream<Connection>,
    now_ns: u64,
    did: &mut Did,
) -> Result<()> {
    while !stream.input().is_empty() {
        let (taken, next) = drain.take(stream.input(), now_ns)?;
        stream.take_input(taken);
        if next == Next::More {
            break;
        }
        // What is the owner's: here nobody keeps what is reported.
        if stream.input().is_empty() || stream.next_frame()?.is_none() {
            break;
        }
        did.pushes += 1;
    }
    Ok(())
}

fn wait(stream: &RespStream<Connection>, wanted: PollFlags, time: Duration) -> Result<()> {
    let mut fds = [PollFd::new(stream.get_ref().as_fd(), wanted)];
    match ppoll(&mut fds, Some(TimeSpec::from_duration(time)), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("poll failed"),
    }
}
