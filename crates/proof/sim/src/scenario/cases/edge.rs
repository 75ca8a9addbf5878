// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The edge: what the kernel must get, and what must not pass it (T-1 to T-4).

use erb_abi as abi;
use erb_sim_tcp::flags;

use crate::client::resp::request;
use crate::scenario::tools::{Talk, len, tap};
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

pub(crate) fn slow_reply_then_fast() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    for round in 1..=20 {
        assert_eq!(
            s.call(client, &[b"INCR", b"n"]),
            format!(":{round}\r\n").as_bytes()
        );
        let owed = s.socket_of(s.pair(client)).expect("a socket");
        assert_ne!(
            owed.snd_una, owed.write_seq,
            "the client acknowledged too early"
        );
        let (tc, xdp) = (
            s.stat(abi::STAT_FAST_PACKET_TC),
            s.stat(abi::STAT_FAST_PACKET),
        );
        for _ in 0..3 {
            assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        }
        assert_eq!(s.stat(abi::STAT_FAST_PACKET_TC), tc + 1, "one hand-over");
        assert_eq!(s.stat(abi::STAT_FAST_PACKET), xdp + 2, "the rest at XDP");
        let paid = s.socket_of(s.pair(client)).expect("a socket");
        assert_eq!(
            paid.snd_una, paid.write_seq,
            "the kernel was not told that its reply arrived"
        );
    }
    s.run(2 * SECOND);
    let kernel = s.kernel();
    assert_eq!((kernel.retransmits, kernel.timeouts), (0, 0));
    s.finish();
}

pub(crate) fn no_room_at_xdp() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"long", &[b'x'; 1400]);
    s.cached(b"k", b"v");
    let client = s.fast();
    for _ in 0..20 {
        let (tc, xdp, began) = (
            s.stat(abi::STAT_FAST_PACKET_TC),
            s.stat(abi::STAT_FAST_PACKET),
            s.now(),
        );
        let room = s.stat(abi::STAT_NO_ROOM);
        assert_eq!(s.call(client, &[b"GET", b"long"]).len(), 1409);
        assert!(s.now() - began < 100 * MS, "answered by a retransmission");
        assert_eq!(s.stat(abi::STAT_NO_ROOM), room + 1);
        assert_eq!(s.stat(abi::STAT_FAST_PACKET_TC), tc + 1, "TC has room");
        for _ in 0..3 {
            assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        }
        assert_eq!(s.stat(abi::STAT_FAST_PACKET), xdp + 3, "the rest at XDP");
    }
    // What may not be consumed is not handed over either.
    let tc = s.stat(abi::STAT_TO_TC);
    s.stop_redis(true);
    s.ask(client, &[b"SET", b"other", b"1"]);
    s.run(5 * MS);
    s.ask(client, &[b"GET", b"long"]);
    s.run(20 * MS);
    assert_eq!(s.stat(abi::STAT_TO_TC), tc);
    s.stop_redis(false);
    assert_eq!(s.answers(client).len(), 5 + 1409);
    s.finish();
}

pub(crate) fn old_bytes_below_the_edge() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    assert_eq!(talk.ask(&mut s, &[b"ECHO", b"abcdefghij"]).len(), 17);
    // The kernel's probe for the reply that nobody acknowledged waits behind TCP.
    s.stop_egress(true);
    s.run(300 * MS);
    let repeats = s.kernel().retransmits + s.kernel().tail_probes;
    assert!(repeats > 0, "the kernel repeated nothing");
    let fast = s.fast_packets();
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1);
    let before = s.stat(abi::STAT_EGRESS_BELOW_EDGE);
    s.stop_egress(false);
    s.settle();
    assert!(
        s.stat(abi::STAT_EGRESS_BELOW_EDGE) > before,
        "no copy met the edge"
    );
    let late = talk.raw.received(&mut s);
    assert!(
        late.iter().all(|segment| segment.payload.is_empty()),
        "old bytes took the place of new ones: {late:?}"
    );
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
}

