// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several CPUs, and packets that get lost inside the server (T-8, T-9, T-10).

use erb_abi as abi;
use erb_sim_tcp::flags;

use crate::client::resp::request;
use crate::profile::Tier;
use crate::scenario::tools::Talk;
use crate::scenario::{Raw, Scenario, Setup, over_seeds};
use crate::time::MS;

fn racing() -> Setup {
    Setup {
        cpus: 4,
        switch: 400_000,
        ..Setup::default()
    }
}

pub(crate) fn kernel_speaks_during_the_commit() {
    let fast = std::cell::Cell::new(0);
    over_seeds(1..17, &racing(), |mut s| {
        s.cached(b"k", b"v");
        let client = s.fast();
        // Redis's reply to the first leaves while the second is looked at on another CPU.
        s.ask(client, &[b"INCR", b"n"]);
        s.run(30_000 * (s.world.inner.plan.seed % 8 + 2));
        let before = s.fast_packets();
        s.ask(client, &[b"GET", b"k"]);
        s.ask(client, &[b"GET", b"k"]);
        assert_eq!(s.answers(client), b":1\r\n$1\r\nv\r\n$1\r\nv\r\n");
        fast.set(fast.get() + s.fast_packets() - before);
        s.finish();
    });
    assert!(fast.get() > 0, "none was fast");
}

pub(crate) fn two_cpus_one_connection() {
    let raced = std::cell::Cell::new(0);
    over_seeds(1..33, &racing(), |mut s| {
        s.cached(b"k", b"v");
        let mut talk = Talk::fast(&mut s);
        talk.ask(&mut s, &[b"PING"]);
        for round in 0..4 {
            let met = s.stat(abi::STAT_DROP_RACE) + s.stat(abi::STAT_TO_TC);
            let from = (talk.seq, talk.ack);
            let cpus = [round % 4, (round + 1) % 4];
            s.world.server.steer_in_turn(&cpus);
            talk.send(&mut s, &[b"SET", b"k", b"w"]);
            talk.send(&mut s, &[b"GET", b"k"]);
            s.settle();
            let mut heard = talk.hear(&mut s);
            let late = s.stat(abi::STAT_DROP_RACE) + s.stat(abi::STAT_TO_TC) - met;
            raced.set(raced.get() + late);
            // What was dropped, the client sends again.
            for _ in 0..4 {
                if heard.len() >= 12 {
                    break;
                }
                let mut both = request(&[b"SET", b"k", b"w"]);
                both.extend(request(&[b"GET", b"k"]));
                let again = talk.raw.data(&mut s, from.0, talk.ack, &both);
                heard.extend(talk.take(&again));
            }
            assert_eq!(heard, b"+OK\r\n$1\r\nw\r\n");
            assert_eq!(talk.ack, from.1 + 12);
        }
    });
    assert!(raced.get() > 0, "they never met");
}

pub(crate) fn same_packet_on_two_cpus() {
    over_seeds(1..25, &racing(), |mut s| {
        let mut talk = Talk::fast(&mut s);
        talk.ask(&mut s, &[b"PING"]);
        for round in 1..=4_u32 {
            let incr = request(&[b"INCR", b"n"]);
            let flags = erb_sim_tcp::flags::ACK | erb_sim_tcp::flags::PSH;
            let segment = talk.raw.segment(talk.seq, talk.ack, flags, &incr);
            s.world.server.steer_in_turn(&[0, 1, 2]);
            for _ in 0..3 {
                talk.raw.post(&mut s, &segment);
            }
            s.settle();
            talk.seq += crate::scenario::tools::len(&incr);
            assert_eq!(talk.hear(&mut s), format!(":{round}\r\n").as_bytes());
            let entry = s.entry_of(talk.raw.pair()).expect("an entry");
            assert_eq!(entry.requests, entry.replies, "one was counted twice");
            s.steer(Some(3));
            assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        }
    });
}

