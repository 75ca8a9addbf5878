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
use crate::args::Op;
use crate::capacity;
use crate::generator::value;

fn args(server: Server, hit_ratio: f64) -> CapacityArgs {
    CapacityArgs {
        op: Op::Get,
        server: vec![server],
        hit_ratio,
        keys: 4,
        conns: 4,
        runs: 2,
        seconds: 0.2,
        value_size: 100,
        cache_size: "64M".into(),
        server_core: 0,
        generator_core: 0,
        json: false,
    }
}

#[test]
fn wrong_and_missing_values_are_mismatches() {
    let interrupt = Interrupt::watch().unwrap();
    let args = args(Server::Redis, 1.0);
    let plan = Plan {
        server: Server::Redis,
        keys: args.keys,
        cache_size: String::new(),
        filled: 0,
        fills: false,
    };
    let mut instance = Instance::build(plan, &args, None, &interrupt).unwrap();
    let mut redis = instance.redis.connect().unwrap();
    redis::cmd("SET")
        .arg(key(1))
        .arg(value(2, 100))
        .query::<()>(&mut redis)
        .unwrap();
    redis::cmd("DEL")
        .arg(key(3))
        .query::<()>(&mut redis)
        .unwrap();
    let run = instance
        .run(Duration::from_millis(200), &interrupt)
        .unwrap();
    let share = run.mismatches as f64 / run.requests as f64;
    // Two of four keys, drawn uniformly some thousand times.
    assert!((0.4..0.6).contains(&share), "{run:?}");
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
    fn fill(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<u64> {
        let count = keys.count() as u64;
        self.calls.borrow_mut().push(format!("fill {count}"));
        Ok(count)
    }
    fn set_fills(&mut self, on: bool) -> Result<()> {
        self.calls.borrow_mut().push(format!("fills {on}"));
        Ok(())
    }
    fn hits(&self) -> Result<u64> {
        Ok(0)
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
        ["boost 64M", "fill 2", "fills false", "detach"]
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
