// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of `erb bench journal`: what it shows, and what it does not where all is emulated.

use super::*;

fn run(journal_ns: Option<f64>) -> Run {
    Run {
        seconds: 2.0,
        requests: 1000,
        replies: 1200,
        requests_per_s: 500.0,
        server_cpu_ns_per_request: 4000.0,
        requests_per_core_s: 250_000.0,
        napi_ns_per_request: 1000.0,
        redis_ns_per_request: 2000.0,
        daemon_ns_per_request: 700.0,
        journal_ns_per_request: journal_ns,
        foreign_share: 0.0,
        hit_ratio: None,
        answered_by_redis: 0.0,
        mismatches: 0,
        stalled_conns: 0,
        repeated: 0,
        pieces: 0,
        odd: 0,
        no_room: 0,
    }
}

fn work(records: u64, wakes: u64) -> Work {
    Work {
        answered: 600,
        records,
        batches: 20,
        syncs: 3,
        wakes,
        failures: 0,
    }
}

fn report(emulator: Option<&str>) -> SinksReport {
    let is_timed = emulator.is_none();
    let of = |sink, journal, work| {
        let run = SinkRun::new(&run(journal), work, is_timed).expect("right replies");
        SinkReport::new(sink, vec![run], None).expect("a run")
    };
    let mut sinks = vec![
        of(Sink::None, None, work(0, 0)),
        of(Sink::Daemon, Some(300.0), work(600, 0)),
        of(Sink::Kmod, Some(300.0), work(600, 6)),
    ];
    sinks[1].delays = is_timed.then_some(Delays {
        p50_ms: 512.0,
        p99_ms: 1034.0,
        look_ms: 14.0,
    });
    SinksReport {
        machine: Machine {
            kernel: "6.18".to_owned(),
            processor: "a processor".to_owned(),
            cores: 2,
            redis: "Redis 7".to_owned(),
        },
        emulator: emulator.map(str::to_owned),
        disk: "/disk".to_owned(),
        is_tmpfs: false,
        sinks,
        left_out: vec![LeftOut {
            sink: "kmod",
            why: "the module is not loaded".to_owned(),
        }],
    }
}

/// The cells of a sink's row.
fn row(table: &str, sink: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.trim().starts_with(sink));
    let line = line.unwrap_or_else(|| panic!("no {sink} in {table}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn times_stand_beside_counts() {
    let table = report(None).to_table();
    let daemon = row(&table, "daemon");
    // 300 ns for each of 1,200 SETs, half of which are records: 600 for a record.
    let wanted = "daemon 500 4000 4000-4000 1000 2000 700 300 (8 %) 600 30 200 - 512 1034";
    assert_eq!(daemon.join(" "), wanted);
    assert_eq!(row(&table, "kmod").join(" ").matches("1.00").count(), 1);
    assert!(
        row(&table, "none").join(" ").ends_with("0 - - - -"),
        "{table}"
    );
    assert!(
        table.contains("kmod is left out: the module is not loaded"),
        "{table}"
    );
    assert!(table.contains("looked at each 14 ms"), "{table}");
}

#[test]
fn an_emulated_machine_has_counts_and_no_times() {
    let report = report(Some("QEMU without KVM"));
    let table = report.to_table();
    assert_eq!(
        row(&table, "kmod").join(" "),
        "kmod 1200 600 600 20 3 6 30 200 1.00"
    );
    assert!(table.contains("emulated (QEMU without KVM)"), "{table}");
    for word in ["SETs/s", "ns/", "4000", "500", " ms"] {
        assert!(!table.contains(word), "{word} in {table}");
    }
    let json = serde_json::to_value(&report).expect("JSON");
    let sink = &json["sinks"][2];
    for name in ["all_ns", "journal_ns", "delays"] {
        assert!(sink[name].is_null(), "{name} in {sink:#}");
    }
    assert!(sink["runs"][0]["times"].is_null(), "{sink:#}");
    assert_eq!(sink["runs"][0]["wakes"], 6);
}

#[test]
fn a_wrong_reply_is_an_error() {
    let mut wrong = run(None);
    wrong.mismatches = 1;
    assert!(SinkRun::new(&wrong, work(0, 0), true).is_err());
}
