// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On real namespaces with a real Redis (root): that wrong replies are noticed, and in which order
//! ERB is asked for what. ERB itself is played by a shell script.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::*;
use crate::args::{Drawn, Op, WorkArgs};
use crate::capacity;
use crate::work::value;

fn args(server: Server, hit_ratio: f64) -> CapacityArgs {
    CapacityArgs {
        work: WorkArgs {
            op: Op::Get,
            keys: Some(4),
            value_size: None,
            batch: None,
            fields: None,
        },
        server: vec![server],
        distribution: Drawn::Uniform,
        hit_ratio,
        conns: 4,
        runs: 2,
        // Less, and on a loaded machine a run may end before anything was answered.
        seconds: 1.0,
        cache_size: "64M".into(),
        server_core: 0,
        generator_core: 0,
        json: false,
    }
}

/// A short run; `None` if nothing was answered in it, as on a loaded machine.
fn run_of(instance: &mut Instance, interrupt: &Interrupt) -> Option<Run> {
    match instance.run(Duration::from_millis(200), interrupt) {
        Ok(run) => Some(run),
        Err(error) if error.to_string().contains("no request was answered") => None,
        Err(error) => panic!("{error:#}"),
    }
}

/// One run of Redis alone after these commands were sent past the generator: the share of replies
/// that were noticed to be wrong.
fn share_wrong(work: WorkArgs, commands: &[redis::Cmd]) -> f64 {
    let interrupt = Interrupt::watch().unwrap();
    let args = CapacityArgs {
        work,
        ..args(Server::Redis, 1.0)
    };
    let plan = Plan {
        server: Server::Redis,
        work: Work::of(&args.work).unwrap(),
        cache_size: String::new(),
        loaded: args.work.keys.unwrap_or(1000),
        filled: 0,
        fills: false,
        options: Vec::new(),
        journal: None,
    };
    let mut instance = Instance::build(plan, &args, &Erb::at("none"), &interrupt).unwrap();
    let mut redis = instance.redis.connect().unwrap();
    for command in commands {
        command.exec(&mut redis).unwrap();
    }
    let run = erb_steady::wait(Duration::from_secs(30), || {
        let run = run_of(&mut instance, &interrupt);
        run.filter(|run| run.requests > 100)
            .ok_or_else(|| "few replies".to_owned())
    });
    run.mismatches as f64 / run.requests as f64
}

/// Two of four keys, drawn uniformly some thousand times.
fn two_of_four_wrong(string: impl Fn(u32) -> redis::Cmd) -> [redis::Cmd; 2] {
    [string(1), redis::Cmd::del(key(3))]
}

#[test]
fn wrong_and_missing_values_are_mismatches() {
    let commands = two_of_four_wrong(|index| redis::Cmd::set(key(index), value(2, 100)));
    let share = share_wrong(args(Server::Redis, 1.0).work, &commands);
    assert!((0.4..0.6).contains(&share), "{share}");
}

#[test]
fn an_mget_is_right_if_each_of_its_values_is() {
    let work = WorkArgs {
        op: Op::Mget,
        batch: Some(3),
        ..args(Server::Redis, 1.0).work
    };
    assert_eq!(share_wrong(work.clone(), &[]), 0.0);
    let commands = two_of_four_wrong(|index| redis::Cmd::set(key(index), value(2, 100)));
    let share = share_wrong(work.clone(), &commands);
    assert!((0.8..0.95).contains(&share), "7 of 8 are wrong: {share}");
    // The last byte of a value counts as well as its key.
    let last = format!("{}y", value(1, 99));
    let share = share_wrong(work, &[redis::Cmd::set(key(1), last)]);
    assert!((0.5..0.66).contains(&share), "37 of 64 are wrong: {share}");
}

#[test]
fn an_hgetall_is_right_if_each_of_its_fields_is() {
    let work = WorkArgs {
        op: Op::Hgetall,
        ..args(Server::Redis, 1.0).work
    };
    assert_eq!(share_wrong(work.clone(), &[]), 0.0);
    let commands = two_of_four_wrong(|index| redis::Cmd::hset(key(index), "f:09", value(2, 16)));
    let share = share_wrong(work, &commands);
    assert!((0.4..0.6).contains(&share), "{share}");
}

#[test]
fn a_write_is_right_if_its_reply_is() {
    let work = |op| WorkArgs {
        op,
        ..args(Server::Redis, 1.0).work
    };
    assert_eq!(share_wrong(work(Op::Set), &[]), 0.0);
    assert_eq!(share_wrong(work(Op::Hset), &[]), 0.0);
    let share = share_wrong(work(Op::Hset), &[redis::Cmd::set(key(1), "no hash")]);
    assert!((0.1..0.4).contains(&share), "one of four keys: {share}");
}

