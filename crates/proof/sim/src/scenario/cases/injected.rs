// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of what waits come again when it may go (`bpf/splice/hold.h`, `bpf/splice/inject.h`), and who waits too long
//! is ended.

use erb_abi as abi;
use erb_redis::HoldingState;
use erb_sim_tcp::{Segment, flags};

use crate::client::resp::request;
use crate::profile::Tier;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup};
use crate::server::HOLD_MAX;
use crate::time::{MS, Ns, SECOND};

/// Long before a client's first retransmission timeout.
const SOON: Ns = 20 * MS;

impl Scenario {
    /// Copies that were made, and that came again.
    fn copies(&self) -> (u64, u64) {
        let injected = self.stat(abi::STAT_HELD_INJECTED);
        (self.stat(abi::STAT_HELD_COPIED), injected)
    }

    fn holding(&self) -> HoldingState {
        let state = self.world.server.boost.with(|core| core.holding());
        state.expect("the daemon is between two turns")
    }

    /// Within how long `work` is done.
    fn takes<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> (Ns, T) {
        let began = self.now();
        let result = work(self);
        (self.now() - began, result)
    }
}

/// In every tier and over every kind of frame that can be copied, whether the connection is translated or not.
pub(crate) fn comes_again() {
    let usual = Setup::default;
    let setups = [
        usual(),
        Setup {
            tier: Tier::Tc,
            ..usual()
        },
        Setup {
            tier: Tier::Loopback,
            ..usual()
        },
        Setup {
            vlan: Some(7),
            ..usual()
        },
        Setup {
            vlan: Some(7),
            tier: Tier::Tc,
            bare: true,
            ..usual()
        },
        Setup {
            ipv6: true,
            bare: true,
            ..usual()
        },
        Setup {
            merge: true,
            tier: Tier::Tc,
            ..usual()
        },
    ];
    for setup in setups {
        let mut s = Scenario::new(setup);
        s.cached(b"c", b"v");
        let client = s.fast();
        for number in 1..=2 {
            s.absorb();
            s.ask(client, &[b"SET", b"k", b"v"]);
            s.run(MS);
            assert_eq!(s.copies(), (number, number - 1), "{}", s.counters());
            s.world.server.stop_stack(true);
            s.drain();
            s.until("the copy comes", |s| s.copies().1 == number);
            let frames = s.world.server.stopped_in_stack();
            let copy = Segment::parse(&frames[0]).expect("a whole segment");
            assert_eq!(copy.vlan, s.world.inner.plan.profile.vlan);
            assert_eq!(copy.payload, request(&[b"SET", b"k", b"v"]));
            s.world.server.stop_stack(false);
            let (took, reply) = s.takes(|s| s.answers(client));
            assert_eq!(reply, b"+OK\r\n");
            assert!(took < SOON, "its client's timer did it: {}", s.counters());
            // The next time its numbers are not the kernel's.
            s.call(client, &[b"PING"]);
            assert!(s.is_fast_now(client, b"c"));
        }
        assert_eq!(s.holding(), HoldingState::default());
        s.finish();
    }
}

/// Several packets of one connection come when the last may go, in their order; another's do not wait for them.
pub(crate) fn in_order() {
    let mut s = Scenario::new(Setup::default());
    let (client, other) = (s.fast(), s.fast());
    s.absorb();
    s.ask(client, &[b"SET", b"k", b"v"]);
    s.ask(other, &[b"SET", b"o", b"v"]);
    s.run(MS);
    s.absorb();
    s.ask(client, &[b"APPEND", b"k", b"w"]);
    s.ask(client, &[b"GET", b"k"]);
    s.run(MS);
    s.drain_to(1);
    assert_eq!(s.answers(other), b"+OK\r\n");
    s.run(SOON);
    assert_eq!(s.copies(), (4, 1), "{}", s.counters());
    s.drain();
    let (took, replies) = s.takes(|s| s.answers(client));
    assert_eq!(replies, b"+OK\r\n:2\r\n$2\r\nvw\r\n");
    assert!(took < SOON, "{}", s.counters());
    assert_eq!(s.copies(), (4, 4));
    s.finish();
}

/// Who repeats what waits has it copied once, for a while.
pub(crate) fn copied_once() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    s.absorb();
    let bytes = request(&[b"SET", b"k", b"v"]);
    let seq = talk.seq;
    talk.say(&mut s, &bytes);
    for _ in 0..40 {
        talk.raw.data(&mut s, seq, talk.ack, &bytes);
    }
    assert_eq!(s.held(), (1, 40));
    assert_eq!(s.copies(), (1, 0), "{}", s.counters());
    // What it says behind that is another packet; both are there.
    talk.ask(&mut s, &[b"GET", b"k"]);
    talk.raw.data(&mut s, seq, talk.ack, &bytes);
    assert_eq!(s.copies(), (2, 0), "{}", s.counters());
    // The daemon may have died since, and the copy with it. One that lives has what it needs.
    s.run(2 * u64::from(abi::LEASE_MS) * MS);
    talk.raw.data(&mut s, seq, talk.ack, &bytes);
    assert_eq!(s.copies(), (3, 0), "{}", s.counters());
    assert_eq!(s.holding().packets, 2);
    s.drain();
    s.run(SOON);
    assert_eq!(talk.hear(&mut s), b"+OK\r\n$1\r\nv\r\n");
    assert_eq!(s.copies(), (3, 2));
    s.finish();
}

