// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON is a contract: fully filled values are compared with files, both ways. Who changes a type
//! sees here what readers of the JSON will see.

use std::fmt::Debug;

use erb_report::{
    AsideReport, AttachMode, Because, CacheReport, CommandLine, CommandsReport, ConditionReport,
    ConnLine, ConnectionsReport, Consumed, Counter, Device, DeviceReport, Doctor, Filled, Finding,
    HeldLine, HeldReport, JournalReport, LatencyBucket, LatencyReport, Level, ListenReport,
    MemoryReport, NodeCache, NodeHistory, NodeSpace, NodeStatus, Packet, ProcessorReport,
    ProgramsReport, RedisReport, SentBytes, Serve, Stage, Status, Unread, Verdict, VlanOffload,
    WaitingReport, WritesReport,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The value prints as the file, and the file reads as the value.
#[track_caller]
fn assert_golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, golden: &str) {
    let printed = serde_json::to_string_pretty(value).unwrap();
    assert_eq!(printed.trim(), golden.trim(), "printed:\n{printed}");
    assert_eq!(serde_json::from_str::<T>(golden).unwrap(), *value);
}

fn device(name: &str, mode: AttachMode, why: &str, vlan: VlanOffload) -> DeviceReport {
    DeviceReport {
        device: Device {
            name: name.to_owned(),
            ifindex: 2,
        },
        mode,
        why_not_native: why.to_owned(),
        vlan,
        gone: why.is_empty(),
    }
}

fn redis() -> RedisReport {
    RedisReport {
        address: "127.0.0.1:6379".to_owned(),
        port: 6379,
        feed_up: true,
        listens: vec![ListenReport {
            address: "0.0.0.0".to_owned(),
            whose: "unknown".to_owned(),
            why: Some("its process may not be looked at".to_owned()),
        }],
        feeds_made: 3,
        version: "7.0.15".to_owned(),
        role: "master".to_owned(),
        maxmemory: 1 << 30,
        maxmemory_policy: "allkeys-lru".to_owned(),
        timeout_s: 4,
        commands: 240,
        fast_off: vec!["hget: not there".to_owned()],
        renamed: vec!["FLUSHALL".to_owned()],
    }
}

fn cache() -> CacheReport {
    CacheReport {
        bytes: 5,
        sets: 6,
        set_bytes: 7,
        entries_max: 8,
        entries_estimate: 9,
        class_bytes: vec![64, 128],
        class_ways: vec![8, 4],
        fills: true,
        fills_waiting: 10,
        fills_in_flight: 11,
        filled: 12,
        hits: 15,
        misses: 16,
    }
}

fn waiting() -> WaitingReport {
    WaitingReport {
        connections: 1,
        packets: 2,
        bytes: 3,
        longest_ms: 4,
        ended: 5,
        left_out: 6,
    }
}

fn writes() -> WritesReport {
    WritesReport {
        open: true,
        opened: 1,
        conditions: vec![ConditionReport {
            condition: "role".to_owned(),
            met: false,
            means: "Redis is a master".to_owned(),
            why: "Redis is a replica".to_owned(),
        }],
        waiting: 2,
        waiting_ms: 3,
        ring_bytes: 4,
        drained: 5,
        drained_keys: 6,
        batches: 7,
        refused_batches: 8,
        refused_writes: 9,
        refused: vec!["key \"k\" of database 0: ERR no".to_owned()],
        journal: JournalReport {
            keeps: "late".to_owned(),
            sink: "daemon".to_owned(),
            folder: "/var/lib/erb/journal/eth0-6379".to_owned(),
            sound: false,
            why: "the disk is full".to_owned(),
            waiting: 1,
            segments: 2,
            written: 3,
            durable_lsn: 7,
            batches: 8,
            syncs: 9,
            wakes: 10,
            failures: 4,
            left_segments: 5,
            left: 6,
            left_what: "show them".to_owned(),
        },
    }
}

fn aside() -> AsideReport {
    AsideReport {
        level: 1,
        why: "answers save less than look-ups and fills cost".to_owned(),
        since_s: 2,
        sample_hit_ratio: Some(0.25),
        to_0: 3,
        to_1: 4,
        to_2: 5,
        to_3: 7,
        tries: 6,
        reports_of_read: true,
        unread: Unread::Untranslated,
    }
}

