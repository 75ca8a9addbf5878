// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Situations in which one rule alone keeps the data path right: each is made so exactly that
//! leaving the rule out shows (`crate::mutate`).

use erb_abi::{self as abi, ControlPlane as _, FillEntry, FillToken, ValueKind};
use erb_sim_kernel::Context;
use erb_sim_tcp::{Config, Macs, flags};

use super::tools::{Talk, len};
use super::{RAW_MACHINE, Scenario, Setup, over_seeds};
use crate::client::machine::{SERVER_MAC, machine_mac};
use crate::client::resp::request;
use crate::server::Control;
use crate::time::{MS, SECOND, US};

/// Waits until the daemon has asked Redis for a value, and stops it before it hears it.
fn fill_under_way(s: &mut Scenario) {
    let asks = |s: &Scenario| {
        let fills = s.world.server.boost.with(|core| core.fills_in_flight());
        fills.is_some_and(|fills| fills > 0)
    };
    // Asked and answered within ten microseconds now and then.
    for _ in 0..SECOND / US {
        if asks(s) {
            break;
        }
        s.run(US);
    }
    assert!(asks(s), "no fill is asked for");
    s.stop_daemon(true);
    s.run(MS);
}

/// A connection that chose another database before ERB came.
pub(super) fn older_with_a_state() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"SELECT", b"3"]);
    s.call(old, &[b"SET", b"k", b"three"]);
    s.attach();
    s.cached(b"k", b"v");
    for _ in 0..50 {
        assert_eq!(s.call(old, &[b"GET", b"k"]), b"$5\r\nthree\r\n");
        s.run(5 * MS);
    }
    let client = s.fast();
    let fast = s.stat(abi::STAT_FAST_GET);
    for _ in 0..50 {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(5 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_GET) > fast, "nobody is answered");
    s.finish();
}

/// What a connection older than ERB says is long on its way to Redis, and the daemon hears late of
/// what it changes. The gate that it shuts as well would be open by then, but for the fence.
pub(super) fn older_that_writes() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"PING"]);
    s.attach();
    s.cached(b"k", b"v");
    let client = s.fast();
    for round in 0..3 {
        let fast = s.stat(abi::STAT_FAST_GET);
        for _ in 0..400 {
            s.call(client, &[b"GET", b"k"]);
            if s.stat(abi::STAT_FAST_GET) > fast {
                break;
            }
            s.run(10 * MS);
        }
        assert!(s.stat(abi::STAT_FAST_GET) > fast, "{}", s.counters());
        let value = format!("new{round}");
        s.stop_stack(true);
        s.ask(old, &[b"SET", b"k", value.as_bytes()]);
        // Between two repetitions of the client's TCP, each of which shuts the gate.
        s.run(2500 * MS);
        s.stop_daemon(true);
        s.stop_stack(false);
        s.answers(old);
        assert!(s.control().lease_until_ns > s.now(), "no lease either");
        let reply = format!("$4\r\n{value}\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), reply.as_bytes());
        s.stop_daemon(false);
    }
    s.finish();
}

/// The first two requests of a connection are on two CPUs at once, and both find no entry: who
/// makes it second must not begin anew what the first has counted.
pub(super) fn both_find_no_entry() {
    let setup = Setup {
        switch: 60_000,
        ..Setup::default()
    };
    over_seeds(1..33, &setup, |mut s| {
        for round in 0..8 {
            let client = s.open();
            s.settle();
            s.world.server.steer_in_turn(&[0, 1]);
            s.ask(client, &[b"INCR", b"n"]);
            s.ask(client, &[b"INCR", b"n"]);
            let replies = format!(":{}\r\n:{}\r\n", round * 2 + 1, round * 2 + 2);
            assert_eq!(s.answers(client), replies.as_bytes());
            assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
        }
        assert_eq!(s.stat(abi::STAT_BYTES_UNSEEN), 0, "an entry was made anew");
        s.finish();
    });
}

/// The second segment came before ERB, the first one comes after it.
pub(super) fn older_out_of_order() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    let ping = request(&[b"PING"]);
    talk.raw
        .data(&mut s, talk.seq + len(&ping), talk.ack, &ping);
    s.attach();
    assert_eq!(talk.say(&mut s, &ping), b"+PONG\r\n+PONG\r\n");
    talk.seq += len(&ping);
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(u32::from(entry.state), abi::CONN_OLD);
    assert_eq!(
        talk.ask(&mut s, &[b"PING"]),
        b"+PONG\r\n",
        "{}",
        s.counters()
    );
}

