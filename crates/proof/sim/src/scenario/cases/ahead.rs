// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Payload beyond a hole: kept, passed up, scanned when the hole is filled (`bpf/splice/ahead.h`,
//! E-15).

use erb_abi as abi;
use erb_sim_kernel::AHEAD_BUFFERS;
use erb_sim_tcp::{Segment, flags};

use crate::client::resp::request;
use crate::link::Fate;
use crate::scenario::tools::{Talk, len};
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::MS;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// A fast connection with selective acknowledgements, of which something was consumed.
fn spliced(s: &mut Scenario) -> Talk {
    let mut raw = s.raw();
    raw.sack = true;
    let mut talk = Talk::begin(s, raw);
    talk.ask(s, &[b"PING"]);
    talk.ack(s);
    talk
}

/// Sends bytes that begin so far beyond the client's next one.
fn beyond(s: &mut Scenario, talk: &Talk, by: u32, bytes: &[u8]) -> Vec<Segment> {
    talk.raw.data(s, talk.seq + by, talk.ack, bytes)
}

/// Buffers that belong to somebody.
fn buffers_taken(s: &Scenario) -> usize {
    let path = s.world.server.path.borrow();
    let path = path.as_ref().expect("ERB is attached");
    path.aheads().filter(|buffer| buffer.owner != 0).count()
}

/// Bytes of this client that TCP has in order, counted from the first.
fn taken_by_tcp(s: &Scenario, talk: &Talk) -> u32 {
    let view = s.socket_of(talk.raw.pair()).expect("a socket");
    view.rcv_nxt.wrapping_sub(talk.raw.isn) - 1
}

/// What TCP holds beyond a hole of this client is thrown away.
fn prune(s: &Scenario, talk: &Talk) {
    let pruned = s.world.server.prune(talk.raw.pair());
    assert!(pruned, "TCP held nothing beyond a hole");
}

/// Whether the next PING is answered fast, and no buffer is held any more.
fn is_fast(s: &mut Scenario, talk: &mut Talk) -> bool {
    talk.ack(s);
    let before = s.fast_packets();
    assert_eq!(talk.say(s, PING), b"+PONG\r\n", "{}", s.counters());
    s.fast_packets() == before + 1 && buffers_taken(s) == 0
}

/// A value of several packets, of each of which a copy comes at once on another CPU. The first piece makes the rest count
/// as scanned. What is in it is no command, though it looks like one.
pub(crate) fn copy_of_a_body() {
    let setup = Setup {
        switch: 300_000,
        ..Setup::default()
    };
    let value = request(&[b"SET", b"k", b"not this"]).repeat(150);
    over_seeds(1..65, &setup, |mut s| {
        let client = s.fast();
        let requests = |s: &Scenario| s.entry(client).expect("its entry").requests;
        let before = requests(&s);
        s.up(0, Some(Box::new(|_, _| Fate::Copies(1, 0))));
        s.world.server.steer_in_turn(&[0, 1]);
        assert_eq!(s.call(client, &[b"SET", b"k", &value]), b"+OK\r\n");
        assert_eq!(requests(&s), before + 1, "its value was scanned");
        s.finish();
    });
}

