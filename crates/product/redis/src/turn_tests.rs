// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The core in virtual time, over a data path that records and a Redis that says what it is told.

use erb_abi::{self as abi, ControlBlock as _};

use crate::clock::MS;
use crate::doubles::{Pipe, Recorder, Stand, few_commands};
use crate::gate::Allowed;
use crate::timer::Timer;
use crate::turn::{Core, Settings};
use crate::walk::Pieces;

#[path = "devices_tests.rs"]
mod devices_tests;
#[path = "listeners_tests.rs"]
mod listeners_tests;
#[path = "stop_tests.rs"]
mod stop_tests;
#[path = "unseen_tests.rs"]
mod unseen_tests;
#[path = "walk_tests.rs"]
mod walk_tests;
#[path = "watch_tests.rs"]
mod watch_tests;

const START_NS: u64 = 1_000_000 * MS;
const SETUP: &str = "%2\r\n+server\r\n+redis\r\n+id\r\n:9\r\n+OK\r\n+OK\r\n\
    +OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n\
    *9\r\n+OK\r\n:0\r\n$0\r\n\r\n_\r\n:0\r\n_\r\n*1\r\n_\r\n*0\r\n:-2\r\n$0\r\n\r\n";

/// A feed's set-up with a Redis that has no commands.
fn set_up() -> String {
    format!("{SETUP}{}+OK\r\n", few_commands())
}

/// What the lease asks for: INFO of the calls, PING.
const PONG: &str = "$0\r\n\r\n+PONG\r\n";

fn wanted(key: &str) -> abi::Wanted {
    abi::Wanted::string(key.as_bytes().to_vec())
}

struct Bench {
    core: Core<Recorder, Stand>,
    redis: Pipe,
    listed: Option<String>,
    state: String,
}

impl Bench {
    /// A core after its first turn: the feed is asked for.
    fn new(pieces: Pieces) -> Self {
        let machine = Stand::default();
        machine.now_ns.set(START_NS);
        machine.wall_minus_mono_ns.set(1_700_000_000_000_000_000);
        let redis = Pipe::default();
        machine.redis.replace(Some(redis.clone()));
        let settings = Settings {
            pieces,
            feed_name: "erb-feed:test".to_owned(),
            redis: "test".to_owned(),
            port: 6379,
            hold_max_ns: 5_000 * MS,
            close_after_ns: None,
            allowed: Allowed::default(),
        };
        let path = Recorder::default();
        path.set(|control| control.fills = 1);
        let core = Core::new(path, machine, settings);
        let mut bench = Self {
            core,
            redis,
            listed: None,
            state: state_reply(""),
        };
        bench.turn(false);
        bench
    }

    /// A core with a feed, a lease and leave to serve.
    fn serving() -> Self {
        Self::serving_by(Pieces::default())
    }

    fn serving_by(pieces: Pieces) -> Self {
        let mut bench = Self::new(pieces);
        bench.say(&set_up());
        bench.say(state_reply("").as_str());
        bench.say(PONG);
        assert_eq!(bench.core.path.serving(), 1);
        assert!(bench.has_lease());
        bench.redis.heard();
        bench.core.path.take_log();
        bench
    }

    fn turn(&mut self, feed_is_ready: bool) {
        self.core.turn(feed_is_ready).unwrap();
    }

    fn say(&mut self, bytes: &str) {
        self.redis.say(bytes);
        self.turn(true);
    }

    fn now(&self) -> u64 {
        self.core.machine.now_ns.get()
    }

    /// Lets time pass with turns when they are due; Redis answers each PING if `answers`.
    fn pass(&mut self, ms: u64, answers: bool) {
        let end = self.now() + ms * MS;
        loop {
            let next = self.core.next_wake_ns(self.now()).max(self.now());
            if next >= end {
                self.core.machine.now_ns.set(end);
                return;
            }
            self.core.machine.now_ns.set(next);
            self.turn(false);
            if answers {
                self.answer();
            }
        }
    }

