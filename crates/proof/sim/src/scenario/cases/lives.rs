// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beginnings and ends of connections, and of sockets (T-6, T-7, T-26, T-30).

use erb_abi as abi;
use erb_sim_tcp::{Segment, flags};

use crate::client::resp::request;
use crate::client::session::Stage;
use crate::scenario::tools::{Talk, len, tap};
use crate::scenario::{Raw, Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND};

/// Redis closes the connection of this client.
fn kill(s: &mut Scenario, raw: &Raw) {
    let address = raw.pair().1.to_string();
    s.unseen(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
}

fn conns(s: &Scenario) -> usize {
    s.world
        .server
        .path
        .borrow()
        .as_ref()
        .map_or(0, |path| path.conn_count())
}

pub(crate) fn stray_syn_and_rst() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let before = s.entry_of(talk.raw.pair()).expect("an entry");
    assert!(before.in_delta > 0 && before.out_delta > 0);
    let challenges = s.kernel().challenge_acks;
    let mut syn = talk.raw.segment(7777, 0, flags::SYN, b"");
    syn.ack = 0;
    talk.raw.send(&mut s, &syn);
    for seq in [talk.seq + 1_000_000, talk.seq + 5] {
        let rst = talk.raw.segment(seq, talk.ack, flags::RST, b"");
        talk.raw.send(&mut s, &rst);
    }
    assert!(
        s.kernel().challenge_acks > challenges,
        "no challenge was sent"
    );
    let after = s.entry_of(talk.raw.pair()).expect("the entry went");
    assert_eq!(
        (before.in_delta, before.out_delta, before.cookie),
        (after.in_delta, after.out_delta, after.cookie)
    );
    let fast = s.fast_packets();
    talk.raw.received(&mut s);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1, "a forged packet ended it");
    // The exact one ends it.
    let rst = talk.raw.segment(talk.seq, talk.ack, flags::RST, b"");
    talk.raw.send(&mut s, &rst);
    assert!(s.socket_of(talk.raw.pair()).is_none());
}

pub(crate) fn both_fins_and_a_lost_ack() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let fin = talk
        .raw
        .segment(talk.seq, talk.ack, flags::FIN | flags::ACK, b"");
    talk.raw.send(&mut s, &fin);
    s.settle();
    let began = s.now();
    let mut fins = 0;
    while s.now() - began < 3 * SECOND {
        s.run(10 * MS);
        for segment in talk.raw.received(&mut s) {
            let numbers = talk.raw.relative(&segment);
            assert_eq!(
                numbers,
                (talk.ack, talk.seq + 1),
                "not in the client's numbers: {segment:?}"
            );
            fins += u32::from(segment.has(flags::FIN));
        }
    }
    assert!(fins >= 2, "the kernel did not repeat its FIN");
    talk.raw.ack(&mut s, talk.seq + 1, talk.ack + 1);
    assert!(s.socket_of(talk.raw.pair()).is_none(), "LAST_ACK stayed");
}

pub(crate) fn syn_flood() {
    let mut s = Scenario::new(Setup::default());
    let before = conns(&s);
    for _ in 0..100 {
        let raw = s.raw();
        let mut syn = raw.segment(0, 0, flags::SYN, b"");
        syn.ack = 0;
        raw.post(&mut s, &syn);
    }
    s.settle();
    assert_eq!(conns(&s), before, "a SYN made an entry");
    // A blind third packet neither.
    let raw = s.raw();
    let mut syn = raw.segment(0, 0, flags::SYN, b"");
    syn.ack = 0;
    raw.send(&mut s, &syn);
    let refused = s.stat(abi::STAT_SOCK_REQUEST);
    raw.data(&mut s, 1, 77_777, &request(&[b"PING"]));
    assert_eq!(s.stat(abi::STAT_SOCK_REQUEST), refused + 1);
    assert_eq!(conns(&s), before);
}

pub(crate) fn first_payload_is_the_third_packet() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    let mut syn = raw.segment(0, 0, flags::SYN, b"");
    syn.ack = 0;
    syn.options.mss = Some(1460);
    let answer = raw.send(&mut s, &syn);
    raw.peer_isn = answer[0].seq;
    let pair = raw.pair();
    let look = s.world.server.host.borrow().lookup(pair.0, pair.1);
    assert_eq!(
        look.map(|look| look.state as u32),
        Some(12),
        "it must still be a request socket"
    );
    let mut talk = Talk {
        raw,
        seq: 1,
        ack: 1,
    };
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let fast = s.fast_packets();
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1);
}

