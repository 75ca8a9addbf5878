// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write-through: what a SET says is answered from its reply on, for a short time, and what ends that.

use erb_abi as abi;
use erb_sim_tcp::flags;

use super::tools::{Talk, len};
use super::{Scenario, Setup, over_seeds};
use crate::ConnId;
use crate::client::resp::request;
use crate::time::{MS, Ns};

/// The longest that what a SET said is answered: the coarse clock lags.
const LIFE: Ns = abi::WRITTEN_NS as Ns + 10 * MS;

/// A world where `k` is cached, who reads it and who writes it.
fn read_and_written(setup: Setup) -> (Scenario, ConnId, ConnId) {
    let mut s = Scenario::new(setup);
    s.cached(b"k", b"old");
    let (reader, writer) = (s.fast(), s.fast());
    (s, reader, writer)
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Reads `k`; whether the answer was fast.
fn reads(s: &mut Scenario, reader: ConnId, value: &[u8]) -> bool {
    let fast = s.stat(abi::STAT_FAST_GET);
    assert_eq!(s.call(reader, &[b"GET", b"k"]), bulk(value));
    s.stat(abi::STAT_FAST_GET) > fast
}

/// Reads `k` until it is cached.
fn cached_again(s: &mut Scenario, reader: ConnId, value: &[u8]) {
    for _ in 0..40 {
        if reads(s, reader, value) {
            return;
        }
        s.run(5 * MS);
    }
    panic!("it did not come back: {}", s.counters());
}

/// A SET of one packet; what it says is shown.
fn set(s: &mut Scenario, writer: ConnId, value: &[u8]) {
    let shown = s.stat(abi::STAT_CACHE_WRITTEN);
    assert_eq!(s.call(writer, &[b"SET", b"k", value]), b"+OK\r\n");
    assert_eq!(
        s.stat(abi::STAT_CACHE_WRITTEN),
        shown + 1,
        "{}",
        s.counters()
    );
}

/// Values of both classes are answered at once, by every command, with nobody to fill them; then they are
/// missed, and filled.
pub(super) fn answered_at_once() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    for length in [1, 60, 88, 100, 200] {
        let value = vec![b'v'; length];
        s.stop_daemon(true);
        set(&mut s, writer, &value);
        assert!(reads(&mut s, reader, &value), "{}", s.counters());
        let fast = s.fast_packets();
        assert_eq!(s.call(reader, &[b"PTTL", b"k"]), b":-1\r\n");
        let strlen = format!(":{length}\r\n");
        assert_eq!(s.call(reader, &[b"STRLEN", b"k"]), strlen.as_bytes());
        assert_eq!(
            s.call(reader, &[b"MGET", b"k"]),
            [b"*1\r\n", &bulk(&value)[..]].concat()
        );
        assert_eq!(s.fast_packets(), fast + 3);
        s.run(LIFE);
        assert!(!reads(&mut s, reader, &value), "answered for too long");
        s.stop_daemon(false);
        s.run(20 * MS);
        assert!(reads(&mut s, reader, &value), "it did not come back");
    }
    for value in [&b""[..], &[b'x'; 240]] {
        let shown = s.stat(abi::STAT_CACHE_WRITTEN);
        s.call(writer, &[b"SET", b"k", value]);
        assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown, "{}", value.len());
        assert_eq!(s.call(reader, &[b"GET", b"k"]), bulk(value));
    }
    s.finish();
}

/// A key that is written all the time is not read from Redis meanwhile, and is before what was said last
/// is over. One that nobody reads is not kept.
pub(super) fn read_once_behind_many() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    let (filled, missed) = (
        s.stat(abi::STAT_FILL_INSERTED),
        s.stat(abi::STAT_REFUSE_MISS),
    );
    for round in 0..100 {
        let value = format!("v{round}");
        set(&mut s, writer, value.as_bytes());
        s.run(2 * MS);
        assert!(reads(&mut s, reader, value.as_bytes()), "{}", s.counters());
    }
    assert_eq!(
        s.stat(abi::STAT_FILL_INSERTED),
        filled,
        "read between writes"
    );
    for _ in 0..40 {
        s.run(5 * MS);
        assert!(reads(&mut s, reader, b"v99"), "{}", s.counters());
    }
    assert_eq!(s.stat(abi::STAT_FILL_INSERTED), filled + 1);
    assert_eq!(s.stat(abi::STAT_REFUSE_MISS), missed);
    let shown = s.stat(abi::STAT_CACHE_WRITTEN);
    s.call(writer, &[b"SET", b"unread", b"v"]);
    assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown);
    s.finish();
}

/// Values that are not believed come so fast that all reads of Redis are too late, and spend the key's
/// credit. The next that may be believed is kept.
pub(super) fn kept_without_credit() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    assert!(reads(&mut s, reader, b"old"));
    let stale = s.stat(abi::STAT_FILL_STALE);
    for number in 0..60_u8 {
        s.call(writer, &[b"SET", b"k", &[b'a' + number % 26; 240]]);
    }
    assert!(s.stat(abi::STAT_FILL_STALE) > stale, "{}", s.counters());
    let filled = s.stat(abi::STAT_FILL_INSERTED);
    s.stop_daemon(true);
    set(&mut s, writer, b"new");
    assert!(reads(&mut s, reader, b"new"), "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_FILL_INSERTED), filled);
    s.stop_daemon(false);
    s.finish();
}

