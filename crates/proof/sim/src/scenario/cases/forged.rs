// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments that TCP throws away, and silences: nothing of them may move the data path (E-5,
//! E-6, E-7, E-12, E-16, E-19).

use erb_abi as abi;
use erb_sim_tcp::{Macs, Segment, flags};

use crate::client::machine::{SERVER_MAC, machine_mac};
use crate::client::resp::request;
use crate::link::{Frame, mangle};
use crate::scenario::tools::{Talk, len};
use crate::scenario::{RAW_MACHINE, Scenario, Setup};
use crate::time::{MS, SECOND, US};
use erb_wire::layout::Layout;

/// A connection that uses timestamps.
fn stamped(s: &mut Scenario) -> Talk {
    let mut raw = s.raw();
    raw.ts = Some((1_000, 0));
    Talk::begin(s, raw)
}

/// A fast connection of which something was consumed.
fn spliced(s: &mut Scenario) -> Talk {
    let mut talk = Talk::fast(s);
    talk.ask(s, &[b"PING"]);
    talk.ack(s);
    talk
}

/// Whether the next PING is answered fast.
fn is_fast(s: &mut Scenario, talk: &mut Talk) -> bool {
    talk.ack(s);
    let before = s.fast_packets();
    assert_eq!(talk.ask(s, &[b"PING"]), b"+PONG\r\n", "{}", s.counters());
    s.fast_packets() == before + 1
}

/// The bytes of a segment as a frame.
fn framed(segment: &Segment) -> Vec<u8> {
    segment.to_frame(Macs {
        src: machine_mac(RAW_MACHINE),
        dst: SERVER_MAC,
    })
}

fn post_frames(s: &mut Scenario, frames: impl IntoIterator<Item = Vec<u8>>) {
    for bytes in frames {
        s.world.inner.send_up(RAW_MACHINE, Frame::new(bytes));
    }
    s.settle();
}

fn is_closing(s: &Scenario, talk: &Talk) -> bool {
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    u32::from(entry.flags) & abi::CONN_F_CLOSING != 0
}

/// E-7: while a large reply is under way somebody acknowledges it, far out of the window.
pub(crate) fn ack_out_of_window() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'x'; 80_000]]);
    let mut raw = s.raw();
    raw.window = 8_000;
    let mut talk = Talk::begin(&mut s, raw);
    assert!(is_fast(&mut s, &mut talk));
    talk.ack(&mut s);
    talk.send(&mut s, &[b"GET", b"big"]);
    s.settle();
    talk.hear(&mut s);
    let known = s.entry_of(talk.raw.pair()).expect("an entry").ack_max;
    for far in [1 << 30, 1 << 20, 3 << 30] {
        let seq = talk.seq.wrapping_add(far);
        for ahead in [0, 60_000] {
            talk.raw.ack(&mut s, seq, talk.ack + ahead);
        }
    }
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(entry.ack_max, known, "a forged acknowledgement counts");
    let marks = s.stat(abi::STAT_MARK_TAKEN);
    talk.send(&mut s, &[b"SET", b"k", b"new"]);
    s.settle();
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks + 1, "{}", s.counters());
    let mut heard = Vec::new();
    for _ in 0..100 {
        heard.extend(talk.hear(&mut s));
        talk.ack(&mut s);
        s.run(MS);
    }
    assert!(heard.ends_with(b"+OK\r\n"), "{} bytes", heard.len());
    assert_eq!(s.read(b"k"), b"$3\r\nnew\r\n");
    assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
}

/// What was rejected when it came is still refused when Redis has written meanwhile what it
/// acknowledges.
pub(crate) fn rejected_for_sure() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    talk.send(&mut s, &[b"BLPOP", b"q", b"0"]);
    s.settle();
    s.stop_stack(true);
    let evil = request(&[b"SET", b"k", b"evil"]);
    let segment = talk
        .raw
        .segment(talk.seq, talk.ack + 5, flags::ACK | flags::PSH, &evil);
    talk.raw.post(&mut s, &segment);
    s.run(MS);
    s.unseen(&[b"RPUSH", b"q", b"v"]);
    s.stop_stack(false);
    s.settle();
    talk.hear(&mut s);
    assert_eq!(s.read(b"k"), b"$-1\r\n", "an unmarked write was executed");
    assert_eq!(talk.ask(&mut s, &[b"ECHO", b"a"]), b"$1\r\na\r\n");
}

