// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Edits of frames, as faulty or odd networks make them.

use erb_wire::layout::{self, Layout};
use erb_wire::{IcmpError, IcmpKind, Macs};
use fastrand::Rng;

const ACK: u8 = 0x10;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;

/// What a forged segment says: must never be executed.
pub const FORGED_COMMAND: &[u8] = b"*3\r\n$3\r\nSET\r\n$6\r\nforged\r\n$1\r\n1\r\n";

/// What nobody may be answered.
const ASKED_OF_NOBODY: &[u8] = b"*2\r\n$3\r\nGET\r\n$5\r\nkey:0\r\n";
/// A command that would hold the fence, if it ever began.
const HALF_A_SCRIPT: &[u8] = b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n";
/// Last byte of an address that nobody has.
const FOREIGN_LAST: u8 = 0x63;

/// Two frames for one, cut before byte `cut` of the payload.
pub fn split(frame: &[u8], at: &Layout, cut: usize) -> [Vec<u8>; 2] {
    let payload = &frame[at.payload..at.end];
    let skip = u32::try_from(cut).unwrap_or(0);
    let mut first = layout::with_payload(frame, at, 0, &payload[..cut]);
    let flags = at.flags(frame);
    if flags & 1 != 0 {
        // FIN stays with the last byte.
        first[at.l4 + 13] &= !1;
        let head = Layout {
            end: first.len(),
            ..*at
        };
        layout::seal(&mut first, &head);
    }
    [
        first,
        layout::with_payload(frame, at, skip, &payload[cut..]),
    ]
}

/// One frame for two, if `next` continues `first` and their headers have the same length.
pub fn join(first: &[u8], next: &[u8], at: &Layout) -> Option<Vec<u8>> {
    let there = Layout::of(first)?;
    let end = there
        .seq(first)
        .wrapping_add(u32::try_from(there.payload_len()).ok()?);
    let plain = |flags: u8| flags & !PSH == ACK;
    if end != at.seq(next)
        || there.payload_len() == 0
        || there.payload != at.payload
        || !plain(there.flags(first))
        || !plain(at.flags(next))
    {
        return None;
    }
    let mut payload = first[there.payload..there.end].to_vec();
    payload.extend_from_slice(&next[at.payload..at.end]);
    // The later header with the earlier number: a sender that coalesces its queue does so.
    let back = 0_u32.wrapping_sub(u32::try_from(there.payload_len()).ok()?);
    Some(layout::with_payload(next, at, back, &payload))
}

/// Two fragments, of which the first holds the TCP header whole.
pub fn fragments(frame: &[u8], at: &Layout, id: u16) -> [Vec<u8>; 2] {
    let data = at.end - at.l4;
    // Offsets count in units of 8 bytes.
    fragments_at(frame, at, id, (data / 2).max(64).min(data - 1) & !7)
}

/// Two fragments, of which the first holds so many bytes, a multiple of 8, behind the IP header.
pub fn fragments_at(frame: &[u8], at: &Layout, id: u16, cut: usize) -> [Vec<u8>; 2] {
    let data = at.end - at.l4;
    let piece = |from: usize, to: usize, more: bool| {
        let content = &frame[at.l4 + from..at.l4 + to];
        let offset = u16::try_from(from).unwrap_or(0);
        if at.v6 {
            fragment_v6(frame, at, content, offset | u16::from(more), id)
        } else {
            fragment_v4(frame, at, content, offset >> 3 | u16::from(more) << 13, id)
        }
    };
    [piece(0, cut, true), piece(cut, data, false)]
}

