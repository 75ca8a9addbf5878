// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TCP segment with what of its IP and Ethernet headers matters.

use std::net::SocketAddr;

/// Bits of [`Segment::flags`].
pub mod flags {
    /// The sender has no more data.
    pub const FIN: u16 = 0x01;
    /// Start of a stream.
    pub const SYN: u16 = 0x02;
    /// The connection is void.
    pub const RST: u16 = 0x04;
    /// End of what the sender wrote at once.
    pub const PSH: u16 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u16 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u16 = 0x20;
    /// Echo of a congestion mark.
    pub const ECE: u16 = 0x40;
    /// The congestion window was reduced.
    pub const CWR: u16 = 0x80;
    /// Accurate ECN.
    pub const AE: u16 = 0x100;
    /// All of them.
    pub const ALL: u16 = 0x1ff;
}

/// Ethernet addresses of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Macs {
    /// Sender.
    pub src: [u8; 6],
    /// Receiver.
    pub dst: [u8; 6],
}

/// Up to four SACK blocks, each `(first, end)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); SackBlocks::MAX],
    len: u8,
}

impl SackBlocks {
    /// What fits into 40 bytes of options.
    pub const MAX: usize = 4;

    /// Adds a block at the end; what does not fit is left out.
    pub fn push(&mut self, first: u32, end: u32) {
        if (self.len as usize) < Self::MAX {
            self.blocks[self.len as usize] = (first, end);
            self.len += 1;
        }
    }

    /// The blocks in the order of the option.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..self.len as usize]
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The options of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Window scale (SYN only).
    pub wscale: Option<u8>,
    /// SACK permitted (SYN only).
    pub sack_ok: bool,
    /// TSval and TSecr.
    pub ts: Option<(u32, u32)>,
    /// Selective acknowledgements.
    pub sack: SackBlocks,
    /// Other options as they stand on the wire, kind and length included.
    pub other: Vec<u8>,
}

/// A TCP segment. Addresses are of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sender.
    pub src: SocketAddr,
    /// Receiver.
    pub dst: SocketAddr,
    /// 802.1Q tag control information of the frame, if it is tagged.
    pub vlan: Option<u16>,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: u32,
    /// Acknowledgement number, valid with [`flags::ACK`].
    pub ack: u32,
    /// Bits of [`flags`].
    pub flags: u16,
    /// Window as it stands on the wire: not scaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: Options,
    /// Data.
    pub payload: Vec<u8>,
}

impl Segment {
    /// An empty segment without flags.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Segment {
        Segment {
            src,
            dst,
            vlan: None,
            ecn: 0,
            seq: 0,
            ack: 0,
            flags: 0,
            window: 0,
            urgent: 0,
            options: Options::default(),
            payload: Vec::new(),
        }
    }

    /// Whether all of these bits are set.
    pub fn has(&self, bits: u16) -> bool {
        self.flags & bits == bits
    }

    /// Length in sequence space: SYN and FIN count one each.
    pub fn seq_len(&self) -> u32 {
        let control = u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN));
        self.payload.len() as u32 + control
    }

    /// Sequence number behind the last byte or control bit.
    pub fn end_seq(&self) -> u32 {
        self.seq.wrapping_add(self.seq_len())
    }

    /// Cuts a segment that was handed to the device whole into pieces of at most `size` bytes, as
    /// segmentation offload does: FIN and PSH stay on the last piece, CWR on the first.
    pub fn split(self, size: usize) -> Vec<Segment> {
        if self.payload.len() <= size || size == 0 {
            return vec![self];
        }
        let pieces = self.payload.len().div_ceil(size);
        (0..pieces)
            .map(|i| {
                let from = i * size;
                let to = (from + size).min(self.payload.len());
                let mut flags = self.flags;
                if i + 1 != pieces {
                    flags &= !(flags::FIN | flags::PSH);
                }
                if i != 0 {
                    flags &= !flags::CWR;
                }
                Segment {
                    seq: self.seq.wrapping_add(from as u32),
                    flags,
                    options: self.options.clone(),
                    payload: self.payload[from..to].to_vec(),
                    ..Segment {
                        payload: Vec::new(),
                        options: Options::default(),
                        ..self
                    }
                }
            })
            .collect()
    }
}
