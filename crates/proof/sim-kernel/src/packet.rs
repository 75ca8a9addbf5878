// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets: bytes with the room that their device gives them, and what a context shows besides.

use crate::lowmem::LowBuf;

/// `sizeof(struct xdp_frame)`: the part of the head room that no program gets.
const XDP_FRAME_BYTES: usize = 40;
/// Largest metadata that a driver takes.
const META_BYTES_MAX: usize = 252;
/// What `skb_shared_info` takes from the end of a page.
const SHARED_INFO_BYTES: usize = 320;
const PAGE_BYTES: usize = 4096;
const CARD_HEAD_ROOM: usize = 256;
const ETH_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
const VLAN_TYPE: u16 = 0x8100;

/// The room that a device leaves around a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// veth: the frame is sized to the packet. Head room is about 192 to 256 bytes, tail room what
    /// rounding left over.
    Veth {
        /// Bytes in front of the frame.
        head: u16,
        /// Bytes behind it.
        tail: u16,
    },
    /// A card with a page per frame: 256 bytes in front, the rest of the page behind.
    Physical,
    /// A card without metadata: `bpf_xdp_adjust_meta` fails.
    NoMeta,
}

impl Card {
    /// A veth as it mostly is.
    pub const VETH: Self = Self::Veth { head: 234, tail: 0 };
}

/// What is known of a packet's checksum, `skb->ip_summed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Csum {
    /// Nothing: the stack verifies.
    #[default]
    None = 0,
    /// The device or GRO has verified it.
    Unnecessary = 1,
    /// The field holds the pseudo-header's sum only; the device completes it.
    Partial = 3,
}

/// A packet on its way through programs: an XDP frame or an skb.
pub struct Packet {
    buf: LowBuf,
    head_limit: usize,
    data: usize,
    end: usize,
    tail_limit: usize,
    meta_bytes: usize,
    meta_allowed: bool,
    /// Device that it is on.
    pub ifindex: u32,
    /// `skb->skb_iif`: device by which it came; 0 for what a local socket sent.
    pub ingress_ifindex: u32,
    /// Offset of the IP header: not Ethernet's on devices without.
    pub l3: u16,
    /// Device that its route names; 0: it has none, as what comes in or is handed on by a device.
    pub route: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// Segments merged into it; 0 or 1: none.
    pub gso_segs: u32,
    /// `skb->ip_summed`.
    pub csum: Csum,
    /// Cookie of the socket that sent it; 0: none.
    pub cookie: u64,
    /// VLAN tag that is not among its bytes: EtherType and TCI (`skb->vlan_proto`, `vlan_tci`).
    pub vlan: Option<(u16, u16)>,
    /// The world's own: which packet this is.
    pub tag: u64,
}

impl Packet {
    /// A frame as this device receives it.
    #[must_use]
    pub fn received(bytes: &[u8], card: Card, ifindex: u32) -> Self {
        let (head, tail) = match card {
            Card::Veth { head, tail } => (usize::from(head), usize::from(tail)),
            Card::Physical | Card::NoMeta => (
                CARD_HEAD_ROOM,
                (PAGE_BYTES - CARD_HEAD_ROOM - SHARED_INFO_BYTES).saturating_sub(bytes.len()),
            ),
        };
        let mut packet = Self::with_room(bytes, head, tail);
        packet.meta_allowed = card != Card::NoMeta;
        packet.ifindex = ifindex;
        packet.ingress_ifindex = ifindex;
        packet
    }

    /// A packet that a local socket sends by the device.
    #[must_use]
    pub fn sent(bytes: &[u8], ifindex: u32, cookie: u64) -> Self {
        let mut packet = Self::with_room(bytes, CARD_HEAD_ROOM, 0);
        packet.ifindex = ifindex;
        packet.route = ifindex;
        packet.cookie = cookie;
        packet
    }

    fn with_room(bytes: &[u8], head: usize, tail: usize) -> Self {
        let buf = LowBuf::new(head + bytes.len() + tail);
        let mut packet = Self {
            head_limit: XDP_FRAME_BYTES.min(head),
            data: head,
            end: head + bytes.len(),
            tail_limit: head + bytes.len() + tail,
            buf,
            meta_bytes: 0,
            meta_allowed: true,
            ifindex: 0,
            ingress_ifindex: 0,
            l3: ETH_BYTES as u16,
            route: 0,
            mark: 0,
            gso_segs: 0,
            csum: Csum::None,
            cookie: 0,
            vlan: None,
            tag: 0,
        };
        packet.bytes_mut().copy_from_slice(bytes);
        packet
    }

