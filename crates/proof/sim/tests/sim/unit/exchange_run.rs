// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exchanges of raw segments in a simulated world: what comes back is what the lab stored.

use std::collections::VecDeque;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use erb_segments::exchanges;
use erb_segments::expected::agree;
use erb_segments::wire::{Ends, Wire};
use erb_sim_tcp::Macs;

use erb_sim::ConnId;
use erb_sim::client::machine::{SERVER_MAC, machine_mac};
use erb_sim::link::Frame;
use erb_sim::scenario::{RAW_MACHINE, Scenario, Setup};
use erb_sim::time::{MS, Ns, US};

/// Between two looks at what came.
const LOOK: Ns = 100 * US;
/// Tries to make a key hot, and waits for the world to come to rest.
const TRIES: u32 = 400;
/// What a SET said is over by then.
const WRITTEN: Ns = erb_abi::WRITTEN_NS as Ns + 10 * MS;

/// A scenario as exchanges see it.
struct SimWire {
    scenario: Scenario,
    side: ConnId,
    client: SocketAddr,
    waiting: VecDeque<Vec<u8>>,
}

impl SimWire {
    fn new(seed: u64) -> Self {
        let mut scenario = Scenario::new(Setup {
            seed,
            ..Setup::default()
        });
        let side = scenario.fast();
        let client = scenario.raw().pair().1;
        Self {
            scenario,
            side,
            client,
            waiting: VecDeque::new(),
        }
    }

    fn take_in(&mut self) {
        let macs = Macs {
            src: SERVER_MAC,
            dst: machine_mac(RAW_MACHINE),
        };
        let machine = &mut self.scenario.world.machines[RAW_MACHINE];
        let came = machine.take_raw(self.client);
        self.waiting
            .extend(came.iter().map(|segment| segment.to_frame(macs)));
    }

    fn count(&self, name: &str) -> u64 {
        let at = erb_abi::REASONS
            .iter()
            .position(|reason| reason.name == name);
        let at = at.unwrap_or_else(|| panic!("no counter {name}"));
        let stat = erb_abi::erb_stat::try_from(at).expect("few counters");
        self.scenario.stat(stat)
    }
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("exchanges speak IPv4"),
    }
}

impl Wire for SimWire {
    fn fresh_ends(&mut self) -> Ends {
        let (server, client) = self.scenario.raw().pair();
        self.client = client;
        self.waiting.clear();
        Ends {
            client: v4(client),
            client_mac: machine_mac(RAW_MACHINE),
            server: v4(server),
            server_mac: SERVER_MAC,
        }
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let inner = &self.scenario.world.inner;
            inner.send_up(RAW_MACHINE, Frame::new(frame.clone()));
        }
    }

    fn receive(&mut self, until: Duration) -> Option<Vec<u8>> {
        let until = Ns::try_from(until.as_nanos()).expect("centuries");
        loop {
            self.take_in();
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            let now = self.scenario.now();
            if now >= until {
                return None;
            }
            self.scenario.run(LOOK.min(until - now));
        }
    }

    fn now(&mut self) -> Duration {
        Duration::from_nanos(self.scenario.now())
    }

    fn ask(&mut self, words: &str) -> String {
        let words: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        let reply = self.scenario.call(self.side, &words);
        String::from_utf8_lossy(&reply).into_owned()
    }

    fn heat(&mut self, key: &str) {
        // What a SET said is over soon.
        self.scenario.run(WRITTEN);
        for _ in 0..TRIES {
            let before = self.count("FAST_GET");
            self.ask(&format!("GET {key}"));
            self.scenario.run(3 * MS);
            if self.count("FAST_GET") > before {
                return;
            }
        }
        panic!("{key} is never answered fast");
    }

    fn counters(&mut self, names: &[&'static str]) -> Vec<u64> {
        names.iter().map(|name| self.count(name)).collect()
    }

    fn settle(&mut self) {
        for _ in 0..TRIES {
            let even = self.count("MARK_TAKEN") == self.count("MARK_RELEASED")
                && self.count("FENCE_TAKEN") == self.count("FENCE_RELEASED");
            if even && self.scenario.control().fence == 0 {
                assert_eq!(self.count("INVARIANT"), 0, "invariants broken");
                return;
            }
            self.scenario.run(50 * MS);
        }
        panic!("marks or fence stay");
    }
}

/// Exchanges one after the other in one world, as in the lab.
fn all_agree(seed: u64) {
    let mut wire = SimWire::new(seed);
    let failures: Vec<String> = exchanges::all()
        .iter()
        .filter_map(|exchange| agree(&mut wire, exchange).err())
        .collect();
    assert!(
        failures.is_empty(),
        "seed {seed}: {}",
        failures.join("\n\n")
    );
}

#[test]
fn raw_segments_give_the_stored_logs() {
    for seed in 1..17 {
        all_agree(seed);
    }
}