/// A reset that is not exact, with payload: TCP challenges it and takes no byte.
pub(crate) fn reset_with_payload() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    let marks = s.stat(abi::STAT_MARK_TAKEN);
    let mut bytes = b"\n".to_vec();
    bytes.extend(request(&[b"SET", b"a", b"never"]));
    let bits = flags::RST | flags::ACK | flags::PSH;
    let segment = talk.raw.segment(talk.seq - 1, talk.ack, bits, &bytes);
    talk.raw.send(&mut s, &segment);
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks);
    assert_eq!(talk.ask(&mut s, &[b"SET", b"k", b"value"]), b"+OK\r\n");
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks + 1, "an unmarked write");
    assert!(is_fast(&mut s, &mut talk));
}

/// Payload that meets the request and is older than its SYN: the kernel refuses it (PAWS), and
/// other bytes may come in its place.
pub(crate) fn payload_older_than_its_syn() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.ts = Some((5_000, 0));
    let mut syn = raw.segment(0, 0, flags::SYN, b"");
    (syn.ack, syn.options.mss) = (0, Some(1460));
    let answer = raw.send(&mut s, &syn);
    raw.peer_isn = answer[0].seq;
    raw.see(&answer[0]);
    let own = raw.ts;
    raw.ts = raw.ts.map(|(own, theirs)| (own - 2_000, theirs));
    let marks = s.stat(abi::STAT_MARK_TAKEN);
    raw.data(&mut s, 1, 1, &request(&[b"SET", b"a", b"never"]));
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks, "{}", s.counters());
    raw.ts = own;
    let set = request(&[b"SET", b"k", b"value"]);
    raw.data(&mut s, 1, 1, &set);
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks + 1, "{}", s.counters());
    assert_eq!(s.read(b"k"), b"$5\r\nvalue\r\n");
}

/// A first fragment with numbers that TCP does not take is no part of the stream.
pub(crate) fn fragment_out_of_window() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    let bytes = request(&[b"SET", b"k", &[b'x'; 200]]);
    for far in [1 << 28, 1 << 30] {
        let segment = talk
            .raw
            .segment(talk.seq + far, talk.ack, flags::ACK | flags::PSH, &bytes);
        let whole = framed(&segment);
        let at = Layout::of(&whole).expect("a TCP frame");
        let [first, _] = mangle::fragments(&whole, &at, 77);
        post_frames(&mut s, [first]);
    }
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(u32::from(entry.flags) & abi::CONN_F_SCAN_LOST, 0);
    assert!(is_fast(&mut s, &mut talk));
}

/// A connection older than ERB: forged payload must not hold the fence for what will never come.
pub(crate) fn older_stream() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    talk.ask(&mut s, &[b"ECHO", b"a"]);
    talk.ack(&mut s);
    s.attach();
    let fences = s.stat(abi::STAT_FENCE_PROOF);
    for far in [
        1 << 28,
        1 << 30,
        0_u32.wrapping_sub(1 << 30),
        0_u32.wrapping_sub(20),
    ] {
        let seq = talk.seq.wrapping_add(far);
        talk.raw.data(&mut s, seq, talk.ack, b"x");
    }
    s.run(300 * MS);
    assert_eq!(s.stat(abi::STAT_FENCE_PROOF), fences, "{}", s.counters());
    assert_eq!(s.control().fence, 0);
    assert_eq!(talk.ask(&mut s, &[b"ECHO", b"b"]), b"$1\r\nb\r\n");
}

/// E-12: FINs with random numbers end nothing; the real one does.
pub(crate) fn blind_fin() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    let fin = |s: &mut Scenario, talk: &Talk, seq: u32, ack: u32| {
        let segment = talk.raw.segment(seq, ack, flags::FIN | flags::ACK, b"");
        talk.raw.send(s, &segment);
    };
    for (seq, ack) in [
        (1 << 30, 5),
        (3 << 30, 1 << 30),
        (2 << 30, 3 << 30),
        (0_u32.wrapping_sub(100_000), 77),
        (0_u32.wrapping_sub(1), 0),
        (0, 1 << 29),
        (0, 0_u32.wrapping_sub(1 << 29)),
    ] {
        let (seq, ack) = (talk.seq.wrapping_add(seq), talk.ack.wrapping_add(ack));
        fin(&mut s, &talk, seq, ack);
        assert!(!is_closing(&s, &talk), "{seq} {ack}");
    }
    assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
    talk.ack(&mut s);
    fin(&mut s, &talk, talk.seq, talk.ack);
    assert!(
        s.entry_of(talk.raw.pair())
            .is_none_or(|entry| { u32::from(entry.flags) & abi::CONN_F_CLOSING != 0 })
    );
}

