// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goal: whatever the link does, both streams arrive byte for byte and both ends close.
//! Method: two hosts, a seeded link of frames, both sides write and read in random portions.

use crate::util::{Faults, MS, Net, PORT, SEC, client_addr, server_addr};
use erb_sim_tcp::{Config, EventKind, SockId};
use proptest::prelude::*;

struct Side {
    id: Option<SockId>,
    to_send: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    shut: bool,
    ended: bool,
    failed: bool,
}

impl Side {
    fn new(rng: &mut fastrand::Rng, max: usize) -> Side {
        let len = rng.usize(..max);
        let to_send = (0..len).map(|_| rng.u8(..)).collect();
        Side {
            id: None,
            to_send,
            sent: 0,
            got: Vec::new(),
            shut: false,
            ended: false,
            failed: false,
        }
    }

    fn act(&mut self, host: &mut erb_sim_tcp::Host, now: u64, rng: &mut fastrand::Rng) {
        let Some(id) = self.id else { return };
        if rng.u32(..4) > 0 {
            host.recv(now, id, rng.usize(1..20_000), &mut self.got);
        }
        if self.sent < self.to_send.len() {
            let portion = rng.usize(1..20_000).min(self.to_send.len() - self.sent);
            let rest = &self.to_send[self.sent..self.sent + portion];
            self.sent += host.send(now, id, rest);
        } else if !self.shut {
            self.shut = true;
            host.shutdown_write(now, id);
        }
    }

    fn note(&mut self, kind: EventKind) {
        match kind {
            EventKind::PeerClosed => self.ended = true,
            EventKind::Reset | EventKind::TimedOut => self.failed = true,
            _ => {}
        }
    }
}

/// Runs one exchange; returns false if the link was too bad for it (a side gave up).
fn exchange(seed: u64, faults: Faults, configs: (Config, Config), max: usize) -> bool {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut net = Net::new(configs.0, configs.1, seed);
    net.faults = faults;
    let mut sides = [Side::new(&mut rng, max), Side::new(&mut rng, max)];
    sides[0].id = net.client.connect(net.now, client_addr(), server_addr());
    let mut connected = false;
    let end = net.now + 4000 * SEC;
    loop {
        while let Some(event) = net.client.pop_event() {
            connected |= event.kind == EventKind::Connected;
            sides[0].note(event.kind);
        }
        while let Some(event) = net.server.pop_event() {
            sides[1].note(event.kind);
        }
        if sides[1].id.is_none() {
            sides[1].id = net.server.accept(PORT);
        }
        if connected {
            sides[0].act(&mut net.client, net.now, &mut rng);
        }
        sides[1].act(&mut net.server, net.now, &mut rng);
        if sides[0].failed || sides[1].failed {
            return false;
        }
        let whole = sides.iter().all(|s| s.ended && s.shut);
        if whole
            && sides[0].got.len() == sides[1].to_send.len()
            && sides[1].got.len() == sides[0].to_send.len()
        {
            break;
        }
        net.step(net.now + 5 * MS);
        assert!(
            net.now < end,
            "seed {seed}: stuck; client {:?} got {} of {}, server {:?} got {} of {}",
            sides[0].id.and_then(|id| net.client.view(id)),
            sides[0].got.len(),
            sides[1].to_send.len(),
            sides[1].id.and_then(|id| net.server.view(id)),
            sides[1].got.len(),
            sides[0].to_send.len(),
        );
    }
    assert!(
        sides[0].got == sides[1].to_send,
        "seed {seed}: the client read other bytes"
    );
    assert!(
        sides[1].got == sides[0].to_send,
        "seed {seed}: the server read other bytes"
    );
    net.client.close(net.now, sides[0].id.expect("open"));
    net.server.close(net.now, sides[1].id.expect("open"));
    net.run(400 * SEC);
    assert_eq!(
        net.client.lookup(client_addr(), server_addr()),
        None,
        "seed {seed}"
    );
    let left = net
        .server
        .lookup(server_addr(), client_addr())
        .expect("the listener");
    assert!(left.listen, "seed {seed}: {left:?}");
    true
}

#[test]
fn a_lossless_link_repeats_nothing() {
    let mut net = Net::plain();
    let id = net
        .client
        .connect(net.now, client_addr(), server_addr())
        .expect("free");
    net.run(10 * MS);
    let server = net.server.accept(PORT).expect("a connection");
    assert_eq!(net.client.send(net.now, id, &[7; 50_000]), 50_000);
    let mut got = Vec::new();
    for _ in 0..200 {
        net.run(MS);
        net.server.recv(net.now, server, usize::MAX, &mut got);
    }
    assert_eq!(got, [7; 50_000]);
    assert_eq!(net.client.counters().retransmits, 0);
    assert_eq!(net.server.counters().challenge_acks, 0);
}

#[test]
fn both_streams_arrive_over_a_perfect_link() {
    for seed in 0..20 {
        let done = exchange(seed, Faults::default(), Default::default(), 300_000);
        assert!(done, "seed {seed}");
    }
}

fn config(bits: u32) -> Config {
    let on = |bit: u32| bits & 1 << bit != 0;
    Config {
        timestamps: on(0),
        sack: on(1),
        wscale: on(2).then_some(7),
        nagle: on(3),
        gso_segs: if on(4) { 8 } else { 1 },
        split_permille: if on(5) { 300 } else { 0 },
        rcv_buf: if on(6) { 20_000 } else { 131_072 },
        mss: if on(7) { 700 } else { 1460 },
        ts_usec: on(8),
        tlp: on(9),
        delayed_ack_ns: if on(10) { 0 } else { 200 * MS },
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, rng_algorithm: prop::test_runner::RngAlgorithm::ChaCha, rng_seed: prop::test_runner::RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_streams_arrive_over_a_terrible_link(
        seed in any::<u64>(), loss in 0u32..200, dup in 0u32..100, corrupt in 0u32..50,
        reorder in 0u32..300, a in 0u32..2048, b in 0u32..2048,
    ) {
        let faults = Faults { loss, dup, corrupt, reorder };
        exchange(seed, faults, (config(a), config(b)), 60_000);
    }
}

#[test]
fn few_exchanges_fail_over_a_bad_link() {
    let faults = Faults {
        loss: 50,
        dup: 20,
        corrupt: 10,
        reorder: 100,
    };
    let done = (0..20)
        .filter(|seed| exchange(*seed, faults, Default::default(), 60_000))
        .count();
    assert_eq!(done, 20);
}