pub(crate) fn acknowledgement_below_the_edge() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    let acked = talk.ack;
    let fast = s.fast_packets();
    // None of these acknowledges the answers to the ones before.
    for _ in 0..2 {
        talk.send(&mut s, &[b"PING"]);
    }
    s.settle();
    assert_eq!(s.fast_packets(), fast + 2);
    let refused = s.kernel();
    s.stop_stack(true);
    talk.send(&mut s, &[b"INCR", b"n"]);
    s.settle();
    // What it may send ends where the client said: at acked + window.
    let edge = s.entry_of(talk.raw.pair()).expect("an entry");
    let up = s.stopped_up();
    assert_eq!(up[0].ack, edge.edge, "no floor");
    let right = up[0]
        .ack
        .wrapping_add(up[0].window.into())
        .wrapping_sub(talk.raw.peer_isn);
    let own = acked + u32::from(talk.raw.window);
    assert_eq!(right + edge.out_delta, own, "the window's right edge moved");
    s.stop_stack(false);
    s.settle();
    let heard = talk.hear(&mut s);
    assert_eq!(heard, b"+PONG\r\n+PONG\r\n:1\r\n");
    let kernel = s.kernel();
    assert_eq!(kernel.too_old_acks, refused.too_old_acks);
    assert_eq!(kernel.challenge_acks, refused.challenge_acks);
    assert_eq!(kernel.old_acks, refused.old_acks, "an old ACK is ignored");
}

pub(crate) fn window_of_a_floored_ack() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'x'; 6000]]);
    let mut raw = s.raw();
    raw.window = 2000;
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.send(&mut s, &[b"PING"]);
    s.settle();
    talk.send(&mut s, &[b"GET", b"big"]);
    s.settle();
    // TCP ignores a window that shrinks in a segment with the numbers of the last one, so the fast
    // bytes that are unacknowledged (7) come on top.
    let end = talk.ack + 2000 + 7;
    let got = talk.raw.received(&mut s);
    let beyond = got
        .iter()
        .map(|segment| talk.raw.relative(segment).0 + len(&segment.payload))
        .max()
        .unwrap_or(0);
    assert!(beyond <= end, "the server sent beyond the client's window");
    assert!(
        beyond > talk.ack + 7,
        "nothing of the value came: the window was lost"
    );
}

pub(crate) fn hole_filled_before_kept_bytes() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    let (ping, incr) = (request(&[b"PING"]), request(&[b"INCR", b"n"]));
    let later = talk.seq + len(&ping);
    let answers = talk.raw.data(&mut s, later, talk.ack, &incr);
    assert_eq!(s.stat(abi::STAT_AHEAD_KEPT), 1);
    assert_eq!(answers.len(), 1, "one duplicate ACK");
    assert_eq!(talk.raw.relative(&answers[0]).1, talk.seq);
    let fast = s.fast_packets();
    assert_eq!(talk.say(&mut s, &ping), b"+PONG\r\n:1\r\n");
    assert_eq!(s.fast_packets(), fast, "the hole's bytes were consumed");
    let view = s.socket_of(talk.raw.pair()).expect("a socket");
    assert_eq!(
        view.rcv_nxt.wrapping_sub(talk.raw.isn),
        15 + len(&ping) + len(&incr)
    );
    talk.seq += len(&incr);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1, "fast again");
    assert_eq!(talk.ask(&mut s, &[b"INCR", b"n"]), b":2\r\n");
}

pub(crate) fn earlier_bytes_on_their_way_up() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    let before = s.stat(abi::STAT_REFUSE_KERNEL_BEHIND);
    let fast = s.fast_packets();
    s.stop_stack(true);
    talk.send(&mut s, &[b"INCR", b"n"]);
    s.settle();
    talk.send(&mut s, &[b"PING"]);
    s.settle();
    assert_eq!(s.stat(abi::STAT_REFUSE_KERNEL_BEHIND), before + 1);
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stopped_up().len(), 2);
    s.stop_stack(false);
    s.settle();
    assert_eq!(talk.hear(&mut s), b":1\r\n+PONG\r\n");
}

pub(crate) fn syn_ack_window() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.wscale = Some(3);
    let (filter, log) = tap();
    s.down(crate::scenario::RAW_MACHINE, Some(filter));
    let mut talk = Talk::begin(&mut s, raw);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let view = s.socket_of(talk.raw.pair()).expect("a socket");
    assert!(view.rcv_wscale > 0, "the server scales its window");
    let log = log.borrow();
    let syn_ack = log
        .iter()
        .find(|segment| segment.has(flags::SYN))
        .expect("a SYN-ACK");
    let fast = log.last().expect("an answer");
    let edge = |window: u16, ack: u32| ack.wrapping_add(u32::from(window) << view.rcv_wscale);
    assert!(
        u32::from(fast.window) << view.rcv_wscale <= view.rcv_wnd,
        "a fast answer offers more than the kernel: {} of {}",
        fast.window,
        view.rcv_wnd
    );
    assert_ne!(
        edge(fast.window, fast.ack),
        edge(syn_ack.window, syn_ack.ack),
        "the SYN-ACK's window was taken as a scaled one"
    );
}