/// A key that is written again and again, and not read between, is soon not read from Redis any more, until
/// somebody reads it.
pub(super) fn written_and_not_read() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    assert!(reads(&mut s, reader, b"old"));
    let filled = s.stat(abi::STAT_FILL_INSERTED);
    for _ in 0..10 {
        set(&mut s, writer, b"new");
        s.run(LIFE);
    }
    let again = s.stat(abi::STAT_FILL_INSERTED) - filled;
    assert_eq!(again, 1, "{}", s.counters());
    cached_again(&mut s, reader, b"new");
    s.finish();
}

/// A client that ERB does not see changes the key behind a SET: hidden for no longer than that is
/// answered, however late its reply leaves, and whoever stands still.
pub(super) fn unseen_behind_it() {
    for stopped in [false, true] {
        let (mut s, reader, writer) = read_and_written(Setup::default());
        set(&mut s, writer, b"seen");
        s.stop_daemon(stopped);
        s.unseen(&[b"SET", b"k", b"unseen"]);
        s.run(LIFE);
        reads(&mut s, reader, b"unseen");
        s.stop_daemon(false);
        s.run(50 * MS);
        s.stop_egress(true);
        s.ask(writer, &[b"SET", b"k", b"late"]);
        s.run(MS);
        s.unseen(&[b"SET", b"k", b"unseen"]);
        s.run(LIFE);
        s.stop_egress(false);
        s.answers(writer);
        reads(&mut s, reader, b"unseen");
        s.finish();
    }
}

/// Writes whose keys nobody knows end what a SET said, although the fence opens behind their reports.
pub(super) fn script_behind_it() {
    let script = b"return redis.call('set',KEYS[1],ARGV[1])";
    let (mut s, reader, writer) = read_and_written(Setup::default());
    for _ in 0..3 {
        set(&mut s, writer, b"said");
        s.call(writer, &[b"EVAL", script, b"1", b"k", b"run"]);
        s.until("the fence is open", |s| s.control().fence == 0);
        cached_again(&mut s, reader, b"run");
    }
    // The script is in front of the SET's reply.
    let other = s.fast();
    s.stop_egress(true);
    s.ask(writer, &[b"SET", b"k", b"said"]);
    s.run(MS);
    s.ask(other, &[b"EVAL", script, b"1", b"k", b"run"]);
    s.run(MS);
    s.stop_egress(false);
    s.answers(writer);
    s.answers(other);
    s.until("the fence is open", |s| s.control().fence == 0);
    reads(&mut s, reader, b"run");
    s.finish();
}

/// Two writers at once, in both orders: what was said is shown only if it was said alone.
pub(super) fn two_writers() {
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    over_seeds(1..33, &setup, |mut s| {
        s.cached(b"k", b"old");
        let (reader, one, two) = (s.fast(), s.fast(), s.fast());
        for (first, second) in [(one, two), (two, one)] {
            s.stop_redis(true);
            s.ask(first, &[b"SET", b"k", b"first"]);
            s.run(MS / 8);
            s.ask(second, &[b"SET", b"k", b"second"]);
            s.run(MS / 8);
            s.stop_redis(false);
            for _ in 0..20 {
                s.ask(reader, &[b"GET", b"k"]);
                s.answers(reader);
            }
            s.answers(first);
            s.answers(second);
            s.run(20 * MS);
        }
        s.finish();
    });
}

/// What is not one plain SET alone in its packet, or not answered by OK alone, says nothing.
pub(super) fn not_believed() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    let shown = s.stat(abi::STAT_CACHE_WRITTEN);
    let sets = |values: &[&[u8]]| -> Vec<u8> {
        let sets = values.iter().map(|value| request(&[b"SET", b"k", value]));
        sets.flatten().collect()
    };
    s.write(writer, &sets(&[b"a", b"b"]), 2);
    s.answers(writer);
    reads(&mut s, reader, b"b");
    for options in [&[&b"NX"[..]][..], &[b"GET"], &[b"PX", b"9000"]] {
        s.call(writer, &[&[&b"SET"[..], b"k", b"c"], options].concat());
    }
    cached_again(&mut s, reader, b"c");
    s.call(writer, &[b"SET", b"k", b"d"]);
    assert_eq!(
        s.stat(abi::STAT_CACHE_WRITTEN),
        shown + 1,
        "{}",
        s.counters()
    );
    // Not whole.
    let whole = request(&[b"SET", b"k", b"e"]);
    let (front, back) = whole.split_at(whole.len() - 3);
    s.write(writer, front, 0);
    s.run(MS);
    s.write(writer, back, 1);
    s.answers(writer);
    // Behind a request that is not answered.
    s.stop_redis(true);
    s.ask(writer, &[b"ECHO", b"x"]);
    s.run(MS);
    s.ask(writer, &[b"SET", b"k", b"f"]);
    s.run(MS);
    s.ask(writer, &[b"ECHO", b"y"]);
    s.run(MS);
    s.stop_redis(false);
    s.answers(writer);
    assert_eq!(
        s.stat(abi::STAT_CACHE_WRITTEN),
        shown + 1,
        "{}",
        s.counters()
    );
    s.run(100 * MS);
    assert!(reads(&mut s, reader, b"f"));
    // Queued, thrown away.
    s.call(writer, &[b"MULTI"]);
    s.call(writer, &[b"SET", b"k", b"g"]);
    s.call(writer, &[b"DISCARD"]);
    assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown + 1);
    reads(&mut s, reader, b"f");
    s.finish();
}