/// E-6: a client that only listens answers the kernel's keepalives while its clock goes on
/// beyond half of its range; then it asks.
pub(crate) fn silent_listener() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = stamped(&mut s);
    // The second time something was consumed: the entry's own record goes with it.
    for pause in [100 * MS, 1100 * MS] {
        for _ in 0..6 {
            talk.raw.ts = talk
                .raw
                .ts
                .map(|(own, theirs)| (own.wrapping_add(1 << 29), theirs));
            talk.ack(&mut s);
            s.run(pause);
        }
        assert_eq!(
            talk.ask(&mut s, &[b"PING"]),
            b"+PONG\r\n",
            "{}",
            s.counters()
        );
    }
}

/// The same without a word from the client: after 36 minutes an old timestamp says nothing.
pub(crate) fn silent_and_spliced() {
    let mut s = Scenario::new(Setup {
        keepalive: false,
        ..Setup::default()
    });
    let mut talk = stamped(&mut s);
    assert!(is_fast(&mut s, &mut talk));
    talk.ack(&mut s);
    s.run(2_150 * SECOND);
    talk.raw.ts = talk
        .raw
        .ts
        .map(|(own, theirs)| (own.wrapping_add((2 << 30) + 7), theirs));
    for _ in 0..3 {
        assert_eq!(
            talk.ask(&mut s, &[b"PING"]),
            b"+PONG\r\n",
            "{}",
            s.counters()
        );
        talk.ack(&mut s);
    }
}

/// E-16: TC works on another CPU, later; nothing is dropped on a link that loses nothing.
pub(crate) fn steered() {
    for seed in 1..9 {
        let mut s = Scenario::new(Setup {
            seed,
            steered: true,
            ..Setup::default()
        });
        let mut talk = Talk::fast(&mut s);
        for round in 0..4 {
            talk.ask(&mut s, &[b"ECHO", b"slow"]);
            for _ in 0..12 {
                talk.send(&mut s, &[b"PING"]);
                s.run(20 * US);
            }
            s.settle();
            let mut answers = talk.raw.received(&mut s); // by two CPUs: not in order
            answers.sort_by_key(|answer| talk.raw.relative(answer).0);
            assert_eq!(talk.take(&answers), b"+PONG\r\n".repeat(12), "{round}");
            talk.ack(&mut s);
        }
        assert_eq!(s.stat(abi::STAT_DROP_OUT_OF_ORDER), 0, "{}", s.counters());
        assert!(s.stat(abi::STAT_TO_TC) > 4);
    }
}

/// A packet that XDP left to TC never gets there; nor does an end that somebody has guessed.
pub(crate) fn lost_behind_xdp() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    talk.ask(&mut s, &[b"ECHO", b"slow"]);
    s.stop_stack(true);
    let first = request(&[b"PING"]);
    talk.send(&mut s, &[b"PING"]);
    s.run(MS);
    // In the window and far ahead: TC will never see its end.
    let ahead = talk
        .raw
        .segment(talk.seq + 20_000, talk.ack, flags::ACK | flags::PSH, b"x");
    talk.raw.post(&mut s, &ahead);
    s.run(MS);
    s.world.server.lose_in_stack(2);
    s.stop_stack(false);
    talk.raw.received(&mut s);
    talk.seq -= len(&first);
    s.settle();
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    talk.ack(&mut s);
    let at_xdp = s.stat(abi::STAT_FAST_PACKET);
    assert!(is_fast(&mut s, &mut talk));
    assert!(s.stat(abi::STAT_FAST_PACKET) > at_xdp, "XDP waits for ever");
}

