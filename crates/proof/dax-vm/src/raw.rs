// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zero-copy sends by hand, without what dax-send takes care of.

use std::fs::File;
use std::io::{Error, IoSliceMut, Result};
use std::mem;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::world::within;

/// linux/errqueue.h `SO_EE_ORIGIN_ZEROCOPY`, `SO_EE_CODE_ZEROCOPY_COPIED`.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Numbers of sends that are done, both ends included, and whether the kernel copied.
pub type Done = (u32, u32, bool);

/// A mapping of a whole file.
pub fn map(path: &Path) -> Result<MmapRaw> {
    MmapOptions::new().map_raw_read_only(&File::open(path)?)
}

/// Lets the socket send zero-copy.
pub fn enable(stream: &TcpStream) -> Result<()> {
    let value: i32 = 1;
    // SAFETY: the value lives through the call and has the length that is told.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

/// One zero-copy send of a part of the mapping, without waiting; returns the bytes that were taken.
pub fn send(stream: &TcpStream, mapping: &MmapRaw, at: usize, bytes: usize) -> Result<usize> {
    assert!(at + bytes <= mapping.len(), "the part is mapped");
    let address = mapping.as_ptr().wrapping_add(at).cast();
    let flags = libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the part is mapped now. That it may be unmapped before the completion is what is shown; the
    // kernel holds the pages.
    let sent = unsafe { libc::send(stream.as_raw_fd(), address, bytes, flags) };
    usize::try_from(sent).map_err(|_| Error::last_os_error())
}

/// All completions that wait.
pub fn completions(stream: &TcpStream) -> Result<Vec<Done>> {
    let mut all = Vec::new();
    loop {
        let mut space = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
        let mut nothing: [IoSliceMut<'_>; 0] = [];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let told = recvmsg::<()>(stream.as_raw_fd(), &mut nothing, Some(&mut space), flags);
        let told = match told {
            Ok(told) => told,
            Err(nix::errno::Errno::EAGAIN) => return Ok(all),
            Err(error) => return Err(error.into()),
        };
        for message in told.cmsgs()? {
            let ControlMessageOwned::Ipv4RecvErr(error, _) = message else {
                continue;
            };
            if error.ee_origin == ORIGIN_ZEROCOPY {
                let copied = error.ee_code & CODE_COPIED != 0;
                all.push((error.ee_info, error.ee_data, copied));
            }
        }
    }
}

/// Completions until there are so many sends among them, or time is up.
pub fn wait(stream: &TcpStream, sends: u32, patience: Duration) -> Result<Vec<Done>> {
    let mut all = Vec::new();
    let mut failed = None;
    within(patience, || {
        match completions(stream) {
            Ok(more) => all.extend(more),
            Err(error) => failed = Some(error),
        }
        failed.is_some() || count(&all) >= sends
    });
    failed.map_or(Ok(all), Err)
}

/// Sends among completions.
pub fn count(done: &[Done]) -> u32 {
    done.iter()
        .map(|(first, last, _)| last.wrapping_sub(*first) + 1)
        .sum()
}

/// Ends the connection and keeps its descriptor.
pub fn abort(stream: &TcpStream) -> Result<()> {
    // SAFETY: a sockaddr of zeros is one of AF_UNSPEC, and lives through the call.
    let done = unsafe {
        let address: libc::sockaddr = mem::zeroed();
        let length = mem::size_of_val(&address) as libc::socklen_t;
        libc::connect(stream.as_raw_fd(), &raw const address, length)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

/// How long something takes, done by a thread of its own; none: longer than `patience`, and it goes on.
pub struct Timed(std::sync::mpsc::Receiver<(Duration, Result<()>)>);

impl Timed {
    /// Begins.
    pub fn begin(what: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let begin = Instant::now();
            let result = what();
            // Nobody listens any more if it took too long.
            let _ = told.send((begin.elapsed(), result));
        });
        Self(heard)
    }

    /// Waits for it.
    pub fn wait(&self, patience: Duration) -> Result<Option<Duration>> {
        match self.0.recv_timeout(patience) {
            Ok((took, result)) => result.map(|()| Some(took)),
            Err(_) => Ok(None),
        }
    }
}
