// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs that cannot be answered now, but soon: their copies come again then (`bpf/splice/absorb.h`, I11).

use erb_abi as abi;

use crate::ConnId;
use crate::client::session::Deed;
use crate::profile::Tier;
use crate::scenario::Scenario;
use crate::scenario::cases::absorb::{absorbing, absorbing_at};
use crate::time::{MS, Ns, SECOND};

impl Scenario {
    /// SETs that were delayed; that went up as a command of their set had no reply.
    fn delays(&self) -> (u64, u64) {
        let (delayed, marked) = (abi::STAT_ABSORB_DELAYED, abi::STAT_ABSORB_MARKED);
        (self.stat(delayed), self.stat(marked))
    }

    /// Redis stands still, and what was answered has waited for too long. Returns whose it is.
    fn is_late(&mut self) -> ConnId {
        let client = self.absorbs();
        self.stop_redis(true);
        assert_eq!(self.call(client, &[b"SET", b"k", b"one"]), b"+OK\r\n");
        self.run(2 * Ns::from(abi::ABSORB_AGE_NS));
        client
    }

    /// So many SETs are answered in Redis's place, without their client's timer.
    fn are_absorbed_soon(&mut self, client: ConnId, count: usize) {
        let (absorbed, began) = (self.absorbed(), self.now());
        assert_eq!(self.answers(client), b"+OK\r\n".repeat(count));
        let took = self.now() - began;
        let all = absorbed + count as u64;
        assert_eq!(self.absorbed(), all, "{}", self.counters());
        assert!(took < 20 * MS, "its client's timer did it: {took} ns");
    }
}

/// While what was answered waits for too long nobody answers more, and nobody bothers Redis with it either: it is
/// answered as soon as that is drained. In all tiers.
pub(crate) fn late() {
    for tier in [Tier::Native, Tier::Tc, Tier::Loopback] {
        let mut s = absorbing_at(tier);
        let client = s.absorbs();
        s.stop_redis(true);
        assert_eq!(s.call(client, &[b"SET", b"k", b"one"]), b"+OK\r\n");
        s.run(Ns::from(abi::ABSORB_AGE_NS) / 2);
        assert_eq!(s.call(client, &[b"SET", b"k", b"two"]), b"+OK\r\n");
        s.run(Ns::from(abi::ABSORB_AGE_NS));
        s.ask(client, &[b"SET", b"k", b"three"]);
        s.run(MS);
        assert_eq!((s.absorbed(), s.delays()), (2, (1, 0)), "{}", s.counters());
        s.stop_redis(false);
        s.are_absorbed_soon(client, 1);
        s.reads(client);
        assert_eq!(s.call(client, &[b"SET", b"k", b"four"]), b"+OK\r\n");
        assert_eq!(s.absorbed(), 4, "it is drained in time again");
        s.drains();
        assert_eq!(s.stat(abi::STAT_HELD), 0, "{}", s.counters());
        assert_eq!(s.call(client, &[b"GETDEL", b"k"]), b"$4\r\nfour\r\n");
        s.finish();
    }
}

/// A client that does not wait for replies: what it says behind a delayed SET waits with it, and is answered in order.
/// For TCP there is no hole.
pub(crate) fn in_order() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = absorbing_at(tier);
        let client = s.is_late();
        for value in [b"two".as_slice(), b"three", b"four"] {
            s.ask(client, &[b"SET", b"k", value]);
            s.run(MS / 4);
        }
        let behind = s.stat(abi::STAT_ABSORB_BEHIND);
        assert_eq!(
            (s.absorbed(), s.delays().0, behind),
            (1, 1, 2),
            "{}",
            s.counters()
        );
        s.stop_redis(false);
        s.are_absorbed_soon(client, 3);
        s.drains();
        assert_eq!(s.stat(abi::STAT_HELD), 0, "{}", s.counters());
        assert_eq!(s.call(client, &[b"GETDEL", b"k"]), b"$4\r\nfour\r\n");
        s.finish();
    }
}

