// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls, as this crate needs them. No state.

use std::ffi::c_int;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::ledger::Completion;

/// Pieces of one call; the kernel would take 1,024 (`UIO_MAXIOV`), more than a call gains by.
pub const PIECES_MAX: usize = 64;
/// linux/errqueue.h `SO_EE_ORIGIN_ZEROCOPY`.
const ORIGIN_ZEROCOPY: u8 = 5;
/// linux/errqueue.h `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;
/// linux/stat.h `STATX_ATTR_DAX`.
const ATTRIBUTE_DAX: u64 = 0x0020_0000;
/// linux/capability.h `CAP_IPC_LOCK`.
const CAP_IPC_LOCK: u32 = 14;

/// Memory to be sent. An address and not a slice: somebody else may write to a mapped file meanwhile.
/// It is an `iovec` of the kernel's, so that a call gets its pieces as they are.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    /// First byte.
    pub address: *const u8,
    /// Bytes.
    pub length_bytes: usize,
}

const _: () = assert!(
    mem::size_of::<Piece>() == mem::size_of::<libc::iovec>()
        && mem::offset_of!(Piece, address) == mem::offset_of!(libc::iovec, iov_base)
        && mem::offset_of!(Piece, length_bytes) == mem::offset_of!(libc::iovec, iov_len)
);

impl Piece {
    /// Of memory that nobody changes.
    pub const fn of(bytes: &[u8]) -> Self {
        Self {
            address: bytes.as_ptr(),
            length_bytes: bytes.len(),
        }
    }
}

/// Sends what fits without waiting; `more`: further bytes follow at once.
pub fn send(
    socket: BorrowedFd<'_>,
    pieces: &[Piece],
    zero_copy: bool,
    more: bool,
) -> Result<usize> {
    let mut flags = 0;
    if zero_copy {
        flags |= libc::MSG_ZEROCOPY;
    }
    if more {
        flags |= libc::MSG_MORE;
    }
    send_with(socket, pieces, flags)
}

/// The same with any flags of sendmsg(2). A single piece goes by send(2): the kernel reads no message and no vector
/// then, a tenth of what 4 KB cost.
pub fn send_with(socket: BorrowedFd<'_>, pieces: &[Piece], flags: c_int) -> Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let socket = socket.as_raw_fd();
    let sent = if let [piece] = pieces {
        let (address, length) = (piece.address.cast(), piece.length_bytes);
        // SAFETY: as below, without a message.
        unsafe { libc::send(socket, address, length, flags) }
    } else {
        with_message(pieces, |message| {
            // SAFETY: the message and its vectors live through the call. The kernel only reads what they point at and
            // answers EFAULT where nothing is mapped; the caller keeps zero-copy memory mapped until its completion.
            unsafe { libc::sendmsg(socket, message, flags) }
        })
    };
    usize::try_from(sent).map_err(|_| Error::last_os_error())
}

/// Gives `call` a message of these pieces, as sendmsg(2) wants it; it lives through the call.
pub fn with_message<T>(pieces: &[Piece], call: impl FnOnce(&libc::msghdr) -> T) -> T {
    // SAFETY: a msghdr of zeros is a valid one: no address, no vectors, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // The kernel reads vectors and does not write to them; the assertion above says that they are such.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX);
    call(&message)
}

/// Sends from the page cache what fits; 0 at the end of the file.
pub fn sendfile(
    socket: BorrowedFd<'_>,
    file: &File,
    offset: u64,
    length_bytes: usize,
) -> Result<usize> {
    let mut offset = i64::try_from(offset).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
    let (to, from) = (socket.as_raw_fd(), file.as_raw_fd());
    // SAFETY: both descriptors are open through the call, and the offset is a valid place.
    let sent = unsafe { libc::sendfile(to, from, &raw mut offset, length_bytes) };
    usize::try_from(sent).map_err(|_| Error::last_os_error())
}

