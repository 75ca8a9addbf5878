// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a world must offer, so that exchanges can be played in it.

use std::net::SocketAddrV4;
use std::time::Duration;

/// Both ends as frames name them.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The raw client; nothing else in its world answers for this address and port.
    pub client: SocketAddrV4,
    /// Its hardware address.
    pub client_mac: [u8; 6],
    /// Redis.
    pub server: SocketAddrV4,
    /// The server's hardware address.
    pub server_mac: [u8; 6],
}

/// A boosted Redis, and a cable to it.
pub trait Wire {
    /// Both ends for the next exchange: a port that no exchange has had.
    fn fresh_ends(&mut self) -> Ends;
    /// Sends frames, in order, at once.
    fn send(&mut self, frames: &[Vec<u8>]);
    /// The next frame that arrives before `until`, which is on the clock of [`Wire::now`].
    fn receive(&mut self, until: Duration) -> Option<Vec<u8>>;
    /// Time of this world.
    fn now(&mut self) -> Duration;
    /// Longest wait for what must come: retransmission timers double a few times in it.
    fn wait_max(&self) -> Duration {
        Duration::from_secs(6)
    }
    /// The reply to a command (words separated by blanks) on an ordinary connection through ERB.
    fn ask(&mut self, words: &str) -> String;
    /// Reads `key` over the ordinary connection until ERB answers it.
    fn heat(&mut self, key: &str);
    /// Counters of `bpf/base/reasons.def`, all read at one time.
    fn counters(&mut self, names: &[&'static str]) -> Vec<u64>;
    /// Checks what must hold when nothing is under way: no mark, no fence, no broken invariant.
    fn settle(&mut self);
}
