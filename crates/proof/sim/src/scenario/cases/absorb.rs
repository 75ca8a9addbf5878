// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs that are answered in Redis's place (`bpf/splice/absorb.h`, `bpf/redis/absorb.h`).

use std::cell::Cell;

use erb_abi::{self as abi, ControlBlock, LogWriter, Written};

use erb_redis::Against;

use crate::ConnId;
use crate::client::session::Deed;
use crate::link::Fate;
use crate::profile::Tier;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND};

/// SETs are answered as soon as the daemon lets them be.
pub(super) fn absorbing() -> Setup {
    Setup {
        absorbs: true,
        ..Setup::default()
    }
}

/// The same on devices of this tier.
pub(super) fn absorbing_at(tier: Tier) -> Scenario {
    Scenario::new(Setup {
        tier,
        ..absorbing()
    })
}

impl Scenario {
    /// A connection whose reads are answered, and SETs too.
    pub(super) fn absorbs(&mut self) -> ConnId {
        self.cached(b"k", b"old");
        let client = self.fast();
        self.opens();
        self.reads(client);
        client
    }

    /// The daemon opens the gate.
    pub(super) fn opens(&mut self) {
        for _ in 0..50 {
            let path = self.world.server.attached_path();
            if path.is_some_and(|path| ControlBlock::control(&path).absorb()) {
                return;
            }
            self.run(50 * MS);
        }
        panic!("SETs are not answered: {:?}", self.against());
    }

    /// What speaks against answering SETs.
    fn against(&mut self) -> Vec<Against> {
        let state = self.world.server.boost.with(|core| core.writes());
        state.flatten().map_or_else(Vec::new, |state| state.against)
    }

    /// Who reads keeps the lease up.
    pub(super) fn reads(&mut self, client: ConnId) {
        let fast = self.stat(abi::STAT_FAST_GET);
        for _ in 0..50 {
            self.call(client, &[b"GET", b"k"]);
            if self.stat(abi::STAT_FAST_GET) > fast {
                return;
            }
            self.run(10 * MS);
        }
        panic!("no read was answered: {}", self.counters());
    }

    /// What was answered is drained.
    pub(super) fn drains(&mut self) {
        self.run(20 * MS);
    }

    pub(super) fn absorbed(&self) -> u64 {
        self.stat(abi::STAT_ABSORBED)
    }
}

