// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes behind something that was answered in Redis's place, and is not drained yet (`bpf/splice/order.h`).

use std::cell::Cell;

use erb_abi::{self as abi, ControlBlock, ControlPlane as _};
use erb_sim_kernel::{Context, point};
use erb_sim_tcp::{State, flags};

use crate::ConnId;
use crate::client::resp::request;
use crate::profile::Tier;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND, US};

/// Longer than a client's first retransmission timeout.
const REPEATED: u64 = 300 * MS;

impl Scenario {
    /// A write is answered in Redis's place, of a set that nobody writes.
    pub(super) fn absorb(&self) {
        assert!(self.world.server.absorb(0), "the set is marked");
    }

    /// A write of this key is answered in Redis's place.
    pub(super) fn absorb_key(&self, key: &[u8]) {
        let control = self.control();
        let set = (control.hash.hash(key) & control.set_mask) as usize;
        assert_ne!(set, 0, "that is the set that nobody writes");
        assert!(self.world.server.absorb(set), "the set is marked");
    }

    /// All up to this one is drained.
    pub(super) fn drain_to(&self, lsn: u64) {
        let path = self.world.server.attached_path().expect("attached");
        ControlBlock::control(&path).set_drained(lsn);
    }

    pub(super) fn drain(&self) {
        self.world.server.drain();
    }

    /// Payload that was held when it came first, and again.
    pub(super) fn held(&self) -> (u64, u64) {
        let again = self.stat(abi::STAT_HELD_AGAIN);
        (self.stat(abi::STAT_HELD), again)
    }

    /// The command is held, as often as it is sent, until all is drained; its reply.
    fn holds(&mut self, client: ConnId, argv: &[&[u8]]) -> Vec<u8> {
        self.absorb();
        self.holds_now(client, argv)
    }

    /// The same behind what is absorbed already.
    fn holds_now(&mut self, client: ConnId, argv: &[&[u8]]) -> Vec<u8> {
        // Copies that nobody takes help nobody: its client's timer does it.
        self.stop_daemon(true);
        let (first, again) = self.held();
        let has = self.socket_of(self.pair(client)).expect("a socket");
        self.ask(client, argv);
        self.run(REPEATED);
        let now = self.held();
        assert_eq!(now.0, first + 1, "{}", self.counters());
        assert!(now.1 > again, "it was not sent again");
        let has_now = self.socket_of(self.pair(client)).expect("a socket");
        assert_eq!(has.bytes_received, has_now.bytes_received);
        self.drain();
        let replies = self.answers(client);
        // The copies that come now are old.
        self.stop_daemon(false);
        replies
    }
}

/// Writes, reads that miss, what takes a share of the fence: in both tiers.
pub(crate) fn until_drained() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        let client = s.fast();
        assert_eq!(s.holds(client, &[b"SET", b"k", b"v"]), b"+OK\r\n");
        assert_eq!(s.holds(client, &[b"INCR", b"n"]), b":1\r\n");
        assert_eq!(s.holds(client, &[b"DBSIZE"]), b":2\r\n");
        s.absorb_key(b"nil");
        assert_eq!(s.holds_now(client, &[b"GET", b"nil"]), b"$-1\r\n");
        // A share of the fence.
        assert_eq!(s.holds(client, &[b"FLUSHDB"]), b"+OK\r\n");
        s.finish();
    }
}

/// A read that the express lane would pass up.
pub(crate) fn missed() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    // The last request was not answered: the lane knows misses from then on.
    s.call(client, &[b"GET", b"one"]);
    s.absorb_key(b"two");
    assert_eq!(s.holds_now(client, &[b"GET", b"two"]), b"$-1\r\n");
    s.finish();
}

/// Writes of the key's set are answered until its mark stands: all of them are in Redis before the command.
pub(crate) fn asked_behind() {
    let waited = Cell::new(0);
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    over_seeds(1..129, &setup, |mut s| {
        let client = s.fast();
        let path = s.world.server.attached_path().expect("attached");
        let control = s.control();
        let set = (control.hash.hash(b"k") & control.set_mask) as usize;
        s.ask(client, &[b"SET", b"k", b"v"]);
        s.run(29 * US);
        let server = s.world.server.clone();
        s.world.server.cpus.spawn(2, Context::Process, move || {
            while server.absorb(set) && ControlBlock::control(&path).lsn() < 40 {
                point();
            }
        });
        s.run(MS);
        waited.set(waited.get() + s.held().0);
        // All but the last one: what was asked for too early is content with less.
        s.drain_to(s.control().order.lsn.saturating_sub(1));
        s.run(MS);
        s.drain();
        assert_eq!(s.answers(client), b"+OK\r\n");
        s.finish();
    });
    assert!(waited.get() > 0, "nothing was answered in between");
}

