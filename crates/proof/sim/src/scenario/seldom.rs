// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways through the data path that chance hardly ever takes: each is gone once, so that every reason
//! is reached (`crate::campaign::coverage`).

use erb_abi as abi;
use erb_sim_tcp::flags;

use super::tools::Talk;
use super::{Scenario, Setup, over_seeds};
use crate::client::resp::request;
use crate::client::session::Stage;
use crate::time::{MS, SECOND, US};

/// More commands in one packet than are read there.
pub(super) fn many_commands_in_a_packet() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    let (fast, refused) = (s.fast_packets(), s.stat(abi::STAT_REFUSE_COMMANDS));
    let many = abi::COMMANDS_PER_PACKET + 1;
    let pings = request(&[b"PING"]).repeat(many as usize);
    s.write(client, &pings, many);
    assert_eq!(s.answers(client), b"+PONG\r\n".repeat(many as usize));
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_REFUSE_COMMANDS), refused + 1);
    s.call(client, &[b"PING"]);
    assert_eq!(s.fast_packets(), fast + 1, "never fast again");
    s.finish();
}

/// The last request comes together with the client's FIN.
pub(super) fn request_with_fin() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let (fast, odd) = (s.fast_packets(), s.stat(abi::STAT_ODD_FLAGS));
    let bits = flags::ACK | flags::PSH | flags::FIN;
    let last = talk
        .raw
        .segment(talk.seq, talk.ack, bits, &request(&[b"PING"]));
    let answers = talk.raw.send(&mut s, &last);
    assert_eq!(talk.take(&answers), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_ODD_FLAGS), odd + 1);
    assert!(answers.iter().any(|one| one.has(flags::FIN)), "{answers:?}");
}

/// A frame longer than the usual MTU.
pub(super) fn long_packet() {
    let mut s = Scenario::new(Setup {
        veth: false,
        ..Setup::default()
    });
    let mut talk = Talk::fast(&mut s);
    let (fast, refused) = (s.fast_packets(), s.stat(abi::STAT_LONG_PACKET));
    let long = vec![b'x'; abi::REPLY_BYTES_MAX as usize];
    let answer = talk.ask(&mut s, &[b"ECHO", &long]);
    assert!(answer.ends_with(b"xx\r\n"), "{} bytes", answer.len());
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_LONG_PACKET), refused + 1);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
}

/// Payload for a TIME_WAIT of which ERB knows nothing.
pub(super) fn time_wait_older_than_erb() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let address = talk.raw.pair().1.to_string();
    s.unseen(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
    let end = talk
        .raw
        .segment(talk.seq, talk.ack + 1, flags::FIN | flags::ACK, b"");
    talk.raw.send(&mut s, &end);
    s.attach();
    let seen = s.stat(abi::STAT_SOCK_TIME_WAIT);
    let again = talk.raw.data(&mut s, 1, 1, &request(&[b"PING"]));
    assert_eq!(s.stat(abi::STAT_SOCK_TIME_WAIT), seen + 1);
    assert!(s.entry_of(talk.raw.pair()).is_none(), "an entry was made");
    let numbers: Vec<_> = again.iter().map(|one| talk.raw.relative(one)).collect();
    assert_eq!(numbers, [(talk.ack + 1, talk.seq + 1)], "{again:?}");
}

/// Redis turns a client away whose request is not there yet: a reply without a request.
pub(super) fn refused_before_the_request() {
    let mut s = Scenario::new(Setup::default());
    s.fast();
    s.unseen(&[b"CONFIG", b"SET", b"maxclients", b"1"]);
    s.run(200 * MS);
    s.stop_redis(true);
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    assert!(talk.say(&mut s, b"*1\r\n$4\r\nPI").is_empty());
    let extra = s.stat(abi::STAT_REPLY_EXTRA);
    s.stop_redis(false);
    s.settle();
    let heard = talk.hear(&mut s);
    assert!(heard.starts_with(b"-ERR max"), "{heard:?}");
    assert_eq!(s.stat(abi::STAT_REPLY_EXTRA), extra + 1);
    s.run(3 * SECOND);
    assert_eq!(s.control().fence, 0, "the fence leaked");
}

/// Redis closes the connection while its request is looked at.
pub(super) fn closed_while_it_is_looked_at() {
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    let races = std::cell::Cell::new(0);
    over_seeds(1..513, &setup, |mut s| {
        if races.get() > 2 {
            return; // seen often enough; how many seeds that takes moves with every helper call
        }
        s.cached(b"k", b"v");
        for round in 0..8 {
            let client = s.fast();
            s.call(client, &[b"GET", b"k"]);
            let address = s.pair(client).1.to_string();
            let kill = request(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
            s.ask(client, &[b"GET", b"k"]);
            s.run((20 + round) * US);
            s.world.server.ask_unseen(&kill);
            s.until("it is over", |s| s.stage(client) != Some(Stage::Open));
        }
        races.set(races.get() + s.stat(abi::STAT_REFUSE_RACE));
        s.finish();
    });
    assert!(races.get() > 0, "never between look and commit");
}

/// The daemon does not read, and more keys are missed than the ring between it and the data path
/// holds.
pub(super) fn misses_that_nobody_reads() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let full = s.stat(abi::STAT_MISS_RING_FULL);
    s.stop_daemon(true);
    let per_packet = 50;
    for packet in 0..180 {
        // Each key twice: once is not enough to be filled.
        let first = packet / 2 * per_packet;
        let keys = (first..first + per_packet).map(|key| format!("{key:05}"));
        let gets = keys.flat_map(|key| request(&[b"GET", key.as_bytes()]));
        let bytes: Vec<u8> = gets.collect();
        let usual = flags::ACK | flags::PSH;
        let segment = talk.raw.segment(talk.seq, talk.ack, usual, &bytes);
        talk.raw.post(&mut s, &segment);
        talk.seq += super::tools::len(&bytes);
        s.run(200 * US);
        talk.hear(&mut s);
    }
    assert!(s.stat(abi::STAT_MISS_RING_FULL) > full, "{}", s.counters());
    s.stop_daemon(false);
    // What was asked for too often is asked for again when its count is halved.
    s.run(300 * SECOND);
    s.cached(b"04499", b"v");
}