/// Who has waited for as long as a lease lasts goes up, and waits there like all others.
pub(crate) fn not_for_ever() {
    let mut s = Scenario::new(absorbing());
    let client = s.is_late();
    s.ask(client, &[b"SET", b"k", b"two"]);
    s.run(4 * Ns::from(abi::DELAY_NS));
    let held = s.stat(abi::STAT_HELD);
    assert!(s.delays().0 > 0 && held == 1, "{}", s.counters());
    s.stop_redis(false);
    assert_eq!(s.answers(client), b"+OK\r\n");
    assert_eq!(s.absorbed(), 1, "{}", s.counters());
    assert_eq!(s.call(client, &[b"GETDEL", b"k"]), b"$3\r\ntwo\r\n");
    s.finish();
}

/// A command on the key is under way: the SET waits for its reply, and marks nothing itself.
pub(crate) fn behind_a_command() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = absorbing_at(tier);
        let other = s.fast();
        let client = s.absorbs();
        s.stop_redis(true);
        s.ask(other, &[b"APPEND", b"k", b"er"]);
        s.run(MS / 2);
        s.ask(client, &[b"SET", b"k", b"new"]);
        s.run(MS);
        assert!(s.delays().0 > 0, "{}", s.counters());
        s.stop_redis(false);
        s.are_absorbed_soon(client, 1);
        assert_eq!(s.answers(other), b":5\r\n", "old, and er");
        assert_eq!(s.delays().1, 0, "{}", s.counters());
        s.drains();
        assert_eq!(s.call(client, &[b"GETDEL", b"k"]), b"$3\r\nnew\r\n");
        s.finish();
    }
}

/// Nobody waits for long for a mark whose reply does not come: the SET goes up, and for a second so do others of its
/// set at once. Here a client has gone, and what it said is to be proved first.
pub(crate) fn behind_a_mark_that_stays() {
    let mut s = Scenario::new(absorbing());
    let gone = s.fast();
    let client = s.absorbs();
    s.stop_redis(true);
    s.ask(gone, &[b"INCR", b"n"]);
    s.run(MS / 2);
    s.deed(gone, Deed::Abort);
    s.run(MS / 2);
    s.stop_redis(false);
    s.run(MS);
    let writes = |s: &mut Scenario| {
        let (delayed, up) = s.delays();
        assert_eq!(s.call(client, &[b"SET", b"n", b"7"]), b"+OK\r\n");
        let now = s.delays();
        (now.0 - delayed, now.1 - up)
    };
    let (delayed, up) = writes(&mut s);
    assert!(delayed > 0 && up == 1, "{}", s.counters());
    assert_eq!(writes(&mut s), (0, 1), "it is known to stay");
    s.run(4 * SECOND);
    s.reads(client);
    assert_eq!(writes(&mut s), (0, 0), "it was proved");
    assert_eq!(s.absorbed(), 1, "{}", s.counters());
    s.finish();
}

/// What has no copy goes up: its client's timer would be longer than what Redis takes.
pub(crate) fn without_copy() {
    let mut s = Scenario::new(absorbing());
    s.cached(b"k", b"old");
    let other = s.fast();
    s.is_late();
    // Nobody takes copies, and their ring fills.
    s.stop_daemon(true);
    let value = [b'v'; 1_300];
    let mut fillers = Vec::new();
    while s.stat(abi::STAT_HELD_UNCOPIED) == 0 {
        let filler = s.open();
        s.ask(filler, &[b"SET", b"filler", &value]);
        s.run(MS / 8);
        fillers.push(filler);
        assert!(fillers.len() < 1_000, "{}", s.counters());
    }
    let delayed = s.delays().0;
    s.ask(other, &[b"SET", b"k", &value]);
    s.run(MS);
    assert_eq!(s.delays().0, delayed, "{}", s.counters());
    assert!(s.stat(abi::STAT_ABSORB_LATE) > 0, "{}", s.counters());
    s.stop_redis(false);
    s.stop_daemon(false);
    assert_eq!(s.answers(other), b"+OK\r\n");
    for filler in fillers {
        assert_eq!(s.answers(filler), b"+OK\r\n");
    }
    s.finish();
}
