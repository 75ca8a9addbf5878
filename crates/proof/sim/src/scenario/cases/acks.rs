// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pure acknowledgements, replays, SACK (T-5, T-18, T-19, T-20).

use erb_abi as abi;
use erb_sim_tcp::flags;

use crate::scenario::tools::{Talk, len};
use crate::scenario::{Raw, Scenario, Setup};
use crate::time::{MS, SECOND};

fn sacking(s: &mut Scenario) -> Talk {
    let mut raw: Raw = s.raw();
    raw.sack = true;
    raw.ts = Some((1_000, 0));
    Talk::begin(s, raw)
}

pub(crate) fn clients_keepalive() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    for _ in 0..3 {
        s.run(600 * MS);
        talk.hear(&mut s);
        let answer = talk.raw.ack(&mut s, talk.seq - 1, talk.ack);
        assert_eq!(answer.len(), 1, "a keepalive probe was swallowed");
        assert_eq!(talk.raw.relative(&answer[0]), (talk.ack, talk.seq));
    }
    assert!(s.stat(abi::STAT_FAST_PACKET_TC) + s.stat(abi::STAT_FAST_PACKET) > 0);
}

pub(crate) fn window_update() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'x'; 5000]]);
    let mut raw = s.raw();
    raw.window = 2920;
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    let first = talk.ask(&mut s, &[b"GET", b"big"]);
    assert_eq!(first.len(), 2920, "the window was full");
    talk.raw.window = 0;
    talk.ack(&mut s);
    assert!(talk.hear(&mut s).is_empty());
    talk.raw.window = 60_000;
    let now = s.now();
    let rest = talk.ack(&mut s);
    assert_eq!(
        first.len() + talk.take(&rest).len(),
        5009,
        "the rest came at once"
    );
    assert!(s.now() - now < 5 * MS);
}

pub(crate) fn duplicate_acks_without_sack() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'x'; 12_000]]);
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.send(&mut s, &[b"GET", b"big"]);
    s.settle();
    let got = talk.raw.received(&mut s);
    assert!(got.len() > 5, "the value is not in segments");
    // The first one was lost; each of the others is a duplicate ACK.
    let before = s.kernel();
    let mut answers = Vec::new();
    for _ in 0..7 {
        answers.extend(talk.ack(&mut s));
    }
    assert_eq!(s.kernel().fast_recoveries, before.fast_recoveries + 1);
    assert!(
        answers
            .iter()
            .any(|segment| talk.raw.relative(segment).0 == talk.ack),
        "the kernel did not repeat the first segment: {answers:?} {}",
        s.counters()
    );
    assert_eq!(s.kernel().timeouts, before.timeouts);
}

pub(crate) fn dropped_only_when_they_say_nothing() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let dropped = s.stat(abi::STAT_PURE_ACK_DROPPED);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    assert_eq!(s.stat(abi::STAT_PURE_ACK_DROPPED), dropped + 1);
    // One a second goes up whatever it says.
    s.run(1100 * MS);
    talk.ack(&mut s);
    assert_eq!(s.stat(abi::STAT_PURE_ACK_DROPPED), dropped + 1);
    // An echoed congestion mark is for the kernel.
    talk.ask(&mut s, &[b"PING"]);
    let ece = talk
        .raw
        .segment(talk.seq, talk.ack, flags::ACK | flags::ECE, b"");
    talk.raw.send(&mut s, &ece);
    assert_eq!(s.stat(abi::STAT_PURE_ACK_DROPPED), dropped + 1);
    // After a reply of the kernel the next one is the kernel's.
    talk.ask(&mut s, &[b"ECHO", b"a"]);
    talk.ack(&mut s);
    assert_eq!(s.stat(abi::STAT_PURE_ACK_DROPPED), dropped + 1);
    let view = s.socket_of(talk.raw.pair()).expect("a socket");
    assert_eq!(view.snd_una, view.write_seq, "an ACK was swallowed");
}

