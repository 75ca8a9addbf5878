// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On real namespaces with a real Redis (root): that wrong replies are noticed, and in which order
//! ERB is asked for what. ERB itself is played by a program that passes everything.

use std::cell::RefCell;
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::Link;
use serde_json::{Value, json};

use super::*;
use crate::args::{Op, WorkArgs};
use crate::booster::Packets;
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
        hit_ratio,
        conns: 4,
        runs: 2,
        seconds: 0.2,
        cache_size: "64M".into(),
        server_core: 0,
        generator_core: 0,
        json: false,
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
        filled: 0,
        fills: false,
    };
    let mut instance = Instance::build(plan, &args, None, &interrupt).unwrap();
    let mut redis = instance.redis.connect().unwrap();
    for command in commands {
        command.exec(&mut redis).unwrap();
    }
    let run = instance
        .run(Duration::from_millis(200), &interrupt)
        .unwrap();
    assert!(run.requests > 100, "{run:?}");
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

type Calls = Rc<RefCell<Vec<String>>>;

struct FakeErb(Calls);

struct FakeBoosted {
    calls: Calls,
    daemon: Child,
    _link: Link,
}

impl Booster for FakeErb {
    fn boost(&self, request: &BoostRequest<'_>) -> Result<Box<dyn Boosted>> {
        self.0
            .borrow_mut()
            .push(format!("boost {}", request.cache_size));
        assert!(request.run_dir.is_dir());
        let link = attach_pass(request.netns, request.device)?;
        let daemon = Command::new("sleep").arg("60").spawn()?;
        Ok(Box::new(FakeBoosted {
            calls: Rc::clone(&self.0),
            daemon,
            _link: link,
        }))
    }
}

impl Boosted for FakeBoosted {
    fn pids(&self) -> Vec<u32> {
        vec![self.daemon.id()]
    }
    fn fill(&mut self, op: Op, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<u64> {
        let count = keys.count() as u64;
        let name = op.name();
        self.calls.borrow_mut().push(format!("fill {name} {count}"));
        Ok(count)
    }
    fn set_fills(&mut self, on: bool) -> Result<()> {
        self.calls.borrow_mut().push(format!("fills {on}"));
        Ok(())
    }
    fn hits(&self, _op: Op) -> Result<u64> {
        Ok(0)
    }
    fn packets(&self) -> Result<Packets> {
        Ok(Packets { xdp: 0, tc: 0 })
    }
    fn status_json(&self) -> Result<Value> {
        Ok(json!({ "fake": true }))
    }
    fn detach(mut self: Box<Self>) -> Result<()> {
        self.calls.borrow_mut().push("detach".into());
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok(())
    }
}

#[test]
fn erb_is_filled_then_frozen_then_detached() {
    let calls = Calls::default();
    let booster = FakeErb(Rc::clone(&calls));
    let report = capacity::measure(&args(Server::Erb, 0.5), Some(&booster)).unwrap();
    assert_eq!(
        *calls.borrow(),
        ["boost 64M", "fill get 2", "fills false", "detach"]
    );
    let server = &report.servers[0];
    assert_eq!((server.mismatches, server.runs.len()), (0, 2));
    assert_eq!((server.hit_ratio, server.filled_keys), (Some(0.0), Some(2)));
    assert_eq!(server.status, Some(json!({ "fake": true })));
    assert!(server.miss_with_fills.is_none());
}

#[test]
fn a_second_erb_with_fills_stands_beside_pure_misses() {
    let calls = Calls::default();
    let booster = FakeErb(Rc::clone(&calls));
    let report = capacity::measure(&args(Server::Erb, 0.0), Some(&booster)).unwrap();
    let expected = [
        "boost 64M",
        "fills false",
        "boost 1M",
        "fills true",
        "detach",
        "detach",
    ];
    assert_eq!(*calls.borrow(), expected);
    let beside = report.servers[0].miss_with_fills.as_ref().unwrap();
    assert_eq!((beside.mismatches, beside.runs.len()), (0, 2));
    assert!(
        u64::from(beside.keys) * 116 > 15 << 20,
        "{} keys",
        beside.keys
    );
}