fn latency() -> LatencyReport {
    let bucket = |from_ns, below_ns, count| LatencyBucket {
        from_ns,
        below_ns,
        count,
    };
    LatencyReport {
        path: "hit".to_owned(),
        text: "from when to when".to_owned(),
        samples: 7,
        sum_ns: 68_719_478_000,
        p50_ns: Some(210),
        p99_ns: Some(68_719_476_736),
        buckets: vec![
            bucket(192, Some(224), 4),
            bucket(256, Some(320), 2),
            bucket(68_719_476_736, None, 1),
        ],
    }
}

fn processor() -> ProcessorReport {
    ProcessorReport {
        cpu: 1,
        answered: 2,
        up: 3,
        down: 4,
    }
}

fn memory() -> MemoryReport {
    MemoryReport {
        connection_bytes: 1,
        connections_max: 2,
        connections_total_bytes: 3,
        cache_entry_bytes_mean: 4,
        cache_total_bytes: 5,
    }
}

fn commands() -> CommandsReport {
    CommandsReport {
        since_s: Some(1),
        rows: vec![CommandLine {
            command: "get".to_owned(),
            answered: 2,
            to_redis: Some(3),
        }],
        overhead_ns: Some(4),
        cpu_saved_ms: 5,
    }
}

fn status() -> Status {
    Status {
        daemon: "running".to_owned(),
        pid: 1,
        run_dir: "/run/erb/eth0-4026531840".to_owned(),
        devices: vec![
            device("eth0", AttachMode::Native, "", VlanOffload::SwitchedOff(3)),
            device("lo", AttachMode::Tc, "no XDP", VlanOffload::WasOff),
            device("eth1", AttachMode::Tc, "asked for", VlanOffload::Fixed),
        ],
        egress_devices: vec![1, 2],
        mode: "read".to_owned(),
        programs: ProgramsReport {
            build: "b".to_owned(),
            layout: "l".to_owned(),
            whole: true,
            traced: true,
        },
        serving: true,
        not_serving: vec!["detach under way".to_owned()],
        notes: vec!["a note".to_owned()],
        gate_open: true,
        admitting: true,
        lease_left_ms: -5,
        fence: 13,
        redis: redis(),
        connections: ConnectionsReport {
            total: 1,
            new: 2,
            fast: 3,
            bypass: 4,
            old: 5,
            closing: 6,
            translated: 7,
            unacked: 8,
            unseen: 9,
        },
        held: HeldReport {
            total: 2,
            clients: vec![HeldLine {
                client: "10.0.0.2:40000".to_owned(),
                held_ms: 1500,
                all_keys: true,
                why: "the client does not read its replies".to_owned(),
            }],
        },
        waiting: waiting(),
        writes: writes(),
        hit_ratio: Some(0.75),
        commands: commands(),
        aside: aside(),
        cache: cache(),
        metrics_at: Some("http://127.0.0.1:9279/metrics".to_owned()),
        dashboard_at: Some("http://127.0.0.1:9279/".to_owned()),
        latency: vec![latency()],
        processors: vec![processor()],
        memory: memory(),
        counters: vec![Counter {
            name: "FAST_GET".to_owned(),
            kind: "answered".to_owned(),
            text: "GET answered with a value".to_owned(),
            count: 14,
        }],
    }
}

#[test]
fn status_is_as_written_down() {
    assert_golden(&status(), include_str!("status.json"));
}

#[test]
fn a_connection_is_as_written_down() {
    let line = ConnLine {
        client: "10.0.0.2:40000".to_owned(),
        server: "10.0.0.1:6379".to_owned(),
        state: "bypass".to_owned(),
        flags: 1,
        in_delta: 2,
        out_delta: 3,
        requests: 4,
        replies: 5,
        reason: "user".to_owned(),
        why: "its user may not do everything: app (~app:*)".to_owned(),
    };
    assert_golden(&line, include_str!("conn.json"));
}