    /// Redis answers what is a PING or asks for its state; the number of PINGs.
    fn answer(&mut self) -> usize {
        let mut pings = 0;
        let heard = self.redis.heard();
        let mut rest = heard.as_str();
        while let Some(at) = rest.find(['P', 'I', 'C']) {
            rest = &rest[at..];
            if rest.starts_with("PING") {
                pings += 1;
                self.say("+PONG\r\n");
            } else if rest.starts_with("INFO\r\n$5\r\nstats") {
                self.say("$0\r\n\r\n");
            } else if rest.starts_with("INFO") {
                self.say(&self.state.clone());
            } else if rest.starts_with("CLIENT\r\n$4\r\nLIST")
                && let Some(text) = self.listed.clone()
            {
                self.say(&format!("${}\r\n{text}\r\n", text.len()));
            }
            rest = &rest[1..];
        }
        pings
    }

    fn has_lease(&self) -> bool {
        self.core.path.lease_until_ns() > self.now()
    }

    fn count(&self, stat: abi::erb_stat) {
        *self.core.path.stats.borrow_mut().entry(stat).or_default() += 1;
    }
}

/// Redis's state, in which nothing forbids to serve, with more lines of INFO.
fn state_reply(more: &str) -> String {
    state_reply_of("user default on nopass sanitize-payload ~* &* +@all", more)
}

/// The same where ACL LIST says this.
fn state_reply_of(acl: &str, more: &str) -> String {
    let info = format!("redis_version:7.2.0\r\nredis_mode:standalone\r\nrole:master\r\n{more}");
    format!(
        "%2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n$7\r\ntimeout\r\n$1\r\n0\r\n*1\r\n${}\r\n{acl}\r\n${}\r\n{info}\r\n",
        acl.len(),
        info.len()
    )
}

#[test]
fn the_lease_comes_from_pong_alone_and_counts_from_its_ping() {
    let mut bench = Bench::new(Pieces::default());
    bench.say(&set_up());
    assert!(!bench.has_lease(), "tracking alone is no lease");
    let sent = bench.now();
    bench.core.machine.now_ns.set(sent + 30 * MS);
    bench.say(state_reply("").as_str());
    assert_eq!(bench.core.path.serving(), 1);
    assert!(!bench.has_lease(), "a state alone is no lease");
    bench.say(PONG);
    assert_eq!(bench.core.path.lease_until_ns(), sent + 100 * MS);
}

#[test]
fn an_error_to_ping_lets_the_lease_end() {
    let mut bench = Bench::serving();
    let until = bench.core.path.lease_until_ns();
    bench.pass(60, false);
    assert!(bench.redis.heard().contains("PING"));
    bench.say("$0\r\n\r\n-LOADING Redis is loading the dataset in memory\r\n");
    assert_eq!(bench.core.path.lease_until_ns(), until);
    assert!(bench.core.reasons_against_serving()[0].contains("LOADING"));
}

#[test]
fn the_end_of_the_feed_stops_serving_at_once() {
    let mut bench = Bench::serving();
    bench.redis.close();
    bench.turn(true);
    assert_eq!(bench.core.path.serving(), 0);
    assert_eq!(bench.core.path.lease_until_ns(), 0);
    assert!(!bench.core.is_feed_up());
}