fn fragment_v4(frame: &[u8], at: &Layout, content: &[u8], word: u16, id: u16) -> Vec<u8> {
    let mut bytes = frame[..at.l4].to_vec();
    bytes.extend_from_slice(content);
    let l3 = at.l3;
    let len = u16::try_from(bytes.len() - l3).unwrap_or(0);
    bytes[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
    bytes[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
    bytes[l3 + 6..l3 + 8].copy_from_slice(&word.to_be_bytes());
    layout::seal_ipv4_header(&mut bytes, l3);
    bytes
}

fn fragment_v6(frame: &[u8], at: &Layout, content: &[u8], word: u16, id: u16) -> Vec<u8> {
    let mut bytes = frame[..at.l4].to_vec();
    let l3 = at.l3;
    bytes.extend_from_slice(&[bytes[l3 + 6], 0]);
    bytes[l3 + 6] = layout::FRAGMENT_HEADER;
    bytes.extend_from_slice(&word.to_be_bytes());
    bytes.extend_from_slice(&u32::from(id).to_be_bytes());
    bytes.extend_from_slice(content);
    let len = u16::try_from(bytes.len() - l3 - 40).unwrap_or(0);
    bytes[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Changes one byte from the IP header on; a bare sum is completed first, because what left a
/// machine on a wire has been.
pub fn corrupt(frame: &mut [u8], at: &Layout, random: &mut Rng) {
    if layout::is_bare(frame, at) {
        layout::seal(frame, at);
    }
    loop {
        let place = random.usize(at.l3..at.end);
        let old = frame[place];
        frame[place] = old ^ random.u8(1..);
        // By chance it may look like a bare sum, which a wire does not carry; or the right sum did,
        // and does so still.
        if Layout::of(frame).is_none_or(|now| !layout::is_bare(frame, &now)) {
            return;
        }
        frame[place] = old;
    }
}

/// A router has marked congestion.
pub fn congestion_mark(frame: &mut [u8], at: &Layout) {
    if at.v6 {
        frame[at.l3 + 1] |= 0x30;
    } else {
        frame[at.l3 + 1] |= 3;
    }
    layout::seal(frame, at);
}

/// Claims urgent data, on a segment without payload: the byte that the receiver leaves out of the stream is then
/// among those to come.
pub fn urgent(random: &mut Rng, frame: &mut [u8], at: &Layout) {
    frame[at.l4 + 13] |= URG;
    frame[at.l4 + 19] = random.u8(0..40);
    layout::seal(frame, at);
}

/// Four bytes of IPv4 options: a router alert.
pub fn ip_options(frame: &[u8], at: &Layout) -> Vec<u8> {
    let mut bytes = frame[..at.l4].to_vec();
    bytes.extend_from_slice(&[0x94, 4, 0, 0]);
    bytes.extend_from_slice(&frame[at.l4..at.end]);
    bytes[at.l3] += 1;
    let at = Layout {
        l4: at.l4 + 4,
        payload: at.payload + 4,
        end: at.end + 4,
        ..*at
    };
    layout::seal(&mut bytes, &at);
    bytes
}

/// An experimental TCP option behind the others, if there is room.
pub fn tcp_option(frame: &[u8], at: &Layout) -> Option<Vec<u8>> {
    if at.payload - at.l4 > 56 {
        return None;
    }
    let mut bytes = frame[..at.payload].to_vec();
    bytes.extend_from_slice(&[253, 4, 0x12, 0x34]);
    bytes.extend_from_slice(&frame[at.payload..at.end]);
    bytes[at.l4 + 12] += 0x10;
    let at = Layout {
        payload: at.payload + 4,
        end: at.end + 4,
        ..*at
    };
    layout::seal(&mut bytes, &at);
    Some(bytes)
}

/// A segment of a stranger who knows the addresses, roughly the numbers, and cannot be believed.
pub fn forge(frame: &[u8], at: &Layout, random: &mut Rng) -> Vec<u8> {
    let mut forged = layout::with_payload(frame, at, 0, FORGED_COMMAND);
    let l4 = at.l4;
    let seq = at.seq(frame);
    let set = |bytes: &mut Vec<u8>, place: usize, value: u32| {
        bytes[l4 + place..l4 + place + 4].copy_from_slice(&value.to_be_bytes());
    };
    forged[l4 + 13] = ACK | PSH;
    let near = random.u32(..100_000);
    match random.u8(0..11) {
        // In the window, but not the exact number: a challenge, no end.
        0 => {
            forged.truncate(at.payload);
            forged[l4 + 13] = RST;
            set(&mut forged, 4, seq.wrapping_add(random.u32(5_000..20_000)));
        }
        1 => {
            forged.truncate(at.payload);
            forged[l4 + 13] = SYN;
            set(&mut forged, 4, random.u32(..));
        }
        // Acknowledges what was never sent.
        2 => set(
            &mut forged,
            8,
            at.ack(frame).wrapping_add(random.u32(1 << 20..1 << 30)),
        ),
        // Far outside of the window.
        3 => set(
            &mut forged,
            4,
            seq.wrapping_add(random.u32(1 << 28..1 << 30)),
        ),
        // An acknowledgement, a FIN or a reset out of the window, ahead of the real ones.
        kind @ 4..=6 => {
            forged.truncate(at.payload);
            forged[l4 + 13] = ACK | [0, FIN, RST][usize::from(kind - 4)];
            set(&mut forged, 4, far_from(seq, random));
            set(&mut forged, 8, at.ack(frame).wrapping_add(near));
        }
        // A FIN or a reset with payload, below what was sent long ago.
        kind @ 7..=8 => {
            forged[l4 + 13] |= [FIN, RST][usize::from(kind - 7)];
            set(
                &mut forged,
                4,
                seq.wrapping_sub(random.u32(1 << 20..1 << 30)),
            );
        }
        // Random numbers.
        9 => {
            set(&mut forged, 4, far_from(seq, random));
            set(&mut forged, 8, random.u32(..));
        }
        // No acknowledgement at all.
        _ => forged[l4 + 13] = PSH,
    }
    let at = Layout {
        end: forged.len(),
        ..*at
    };
    layout::seal(&mut forged, &at);
    forged
}

/// A number outside of any window.
fn far_from(seq: u32, random: &mut Rng) -> u32 {
    seq.wrapping_add(random.u32(1 << 26..u32::MAX - (1 << 26)))
}

/// Fragments that TCP will not look at: the first holds its header whole, the rest may never come.
pub fn forged_piece(frame: &[u8], at: &Layout, random: &mut Rng) -> Vec<Vec<u8>> {
    let seq = at.seq(frame);
    let mut forged = layout::with_payload(frame, at, 0, FORGED_COMMAND);
    let far = far_from(seq, random);
    forged[at.l4 + 4..at.l4 + 8].copy_from_slice(&far.to_be_bytes());
    forged[at.l4 + 13] = ACK | PSH;
    let at = Layout {
        end: forged.len(),
        ..*at
    };
    layout::seal(&mut forged, &at);
    let [first, rest] = fragments(&forged, &at, random.u16(1..));
    let mut pieces = vec![first];
    pieces.extend(random.bool().then_some(rest));
    pieces
}

/// The same frame for an address that is not the server's, perhaps with a command of its own.
pub fn foreign(frame: &[u8], at: &Layout, random: &mut Rng) -> Vec<u8> {
    let payload = match random.u8(0..4) {
        0 => FORGED_COMMAND,
        1 => ASKED_OF_NOBODY,
        _ => &frame[at.payload..at.end],
    };
    let mut other = layout::with_payload(frame, at, 0, payload);
    let last = if at.v6 { at.l3 + 40 } else { at.l3 + 20 };
    other[last - 1] = FOREIGN_LAST;
    let at = Layout {
        end: other.len(),
        ..*at
    };
    layout::seal(&mut other, &at);
    other
}

/// Payload for the port that belongs to no connection: any flags and numbers, from the machine's own
/// address or any other.
pub fn stranger(frame: &[u8], at: &Layout, random: &mut Rng) -> Vec<u8> {
    let payload = *random
        .choice(&[b"x", FORGED_COMMAND, ASKED_OF_NOBODY, HALF_A_SCRIPT])
        .unwrap_or(&FORGED_COMMAND);
    let mut forged = layout::with_payload(frame, at, random.u32(..), payload);
    let l4 = at.l4;
    forged[l4..l4 + 2].copy_from_slice(&random.u16(2_000..10_000).to_be_bytes());
    forged[l4 + 8..l4 + 12].copy_from_slice(&random.u32(..).to_be_bytes());
    forged[l4 + 13] = match random.u8(0..8) {
        0 => SYN,
        1 => SYN | ACK,
        2 => FIN | ACK,
        3 => RST | ACK,
        4 => random.u8(0..0x20),
        _ => ACK | PSH,
    };
    if random.bool() {
        let source = if at.v6 { at.l3 + 24 } else { at.l3 + 16 };
        forged[source - 2] = random.u8(..);
        forged[source - 1] = random.u8(100..);
    }
    let at = Layout {
        end: forged.len(),
        ..*at
    };
    layout::seal(&mut forged, &at);
    forged
}

/// A first fragment with a part of the TCP header; the rest never comes.
pub fn tiny(frame: &[u8], at: &Layout, random: &mut Rng) -> Vec<u8> {
    let cut = if random.bool() { 8 } else { 16 };
    let [first, _] = fragments_at(frame, at, random.u16(1..), cut);
    first
}

/// What a router with a smaller MTU behind it answers: "fragmentation needed", "packet too big".
pub fn too_big(frame: &[u8], at: &Layout, mtu: usize) -> Option<Vec<u8>> {
    let mtu = IcmpKind::TooBig(u32::try_from(mtu).ok()?);
    let quoted = &frame[at.l3..at.end.min(at.payload + 8)];
    let (from, to) = at.pair(frame);
    // Back to the sender.
    let macs = Macs {
        src: *frame.first_chunk()?,
        dst: *frame[6..].first_chunk()?,
    };
    let vlan = (at.l3 > layout::ETHERNET_BYTES).then(|| u16::from_be_bytes([frame[14], frame[15]]));
    Some(IcmpError::quoting(
        to.ip(),
        mtu,
        from.ip(),
        vlan,
        macs,
        quoted,
    ))
}