/// A write beyond a hole: TCP acknowledges it selectively; it is marked before the packet that fills
/// the hole goes up, which is not answered although it could be.
pub(crate) fn hole_filled() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"old");
    let mut talk = spliced(&mut s);
    let reader = s.fast();
    let set = request(&[b"SET", b"k", b"new"]);
    let marks = s.stat(abi::STAT_MARK_TAKEN);
    let answers = beyond(&mut s, &talk, len(PING), &set);
    assert_eq!(answers.len(), 1, "one duplicate ACK");
    assert_eq!(talk.raw.relative(&answers[0]).1, talk.seq);
    let first = talk.raw.isn + talk.seq + len(PING);
    let blocks = answers[0].options.sack.as_slice().to_vec();
    assert_eq!(blocks, [(first, first + len(&set))], "what came is known");
    assert_eq!(s.stat(abi::STAT_AHEAD_KEPT), 1);
    assert_eq!(s.stat(abi::STAT_DROP_OUT_OF_ORDER), 0);
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks, "marked too early");
    let fast = s.fast_packets();
    s.stop_redis(true);
    talk.raw.data(&mut s, talk.seq, talk.ack, PING);
    assert_eq!(s.fast_packets(), fast, "what fills a hole is Redis's");
    assert_eq!(
        s.stat(abi::STAT_MARK_TAKEN),
        marks + 1,
        "the write is in TCP"
    );
    s.ask(reader, &[b"GET", b"k"]);
    s.run(5 * MS);
    assert_eq!(s.fast_packets(), fast, "{}", s.counters());
    s.stop_redis(false);
    assert_eq!(s.answers(reader), b"$3\r\nnew\r\n");
    talk.seq += len(PING) + len(&set);
    assert_eq!(talk.hear(&mut s), b"+PONG\r\n+OK\r\n");
    assert_eq!(taken_by_tcp(&s, &talk), 28 + len(&set));
    assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
}