/// A client whose SYN is answered: what it says next meets a request socket.
fn half_open(s: &mut Scenario) -> Raw {
    let mut raw = s.raw();
    let mut syn = raw.segment(0, 0, flags::SYN, b"");
    syn.ack = 0;
    let answer = raw.send(s, &syn);
    raw.peer_isn = answer[0].seq;
    raw
}

pub(crate) fn handshake_ends_on_two_cpus() {
    over_seeds(1..65, &racing(), |mut s| {
        let raw = half_open(&mut s);
        let set = request(&[b"SETNX", b"n", b"1"]);
        s.world.server.steer_in_turn(&[0, 1]);
        raw.post(&mut s, &raw.segment(1, 1, flags::ACK, b""));
        raw.post(&mut s, &raw.segment(1, 1, flags::ACK, &set));
        s.run(MS);
        let entry = s.entry_of(raw.pair()).expect("an entry");
        assert_eq!(entry.requests, 1, "the payload was not counted");
        let heard: Vec<u8> = raw
            .received(&mut s)
            .into_iter()
            .flat_map(|seg| seg.payload)
            .collect();
        assert_eq!(heard, b":1\r\n");
    });
}

pub(crate) fn payload_that_may_be_refused() {
    over_seeds(1..65, &racing(), |mut s| {
        let raw = half_open(&mut s);
        // Acknowledges nothing of the server: a request refuses that, its child not always did.
        let forged = raw.segment(1, 0, flags::ACK, &request(&[b"SET", b"n", b"9"]));
        s.world.server.steer_in_turn(&[0, 1]);
        raw.post(&mut s, &raw.segment(1, 1, flags::ACK, b""));
        raw.post(&mut s, &forged);
        s.run(MS);
        assert!(raw.received(&mut s).is_empty(), "the kernel has answered");
        let heard = raw.data(&mut s, 1, 1, &request(&[b"EXISTS", b"n"]));
        let heard: Vec<u8> = heard.into_iter().flat_map(|seg| seg.payload).collect();
        assert_eq!(heard, b":0\r\n");
        assert_eq!(s.entry_of(raw.pair()).map(|entry| entry.requests), Some(1));
    });
}

/// More was acknowledged than the client has ever had room for.
pub(crate) fn ack_older_than_any_window() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"long", &[b'x'; 4000]]);
    let mut talk = Talk::fast(&mut s);
    for _ in 0..30 {
        assert_eq!(talk.ask(&mut s, &[b"GET", b"long"]).len(), 4009);
        talk.ack(&mut s);
    }
    let before = s.entry_of(talk.raw.pair()).expect("an entry");
    let set = request(&[b"SET", b"n", b"9"]);
    let refused = s.stat(abi::STAT_REFUSE_ACK);
    let forged = talk
        .raw
        .segment(talk.seq, talk.ack - 70_000, flags::ACK, &set);
    talk.raw.post(&mut s, &forged);
    s.run(MS);
    let now = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(now.requests, before.requests, "counted, and never executed");
    assert_eq!(s.stat(abi::STAT_REFUSE_ACK), refused + 1);
    assert_eq!(s.read(b"n"), b"$-1\r\n");
}

/// Less than any window, and more than all that was acknowledged: the kernel drops such data (tcp_ack(), bytes_acked).
pub(crate) fn ack_too_old_by_little() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        s.cached(b"k", b"v");
        let mut talk = Talk::fast(&mut s);
        let first = 1;
        assert_eq!(talk.ask(&mut s, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        talk.ack(&mut s);
        assert_eq!(talk.ask(&mut s, &[b"EXISTS", b"n"]), b":0\r\n");
        talk.ack(&mut s);
        let before = s.entry_of(talk.raw.pair()).expect("an entry");
        assert!(before.out_delta > 0, "nothing was answered");
        let set = request(&[b"SET", b"n", b"9"]);
        for back in [1, 60, 1_000, 20_000] {
            let ack = u32::wrapping_sub(first, back);
            let forged = talk.raw.segment(talk.seq, ack, flags::ACK, &set);
            talk.raw.post(&mut s, &forged);
            s.run(MS);
            let now = s.entry_of(talk.raw.pair()).expect("an entry");
            assert_eq!(now.requests, before.requests, "{back}: {}", s.counters());
        }
        assert_eq!(s.read(b"n"), b"$-1\r\n");
        // An old acknowledgement that is one is no reason: the segment was overtaken by others.
        let heard = talk.raw.data(&mut s, talk.seq, first, &set);
        assert_eq!(talk.take(&heard), b"+OK\r\n");
    }
}