/// More is answered while something waits: its repetition asks for nothing more.
pub(crate) fn asked_once() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    s.absorb();
    s.ask(client, &[b"SET", b"k", b"v"]);
    s.run(MS);
    s.absorb();
    s.drain_to(1);
    assert_eq!(s.answers(client), b"+OK\r\n");
    let control = s.control();
    assert_eq!((control.order.lsn, control.order.drained), (2, 1));
    s.finish();
}

/// What tells of the server, or cures it, waits for nothing, but for what its client said before.
pub(crate) fn never() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        let client = s.fast();
        s.absorb();
        // A packet of nothing but fast commands is not scanned. This one is not answered, for the one before it.
        s.ask(client, &[b"INFO"]);
        s.ask(client, &[b"PING"]);
        assert!(s.answers(client).ends_with(b"+PONG\r\n"));
        // What shuts the gate takes a share, too.
        for command in ["PING x", "INFO", "CONFIG SET maxmemory 0", "SELECT 1"] {
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            assert!(!s.call(client, &words).is_empty(), "{command} is held");
        }
        assert_eq!(s.held(), (0, 0), "{}", s.counters());
        // Not beside others in its packet, in whatever order,
        let two = |a: &[&[u8]], b: &[&[u8]]| [request(a), request(b)].concat();
        let (ping, set): (&[&[u8]], &[&[u8]]) = (&[b"PING", b"x"], &[b"SET", b"k", b"v"]);
        for (bytes, reply) in [
            (two(ping, set), &b"$1\r\nx\r\n+OK\r\n"[..]),
            (two(set, ping), b"+OK\r\n$1\r\nx\r\n"),
        ] {
            let mut talk = Talk::fast(&mut s);
            let seq = talk.seq;
            s.absorb();
            assert!(talk.say(&mut s, &bytes).is_empty());
            s.drain();
            let heard = talk.raw.data(&mut s, seq, talk.ack, &bytes);
            assert_eq!(talk.take(&heard), reply);
        }
        // nor before its client's own words.
        s.absorb();
        let held = s.held().0;
        s.ask(client, &[b"SET", b"k", b"v"]);
        s.ask(client, &[b"INFO"]);
        s.run(MS);
        assert_eq!(s.held().0, held + 2);
        s.drain();
        assert!(s.answers(client).starts_with(b"+OK\r\n$"));
        s.finish();
    }
}

/// The daemon is away, and Redis has a listener that no daemon has seen: what is never held is not held there either.
pub(crate) fn strange_listener() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        s.absorb();
        s.kill_daemon();
        let path = s.world.server.attached_path().expect("attached");
        let known = path.listeners().expect("the listeners");
        assert!(!known.is_empty());
        for (cookie, _) in known {
            path.set_listener(cookie, None).expect("it is forgotten");
        }
        let client = s.open();
        for command in [
            "HELLO 2",
            "CLIENT SETINFO LIB-NAME x",
            "PING",
            "PING x",
            "INFO",
        ] {
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            assert!(!s.call(client, &words).is_empty(), "{command} is held");
        }
        assert_eq!(s.held(), (0, 0), "{}", s.counters());
        let entry = s.entry(client).expect("an entry");
        assert_eq!(u32::from(entry.state), abi::CONN_BYPASS);
        s.ask(client, &[b"SET", b"k", b"v"]);
        s.run(MS);
        assert_eq!(s.held().0, 1, "{}", s.counters());
        s.drain();
        assert_eq!(s.answers(client), b"+OK\r\n");
    }
}