/// A transaction of which Redis may not report all writes the key, and is answered, while a fill has
/// the old value in hand.
pub(super) fn fill_across_a_fence() {
    let queued: [&[&[u8]]; 3] = [
        &[b"MULTI"],
        &[b"SWAPDB", b"2", b"3"],
        &[b"SET", b"k", b"new"],
    ];
    fill_across(&queued, &[b"EXEC"], 0);
}

/// The same with a script, whose fence stands until the daemon has heard of it.
pub(super) fn fill_across_a_script() {
    let script = b"return redis.call('set',KEYS[1],ARGV[1])";
    fill_across(&[], &[b"EVAL", script, b"1", b"k", b"new"], 1);
}

/// The same with a write whose key is known.
pub(super) fn fill_across_a_write() {
    fill_across(&[], &[b"SET", b"k", b"new"], 0);
}

fn fill_across(queued: &[&[&[u8]]], write: &[&[u8]], fence: u64) {
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    over_seeds(1..17, &setup, |mut s| {
        s.unseen(&[b"SET", b"k", b"old"]);
        let (reader, writer) = (s.fast(), s.fast());
        for command in queued {
            s.call(writer, command);
        }
        s.settle();
        s.call(reader, &[b"GET", b"k"]);
        s.call(reader, &[b"GET", b"k"]);
        fill_under_way(&mut s);
        let stale = s.stat(abi::STAT_FILL_STALE);
        s.call(writer, write);
        assert_eq!(s.control().fence, fence, "of the fence stands");
        s.stop_daemon(false);
        for _ in 0..8 {
            assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
            s.run(30_000);
        }
        assert_eq!(s.stat(abi::STAT_FILL_STALE), stale + 1, "inserted");
        s.finish();
    });
}

/// A fill begins and ends while a write is on its way to Redis: what it reads is about to be old.
pub(super) fn fill_below_a_write() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"k", b"old"]);
    let (reader, writer) = (s.fast(), s.fast());
    s.call(reader, &[b"GET", b"k"]);
    s.stop_daemon(true);
    s.call(reader, &[b"GET", b"k"]);
    s.stop_stack(true);
    let marks = s.stat(abi::STAT_MARK_TAKEN);
    s.ask(writer, &[b"SET", b"k", b"new"]);
    s.run(MS);
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), marks + 1, "no mark stands");
    let filled = s.stat(abi::STAT_FILL_INSERTED);
    s.stop_daemon(false);
    s.run(120 * MS);
    assert_eq!(
        s.stat(abi::STAT_FILL_INSERTED),
        filled,
        "filled under a mark"
    );
    s.stop_daemon(true);
    s.stop_stack(false);
    s.answers(writer);
    for _ in 0..5 {
        assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
    }
    s.stop_daemon(false);
    s.finish();
}

/// Redis answers PING late: what it pushes behind `+PONG` may be as late, so the lease counts from
/// PING.
pub(super) fn late_pong() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    for _ in 0..20 {
        s.call(client, &[b"GET", b"k"]);
        s.run(5 * MS);
    }
    // No PING leaves while four are under way; these are as old as the stop.
    s.stop_redis(true);
    let stopped = s.now();
    s.run(400 * MS);
    let before = s.control().lease_until_ns;
    assert!(before < s.now(), "renewed without a PONG");
    s.stop_redis(false);
    let lease = u64::from(abi::LEASE_MS) * MS;
    let from = s.now();
    while s.now() < from + 5 * MS {
        s.run(10_000);
        let until = s.control().lease_until_ns;
        assert!(
            until <= stopped + 4 * lease / 2 + lease,
            "the lease counts from a later moment than its PING: {} ms after it",
            (until - stopped) / MS
        );
        if until != before {
            break;
        }
    }
    s.finish();
}

/// One key is pushed, and nothing after it.
pub(super) fn last_push() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    for round in 0..5 {
        s.unseen(&[b"SET", b"other", b"x"]);
        for _ in 0..10 {
            s.call(client, &[b"GET", b"k"]);
            s.run(5 * MS);
        }
        let value = format!("new{round}");
        s.unseen(&[b"SET", b"k", value.as_bytes()]);
        s.run(20 * MS);
        let reply = format!("$4\r\n{value}\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), reply.as_bytes());
    }
    assert!(s.stat(abi::STAT_FAST_GET) > 10, "nothing was fast");
    s.finish();
}

