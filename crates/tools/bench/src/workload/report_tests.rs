// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::time::Instant;

use super::*;
use crate::workload::plan::tests::{args, plan};

const MS: Duration = Duration::from_millis(1);

/// A run of a read in `read_ms` and an update in twice that, at `per_s` operations per second.
fn run(per_s: f64, read_ms: u32, server_ns: f64) -> WorkloadRun {
    let mut tally = Tally::new(OPERATIONS.len()).unwrap();
    tally.done(0, read_ms * MS).unwrap();
    tally.done(1, 2 * read_ms * MS).unwrap();
    WorkloadRun {
        seconds: 1.0,
        operations: 2,
        operations_per_s: per_s,
        requests: 2,
        requests_per_s: per_s,
        latencies: Latency::of_all(&tally),
        cost: Cost {
            cpu_ns_per_request: 3.0 * server_ns,
            server_ns_per_request: server_ns,
            client_ns_per_request: 2.0 * server_ns,
            softirq_ns_per_request: 0.0,
            foreign_share: 0.0,
        },
        reads: 1,
        hit_ratio: None,
        repeated_ratio: Some(0.75),
        tc_share: None,
        reads_by_redis: 1.0,
        client_busy: 0.5,
        unseen: 0,
        offered: None,
        series: Vec::new(),
        beside: None,
        answered: None,
    }
}

fn runs(server: WorkloadServer, runs: Vec<WorkloadRun>) -> ServerRuns {
    ServerRuns { server, runs }
}

fn report(words: &[&str], servers: Vec<ServerRuns>) -> WorkloadReport {
    let machine = Machine {
        kernel: "6".into(),
        processor: "one".into(),
        cores: 2,
        redis: "7".into(),
    };
    WorkloadReport::new(
        machine,
        &args(words).unwrap(),
        &plan(words).unwrap(),
        servers,
    )
    .unwrap()
}

fn two() -> Vec<ServerRuns> {
    let redis = [(100.0, 4, 800.0), (300.0, 4, 600.0), (200.0, 6, 1000.0)];
    let erb = [(800.0, 2, 200.0)];
    let of = |all: &[(f64, u32, f64)]| all.iter().map(|&(a, b, c)| run(a, b, c)).collect();
    vec![
        runs(WorkloadServer::Redis, of(&redis)),
        runs(WorkloadServer::Erb, of(&erb)),
    ]
}

#[test]
fn medians_are_compared() {
    let report = report(&[], two());
    let spread = report.servers[0].figures[PER_S];
    assert_eq!(
        (spread.min, spread.median, spread.max),
        (100.0, 200.0, 300.0)
    );
    for (name, ratio) in [
        ("erb/redis per second", 4.0),
        ("erb/redis per processor time", 4.0),
        ("erb/redis read p50", 2.0),
        ("erb/redis update p99", 2.0),
    ] {
        let found = report.ratios[name];
        assert!((found / ratio - 1.0).abs() < 0.01, "{name}: {found}");
    }
    assert_eq!(
        report.ratios.len(),
        6,
        "each pair once: {:?}",
        report.ratios
    );
    let text = report.to_table();
    for word in [
        "mix b",
        "server ns/request",
        "HGETALL",
        "GET",
        "SET",
        "4.000 times better",
    ] {
        assert_eq!(text.contains(word), word != "HGETALL", "{word}:\n{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["servers"][1]["runs"][0]["latencies"]["read"]["count"],
        1
    );
    assert_eq!(
        json["servers"][1]["runs"][0]["server_ns_per_request"],
        200.0
    );
}

#[test]
fn over_lo_both_sides_are_compared_and_at_a_rate_nothing_per_second() {
    let text = report(&["--over", "lo", "--rate", "5"], two()).to_table();
    assert!(
        text.contains("both sides ns/request") && text.contains("5 operations/s"),
        "{text}"
    );
    assert!(!text.contains("per second"), "{text}");
}

#[test]
fn what_was_not_sent_in_time_is_told() {
    let plan = plan(&["--rate", "100"]).unwrap();
    let start = Instant::now();
    let mut tally = Tally::new(1).unwrap();
    for number in 0..100 {
        // Ten begin late for want of a connection, twenty by the client's fault.
        let (idle, begun) = match number {
            0..10 => (5, 5),
            10..30 => (0, 7),
            _ => (0, 0),
        };
        tally
            .late(start, start + idle * MS, start + begun * MS)
            .unwrap();
    }
    let offered = Offered::of(&plan, &tally, 25);
    let found = [
        offered.unsent,
        offered.late_for_server,
        offered.late_by_client,
    ];
    assert_eq!(found, [0.2, 0.1, 0.2]);
    assert!((7000.0..7100.0).contains(&offered.own_delay_p99_us));
    let mut late = run(100.0, 1, 100.0);
    late.offered = Some(offered);
    late.unseen = 3;
    let of = runs(WorkloadServer::Erb, vec![run(100.0, 1, 100.0), late]);
    let notes = report(&["--rate", "100"], vec![of]).notes;
    let told = [
        "up to 20.0 % of what was due",
        "up to 20.0 % of the operations",
        "see 3 connections",
    ];
    for (note, told) in notes.iter().zip(told) {
        assert!(note.contains(told), "{note}");
    }
    assert_eq!(notes.len(), told.len());
}

#[test]
fn a_client_or_others_that_take_the_processor_are_told() {
    let mut busy = run(100.0, 1, 100.0);
    busy.client_busy = 0.99;
    busy.cost.foreign_share = 0.3;
    let servers = || vec![runs(WorkloadServer::Redis, vec![busy.clone()])];
    let notes = report(&[], servers()).notes;
    assert!(notes[0].contains("other programs took 30 %"), "{notes:?}");
    assert!(notes[1].contains("99 % of its time"), "{notes:?}");
    assert_eq!(report(&["--rate", "100"], servers()).notes.len(), 1);
}

#[test]
fn a_cold_start_ends_with_the_first_second_of_nine_tenths() {
    let mut tally = Tally::new(OPERATIONS.len()).unwrap();
    (0..10).for_each(|_| tally.done(0, MS).unwrap());
    let second = |at_s, fast| Second::of(at_s, Duration::from_secs(1), &tally, fast, 9);
    let mut cold = run(10.0, 1, 100.0);
    cold.series = vec![
        second(1.0, Some(2)),
        second(2.1, Some(9)),
        second(3.1, Some(8)),
    ];
    let mut never = cold.clone();
    never.series.remove(1);
    let report = report(
        &["--series"],
        vec![runs(WorkloadServer::Erb, vec![cold, never])],
    );
    let warm = report.servers[0].warm_after_s.unwrap();
    assert_eq!((warm.min, warm.max), (2.1, 2.1));
    let text = report.to_table();
    assert!(
        text.contains("ended after 2.1 s (2.1-2.1, 1 of 2 runs)"),
        "{text}"
    );
    assert!(text.contains("0.2000") && text.contains("0.9000"), "{text}");
    assert_eq!(second(1.0, None).hit_ratio, None);
}
