// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Templates of the packets that the BPF programs send, with the constant part of their checksums.

use crate::mirror::{BENCH_HEADER_BYTES, bench_template};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
/// Where TCP begins.
const TCP_AT: usize = ETHERNET_BYTES + IPV4_BYTES;
/// NOP NOP, kind 8, 10 bytes; the two numbers follow.
const TIMESTAMP_OPTION: [u8; 4] = [1, 1, 8, 10];
const FLAG_ACK: u8 = 0x10;
const FLAG_PSH: u8 = 0x08;
/// Window field: with the scale that Linux offers (at least 7) 64 KiB or more, far above a reply.
const WINDOW: u16 = 512;

/// One direction of the veth pair.
#[derive(Debug, Clone, Copy)]
pub struct Direction {
    /// Hardware address of the sender.
    pub from_mac: [u8; 6],
    /// Hardware address of the receiver.
    pub to_mac: [u8; 6],
    /// Address of the sender.
    pub from_ip: [u8; 4],
    /// Address of the receiver.
    pub to_ip: [u8; 4],
}

/// The header for packets of this direction with that payload; ports, numbers and timestamps are
/// left zero, bytes of the payload that change must be zero too.
pub fn template(direction: &Direction, payload: &[u8]) -> bench_template {
    const HEADER: usize = BENCH_HEADER_BYTES as usize;
    let mut header = [0u8; HEADER];
    header[..6].copy_from_slice(&direction.to_mac);
    header[6..12].copy_from_slice(&direction.from_mac);
    header[12..14].copy_from_slice(&[0x08, 0x00]);
    let tcp_bytes = u16::try_from(HEADER - TCP_AT + payload.len()).expect("payload above an MTU");
    let total = tcp_bytes + IPV4_BYTES as u16;
    // Version and length, TOS, total length, identification 0, DF, TTL 64, TCP.
    let [high, low] = total.to_be_bytes();
    header[14..24].copy_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6]);
    header[26..30].copy_from_slice(&direction.from_ip);
    header[30..34].copy_from_slice(&direction.to_ip);
    let ip_sum = finish(partial_sum(&header[ETHERNET_BYTES..TCP_AT]));
    header[24..26].copy_from_slice(&ip_sum.to_ne_bytes());
    header[TCP_AT + 12] = ((HEADER - TCP_AT) as u8 / 4) << 4;
    header[TCP_AT + 13] = if payload.is_empty() {
        FLAG_ACK
    } else {
        FLAG_ACK | FLAG_PSH
    };
    header[TCP_AT + 14..TCP_AT + 16].copy_from_slice(&WINDOW.to_be_bytes());
    header[TCP_AT + 20..TCP_AT + 24].copy_from_slice(&TIMESTAMP_OPTION);
    let [high, low] = tcp_bytes.to_be_bytes();
    let sum = partial_sum(&header[26..34]) // both addresses
        + partial_sum(&[0, 6, high, low])
        + partial_sum(&header[TCP_AT..])
        + partial_sum(payload);
    bench_template {
        words: words(&header[..64]),
        sum,
        tail: u16::from_ne_bytes([header[64], header[65]]),
        pad: 0,
    }
}

/// The bytes as 64-bit words, filled up with zeros; as many as the array has.
pub fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut result = [0; N];
    for (word, chunk) in result.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(padded);
    }
    result
}

/// Sum of 16-bit words in the machine's order, as RFC 1071 allows; not folded.
fn partial_sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| {
            u32::from(u16::from_ne_bytes([
                pair[0],
                pair.get(1).copied().unwrap_or(0),
            ]))
        })
        .sum()
}

fn finish(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_of(template: &bench_template) -> Vec<u8> {
        let mut bytes: Vec<u8> = template
            .words
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        bytes.extend(template.tail.to_ne_bytes());
        bytes
    }

    #[test]
    fn header_checksum_and_lengths_are_right() {
        let direction = Direction {
            from_mac: [2, 0, 0, 0, 0, 1],
            to_mac: [2, 0, 0, 0, 0, 2],
            from_ip: [10, 78, 0, 1],
            to_ip: [10, 78, 0, 2],
        };
        let payload = b"+PONG\r\n";
        let template = template(&direction, payload);
        let header = header_of(&template);
        assert_eq!(header.len(), 66);
        assert_eq!(finish(partial_sum(&header[14..34])), 0, "IPv4 header sum");
        assert_eq!(u16::from_be_bytes([header[16], header[17]]), 20 + 32 + 7);
        // The whole segment with its checksum in place must sum to zero.
        let sum = finish(template.sum);
        let mut segment = vec![10, 78, 0, 1, 10, 78, 0, 2, 0, 6, 0, 39];
        segment.extend(&header[34..]);
        segment[12 + 16..12 + 18].copy_from_slice(&sum.to_ne_bytes());
        segment.extend(payload);
        assert_eq!(finish(partial_sum(&segment)), 0, "TCP sum");
    }

    #[test]
    fn words_are_padded_with_zeros() {
        let result: [u64; 2] = words(b"abcdefghi");
        assert_eq!(result[0].to_ne_bytes(), *b"abcdefgh");
        assert_eq!(result[1].to_ne_bytes(), *b"i\0\0\0\0\0\0\0");
    }
}
