// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of connections is full, or a client has its share of it (E-14):
//! who finds no room is not seen, and nobody else notices.

use erb_abi as abi;

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup, key_of};
use crate::time::{MS, Ns, SECOND};
use erb_sim_tcp::flags;

/// Places in the table; an address has half of them.
const PLACES: u32 = 8;
/// As long as what a connection that is not seen has written may be late.
const LATE_MAX: Ns = abi::LEASE_MS as Ns * MS;
/// Between two turns of the daemon, and what a look of its takes beside.
const TURN: Ns = 60 * MS;
/// As long as an admission may take.
const ADMITTED_WITHIN: Ns = 5 * SECOND;

fn setup(conns: u32) -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup {
        conns,
        ..Setup::default()
    });
    s.cached(b"k", b"v");
    let client = s.fast();
    s.is_fast_within(client, b"k", SECOND);
    (s, client)
}

/// So many connections of one address, each with an answer from Redis.
fn crowd(s: &mut Scenario, count: u32) -> Vec<Talk> {
    let mut talks = Vec::new();
    for _ in 0..count {
        let raw = s.raw();
        let mut talk = Talk::connected(s, raw);
        assert_eq!(talk.ask(s, &[b"PING"]), b"+PONG\r\n");
        talks.push(talk);
    }
    talks
}

fn is_seen(s: &Scenario, talk: &Talk) -> bool {
    s.entry_of(talk.raw.pair()).is_some()
}

/// What is shut or emptied for everybody when something cannot be followed.
fn closings(s: &Scenario) -> [u64; 4] {
    [
        abi::STAT_GATE_SHUT,
        abi::STAT_FENCE_TAKEN,
        abi::STAT_FENCE_PROOF,
        abi::STAT_CACHE_CLEARED,
    ]
    .map(|stat| s.stat(stat))
}

fn reset(s: &mut Scenario, talk: &Talk) {
    let end = talk
        .raw
        .segment(talk.seq, talk.ack, flags::RST | flags::ACK, b"");
    talk.raw.post(s, &end);
}

