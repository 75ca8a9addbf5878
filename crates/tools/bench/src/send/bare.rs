// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least that sends zero-copy: no tickets, no bounds, no deadlines, no choice. What it costs is what this machine
//! allows; what dax-send costs beyond it is its own.

use std::io::{Error, ErrorKind};
use std::mem;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Completions are read once for so many sends, as dax-send does.
const REAP_SENDS: usize = 16;
/// Room for a control message with a `sock_extended_err` and an address.
const CONTROL_WORDS: usize = 16;
/// linux/errqueue.h `SO_EE_ORIGIN_ZEROCOPY`.
const ORIGIN_ZEROCOPY: u8 = 5;
/// linux/errqueue.h `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;
const PATIENCE_MS: u16 = 10_000;

/// Sends these records of memory that nobody changes; returns the bytes that the kernel has not copied, and those
/// that it has. They are counted as if all of a send's were sent.
pub fn send(
    stream: &TcpStream,
    memory: &[u8],
    places: impl Iterator<Item = usize>,
    length: usize,
) -> Result<(u64, u64)> {
    enable(stream)?;
    let (mut sent, mut done) = (0_usize, Done::default());
    for at in places {
        record(stream, &memory[at..at + length], &mut sent, &mut done)?;
        if sent % REAP_SENDS == 0 {
            done.read(stream)?;
        }
    }
    while done.zero_copy + done.copied < sent {
        wait(stream)?;
        done.read(stream)?;
    }
    let bytes = |sends: usize| (sends * length) as u64;
    Ok((bytes(done.zero_copy), bytes(done.copied)))
}

/// One record, in one call as a rule: the socket waits for room.
fn record(stream: &TcpStream, mut rest: &[u8], sent: &mut usize, done: &mut Done) -> Result<()> {
    while !rest.is_empty() {
        let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
        // SAFETY: the memory lives and stays as it is until the last completion was read.
        let count =
            unsafe { libc::send(stream.as_raw_fd(), rest.as_ptr().cast(), rest.len(), flags) };
        let Ok(count) = usize::try_from(count) else {
            let error = Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOBUFS) => {
                    wait(stream)?;
                    done.read(stream)?;
                }
                Some(libc::EINTR) => {}
                _ => return Err(error).context("a zero-copy send"),
            }
            continue;
        };
        *sent += 1;
        rest = &rest[count..];
    }
    Ok(())
}

fn enable(stream: &TcpStream) -> Result<()> {
    socket2::SockRef::from(stream)
        .set_nonblocking(false)
        .context("a socket that waits")?;
    let on: libc::c_int = 1;
    // SAFETY: the value lives through the call and has the length that is told.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    ensure!(result == 0, "SO_ZEROCOPY: {}", Error::last_os_error());
    Ok(())
}

/// Until a completion waits.
fn wait(stream: &TcpStream) -> Result<()> {
    let mut files = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let ready = poll(&mut files, PollTimeout::from(PATIENCE_MS))?;
    ensure!(ready > 0, "no completion within {PATIENCE_MS} ms");
    Ok(())
}

/// Sends that are done.
#[derive(Default)]
struct Done {
    zero_copy: usize,
    copied: usize,
}

impl Done {
    /// Reads all completions that wait.
    fn read(&mut self, stream: &TcpStream) -> Result<()> {
        loop {
            let mut control = [0_u64; CONTROL_WORDS];
            // SAFETY: a msghdr of zeros is a valid one.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = mem::size_of_val(&control);
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: message and control data live through the call.
            if unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) } < 0 {
                let error = Error::last_os_error();
                if error.kind() == ErrorKind::WouldBlock {
                    return Ok(());
                }
                return Err(error).context("completions");
            }
            // SAFETY: the kernel has written the message.
            let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
            ensure!(!header.is_null(), "a completion without a control message");
            // SAFETY: what comes to this queue begins with an extended error; it may be unaligned.
            let told: libc::sock_extended_err =
                unsafe { ptr::read_unaligned(libc::CMSG_DATA(header).cast()) };
            ensure!(
                told.ee_errno == 0 && told.ee_origin == ORIGIN_ZEROCOPY,
                "an error of the network: {}",
                told.ee_errno
            );
            let count = told.ee_data.wrapping_sub(told.ee_info) as usize + 1;
            if told.ee_code & CODE_COPIED == 0 {
                self.zero_copy += count;
            } else {
                self.copied += count;
            }
        }
    }
}