/// Takes one completion of zero-copy sends; none: no further one waits. `space` is scratch for the control
/// message, made by [`completion_space`].
pub fn completion(socket: BorrowedFd<'_>, space: &mut [u8]) -> Result<Option<Completion>> {
    loop {
        let mut nothing: [IoSliceMut<'_>; 0] = [];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut nothing, Some(space), flags) {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN) => return Ok(None),
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for control in message.cmsgs()? {
            let (ControlMessageOwned::Ipv4RecvErr(error, _)
            | ControlMessageOwned::Ipv6RecvErr(error, _)) = control
            else {
                continue;
            };
            // Other entries of the queue (ICMP, time stamps) are nobody's here.
            if error.ee_origin == ORIGIN_ZEROCOPY && error.ee_errno == 0 {
                return Ok(Some(Completion {
                    first: error.ee_info,
                    last: error.ee_data,
                    copied: error.ee_code & CODE_COPIED != 0,
                }));
            }
        }
    }
}

/// Room for an extended error with an address of IPv6 behind it.
pub fn completion_space() -> Vec<u8> {
    nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6)
}

/// Ends a TCP connection at once, with RST; queued bytes are given up, and their completions come. The
/// descriptor stays open, so that these can be read (`connect` to `AF_UNSPEC`, tcp_disconnect of Linux).
pub fn abort(socket: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: a sockaddr of zeros is one of AF_UNSPEC.
    let address: libc::sockaddr = unsafe { mem::zeroed() };
    let length = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives through the call and has the length that is told.
    let done = unsafe { libc::connect(socket.as_raw_fd(), &raw const address, length) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

/// Sets an option of a socket that is a number.
pub fn set_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<()> {
    let length = mem::size_of_val(&value) as libc::socklen_t;
    let place = (&raw const value).cast();
    // SAFETY: the value lives through the call and has the length that is told.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, place, length) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

/// Kernel memory charged to the socket beside its data (`SK_MEMINFO_OPTMEM`): each zero-copy send until its
/// completion was read, and filters.
pub fn option_memory_bytes(socket: BorrowedFd<'_>) -> Result<u32> {
    /// linux/sock_diag.h: how many numbers there are, and which one is meant.
    const NUMBERS: usize = 9;
    const OPTION_MEMORY: usize = 6;
    let mut numbers = [0_u32; NUMBERS];
    let mut length = mem::size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: there is room for as many bytes as are told, and the kernel says how many it wrote.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done == 0 {
        Ok(numbers[OPTION_MEMORY])
    } else {
        Err(Error::last_os_error())
    }
}

/// Whether a send would find room: a third of the buffer, by the kernel's rule. A failure is told by the send.
pub fn is_writable(socket: BorrowedFd<'_>) -> bool {
    let mut files = [PollFd::new(socket, PollFlags::POLLOUT)];
    let ready = PollFlags::POLLOUT | PollFlags::POLLHUP;
    poll(&mut files, PollTimeout::ZERO).is_err()
        || files[0]
            .revents()
            .is_some_and(|seen| seen.intersects(ready))
}

/// Bytes that the peer has not acknowledged, whether they were sent or not (`SIOCOUTQ`).
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: SIOCOUTQ (the number of TIOCOUTQ) writes one int, for which there is room.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done != 0 {
        return Err(Error::last_os_error());
    }
    u64::try_from(bytes).map_err(|_| Error::from(ErrorKind::InvalidData))
}

/// Whether reads of the file go to memory without the page cache (`STATX_ATTR_DAX`).
pub fn is_dax(file: &File) -> Result<bool> {
    // SAFETY: a statx of zeros is a valid one.
    let mut facts: libc::statx = unsafe { mem::zeroed() };
    let empty = c"".as_ptr();
    let descriptor = file.as_fd().as_raw_fd();
    // SAFETY: the path is a C string and there is room for the facts.
    let done = unsafe {
        libc::statx(
            descriptor,
            empty,
            libc::AT_EMPTY_PATH,
            libc::STATX_TYPE,
            &raw mut facts,
        )
    };
    if done != 0 {
        return Err(Error::last_os_error());
    }
    Ok(facts.stx_attributes & facts.stx_attributes_mask & ATTRIBUTE_DAX != 0)
}

/// Bytes that this process may pin (`RLIMIT_MEMLOCK`, shared by all processes of the user); none: no limit.
pub fn memlock_bytes() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != libc::RLIM_INFINITY && !has_ipc_lock()).then_some(soft)
}

/// Whether the limit does not hold for us. Unreadable: it holds.
fn has_ipc_lock() -> bool {
    let Ok(status) = fs::read_to_string("/proc/thread-self/status") else {
        return false;
    };
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    // A user namespace of one's own gives capabilities that the kernel does not ask here; ENOBUFS then tells.
    set.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}