/// One PING, or INFO, where nothing is known of its stream: of a connection without an entry, and of one that was lost.
pub(crate) fn probes() {
    let probes: [&[u8]; 4] = [
        b"PING\r\n",
        b"*1\r\n$4\r\nPing\r\n",
        b"info\r\n",
        b"*1\r\n$4\r\nINFO\r\n",
    ];
    let others: [&[u8]; 3] = [
        b"PING\r\nEXISTS k\r\n",
        b"*1\r\n$6\r\nDBSIZE\r\n",
        b"DBSIZE\r\n",
    ];
    for has_entry in [false, true] {
        let mut s = Scenario::new(Setup::default());
        let path = s.world.server.attached_path().expect("attached");
        let mut talk = if has_entry {
            path.set_admit(0);
            let raw = s.raw();
            Talk::connected(&mut s, raw)
        } else {
            path.set_client_share(0);
            let raw = s.raw();
            Talk::connected(&mut s, raw)
        };
        for bytes in probes.into_iter().chain(others) {
            s.run(SECOND); // what the one before has taken is given back
            s.absorb();
            let seq = talk.seq;
            let mut heard = talk.say(&mut s, bytes);
            let is_held = heard.is_empty();
            assert_eq!(is_held, others.contains(&bytes), "{}", bytes.escape_ascii());
            s.drain();
            if is_held {
                let again = talk.raw.data(&mut s, seq, talk.ack, bytes);
                heard = talk.take(&again);
            }
            assert!(!heard.is_empty(), "{}", bytes.escape_ascii());
        }
        assert_eq!(s.entry_of(talk.raw.pair()).is_some(), has_entry);
        path.set_client_share(100);
        path.set_admit(1);
        s.run(SECOND);
    }
}

/// What may cure a Redis that refuses a drain waits like others, until it has refused for long.
pub(crate) fn cured() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        let client = s.fast();
        let (saves, saved): (&[&[u8]], &[u8]) = (&[b"BGSAVE"], b"+Background saving started\r\n");
        assert_eq!(s.holds(client, saves), saved);
        s.absorb();
        let path = s.world.server.attached_path().expect("attached");
        ControlBlock::control(&path).set_refused(true);
        let held = s.held().0;
        assert_eq!(s.call(client, saves), saved);
        s.ask(client, &[b"SET", b"k", b"v"]);
        s.run(MS);
        assert_eq!(s.held().0, held + 1, "that is no cure");
        s.drain();
        assert_eq!(s.answers(client), b"+OK\r\n");
        s.finish();
    }
}

/// What takes the gate could make Redis refuse what was promised: it waits while writes may be answered. While they may
/// not it may be the cure.
pub(crate) fn gate() {
    for (tier, may_answer) in [
        (Tier::Native, true),
        (Tier::Native, false),
        (Tier::Tc, true),
        (Tier::Tc, false),
    ] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        let client = s.fast();
        s.absorb();
        let path = s.world.server.attached_path().expect("attached");
        ControlBlock::control(&path).set_absorb(may_answer);
        // It only looks.
        assert!(!s.call(client, &[b"INFO"]).is_empty(), "INFO is held");
        s.ask(client, &[b"CONFIG", b"SET", b"maxmemory", b"0"]);
        s.run(MS);
        assert_eq!(s.held().0, u64::from(may_answer), "{}", s.counters());
        s.drain();
        assert_eq!(s.answers(client), b"+OK\r\n");
        s.finish();
    }
}

/// Reads of drained sets pass, unless a write of their keys may still be under way.
pub(crate) fn reads() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = Scenario::new(Setup {
            tier,
            ..Setup::default()
        });
        let (client, writer) = (s.fast(), s.fast());
        s.absorb();
        let passing: [(&[&[u8]], &[u8]); 3] = [
            (&[b"GET", b"nil"], b"$-1\r\n"),
            (&[b"MGET", b"void", b"nil"], b"*2\r\n$-1\r\n$-1\r\n"),
            (&[b"HMGET", b"void", b"nil"], b"*1\r\n$-1\r\n"),
        ];
        for (argv, reply) in passing {
            assert_eq!(s.call(client, argv), reply);
        }
        assert_eq!(s.held(), (0, 0), "{}", s.counters());
        // A set of theirs is not drained; a field by that name is no key.
        s.absorb_key(b"nil");
        assert_eq!(s.call(client, passing[2].0), passing[2].1);
        assert_eq!(s.held(), (0, 0), "{}", s.counters());
        for (argv, reply) in &passing[..2] {
            assert_eq!(s.holds_now(client, argv), *reply);
            s.absorb_key(b"nil");
        }
        s.drain();
        // A write that came before may still run: who is told of the one behind it must not read what was.
        s.stop_redis(true);
        s.ask(writer, &[b"SET", b"k", b"v"]);
        s.run(MS);
        s.absorb();
        s.ask(client, &[b"GET", b"k"]);
        s.run(MS);
        let held = s.held().0;
        assert_eq!(held, 3, "{}", s.counters());
        s.drain();
        s.stop_redis(false);
        assert_eq!(s.answers(writer), b"+OK\r\n");
        assert_eq!(s.answers(client), b"$1\r\nv\r\n");
        // Or it is of unknown keys.
        s.absorb();
        s.ask(writer, &[b"FLUSHDB"]);
        s.run(MS);
        s.ask(client, &[b"GET", b"nil"]);
        s.run(MS);
        assert_eq!(s.held().0, held + 2, "{}", s.counters());
        s.drain();
        assert_eq!(s.answers(writer), b"+OK\r\n");
        assert_eq!(s.answers(client), b"$-1\r\n");
        s.finish();
    }
}

