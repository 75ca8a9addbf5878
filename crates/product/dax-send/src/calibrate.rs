// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Up to how many bytes a copy costs less than a zero-copy send, on this machine: measured once for a process, in
//! some milliseconds.
//!
//! Over `lo`, to a peer whose window is closed: what is sent stays in the sender's queue, so that nothing is
//! delivered and the kernel does not copy after all. The connection is then aborted, which frees the bytes and
//! brings the completions; that belongs to the cost of both ways. Transmission costs both the same and is left out.
//!
//! What is compared is a head with its body: in one copied send, or a copied one and a zero-copy one. Each such pair
//! is a buffer of its own (`MSG_EOR`), as it is where the one before has left.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use memmap2::{Advice, MmapMut};
use nix::time::{ClockId, clock_gettime};

use crate::sys::{self, Piece};

/// Sizes that are tried; the first and the last are the bounds of the result.
const SIZES: [usize; 4] = [2048, 4096, 6144, 8192];
/// Where it cannot be measured: no `lo`, or too little memory may be pinned.
const OTHERWISE: usize = 4096;
/// Sends of a trial: together they fit the send buffer that every user may have (`net.core.wmem_max`).
const SENDS: usize = 16;
/// Trials of each size and way; the quickest counts, for others may disturb the rest.
const TRIALS: usize = 5;
/// What the peer's kernel takes; twice that, with the kernel's own needs. Of less, segments would be small.
const RECEIVE_BYTES: i32 = 64 << 10;
/// Closes the window of such a peer.
const FILL_BYTES: usize = 160 << 10;
const SEND_BYTES: i32 = 256 << 10;
/// As heads of HTTP are long.
const HEAD_BYTES: usize = 200;

/// The result for this process.
pub fn copy_bytes_max() -> usize {
    static MEASURED: OnceLock<usize> = OnceLock::new();
    *MEASURED.get_or_init(|| measure().unwrap_or(OTHERWISE))
}

/// The largest size up to which copies cost no more.
fn measure() -> Result<usize> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let receive = (libc::SOL_SOCKET, libc::SO_RCVBUF);
    sys::set_option(listener.as_fd(), receive.0, receive.1, RECEIVE_BYTES)?;
    let length_bytes = FILL_BYTES.max(SENDS * SIZES[SIZES.len() - 1]);
    let memory = MmapMut::map_anon(length_bytes)?;
    memory.advise(Advice::PopulateWrite)?;
    let mut best = SIZES[0];
    for size in SIZES {
        let (mut copied, mut pinned) = (Duration::MAX, Duration::MAX);
        for _ in 0..TRIALS {
            copied = copied.min(trial(&listener, &memory, size, false)?);
            pinned = pinned.min(trial(&listener, &memory, size, true)?);
        }
        if copied > pinned {
            break;
        }
        best = size;
    }
    Ok(best)
}

/// Processor time of some sends of a size, and of what follows them.
fn trial(
    listener: &TcpListener,
    memory: &MmapMut,
    size: usize,
    zero_copy: bool,
) -> Result<Duration> {
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (_peer, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let socket = stream.as_fd();
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BYTES)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
    let fill = Piece::of(&memory[..FILL_BYTES]);
    whole(sys::send(socket, &[fill], false, false)?, FILL_BYTES)?;
    let mut space = sys::completion_space();
    cool(&memory[..SENDS * size]);
    let begin = time()?;
    for number in 0..SENDS {
        let head = Piece::of(&memory[..HEAD_BYTES]);
        let body = Piece::of(&memory[number * size..(number + 1) * size]);
        if zero_copy {
            whole(sys::send(socket, &[head], false, true)?, HEAD_BYTES)?;
            let flags = libc::MSG_ZEROCOPY | libc::MSG_EOR;
            whole(sys::send_with(socket, &[body], flags)?, size)?;
        } else {
            let sent = sys::send_with(socket, &[head, body], libc::MSG_EOR)?;
            whole(sent, HEAD_BYTES + size)?;
        }
    }
    sys::abort(socket)?;
    let mut done = 0;
    while zero_copy && done < SENDS {
        // An abort brings all completions before it returns. The pages are ours until then, and stay in any
        // case: the memory is never written to.
        let Some(completion) = sys::completion(socket, &mut space)? else {
            return Err(ErrorKind::WouldBlock.into());
        };
        if completion.copied {
            return Err(Error::other("what was to wait has been delivered"));
        }
        done += completion.last.wrapping_sub(completion.first) as usize + 1;
    }
    Ok(time()?.saturating_sub(begin))
}

/// A file's bytes are rarely in the processor's caches when they are sent: a copy has to wait for them.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "others have no such instruction")
)]
fn cool(memory: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in memory.chunks(64) {
        // SAFETY: the address is mapped, and every x86-64 processor has the instruction.
        unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) };
    }
}

/// A short send would be measured for a whole one.
fn whole(sent: usize, wanted: usize) -> Result<()> {
    if sent == wanted {
        Ok(())
    } else {
        Err(Error::from(ErrorKind::WriteZero))
    }
}

/// Of this thread alone.
fn time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_measured_here_within_its_bounds_and_quickly() {
        let begin = std::time::Instant::now();
        let bytes = measure().expect("lo, and some pinned memory");
        println!("{bytes} bytes, {:?}", begin.elapsed());
        assert!(
            (SIZES[0]..=SIZES[SIZES.len() - 1]).contains(&bytes),
            "{bytes}"
        );
        // Quickly: so many sends in all, before the first answer. How long they take is the machine's.
        const { assert!(SIZES.len() * TRIALS * 2 * SENDS <= 1000) };
        if begin.elapsed() > erb_steady::patient(Duration::from_secs(30)) {
            erb_steady::out_of_patience(format_args!("measured after {:?}", begin.elapsed()));
        }
        assert_eq!(copy_bytes_max(), copy_bytes_max());
    }
}
