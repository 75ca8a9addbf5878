// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the world relies on: order and causes of changes, moments of output, the log after crashes.

use erb_sim_redis::{
    AppendFsync, Cause, Config, CrashMode, Disk, Executed, Faults, Peer, Redis, Stored,
};

const START_NS: u64 = 1_700_000_000_000_000_000;

fn start(config: Config, disk: Disk) -> Redis {
    Redis::start(config, disk, START_NS).unwrap()
}

fn run(redis: &mut Redis, now_ns: u64) -> Vec<Executed> {
    let mut executed = Vec::new();
    while redis.has_work() {
        executed.extend(redis.step(now_ns));
    }
    executed
}

#[test]
fn every_change_is_reported_with_its_cause() {
    let mut redis = start(Config::default(), Disk::new(1, Faults::default()));
    let client = redis.accept(Peer::Unix("s".to_owned()), START_NS);
    redis.input(
        client,
        b"SET a 1 PX 5\r\nMSET b 2 c 3\r\nFLUSHDB\r\n",
        START_NS,
    );
    let executed = run(&mut redis, START_NS);
    let causes: Vec<(Cause, bool)> = executed
        .iter()
        .flat_map(|one| &one.changes)
        .map(|change| (change.cause, change.value == Stored::Gone))
        .collect();
    let (set, flushed) = ((Cause::Command, false), (Cause::Flush, true));
    assert_eq!(causes, [set, set, set, flushed, flushed, flushed]);
    redis.input(client, b"SET a 1 PX 5\r\n", START_NS);
    run(&mut redis, START_NS);
    let changes = redis.cron(START_NS + 1_000_000_000);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].cause, Cause::Expired);
}

#[test]
fn output_leaves_only_at_the_end_of_a_turn() {
    let mut redis = start(Config::default(), Disk::new(1, Faults::default()));
    let client = redis.accept(Peer::Unix("s".to_owned()), START_NS);
    redis.input(client, b"PING\r\nPING\r\n", START_NS);
    let mut output = Vec::new();
    for _ in 0..2 {
        assert!(redis.step(START_NS).is_some());
        assert!(!redis.output(client, &mut output));
    }
    assert!(redis.step(START_NS).is_none());
    assert!(redis.output(client, &mut output));
    assert_eq!(output, b"+PONG\r\n+PONG\r\n");
}

#[test]
fn what_always_answered_survives_a_loss_of_power() {
    for seed in 0..50 {
        let config = Config {
            appendfsync: AppendFsync::Always,
            ..Config::default()
        };
        let mut redis = start(config.clone(), Disk::new(seed, Faults::default()));
        let client = redis.accept(Peer::Unix("s".to_owned()), START_NS);
        let text =
            b"SET a 1\r\nMULTI\r\nINCR a\r\nSET b 2 EX 100\r\nEXEC\r\nSELECT 1\r\nLPUSH l x\r\n";
        redis.input(client, text, START_NS);
        run(&mut redis, START_NS);
        let before = redis.contents();
        let redis = start(config, redis.crash(CrashMode::Power));
        assert_eq!(redis.contents(), before, "seed {seed}");
        assert_eq!(before.len(), 3);
    }
}

#[test]
fn a_log_cut_inside_a_transaction_loses_all_of_it() {
    let config = Config {
        appendfsync: AppendFsync::Always,
        ..Config::default()
    };
    let mut redis = start(config.clone(), Disk::new(1, Faults::default()));
    let client = redis.accept(Peer::Unix("s".to_owned()), START_NS);
    redis.input(
        client,
        b"SET a 1\r\nMULTI\r\nSET b 2\r\nSET c 3\r\nEXEC\r\n",
        START_NS,
    );
    run(&mut redis, START_NS);
    let mut disk = redis.crash(CrashMode::Process);
    let name = "appendonlydir/appendonly.aof.1.incr.aof";
    let length = disk.read(name).unwrap().len();
    disk.truncate(name, length - 3);
    let redis = start(config, disk);
    assert_eq!(redis.contents().len(), 1);
}
