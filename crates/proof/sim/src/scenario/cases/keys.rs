// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which keys a command writes: ranges, counted keys, as many as are marked and more, cut anywhere
//! (C-3, C-9, C-15, C-43).

use erb_abi::{self as abi, ControlPlane as _, Keys, Meaning};
use erb_sim_tcp::flags;

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::tools::{Talk, len};
use crate::scenario::{Scenario, Setup};
use crate::time::MS;

/// Whether a GET is answered fast now; what Redis is asked for otherwise stays unanswered.
fn is_fast(s: &mut Scenario, reader: ConnId, key: &[u8]) -> bool {
    let fast = s.stat(abi::STAT_FAST_GET);
    s.ask(reader, &[b"GET", key]);
    s.run(MS);
    s.stat(abi::STAT_FAST_GET) > fast
}

/// With Redis stopped, `write` is on its way: none of `marked` is answered, `other` is.
fn only_these(write: &[&[u8]], marked: &[&[u8]], other: &[u8]) {
    let mut s = Scenario::new(Setup::default());
    for key in marked.iter().chain([&other]) {
        s.cached(key, b"old");
    }
    let writer = s.fast();
    let readers: Vec<ConnId> = marked.iter().map(|_| s.fast()).collect();
    let last = s.fast();
    let fences = s.stat(abi::STAT_FENCE_TAKEN);
    s.stop_redis(true);
    s.ask(writer, write);
    s.run(MS);
    for (reader, key) in readers.iter().zip(marked) {
        assert!(!is_fast(&mut s, *reader, key), "{}", key.escape_ascii());
    }
    assert!(is_fast(&mut s, last, other), "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_FENCE_TAKEN), fences, "a fence");
    s.stop_redis(false);
    s.answers(writer);
    for reader in &readers {
        s.answers(*reader);
    }
    s.finish();
}

pub(crate) fn many_keys() {
    let keys: [&[u8]; 3] = [b"one", b"two", b"three"];
    only_these(&[b"DEL", b"one", b"two", b"three"], &keys, b"other");
    only_these(&[b"RENAME", b"one", b"two"], &keys[..2], b"other");
    let pairs: [&[u8]; 7] = [b"MSET", b"one", b"1", b"two", b"2", b"three", b"3"];
    only_these(&pairs, &keys, b"other");
    // Values are no keys, and what is only read is not marked.
    only_these(&[b"MSET", b"one", b"other"], &keys[..1], b"other");
    only_these(&[b"COPY", b"other", b"one"], &keys[..1], b"other");
}

pub(crate) fn other_database() {
    only_these(&[b"MOVE", b"one", b"1"], &[b"one"], b"other");
    only_these(
        &[b"COPY", b"other", b"one", b"DB", b"1", b"REPLACE"],
        &[b"one"],
        b"other",
    );
}

/// A command in two packets, cut at every byte: as many marks as it has keys, and the first packet
/// holds what it names.
pub(crate) fn cut_anywhere() {
    let commands: [(&[&[u8]], u64); 4] = [
        (&[b"DEL", b"one", b"key-number-two", b"k"], 3),
        (&[b"MSET", b"one", b"1", b"key-number-two", b"22"], 2),
        (&[b"COPY", b"one", b"key-number-two", b"REPLACE"], 1),
        (&[b"RENAME", b"key-number-two", b"", b"x"], 2),
    ];
    for (argv, keys) in commands {
        let mut s = Scenario::new(Setup::default());
        let mut talk = Talk::fast(&mut s);
        let bytes = request(argv);
        for cut in 1..bytes.len() {
            let marks = s.stat(abi::STAT_MARK_TAKEN);
            s.stop_redis(true);
            for part in [&bytes[..cut], &bytes[cut..]] {
                let bits = flags::ACK | flags::PSH;
                let segment = talk.raw.segment(talk.seq, talk.ack, bits, part);
                talk.raw.post(&mut s, &segment);
                talk.seq += len(part);
                s.run(MS);
            }
            let taken = s.stat(abi::STAT_MARK_TAKEN) - marks;
            assert_eq!(taken, keys, "cut at {cut} of {}", bytes.escape_ascii());
            s.stop_redis(false);
            s.run(MS);
            talk.hear(&mut s);
            talk.ack(&mut s);
        }
        let (taken, given) = (
            s.stat(abi::STAT_MARK_TAKEN),
            s.stat(abi::STAT_MARK_RELEASED),
        );
        assert_eq!(taken, given, "marks stay");
    }
}

pub(crate) fn too_many() {
    for extra in [0, 1] {
        let mut s = Scenario::new(Setup::default());
        let writer = s.fast();
        let fences = s.stat(abi::STAT_FENCE_TAKEN);
        let names: Vec<String> = (0..abi::KEYS_MARKED_MAX + extra)
            .map(|number| format!("key{number}"))
            .collect();
        let mut argv: Vec<&[u8]> = vec![b"DEL"];
        argv.extend(names.iter().map(String::as_bytes));
        assert_eq!(s.call(writer, &argv), b":0\r\n");
        assert_eq!(s.stat(abi::STAT_FENCE_TAKEN) - fences, u64::from(extra));
        s.settle();
        assert_eq!(s.control().fence, 0);
        s.finish();
    }
}

/// Scripts are taken to touch what they do not declare; here their row says where the keys are.
pub(crate) fn counted() {
    let row = Meaning {
        class: abi::CMD_MARK,
        argc: 0,
        keys: Keys {
            first: 3,
            last: 0,
            step: 1,
            keynum: 2,
        },
        order: 0,
    };
    let script: &[u8] = b"return redis.call('set',KEYS[1],ARGV[1])";
    for (count, marks, fences) in [
        (&b"2"[..], 2, 0),
        (b"02", 0, 1),
        (b"0", 0, 1),
        (b"99", 3, 0),
        (b"100", 0, 1),
    ] {
        let mut s = Scenario::new(Setup::default());
        let client = s.fast();
        let path = s.world.server.path.borrow().clone().expect("a data path");
        let eval = abi::command_key_bytes("eval").expect("a short name");
        path.set_command(&eval, Some(&row)).expect("there is room");
        let (taken, fenced) = (s.stat(abi::STAT_MARK_TAKEN), s.stat(abi::STAT_FENCE_TAKEN));
        s.call(client, &[b"EVAL", script, count, b"one", b"two", b"three"]);
        assert_eq!(s.stat(abi::STAT_MARK_TAKEN) - taken, marks, "{count:?}");
        assert_eq!(s.stat(abi::STAT_FENCE_TAKEN) - fenced, fences, "{count:?}");
    }
}

/// Writes of which the last byte is missing, however they are cut: nobody misses a hit before it comes,
/// nobody has one while the whole command is unanswered.
pub(crate) fn half_a_write() {
    let long = vec![b'x'; 3000];
    let kept = vec![b'y'; 200];
    let writes: [&[&[u8]]; 5] = [
        &[b"SET", b"k", b"new"],
        &[b"SET", b"k", &long],
        &[b"MSET", b"one", &long, b"k", b"new", b"two", &long],
        &[b"DEL", b"one", &kept, b"k"],
        &[b"INCR", b"k"],
    ];
    for argv in writes {
        let whole = request(argv);
        for cuts in [1, 2, 5] {
            for end in [1, 2, 3] {
                half_then_whole(&whole, cuts, end);
            }
        }
    }
}

/// The command in so many pieces, all but its last bytes; then these.
fn half_then_whole(whole: &[u8], pieces: usize, end: usize) {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"7");
    let reader = s.fast();
    let mut talk = Talk::fast(&mut s);
    let (begin, last) = whole.split_at(whole.len() - end);
    for piece in begin.chunks(begin.len().div_ceil(pieces)) {
        talk.say(&mut s, piece);
    }
    assert!(is_fast(&mut s, reader, b"k"), "{pieces} pieces, {end} left");
    s.stop_redis(true);
    talk.say(&mut s, last);
    s.run(MS);
    assert!(
        !is_fast(&mut s, reader, b"k"),
        "{pieces} pieces, {end} left"
    );
    assert_eq!(s.control().fence, 0);
    s.stop_redis(false);
    s.run(50 * MS);
    talk.hear(&mut s);
    talk.ack(&mut s);
    let (taken, given) = (
        s.stat(abi::STAT_MARK_TAKEN),
        s.stat(abi::STAT_MARK_RELEASED),
    );
    assert!(
        taken > 0 && taken == given,
        "{taken} taken, {given} given back"
    );
    s.finish();
}

