// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection asks of the kernel, and the sockets that do it.

use std::io::{ErrorKind, Result};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::guard::{Guard, Held};
use crate::ledger::Completion;
use crate::mapped::MappedFile;
use crate::ring::RingSocket;
use crate::sys::{self, Piece};

/// The kernel's side of a connection; tests have another one.
pub trait Wire {
    /// Whether zero-copy sends are possible; asked once for each trial.
    fn enable(&mut self) -> Result<()>;
    /// Whether the guard holds the socket, from now on at the latest.
    fn guarded_by(&mut self, guard: &Arc<Guard>) -> bool;
    /// The guard holds it until this process has ended.
    fn stays_guarded(&mut self);
    /// Sends what fits without waiting. Zero-copy pieces must stay as they are until their completion.
    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> Result<usize>;
    /// Sends from the page cache; 0: the file ends.
    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> Result<usize>;
    /// Whether the peer is on this machine, as far as addresses tell.
    fn is_local(&self) -> bool;
    /// Whether the socket takes enough again to be worth a call, as poll(2) says it.
    fn is_writable(&self) -> bool;
    /// The next completion, if one waits.
    fn completion(&mut self) -> Result<Option<Completion>>;
    /// Bytes that the peer has not acknowledged.
    fn unacknowledged_bytes(&self) -> Result<u64>;
    /// Ends the connection; completions can still be read.
    fn abort(&mut self) -> Result<()>;
}

/// A TCP socket.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    space: Vec<u8>,
    held: Option<Held>,
    is_local: bool,
}

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        let ends = (stream.local_addr(), stream.peer_addr());
        let is_local = match ends {
            (Ok(own), Ok(peer)) => {
                let peer = peer.ip().to_canonical();
                peer.is_loopback() || peer == own.ip().to_canonical()
            }
            // Nobody is there any more; else it is no socket of the internet, and its peer is here.
            (Err(error), _) | (_, Err(error)) => error.kind() == ErrorKind::InvalidInput,
        };
        Self {
            stream,
            space: sys::completion_space(),
            held: None,
            is_local,
        }
    }

    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Wire for Socket {
    fn enable(&mut self) -> Result<()> {
        sys::set_option(self.stream.as_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
    }

    fn guarded_by(&mut self, guard: &Arc<Guard>) -> bool {
        if self.held.is_none() {
            self.held = guard.hold_socket(&self.stream);
        }
        self.held.as_ref().is_some_and(|held| held.is_by(guard))
    }

    fn stays_guarded(&mut self) {
        if let Some(held) = self.held.take() {
            held.for_ever();
        }
    }

    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> Result<usize> {
        sys::send(self.stream.as_fd(), pieces, zero_copy, more)
    }

    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> Result<usize> {
        let offset = file.file_offset(at);
        sys::sendfile(self.stream.as_fd(), file.file(), offset, length_bytes)
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn is_writable(&self) -> bool {
        sys::is_writable(self.stream.as_fd())
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        sys::completion(self.stream.as_fd(), &mut self.space)
    }

    fn unacknowledged_bytes(&self) -> Result<u64> {
        sys::unacknowledged_bytes(self.stream.as_fd())
    }

    fn abort(&mut self) -> Result<()> {
        sys::abort(self.stream.as_fd())
    }
}

/// A socket of either kind.
#[derive(Debug)]
pub enum AnySocket {
    /// Completions come to its error queue.
    Plain(Socket),
    /// Completions come to a ring.
    Ring(RingSocket),
}

impl AnySocket {
    pub const fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket.stream(),
            Self::Ring(ring) => ring.socket().stream(),
        }
    }
}

/// Each call goes to the socket that there is.
macro_rules! of_either {
    ($any:expr, $socket:ident => $call:expr) => {
        match $any {
            AnySocket::Plain($socket) => $call,
            AnySocket::Ring($socket) => $call,
        }
    };
}

impl Wire for AnySocket {
    fn enable(&mut self) -> Result<()> {
        of_either!(self, socket => socket.enable())
    }

    fn guarded_by(&mut self, guard: &Arc<Guard>) -> bool {
        of_either!(self, socket => socket.guarded_by(guard))
    }

    fn stays_guarded(&mut self) {
        of_either!(self, socket => socket.stays_guarded())
    }

    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> Result<usize> {
        of_either!(self, socket => socket.send(pieces, zero_copy, more))
    }

    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> Result<usize> {
        of_either!(self, socket => socket.sendfile(file, at, length_bytes))
    }

    fn is_local(&self) -> bool {
        of_either!(self, socket => socket.is_local())
    }

    fn is_writable(&self) -> bool {
        of_either!(self, socket => socket.is_writable())
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        of_either!(self, socket => socket.completion())
    }

    fn unacknowledged_bytes(&self) -> Result<u64> {
        of_either!(self, socket => socket.unacknowledged_bytes())
    }

    fn abort(&mut self) -> Result<()> {
        of_either!(self, socket => socket.abort())
    }
}