#[test]
fn a_doctors_findings_are_as_written_down() {
    let finding = |level, subject: &str| Finding {
        level,
        subject: subject.to_owned(),
        text: "what was found".to_owned(),
    };
    let doctor = Doctor {
        errors: 1,
        findings: vec![
            finding(Level::Fine, "kernel"),
            finding(Level::Unknown, "firewall"),
            finding(Level::Warning, "eth0"),
            finding(Level::Error, "redis"),
        ],
        unknown: 1,
        warnings: 1,
    };
    assert_golden(&doctor, include_str!("doctor.json"));
}

#[test]
fn a_traced_packet_is_as_written_down() {
    let packet = Packet {
        time_us: 1,
        cpu: 2,
        stage: Stage::Ingress,
        direction: "in".into(),
        ifindex: 3,
        client: "10.0.0.2:40000".to_owned(),
        server: "10.0.0.1:6379".to_owned(),
        flags: "P.".to_owned(),
        seq: 4,
        ack: 5,
        payload: 6,
        command: Some("GET".to_owned()),
        key: Some("key".to_owned()),
        verdict: Verdict::UpTranslated,
        went_on: Some((7, 8)),
        reply: Some(9),
        reasons: vec![Because {
            name: "REFUSE_MISS".into(),
            count: 10,
            kind: "refused".into(),
            text: "key not in the cache".into(),
        }],
        reasons_more: 11,
    };
    assert_golden(&packet, include_str!("packet.json"));
}

#[test]
fn answers_of_hidden_commands_are_as_written_down() {
    let answers = (
        Filled {
            filled: 1,
            refused: 2,
        },
        Consumed {
            bytes: 3,
            bypass: true,
        },
    );
    assert_golden(&answers, include_str!("answers.json"));
}

#[test]
fn words_are_those_of_the_json() {
    for verdict in [
        Verdict::Answered,
        Verdict::Up,
        Verdict::UpTranslated,
        Verdict::ToTc,
        Verdict::Out,
        Verdict::OutTranslated,
        Verdict::Dropped,
        Verdict::SentAgain,
    ] {
        assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.word());
    }
    for stage in [Stage::Xdp, Stage::Ingress, Stage::Egress, Stage::Timer] {
        assert_eq!(serde_json::to_value(stage).unwrap(), stage.word());
    }
}

#[test]
fn node() {
    let counts = |of: &[(&str, u64)]| {
        of.iter()
            .map(|(name, it)| ((*name).to_owned(), *it))
            .collect()
    };
    let node = NodeStatus {
        version: "0.1.0".to_owned(),
        nqn: "nqn".to_owned(),
        address: "127.0.0.1:4420".to_owned(),
        up_ms: 1_500,
        connections: 2,
        failed_authentications: 3,
        keys: 4,
        index_bytes: 5,
        index_max_bytes: 50,
        space: NodeSpace {
            size_bytes: 6,
            used_bytes: 5,
            level: "short".to_owned(),
            is_full: true,
        },
        history: NodeHistory {
            whole_ms: Some(7_000),
            min_age_ms: 8_000,
            keep_deleted_ms: 9_000,
            min_count: 10,
            locked_ms: 11_000,
            roll_backs: 12,
            snapshots: 13,
        },
        cache: NodeCache {
            bytes: 14,
            hits: 15,
            misses: 16,
        },
        damaged: 17,
        is_read_only: true,
        requests: counts(&[("write", 20), ("get", 21), ("roll_back", 23)]),
        refused: counts(&[("full", 22)]),
    };
    assert_golden(&node, include_str!("node.json"));
}

#[test]
fn serve() {
    let one = |name: &str, count| [(name.to_owned(), count)].into();
    let serve = Serve {
        address: "127.0.0.1:8080".to_owned(),
        threads: 2,
        connections: 3,
        refused: 4,
        answers: [(200, 5), (404, 6)].into(),
        reset_changed: 7,
        reset_slow: 8,
        sent_bytes: SentBytes {
            zero_copy: 9,
            sendfile: 10,
            kernel_copied: 11,
            copied: one("small", 12),
        },
        kernel_copies: one("local_peer", 13),
        pinned_bytes: 14,
        pinned_bytes_peak: 15,
        guard: Some(16),
        lacks: Some("RLIMIT_MEMLOCK".to_owned()),
    };
    assert_golden(&serve, include_str!("serve.json"));
}