/// More marks than the ring holds, the last command cut behind its key: it closes nothing while it is
/// half, and has no room to wait, so it takes a share of the fence when it is whole.
pub(crate) fn half_a_command() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"old");
    let reader = s.fast();
    let mut talk = Talk::fast(&mut s);
    let mut bytes = Vec::new();
    for round in 0..abi::MARKS_IN_FLIGHT {
        bytes.extend(request(&[b"INCR", format!("n{round}").as_bytes()]));
    }
    let last = request(&[b"SET", b"k", b"new"]);
    let cut = last.len() - b"$3\r\nnew\r\n".len();
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    s.stop_redis(true);
    for part in [first, &[rest, &last[..cut]].concat()] {
        let bits = flags::ACK | flags::PSH;
        let segment = talk.raw.segment(talk.seq, talk.ack, bits, part);
        talk.raw.post(&mut s, &segment);
        talk.seq += len(part);
        s.run(MS);
    }
    assert_eq!(s.control().fence, 0, "half a command closes the fence");
    s.stop_redis(false);
    s.run(50 * MS);
    talk.hear(&mut s);
    talk.ack(&mut s);
    s.stop_redis(true);
    talk.say(&mut s, &last[cut..]);
    s.run(MS);
    assert_eq!(
        s.control().fence,
        1,
        "its mark had no room, and nothing took its place"
    );
    assert!(!is_fast(&mut s, reader, b"k"));
    s.stop_redis(false);
    s.run(50 * MS);
    assert_eq!(s.control().fence, 0, "the fence stands");
    assert_eq!(s.answers(reader), b"$3\r\nnew\r\n");
    assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    s.finish();
}