/// What shut the gate was executed, but Redis says nothing about its state yet.
pub(super) fn gate_before_the_state() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let (client, admin) = (s.fast(), s.open_on(1, None));
    s.call(admin, &[b"PING"]);
    for _ in 0..20 {
        s.call(client, &[b"GET", b"k"]);
        s.run(5 * MS);
    }
    s.call(admin, &[b"CONFIG", b"SET", b"maxmemory", b"100mb"]);
    s.run(2 * SECOND);
    for _ in 0..20 {
        s.call(client, &[b"GET", b"k"]);
        s.run(5 * MS);
    }
    s.call(admin, &[b"REPLICAOF", b"10.0.0.99", b"6379"]);
    s.stop_redis(true);
    s.run(200 * MS);
    let fast = s.fast_packets();
    s.ask(client, &[b"PING"]);
    s.run(MS);
    assert_eq!(s.fast_packets(), fast, "answered with the state unread");
    assert_ne!(s.control().gate_seen, s.control().gate_ack);
    s.stop_redis(false);
    s.answers(client);
    s.run(2 * SECOND);
    assert_eq!(s.control().gate_seen, s.control().gate_ack);
    assert_eq!(s.control().serving, 1, "a replica is served");
    s.finish();
}

/// An answer that the client has no room for, or that is longer than its segments may be.
pub(super) fn larger_than_the_client_takes() {
    let mut s = Scenario::new(Setup {
        veth: false,
        client: Config {
            mss: 536,
            ..Setup::default().client
        },
        ..Setup::default()
    });
    s.cached(b"k", &[b'x'; 1000]);
    let client = s.fast();
    let (fast, refused) = (s.stat(abi::STAT_FAST_GET), s.stat(abi::STAT_REFUSE_MSS));
    assert_eq!(s.call(client, &[b"GET", b"k"]).len(), 1009);
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast, "longer than its segments");
    assert_eq!(s.stat(abi::STAT_REFUSE_MSS), refused + 1);
    let mut raw = s.raw();
    raw.window = 500;
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let refused = s.stat(abi::STAT_REFUSE_WINDOW_CLIENT);
    talk.send(&mut s, &[b"GET", b"k"]);
    s.settle();
    assert_eq!(s.stat(abi::STAT_REFUSE_WINDOW_CLIENT), refused + 1);
    let got = talk.raw.received(&mut s);
    assert!(
        got.iter()
            .map(|one| talk.raw.relative(one).0 + len(&one.payload))
            .all(|end| end <= talk.ack + 500),
        "beyond the client's window: {got:?}"
    );
}

/// The client closes its side and asks for what it lost before.
pub(super) fn asked_again_while_the_server_closes() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let (seq, acked) = (talk.seq, talk.ack);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let address = talk.raw.pair().1.to_string();
    s.unseen(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
    talk.raw.received(&mut s);
    // The answer was lost, says the client, and the server's FIN stands behind it.
    let replays = s.stat(abi::STAT_REPLAY_REQUEST);
    let again = talk.raw.data(&mut s, seq, acked, &request(&[b"PING"]));
    assert_eq!(s.stat(abi::STAT_REPLAY_REQUEST), replays + 1);
    assert!(
        again.iter().any(|one| one.payload == b"+PONG\r\n"),
        "not repeated: {again:?}"
    );
    // New bytes for a socket in FIN_WAIT2 get its reset.
    let ack = talk.raw.ack(&mut s, talk.seq, talk.ack + 1);
    assert!(ack.is_empty());
    let answer = talk
        .raw
        .data(&mut s, talk.seq, talk.ack + 1, &request(&[b"PING"]));
    assert!(
        answer.iter().any(|one| one.has(flags::RST)),
        "the kernel never saw it: {answer:?} {}",
        s.counters()
    );
}

/// Requests without a reply fill the window of a Redis that does not read; nothing is owed.
pub(super) fn server_window_is_full() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    s.stop_redis(true);
    let room = |s: &Scenario, talk: &Talk| {
        let view = s.socket_of(talk.raw.pair()).expect("a socket");
        (view.rcv_wup + view.rcv_wnd).wrapping_sub(view.rcv_nxt) as usize
    };
    for _ in 0..500 {
        let now = room(&s, &talk);
        if now < 14 {
            break;
        }
        talk.say(&mut s, &b"\r\n".repeat(now.min(1400) / 2));
    }
    assert!(room(&s, &talk) < 14, "the window never filled");
    let (fast, seq) = (s.fast_packets(), talk.seq);
    assert!(talk.ask(&mut s, &[b"PING"]).is_empty());
    assert_eq!(s.fast_packets(), fast, "TCP had no room for it");
    let full = s.stat(abi::STAT_REFUSE_WINDOW_SERVER);
    assert!(full > 0, "another rule refused it: {}", s.counters());
    s.stop_redis(false);
    s.settle();
    talk.seq = seq;
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
}