pub(crate) fn one_replay_per_hole() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let acked = talk.ack;
    talk.ask(&mut s, &[b"PING"]); // lost, says the client
    talk.ack = acked;
    let before = s.stat(abi::STAT_REPLAY_ACK);
    let mut replays = Vec::new();
    for _ in 0..20 {
        let answer = talk.ack(&mut s);
        replays.extend(answer.into_iter().filter(|one| !one.payload.is_empty()));
    }
    assert_eq!(s.stat(abi::STAT_REPLAY_ACK), before + 1, "a storm");
    assert_eq!(replays.len(), 1);
    assert_eq!(replays[0].payload, b"+PONG\r\n");
    assert_eq!(talk.raw.relative(&replays[0]), (acked, talk.seq));
}

pub(crate) fn no_replay_for_dsack() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = sacking(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    let acked = talk.ack;
    talk.ask(&mut s, &[b"PING"]);
    let before = s.stat(abi::STAT_REPLAY_ACK);
    for _ in 0..5 {
        // Reports bytes below the acknowledgement: duplicates that arrived, not a hole.
        let mut dsack = talk.raw.segment(talk.seq, acked, flags::ACK, b"");
        let end = dsack.ack;
        dsack.options.sack.push(end.wrapping_sub(7), end);
        talk.raw.send(&mut s, &dsack);
    }
    assert_eq!(s.stat(abi::STAT_REPLAY_ACK), before);
    let mut sack = talk.raw.segment(talk.seq, acked, flags::ACK, b"");
    let hole = sack.ack;
    sack.options
        .sack
        .push(hole.wrapping_add(3), hole.wrapping_add(7));
    let answer = talk.raw.send(&mut s, &sack);
    assert_eq!(s.stat(abi::STAT_REPLAY_ACK), before + 1);
    assert_eq!(answer[0].payload, b"+PO", "the hole and no more");
}

pub(crate) fn sack_across_the_edge() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = sacking(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let lost = talk.ack;
    talk.ask(&mut s, &[b"PING"]);
    talk.ack = lost;
    talk.send(&mut s, &[b"ECHO", b"abc"]);
    s.settle();
    let reply = talk.raw.received(&mut s);
    assert_eq!(reply.len(), 1);
    let (from, to) = (reply[0].seq, reply[0].end_seq());
    s.stop_stack(true);
    let mut sack = talk.raw.segment(talk.seq, lost, flags::ACK, b"");
    sack.options.sack.push(from, to);
    talk.raw.send(&mut s, &sack);
    let up = s.stopped_up();
    assert_eq!(up.len(), 1, "it concerns the kernel's bytes too");
    assert!(
        up[0].options.sack.is_empty(),
        "a block that begins at the kernel's oldest byte looks like reneging"
    );
    let edge = s.entry_of(talk.raw.pair()).expect("an entry").edge;
    assert_eq!(up[0].ack, edge, "floored");
    s.stop_stack(false);
    s.run(2 * SECOND);
    // The timer repeats the lost answer, whatever the kernel repeats.
    let heard = talk.raw.received(&mut s);
    let again = heard
        .iter()
        .filter(|one| talk.raw.relative(one).0 == lost && one.payload == b"+PONG\r\n");
    assert!(
        again.count() >= 1,
        "the lost answer was never repeated: {heard:?} {}",
        s.counters()
    );
}

pub(crate) fn sack_above_the_edge() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'x'; 6000]]);
    let mut talk = sacking(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.send(&mut s, &[b"GET", b"big"]);
    s.settle();
    let got = talk.raw.received(&mut s);
    let second = &got[1];
    let (from, to) = (second.seq, second.end_seq());
    s.stop_stack(true);
    let mut sack = talk.raw.segment(talk.seq, talk.ack, flags::ACK, b"");
    sack.options.sack.push(from, to);
    talk.raw.send(&mut s, &sack);
    let up = s.stopped_up();
    let delta = s.entry_of(talk.raw.pair()).expect("an entry").out_delta;
    assert!(delta > 0);
    assert_eq!(
        up[0].options.sack.as_slice(),
        [(from.wrapping_sub(delta), to.wrapping_sub(delta))]
    );
    s.stop_stack(false);
    s.settle();
}

