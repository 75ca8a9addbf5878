// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is counted out of INFO, and what of it is believed.

use super::*;
use crate::calls::fields;
use crate::doubles::Recorder;

/// A Redis and a daemon, with counts that the test says.
struct World {
    path: Recorder,
    spared: Spared,
    own: ByCommand,
    feed: u64,
    now_ns: u64,
}

impl World {
    fn new() -> Self {
        Self {
            path: Recorder::default(),
            spared: Spared::default(),
            own: ByCommand::default(),
            feed: 7,
            now_ns: 0,
        }
    }

    fn answer(&self, gets: u64, packets: u64) {
        let mut stats = self.path.stats.borrow_mut();
        *stats.entry(abi::STAT_FAST_GET).or_default() += gets;
        *stats.entry(abi::STAT_FAST_PACKET).or_default() += packets;
    }

    /// A second later INFO says this.
    fn read(&mut self, info: &str) -> UsageState {
        self.now_ns += SECOND_NS;
        let mut usage = Usage::default();
        for (name, value) in fields(info) {
            usage.take(name, value);
        }
        usage.asked_by(self.feed, self.own.clone());
        let taken = self.spared.take(&self.path, &usage, self.now_ns);
        taken.expect("the counters");
        self.spared.state()
    }
}

fn counts(state: &UsageState) -> Vec<(&'static str, u64, u64)> {
    let rows = state.commands.iter();
    rows.map(|row| (row.name, row.answered, row.to_redis))
        .collect()
}

#[test]
fn commands_are_counted_by_name_since_the_first_reading_without_the_daemons_own() {
    let mut world = World::new();
    world.answer(1_000, 1_000);
    let first =
        world.read("run_id:a\ncmdstat_get:calls=500,usec=500\ncmdstat_ping:calls=90,usec=9");
    assert_eq!((first.since_ns, counts(&first)), (Some(SECOND_NS), vec![]));
    world.answer(98, 90);
    for words in [
        &[&b"PING"[..]][..],
        &[b"CLIENT", b"LIST"],
        &[b"OBJECT", b"ENCODING", b"k"],
    ] {
        world.own.count(words);
    }
    let state = world.read(
        "run_id:a\ncmdstat_get:calls=502,usec=502\ncmdstat_ping:calls=91,usec=9\ncmdstat_set:calls=5,usec=9\n\
         cmdstat_client|list:calls=1,usec=9\ncmdstat_client|kill:calls=2,usec=9\ncmdstat_object|encoding:calls=1,usec=1\n\
         cmdstat_json.set:calls=3,usec=9\ncmdstat_ft.search:calls=4,usec=9",
    );
    let wanted = [
        ("get", 98, 2),
        ("set", 0, 5),
        ("client", 0, 2),
        ("other", 0, 7),
    ];
    assert_eq!(counts(&state), wanted);
}

#[test]
fn what_redis_has_forgotten_or_begun_anew_is_not_counted_twice_nor_lost() {
    let mut world = World::new();
    let said = |run: &str, gets: u64, sets: u64| {
        format!("run_id:{run}\ncmdstat_get:calls={gets},usec=1\ncmdstat_set:calls={sets},usec=1")
    };
    world.read(&said("a", 100, 100));
    world.read(&said("a", 110, 100));
    // RESETSTAT, and more sets than before.
    world.read(&said("a", 1, 150));
    assert_eq!(
        counts(&world.spared.state()),
        [("get", 0, 11), ("set", 0, 150)]
    );
    // Another Redis, which has counted more by now.
    world.read(&said("b", 20, 160));
    // Another feed, which has asked for less.
    world.own.add("get", 5);
    world.feed = 8;
    world.read(&said("b", 26, 160));
    assert_eq!(
        counts(&world.spared.state()),
        [("get", 0, 32), ("set", 0, 310)]
    );
}

#[test]
fn time_is_saved_by_packets_and_commands_once_redis_was_seen_at_work() {
    let mut world = World::new();
    let said = |calls: u64, user: &str| {
        format!(
            "run_id:a\nused_cpu_sys:1.000000\nused_cpu_user:{user}\ncmdstat_get:calls={calls},usec={calls}"
        )
    };
    world.read(&said(10_000, "1.000000"));
    world.answer(10_000, 1_000);
    let state = world.read(&said(10_999, "1.500000"));
    assert_eq!(
        (state.overhead_ns, state.saved_ns),
        (None, 0),
        "999 in a second do not tell what one costs"
    );
    // 20,000 commands: 0.14 s, of which they ran for 0.02 s.
    world.answer(10_000, 1_000);
    let state = world.read(&said(30_999, "1.640000"));
    assert_eq!(state.overhead_ns, Some(6_000));
    let saved = 1_000 * 6_000 + 10_000 * 1_000;
    assert_eq!(state.saved_ns, saved);
    // What the daemon asks for is taken off, and may be more than was answered.
    world.answer(10_000, 1_000);
    world.own.add("get", 100);
    let state = world.read(&said(31_099, "1.640000"));
    assert_eq!(state.saved_ns, 2 * saved - 100 * 7_000);
    world.own.add("get", 100);
    let state = world.read(&said(31_199, "1.640000"));
    assert_eq!(state.saved_ns, 2 * saved - 100 * 7_000, "it never falls");
}

#[test]
fn sets_that_are_answered_in_redis_place_save_nothing_as_they_are_executed_later() {
    let mut world = World::new();
    let said = |calls: u64, user: &str| {
        format!(
            "run_id:a\nused_cpu_sys:0.1\nused_cpu_user:{user}\ncmdstat_set:calls={calls},usec={calls}"
        )
    };
    world.read(&said(0, "1.0"));
    world.read(&said(10_000, "1.1"));
    *world
        .path
        .stats
        .borrow_mut()
        .entry(abi::STAT_ABSORBED)
        .or_default() = 9;
    let state = world.read(&said(20_000, "1.2"));
    assert_eq!(counts(&state), [("set", 9, 20_000)]);
    assert_eq!(state.saved_ns, 0);
}

#[test]
fn a_redis_that_tells_no_processor_time_is_never_said_to_have_saved_any() {
    let mut world = World::new();
    world.read("run_id:a\ncmdstat_get:calls=0,usec=0");
    world.answer(100_000, 100_000);
    let state = world.read("run_id:a\ncmdstat_get:calls=100000,usec=100000");
    assert_eq!((state.overhead_ns, state.saved_ns), (None, 0));
}

#[test]
fn every_command_that_is_answered_has_a_place_of_its_own() {
    for fast in &FAST_COMMANDS {
        assert_ne!(place_of(fast.name), OTHER, "{}", fast.name);
    }
    assert_eq!(place_of("client|kill"), place_of("client"));
    assert_ne!(place_of("client|list"), place_of("client"));
    assert_eq!(place_of("function|*"), place_of("function"));
    let mut long = ByCommand::default();
    long.count(&[b"CLIENT", &[b'x'; 200]]);
    long.count(&[&[b'x'; 200]]);
    long.count(&[]);
    long.count(&[b"GET", b"\xff"]);
    long.count(&[b"STRLEN", b"list"]);
    long.count(&[b"config", b"Get", b"x"]);
    let counted = ["client", "get", "strlen", "config|get"].map(|name| long.0[place_of(name)]);
    assert_eq!((counted, long.0[OTHER]), ([1; 4], 2));
}