#[test]
fn a_data_path_that_fails_ends_the_feed() {
    let mut bench = Bench::serving();
    bench.core.path.is_broken.set(true);
    bench.say(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n");
    assert_eq!(bench.core.path.serving(), 0);
    assert_eq!(bench.core.path.lease_until_ns(), 0);
}

#[test]
fn a_silent_redis_loses_the_feed() {
    let mut bench = Bench::serving();
    bench.pass(5_000, false);
    assert!(bench.core.is_feed_up());
    assert!(!bench.has_lease());
    bench.core.machine.redis.replace(None);
    bench.pass(200, false);
    assert!(!bench.core.is_feed_up());
    assert_eq!(bench.core.path.serving(), 0);
}

#[test]
fn a_new_feed_empties_the_cache_before_its_first_lease() {
    let mut bench = Bench::serving();
    bench.redis.close();
    bench.turn(true);
    let redis = Pipe::default();
    bench.core.machine.redis.replace(Some(redis.clone()));
    bench.redis = redis;
    bench.pass(400, false);
    assert!(bench.redis.heard().contains("HELLO"), "connects again");
    assert!(!bench.core.path.take_log().contains(&"clear".to_owned()));
    bench.say(&set_up());
    assert!(bench.core.path.take_log().contains(&"clear".to_owned()));
    assert!(!bench.has_lease());
    assert_eq!(bench.core.path.serving(), 0, "the state is not read yet");
    assert_eq!(bench.core.feeds_made(), 2);
}

#[test]
fn versions_are_noted_before_the_key_is_read() {
    let mut bench = Bench::serving();
    bench
        .core
        .path
        .heard_at_note
        .replace(Some(bench.redis.clone()));
    bench
        .core
        .path
        .misses
        .replace(vec![wanted("a"), wanted("b")]);
    bench.pass(60, false);
    assert!(bench.redis.heard().contains("STRLEN\r\n$1\r\na\r\n"));
    // The PING of the same tick was sent first.
    bench.say(PONG);
    bench.say("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n:1\r\n:0\r\n");
    assert!(bench.core.path.take_log().contains(&"note a,b".to_owned()));
    let before = bench.core.path.heard.take();
    assert!(
        !before.contains("GET"),
        "read before it was noted: {before}"
    );
    let heard = bench.redis.heard();
    assert!(
        heard.contains("GETRANGE\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\n1\r\n"),
        "{heard}"
    );
    bench.say("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    bench.say("*5\r\n+OK\r\n$1\r\nv\r\n:-1\r\n$0\r\n\r\n:-2\r\n");
    assert_eq!(bench.core.path.take_log(), ["insert a=v until 0"]);
    assert_eq!(bench.core.fill_counts(), (1, 0));
}

#[test]
fn nothing_is_filled_while_not_serving() {
    let mut bench = Bench::serving();
    bench.core.path.set_serving(0);
    bench.core.path.misses.replace(vec![wanted("a")]);
    bench.pass(60, false);
    assert!(!bench.redis.heard().contains("MULTI"));
}

#[test]
fn the_gate_is_acknowledged_by_a_state_that_was_asked_for_after_it() {
    let mut bench = Bench::serving();
    bench.core.path.set(|control| control.gate_seen = 3);
    bench.pass(60, false);
    let heard = bench.redis.heard();
    assert!(heard.contains("PING") && heard.contains("INFO"), "{heard}");
    // Asked for at 3; what comes after that is not in it.
    bench.core.path.set(|control| control.gate_seen = 4);
    bench.say(PONG);
    assert_eq!(bench.core.path.gate_ack(), 0);
    bench.say(state_reply("").as_str());
    assert_eq!(bench.core.path.gate_ack(), 3);
    bench.pass(60, true);
    assert_eq!(bench.core.path.gate_ack(), 4);
}

#[test]
fn the_gate_waits_for_the_fence() {
    let mut bench = Bench::serving();
    bench.core.path.set(|control| control.gate_seen = 3);
    bench.core.path.set(|control| control.fence = 1);
    bench.pass(200, true);
    assert_eq!(bench.core.path.gate_ack(), 0);
    bench.core.path.set(|control| control.fence = 0);
    bench.pass(60, true);
    assert_eq!(bench.core.path.gate_ack(), 3);
}

#[test]
fn swapdb_between_two_reads_empties_the_cache() {
    let mut bench = Bench::serving();
    bench.core.path.set(|control| control.gate_seen = 1);
    bench.pass(60, false);
    let heard = bench.redis.heard();
    assert!(heard.contains("PING") && heard.contains("INFO"), "{heard}");
    bench.say(PONG);
    bench.say(state_reply("cmdstat_swapdb:calls=1,usec=1\r\n").as_str());
    assert_eq!(bench.core.path.take_log().last().unwrap(), "clear");
    assert_eq!(bench.core.path.gate_ack(), 1);
}

#[test]
fn swapdb_is_seen_before_the_lease_is_renewed() {
    let mut bench = Bench::serving();
    bench.pass(60, false);
    assert!(bench.redis.heard().contains("commandstats"));
    bench.core.path.take_log();
    let info = "cmdstat_swapdb:calls=1,usec=1\r\n";
    let until = bench.core.path.lease_until_ns();
    bench.say(&format!("${}\r\n{info}\r\n", info.len()));
    assert_eq!(bench.core.path.take_log(), ["clear"]);
    assert_eq!(bench.core.path.lease_until_ns(), until, "not renewed yet");
    bench.say("+PONG\r\n");
    assert!(bench.core.path.lease_until_ns() > until);
}

#[test]
fn connections_are_admitted_after_200_ms() {
    let mut bench = Bench::new(Pieces::default());
    bench.pass(190, false);
    assert_eq!(bench.core.path.control().admit(), 0);
    bench.pass(100, false);
    assert_eq!(bench.core.path.control().admit(), 1);
}

#[test]
fn a_step_of_the_wall_clock_empties_the_cache() {
    let mut bench = Bench::serving();
    let wall = &bench.core.machine.wall_minus_mono_ns;
    wall.set(wall.get() + 2_000_000);
    bench.pass(60, true);
    assert!(
        !bench.core.path.take_log().contains(&"clear".to_owned()),
        "slewed"
    );
    let wall = &bench.core.machine.wall_minus_mono_ns;
    wall.set(wall.get() - 3_000_000);
    bench.pass(60, true);
    assert!(bench.core.path.take_log().contains(&"clear".to_owned()));
    let wall = bench.core.machine.wall_minus_mono_ns.get();
    assert_eq!(bench.core.path.control().wall_minus_mono_ns(), wall);
}

#[test]
fn the_timer_runs_while_something_may_be_unacknowledged() {
    let mut bench = Bench::serving();
    let ticks = |bench: &Bench| {
        let log = bench.core.path.take_log();
        log.iter().filter(|line| *line == "tick").count()
    };
    bench.pass(200, true);
    ticks(&bench);
    bench.pass(200, true);
    assert_eq!(ticks(&bench), 0);
    bench.count(abi::STAT_FAST_PACKET);
    bench.pass(200, true);
    assert_eq!(ticks(&bench), 1);
    bench.core.path.is_unacked.set(true);
    bench.count(abi::STAT_FAST_PACKET_TC);
    bench.pass(200, true);
    assert_eq!(ticks(&bench), 4);
}

/// PINGs and times with a lease in a second of looks at each millisecond.
fn second_of_rest(bench: &mut Bench) -> (usize, u64) {
    let (mut pings, mut leased) = (0, 0);
    for _ in 0..1_000 {
        bench.core.machine.now_ns.set(bench.now() + MS);
        if bench.core.next_wake_ns(bench.now()) <= bench.now() {
            bench.turn(false);
            pings += bench.answer();
        }
        leased += u64::from(bench.has_lease());
    }
    (pings, leased)
}

#[test]
fn the_lease_rests_when_nobody_asks_whether_connected_or_not() {
    let mut bench = Bench::serving();
    bench.core.path.sweep.borrow_mut().by_state[abi::CONN_FAST as usize] = 1;
    let (pings, leased) = second_of_rest(&mut bench);
    assert!(pings >= 19 && leased == 1_000, "{pings} {leased}");
    bench.pass(5_000, true);
    let (pings, leased) = second_of_rest(&mut bench);
    assert_eq!(pings, 1, "a dead Redis must still be found");
    assert!(leased <= 100, "{leased}");
}

#[test]
fn whoever_asks_gets_the_lease_back_within_a_tick_of_rest() {
    let asks = [
        abi::STAT_REFUSE_LEASE,
        abi::STAT_CONN_CREATED,
        abi::STAT_FAST_PACKET,
        abi::STAT_FAST_PACKET_TC,
    ];
    for stat in asks {
        let mut bench = Bench::serving();
        bench.pass(6_300, true);
        assert!(!bench.has_lease());
        bench.count(stat);
        bench.pass(101, true);
        assert!(bench.has_lease(), "{}", abi::REASONS[stat as usize].name);
        bench.pass(4_900, true);
        assert!(bench.has_lease());
        bench.pass(1_300, true);
        assert!(!bench.has_lease(), "rests again");
    }
}

#[test]
fn ticks_slow_down_only_when_nothing_waits() {
    type Begins = fn(&mut Bench);
    let waits: [(&str, Begins); 4] = [
        ("nothing", |_| {}),
        ("fence", |bench| {
            bench.core.path.set(|control| control.fence = 1)
        }),
        ("bytes", |bench| {
            bench.core.path.is_unacked.set(true);
            bench.core.timer = Timer::new(Pieces::default());
        }),
        ("lease", |bench| {
            bench.core.path.set_lease_until_ns(u64::MAX)
        }),
    ];
    for (what, begins) in waits {
        let mut bench = Bench::serving();
        bench.pass(6_300, true);
        begins(&mut bench);
        bench.pass(110, true);
        let ticks = bench.core.next_wake_ns(bench.now());
        bench.core.machine.now_ns.set(ticks);
        bench.turn(false);
        let pause = bench.core.next_wake_ns(ticks) - ticks;
        let wanted = if what == "nothing" { 100 } else { 50 };
        assert_eq!(pause, wanted * MS, "{what}");
    }
}

#[test]
fn misses_and_fills_and_looks_keep_the_lease_up() {
    let mut bench = Bench::serving();
    bench.pass(6_300, true);
    bench.core.look().unwrap();
    bench.turn(false);
    assert_eq!(bench.answer(), 1, "at once");
    assert!(bench.has_lease());
    bench.pass(6_000, true);
    assert!(!bench.has_lease());
    bench.core.path.misses.replace(vec![wanted("a")]);
    bench.pass(101, false);
    let heard = bench.redis.heard();
    assert!(heard.contains("PING") && heard.contains("MULTI"), "{heard}");
}

#[test]
fn a_refused_password_ends_serving_and_is_tried_again_with_the_one_of_then() {
    let mut bench = Bench::serving();
    let password = |text: &str| {
        Some(crate::rights::Credentials {
            user: "erb".to_owned(),
            password: text.into(),
        })
    };
    bench.core.machine.credentials.replace(password("old"));
    let redis = Pipe::default();
    bench.core.machine.redis.replace(Some(redis.clone()));
    bench.redis.close();
    bench.turn(true);
    assert_eq!(bench.core.path.serving(), 0);
    assert!(!bench.has_lease());
    bench.redis = redis;
    bench.pass(300, false);
    let heard = bench.redis.heard();
    assert!(heard.contains("AUTH\r\n$3\r\nerb\r\n$3\r\nold"), "{heard}");
    bench.say("-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    let reasons = bench.core.reasons_against_serving().join(" ");
    assert!(
        reasons.contains("WRONGPASS") && !reasons.contains("old"),
        "{reasons}"
    );
    let attempts = bench.core.machine.connects.get();
    bench.pass(900, false);
    assert_eq!(bench.core.machine.connects.get(), attempts, "too soon");
    bench.core.machine.credentials.replace(password("new"));
    bench.pass(300, false);
    let heard = bench.redis.heard();
    assert!(heard.contains("AUTH\r\n$3\r\nerb\r\n$3\r\nnew"), "{heard}");
    bench.say(&set_up());
    bench.say(&state_reply_of("user erb on #1 ~* &* +@all", ""));
    assert_eq!(bench.core.path.serving(), 1);
}

#[test]
fn used_keys_are_touched_where_redis_evicts_by_use() {
    let mut bench = Bench::serving();
    let used = || vec![(3, b"c".to_vec()), (0, b"b".to_vec()), (0, b"a".to_vec())];
    bench.core.path.used.replace(used());
    bench.pass(200, true);
    let looks = |bench: &Bench| {
        let log = bench.core.path.take_log();
        log.iter()
            .filter(|line| line.starts_with("touched"))
            .count()
    };
    assert_eq!(looks(&bench), 0, "nothing is evicted");
    bench.core.path.set(|control| control.gate_seen += 1);
    bench.pass(60, false);
    let state = state_reply("").replace(
        "%2\r\n$9\r\nmaxmemory\r\n$1\r\n0",
        "%3\r\n$16\r\nmaxmemory-policy\r\n$11\r\nallkeys-lru\r\n$9\r\nmaxmemory\r\n$1\r\n1",
    );
    bench.say(&format!("{PONG}{state}"));
    assert_eq!(looks(&bench), 0, "that was not known");
    bench.pass(60, false);
    let heard = bench.redis.heard();
    let touch = "MULTI\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$5\r\nTOUCH\r\n$1\r\na\r\n$1\r\nb\r\n\
                 *2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*2\r\n$5\r\nTOUCH\r\n$1\r\nc\r\n*1\r\n$4\r\nEXEC";
    assert!(heard.contains(touch), "{heard}");
    assert_eq!(looks(&bench), 1, "64 sets in 20 ticks, 8 at a look");
    bench.core.path.used.replace(used());
    bench.pass(100, false);
    assert_eq!(looks(&bench), 0, "the last TOUCH is not answered");
}
