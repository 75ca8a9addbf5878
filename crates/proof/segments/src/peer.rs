// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was received on one connection, and what must hold of every segment.
//!
//! Invariants, whoever sent the segment (Redis's kernel or the fast path):
//!  P1. A sequence number always carries the same byte.
//!  P2. Nothing is acknowledged that was not sent; acknowledgements do not go back, unless two
//!      processors sent at the same time.
//!  P3. No byte lies beyond the highest right edge that the client has advertised.
//!  P4. The server's right edge does not move left by more than scaling loses.
//!  P5. Timestamps are there if agreed on, do not go back (but as in P2), and echo what was sent.

use std::collections::BTreeMap;

use erb_wire::Segment as Wired;

use crate::exchange::{ACK, FIN, RST, SYN};
use crate::frame::known_flags;

/// Two segments that differ by no more than this in their timestamps (ms) may have overtaken each
/// other.
const ORDER_MS: i32 = 10;

/// A segment in relative numbers.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Sequence number.
    pub seq: i64,
    /// Acknowledgement.
    pub ack: i64,
    /// Flags.
    pub flags: u8,
    /// Bytes.
    pub payload: Vec<u8>,
    /// Timestamp and echo.
    pub stamp: Option<(u32, u32)>,
}

impl Seen {
    /// Whether it carries this byte.
    #[must_use]
    pub fn carries(&self, number: i64) -> bool {
        (self.seq..self.seq + self.payload.len() as i64).contains(&number)
    }

    /// Whether it is nothing but an ACK.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.payload.is_empty() && self.flags & (SYN | FIN | RST) == 0 && self.flags & ACK != 0
    }
}

/// One connection as its client knows it.
#[derive(Debug, Default)]
pub struct Peer {
    /// Client's number 0 on the cable.
    pub client_zero: u32,
    /// Server's number 0 on the cable.
    pub server_zero: u32,
    /// Server's window scale.
    pub scale: u8,
    /// Whether timestamps were agreed on.
    pub timestamps: bool,
    /// The newest timestamp received.
    pub peer_stamp: u32,
    /// The newest timestamp of a segment that counts.
    pub own_stamp: u32,
    /// The newest timestamp sent.
    pub newest_stamp: u32,
    /// End of what was sent.
    pub sent: i64,
    /// Highest right edge advertised.
    pub right_edge: i64,
    /// Highest acknowledgement received.
    pub acked: i64,
    server_right_edge: i64,
    /// Stream bytes by number.
    pub bytes: BTreeMap<i64, u8>,
    /// All segments, in order.
    pub segments: Vec<Seen>,
    closing: bool,
}

impl Peer {
    /// A connection whose SYN-ACK was this.
    #[must_use]
    pub fn new(client_zero: u32, syn_ack: &Wired, timestamps: bool, own_stamp: u32) -> Self {
        Self {
            client_zero,
            server_zero: syn_ack.seq.wrapping_add(1),
            scale: syn_ack.options.wscale.unwrap_or(0),
            timestamps,
            peer_stamp: syn_ack.options.ts.map_or(0, |(value, _)| value),
            own_stamp,
            newest_stamp: own_stamp,
            // What a SYN-ACK advertises is not scaled.
            server_right_edge: i64::from(syn_ack.window),
            ..Self::default()
        }
    }

    /// Takes one segment in.
    ///
    /// # Errors
    /// Which invariant it breaks.
    pub fn take_in(&mut self, segment: Wired) -> Result<(), String> {
        let near = |number: u32, zero: u32| i64::from(number.wrapping_sub(zero) as i32);
        let seen = Seen {
            seq: near(segment.seq, self.server_zero),
            ack: near(segment.ack, self.client_zero),
            flags: known_flags(&segment),
            payload: segment.payload,
            stamp: segment.options.ts,
        };
        let end = seen.seq + seen.payload.len() as i64;
        self.closing |= seen.flags & (SYN | FIN | RST) != 0;
        if seen.flags & RST == 0 {
            self.check_stamp(&seen)?;
            self.check_ack(&seen, segment.window)?;
            let newest = seen.stamp.map_or(self.peer_stamp, |(value, _)| value);
            if newest.wrapping_sub(self.peer_stamp) < 1 << 31 {
                self.peer_stamp = newest;
            }
        }
        if !seen.payload.is_empty() && end > self.right_edge {
            return Err(format!("P3: byte {end} beyond window {}", self.right_edge));
        }
        for (number, byte) in (seen.seq..).zip(&seen.payload) {
            let before = *self.bytes.entry(number).or_insert(*byte);
            if before != *byte {
                return Err(format!(
                    "P1: byte {number} was {before}, now {byte}: {seen:?}"
                ));
            }
        }
        self.segments.push(seen);
        Ok(())
    }

    fn check_stamp(&mut self, seen: &Seen) -> Result<(), String> {
        let Some((value, echo)) = seen.stamp else {
            return if self.timestamps {
                Err(format!("P5: no timestamp: {seen:?}"))
            } else {
                Ok(())
            };
        };
        if (value.wrapping_sub(self.peer_stamp) as i32) < -ORDER_MS {
            return Err(format!(
                "P5: timestamp before {}: {seen:?}",
                self.peer_stamp
            ));
        }
        if (self.newest_stamp.wrapping_sub(echo) as i32) < 0 {
            return Err(format!("P5: echo of {echo}, which was never sent"));
        }
        Ok(())
    }

    fn check_ack(&mut self, seen: &Seen, window: u16) -> Result<(), String> {
        if seen.ack > self.sent {
            return Err(format!("P2: {} was never sent: {seen:?}", seen.ack));
        }
        if seen.ack < self.acked {
            let age = seen
                .stamp
                .map(|(value, _)| value.wrapping_sub(self.peer_stamp) as i32);
            return match age {
                Some(age) if age > ORDER_MS => Err(format!(
                    "P2: {} was acknowledged before: {seen:?}",
                    self.acked
                )),
                _ => Ok(()),
            };
        }
        self.acked = seen.ack;
        let edge = seen.ack + (i64::from(window) << self.scale);
        if !self.closing && edge + (1 << self.scale) < self.server_right_edge {
            return Err(format!(
                "P4: right edge {edge} after {}",
                self.server_right_edge
            ));
        }
        self.server_right_edge = self.server_right_edge.max(edge);
        Ok(())
    }

    /// End of what came in order.
    #[must_use]
    pub fn stream_end(&self) -> i64 {
        let in_order = (0..)
            .zip(self.bytes.keys())
            .take_while(|(want, have)| want == *have);
        in_order.count() as i64
    }

    /// The stream's bytes from here on, as far as there are any, up to so many.
    #[must_use]
    pub fn stream(&self, at: i64, length: usize) -> Vec<u8> {
        let range = self.bytes.range(at..at + length as i64);
        (at..)
            .zip(range)
            .take_while(|(want, (have, _))| want == *have)
            .map(|(_, (_, b))| *b)
            .collect()
    }
}
