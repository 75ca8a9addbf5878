// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Raw Ethernet frames in batches: the AF_PACKET sockets of the middle box.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

/// Frames per system call.
pub const BATCH: usize = 64;
/// Longest frame: MTU 1500, Ethernet header and one VLAN tag fit with room to spare; longer ones
/// mean an offload is on that should be off.
pub const FRAME_BYTES_MAX: usize = 2048;
/// Room before each frame, into which a VLAN tag is put back.
const TAG_BYTES: usize = 4;
/// Bytes of the two hardware addresses, behind which the tag goes.
const ADDRESS_BYTES: usize = 12;
/// Room for one control message (struct tpacket_auxdata is 20 bytes, the header 16).
const CONTROL_BYTES: usize = 64;
/// Receive buffer: 10,000s of full frames (the kernel counts about 2-5 kB for each), so that a
/// burst of every connection fits while the forwarder waits for a processor.
const RECEIVE_BUFFER_BYTES: libc::c_int = 256 << 20;
/// Send buffer; frames leave at once, so this is only what one batch may hold.
const SEND_BUFFER_BYTES: libc::c_int = 16 << 20;

/// A raw socket on one device, in both directions.
pub struct PacketSocket {
    fd: OwnedFd,
}

/// Frames received by one call, valid until the next.
pub struct Batch {
    bytes: Box<[[u8; TAG_BYTES + FRAME_BYTES_MAX]]>,
    control: Box<[[u64; CONTROL_BYTES / 8]]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Start and end of each frame in its buffer; empty if it is to be dropped.
    frames: Vec<(usize, usize)>,
    /// Frames of this batch that were longer than the buffer.
    pub oversized: u64,
}

impl PacketSocket {
    /// Opens `device` of the calling thread's namespace, promiscuous, without its own output.
    pub fn open(device: &str) -> Result<Self> {
        Self::open_index(device).with_context(|| format!("cannot open a raw socket on {device}"))
    }