/// The pieces of one pipeline, cut at every byte, in every order.
pub(crate) fn any_order() {
    let commands: [&[&[u8]]; 4] = [
        &[b"SET", b"k", b"0123456789"],
        &[b"EVAL", b"return redis.call('incr',KEYS[1])", b"1", b"n"],
        &[b"GET", b"k"],
        &[b"INCR", b"n"],
    ];
    let bytes: Vec<u8> = commands.iter().flat_map(|argv| request(argv)).collect();
    let orders = [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    for cut in 1..bytes.len() - 1 {
        let second = cut + 1 + (cut * 7) % (bytes.len() - 1 - cut);
        let pieces = [
            (0, &bytes[..cut]),
            (cut, &bytes[cut..second]),
            (second, &bytes[second..]),
        ];
        for at in orders[cut % orders.len()] {
            let (from, piece) = pieces[at];
            let segment = talk.raw.segment(
                talk.seq + u32::try_from(from).expect("a short pipeline"),
                talk.ack,
                flags::ACK | flags::PSH,
                piece,
            );
            talk.raw.post(&mut s, &segment);
        }
        s.run(MS);
        talk.seq += len(&bytes);
        let count = 2 * cut;
        let expected = format!("+OK\r\n:{}\r\n$10\r\n0123456789\r\n:{count}\r\n", count - 1);
        let heard = talk.hear(&mut s);
        assert_eq!(heard, expected.as_bytes(), "cut at {cut} and {second}");
        talk.ack(&mut s);
    }
    assert_eq!(s.stat(abi::STAT_DROP_OUT_OF_ORDER), 0, "{}", s.counters());
    s.run(300 * MS);
    let fast = s.fast_packets();
    talk.say(&mut s, PING);
    talk.ack(&mut s);
    assert_eq!(s.fast_packets(), fast + 1, "{}", s.counters());
}

/// TCP forgets what it held: the same bytes come again, before or behind what fills the hole.
pub(crate) fn pruned() {
    for filled_first in [false, true] {
        let mut s = Scenario::new(Setup::default());
        let mut talk = spliced(&mut s);
        let set = request(&[b"SET", b"k", b"new"]);
        beyond(&mut s, &talk, len(PING), &set);
        prune(&s, &talk);
        if !filled_first {
            beyond(&mut s, &talk, len(PING), &set);
        }
        assert_eq!(talk.say(&mut s, PING).get(..7), Some(&b"+PONG\r\n"[..]));
        if filled_first {
            assert_eq!(talk.say(&mut s, &set), b"+OK\r\n");
        } else {
            talk.seq += len(&set);
        }
        talk.ack(&mut s);
        assert_eq!(s.stat(abi::STAT_AHEAD_OTHER), 0);
        assert_eq!(s.stat(abi::STAT_MARK_TAKEN), 1);
        assert_eq!(s.read(b"k"), b"$3\r\nnew\r\n");
        assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
    }
}

/// A client sends other bytes in the place of what TCP forgot, before or behind what fills the hole:
/// its stream is lost, and what Redis may have read of it is fenced.
pub(crate) fn two_stories() {
    for filled_first in [false, true] {
        let mut s = Scenario::new(Setup::default());
        s.cached(b"b", b"old");
        let reader = s.fast();
        let mut talk = spliced(&mut s);
        let (first, second) = (
            request(&[b"SET", b"a", b"new"]),
            request(&[b"SET", b"b", b"new"]),
        );
        beyond(&mut s, &talk, len(PING), &first);
        prune(&s, &talk);
        s.stop_daemon(true); // the push of the write is not handled
        s.stop_redis(true);
        if filled_first {
            talk.raw.data(&mut s, talk.seq, talk.ack, PING);
        }
        beyond(&mut s, &talk, len(PING), &second);
        if !filled_first {
            talk.raw.data(&mut s, talk.seq, talk.ack, PING);
        }
        s.stop_redis(false);
        s.run(MS);
        assert_eq!(talk.hear(&mut s), b"+PONG\r\n+OK\r\n", "{}", s.counters());
        assert_eq!(s.call(reader, &[b"GET", b"b"]), b"$3\r\nnew\r\n");
        assert_eq!(s.stat(abi::STAT_AHEAD_OTHER), 1);
        s.stop_daemon(false);
        talk.seq += len(PING) + len(&second);
        let entry = s.entry_of(talk.raw.pair()).expect("an entry");
        let lost = u32::from(entry.flags) & abi::CONN_F_SCAN_LOST;
        assert_eq!(lost, abi::CONN_F_SCAN_LOST);
        assert_eq!(talk.say(&mut s, PING), b"+PONG\r\n");
        talk.ack(&mut s);
        assert_eq!(buffers_taken(&s), 0);
        s.is_fast_within(reader, b"b", 5_000 * MS);
    }
}

/// The other story ends before what is kept does, behind another hole: the fence waits for all that TCP may have.
pub(crate) fn shorter_story() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"b", b"old");
    let reader = s.fast();
    let talk = spliced(&mut s);
    let set = |key: &[u8]| request(&[b"SET", key, b"new"]);
    let near = len(PING);
    let between = near + len(&set(b"a"));
    let far = between + len(PING);
    beyond(&mut s, &talk, near, &set(b"a"));
    beyond(&mut s, &talk, far, &set(b"b"));
    s.stop_daemon(true); // nothing is released
    beyond(&mut s, &talk, near, &set(b"c"));
    assert_eq!(s.stat(abi::STAT_AHEAD_OTHER), 1, "{}", s.counters());
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    let flags = u32::from(entry.flags);
    assert_ne!(flags & abi::CONN_F_FENCE_PROOF, 0, "nothing is fenced");
    let end = talk.raw.isn.wrapping_add(talk.seq + far + len(&set(b"b")));
    let waits_for = entry.h.proof_pos.wrapping_add(entry.in_delta);
    assert_eq!(waits_for.wrapping_sub(end), 0, "it waits for less, or more");
    beyond(&mut s, &talk, between, PING);
    talk.raw.data(&mut s, talk.seq, talk.ack, PING);
    s.run(MS);
    assert_eq!(s.call(reader, &[b"GET", b"b"]), b"$3\r\nnew\r\n");
    s.stop_daemon(false);
    s.is_fast_within(reader, b"b", 5_000 * MS);
}

