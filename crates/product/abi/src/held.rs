// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of packets that wait (`bpf/splice/hold.h`), as they are brought up again.

use crate::{
    HELD_FRAME_BYTES, HELD_LATE, HELD_MARKED, HELD_SYNC, INJECT_DONE, INJECT_GONE, INJECT_WAITS,
    conn_key, held_packet, inject,
};

/// Ethernet addresses: a VLAN tag stands behind them.
const ADDRESSES_BYTES: usize = 12;
/// Of TCP's header: where its checksum stands, and its least length.
const CHECKSUM_AT: usize = 16;
const TCP_BYTES_MIN: usize = 20;
/// IANA protocol number.
const TCP: u32 = 6;

/// Why a write waits that is not answered yet, and may be soon (`bpf/splice/absorb.h`, I11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Too much waits for Redis: until less does.
    Late,
    /// A command on keys of its set has no reply yet: for a moment.
    Marked,
}

impl Delay {
    const fn of(why: u32) -> Option<Self> {
        if why & HELD_LATE != 0 {
            Some(Self::Late)
        } else if why & HELD_MARKED != 0 {
            Some(Self::Marked)
        } else {
            None
        }
    }
}

/// A packet that waits.
#[derive(Clone, Debug)]
pub struct HeldPacket {
    /// Address pair.
    pub key: conn_key,
    /// Cookie of its entry.
    pub cookie: u64,
    /// The LSN that must be drained before it may go up.
    pub waits_for: u64,
    /// It must be synced, too (`WAITS_SYNC`).
    pub syncs: bool,
    /// It is a write that is delayed; none: a packet that is held.
    pub delay: Option<Delay>,
    /// Where its payload begins, client space.
    pub seq: u32,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// Device by which it came.
    pub ifindex: u32,
    /// The frame as it is to come again: with its VLAN tag and a whole checksum; empty: there is no copy.
    pub frame: Vec<u8>,
}

impl HeldPacket {
    /// Its payload, if there is a copy. What is shorter than a frame may be would have padding behind it: that is no
    /// request that anybody reads here.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let bytes = usize::try_from(self.payload_bytes).unwrap_or(usize::MAX);
        let from = self.frame.len().saturating_sub(bytes);
        &self.frame[from..]
    }

    /// What a record of `erb_held` says, if it is whole.
    #[must_use]
    pub fn of_record(record: &[u8]) -> Option<Self> {
        let start = std::mem::offset_of!(held_packet, frame);
        let mut whole = [0u8; size_of::<held_packet>()];
        let head = record.get(..record.len().min(whole.len()))?;
        whole[..head.len()].copy_from_slice(head);
        // SAFETY: the bytes are as many as the type has, which is plain data for which any are valid; the read
        // asks for no alignment.
        let held = unsafe { whole.as_ptr().cast::<held_packet>().read_unaligned() };
        let bytes = usize::from(held.bytes);
        if head.len() < start + bytes || bytes > HELD_FRAME_BYTES as usize {
            return None;
        }
        let mut frame = held.frame[..bytes].to_vec();
        if bytes > 0 {
            seal(&mut frame, &held)?;
            if held.tag != 0 {
                let tag = held.tag.to_ne_bytes();
                frame.splice(ADDRESSES_BYTES..ADDRESSES_BYTES, tag);
            }
        }
        let why = u32::from(held.why);
        Some(Self {
            key: held.key,
            cookie: held.cookie,
            waits_for: held.waits_for,
            syncs: why & HELD_SYNC != 0,
            delay: Delay::of(why),
            seq: held.seq,
            payload_bytes: held.payload_len,
            ifindex: held.ifindex,
            frame,
        })
    }

    /// Whether another packet of the connection has all of its bytes.
    #[must_use]
    pub const fn lies_in(&self, other: &Self) -> bool {
        let from = self.seq.wrapping_sub(other.seq);
        from <= other.payload_bytes && self.payload_bytes <= other.payload_bytes - from
    }
}

/// Makes the checksum whole. The program has verified it, or the kernel has, or it is the bare sum of the
/// pseudo-header, as whoever sends on this machine leaves it.
fn seal(frame: &mut [u8], held: &held_packet) -> Option<()> {
    let (from, payload) = (usize::from(held.l4_off), usize::from(held.payload_off));
    let end = payload.checked_add(held.payload_len as usize)?;
    let segment = frame.get_mut(from..end)?;
    if payload < from + TCP_BYTES_MIN {
        return None;
    }
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    // An IPv4 address as IPv6 has ffff in front, which is nothing in this arithmetic.
    let addresses = sum(&held.key.client_addr) + sum(&held.key.server_addr);
    let mut total = addresses + u64::from(TCP) + segment.len() as u64 + sum(segment);
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    let sealed = !(total as u16);
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sealed.to_be_bytes());
    Some(())
}