/// The SET is answered while Redis rests, its value is read back, and Redis has it when it is drained. In all tiers.
pub(crate) fn while_redis_rests() {
    for tier in [Tier::Native, Tier::Tc, Tier::Loopback] {
        let mut s = absorbing_at(tier);
        let client = s.absorbs();
        s.stop_redis(true);
        assert_eq!(s.call(client, &[b"SET", b"k", b"new"]), b"+OK\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
        assert_eq!(
            s.call(client, &[b"SET", b"k", b"newer", b"EX", b"100"]),
            b"+OK\r\n"
        );
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$5\r\nnewer\r\n");
        assert_eq!(s.absorbed(), 2);
        s.stop_redis(false);
        s.drains();
        // Redis's own words: this read is none that is answered.
        assert_eq!(s.call(client, &[b"GETDEL", b"k"]), b"$5\r\nnewer\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
        s.finish();
    }
}

/// A SET and a GET of one connection arrive on two CPUs at once: the GET never sees what was before the SET.
pub(crate) fn own_past() {
    let both = Cell::new(0);
    let setup = Setup {
        switch: 300_000,
        ..absorbing()
    };
    over_seeds(1..129, &setup, |mut s| {
        let client = s.absorbs();
        s.world.server.steer_in_turn(&[0, 1]);
        s.ask(client, &[b"SET", b"k", b"new"]);
        s.ask(client, &[b"GET", b"k"]);
        s.run(MS);
        s.drains();
        assert_eq!(s.answers(client), b"+OK\r\n$3\r\nnew\r\n");
        both.set(both.get() + s.absorbed());
        s.finish();
    });
    assert!(both.get() > 0, "nothing was answered");
}

/// A copy of the SET on another CPU is not answered before the SET has its LSN: who hears of it reads what it wrote.
pub(crate) fn told_early() {
    let setup = Setup {
        switch: 300_000,
        ..absorbing()
    };
    let answered = Cell::new(0);
    over_seeds(1..129, &setup, |mut s| {
        let client = s.absorbs();
        s.up(0, Some(Box::new(|_, _| Fate::Copies(1, 0))));
        s.world.server.steer_in_turn(&[0, 1]);
        s.ask(client, &[b"SET", b"k", b"new"]);
        s.run(MS);
        answered.set(answered.get() + s.stat(abi::STAT_REPLAY_REQUEST));
        s.drains();
        assert_eq!(s.answers(client), b"+OK\r\n");
        s.finish();
    });
    assert!(answered.get() > 0, "no copy was answered");
}

/// A script that writes the key and a SET of it, at once: Redis's order is that of the history.
pub(crate) fn beside_a_script() {
    let absorbed = Cell::new(0);
    let setup = Setup {
        switch: 5_000,
        ..absorbing()
    };
    over_seeds(1..257, &setup, |mut s| {
        let two = s.fast();
        let one = s.absorbs();
        s.world.server.steer_in_turn(&[0, 1]);
        let script: &[u8] = b"return redis.call('set',KEYS[1],ARGV[1])";
        s.ask(one, &[b"SET", b"k", b"set"]);
        s.ask(two, &[b"EVAL", script, b"1", b"k", b"script"]);
        s.run(MS);
        absorbed.set(absorbed.get() + s.absorbed());
        s.drains();
        assert_eq!(s.answers(one), b"+OK\r\n");
        assert_eq!(s.answers(two), b"+OK\r\n");
        s.finish();
    });
    assert!(absorbed.get() > 0, "nothing was answered");
}

/// More copies of long packets than their ring has room for.
const COPIES: usize = 60;

/// Without room in the log SETs are delayed until there is some.
pub(crate) fn log_is_full() {
    let mut s = Scenario::new(absorbing());
    let other = s.fast();
    let client = s.absorbs();
    let fillers: Vec<ConnId> = (0..COPIES).map(|_| s.open()).collect();
    s.reads(client);
    let path = s.world.server.attached_path().expect("attached");
    let logs = path.logs();
    let value = [b'v'; 1_400];
    for ring in 0..logs.count() {
        let mut writer = LogWriter::new(&logs, ring);
        while writer.room() >= 2 * u64::from(abi::LOG_RECORD_BYTES_MAX) {
            let lsn = writer.next_lsn();
            let (key, value) = (b"filler".as_slice(), value.as_slice());
            writer.put(&Written {
                lsn,
                key,
                value,
                ..Written::default()
            });
        }
    }
    s.ask(client, &[b"SET", b"k", &value]);
    s.ask(client, &[b"SET", b"k", &value]);
    s.run(MS / 2);
    // Nobody takes copies, and their ring fills: who has none goes up.
    s.stop_daemon(true);
    for filler in &fillers {
        s.ask(*filler, &[b"SET", b"held", &value]);
    }
    s.run(2 * MS);
    assert!(s.stat(abi::STAT_HELD_UNCOPIED) > 0, "{}", s.counters());
    // It is full, and young.
    ControlBlock::control(&path).set_fresh_ns(s.now());
    s.ask(other, &[b"SET", b"p", &value]);
    s.run(MS);
    s.stop_daemon(false);
    assert!(s.stat(abi::STAT_ABSORB_DELAYED) > 0, "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_ABSORB_FULL), 1, "{}", s.counters());
    s.drains();
    s.run(SECOND);
    assert_eq!(s.answers(client), b"+OK\r\n+OK\r\n");
    assert_eq!(s.answers(other), b"+OK\r\n");
    for filler in fillers {
        assert_eq!(s.answers(filler), b"+OK\r\n");
    }
    assert_eq!(
        ControlBlock::control(&path).lsn(),
        ControlBlock::control(&path).drained()
    );
    assert_eq!(s.call(client, &[b"STRLEN", b"filler"]), b":1400\r\n");
    s.finish();
}

/// Whoever is to leave stays until what was answered is in Redis.
pub(crate) fn owed_at_detach() {
    let mut s = Scenario::new(absorbing());
    let client = s.absorbs();
    s.stop_redis(true);
    assert_eq!(s.call(client, &[b"SET", b"k", b"answered"]), b"+OK\r\n");
    s.deed(client, Deed::Abort);
    s.world.server.ask_detach();
    s.run(SECOND); // the client, who is waited for as well, has been gone for long enough
    assert!(s.world.server.boost.is_alive(), "it has left");
    s.stop_redis(false);
    let mut looks = 100;
    while s.world.server.boost.is_alive() {
        looks -= 1;
        assert!(looks > 0, "nothing is owed");
        s.run(20 * MS);
    }
    s.finish();
}

/// Who asks who has his writes waits until they are where Redis would count them, and Redis gets his later ones itself.
pub(crate) fn asks_for_replicas() {
    for tier in [Tier::Native, Tier::Tc] {
        let mut s = absorbing_at(tier);
        let (client, other, third) = (s.absorbs(), s.fast(), s.fast());
        let asks: &[&[u8]] = &[b"WAIT", b"0", b"0"];
        s.world.server.boost.knows_no_replicas.set(true);
        assert_eq!(
            s.call(client, asks),
            b":0\r\n",
            "nothing of it was answered"
        );
        assert_eq!(s.call(third, &[b"SET", b"third", b"one"]), b"+OK\r\n");
        assert_eq!(s.call(client, &[b"SET", b"k", b"one"]), b"+OK\r\n");
        assert_eq!(s.absorbed(), 2);
        s.drains();
        let held = s.stat(abi::STAT_HELD);
        s.ask(client, asks);
        s.run(400 * MS); // more than its client's first retransmission timeout
        s.ask(client, &[b"GET", b"nil"]);
        s.run(MS);
        assert_eq!(s.stat(abi::STAT_HELD), held + 2, "{}", s.counters());
        assert_eq!(s.call(other, asks), b":0\r\n", "nothing of it was answered");
        s.world.server.boost.knows_no_replicas.set(false);
        assert_eq!(s.answers(client), b":0\r\n$-1\r\n");
        s.world.server.boost.knows_no_replicas.set(true);
        // A replica that has come back since then may have less: what was found out is of then.
        s.ask(third, asks);
        s.run(400 * MS);
        assert_eq!(s.stat(abi::STAT_HELD), held + 3, "{}", s.counters());
        s.world.server.boost.knows_no_replicas.set(false);
        assert_eq!(s.answers(third), b":0\r\n");
        s.world.server.boost.knows_no_replicas.set(true);
        let absorbed = s.absorbed();
        s.reads(client);
        assert_eq!(s.call(client, &[b"SET", b"k", b"two"]), b"+OK\r\n");
        let asked = s.stat(abi::STAT_ABSORB_ASKED);
        assert_eq!((s.absorbed(), asked), (absorbed, 1));
        assert_eq!(
            s.call(client, asks),
            b":0\r\n",
            "Redis has it from its client"
        );
        s.finish();
    }
}

/// The operator closes the cache: requests pass unread only when all that was answered is in Redis.
pub(crate) fn owed_while_closing() {
    let mut s = Scenario::new(absorbing());
    let client = s.absorbs();
    s.stop_redis(true);
    assert_eq!(s.call(client, &[b"SET", b"k", b"answered"]), b"+OK\r\n");
    s.world.server.close_or_open(Some(true));
    s.run(SECOND);
    let stopping = s.control().stopping;
    assert_eq!(stopping, abi::STOPPING_CLOSING, "something is owed");
    s.stop_redis(false);
    s.until("requests pass unread", |s| {
        s.control().stopping >= abi::STOPPING_UNREAD
    });
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$8\r\nanswered\r\n");
    s.world.server.close_or_open(Some(false));
    s.run(2 * SECOND);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$8\r\nanswered\r\n");
    s.finish();
}

/// The daemon dies: with the lease over nothing is absorbed; what was is drained, and the next daemon goes on.
pub(crate) fn without_a_daemon() {
    let mut s = Scenario::new(absorbing());
    let client = s.absorbs();
    assert_eq!(s.call(client, &[b"SET", b"k", b"one"]), b"+OK\r\n");
    assert_eq!(s.absorbed(), 1);
    s.kill_daemon();
    s.run(150 * MS);
    let before = s.absorbed();
    s.ask(client, &[b"SET", b"k", b"two"]);
    s.run(MS);
    assert_eq!(s.absorbed(), before, "the lease is over");
    s.drains();
    s.world.server.start_daemon();
    s.run(SECOND);
    assert_eq!(s.answers(client), b"+OK\r\n");
    assert_eq!(s.call(client, &[b"GETDEL", b"k"]), b"$3\r\ntwo\r\n");
    s.finish();
}
