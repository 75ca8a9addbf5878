// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection to a node, which is one queue: a call at a time, and whoever makes it waits.
//!
//! Invariant: what goes out is on its way before the answer is awaited, and only one call is under way. So neither end
//! can wait for the other's reading.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use erb_nvme::client::{Call, CallId, Connection, Ended, Event, Reply, Settings};
use erb_nvme::random::Random;

use crate::error::{Error, Result};
use crate::url::Url;

/// Time is looked at so often while an answer is awaited.
const LOOK: Duration = Duration::from_millis(100);
const CONNECT: Duration = Duration::from_secs(5);
/// A node takes a queue, and proves itself, within this time. A call may take longer.
const HANDSHAKE: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 256 << 10;

/// Random numbers of the system.
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("a system that has random numbers");
    }
}

/// A queue of a controller.
pub(crate) struct Queue {
    connection: Connection,
    stream: TcpStream,
    begun: Instant,
    buffer: Vec<u8>,
}

fn reach(url: &Url) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(ErrorKind::NotFound);
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_write_timeout(Some(CONNECT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Queue {
    pub(crate) fn open(url: &Url, settings: Settings) -> Result<Self> {
        let stream = reach(url).map_err(|source| Error::Unreachable {
            address: format!("{}:{}", url.host, url.port),
            source,
        })?;
        let mut queue = Self {
            connection: Connection::new(settings, Box::new(SystemRandom), 0),
            stream,
            begun: Instant::now(),
            buffer: vec![0; READ_BYTES],
        };
        while !queue.connection.is_up() {
            match queue.connection.event() {
                Some(Event::Ended(ended)) => return Err(ended.into()),
                Some(Event::Compute(job)) => {
                    let computed = job.run();
                    queue.connection.computed(&computed, queue.now_us());
                }
                Some(_) => {}
                None if queue.begun.elapsed() > HANDSHAKE => {
                    return Err(Error::Refused(Ended::Slow));
                }
                None => queue.go_on(),
            }
        }
        Ok(queue)
    }

    pub(crate) fn controller(&self) -> u16 {
        self.connection.controller()
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Makes a call and waits for its answer.
    pub(crate) fn call(&mut self, call: Call) -> Result<Reply> {
        let id = self.begin(call)?;
        loop {
            match self.ended(id) {
                Some(reply) => return reply,
                None => self.go_on(),
            }
        }
    }

    /// Makes a call.
    pub(crate) fn begin(&mut self, call: Call) -> Result<CallId> {
        Ok(self.connection.call(call, self.now_us())?)
    }

    /// What came of a call; none: nothing yet.
    pub(crate) fn ended(&mut self, id: CallId) -> Option<Result<Reply>> {
        loop {
            match self.connection.event()? {
                Event::Done(done, reply) if done == id => {
                    if reply.status.is_ok() {
                        return Some(Ok(reply));
                    }
                    return Some(Err(Error::Status {
                        status: reply.status,
                        result: reply.result,
                    }));
                }
                Event::Lost(_) | Event::Ended(_) => return Some(Err(Error::Lost)),
                _ => {}
            }
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn is_over(&self) -> bool {
        !self.connection.is_up()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.connection.output().is_empty()
    }

    /// Sends what can be sent without waiting, over a stream that does not wait.
    pub(crate) fn send_now(&mut self) {
        while self.has_output() {
            match self.stream.write(self.connection.output()) {
                Ok(count) => self.connection.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.connection.close(),
            }
        }
    }

    /// Sends what is to be sent, and takes what comes.
    fn go_on(&mut self) {
        while !self.connection.output().is_empty() {
            match self.stream.write(self.connection.output()) {
                Ok(count) => self.connection.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.connection.close(),
            }
        }
        self.take();
    }

    /// Takes what comes. It waits for that, if the stream does.
    pub(crate) fn take(&mut self) {
        match self.stream.read(&mut self.buffer) {
            Ok(0) => self.connection.close(),
            Ok(count) => {
                let now_us = self.now_us();
                self.connection.receive(&self.buffer[..count], now_us);
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => self.connection.close(),
            },
        }
        let now_us = self.now_us();
        self.connection.tick(now_us);
    }
}