pub(crate) fn ack_of_what_was_not_sent() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"long", &[b'x'; 1000]]);
    let mut raw = s.raw();
    raw.window = 500;
    let mut talk = Talk::begin(&mut s, raw);
    let begin = talk.ack;
    let first = talk.ask(&mut s, &[b"GET", b"long"]);
    assert!(first.len() <= 500, "beyond the window");
    // The rest is written and waits for room; its acknowledgement is forged.
    let forged = talk.raw.segment(
        talk.seq,
        begin + 900,
        flags::ACK,
        &request(&[b"SET", b"n", b"9"]),
    );
    talk.raw.post(&mut s, &forged);
    s.run(MS);
    let known = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(known.requests, 2, "counted, and never executed");
    assert_eq!(s.read(b"n"), b"$-1\r\n");
    talk.raw.window = 60_000;
    let answers = talk.ack(&mut s);
    assert_eq!(first.len() + talk.take(&answers).len(), 1009);
    assert_eq!(talk.ask(&mut s, &[b"SET", b"n", b"1"]), b"+OK\r\n");
    assert_eq!(s.read(b"n"), b"$1\r\n1\r\n");
}

pub(crate) fn slow_request_lost_behind_xdp() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    s.call(client, &[b"PING"]);
    s.stop_stack(true);
    s.ask(client, &[b"INCR", b"n"]);
    s.run(50_000);
    let counted = s.entry(client).expect("an entry");
    assert_eq!(counted.requests, counted.replies + 1, "XDP has not seen it");
    s.world.server.lose_in_stack(usize::MAX);
    s.stop_stack(false);
    assert_eq!(s.answers(client), b":1\r\n");
    let now = s.entry(client).expect("an entry");
    assert_eq!(now.requests, counted.requests, "counted twice");
    assert_eq!(now.requests, now.replies);
    s.finish();
}

pub(crate) fn duplicate_of_an_acknowledged_answer() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let seq = talk.seq;
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (fast, up) = (s.fast_packets(), s.stat(abi::STAT_UP_TRANSLATED));
    let answers = talk.raw.data(&mut s, seq, talk.ack, &request(&[b"PING"]));
    assert_eq!(
        (s.fast_packets(), s.stat(abi::STAT_UP_TRANSLATED)),
        (fast, up)
    );
    assert_eq!(answers.len(), 1, "a bare ACK");
    assert!(answers[0].payload.is_empty());
    assert_eq!(talk.raw.relative(&answers[0]), (talk.ack, talk.seq));
}

pub(crate) fn duplicate_joined_with_new_bytes() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (seq, ack) = (talk.seq, talk.ack);
    talk.ask(&mut s, &[b"PING"]);
    // Its answer was lost; the client repeats the request together with the next one.
    let mut both = request(&[b"PING"]);
    both.extend(request(&[b"INCR", b"n"]));
    let mut heard = vec![];
    talk.ack = ack;
    talk.seq = seq + crate::scenario::tools::len(&both);
    let answers = talk.raw.data(&mut s, seq, ack, &both);
    heard.extend(answers);
    s.run(300_000_000);
    heard.extend(talk.raw.received(&mut s));
    heard.sort_by_key(|segment| talk.raw.relative(segment).0);
    assert_eq!(talk.take(&heard), b"+PONG\r\n:1\r\n");
    assert_eq!(s.read(b"n"), b"$1\r\n1\r\n");
}
