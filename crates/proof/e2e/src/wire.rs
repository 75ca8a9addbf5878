// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exchanges in a lab: segments through a raw socket, the programs in the kernel.
//!
//! The raw client uses an address that the client's kernel does not have, so nothing else answers
//! for it.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_lab::packet::{Batch, PacketSocket};
use erb_lab::{End, topology};
use erb_segments::wire::{Ends, Wire};
use erb_steady::patient;

use crate::calls::call;
use crate::lab::TestLab;

/// Address of the raw client.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 77);
/// Its first port.
const FIRST_PORT: u16 = 30_000;
/// Between two looks at the socket.
const LOOK: Duration = Duration::from_micros(200);
/// How often a full device queue is tried again.
const TRIES: u32 = 100;

/// A lab as exchanges see it.
pub struct LabWire<'a> {
    lab: &'a TestLab,
    side: Conn,
    socket: PacketSocket,
    batch: Batch,
    waiting: VecDeque<Vec<u8>>,
    began: Instant,
    port: u16,
}

impl<'a> LabWire<'a> {
    /// Opens the raw socket and the ordinary connection.
    ///
    /// # Panics
    /// If the lab does not let it.
    #[must_use]
    pub fn new(lab: &'a TestLab) -> Self {
        let state = lab.lab().state();
        let address = ADDRESS.to_string();
        let (mac, device) = (&state.client.mac, &state.server.device);
        let words = [
            "ip", "neigh", "replace", &address, "lladdr", mac, "dev", device,
        ];
        lab.exec(End::Server, &words);
        // The raw client sees what a cable carries: one segment per frame.
        let words = ["ip", "link", "set", "dev", device, "gso_max_segs", "1"];
        lab.exec(End::Server, &words);
        let socket = lab.inside(End::Client, || PacketSocket::open(&state.client.device));
        Self {
            lab,
            side: lab.client(),
            socket: socket.expect("packet socket"),
            batch: Batch::new(),
            waiting: VecDeque::new(),
            began: Instant::now(),
            port: FIRST_PORT,
        }
    }

    fn take_in(&mut self) {
        self.socket.receive(&mut self.batch).expect("receive");
        assert_eq!(self.batch.oversized, 0, "frames longer than a device's");
        self.waiting.extend(self.batch.frames().map(<[u8]>::to_vec));
    }
}

impl Wire for LabWire<'_> {
    fn fresh_ends(&mut self) -> Ends {
        self.port += 1;
        Ends {
            client: SocketAddrV4::new(ADDRESS, self.port),
            client_mac: topology::CLIENT_MAC,
            server: SocketAddrV4::new(topology::SERVER_IPV4, self.lab.lab().state().redis_port),
            server_mac: topology::SERVER_MAC,
        }
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let unsent = self.socket.send(&frames, TRIES, || sleep(LOOK));
        assert_eq!(unsent, 0, "the device takes nothing");
    }

    fn receive(&mut self, until: Duration) -> Option<Vec<u8>> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            // Looked at before the last look at the socket: nothing is missed.
            let over = self.now() >= until;
            self.take_in();
            if self.waiting.is_empty() {
                if over {
                    return None;
                }
                sleep(LOOK);
            }
        }
    }

    fn now(&mut self) -> Duration {
        self.began.elapsed()
    }

    fn wait_max(&self) -> Duration {
        patient(Duration::from_secs(6))
    }

    fn ask(&mut self, words: &str) -> String {
        call(&mut self.side, words)
    }

    fn heat(&mut self, key: &str) {
        self.lab.heat(&mut self.side, key);
    }

    fn counters(&mut self, names: &[&'static str]) -> Vec<u64> {
        if names.is_empty() {
            return Vec::new();
        }
        let counters = self.lab.counters();
        names.iter().map(|name| counters.get(name)).collect()
    }

    fn settle(&mut self) {
        self.lab.assert_settled();
    }
}