pub(crate) fn answers_repeated_by_the_timer() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let from = talk.ack;
    talk.ask(&mut s, &[b"PING"]);
    let mut times = Vec::new();
    let began = s.now();
    while s.now() - began < 4 * SECOND {
        s.run(10 * MS);
        for segment in talk.raw.received(&mut s) {
            assert_eq!(segment.payload, b"+PONG\r\n");
            assert_eq!(talk.raw.relative(&segment), (from, talk.seq));
            times.push((s.now() - began) / MS);
        }
    }
    assert_eq!(s.stat(abi::STAT_REPLAY_TIMEOUT), times.len() as u64);
    assert!(times.len() >= 3, "{times:?}");
    assert!(times[0] >= 200, "sooner than RTO_MIN: {times:?}");
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        gaps.windows(2).all(|pair| pair[1] * 2 > pair[0] * 3),
        "no back-off: {times:?}"
    );
    // Built of the state of the moment: what went up meanwhile moves nothing of it.
    let before = s.stat(abi::STAT_EGRESS_TRANSLATED);
    talk.ack(&mut s);
    s.run(SECOND);
    assert!(talk.raw.received(&mut s).is_empty());
    assert_eq!(s.stat(abi::STAT_EGRESS_TRANSLATED), before);
}

pub(crate) fn replay_acknowledges_what_the_kernel_has() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (from, seq) = (talk.ack, talk.seq);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack = from;
    // Lost between XDP and TCP: the fast path has seen it, the kernel has not.
    s.stop_stack(true);
    talk.send(&mut s, &[b"INCR", b"n"]);
    s.settle();
    s.world.server.lose_in_stack(1);
    s.stop_stack(false);
    let consumed = seq + 14;
    let again = talk
        .raw
        .data(&mut s, seq, from, &crate::client::resp::request(&[b"PING"]));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].payload, b"+PONG\r\n");
    assert_eq!(
        talk.raw.relative(&again[0]),
        (from, consumed),
        "a replay acknowledged bytes that are gone"
    );
    talk.take(&again);
    // The client's repetition reaches Redis, and is executed once.
    let incr = crate::client::resp::request(&[b"INCR", b"n"]);
    let counted = s
        .entry_of(talk.raw.pair())
        .map(|entry| (entry.requests, entry.h.mark_head));
    talk.seq = consumed;
    assert_eq!(talk.say(&mut s, &incr), b":1\r\n");
    assert_eq!(talk.seq, consumed + len(&incr));
    let now = s
        .entry_of(talk.raw.pair())
        .map(|entry| (entry.requests, entry.h.mark_head));
    assert_eq!(counted, now, "a repetition was counted again");
    assert_eq!(s.read(b"n"), b"$1\r\n1\r\n");
}

/// A client that does not read what it is answered, with a small buffer: Redis's next reply must not be
/// sent beyond it, although no packet that was answered tells the kernel how small it has become.
pub(crate) fn unread_and_small() {
    const ROOM: u32 = 20_000;
    let mut s = Scenario::new(Setup {
        veth: false,
        ..Setup::default()
    });
    s.cached(b"k", &[b'x'; 1000]);
    let writer = s.open_on(1, None);
    s.call(writer, &[b"SET", b"big", &[b'y'; 40_000]]);
    let mut raw = s.raw();
    raw.window = ROOM as u16;
    let mut talk = Talk::begin(&mut s, raw);
    talk.ack(&mut s);
    let end = talk.ack + ROOM;
    let fast = s.stat(abi::STAT_FAST_GET);
    for _ in 0..5 {
        talk.raw.window = (end - talk.ack) as u16;
        assert_eq!(talk.ask(&mut s, &[b"GET", b"k"]).len(), 1009);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > fast, "{}", s.counters());
    assert!(
        s.stat(abi::STAT_REFUSE_WINDOW_STALE) > 0,
        "{}",
        s.counters()
    );
    talk.raw.window = (end - talk.ack) as u16;
    talk.ack(&mut s);
    talk.ask(&mut s, &[b"GET", b"big"]);
    assert!(
        talk.ack <= end + ROOM / 16,
        "{} beyond the window",
        talk.ack - end
    );
    assert!(
        talk.ack + 1_460 > end,
        "the window was not used: {} left",
        end - talk.ack
    );
    talk.raw.window = 65_535;
    for _ in 0..20 {
        let more = talk.ack(&mut s);
        talk.take(&more);
        s.run(20 * MS);
        talk.hear(&mut s);
    }
    s.finish();
}