/// Writes and reads of one key in turn, as strings and as hashes: each read finds it. Then writes alone:
/// it is not read for ever, but comes back when it is missed.
pub(super) fn written_and_read() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let (reader, writer) = (s.fast(), s.fast());
    s.call(writer, &[b"HSET", b"h", b"f", b"v"]);
    for _ in 0..20 {
        s.call(reader, &[b"HGET", b"h", b"f"]);
        s.run(5 * MS);
    }
    for round in 0..10 {
        let value = format!("{round}");
        let bulk = format!("${}\r\n{value}\r\n", value.len());
        let missed = s.stat(abi::STAT_REFUSE_MISS);
        s.call(reader, &[b"GET", b"k"]);
        s.call(reader, &[b"HGET", b"h", b"f"]);
        s.call(writer, &[b"SET", b"k", value.as_bytes()]);
        s.call(writer, &[b"HSET", b"h", b"f", value.as_bytes()]);
        s.run(10 * MS);
        assert_eq!(s.call(reader, &[b"GET", b"k"]), bulk.as_bytes());
        assert_eq!(s.call(reader, &[b"HGET", b"h", b"f"]), bulk.as_bytes());
        assert_eq!(s.stat(abi::STAT_REFUSE_MISS), missed, "{}", s.counters());
    }
    let writes = u64::from(2 * abi::CREDIT_MAX) + 10;
    let filled = s.stat(abi::STAT_FILL_INSERTED);
    for _ in 0..writes {
        s.call(writer, &[b"SET", b"k", b"unread"]);
        s.run(10 * MS);
    }
    let filled = s.stat(abi::STAT_FILL_INSERTED) - filled;
    assert!(
        filled <= u64::from(abi::CREDIT_MAX),
        "{filled} fills for nobody"
    );
    let fast = s.stat(abi::STAT_FAST_GET);
    for _ in 0..20 {
        assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$6\r\nunread\r\n");
        s.run(5 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > fast, "it did not come back");
    s.finish();
}

/// A hash that is read so many times for each of its writes, in no order; how many were answered and how many
/// fills that took.
fn mixed(reads_per_write: u64) -> (u64, u64) {
    let mut s = Scenario::new(Setup::default());
    let (reader, writer) = (s.fast(), s.fast());
    s.call(writer, &[b"HSET", b"h", b"f", b"v"]);
    let counts = |s: &mut Scenario| (s.stat(abi::STAT_FAST_HGET), s.stat(abi::STAT_FILL_INSERTED));
    let (mut random, mut before) = (1u64, (0, 0));
    for round in 0..1000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        if (random >> 33) % (reads_per_write + 1) == 0 {
            s.call(writer, &[b"HSET", b"h", b"f", b"v"]);
        } else {
            s.call(reader, &[b"HGET", b"h", b"f"]);
        }
        s.run(5 * MS);
        if round == 500 {
            before = counts(&mut s);
        }
    }
    let after = counts(&mut s);
    s.finish();
    (after.0 - before.0, after.1 - before.1)
}

/// To read a key again takes as long as two or three answers save. So what is read as often as written is left
/// to Redis, but for runs of reads; what is read much more is back at once.
pub(super) fn as_many_reads_as_writes() {
    let (_, fills) = mixed(1);
    assert!(fills < 50, "{fills} fills for 250 writes");
    let (answered, fills) = mixed(9);
    assert!(answered > 380, "{answered} of 450 reads");
    assert!(fills > 30, "{fills} fills for 50 writes");
}

/// A client that lives but never acknowledges an answer: it is repeated for a quarter of an hour,
/// not for ever, and still there when it is asked for.
pub(super) fn answer_that_nobody_takes() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.sack = true;
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (seq, acked) = (talk.seq, talk.ack);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let gave_up = s.stat(abi::STAT_REXMIT_GAVE_UP);
    for _ in 0..30 {
        s.run(40 * SECOND);
        // A sign of life for the kernel that asks for nothing (D-SACK).
        let mut alive = talk.raw.segment(talk.seq, acked, flags::ACK, b"");
        let end = alive.ack;
        alive.options.sack.push(end.wrapping_sub(7), end);
        talk.raw.send(&mut s, &alive);
    }
    assert_eq!(s.stat(abi::STAT_REXMIT_GAVE_UP), gave_up + 1);
    let again = talk.raw.data(&mut s, seq, acked, &request(&[b"PING"]));
    assert!(
        again.iter().any(|one| one.payload == b"+PONG\r\n"),
        "{again:?}"
    );
}