/// More connections with holes than buffers: what finds none is dropped, until one is free.
pub(crate) fn no_buffer() {
    let mut s = Scenario::new(Setup::default());
    let set = request(&[b"SET", b"k", b"v"]);
    let mut talks: Vec<Talk> = (0..=AHEAD_BUFFERS).map(|_| spliced(&mut s)).collect();
    for talk in &talks[..AHEAD_BUFFERS] {
        beyond(&mut s, talk, len(PING), &set);
    }
    assert_eq!(buffers_taken(&s), AHEAD_BUFFERS);
    assert_eq!(s.stat(abi::STAT_AHEAD_FULL), 0);
    let answers = beyond(&mut s, &talks[AHEAD_BUFFERS], len(PING), &set);
    assert_eq!(answers.len(), 1, "one duplicate ACK");
    let last = &talks[AHEAD_BUFFERS];
    assert_eq!(last.raw.relative(&answers[0]).1, last.seq);
    assert!(answers[0].options.sack.as_slice().is_empty());
    assert_eq!(s.stat(abi::STAT_AHEAD_FULL), 1);
    assert_eq!(s.stat(abi::STAT_DROP_OUT_OF_ORDER), 1);
    let talk = &mut talks[0];
    assert_eq!(talk.say(&mut s, PING), b"+PONG\r\n+OK\r\n");
    talk.seq += len(&set);
    talk.ack(&mut s); // TCP has all: the buffer goes with the next packet
    let last = &talks[AHEAD_BUFFERS];
    let answers = beyond(&mut s, last, len(PING), &set);
    assert_eq!(answers[0].options.sack.as_slice().len(), 1, "it is kept");
    for talk in &mut talks[1..] {
        assert_eq!(talk.say(&mut s, PING), b"+PONG\r\n+OK\r\n");
        talk.seq += len(&set);
        talk.ack(&mut s);
    }
    for talk in &mut talks {
        assert!(is_fast(&mut s, talk), "{}", s.counters());
    }
}

/// More holes than ranges: the last ones are dropped, and nothing hangs.
pub(crate) fn many_holes() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    let incr = request(&[b"INCR", b"n"]);
    let count = abi::AHEAD_RANGES + 2;
    for number in 0..count {
        beyond(&mut s, &talk, (2 * number + 1) * len(&incr), &incr);
    }
    let dropped = s.stat(abi::STAT_DROP_OUT_OF_ORDER);
    assert_eq!(dropped, 3, "one range is for what TCP waits for");
    let taken = taken_by_tcp(&s, &talk);
    beyond(&mut s, &talk, 0, &incr[..5]);
    assert_eq!(taken_by_tcp(&s, &talk), taken + 5, "TCP waits for ever");
    let mut heard = Vec::new();
    for number in (0..count)
        .rev()
        .map(|number| 2 * number)
        .chain(0..2 * count)
    {
        let answers = beyond(&mut s, &talk, number * len(&incr), &incr);
        heard.extend(talk.take(&answers));
    }
    let all: Vec<u8> = (1..=2 * count)
        .flat_map(|number| format!(":{number}\r\n").into_bytes())
        .collect();
    assert_eq!(heard, all, "{}", s.counters());
    talk.seq += 2 * count * len(&incr);
    assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
}

/// Holes in and behind a body that counts as scanned before it has come (S2, S3).
pub(crate) fn hole_in_a_body() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"old");
    let mut talk = spliced(&mut s);
    let script = [b"return 'x' --", &[b' '; 3000][..]].concat();
    let eval = request(&[b"EVAL", &script]);
    let head = eval.len() - script.len() - 2;
    let (head, body) = eval.split_at(head + 100);
    // EVAL without a number of keys: an error, but a share of the fence all the same.
    let set = request(&[b"SET", b"k", b"new"]);
    let tail = [&body[2_000..], &set].concat();
    let shares = s.stat(abi::STAT_FENCE_TAKEN);
    let marks = s.stat(abi::STAT_MARK_TAKEN);
    talk.raw.data(&mut s, talk.seq, talk.ack, head);
    let at = len(head);
    let behind = at + len(body);
    beyond(&mut s, &talk, behind, &set);
    assert_eq!(s.stat(abi::STAT_FENCE_TAKEN), shares, "half a command");
    beyond(&mut s, &talk, at + 1_000, &body[1_000..2_000]);
    assert_eq!(s.stat(abi::STAT_FENCE_TAKEN), shares, "half a command");
    beyond(&mut s, &talk, at + 2_000, &tail);
    assert_eq!(s.stat(abi::STAT_FENCE_TAKEN), shares + 1, "its last byte");
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks + 1, "what is behind it");
    let answers = beyond(&mut s, &talk, at, &body[..1_000]);
    talk.seq += behind + len(&set);
    let heard = talk.take(&answers);
    assert!(heard.starts_with(b"-ERR") && heard.ends_with(b"+OK\r\n"));
    s.run(20 * MS);
    assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
}