    fn open_index(device: &str) -> Result<Self> {
        let index = i32::try_from(if_nametoindex(device)?)?;
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0: nothing is received before bind, so no frame of another device.
        // SAFETY: plain integers; the result is checked.
        let fd = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self { fd };
        socket.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)?;
        socket.option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)?;
        socket.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        // VLAN tags come beside the frame.
        socket.option(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        // Straight to the driver: a full queue is then told to us, and we try again.
        socket.option(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        socket.bind(index)?;
        socket.promiscuous(index)?;
        Ok(socket)
    }

    fn bind(&self, index: i32) -> Result<()> {
        // SAFETY: sockaddr_ll is plain integers; all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let bytes = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is a live sockaddr_ll of the size given.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), bytes) };
        Errno::result(result).context("bind").map(drop)
    }

    fn promiscuous(&self, index: i32) -> Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request)
    }

    fn option<T>(&self, level: libc::c_int, name: libc::c_int, value: T) -> Result<()> {
        let bytes = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the value is live and of the size given.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                bytes,
            )
        };
        Errno::result(result)
            .with_context(|| format!("setsockopt {level}/{name}"))
            .map(drop)
    }

    /// Frames that the kernel dropped since the last call because the buffer was full.
    pub fn missed(&self) -> Result<u64> {
        // SAFETY: tpacket_stats is two integers; all zeroes is a valid value.
        let mut stats: libc::tpacket_stats = unsafe { mem::zeroed() };
        let mut bytes = mem::size_of_val(&stats) as libc::socklen_t;
        // SAFETY: the value is live and of the size given; reading sets the counts to zero.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut bytes,
            )
        };
        Errno::result(result).context("getsockopt PACKET_STATISTICS")?;
        Ok(stats.tp_drops.into())
    }

    /// Sends `frames` from `first` on in one call; the number sent, or why the first failed.
    fn send_some(&self, frames: &[&[u8]]) -> io::Result<usize> {
        let count = frames.len().min(BATCH);
        let mut vectors = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        // SAFETY: mmsghdr is integers and pointers; all zeroes is a valid value.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for index in 0..count {
            vectors[index].iov_base = frames[index].as_ptr().cast_mut().cast();
            vectors[index].iov_len = frames[index].len();
            headers[index].msg_hdr.msg_iov = &raw mut vectors[index];
            headers[index].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: `count` headers, each with one vector over a live frame, which is only read.
        let sent =
            unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count as u32, 0) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(sent as usize)
        }
    }

    /// Sends all frames, in order; returns how many the device refused for good.
    ///
    /// A full queue is no loss: it is tried again until `tries` ran out, with a pause in between
    /// that lets the receiver's side run.
    pub fn send(&self, frames: &[&[u8]], tries: u32, pause: impl Fn()) -> u64 {
        let mut first = 0;
        let mut left = tries;
        let mut refused = 0;
        while first < frames.len() {
            match self.send_some(&frames[first..]) {
                Ok(sent) => {
                    first += sent;
                    left = tries;
                }
                Err(error) if is_full(&error) && left > 0 => {
                    left -= 1;
                    pause();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    refused += 1;
                    first += 1;
                }
            }
        }
        refused
    }

    /// Receives up to [`BATCH`] frames; 0 if none is there.
    pub fn receive(&self, batch: &mut Batch) -> Result<usize> {
        batch.prepare();
        // SAFETY: the batch holds BATCH headers with vectors and control room of its own.
        let received = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                batch.headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        match Errno::result(received) {
            Ok(received) => {
                batch.finish(received as usize);
                Ok(received as usize)
            }
            // ENETDOWN is told once when the device goes down; there is nothing to receive.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => {
                batch.finish(0);
                Ok(0)
            }
            Err(error) => Err(error).context("recvmmsg"),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_full(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::ENOBUFS, libc::EAGAIN, libc::EBUSY]
        .iter()
        .any(|full| code == Some(*full))
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        // SAFETY: mmsghdr is integers and pointers; all zeroes is a valid value.
        let header: libc::mmsghdr = unsafe { mem::zeroed() };
        let vector = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            bytes: vec![[0; TAG_BYTES + FRAME_BYTES_MAX]; BATCH].into_boxed_slice(),
            control: vec![[0; CONTROL_BYTES / 8]; BATCH].into_boxed_slice(),
            vectors: vec![vector; BATCH].into_boxed_slice(),
            headers: vec![header; BATCH].into_boxed_slice(),
            frames: Vec::with_capacity(BATCH),
            oversized: 0,
        }
    }

    /// The frames of the last [`PacketSocket::receive`].
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames
            .iter()
            .zip(self.bytes.iter())
            .filter(|((start, end), _)| start < end)
            .map(|((start, end), bytes)| &bytes[*start..*end])
    }

    /// Points every header at its buffers (the kernel changes lengths).
    fn prepare(&mut self) {
        for index in 0..BATCH {
            self.vectors[index].iov_base = self.bytes[index][TAG_BYTES..].as_mut_ptr().cast();
            self.vectors[index].iov_len = FRAME_BYTES_MAX;
            let header = &mut self.headers[index].msg_hdr;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.control[index].as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES;
            header.msg_flags = 0;
        }
    }

    /// Notes where the frames are, with their VLAN tags put back.
    fn finish(&mut self, received: usize) {
        self.frames.clear();
        self.oversized = 0;
        for index in 0..received {
            let header = &self.headers[index];
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                self.oversized += 1;
                self.frames.push((0, 0));
                continue;
            }
            let end = TAG_BYTES + header.msg_len as usize;
            let start = match vlan_tag(&header.msg_hdr) {
                Some(tag) if end >= TAG_BYTES + ADDRESS_BYTES => {
                    let bytes = &mut self.bytes[index];
                    bytes.copy_within(TAG_BYTES..TAG_BYTES + ADDRESS_BYTES, 0);
                    bytes[ADDRESS_BYTES..ADDRESS_BYTES + TAG_BYTES].copy_from_slice(&tag);
                    0
                }
                _ => TAG_BYTES,
            };
            self.frames.push((start, end));
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// The VLAN tag that the kernel took out of a frame, as it was on the wire.
fn vlan_tag(header: &libc::msghdr) -> Option<[u8; TAG_BYTES]> {
    // SAFETY: the header's control room was filled by recvmmsg and is live.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() };
    while let Some(current) = message {
        if current.cmsg_level == libc::SOL_PACKET && current.cmsg_type == libc::PACKET_AUXDATA {
            // SAFETY: the kernel puts a struct tpacket_auxdata behind this header; it may lie
            // unaligned.
            let data = unsafe {
                libc::CMSG_DATA(current)
                    .cast::<libc::tpacket_auxdata>()
                    .read_unaligned()
            };
            return tag_of(&data);
        }
        // SAFETY: `current` is one of this header's control messages.
        message = unsafe { libc::CMSG_NXTHDR(header, current).as_ref() };
    }
    None
}

fn tag_of(data: &libc::tpacket_auxdata) -> Option<[u8; TAG_BYTES]> {
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let with_protocol = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if with_protocol {
        data.tp_vlan_tpid
    } else {
        libc::ETH_P_8021Q as u16
    };
    let [p0, p1] = protocol.to_be_bytes();
    let [t0, t1] = data.tp_vlan_tci.to_be_bytes();
    Some([p0, p1, t0, t1])
}
