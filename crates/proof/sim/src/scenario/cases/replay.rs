// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The replay buffer: answers that the client has not acknowledged, in a ring.

use std::collections::VecDeque;

use erb_abi as abi;

use crate::client::resp::request;
use crate::scenario::tools::{Talk, len};
use crate::scenario::{Scenario, Setup};
use crate::time::MS;

/// A client acknowledges nothing and asks on and on.
pub(crate) fn is_full() {
    let mut s = Scenario::new(Setup {
        veth: false,
        ..Setup::default()
    });
    s.cached(b"k", &[b'a'; 900]);
    s.cached(b"l", &[b'b'; 800]);
    let mut raw = s.raw();
    raw.window = u16::MAX;
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (fast, full) = (s.fast_packets(), s.stat(abi::STAT_REFUSE_REPLAY_FULL));
    let (seq, acked) = (talk.seq, talk.ack);
    talk.send(&mut s, &[b"GET", b"k"]);
    for _ in 0..7 {
        s.run(MS);
        talk.send(&mut s, &[b"GET", b"l"]);
    }
    s.run(MS);
    let answered = s.fast_packets() - fast;
    assert_eq!(answered, 4, "{}", s.counters());
    assert!(s.stat(abi::STAT_REFUSE_REPLAY_FULL) > full);
    // The oldest one is still there.
    s.run(MS);
    talk.raw.received(&mut s);
    let again = talk.raw.data(&mut s, seq, acked, &request(&[b"GET", b"k"]));
    let first = again.first().expect("a replay");
    assert_eq!(talk.raw.relative(first).0, acked);
    assert!(first.payload.starts_with(b"$900\r\naaaa"), "other bytes");
}

/// Replies of odd lengths go around the ring's end, others unacknowledged before them. Asked again, the client gets the
/// same bytes.
pub(crate) fn wraps() {
    const LENGTHS: [usize; 5] = [1001, 707, 1303, 39, 1202];
    let mut s = Scenario::new(Setup {
        veth: false,
        ..Setup::default()
    });
    let key = |at: usize| format!("k{}", at % LENGTHS.len());
    let value = |at: usize| -> Vec<u8> {
        (0..LENGTHS[at % LENGTHS.len()])
            .map(|n| (n * 7 + at) as u8)
            .collect()
    };
    for at in 0..LENGTHS.len() {
        s.cached(key(at).as_bytes(), &value(at));
    }
    let mut raw = s.raw();
    raw.window = u16::MAX;
    let mut talk = Talk::begin(&mut s, raw);
    let (mut acked, mut unacked) = (talk.ack, VecDeque::<Vec<u8>>::new());
    for round in 0..20 {
        let (get, value) = (
            request(&[b"GET", key(round).as_bytes()]),
            value(round % LENGTHS.len()),
        );
        let wanted = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        let held = |unacked: &VecDeque<Vec<u8>>| unacked.iter().map(Vec::len).sum::<usize>();
        while held(&unacked) + wanted.len() > abi::REPLAY_BYTES as usize - 64 {
            acked += unacked.pop_front().map_or(0, |it| len(&it));
        }
        let (seq, fast) = (talk.seq, s.fast_packets());
        let answers = talk.raw.data(&mut s, seq, acked, &get);
        talk.seq += len(&get);
        assert_eq!(talk.take(&answers), wanted, "round {round}");
        assert_eq!(s.fast_packets(), fast + 1, "{}", s.counters());
        unacked.push_back(wanted);
        let all = unacked.make_contiguous().concat();
        let mut at = 0;
        while at < all.len() {
            let from = acked + len(&all[..at]);
            let again = talk.raw.data(&mut s, seq, from, &get);
            let again = again.first().expect("a replay");
            assert_eq!(talk.raw.relative(again).0, from);
            assert!(!again.payload.is_empty(), "it stops at {at}");
            assert!(
                all[at..].starts_with(&again.payload),
                "other bytes at {at} of round {round}"
            );
            at += again.payload.len();
        }
    }
    s.finish();
}