/// One address has its share and wants more: others find room, and are answered as before.
pub(crate) fn share_of_an_address() {
    let (mut s, client) = setup(PLACES);
    let before = closings(&s);
    let mut talks = crowd(&mut s, PLACES);
    assert_eq!(s.stat(abi::STAT_CONN_TABLE_FULL), 0);
    assert!(s.stat(abi::STAT_CONN_SHARE_FULL) > 0, "it had room");
    let seen = talks.iter().filter(|talk| is_seen(&s, talk)).count();
    assert_eq!(seen, 4, "half of the table");
    for talk in &mut talks {
        assert_eq!(talk.ask(&mut s, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
    }
    let other = s.open_on(1, None);
    s.call(other, &[b"PING"]);
    s.is_fast_within(other, b"k", SECOND);
    assert_eq!(closings(&s), before, "the crowd closed something");
    s.finish();
}

/// The table is full. What finds no room is answered by Redis, and what it writes shows when Redis
/// has pushed it.
pub(crate) fn writer_without_room() {
    let (mut s, client) = setup(PLACES);
    for _ in 0..4 {
        let conn = s.open_on(1, None);
        s.call(conn, &[b"PING"]);
    }
    let before = closings(&s);
    let mut talks = crowd(&mut s, 4);
    assert!(s.stat(abi::STAT_CONN_TABLE_FULL) > 0, "there was room");
    let mut writer = talks.pop().expect("a crowd");
    assert!(!is_seen(&s, &writer), "there was room");
    let fast = s.stat(abi::STAT_FAST_GET);
    for round in 0..20 {
        let value = format!("value{round}");
        let wrote = writer.ask(&mut s, &[b"SET", b"k", value.as_bytes()]);
        assert_eq!(wrote, b"+OK\r\n");
        let reply = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(writer.ask(&mut s, &[b"GET", b"k"]), reply.as_bytes());
        let began = s.now();
        while s.call(client, &[b"GET", b"k"]) != reply.as_bytes() {
            assert!(s.now() - began < LATE_MAX, "later than the lease");
        }
        s.is_fast_within(client, b"k", SECOND);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > fast + 10, "{}", s.counters());
    assert_eq!(closings(&s), before, "the writer closed something");
    s.run(2 * SECOND);
    assert!(
        s.world.server.unseen() > 0,
        "the daemon knows nothing of it"
    );
    s.finish();
}

/// Payload of a connection that found no room is still on its way to TCP when there is room: what
/// comes behind it is not its first.
pub(crate) fn room_while_payload_is_under_way() {
    let (mut s, client) = setup(PLACES);
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    let share = s.control().client_conns_max;
    let path = s.world.server.path.borrow().clone().expect("attached");
    path.set_client_share(0);
    s.stop_stack(true);
    talk.send(&mut s, &[b"SET", b"k", b"w"]);
    s.run(MS);
    assert!(s.stat(abi::STAT_CONN_SHARE_FULL) > 0, "it had room");
    path.set_client_share(share);
    talk.send(&mut s, &[b"PING"]);
    s.run(MS);
    assert!(!is_seen(&s, &talk), "it is believed to be new");
    s.stop_stack(false);
    s.run(10 * MS);
    assert_eq!(talk.hear(&mut s), b"+OK\r\n+PONG\r\n");
    s.run(LATE_MAX);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    s.finish();
}

/// While somebody finds no room, nothing is taken up as older than ERB: each of these closes the
/// fence. When there was room for long enough they are, one by one.
pub(crate) fn taken_up_when_there_is_room() {
    let (mut s, client) = setup(PLACES);
    let before = closings(&s);
    let mut talks = crowd(&mut s, PLACES);
    let mut late = talks.pop().expect("a crowd");
    assert!(!is_seen(&s, &late), "there was room");
    for talk in talks.drain(..2) {
        reset(&mut s, &talk);
    }
    s.run(3 * SECOND);
    for _ in 0..20 {
        assert_eq!(late.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        s.run(200 * MS);
    }
    assert!(!is_seen(&s, &late), "taken up at once");
    assert_eq!(closings(&s), before, "it closed something");
    s.run(Ns::from(abi::UNSEEN_CALM_NS));
    assert_eq!(late.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let entry = s.entry_of(late.raw.pair()).expect("not taken up");
    assert_eq!(u32::from(entry.state), abi::CONN_OLD);
    let began = s.now();
    loop {
        late.ask(&mut s, &[b"PING"]);
        late.ack(&mut s);
        s.run(20 * MS);
        let entry = s.entry_of(late.raw.pair()).expect("an entry");
        if u32::from(entry.state) == abi::CONN_FAST {
            break;
        }
        assert!(s.now() - began < ADMITTED_WITHIN, "{}", s.counters());
    }
    s.is_fast_within(client, b"k", ADMITTED_WITHIN);
    s.finish();
}

/// Connections that Redis closes stay in TIME_WAIT for a minute: their entries do not, if nothing
/// of them needs translation.
pub(crate) fn many_that_quit() {
    let (mut s, client) = setup(PLACES);
    for _ in 0..10 {
        let mut talks = crowd(&mut s, 4);
        for talk in &mut talks {
            assert_eq!(talk.ask(&mut s, &[b"QUIT"]), b"+OK\r\n");
            let end = talk
                .raw
                .segment(talk.seq, talk.ack + 1, flags::FIN | flags::ACK, b"");
            talk.raw.send(&mut s, &end);
        }
        s.run(3 * SECOND);
        let waits = s.world.server.host.borrow();
        let (local, remote) = talks[0].raw.pair();
        assert!(waits.lookup(local, remote).is_some(), "no TIME_WAIT");
    }
    for stat in [abi::STAT_CONN_TABLE_FULL, abi::STAT_CONN_SHARE_FULL] {
        assert_eq!(s.stat(stat), 0, "{}", s.counters());
    }
    assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
}

/// A MONITOR that nobody sees on the wire is read of in Redis's own counts.
pub(crate) fn monitor_without_room() {
    let (mut s, client) = setup(PLACES);
    let mut talks = crowd(&mut s, PLACES);
    let monitor = talks.last_mut().expect("a crowd");
    assert_eq!(monitor.ask(&mut s, &[b"MONITOR"]), b"+OK\r\n");
    assert!(
        s.entry_of(monitor.raw.pair()).is_none(),
        "there was room for it"
    );
    s.run(2 * SECOND);
    let fast = s.fast_packets();
    s.call(client, &[b"PING"]);
    assert_eq!(s.fast_packets(), fast, "a MONITOR did not see it");
}

/// A connection that has said nothing beside a crowd, and one by a SYN cookie: neither is in doubt
/// for ever.
pub(crate) fn silent_beside_a_crowd() {
    let (mut s, client) = setup(PLACES);
    let raw = s.raw();
    let mut silent = Talk::connected(&mut s, raw);
    let talks = crowd(&mut s, PLACES);
    assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
    for talk in &talks {
        reset(&mut s, talk);
    }
    s.run(3 * SECOND);
    assert!(s.is_fast_now(client, b"k"), "{}", s.counters());
    // Nothing of it has passed unseen, so it is believed.
    let argv: [&[u8]; 1] = [b"PING"];
    assert_eq!(silent.say(&mut s, &request(&argv)), b"+PONG\r\n");
    let entry = s.entry_of(silent.raw.pair()).expect("not tracked");
    assert_eq!(u32::from(entry.state), abi::CONN_FAST);
    let path = s.world.server.path.borrow().clone().expect("attached");
    assert_eq!(path.client_count(&key_of(silent.raw.pair())), 1);
    s.finish();
}

/// A table of which a turn of the daemon looks at a part only: what waits for proof and what must be
/// sent again are found as soon as in a small one.
pub(crate) fn large_table() {
    const ENTRIES: u32 = 60;
    let (mut s, client) = setup(4 * ENTRIES);
    let _crowd = crowd(&mut s, ENTRIES);
    let mut late = Talk::fast(&mut s);
    let mut mute = Talk::fast(&mut s);
    for _ in 0..5 {
        late.ack(&mut s);
        let resent = s.stat(abi::STAT_REPLAY_TIMEOUT);
        assert_eq!(late.ask(&mut s, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(Ns::from(abi::RTO_MIN_NS) + TURN);
        assert_eq!(
            s.stat(abi::STAT_REPLAY_TIMEOUT),
            resent + 1,
            "{}",
            s.counters()
        );
    }
    late.ack(&mut s);
    mute.ask(&mut s, &[b"CLIENT", b"REPLY", b"OFF"]);
    for _ in 0..5 {
        mute.ask(&mut s, &[b"SET", b"other", b"w"]);
        assert!(s.control().fence > 0, "it waits for proof");
        s.run(2 * TURN);
        assert_eq!(s.control().fence, 0, "a round of the table was waited for");
    }
    s.is_fast_within(client, b"k", SECOND);
    s.finish();
}
