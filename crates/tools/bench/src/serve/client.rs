// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients over one thread: a request in flight on each connection, heads and lengths of all answers checked,
//! and every byte of each connection's first. Further bodies are taken without being copied (`MSG_TRUNC`), so
//! that the client is not what bounds a server.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Events of one look.
const EVENTS: usize = 128;
/// A head, and what comes with it.
const HEAD_BYTES: usize = 4096;
/// A server that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub address: SocketAddr,
    pub size_bytes: usize,
    pub files: u32,
    pub conns: usize,
}

/// Name of a file.
pub fn name(size_bytes: usize, number: u32) -> String {
    format!("{size_bytes}-{number}.bin")
}

/// Its bytes.
pub fn content(size_bytes: usize, number: u32) -> Vec<u8> {
    let word = |at: usize| (at >> 2) as u8 ^ number as u8;
    (0..size_bytes).map(word).collect()
}

/// The connections.
pub struct Clients {
    epoll: Epoll,
    conns: Vec<Conn>,
    requests: Vec<Vec<u8>>,
    contents: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

struct Conn {
    stream: TcpStream,
    /// Which file is asked for.
    file: usize,
    /// What came of the head; empty behind its end.
    head: Vec<u8>,
    /// Bytes of the body that have not come; none: the head is not whole.
    left: Option<usize>,
    /// All of this body is compared.
    compares: bool,
    busy: bool,
}

impl Clients {
    /// Opens them in this thread's network namespace.
    pub fn connect(asked: Asked) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut conns = Vec::new();
        for number in 0..asked.conns {
            let stream = TcpStream::connect(asked.address).context("cannot connect")?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
            conns.push(Conn {
                stream,
                file: number % asked.files as usize,
                head: Vec::with_capacity(HEAD_BYTES),
                left: None,
                compares: true,
                busy: false,
            });
        }
        let request = |number| {
            let name = name(asked.size_bytes, number);
            format!(
                "GET /{name} HTTP/1.1\r\nHost: {}\r\nUser-Agent: erb-bench\r\nAccept: */*\r\n\r\n",
                asked.address
            )
            .into_bytes()
        };
        Ok(Self {
            epoll,
            conns,
            requests: (0..asked.files).map(request).collect(),
            contents: (0..asked.files)
                .map(|number| content(asked.size_bytes, number))
                .collect(),
            scratch: vec![0; 1 << 16],
        })
    }

    /// Asks for so long, and waits for what was asked; how many answers came.
    pub fn run(&mut self, time: Duration) -> Result<u64> {
        let end = Instant::now() + time;
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut answers = 0;
        for index in 0..self.conns.len() {
            self.ask(index)?;
        }
        let mut busy = self.conns.len();
        while busy > 0 {
            let count = match self
                .epoll
                .wait(&mut events, EpollTimeout::try_from(PATIENCE)?)
            {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            ensure!(
                count > 0,
                "{busy} requests were not answered within {PATIENCE:?}"
            );
            let more = Instant::now() < end;
            for event in &events[..count] {
                let index = usize::try_from(event.data())?;
                if !self.hear(index)? {
                    continue;
                }
                answers += 1;
                if more {
                    self.ask(index)?;
                } else {
                    self.conns[index].busy = false;
                    busy -= 1;
                }
            }
        }
        Ok(answers)
    }

    /// A request is small: the socket takes it whole.
    fn ask(&mut self, index: usize) -> Result<()> {
        let conn = &mut self.conns[index];
        conn.file = (conn.file + 1) % self.requests.len();
        conn.busy = true;
        conn.stream
            .write_all(&self.requests[conn.file])
            .context("cannot ask")
    }

    /// Takes what there is; whether the answer is whole.
    fn hear(&mut self, index: usize) -> Result<bool> {
        let conn = &mut self.conns[index];
        ensure!(
            conn.busy,
            "the server said something that nobody asked for, or closed"
        );
        let body = &self.contents[conn.file];
        loop {
            let Some(left) = conn.left else {
                if !head(conn, &mut self.scratch, body)? {
                    return Ok(false);
                }
                continue;
            };
            if left == 0 {
                conn.left = None;
                conn.compares = false;
                return Ok(true);
            }
            let count = if conn.compares {
                let at = body.len() - left;
                let room = left.min(self.scratch.len());
                let Some(count) = taken(conn.stream.read(&mut self.scratch[..room]))? else {
                    return Ok(false);
                };
                ensure!(
                    self.scratch[..count] == body[at..at + count],
                    "the body differs"
                );
                count
            } else {
                let Some(count) = taken(discard(&conn.stream, left))? else {
                    return Ok(false);
                };
                count
            };
            conn.left = Some(left - count);
        }
    }
}

/// Reads a head and what comes with it; whether it is whole.
fn head(conn: &mut Conn, scratch: &mut [u8], body: &[u8]) -> Result<bool> {
    let Some(count) = taken(conn.stream.read(&mut scratch[..HEAD_BYTES]))? else {
        return Ok(false);
    };
    conn.head.extend_from_slice(&scratch[..count]);
    let Some(end) = conn.head.windows(4).position(|four| four == b"\r\n\r\n") else {
        ensure!(conn.head.len() < HEAD_BYTES, "a head without an end");
        return Ok(false);
    };
    let text = std::str::from_utf8(&conn.head[..end]).context("a head that is no text")?;
    ensure!(text.starts_with("HTTP/1.1 200 "), "it answered: {text}");
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.context("no Content-Length")?.parse()?;
    ensure!(
        length == body.len(),
        "a body of {length} bytes instead of {}",
        body.len()
    );
    let with_it = &conn.head[end + 4..];
    ensure!(body.starts_with(with_it), "the body differs");
    conn.left = Some(length - with_it.len());
    conn.head.clear();
    Ok(true)
}

fn taken(read: std::io::Result<usize>) -> Result<Option<usize>> {
    match read {
        Ok(0) => bail!("the server closed"),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).context("the connection broke"),
    }
}

/// tcp(7), `MSG_TRUNC`: the bytes are taken and not written anywhere.
fn discard(stream: &TcpStream, length: usize) -> std::io::Result<usize> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC, TCP writes nothing to the buffer.
    let count = unsafe { libc::recv(stream.as_raw_fd(), ptr::null_mut(), length, flags) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers each request with this body, until the client closes.
    fn server(body: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 1024];
            while stream.read(&mut request).is_ok_and(|count| count > 0) {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream
                    .write_all(head.as_bytes())
                    .and_then(|()| stream.write_all(&body));
            }
        });
        address
    }

    fn run(body: Vec<u8>) -> Result<u64> {
        let asked = Asked {
            address: server(body),
            size_bytes: 300_000,
            files: 1,
            conns: 1,
        };
        Clients::connect(asked)?.run(Duration::from_millis(50))
    }

    #[test]
    fn answers_are_counted_and_wrong_ones_are_errors() {
        assert!(run(content(300_000, 0)).expect("right") > 1);
        let mut wrong = content(300_000, 0);
        wrong[299_999] ^= 1;
        assert!(run(wrong).unwrap_err().to_string().contains("differs"));
        let short = run(content(299_999, 0)).unwrap_err().to_string();
        assert!(short.contains("299999 bytes instead of 300000"), "{short}");
    }
}
