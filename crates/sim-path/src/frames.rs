// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IPv4 frames for tests and fuzzing, and the proof of their sums; worlds use the TCP model's.

/// Ethernet and IPv4 headers in front of TCP's.
pub const TCP_OFF: usize = 34;
/// The client's address.
pub const CLIENT: [u8; 4] = [10, 77, 0, 1];
/// The server's.
pub const SERVER: [u8; 4] = [10, 77, 0, 2];
/// Redis's port.
pub const PORT: u16 = 6379;

/// One TCP segment between the two.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The client's port.
    pub port: u16,
    /// From client to server.
    pub up: bool,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement.
    pub ack: u32,
    /// TCP's flags.
    pub flags: u8,
    /// Options, a multiple of four bytes and at most 40.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The frame with right sums.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (from, to) = if self.up {
            (CLIENT, SERVER)
        } else {
            (SERVER, CLIENT)
        };
        let ports = if self.up {
            [self.port, PORT]
        } else {
            [PORT, self.port]
        };
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let tcp_bytes = 20 + self.options.len() + self.payload.len();
        bytes.extend([0x45, 0]);
        bytes.extend((tcp_bytes as u16 + 20).to_be_bytes());
        bytes.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([from, to].concat());
        bytes.extend(ports.map(u16::to_be_bytes).concat());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        let words = 5 + (self.options.len() / 4) as u8;
        bytes.extend([words << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(self.options);
        bytes.extend(self.payload);
        set_sums(&mut bytes);
        bytes
    }
}

/// Writes the right sums into an IPv4 frame of this module's shape.
pub fn set_sums(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let header = !sum(&frame[14..TCP_OFF]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame[TCP_OFF + 16..TCP_OFF + 18].fill(0);
    let tcp = !tcp_sum(frame);
    frame[TCP_OFF + 16..TCP_OFF + 18].copy_from_slice(&tcp.to_be_bytes());
}

/// Whether both sums of an IPv4 frame are right.
#[must_use]
pub fn sums_right(frame: &[u8]) -> bool {
    sum(&frame[14..TCP_OFF]) == 0xffff && tcp_sum(frame) == 0xffff
}

/// Whether the TCP field holds what a local stack leaves to its device: the pseudo-header's sum only. A
/// right sum may look like it.
#[must_use]
pub fn bare(frame: &[u8]) -> bool {
    let mut pseudo = frame[26..TCP_OFF].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(((total(frame) - TCP_OFF) as u16).to_be_bytes());
    sum(&pseudo).to_be_bytes() == frame[TCP_OFF + 16..TCP_OFF + 18]
}

/// The TCP payload of an IPv4 frame.
#[must_use]
pub fn payload(frame: &[u8]) -> &[u8] {
    let header = usize::from(frame[TCP_OFF + 12] >> 4) * 4;
    &frame[TCP_OFF + header..total(frame)]
}

fn total(frame: &[u8]) -> usize {
    14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))
}

fn tcp_sum(frame: &[u8]) -> u16 {
    let end = total(frame);
    let mut pseudo = frame[26..TCP_OFF].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(((end - TCP_OFF) as u16).to_be_bytes());
    pseudo.extend(&frame[TCP_OFF..end]);
    sum(&pseudo)
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
