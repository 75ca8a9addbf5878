// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ordinary client: TCP sockets, one thread, one request in flight on each connection, every
//! byte of every reply compared. It does little else, so that it asks as fast as one core can.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::interrupt::Interrupt;
use crate::work::{Places, Work};

/// Nothing at all came for so long: the connections are lost.
const STALL_MS: u16 = 5000;
/// Connecting to a server on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that one wait reports; more are reported by the next one.
const EVENTS: usize = 64;
/// More than any reply: so a read shows that nothing came behind it.
const READ_BYTES: usize = 4096;
/// Latencies are kept to three digits, in nanoseconds.
const LATENCY_DIGITS: u8 = 3;

/// Connections to one server.
pub struct Load {
    epoll: Epoll,
    work: Work,
    request_places: Places,
    reply_places: Places,
    conns: Vec<Conn>,
}

struct Conn {
    stream: TcpStream,
    /// The outstanding request and what must be answered.
    request: Vec<u8>,
    reply: Vec<u8>,
    got: usize,
    random: u32,
    sent: Instant,
}

impl Load {
    /// Connects; call it in the clients' namespace.
    pub fn connect(address: SocketAddr, conns: u32, work: Work) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::empty()).context("no epoll")?;
        let (request, request_places) = work.request_template();
        let (reply, reply_places) = work.reply_template();
        let mut load = Self {
            epoll,
            work,
            request_places,
            reply_places,
            conns: Vec::new(),
        };
        for index in 0..conns {
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
                .with_context(|| format!("connection {index} to {address} failed"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, index.into());
            load.epoll.add(&stream, event).context("epoll refused")?;
            load.conns.push(Conn {
                stream,
                request: request.clone(),
                reply: reply.clone(),
                got: 0,
                random: (index + 1).wrapping_mul(0x9e37_79b9) | 1,
                sent: Instant::now(),
            });
        }
        Ok(load)
    }

    /// Asks on all connections for `time`, then waits for the last replies. The latencies, as many
    /// as requests; an error if a reply is not what the keys hold.
    pub fn drive(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Histogram<u64>> {
        let mut latencies = Histogram::new(LATENCY_DIGITS)?;
        let end = Instant::now() + time;
        for index in 0..self.conns.len() {
            self.ask(index)?;
        }
        let mut in_flight = self.conns.len();
        let mut events = [EpollEvent::empty(); EVENTS];
        while in_flight > 0 {
            interrupt.check()?;
            let ready = match self.epoll.wait(&mut events, EpollTimeout::from(STALL_MS)) {
                Err(nix::errno::Errno::EINTR) => continue,
                ready => ready.context("epoll failed")?,
            };
            ensure!(
                ready > 0,
                "{in_flight} connections got no reply for {} s",
                STALL_MS / 1000
            );
            for event in &events[..ready] {
                let index = event.data() as usize;
                if !self.hear(index)? {
                    continue;
                }
                let now = Instant::now();
                let latency = now - self.conns[index].sent;
                latencies.record(u64::try_from(latency.as_nanos())?)?;
                if now < end {
                    self.ask(index)?;
                } else {
                    in_flight -= 1;
                }
            }
        }
        Ok(latencies)
    }

    /// Sends the next request of a connection.
    fn ask(&mut self, index: usize) -> Result<()> {
        let conn = &mut self.conns[index];
        for place in 0..self.request_places.count {
            let digits = digits(draw(&mut conn.random, self.work.keys));
            put(&mut conn.request, self.request_places, place, digits);
            if self.work.batch > 1 {
                put(&mut conn.reply, self.reply_places, place, digits);
                continue;
            }
            for copy in 0..self.reply_places.count {
                put(&mut conn.reply, self.reply_places, copy, digits);
            }
        }
        conn.got = 0;
        conn.sent = Instant::now();
        let sent = conn.stream.write(&conn.request).context("cannot send")?;
        ensure!(
            sent == conn.request.len(),
            "a request did not fit into an empty socket buffer"
        );
        Ok(())
    }

    /// Reads what has come; whether the reply is complete.
    fn hear(&mut self, index: usize) -> Result<bool> {
        let conn = &mut self.conns[index];
        let mut bytes = [0; READ_BYTES];
        let count = match conn.stream.read(&mut bytes) {
            Ok(0) => bail!("the server closed connection {index}"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            count => count.with_context(|| format!("connection {index} broke"))?,
        };
        let wanted = conn.reply.get(conn.got..conn.got + count);
        ensure!(
            wanted == Some(&bytes[..count]),
            "a wrong reply on connection {index}: to {:?} came {:?}",
            String::from_utf8_lossy(&conn.request),
            String::from_utf8_lossy(&bytes[..count])
        );
        conn.got += count;
        Ok(conn.got == conn.reply.len())
    }
}

fn put(bytes: &mut [u8], places: Places, place: u32, digits: [u8; 8]) {
    let at = (places.first + place * places.step) as usize;
    bytes[at..at + 8].copy_from_slice(&digits);
}

/// A number below `below`, uniform (xorshift, as the generator in XDP).
pub fn draw(random: &mut u32, below: u32) -> u32 {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    ((u64::from(*random) * u64::from(below)) >> 32) as u32
}

/// The last eight digits of a key.
fn digits(mut number: u32) -> [u8; 8] {
    let mut text = [b'0'; 8];
    for digit in text.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::args::{Op, WorkArgs};
    use crate::work::key;

    #[test]
    fn digits_are_those_of_the_key() {
        for number in [0, 7, 42, 99_999_999] {
            assert_eq!(&digits(number)[..], &key(number).as_bytes()[8..]);
        }
    }

    #[test]
    fn draws_are_below_and_differ() {
        let mut random = 1;
        let drawn: Vec<u32> = (0..100).map(|_| draw(&mut random, 10)).collect();
        assert!(drawn.iter().all(|&number| number < 10));
        assert!((0..10).all(|number| drawn.contains(&number)));
    }

    /// GET of the only key.
    fn one_key() -> Result<Work> {
        Work::of(&WorkArgs {
            op: Op::Get,
            keys: Some(1),
            value_size: None,
            batch: None,
            fields: None,
        })
    }

    /// A server with one key that answers each read by these bytes.
    fn drive_against(reply: Vec<u8>) -> Result<Histogram<u64>> {
        let work = one_key()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 100];
            while stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                if stream.write_all(&reply).is_err() {
                    break;
                }
            }
        });
        let mut load = Load::connect(address, 1, work)?;
        load.drive(Duration::from_millis(50), &Interrupt::watch()?)
    }

    #[test]
    fn right_replies_are_counted_and_wrong_ones_are_errors() {
        let right = one_key().unwrap().reply(&[0]);
        assert!(drive_against(right.clone()).unwrap().len() > 1);
        let mut other = right.clone();
        other[100] = b'y';
        let error = drive_against(other).unwrap_err().to_string();
        assert!(error.contains("a wrong reply"), "{error}");
        let more = [right, b"+".to_vec()].concat();
        assert!(drive_against(more).is_err(), "a byte too many");
        assert!(drive_against(b"$-1\r\n".to_vec()).is_err());
    }
}