/// E-5, E-47: a write whose first fragment holds 8 bytes of the TCP header, the header without its options, or
/// nothing but the header, does not reach Redis.
pub(crate) fn tiny_fragments() {
    for ipv6 in [false, true] {
        let mut s = Scenario::new(Setup {
            ipv6,
            ..Setup::default()
        });
        s.cached(b"k", b"old");
        let mut talk = stamped(&mut s);
        assert!(is_fast(&mut s, &mut talk));
        for (number, cut) in [8, 16, 24, 32].into_iter().enumerate() {
            let set = request(&[b"SET", b"k", b"new"]);
            let segment = talk
                .raw
                .segment(talk.seq, talk.ack, flags::ACK | flags::PSH, &set);
            let whole = framed(&segment);
            let at = Layout::of(&whole).expect("a TCP frame");
            let pieces = mangle::fragments_at(&whole, &at, 70 + cut as u16, cut);
            post_frames(&mut s, pieces);
            assert_eq!(s.stat(abi::STAT_DROP_HIDDEN), number as u64 + 1);
            assert_eq!(s.read(b"k"), b"$3\r\nold\r\n", "an unmarked write");
        }
        assert!(is_fast(&mut s, &mut talk));
    }
}

/// E-47: commands reach Redis by a way that no program is on, and the client then says others with the same
/// numbers. TCP takes these for the first ones again: nothing that ERB reads there is so.
pub(crate) fn said_unseen() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"truth");
    let reader = s.fast();
    let mut talk = spliced(&mut s);
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    let mut unseen = talk.raw.segment(
        talk.seq,
        talk.ack,
        flags::ACK | flags::PSH,
        &request(&[b"SELECT", b"1"]),
    );
    unseen.seq = unseen.seq.wrapping_sub(entry.in_delta);
    unseen.ack = unseen.ack.wrapping_sub(entry.out_delta);
    s.stop_redis(true);
    s.world.server.input_unseen(framed(&unseen));
    let length = unseen.payload.len();
    let seen = request(&[
        b"STRLEN",
        &vec![b'x'; length - request(&[b"STRLEN", b""]).len()],
    ]);
    assert_eq!(seen.len(), length, "the same numbers");
    let segment = talk
        .raw
        .segment(talk.seq, talk.ack, flags::ACK | flags::PSH, &seen);
    talk.raw.post(&mut s, &segment);
    s.run(MS);
    s.stop_redis(false);
    s.settle();
    talk.seq += len(&seen);
    assert_eq!(talk.hear(&mut s), b"+OK\r\n", "SELECT was read");
    assert_eq!(s.stat(abi::STAT_BYTES_UNSEEN), 1, "{}", s.counters());
    for _ in 0..5 {
        assert_eq!(talk.ask(&mut s, &[b"SET", b"k", b"lie"]), b"+OK\r\n");
        assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$5\r\ntruth\r\n");
        talk.ack(&mut s);
    }
}

/// Data in a SYN: dropped if the listener would take them, else the kernel leaves them out.
pub(crate) fn data_in_syn() {
    for queue in [0, 16] {
        let mut s = Scenario::new(Setup::default());
        s.world.server.fastopen.set(queue);
        let raw = s.raw();
        let mut syn = raw.segment(0, 0, flags::SYN, &request(&[b"SET", b"k", b"new"]));
        (syn.ack, syn.options.mss) = (0, Some(1460));
        let answers = raw.send(&mut s, &syn);
        assert_eq!(answers.is_empty(), queue > 0);
        assert_eq!(s.stat(abi::STAT_DROP_SYN_DATA), u64::from(queue > 0));
        let plain = Segment {
            payload: Vec::new(),
            ..syn
        };
        assert!(!raw.send(&mut s, &plain).is_empty(), "no plain handshake");
        assert_eq!(s.read(b"k"), b"$-1\r\n");
    }
}

/// E-19: the answer of the TC tier is lost; the timer's copy bears the tag as well. (That
/// whatever leaves is tagged is checked in every world.)
pub(crate) fn tagged_copies() {
    let mut s = Scenario::new(Setup {
        vlan: Some(7),
        ..Setup::default()
    });
    let mut talk = spliced(&mut s);
    talk.ask(&mut s, &[b"ECHO", b"slow"]);
    let by_tc = s.stat(abi::STAT_FAST_PACKET_TC);
    talk.send(&mut s, &[b"PING"]);
    s.settle();
    assert_eq!(s.stat(abi::STAT_FAST_PACKET_TC), by_tc + 1);
    talk.raw.received(&mut s); // lost
    s.run(SECOND);
    let copies = talk.raw.received(&mut s);
    assert!(s.stat(abi::STAT_REPLAY_TIMEOUT) > 0 && !copies.is_empty());
    assert!(copies.iter().all(|copy| copy.vlan == Some(7)));
    assert_eq!(talk.take(&copies), b"+PONG\r\n");
}