/// What comes behind waits as long, and whatever comes first, Redis gets them in order.
pub(crate) fn in_order() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"c", b"v");
    let client = s.fast();
    s.absorb();
    s.ask(client, &[b"SET", b"k", b"v"]);
    s.ask(client, &[b"GET", b"c"]);
    s.run(MS);
    assert_eq!(s.held(), (2, 0));
    s.drain();
    s.ask(client, &[b"APPEND", b"k", b"w"]);
    s.ask(client, &[b"GET", b"k"]);
    assert_eq!(s.answers(client), b"+OK\r\n$1\r\nv\r\n:2\r\n$2\r\nvw\r\n");
    s.finish();
}

/// Others are answered from the cache meanwhile.
pub(crate) fn others_are_answered() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let (held, other) = (s.fast(), s.fast());
    s.absorb();
    s.ask(held, &[b"DBSIZE"]);
    s.run(MS);
    assert!(s.is_fast_now(other, b"k"));
    s.drain();
    assert_eq!(s.answers(held), b":1\r\n");
    s.finish();
}

/// What brings no bytes passes: acknowledgements, FIN, RST.
pub(crate) fn no_bytes() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    assert_eq!(talk.ask(&mut s, &[b"SET", b"k", b"v"]), b"+OK\r\n");
    s.absorb();
    let bytes = request(&[b"SET", b"k", b"w"]);
    let before = s.entry_of(talk.raw.pair()).expect("an entry");
    let (seq, ack) = (talk.seq, talk.ack);
    assert!(talk.say(&mut s, &bytes).is_empty());
    assert_eq!(s.held(), (1, 0));
    // Y4: the reply to the first was acknowledged with it; the kernel has not heard of that.
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(entry.ack_up_ns, before.ack_up_ns);
    let kernel = |s: &Scenario| s.socket_of(talk.raw.pair()).expect("a socket");
    assert_ne!(kernel(&s).snd_una, kernel(&s).snd_nxt);
    talk.ack(&mut s);
    assert_eq!(kernel(&s).snd_una, kernel(&s).snd_nxt);
    // A FIN behind it is there before it.
    let fin = talk
        .raw
        .segment(talk.seq, ack, flags::ACK | flags::FIN, b"");
    talk.raw.send(&mut s, &fin);
    assert_eq!(kernel(&s).state, State::Established as u8);
    s.drain();
    talk.raw.data(&mut s, seq, ack, &bytes);
    s.settle();
    assert_ne!(kernel(&s).state, State::Established as u8);
    assert_eq!(s.read(b"k"), b"$1\r\nw\r\n");
    // A reset ends what waits.
    let mut other = Talk::fast(&mut s);
    s.absorb();
    let rst = other.raw.segment(other.seq, other.ack, flags::RST, b"");
    other.ask(&mut s, &[b"SET", b"k", b"x"]);
    other.raw.send(&mut s, &rst);
    assert!(s.socket_of(other.raw.pair()).is_none());
    s.drain();
    assert_eq!(s.read(b"k"), b"$1\r\nw\r\n");
    s.finish();
}

/// Where a command goes on nothing is asked; where it takes effect it is.
pub(crate) fn by_pieces() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    let value = vec![b'v'; 3_000];
    // The body of a value; the mark is taken with its last byte.
    let set = request(&[b"SET", b"k", &value]);
    // The last argument begins with the last piece, which makes the command whole.
    let mset = request(&[b"MSET", b"a", &value, b"b", b"v"]);
    for (bytes, tail, again) in [(set, 1, true), (mset, 7, false)] {
        let before = s.held();
        let (body, last) = bytes.split_at(bytes.len() - tail);
        let (first, middle) = body.split_at(1_400);
        talk.say(&mut s, first);
        s.absorb();
        talk.say(&mut s, middle);
        assert_eq!(s.held(), before, "a piece was held: {}", s.counters());
        let seq = talk.seq;
        assert!(talk.say(&mut s, last).is_empty());
        let now = s.held();
        let held = (now.0 - before.0, now.1 - before.1);
        assert_eq!(held, if again { (0, 1) } else { (1, 0) });
        // Something more is answered meanwhile, of another set: for this nothing waits.
        let drained = s.control().order.lsn;
        s.absorb();
        s.drain_to(drained);
        let heard = talk.raw.data(&mut s, seq, talk.ack, last);
        assert_eq!(talk.take(&heard), b"+OK\r\n");
        s.drain();
    }
    s.finish();
}

