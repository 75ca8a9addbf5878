// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fragments of IP packets, as the server's kernel puts them together before TCP sees them.

use erb_wire::layout;

/// Addresses and number of a packet in pieces.
pub(super) type Key = (Vec<u8>, u32);

/// Fragments of one packet: offset in bytes, content.
pub(super) type Pieces = Vec<(usize, Vec<u8>)>;

/// A fragment.
pub(super) struct Piece<'a> {
    /// The packet to which it belongs.
    pub(super) key: Key,
    /// Where it begins in that.
    pub(super) from: usize,
    /// Its bytes.
    pub(super) content: &'a [u8],
    l3: usize,
    l4: usize,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

impl<'a> Piece<'a> {
    /// The frame as a fragment; `None` if it is none.
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
        let tagged = bytes.len() > 18 && bytes[12..14] == [0x81, 0];
        let l3 = if tagged { 18 } else { 14 };
        match bytes.get(l3)? >> 4 {
            4 => Self::of_v4(bytes, l3),
            6 => Self::of_v6(bytes, l3),
            _ => None,
        }
    }

    fn of_v4(bytes: &'a [u8], l3: usize) -> Option<Self> {
        let word = be16(bytes.get(..l3 + 20)?, l3 + 6);
        if word & 0x3fff == 0 {
            return None;
        }
        let l4 = l3 + usize::from(bytes[l3] & 15) * 4;
        Some(Self {
            key: (
                bytes[l3 + 12..l3 + 20].to_vec(),
                u32::from(be16(bytes, l3 + 4)),
            ),
            from: usize::from(word & 0x1fff) * 8,
            content: bytes.get(l4..l3 + usize::from(be16(bytes, l3 + 2)))?,
            l3,
            l4,
        })
    }

    fn of_v6(bytes: &'a [u8], l3: usize) -> Option<Self> {
        let l4 = l3 + 40;
        let header = bytes.get(l4..l4 + 8)?;
        if bytes[l3 + 6] != layout::FRAGMENT_HEADER {
            return None;
        }
        Some(Self {
            key: (
                bytes[l3 + 8..l4].to_vec(),
                u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            ),
            from: usize::from(be16(header, 2) & !7),
            content: bytes.get(l4 + 8..l4 + usize::from(be16(bytes, l3 + 4)))?,
            l3,
            l4,
        })
    }

    /// The packet that the pieces make, under the headers of this one.
    pub(super) fn whole(&self, bytes: &[u8], pieces: &Pieces) -> Option<Vec<u8>> {
        let mut packet = bytes[..self.l4].to_vec();
        for (_, piece) in pieces {
            packet.extend_from_slice(piece);
        }
        let l3 = self.l3;
        if packet[l3] >> 4 == 6 {
            packet[l3 + 6] = bytes[self.l4];
            let len = u16::try_from(packet.len() - self.l4).ok()?;
            packet[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
        } else {
            let len = u16::try_from(packet.len() - l3).ok()?;
            packet[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
            packet[l3 + 6..l3 + 8].fill(0);
            layout::seal_ipv4_header(&mut packet, l3);
        }
        Some(packet)
    }
}
