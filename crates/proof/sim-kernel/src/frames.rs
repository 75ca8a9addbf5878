// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IPv4 frames of one client, for tests and fuzzing.

use std::net::SocketAddr;

use erb_wire::{Macs, Options, Segment};

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
        let ends = [(CLIENT, self.port), (SERVER, PORT)].map(SocketAddr::from);
        let [from, to] = if self.up { ends } else { [ends[1], ends[0]] };
        let segment = Segment {
            seq: self.seq,
            ack: self.ack,
            flags: self.flags.into(),
            window: 0xffff,
            options: Options {
                other: self.options.to_vec(),
                ..Options::default()
            },
            payload: self.payload.to_vec(),
            ..Segment::new(from, to)
        };
        segment.to_frame(Macs {
            src: [2, 0, 0, 0, 0, 1],
            dst: [2, 0, 0, 0, 0, 2],
        })
    }
}