pub(crate) fn time_wait_answers_old_packets() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let seq = talk.seq;
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    kill(&mut s, &talk.raw);
    let fin = talk.raw.received(&mut s);
    assert_eq!(talk.raw.relative(&fin[0]), (talk.ack, talk.seq));
    let own = talk
        .raw
        .segment(talk.seq, talk.ack + 1, flags::FIN | flags::ACK, b"");
    talk.raw.send(&mut s, &own);
    let pair = talk.raw.pair();
    let look = s.world.server.host.borrow().lookup(pair.0, pair.1);
    assert_eq!(look.map(|look| look.state as u32), Some(6), "TIME_WAIT");
    let (fast, replays) = (s.fast_packets(), s.stat(abi::STAT_REPLAY_REQUEST));
    // An old request comes again: TIME_WAIT's answer is in the client's numbers.
    let answers = talk.raw.data(&mut s, seq, talk.ack, &request(&[b"PING"]));
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_REPLAY_REQUEST), replays);
    for answer in &answers {
        assert!(answer.payload.is_empty());
        assert_eq!(talk.raw.relative(answer), (talk.ack + 1, talk.seq + 1));
    }
    assert!(!answers.is_empty(), "TIME_WAIT was silent");
}

pub(crate) fn fast_bytes_outlive_the_servers_fin() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    s.settle();
    let fast = s.stat(abi::STAT_FAST_GET);
    s.lose_down(1);
    s.ask(client, &[b"GET", b"k"]);
    s.until("the answer is lost", |s| {
        s.stat(abi::STAT_FAST_GET) == fast + 1
    });
    let address = s.pair(client).1.to_string();
    s.unseen(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
    let closing = s.entry(client).expect("an entry").flags;
    assert_ne!(
        u32::from(closing) & abi::CONN_F_CLOSING,
        0,
        "the FIN has not left"
    );
    let (filter, log) = tap();
    s.down(0, Some(filter));
    s.until("it is over", |s| s.stage(client) != Some(Stage::Open));
    assert!(
        log.borrow().iter().any(|one| one.payload == b"$1\r\nv\r\n"),
        "the answer was never repeated"
    );
    s.down(0, None);
    s.finish();
}

pub(crate) fn reset_of_a_vanished_socket() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    for _ in 0..3 {
        talk.ask(&mut s, &[b"PING"]);
    }
    let pair = talk.raw.pair();
    vanish(&mut s, &talk);
    assert!(s.socket_of(pair).is_none());
    let entry = s.entry_of(pair).expect("the entry stays for a while");
    assert!(entry.out_delta > 0);
    let none = s.stat(abi::STAT_SOCK_LISTEN);
    let answers = talk
        .raw
        .data(&mut s, talk.seq, talk.ack, &request(&[b"PING"]));
    assert_eq!(s.stat(abi::STAT_SOCK_LISTEN), none + 1);
    assert_eq!(answers.len(), 1);
    assert!(answers[0].has(flags::RST), "not a reset: {:?}", answers[0]);
    assert_eq!(
        talk.raw.relative(&answers[0]).0,
        talk.ack,
        "the client would not believe this reset"
    );
}

/// netfilter answers a spliced client's next command by a reset, which ends it at once; raw, the number
/// is seen.
pub(crate) fn netfilter_resets() {
    for (ipv6, vlan) in [(false, None), (true, None), (false, Some(7))] {
        let mut s = Scenario::new(Setup {
            ipv6,
            vlan,
            ..Setup::default()
        });
        let mut talk = Talk::fast(&mut s);
        let client = s.fast();
        for _ in 0..3 {
            talk.ask(&mut s, &[b"PING"]);
            assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
        }
        talk.ack(&mut s);
        s.world.server.reject(true);
        let set = request(&[b"SET", b"k", b"v"]);
        let answers = talk.raw.data(&mut s, talk.seq, talk.ack, &set);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].has(flags::RST), "not a reset: {:?}", answers[0]);
        let number = talk.raw.relative(&answers[0]).0;
        assert_eq!(number, talk.ack, "the client would not believe this reset");
        let pair = talk.raw.pair();
        assert!(s.socket_of(pair).is_some(), "not netfilter's reset");
        let asked = s.now();
        s.ask(client, &[b"SET", b"k", b"v"]);
        s.until("it is over", |s| s.stage(client) != Some(Stage::Open));
        assert!(s.now() - asked < 10 * MS, "after {} ns", s.now() - asked);
    }
}