/// A segment whose right sum is, as one in 65,536, what a local stack leaves for the card.
pub(super) fn sum_is_the_bare_one() {
    for veth in [true, false] {
        let mut s = Scenario::new(Setup {
            veth,
            ..Setup::default()
        });
        let mut talk = Talk::fast(&mut s);
        assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
        let usual = flags::ACK | flags::PSH;
        let macs = Macs {
            src: machine_mac(RAW_MACHINE),
            dst: SERVER_MAC,
        };
        let bytes = (0..=u16::MAX).find_map(|tune| {
            let value = tune.to_be_bytes();
            let bytes = request(&[b"SET", b"key", &value]);
            let segment = talk.raw.segment(talk.seq, talk.ack, usual, &bytes);
            let frame = segment.to_frame(macs);
            is_bare(&frame).then_some(bytes)
        });
        let bytes = bytes.expect("one of them");
        assert_eq!(talk.say(&mut s, &bytes), b"+OK\r\n", "it did not arrive");
    }
}

/// Whether the TCP sum of an IPv4 frame is its pseudo-header's.
fn is_bare(frame: &[u8]) -> bool {
    let ip = &frame[14..];
    let tcp_len = ip.len() - 20;
    let words = ip[12..20]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum = words.sum::<u32>() + 6 + u32::try_from(tcp_len).unwrap_or(0);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == u32::from(ip[36]) << 8 | u32::from(ip[37])
}

/// A write that gets no reply stands behind a blocking command in Redis's own buffer: read, but not
/// executed.
pub(super) fn read_but_not_executed() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"CLIENT", b"REPLY", b"OFF"]);
    s.run(3 * SECOND);
    assert_eq!(s.control().fence, 0, "the fence leaked");
    let mut both = request(&[b"BLPOP", b"list", b"0"]);
    both.extend(request(&[b"SET", b"k", b"w"]));
    assert!(talk.say(&mut s, &both).is_empty());
    for _ in 0..30 {
        assert_ne!(s.control().fence, 0, "released before it was executed");
        s.run(100 * MS);
    }
    s.unseen(&[b"RPUSH", b"list", b"x"]);
    assert_eq!(s.read(b"k"), b"$1\r\nw\r\n");
    s.run(3 * SECOND);
    assert_eq!(s.control().fence, 0, "the fence leaked");
}

/// Puts keys into the cache at once; each has its own name for a value.
fn fill_now(control: &Control, keys: &[Vec<u8>], tokens: &[FillToken]) {
    let entries: Vec<FillEntry<'_>> = keys
        .iter()
        .zip(tokens)
        .map(|(key, token)| FillEntry {
            key,
            db: 0,
            kind: ValueKind::String,
            value: Some(key),
            expiry_ms: 0,
            token: *token,
        })
        .collect();
    let filled = control.fill_insert(&entries).expect("the program runs");
    assert!(filled.iter().all(|status| *status == abi::FILL_OK));
}

/// An entry is thrown out for another one between the look at its key and the look at its value.
pub(super) fn entry_replaced_while_it_is_read() {
    const NAMES: usize = 13; // all ways that a short entry may take
    let setup = Setup {
        sets: 1,
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    let keys: Vec<Vec<u8>> = (0..=NAMES)
        .map(|name| format!("name-{name:02}").into_bytes())
        .collect();
    over_seeds(1..257, &setup, |mut s| {
        let mut set: Vec<&[u8]> = vec![b"MSET"];
        set.extend(keys.iter().flat_map(|key| [key.as_slice(), key]));
        s.unseen(&set);
        let reader = s.fast();
        s.call(reader, &[b"ECHO", b"x"]);
        s.run(100 * MS); // the reply is acknowledged
        s.stop_daemon(true);
        let path = s.world.server.attached_path().expect("attached");
        let control = Control::new(path.clone(), std::rc::Rc::default());
        let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let tokens = control.fill_begin(&names).expect("the program runs");
        fill_now(&control, &keys[..NAMES], &tokens);
        // SIEVE's hand stands at the first way, whose entry nobody has asked for.
        let first = &path.set(0).0.slots[12..][..7];
        let oldest = first.to_vec();
        // The express lane gives no first answer.
        let other = keys.iter().find(|key| **key != oldest).expect("one");
        s.call(reader, &[b"GET", other]);
        s.ask(reader, &[b"GET", &oldest]);
        s.run(29 * US);
        let (late, token) = (keys[NAMES..].to_vec(), tokens[NAMES..].to_vec());
        s.world.server.cpus.spawn(2, Context::Process, move || {
            fill_now(&control, &late, &token);
        });
        assert_eq!(
            s.answers(reader),
            [b"$7\r\n", oldest.as_slice(), b"\r\n"].concat()
        );
        s.stop_daemon(false);
        s.finish();
    });
}
