// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard's own process: holds what the sender names, and when the sender has ended lets go in the right order.
//!
//! Invariants:
//! 1. A file is unmapped while the sender lives only if the sender says so, and else behind the last completion
//!    of every socket.
//! 2. One page of a file is mapped. `truncate` asks whether anybody maps the file at all (`mapping_mapped`, in
//!    `dax_layout_busy_page` of Linux), and looks at every page if somebody does.
//! 3. What cannot be held is refused, never half held.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, IoSliceMut, Result, stdin};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};
use nix::unistd::{chdir, setsid};

use crate::guard::{ASK_BYTES, Ask, HELD, REFUSED};
use crate::sys;

/// How often completions are looked for when the sender is gone.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Descriptors that are not inherited on purpose begin here.
const FIRST_FILE: u32 = 3;

/// What is held, by the numbers that the sender has given.
#[derive(Debug, Default)]
struct Holdings {
    files: HashMap<u64, MmapRaw>,
    sockets: HashMap<u64, Watched>,
}

/// A socket of the sender's.
#[derive(Debug)]
struct Watched {
    socket: OwnedFd,
    /// Option memory that is not of completions.
    base_bytes: u32,
}

/// What the process of a [`Guard`](crate::Guard) does: everything until the sender is gone and nothing of it is
/// left. The channel is the standard input.
///
/// Signals to the sender's process group or terminal must not end the guard first: it begins a session of its
/// own and ignores SIGINT, SIGTERM, SIGHUP and SIGQUIT. Whoever kills all processes of a control group kills it too.
///
/// # Errors
/// If the channel is none.
pub fn run_guard() -> Result<()> {
    // It leads a group already if a shell has started it by hand.
    let _ = setsid();
    for name in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        // SAFETY: to ignore a signal runs no code of ours.
        unsafe { signal(name, SigHandler::SigIgn) }?;
    }
    chdir("/")?;
    // SAFETY: nothing in this process has opened a file yet; what the sender let us inherit is not ours.
    unsafe { libc::close_range(FIRST_FILE, u32::MAX, 0) };
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With fewer descriptors less can be held, and the rest is copied.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let channel = stdin().as_fd().try_clone_to_owned()?;
    let mut holdings = Holdings::default();
    while let Some((ask, number, descriptor)) = question(&channel)? {
        let done = match (ask, descriptor) {
            (Ask::Drop, _) => {
                holdings.files.remove(&number);
                holdings.sockets.remove(&number);
                continue;
            }
            (Ask::File, Some(file)) => holdings.map(number, file),
            (Ask::Socket, Some(socket)) => holdings.watch(number, socket),
            // The kernel drops descriptors for which a process has no room.
            (_, None) => Err(Error::from_raw_os_error(libc::EMFILE)),
        };
        let answer = if done.is_ok() { HELD } else { REFUSED };
        // The sender may be gone; then the next question says so.
        let _ = send(channel.as_raw_fd(), &[answer], MsgFlags::MSG_NOSIGNAL);
    }
    let Holdings { files, sockets } = holdings;
    end(sockets.into_values().collect());
    drop(files);
    Ok(())
}

/// The next question; none: the sender has ended.
fn question(channel: &OwnedFd) -> Result<Option<(Ask, u64, Option<OwnedFd>)>> {
    loop {
        let mut bytes = [0; ASK_BYTES];
        let mut space = nix::cmsg_space!([i32; 1]);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let told = recvmsg::<()>(channel.as_raw_fd(), &mut pieces, Some(&mut space), flags);
        let told = match told {
            Ok(told) => told,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(nix::errno::Errno::ECONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let length_bytes = told.bytes;
        let descriptor = told.cmsgs().ok().and_then(|mut all| {
            all.find_map(|message| match message {
                ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
                _ => None,
            })
        });
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        let descriptor = descriptor.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        if length_bytes == 0 {
            return Ok(None);
        }
        let ask = match bytes[0] {
            _ if length_bytes < ASK_BYTES => continue,
            b'F' => Ask::File,
            b'S' => Ask::Socket,
            b'D' => Ask::Drop,
            _ => continue,
        };
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[1..]);
        return Ok(Some((ask, u64::from_ne_bytes(number), descriptor)));
    }
}

impl Holdings {
    fn map(&mut self, number: u64, file: OwnedFd) -> Result<()> {
        // One byte is one page. The mapping holds the file open, with its lease.
        let mapping = MmapOptions::new()
            .len(1)
            .map_raw_read_only(&File::from(file))?;
        self.files.insert(number, mapping);
        Ok(())
    }

    fn watch(&mut self, number: u64, socket: OwnedFd) -> Result<()> {
        let base_bytes = sys::option_memory_bytes(socket.as_fd())?;
        self.sockets.insert(number, Watched { socket, base_bytes });
        Ok(())
    }
}

/// Aborts connections, and returns when the kernel reads no more for any of them.
fn end(mut sockets: Vec<Watched>) {
    for watched in &sockets {
        // An error here means that there is no connection any more.
        let _ = sys::abort(watched.socket.as_fd());
    }
    loop {
        sockets.retain(|watched| !is_free(watched));
        if sockets.is_empty() {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether all zero-copy sends of a socket are completed. The kernel charges each to the socket's option memory
/// until its completion was read (`sock_omalloc` in `msg_zerocopy_realloc`).
fn is_free(watched: &Watched) -> bool {
    let mut space = sys::completion_space();
    let socket = watched.socket.as_fd();
    loop {
        match sys::completion(socket, &mut space) {
            Ok(Some(_)) => {}
            Ok(None) => {
                let left_bytes = sys::option_memory_bytes(socket);
                return left_bytes.is_ok_and(|it| it <= watched.base_bytes);
            }
            Err(_) => return false,
        }
    }
}