/// A rule comes and goes while a reset of its and an answer are lost: the answer is repeated, and
/// the client is fast as before.
pub(crate) fn reset_of_nobody_is_lost() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let begin = talk.ack;
    let ping = request(&[b"PING"]);
    talk.raw.data(&mut s, talk.seq, begin, &ping); // the answer is lost
    talk.seq += len(&ping);
    s.world.server.reject(true);
    let set = request(&[b"SET", b"k", b"v"]);
    let answers = talk.raw.data(&mut s, talk.seq, begin, &set);
    assert!(answers.iter().any(|answer| answer.has(flags::RST)));
    s.world.server.reject(false);
    s.run(SECOND);
    let again = talk.raw.received(&mut s);
    let pong = |answer: &Segment| (answer.payload.clone(), talk.raw.relative(answer).0);
    assert!(
        again
            .iter()
            .any(|answer| pong(answer) == (b"+PONG\r\n".to_vec(), begin)),
        "not repeated: {again:?}"
    );
    talk.ack = begin + 7;
    assert_eq!(talk.say(&mut s, &set), b"+OK\r\n");
    talk.ack(&mut s);
    s.settle();
    let fast = s.fast_packets();
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1, "{}", s.counters());
}

/// The server's socket of this client goes, and nothing of it leaves.
fn vanish(s: &mut Scenario, talk: &Talk) {
    let pair = talk.raw.pair();
    s.stop_egress(true);
    {
        let server = s.world.server.clone();
        let mut host = server.host.borrow_mut();
        let id = host.lookup(pair.0, pair.1).and_then(|look| look.id);
        host.abort(s.now(), id.expect("a socket"));
    }
    s.world.inner.at(s.now(), crate::inner::Event::HostTimer);
    kill(s, &talk.raw);
    s.settle();
    s.world.server.lose_at_egress(usize::MAX);
    s.stop_egress(false);
    s.settle();
}