/// Redis refuses the SET.
pub(super) fn refused() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    s.unseen(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    let shown = s.stat(abi::STAT_CACHE_WRITTEN);
    let refused = s.call(writer, &[b"SET", b"k", b"new"]);
    assert!(refused.starts_with(b"-OOM"), "{refused:?}");
    reads(&mut s, reader, b"old");
    assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown);
    s.finish();
}

/// TCP loses the packet, and the client says something else in its place.
pub(super) fn said_otherwise() {
    for more in [&b""[..], b"*1\r\n$4\r\nPI"] {
        let (mut s, reader, _) = read_and_written(Setup::default());
        let mut talk = Talk::fast(&mut s);
        let shown = s.stat(abi::STAT_CACHE_WRITTEN);
        s.stop_stack(true);
        talk.send(&mut s, &[b"SET", b"k", b"one"]);
        s.run(MS);
        s.world.server.lose_in_stack(1);
        s.stop_stack(false);
        talk.seq -= len(&request(&[b"SET", b"k", b"one"]));
        let other = [&request(&[b"SET", b"k", b"two"])[..], more].concat();
        let bits = flags::ACK | flags::PSH;
        let segment = talk.raw.segment(talk.seq, talk.ack, bits, &other);
        let answers = talk.raw.send(&mut s, &segment);
        assert_eq!(talk.take(&answers), b"+OK\r\n");
        assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown, "{}", s.counters());
        reads(&mut s, reader, b"two");
    }
}

/// A daemon that does not want it, before the SET goes up or while Redis runs it.
pub(super) fn not_wanted() {
    for behind in [false, true] {
        let (mut s, reader, writer) = read_and_written(Setup::default());
        let shown = s.stat(abi::STAT_CACHE_WRITTEN);
        s.stop_redis(true);
        if behind {
            s.ask(writer, &[b"SET", b"k", b"new"]);
            s.run(MS);
        }
        if let Some(path) = s.world.server.path.borrow().as_ref() {
            // SAFETY: the block lives as long as the data path, and no program runs meanwhile.
            unsafe { (*path.control()).write_through = 0 };
        }
        if !behind {
            s.ask(writer, &[b"SET", b"k", b"new"]);
            s.run(MS);
        }
        s.stop_redis(false);
        assert_eq!(s.answers(writer), b"+OK\r\n");
        assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown, "{behind}");
        reads(&mut s, reader, b"new");
        s.finish();
    }
}

/// The last argument of a command is, byte for byte, a SET.
pub(super) fn within_another() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    let whole = request(&[b"SET", b"k", b"no"]);
    let key = &whole[..whole.len() - 2];
    s.cached(key, b"v");
    let long = [b'l'; abi::KEY_BYTES_MAX as usize + 1];
    s.call(writer, &[b"SET", &long, b"v"]);
    let shown = s.stat(abi::STAT_CACHE_WRITTEN);
    let rename = request(&[b"RENAME", &long, key]);
    let (front, back) = rename.split_at(rename.len() - whole.len());
    assert_eq!(back, whole);
    s.write(writer, front, 0);
    s.run(MS);
    s.write(writer, back, 1);
    assert_eq!(s.answers(writer), b"+OK\r\n");
    assert_eq!(s.stat(abi::STAT_CACHE_WRITTEN), shown, "{}", s.counters());
    assert_eq!(s.call(reader, &[b"GET", key]), b"$1\r\nv\r\n");
    reads(&mut s, reader, b"old");
    s.finish();
}

/// The writer is in another database.
pub(super) fn other_database() {
    let (mut s, reader, writer) = read_and_written(Setup::default());
    s.call(writer, &[b"SELECT", b"3"]);
    let shown = s.stat(abi::STAT_CACHE_WRITTEN);
    for round in 0..400 {
        let value = format!("three{round}");
        s.call(writer, &[b"SET", b"k", value.as_bytes()]);
        for _ in 0..abi::DOUBTED_MISSES {
            assert_eq!(s.call(writer, &[b"GET", b"k"]), bulk(value.as_bytes()));
            reads(&mut s, reader, b"old");
        }
        if s.stat(abi::STAT_CACHE_WRITTEN) > shown {
            break;
        }
        s.run(20 * MS);
    }
    assert!(s.stat(abi::STAT_CACHE_WRITTEN) > shown, "{}", s.counters());
    s.finish();
}