/// What no entry counts may be anything, and waits for all.
pub(crate) fn unseen() {
    let mut s = Scenario::new(Setup::default());
    let path = s.world.server.attached_path().expect("attached");
    path.set_client_share(0);
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    s.absorb();
    let set = request(&[b"SET", b"k", b"v"]);
    assert!(talk.say(&mut s, &set).is_empty());
    assert_eq!(s.stat(abi::STAT_HELD_UNSEEN), 1);
    assert!(s.entry_of(talk.raw.pair()).is_none());
    s.drain();
    let heard = talk.raw.data(&mut s, 1, 1, &set);
    assert_eq!(talk.take(&heard), b"+OK\r\n");
    path.set_client_share(100);
    s.run(SECOND);
    s.finish();
}

impl Scenario {
    /// A CPU answers a write of this set at the moment when what is on its way arrives, and is at it for so many points
    /// at most.
    fn absorb_beside(&mut self, set: usize, points: u32) {
        self.run(29 * US);
        let server = self.world.server.clone();
        self.world.server.cpus.spawn(1, Context::Softirq, move || {
            let pause = server.inner.random.borrow_mut().u32(0..points);
            server.absorb_meanwhile(1, set, pause);
        });
        self.run(MS);
    }
}

/// Who takes a mark lets those finish who answer a write of its set at that moment: by the express lane, the general
/// way, and with the last byte of a body.
pub(crate) fn lets_finish() {
    let waited = Cell::new(0);
    let setup = Setup {
        cpus: 2,
        switch: 300_000,
        ..Setup::default()
    };
    over_seeds(1..257, &setup, |mut s| {
        s.world.server.steer_to(Some(0));
        let client = s.fast();
        let control = s.control();
        let set = (control.hash.hash(b"k") & control.set_mask) as usize;
        let long = [b'v'; 3_000];
        for _ in 0..6 {
            // The express lane knows the first, if what is before it was answered and acknowledged.
            s.call(client, &[b"SET", b"k", b"u"]);
            s.run(SECOND / 10);
            let short: [&[u8]; 3] = [b"SET", b"k", b"v"];
            let general: [&[u8]; 3] = [b"APPEND", b"k", b"w"];
            let bytes = request(&[b"SET", b"k", &long]);
            let (body, last) = bytes.split_at(bytes.len() - 1);
            for argv in [Some(short), Some(general), None] {
                if let Some(argv) = argv {
                    s.ask(client, &argv);
                } else {
                    s.write(client, body, 0);
                    s.run(MS);
                    s.write(client, last, 1);
                }
                s.absorb_beside(set, 60);
                s.drain();
                assert!(!s.answers(client).is_empty());
            }
        }
        waited.set(waited.get() + s.held().0);
        assert_eq!(s.stat(abi::STAT_DROP_BUSY), 0, "{}", s.counters());
        s.finish();
    });
    assert!(waited.get() > 0, "nothing was answered in between");
}

/// A CPU that is at it and does not get on: the write is dropped before it takes anything for good, and comes again.
pub(crate) fn waits_for_nobody_who_stands_still() {
    let setup = Setup {
        cpus: 2,
        ..Setup::default()
    };
    let mut s = Scenario::new(setup);
    s.world.server.steer_to(Some(0));
    let client = s.fast();
    let control = s.control();
    let set = (control.hash.hash(b"k") & control.set_mask) as usize;
    s.world.server.stand_at(1, Some(set));
    s.ask(client, &[b"SET", b"k", b"v"]);
    s.run(SECOND / 10);
    assert_eq!(s.stat(abi::STAT_DROP_BUSY), 1, "{}", s.counters());
    s.world.server.stand_at(1, None);
    assert_eq!(s.answers(client), b"+OK\r\n");
    s.finish();
}