#[test]
fn more_connections_than_may_ask_at_once_take_turns_and_rest_in_peace() {
    const CONNS: u32 = 1001;
    let interrupt = Interrupt::watch().unwrap();
    for op in [Op::Get, Op::Mget] {
        let mut args = args(Server::Redis, 1.0);
        (args.conns, args.work.op) = (CONNS, op);
        let work = Work::of(&args.work).unwrap();
        let plan = Plan {
            server: Server::Redis,
            work,
            cache_size: String::new(),
            loaded: args.work.keys.unwrap_or(1000),
            filled: 0,
            fills: false,
            options: Vec::new(),
            journal: None,
        };
        let mut instance = Instance::build(plan, &args, &Erb::at("none"), &interrupt).unwrap();
        erb_steady::wait_until(Duration::from_secs(30), "all have asked", || {
            let Some(run) = run_of(&mut instance, &interrupt) else {
                return false;
            };
            assert_eq!((run.mismatches, run.answered_by_redis), (0, 1.0), "{run:?}");
            let conns = instance.generator.conns().unwrap();
            conns.iter().filter(|conn| conn.replies > 0).count() == CONNS as usize
        });
        // What was not acknowledged the server would send again.
        let before = instance.generator.totals().unwrap();
        interrupt.sleep(LAST_ACK * 3).unwrap();
        let after = instance.generator.totals().unwrap();
        assert_eq!(before.repeated, after.repeated, "{op:?}");
        assert!(instance.generator.in_flight().unwrap().is_empty());
    }
}

/// The command `erb`, played by a shell script that writes down what it is asked for. Its daemon sleeps. It
/// attaches nothing: in the TC tier the bench itself attaches what lets packets pass.
struct FakeErb(TempDir);

const FAKE_ERB: &str = r#"#!/bin/sh
here=$(dirname "$0")
words=$*
while [ $# -gt 0 ]; do
	case $1 in
	--run-dir) run_dir=$2 ;;
	--cache-size) cache=$2 ;;
	--tier) tier=$2 ;;
	esac
	shift
done
tell() { echo "$*" >>"$here/calls"; }
case $words in
boost*)
	tell boost "$cache" "$tier"
	# In a folder that is there; fails otherwise.
	mkdir "$run_dir" || exit 1
	echo 0 >"$run_dir/filled"
	sleep 60 >/dev/null 2>&1 &
	echo $! >"$run_dir/pid"
	;;
status*)
	sed "s/\"pid\": 0/\"pid\": $(cat "$run_dir/pid")/
		s/\"entries_estimate\": 0/\"entries_estimate\": $(cat "$run_dir/filled")/" "$here/status"
	;;
"fill --hashes"*) exit 1 ;;
"fill "*)
	count=$(wc -l)
	tell fill "$count"
	echo "$count" >"$run_dir/filled"
	echo "{\"filled\": $count, \"refused\": 0}"
	;;
"fills on"*) tell fills on ;;
"fills off"*) tell fills off ;;
detach*)
	tell detach
	kill "$(cat "$run_dir/pid")" && rm -r "$run_dir"
	;;
esac
"#;

impl FakeErb {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let status = erb_report::Status {
            daemon: "fake".to_owned(),
            serving: true,
            admitting: true,
            counters: vec![erb_report::Counter {
                name: "FAST_GET".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let status = serde_json::to_string_pretty(&status).unwrap();
        fs::write(folder.path().join("status"), status).unwrap();
        let program = folder.path().join("erb");
        fs::write(&program, FAKE_ERB).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        Self(folder)
    }

    fn command(&self) -> Erb {
        Erb::at(self.0.path().join("erb"))
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.0.path().join("calls")).unwrap();
        calls.lines().map(str::to_owned).collect()
    }
}

#[test]
fn erb_is_filled_then_frozen_then_detached() {
    let erb = FakeErb::new();
    let report = capacity::measure(&args(Server::ErbTc, 0.5), &erb.command()).unwrap();
    assert_eq!(
        erb.calls(),
        ["boost 64M tc", "fill 2", "fills off", "detach"]
    );
    let server = &report.servers[0];
    assert_eq!((server.mismatches, server.runs.len()), (0, 2));
    assert_eq!((server.hit_ratio, server.filled_keys), (Some(0.0), Some(2)));
    let status = server.status.as_ref().unwrap();
    assert_eq!(status["daemon"], "fake");
    assert!(server.miss_with_fills.is_none());
}

#[test]
fn erb_in_front_of_writes_fills_as_in_production() {
    let erb = FakeErb::new();
    let mut args = args(Server::ErbTc, 1.0);
    args.work.op = Op::Set;
    let report = capacity::measure(&args, &erb.command()).unwrap();
    assert_eq!(erb.calls(), ["boost 64M tc", "fills on", "detach"]);
    let server = &report.servers[0];
    assert_eq!(
        (server.op, server.mismatches, server.hit_ratio),
        ("set", 0, None)
    );
}

#[test]
fn a_second_erb_with_fills_stands_beside_pure_misses() {
    let erb = FakeErb::new();
    let report = capacity::measure(&args(Server::ErbTc, 0.0), &erb.command()).unwrap();
    let expected = [
        "boost 64M tc",
        "fills off",
        "boost 1M tc",
        "fills on",
        "detach",
        "detach",
    ];
    assert_eq!(erb.calls(), expected);
    let beside = report.servers[0].miss_with_fills.as_ref().unwrap();
    assert_eq!((beside.mismatches, beside.runs.len()), (0, 2));
    assert!(
        u64::from(beside.keys) * 116 > 15 << 20,
        "{} keys",
        beside.keys
    );
}