/// A timestamp that TCP may refuse: not kept.
pub(crate) fn old_timestamp() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.sack = true;
    raw.ts = Some((1_000, 0));
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let set = request(&[b"SET", b"k", b"v"]);
    let now = talk.raw.ts;
    talk.raw.ts = now.map(|(own, theirs)| (own - 1, theirs));
    beyond(&mut s, &talk, len(PING), &set);
    assert_eq!(s.stat(abi::STAT_AHEAD_KEPT), 0, "{}", s.counters());
    assert_eq!(buffers_taken(&s), 0);
    talk.raw.ts = now;
    beyond(&mut s, &talk, len(PING), &set);
    assert_eq!(s.stat(abi::STAT_AHEAD_KEPT), 1, "{}", s.counters());
    assert_eq!(talk.say(&mut s, PING), b"+PONG\r\n+OK\r\n");
    talk.seq += len(&set);
    assert!(is_fast(&mut s, &mut talk), "{}", s.counters());
}

/// TCP refuses the rest of a command's last body, whose beginning Redis has: no list proves that it ran.
pub(crate) fn rest_refused() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"old");
    let reader = s.fast();
    let mut raw = s.raw();
    raw.ts = Some((1_000, 0));
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (value, half) = ([b'v'; 1000], 500);
    let set = request(&[b"SET", b"k", &value]);
    let now = talk.raw.ts;
    beyond(&mut s, &talk, 0, &set[..half]);
    talk.raw.ts = now.map(|(own, theirs)| (own - 2, theirs)); // TCP_PAWS_WINDOW is 1
    beyond(&mut s, &talk, half as u32, &set[half..]);
    for _ in 0..60 {
        assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nold\r\n");
        s.run(50 * MS);
    }
    let held = s.stat(abi::STAT_MARK_TAKEN) - s.stat(abi::STAT_MARK_RELEASED);
    assert_eq!(held, 1, "{}", s.counters());
    talk.raw.ts = now;
    talk.seq += half as u32;
    assert_eq!(talk.say(&mut s, &set[half..]), b"+OK\r\n");
    let new = [b"$1000\r\n", &value[..], b"\r\n"].concat();
    assert_eq!(s.call(reader, &[b"GET", b"k"]), new);
    s.finish();
}

/// The client ends with what lies beyond the hole, or goes without filling it.
pub(crate) fn ends() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = spliced(&mut s);
    let set = request(&[b"SET", b"k", b"v"]);
    let fin = flags::ACK | flags::PSH | flags::FIN;
    let last = talk.raw.segment(talk.seq + len(PING), talk.ack, fin, &set);
    talk.raw.send(&mut s, &last);
    assert_eq!(buffers_taken(&s), 1);
    assert_eq!(talk.say(&mut s, PING), b"+PONG\r\n+OK\r\n");
    assert_eq!(s.read(b"k"), b"$1\r\nv\r\n");
    let gone = spliced(&mut s);
    beyond(&mut s, &gone, len(PING), &set);
    assert_eq!(buffers_taken(&s), 2);
    let reset = gone
        .raw
        .segment(gone.seq, gone.ack, flags::RST | flags::ACK, b"");
    gone.raw.send(&mut s, &reset);
    s.until("the buffers are free", |s| buffers_taken(s) == 0);
}
