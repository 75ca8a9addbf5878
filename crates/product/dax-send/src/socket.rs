// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection asks of the kernel, and the socket that does it.

use std::io::Result;
use std::net::TcpStream;
use std::os::fd::AsFd;

use crate::ledger::Completion;
use crate::mapped::MappedFile;
use crate::sys::{self, Piece};

/// The kernel's side of a connection; tests have another one.
pub trait Wire {
    /// Whether zero-copy sends are possible; asked once for each trial.
    fn enable(&mut self) -> Result<()>;
    /// Sends what fits without waiting. Zero-copy pieces must stay as they are until their completion.
    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> Result<usize>;
    /// Sends from the page cache; 0: the file ends.
    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> Result<usize>;
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
}

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            space: sys::completion_space(),
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

    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> Result<usize> {
        sys::send(self.stream.as_fd(), pieces, zero_copy, more)
    }

    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> Result<usize> {
        let offset = file.file_offset(at);
        sys::sendfile(self.stream.as_fd(), file.file(), offset, length_bytes)
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
