// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Urgent data: bytes that the client sends and Redis does not read (E-46).

use erb_abi as abi;
use erb_sim_tcp::{Segment, flags};

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::tools::{Talk, len};
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

const OLD: &[u8] = b"$3\r\nold\r\n";
const NEW: &[u8] = b"$3\r\nnew\r\n";

/// With the byte at [`ODD`] it begins a SET of 13 bytes. Without it is one of three.
const TWOFOLD: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$13\r\nnew\r\n";
const ODD: u32 = 21;

/// What else the longer one needs, and what it has then stored.
const REST: &[u8] = b"12345678\r\n";
const LONG: &[u8] = b"$13\r\nnew\r\n12345678\r\n";

/// Whoever speaks, and another client for which the key is cached.
fn with_reader(s: &mut Scenario) -> (Talk, ConnId) {
    s.cached(b"k", b"old");
    let reader = s.fast();
    let mut talk = Talk::fast(s);
    talk.ask(s, &[b"PING"]);
    talk.ack(s);
    (talk, reader)
}

/// A segment whose urgent byte lies so many bytes behind its first one.
fn urgent(talk: &Talk, ahead: u32, payload: &[u8]) -> Segment {
    let bits = flags::ACK | flags::PSH | flags::URG;
    let mut segment = talk.raw.segment(talk.seq, talk.ack, bits, payload);
    segment.urgent = u16::try_from(ahead + 1).expect("a place within 64 KiB");
    segment
}

/// An acknowledgement that names a byte to come.
fn announce(s: &mut Scenario, talk: &mut Talk, ahead: u32) {
    let mut bare = urgent(talk, ahead, b"");
    bare.flags &= !flags::PSH;
    talk.raw.send(s, &bare);
}

/// The twofold bytes are read whole by Redis, as by ERB.
fn reads_whole(s: &mut Scenario, talk: &mut Talk, reader: ConnId) {
    assert_eq!(talk.say(s, TWOFOLD), b"", "Redis left a byte out");
    assert_eq!(s.call(reader, &[b"GET", b"k"]), OLD);
    assert_eq!(talk.say(s, REST), b"+OK\r\n");
    assert_eq!(s.call(reader, &[b"GET", b"k"]), LONG);
}

/// The urgent byte is in a write: Redis runs another command than the bytes say, and nobody reads what
/// was before it.
pub(crate) fn in_a_write() {
    for late in [false, true] {
        let mut s = Scenario::new(Setup::default());
        let (mut talk, reader) = with_reader(&mut s);
        s.stop_daemon(true);
        let odd = s.stat(abi::STAT_ODD_URGENT);
        let segment = urgent(&talk, ODD, TWOFOLD);
        let replies = if late {
            let (first, rest) = TWOFOLD.split_at(9);
            let behind = Segment {
                seq: segment.seq.wrapping_add(9),
                urgent: segment.urgent - 9,
                payload: rest.to_vec(),
                ..segment
            };
            talk.raw.send(&mut s, &behind); // beyond a hole
            talk.raw.data(&mut s, talk.seq, talk.ack, first)
        } else {
            talk.raw.send(&mut s, &segment)
        };
        talk.seq += len(TWOFOLD);
        assert_eq!(talk.take(&replies), b"+OK\r\n");
        assert_eq!(s.stat(abi::STAT_ODD_URGENT), odd + 1);
        assert_eq!(s.call(reader, &[b"GET", b"k"]), NEW, "{}", s.counters());
        s.stop_daemon(false);
        s.run(100 * MS);
        assert_eq!(talk.ask(&mut s, &[b"GET", b"k"]), NEW);
        s.finish();
    }
}

/// It is told of by a bare acknowledgement, by the handshake's last one, or by bytes that come again.
pub(crate) fn told_ahead() {
    let mut s = Scenario::new(Setup::default());
    let (mut talk, reader) = with_reader(&mut s);
    announce(&mut s, &mut talk, ODD);
    reads_whole(&mut s, &mut talk, reader);
    assert_eq!(s.stat(abi::STAT_URGENT_CLEARED), 1);
    s.finish();

    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"old");
    let reader = s.fast();
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    announce(&mut s, &mut talk, ODD);
    reads_whole(&mut s, &mut talk, reader);
    s.finish();

    for fast in [false, true] {
        let mut s = Scenario::new(Setup::default());
        let (mut talk, reader) = with_reader(&mut s);
        let before: &[&[u8]] = if fast {
            &[b"GET", b"k"]
        } else {
            &[b"ECHO", b"k"]
        };
        let before = request(before);
        let again = urgent(&talk, len(&before) + ODD, &before);
        talk.say(&mut s, &before);
        let replies = talk.raw.send(&mut s, &again);
        talk.take(&replies);
        reads_whole(&mut s, &mut talk, reader);
        assert_eq!(s.stat(abi::STAT_URGENT_CLEARED), 1, "{}", s.counters());
        s.finish();
    }
}

/// A connection that is older than ERB, and of which TCP still awaits an urgent byte, is taken up when
/// that is over.
pub(crate) fn told_before_erb() {
    for spoke in [false, true] {
        let mut s = Scenario::new(Setup {
            attached: false,
            ..Setup::default()
        });
        let raw = s.raw();
        let mut talk = Talk::connected(&mut s, raw);
        if spoke {
            assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        }
        announce(&mut s, &mut talk, 200);
        s.attach();
        let state = |s: &Scenario, talk: &Talk| {
            u32::from(s.entry_of(talk.raw.pair()).expect("an entry").state)
        };
        for _ in 0..4 {
            assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
            talk.ack(&mut s);
            s.run(2 * SECOND);
            assert_eq!(state(&s, &talk), abi::CONN_OLD, "{}", s.counters());
        }
        // One byte more than it says: the urgent one is not read.
        let text = [b'x'; 300];
        let mut echo = request(&[b"ECHO", &text]);
        echo.insert(echo.len() - 200, b'x');
        let reply = [b"$300\r\n", &text[..], b"\r\n"].concat();
        assert_eq!(talk.say(&mut s, &echo), reply);
        for _ in 0..20 {
            talk.ack(&mut s);
            s.run(SECOND);
            assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        }
        assert_eq!(state(&s, &talk), abi::CONN_FAST, "{}", s.counters());
        s.finish();
    }
}