pub(crate) fn memory_of_a_socket_is_anothers() {
    over_seeds(1..6, &Setup::default(), |mut s| {
        let mut talk = Talk::fast(&mut s);
        talk.ask(&mut s, &[b"PING"]);
        let pair = talk.raw.pair();
        assert_ne!(
            s.entry_of(pair).expect("an entry").tcp_sock,
            0,
            "the entry does not know where its socket lies"
        );
        vanish(&mut s, &talk);
        // Other sockets take the memory.
        let mut others: Vec<Talk> = (0..4).map(|_| Talk::fast(&mut s)).collect();
        for other in &mut others {
            assert_eq!(other.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        }
        let fast = s.fast_packets();
        let answers = talk
            .raw
            .data(&mut s, talk.seq, talk.ack, &request(&[b"PING"]));
        assert_eq!(s.fast_packets(), fast, "answered for a dead socket");
        assert!(answers.iter().all(|answer| answer.has(flags::RST)));
        for other in &mut others {
            assert_eq!(other.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        }
    });
}

pub(crate) fn same_address_another_socket() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    for _ in 0..3 {
        talk.ask(&mut s, &[b"PING"]);
    }
    let before = s.entry_of(talk.raw.pair()).expect("an entry");
    vanish(&mut s, &talk);
    // The same address pair again, while the old entry still stands.
    let mut raw = talk.raw.clone();
    raw.isn = raw.isn.wrapping_add(1_000_000);
    let mut next = Talk::connected(&mut s, raw);
    assert_eq!(next.ask(&mut s, &[b"INCR", b"n"]), b":1\r\n");
    let after = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_ne!(before.cookie, after.cookie);
    assert_eq!((after.in_delta, after.out_delta), (0, 0), "old deltas");
    assert_eq!(next.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(next.ask(&mut s, &[b"INCR", b"n"]), b":2\r\n");
}

/// The former client scaled its window, the next one at its addresses does not.
pub(crate) fn another_socket_where_the_former_one_lay() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.wscale = Some(7);
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    let before = s.entry_of(talk.raw.pair()).expect("an entry");
    vanish(&mut s, &talk);
    let mut raw = talk.raw.clone();
    raw.isn = raw.isn.wrapping_add(1_000_000);
    raw.wscale = None;
    let mut next = Talk::begin(&mut s, raw);
    let window_of = |s: &mut Scenario, talk: &mut Talk, argv: &[&[u8]]| {
        let bytes = request(argv);
        let answers = talk.raw.data(s, talk.seq, talk.ack, &bytes);
        talk.seq += len(&bytes);
        talk.take(&answers);
        answers.last().expect("an answer").window
    };
    let fast = s.fast_packets();
    let answered = window_of(&mut s, &mut next, &[b"PING"]);
    assert_eq!(s.fast_packets(), fast + 1, "Redis's");
    let after = s.entry_of(next.raw.pair()).expect("an entry");
    assert_eq!(before.tcp_sock, after.tcp_sock, "it lies elsewhere");
    next.ack(&mut s);
    let by_redis = window_of(&mut s, &mut next, &[b"INCR", b"n"]);
    assert_eq!(answered, by_redis, "in another socket's scale");
}

pub(crate) fn socket_closed_between_look_and_commit() {
    let setup = Setup {
        cpus: 3,
        switch: 400_000,
        ..Setup::default()
    };
    let closing = std::cell::Cell::new(0);
    over_seeds(1..25, &setup, |mut s| {
        s.cached(b"k", b"v");
        let client = s.fast();
        s.call(client, &[b"GET", b"k"]);
        let address = s.pair(client).1.to_string();
        let kill = request(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
        let fast = s.stat(abi::STAT_FAST_GET);
        // The request is under way when Redis closes: who is first, the interleaving decides.
        s.ask(client, &[b"GET", b"k"]);
        s.run(2_000 * (s.world.inner.plan.seed % 16));
        s.world.server.ask_unseen(&kill);
        s.until("it is over", |s| s.stage(client) != Some(Stage::Open));
        closing.set(closing.get() + u32::from(s.stat(abi::STAT_FAST_GET) > fast));
        s.finish();
    });
    assert!(
        (1..24).contains(&closing.get()),
        "one side was always first: {}",
        closing.get()
    );
}

pub(crate) fn time_wait_without_timestamps() {
    let mut s = Scenario::new(Setup {
        veth: false,
        ..Setup::default()
    });
    s.cached(b"k", &[b'x'; 1300]);
    let mut talk = Talk::fast(&mut s);
    for _ in 0..60 {
        assert_eq!(talk.ask(&mut s, &[b"GET", b"k"]).len(), 1309);
    }
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    assert!(entry.out_delta > 65_536, "{}", s.counters());
    talk.ack(&mut s);
    kill(&mut s, &talk.raw);
    let fin = talk
        .raw
        .segment(talk.seq, talk.ack + 1, flags::FIN | flags::ACK, b"");
    talk.raw.send(&mut s, &fin);
    let mut raw = talk.raw.clone();
    raw.isn = raw.isn.wrapping_add(talk.seq + 100_000);
    let mut syn = raw.segment(0, 0, flags::SYN, b"");
    syn.ack = 0;
    let held = s.stat(abi::STAT_DROP_SYN_TIME_WAIT);
    assert!(raw.send(&mut s, &syn).is_empty(), "it was let in");
    assert_eq!(s.stat(abi::STAT_DROP_SYN_TIME_WAIT), held + 1);
    s.run(65 * SECOND);
    raw.received(&mut s);
    let answer = raw.send(&mut s, &syn);
    assert!(answer[0].has(flags::SYN | flags::ACK), "never let in");
}

pub(crate) fn listener_is_no_connection() {
    let mut s = Scenario::new(Setup::default());
    let raw = s.raw();
    let before = conns(&s);
    let answers = raw.data(&mut s, 1, 1, &request(&[b"PING"]));
    assert_eq!(s.stat(abi::STAT_SOCK_LISTEN), 1, "no listener was found");
    assert_eq!(s.fast_packets(), 0);
    assert_eq!(conns(&s), before);
    assert!(answers.iter().all(|answer| answer.has(flags::RST)));
    assert_eq!(len(b""), 0);
}
