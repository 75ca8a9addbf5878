// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets the way the checks need them: deadlines, chosen source, RST on close, TCP_INFO.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::resp;

/// Read size; a 64 kB value with its header in two.
const READ_BYTES: usize = 64 * 1024;
/// Granularity at which a blocked read or write looks at its deadline.
const POLL: Duration = Duration::from_millis(500);

/// A `host:port` or `[v6]:port` as one address.
///
/// # Errors
/// If it cannot be parsed or resolved.
pub fn resolve(addr: &str) -> Result<SocketAddr> {
    addr.to_socket_addrs()
        .with_context(|| format!("{addr:?} is no address: write HOST:PORT or [IPV6]:PORT"))?
        .next()
        .ok_or_else(|| anyhow!("{addr:?} resolves to nothing"))
}

/// Lets this process have so many files open.
///
/// # Errors
/// If neither the limit nor the privilege to raise it allows that.
pub fn raise_file_limit(files: u64) -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a local that the call fills in.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(std::io::Error::last_os_error()).context("limit of open files");
    }
    limit.rlim_cur = limit.rlim_cur.max(files);
    limit.rlim_max = limit.rlim_max.max(files);
    // SAFETY: the pointer is to a local that the call only reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).with_context(|| {
            format!("{files} files cannot be open at once: raise the limit (ulimit -n), or be root")
        });
    }
    Ok(())
}

/// Why a connection gave no (further) bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// The peer closed it in order.
    Eof,
    /// RST or another error of the socket.
    Reset(String),
    /// Nothing moved until the deadline.
    Stalled(Duration),
    /// The peer sent what is no RESP.
    Garbage(String),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Eof => write!(f, "the peer closed the connection"),
            Self::Reset(e) => write!(f, "the connection broke: {e}"),
            Self::Stalled(d) => write!(f, "no byte moved for {:.1} s", d.as_secs_f64()),
            Self::Garbage(e) => write!(f, "the peer sent no RESP: {e}"),
        }
    }
}

impl std::error::Error for Broken {}

/// A client connection with a receive buffer and a stall limit.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
    stall: Duration,
}

