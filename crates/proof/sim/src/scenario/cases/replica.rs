// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis as a replica: what its master sends, loads anew or no longer guarantees (C-15,
//! C-22).

use erb_abi as abi;

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

/// The longest that a change which no packet shows may stay hidden.
const LEASE: u64 = abi::LEASE_MS as u64 * MS;

/// A replica, served, with one cached key and who asks for it.
fn replica(seed: u64) -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup {
        seed,
        ..Setup::default()
    });
    s.unseen(&[b"REPLICAOF", b"10.0.0.99", b"6379"]);
    s.world.server.master_link(true);
    from_master(&mut s, &[b"SET", b"k", b"old"]);
    s.run(2 * SECOND);
    assert_eq!(s.control().serving, 1, "a replica is served");
    let client = s.fast();
    fill(&mut s, client, b"$3\r\nold\r\n");
    (s, client)
}

fn from_master(s: &mut Scenario, argv: &[&[u8]]) {
    s.world.server.ask_as_master(&request(argv));
    s.settle();
}

/// Asks until the answer is fast.
fn fill(s: &mut Scenario, client: ConnId, answer: &[u8]) {
    let fast = s.stat(abi::STAT_FAST_GET);
    for _ in 0..200 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), answer);
        s.run(5 * MS);
        if s.stat(abi::STAT_FAST_GET) > fast {
            return;
        }
    }
    panic!("never answered fast: {}", s.counters());
}

/// What a replica's master writes is seen like any unseen change; the replica's own clients may not
/// write, and lose nothing by trying.
pub(crate) fn follows_its_master() {
    for seed in 1..=8 {
        let (mut s, client) = replica(seed);
        from_master(&mut s, &[b"SET", b"k", b"new"]);
        s.run(LEASE);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        fill(&mut s, client, b"$3\r\nnew\r\n");
        let refused = s.call(client, &[b"SET", b"k", b"mine"]);
        assert!(refused.starts_with(b"-READONLY"), "{refused:?}");
        fill(&mut s, client, b"$3\r\nnew\r\n");
        // A key past its end is hidden until the master deletes it.
        let end = (s.world.inner.wall_ns() / 1_000_000 + 300).to_string();
        from_master(&mut s, &[b"PEXPIREAT", b"k", end.as_bytes()]);
        s.run(LEASE);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        s.run(400 * MS);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
        from_master(&mut s, &[b"DEL", b"k"]);
        s.unseen(&[b"REPLICAOF", b"NO", b"ONE"]);
        assert_eq!(s.call(client, &[b"SET", b"k", b"mine"]), b"+OK\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$4\r\nmine\r\n");
        s.finish();
    }
}

/// A full resynchronisation empties the replica, and Redis refuses until it is loaded.
pub(crate) fn loaded_anew() {
    for seed in 1..=8 {
        let (mut s, client) = replica(seed);
        s.world.server.resync(true);
        s.run(LEASE + 10 * MS);
        let refused = s.call(client, &[b"GET", b"k"]);
        assert!(refused.starts_with(b"-LOADING"), "{refused:?}");
        s.run(300 * MS);
        s.world.server.resync(false);
        s.settle();
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
        from_master(&mut s, &[b"SET", b"k", b"new"]);
        s.run(2 * SECOND);
        fill(&mut s, client, b"$3\r\nnew\r\n");
        s.finish();
    }
}

/// A replica that shows no stale data refuses reads while its master is away: so does ERB, at most a
/// lease later.
pub(crate) fn master_is_away() {
    for seed in 1..=8 {
        let (mut s, client) = replica(seed);
        s.unseen(&[b"CONFIG", b"SET", b"replica-serve-stale-data", b"no"]);
        s.run(SECOND);
        fill(&mut s, client, b"$3\r\nold\r\n");
        s.world.server.master_link(false);
        s.run(LEASE + 10 * MS);
        for _ in 0..20 {
            let refused = s.call(client, &[b"GET", b"k"]);
            assert!(refused.starts_with(b"-MASTERDOWN"), "{refused:?}");
            s.run(20 * MS);
        }
        s.world.server.master_link(true);
        s.run(SECOND);
        fill(&mut s, client, b"$3\r\nold\r\n");
        s.finish();
    }
}