/// What its client says while the copy is on its way may wait for more. Then so does the copy, once more.
pub(crate) fn held_once_more() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    s.absorb();
    s.ask(client, &[b"SET", b"k", b"v"]);
    s.run(MS);
    s.world.server.stop_stack(true);
    s.drain();
    s.until("the copy is on its way", |s| s.copies().1 == 1);
    s.absorb();
    s.ask(client, &[b"APPEND", b"k", b"w"]);
    s.run(MS);
    s.world.server.stop_stack(false);
    s.run(MS);
    assert_eq!(s.held(), (2, 1), "{}", s.counters());
    assert_eq!(s.copies(), (3, 1), "{}", s.counters());
    s.drain();
    let (took, replies) = s.takes(|s| s.answers(client));
    assert_eq!(replies, b"+OK\r\n:2\r\n");
    assert!(took < SOON, "its client's timer did it: {}", s.counters());
    s.finish();
}

/// Without a copy its client's repetition does it: the ring is full, the packet too long, the daemon dead.
pub(crate) fn without_copy() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    let mut talk = Talk::fast(&mut s);
    s.stop_daemon(true);
    s.absorb();
    let seq = talk.seq;
    let say = request(&[b"SET", b"o", &[b'x'; 1_000]]);
    for _ in 0..12 {
        talk.send(&mut s, &[b"SET", b"o", &[b'x'; 1_000]]);
    }
    s.ask(client, &[b"SET", b"k", b"v"]);
    s.run(MS);
    assert!(s.stat(abi::STAT_HELD_UNCOPIED) > 0, "{}", s.counters());
    // Once there is room again, what comes again is copied.
    let (copied, _) = s.copies();
    let again = |s: &mut Scenario, talk: &mut Talk, number: u32| {
        let at = seq + number * say.len() as u32;
        let heard = talk.raw.data(s, at, talk.ack, &say);
        talk.take(&heard)
    };
    s.stop_daemon(false);
    s.run(MS);
    again(&mut s, &mut talk, 11);
    assert_eq!(s.copies(), (copied + 1, 0), "{}", s.counters());
    // Nobody has the copies any more.
    s.kill_daemon();
    s.drain();
    assert_eq!(s.answers(client), b"+OK\r\n");
    assert_eq!(s.copies().1, 0, "{}", s.counters());
    let heard: Vec<u8> = (0..12)
        .flat_map(|number| again(&mut s, &mut talk, number))
        .collect();
    assert_eq!(heard, b"+OK\r\n".repeat(12));
    // The next daemon finds old copies: of bytes that TCP has.
    s.attach();
    s.settle();
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
    assert_eq!(s.holding(), HoldingState::default());
    s.finish();
}

/// Merged packets of more than 2 KiB are not copied: who waits is known all the same.
pub(crate) fn too_long() {
    let mut s = Scenario::new(Setup {
        tier: Tier::Loopback,
        ..Setup::default()
    });
    let mut talk = Talk::fast(&mut s);
    s.absorb();
    let bytes = request(&[b"SET", b"k", &[b'v'; 5_000]]);
    let seq = talk.seq;
    talk.say(&mut s, &bytes);
    let uncopied = (s.stat(abi::STAT_HELD_UNCOPIED), s.copies());
    assert_eq!(uncopied, (1, (0, 0)), "{}", s.counters());
    let state = s.holding();
    assert_eq!((state.connections, state.packets), (1, 0));
    s.drain();
    let heard = talk.raw.data(&mut s, seq, talk.ack, &bytes);
    assert_eq!(talk.take(&heard), b"+OK\r\n");
    s.run(MS);
    assert_eq!(s.holding(), HoldingState::default());
    s.finish();
}

/// Behind the connection there is nothing to come again, whoever has its addresses then.
pub(crate) fn gone() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    s.absorb();
    // TCP does not have what is held.
    let rst = talk.raw.segment(talk.seq, talk.ack, flags::RST, b"");
    talk.ask(&mut s, &[b"SET", b"k", b"v"]);
    talk.raw.send(&mut s, &rst);
    let mut next = talk.raw.clone();
    next.isn = talk.raw.isn.wrapping_add(1 << 20);
    let mut talk = Talk::connected(&mut s, next);
    talk.ask(&mut s, &[b"GET", b"k"]);
    s.drain();
    s.run(SOON);
    assert_eq!(talk.hear(&mut s), b"$-1\r\n");
    // The one that came again is the other's.
    assert_eq!(s.copies(), (2, 1), "{}", s.counters());
    s.finish();
}

/// Who waits longer than is allowed is reset, and nothing of it is ever executed.
pub(crate) fn ended() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let mut other = Talk::fast(&mut s);
    s.absorb();
    talk.ask(&mut s, &[b"SET", b"k", b"v"]);
    s.run(HOLD_MAX - 100 * MS);
    other.ask(&mut s, &[b"SET", b"o", b"v"]);
    assert!(s.socket_of(talk.raw.pair()).is_some());
    assert_eq!(s.holding().ended, 0);
    s.run(200 * MS);
    let heard = talk.raw.received(&mut s);
    assert!(heard.iter().any(|segment| segment.has(flags::RST)));
    assert!(s.socket_of(talk.raw.pair()).is_none());
    let state = s.holding();
    assert_eq!((state.ended, state.connections), (1, 1));
    // The other need not wait any more.
    s.drain();
    s.run(SOON);
    assert_eq!(other.hear(&mut s), b"+OK\r\n");
    assert_eq!(s.read(b"k"), b"$-1\r\n");
    s.run(SECOND);
    s.finish();
}