/// Sum of words in network order (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    bytes.chunks(2).map(word).sum()
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It is on its way.
    Done,
    /// Its connection waits for this one now.
    Waits(u64),
    /// Its connection is over.
    Gone,
    /// The kernel does not take it now.
    Full,
}

impl Injected {
    /// What the program said.
    pub(crate) const fn of(said: inject, waits_for: u64) -> Self {
        match said {
            INJECT_DONE => Self::Done,
            INJECT_WAITS => Self::Waits(waits_for),
            INJECT_GONE => Self::Gone,
            _ => Self::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of Ethernet, IPv4 and TCP, and five bytes.
    fn record() -> (Vec<u8>, usize) {
        let mut frame = vec![0u8; 14 + 20 + 20 + 5];
        frame[12] = 8;
        frame[26..30].copy_from_slice(&[10, 0, 0, 2]);
        frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
        frame[34..38].copy_from_slice(&[0x9c, 0x40, 0x18, 0xeb]);
        frame[46] = 0x50;
        frame[54..].copy_from_slice(b"PING\n");
        let address = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
        let held = held_packet {
            key: conn_key {
                client_addr: address(2),
                server_addr: address(1),
                ..conn_key::default()
            },
            cookie: 7,
            waits_for: 9,
            seq: 100,
            payload_len: 5,
            l4_off: 34,
            payload_off: 54,
            bytes: frame.len() as u16,
            // SAFETY: plain data for which zeros are valid.
            ..unsafe { std::mem::zeroed() }
        };
        let start = std::mem::offset_of!(held_packet, frame);
        let at = std::ptr::from_ref(&held).cast::<u8>();
        // SAFETY: the header lies in front of the frame and has no padding.
        let mut bytes = unsafe { std::slice::from_raw_parts(at, start) }.to_vec();
        bytes.extend_from_slice(&frame);
        (bytes, start)
    }

    #[test]
    fn a_copy_has_a_whole_checksum_and_its_tag() {
        let (bytes, start) = record();
        let held = HeldPacket::of_record(&bytes).unwrap();
        assert_eq!((held.cookie, held.waits_for, held.payload_bytes), (7, 9, 5));
        let frame = &held.frame;
        assert_eq!(frame[..34], bytes[start..start + 34]);
        // All of it, with the pseudo-header, sums up to ones.
        let mut total = sum(&frame[26..34]) + 6 + 25 + sum(&frame[34..]);
        while total > 0xffff {
            total = (total >> 16) + (total & 0xffff);
        }
        assert_eq!(total, 0xffff);
        let mut tagged = bytes.clone();
        let at = std::mem::offset_of!(held_packet, tag);
        tagged[at..at + 4].copy_from_slice(&[0x81, 0, 0, 5]);
        let with_tag = HeldPacket::of_record(&tagged).unwrap().frame;
        assert_eq!(with_tag[12..18], [0x81, 0, 0, 5, 8, 0]);
        assert_eq!(
            (&with_tag[..12], &with_tag[18..]),
            (&frame[..12], &frame[14..])
        );
    }

    #[test]
    fn what_is_not_whole_is_no_record() {
        let (bytes, start) = record();
        assert!(HeldPacket::of_record(&bytes[..bytes.len() - 1]).is_none());
        assert!(HeldPacket::of_record(&bytes[..start - 1]).is_none());
        assert!(HeldPacket::of_record(&[]).is_none());
        let mut lies = bytes.clone();
        let at = std::mem::offset_of!(held_packet, payload_len);
        lies[at..at + 4].copy_from_slice(&6u32.to_ne_bytes());
        assert!(
            HeldPacket::of_record(&lies).is_none(),
            "more payload than frame"
        );
        // Who waits is known without a copy, too.
        let at = std::mem::offset_of!(held_packet, bytes);
        lies[at..at + 2].fill(0);
        assert!(HeldPacket::of_record(&lies).unwrap().frame.is_empty());
    }

    #[test]
    fn bytes_that_another_has_are_known_across_the_wrap() {
        let (bytes, _) = record();
        let held = HeldPacket::of_record(&bytes).unwrap();
        let at = |seq: u32, payload_bytes| HeldPacket {
            seq,
            payload_bytes,
            ..held.clone()
        };
        let all = at(u32::MAX - 1, 10);
        assert!(at(u32::MAX - 1, 10).lies_in(&all) && at(3, 5).lies_in(&all));
        assert!(!at(4, 5).lies_in(&all) && !at(u32::MAX - 2, 3).lies_in(&all));
    }
}