    /// A copy with the same attributes and no metadata, as `skb_clone` gives.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let mut copy = Self::with_room(self.bytes(), self.data, self.tail_limit - self.end);
        copy.copy_attributes(self);
        copy
    }

    /// Other bytes in its place: room, attributes and metadata are the same. What receive offload
    /// makes of packets that it merges.
    #[must_use]
    pub fn replaced(&self, bytes: &[u8]) -> Self {
        let mut other = Self::with_room(bytes, self.data, self.tail_limit - self.end);
        other.meta_bytes = self.meta_bytes;
        let at = other.data - other.meta_bytes;
        // SAFETY: the metadata lies in front of the frame in both buffers, which are distinct.
        unsafe {
            let to = other.buf.at().add(at);
            to.copy_from_nonoverlapping(self.meta().as_ptr(), self.meta_bytes);
        }
        other.copy_attributes(self);
        other
    }

    fn copy_attributes(&mut self, from: &Self) {
        self.head_limit = from.head_limit;
        self.meta_allowed = from.meta_allowed;
        self.ifindex = from.ifindex;
        self.ingress_ifindex = from.ingress_ifindex;
        self.l3 = from.l3;
        self.route = from.route;
        self.mark = from.mark;
        self.gso_segs = from.gso_segs;
        self.csum = from.csum;
        self.cookie = from.cookie;
        self.vlan = from.vlan;
        self.tag = from.tag;
    }

    /// The frame, from the Ethernet header on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: data..end lies within the buffer, which is ours alone; with_room and the room
        // rules keep it so.
        unsafe { std::slice::from_raw_parts(self.buf.at().add(self.data), self.end - self.data) }
    }

    /// The frame, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for bytes; the borrow is exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.buf.at().add(self.data), self.end - self.data)
        }
    }

    /// Length of the frame.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.end - self.data
    }

    /// Whether there is no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end == self.data
    }

    /// The metadata in front of the frame.
    #[must_use]
    pub fn meta(&self) -> &[u8] {
        // SAFETY: the metadata lies between the buffer's head and data.
        unsafe {
            std::slice::from_raw_parts(
                self.buf.at().add(self.data - self.meta_bytes),
                self.meta_bytes,
            )
        }
    }

    /// Drops the metadata, as the stack does behind TC ingress.
    pub const fn clear_meta(&mut self) {
        self.meta_bytes = 0;
    }

    /// `skb_vlan_untag`: the tag of the frame becomes one of the packet, the metadata stay in front.
    pub fn untag(&mut self) {
        let bytes = self.bytes();
        let kind = u16::from_be_bytes([bytes[12], bytes[13]]);
        if self.vlan.is_some() || kind != VLAN_TYPE {
            return;
        }
        self.vlan = Some((kind, u16::from_be_bytes([bytes[14], bytes[15]])));
        let from = self.data - self.meta_bytes;
        // SAFETY: metadata and addresses lie in the buffer, and so does their new place 4 bytes
        // further: a tagged frame is longer than that.
        unsafe {
            let at = self.buf.at().add(from);
            std::ptr::copy(at, at.add(TAG_BYTES), self.meta_bytes + 12);
        }
        self.data += TAG_BYTES;
    }

    /// The frame as it is on the wire: with the tag that is not among its bytes.
    #[must_use]
    pub fn tagged(&self) -> Vec<u8> {
        let mut bytes = self.bytes().to_vec();
        if let Some((kind, tci)) = self.vlan {
            let tag = [kind.to_be_bytes(), tci.to_be_bytes()].concat();
            bytes.splice(12..12, tag);
        }
        bytes
    }

    /// Where data_meta, data and data_end of a context point.
    pub(crate) fn pointers(&self) -> [u32; 3] {
        let base = self.buf.at() as usize;
        [self.data - self.meta_bytes, self.data, self.end].map(|at| (base + at) as u32)
    }

    /// The whole buffer, for guarding what is outside the frame.
    pub(crate) const fn buffer(&self) -> (*mut u8, usize) {
        (self.buf.at(), self.buf.bytes())
    }

    /// `bpf_xdp_adjust_head`.
    pub(crate) fn adjust_head(&mut self, delta: i32) -> i64 {
        let data = self.data as i64 + i64::from(delta);
        if data < (self.head_limit + self.meta_bytes) as i64
            || data > self.end as i64 - ETH_BYTES as i64
        {
            return -crate::errno::EINVAL;
        }
        let data = data as usize;
        // SAFETY: both ranges are in the buffer: data is not below head_limit + meta_bytes.
        unsafe {
            let base = self.buf.at();
            std::ptr::copy(
                base.add(self.data - self.meta_bytes),
                base.add(data - self.meta_bytes),
                self.meta_bytes,
            );
        }
        self.data = data;
        0
    }

    /// `bpf_xdp_adjust_tail`; new bytes are 0.
    pub(crate) fn adjust_tail(&mut self, delta: i32) -> i64 {
        let end = self.end as i64 + i64::from(delta);
        if end > self.tail_limit as i64 || end < (self.data + ETH_BYTES) as i64 {
            return -crate::errno::EINVAL;
        }
        self.set_end(end as usize);
        0
    }

    /// `bpf_xdp_adjust_meta`.
    pub(crate) fn adjust_meta(&mut self, delta: i32) -> i64 {
        if !self.meta_allowed {
            return -crate::errno::ENOTSUPP;
        }
        let meta = self.data as i64 - self.meta_bytes as i64 + i64::from(delta);
        if meta < self.head_limit as i64 || meta > self.data as i64 {
            return -crate::errno::EINVAL;
        }
        let bytes = self.data - meta as usize;
        if bytes % 4 != 0 || bytes > META_BYTES_MAX {
            return -crate::errno::EACCES;
        }
        self.meta_bytes = bytes;
        0
    }

    /// The skb's length becomes `len`, whatever room it has; new bytes are 0.
    pub(crate) fn resize(&mut self, len: usize) {
        if self.data + len > self.buf.bytes() {
            let old = std::mem::replace(&mut self.buf, LowBuf::new(self.data + len));
            // SAFETY: both buffers hold at least `end` bytes and are distinct.
            unsafe { std::ptr::copy_nonoverlapping(old.at(), self.buf.at(), self.end) };
        }
        self.set_end(self.data + len);
        self.tail_limit = self.tail_limit.max(self.end);
    }

    fn set_end(&mut self, end: usize) {
        if end > self.end {
            // SAFETY: end is at most the buffer's length: tail_limit, or made sure by resize.
            unsafe { std::ptr::write_bytes(self.buf.at().add(self.end), 0, end - self.end) };
        }
        self.end = end;
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Packet")
            .field("len", &self.len())
            .field("ifindex", &self.ifindex)
            .field("meta", &self.meta())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::{EACCES, EINVAL, ENOTSUPP};

    #[test]
    fn veth_grows_at_the_head_only() {
        let mut packet = Packet::received(&[7; 60], Card::VETH, 1);
        assert_eq!(packet.adjust_tail(1), -EINVAL);
        assert_eq!(packet.adjust_head(-195), -EINVAL);
        assert_eq!(packet.adjust_head(-194), 0);
        assert_eq!(packet.len(), 254);
        assert_eq!(packet.adjust_meta(-4), -EINVAL, "no room is left for it");
        assert_eq!(packet.adjust_head(194), 0);
        assert_eq!(packet.bytes(), [7; 60]);
        assert_eq!(packet.adjust_tail(-46), 0);
        assert_eq!(
            packet.adjust_tail(-1),
            -EINVAL,
            "an Ethernet header must stay"
        );
        assert_eq!(packet.adjust_head(1), -EINVAL);
    }

    #[test]
    fn a_card_grows_to_the_end_of_its_page() {
        let mut packet = Packet::received(&[7; 60], Card::Physical, 1);
        let room = 4096 - 256 - 320 - 60;
        assert_eq!(packet.adjust_tail(room + 1), -EINVAL);
        assert_eq!(packet.adjust_tail(room), 0);
        assert!(packet.bytes()[60..].iter().all(|byte| *byte == 0));
        assert_eq!(packet.adjust_head(-216), 0);
        assert_eq!(packet.adjust_head(-1), -EINVAL);
    }

    #[test]
    fn metadata_moves_with_the_head() {
        let mut packet = Packet::received(&[7; 60], Card::VETH, 1);
        assert_eq!(packet.adjust_meta(-3), -EACCES);
        assert_eq!(packet.adjust_meta(-256), -EINVAL);
        assert_eq!(packet.adjust_meta(-4), 0);
        let [meta, data, end] = packet.pointers();
        assert_eq!((data - meta, end - data), (4, 60));
        // SAFETY: the metadata was just given room below 4 GiB.
        unsafe { (meta as usize as *mut u32).write_unaligned(9) };
        assert_eq!(packet.adjust_head(-20), 0);
        assert_eq!(packet.meta(), 9u32.to_ne_bytes());
        assert_eq!(packet.adjust_meta(8), -EINVAL);
        let mut plain = Packet::received(&[7; 60], Card::NoMeta, 1);
        assert_eq!(plain.adjust_meta(-4), -ENOTSUPP);
    }

    #[test]
    fn a_merged_packet_keeps_the_metadata() {
        let mut packet = Packet::received(&[7; 60], Card::VETH, 9);
        assert_eq!(packet.adjust_meta(-4), 0);
        let merged = packet.replaced(&[8; 3000]);
        assert_eq!((merged.meta().len(), merged.ifindex), (4, 9));
        assert_eq!(merged.meta(), packet.meta());
        assert_eq!(merged.bytes(), [8; 3000]);
    }

    #[test]
    fn an_skb_takes_any_length() {
        let mut packet = Packet::sent(&[7; 100], 1, 0);
        packet.resize(16_000);
        assert_eq!(packet.len(), 16_000);
        assert_eq!(packet.bytes()[..100], [7; 100]);
        assert!(packet.bytes()[100..].iter().all(|byte| *byte == 0));
        packet.resize(20);
        assert_eq!(packet.duplicate().bytes(), [7; 20]);
    }
}