impl Conn {
    /// Connects with TCP_NODELAY; `stall` bounds every later wait for progress.
    ///
    /// # Errors
    /// If the peer does not answer within `stall`.
    pub fn connect(to: SocketAddr, stall: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&to, stall)
            .with_context(|| format!("cannot connect to {to}: is a Redis listening there?"))?;
        Self::from_stream(stream, stall)
    }

    /// Connects from `source` (any port), or from anywhere if `None`.
    ///
    /// # Errors
    /// If `source` is not an address of this host, no port is free, or the peer is silent.
    pub fn connect_from(to: SocketAddr, source: Option<IpAddr>, stall: Duration) -> Result<Self> {
        let Some(source) = source else {
            return Self::connect(to, stall);
        };
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        // Without this, bind() would pick a port that is free for every destination.
        let on: libc::c_int = 1;
        // SAFETY: the pointer and length describe `on`, which outlives the call.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            );
        }
        socket
            .bind(&SocketAddr::new(source, 0).into())
            .with_context(|| format!("cannot bind to source address {source}"))?;
        socket
            .connect_timeout(&to.into(), stall)
            .with_context(|| format!("cannot connect from {source} to {to}"))?;
        Self::from_stream(socket.into(), stall)
    }

    /// Takes over a connected socket.
    ///
    /// # Errors
    /// If its options cannot be set.
    pub fn from_stream(stream: TcpStream, stall: Duration) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL.min(stall)))?;
        stream.set_write_timeout(Some(POLL.min(stall)))?;
        Ok(Self {
            stream,
            buf: Vec::new(),
            at: 0,
            stall,
        })
    }

    /// The socket itself, for shutdown and options.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`Broken`] if the peer resets or takes nothing for the stall time.
    pub fn send(&mut self, mut bytes: &[u8]) -> std::result::Result<(), Broken> {
        let mut since = Instant::now();
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    since = Instant::now();
                }
                Err(e) => self.wait_or_fail(&e, since)?,
            }
        }
        Ok(())
    }

    fn wait_or_fail(&self, e: &std::io::Error, since: Instant) -> std::result::Result<(), Broken> {
        match e.kind() {
            ErrorKind::Interrupted => Ok(()),
            ErrorKind::WouldBlock if since.elapsed() < self.stall => Ok(()),
            ErrorKind::WouldBlock => Err(Broken::Stalled(since.elapsed())),
            _ => Err(Broken::Reset(e.to_string())),
        }
    }

    /// Bytes that arrived and were not taken yet.
    #[must_use]
    pub fn buffered(&self) -> &[u8] {
        &self.buf[self.at..]
    }

    /// Takes `n` buffered bytes.
    pub fn consume(&mut self, n: usize) {
        self.at += n;
        debug_assert!(self.at <= self.buf.len());
        if self.at == self.buf.len() {
            self.buf.clear();
            self.at = 0;
        }
    }

    /// Waits for more bytes and appends them to the buffer.
    ///
    /// # Errors
    /// [`Broken`] on EOF, reset or stall.
    pub fn fill(&mut self) -> std::result::Result<(), Broken> {
        let since = Instant::now();
        if self.at > 0 {
            self.buf.drain(..self.at);
            self.at = 0;
        }
        let old = self.buf.len();
        self.buf.resize(old + READ_BYTES, 0);
        let got = loop {
            match (&self.stream).read(&mut self.buf[old..]) {
                Ok(0) => break Err(Broken::Eof),
                Ok(n) => break Ok(n),
                Err(e) => {
                    if let Err(broken) = self.wait_or_fail(&e, since) {
                        break Err(broken);
                    }
                }
            }
        };
        self.buf.truncate(old + got.as_ref().map_or(0, |&n| n));
        got.map(|_| ())
    }

    /// Waits until one whole reply is buffered and says its length.
    ///
    /// # Errors
    /// [`Broken`] on EOF, reset, stall or bytes that are no RESP.
    pub fn frame(&mut self) -> std::result::Result<usize, Broken> {
        loop {
            match resp::frame_len(self.buffered()) {
                Ok(Some(n)) => return Ok(n),
                Ok(None) => self.fill()?,
                Err(e) => {
                    let shown = resp::show(self.buffered(), 80);
                    return Err(Broken::Garbage(format!("{e}: {shown}")));
                }
            }
        }
    }

    /// One whole reply, copied out.
    ///
    /// # Errors
    /// As [`Conn::frame`].
    pub fn reply(&mut self) -> std::result::Result<Vec<u8>, Broken> {
        let n = self.frame()?;
        let reply = self.buffered()[..n].to_vec();
        self.consume(n);
        Ok(reply)
    }

    /// What comes up to `mark` and with it, copied out.
    ///
    /// # Errors
    /// [`Broken`] on EOF, reset or stall.
    pub fn until(&mut self, mark: &[u8]) -> std::result::Result<Vec<u8>, Broken> {
        loop {
            let found = self.buffered().windows(mark.len()).position(|w| w == mark);
            if let Some(at) = found {
                let said = self.buffered()[..at + mark.len()].to_vec();
                self.consume(said.len());
                return Ok(said);
            }
            self.fill()?;
        }
    }

    /// Buffers what comes until nothing has for `quiet`; whether the peer has closed.
    pub fn gather(&mut self, quiet: Duration) -> bool {
        let _ = self.stream.set_read_timeout(Some(quiet));
        let mut chunk = [0; 4096];
        let ended = loop {
            match (&self.stream).read(&mut chunk) {
                Ok(0) => break true,
                Ok(n) => self.buf.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break e.kind() != ErrorKind::WouldBlock,
            }
        };
        let _ = self.stream.set_read_timeout(Some(POLL.min(self.stall)));
        ended
    }

    /// Sends one command and returns its reply.
    ///
    /// # Errors
    /// As [`Conn::frame`].
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> std::result::Result<Vec<u8>, Broken> {
        self.send(&resp::command(args))?;
        self.reply()
    }

    /// What else arrives within `wait` (for showing, or for proving that nothing does).
    pub fn rest(&mut self, wait: Duration) -> Vec<u8> {
        let until = Instant::now() + wait;
        let mut out = self.buffered().to_vec();
        self.consume(out.len());
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let _ = self
                .stream
                .set_read_timeout(Some(left.max(Duration::from_millis(1))));
            let mut chunk = [0; 4096];
            match (&self.stream).read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => out.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = self.stream.set_read_timeout(Some(POLL.min(self.stall)));
        out
    }

    /// Makes the next close send RST instead of FIN.
    ///
    /// # Errors
    /// If the option cannot be set.
    pub fn reset_on_close(&self) -> Result<()> {
        Ok(SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?)
    }

    /// Segments that this end has sent again since the connection was made (`tcpi_total_retrans`).
    ///
    /// # Errors
    /// If the kernel refuses TCP_INFO.
    pub fn retransmissions(&self) -> Result<u32> {
        // SAFETY: tcp_info is plain integers, for which all zeroes is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&info) as libc::socklen_t;
        // SAFETY: pointer and length describe `info`; the kernel writes at most `len` bytes.
        let rc = unsafe {
            libc::getsockopt(
                self.stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        if rc != 0 {
            bail!("TCP_INFO: {}", std::io::Error::last_os_error());
        }
        Ok(info.tcpi_total_retrans)
    }

    /// Lets the connection vanish as if the client's machine had died: no FIN, no RST
    /// (TCP_REPAIR, needs CAP_NET_ADMIN).
    ///
    /// # Errors
    /// Without the privilege.
    pub fn vanish(self) -> Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: the pointer and length describe `on`, which outlives the call.
        let rc = unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_REPAIR,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if rc != 0 {
            let e = std::io::Error::last_os_error();
            bail!("TCP_REPAIR (needed to vanish without FIN or RST, as root): {e}");
        }
        Ok(())
    }
}
