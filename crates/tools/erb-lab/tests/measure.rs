// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Short measurements on real namespaces and a real redis-server. They need root and show that the
//! numbers are of real, right replies; how big the numbers are is not tested. Runs are short: one in which others had
//! the processors all the time has measured nothing, and is repeated.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use erb_steady::{too_slow, wait, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_erb-lab");

/// Length of the first short run, in seconds.
const SHORT_S: f64 = 0.3;
/// How long a run is asked for again that has measured nothing; one takes some three seconds.
const ASKED_AGAIN: Duration = Duration::from_secs(15);
/// What a run says of itself in which the server answered nothing.
const NOTHING: [&str; 3] = [
    "no request was answered",
    "no SET was answered",
    "no operation was done",
];
/// Operations of a mix among which is one of each kind.
const OPERATIONS_MIN: u64 = 100;

/// `erb-lab bench` with these words.
fn bench(words: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("bench")
        .args(words)
        .args(["--json", "--runs", "1"])
        .output()
        .expect("erb-lab did not start")
}

/// What `erb-lab bench` reports with these words, which are right; an error if it has measured nothing.
fn measured(words: &[&str]) -> Result<Value, String> {
    let output = bench(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    if NOTHING.iter().any(|nothing| errors.contains(nothing)) {
        return Err(errors.into_owned());
    }
    assert!(output.status.success(), "{words:?} failed: {errors}");
    Ok(serde_json::from_slice(&output.stdout).expect("no JSON on standard output"))
}

/// The report of a short run that is `good`; each run is twice as long as the one before.
fn short(words: &[&str], good: impl Fn(&Value) -> bool) -> Value {
    let mut seconds = SHORT_S;
    wait(ASKED_AGAIN, || {
        let time = seconds.to_string();
        seconds *= 2.0;
        let report = measured(&[words, &["--seconds", &time]].concat())?;
        match good(&report) {
            true => Ok(report),
            false => Err(format!("few replies, or some came late: {report:#}")),
        }
    })
}

/// Of a run in which no connection stood still for half a second, as all do while others have the processors. Every
/// run's replies must be right, also where it is repeated.
fn capacity(words: &[&str]) -> Value {
    let common = ["capacity", "--keys", "1000"];
    short(&[&common[..], words].concat(), |report| {
        let servers = servers_of(report);
        for server in &servers {
            assert_eq!(server["mismatches"], 0, "{server:#}");
        }
        servers.iter().all(|server| server["stalled_conns"] == 0)
    })
}

/// Of a report of several servers, or of a single one.
fn servers_of(report: &Value) -> Vec<&Value> {
    match report["servers"].as_array() {
        Some(servers) => servers.iter().collect(),
        None => vec![report],
    }
}

/// Namespaces that the bench with this process id has made and not removed.
fn namespaces_of(pid: u32) -> Vec<String> {
    let prefix = format!("erb-bench-{pid}-");
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn echo_answers_every_connection_rightly() {
    let report = capacity(&["--server", "echo", "--conns", "10"]);
    assert_eq!(report["server"], "echo");
    assert!(report["runs"][0]["requests"].as_u64().unwrap() > 0);
    assert!(report["server_cpu_ns_per_request"].as_f64().unwrap() > 0.0);
    // Nothing of it reached Redis: the responder was really in front.
    assert_eq!(report["runs"][0]["answered_by_redis"], 0.0);
}

#[test]
fn redis_answers_with_the_values_of_the_keys() {
    let report = capacity(&["--server", "redis", "--conns", "10", "--value-size", "1400"]);
    assert_eq!(report["mismatches"], 0, "{report:#}");
    let run = &report["runs"][0];
    assert!(run["requests"].as_u64().unwrap() > 0, "{report:#}");
    // Redis's own count and the generator's are the same requests.
    assert_eq!(run["answered_by_redis"], 1.0, "{report:#}");
}

#[test]
fn mget_and_hgetall_are_answered_rightly_by_redis_and_the_responder() {
    for (op, reply_bytes) in [("mget", 1085), ("hgetall", 335)] {
        let report = capacity(&["--op", op, "--server", "redis,echo", "--conns", "10"]);
        let servers = servers_of(&report);
        for server in &servers {
            assert_eq!(server["op"], op);
            assert_eq!(server["reply_bytes"], reply_bytes);
        }
        assert_eq!(servers[0]["runs"][0]["answered_by_redis"], 1.0);
        assert_eq!(servers[1]["runs"][0]["answered_by_redis"], 0.0);
    }
}

#[test]
fn options_that_do_not_go_together_are_refused_before_anything_is_made() {
    let child = start(&["--server", "redis", "--op", "get", "--batch", "3"]);
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("use --op mget"),
        "{text}"
    );
    assert_eq!(namespaces_of(pid), [""; 0]);
}

#[test]
fn an_ordinary_client_is_answered_by_redis_over_lo_and_veth() {
    for (over, op, cores) in [
        ("lo", "get", "1"),
        ("veth", "mget", "1"),
        ("lo", "hgetall", "0,1"),
    ] {
        let words = ["clients", "--server", "redis", "--keys", "100"];
        let how = ["--over", over, "--op", op, "--client-core", cores];
        let report = short(&[&words[..], &how].concat(), |_| true);
        let server = &report["servers"][0];
        assert_eq!((&server["over"], &server["op"]), (&over.into(), &op.into()));
        let run = &server["runs"][0];
        assert_eq!(run["answered_by_redis"], 1.0, "{report:#}");
        let figure = |name: &str| run[name].as_f64().unwrap();
        assert!(figure("server_ns_per_request") > 0.0 && figure("client_ns_per_request") > 0.0);
        assert!(figure("p50_us") > 0.0 && figure("p50_us") <= figure("p99_us"));
    }
}

/// Each key holds what was written to it last, whichever way the records went.
#[test]
fn made_up_writes_are_drained_whole() {
    for way in [
        &["--way", "tcp", "--rings", "3", "--batch-us", "3000"][..],
        &["--way", "unix", "--rate", "20000", "--aof", "off"],
    ] {
        let cases = "set-16,drain,drain-zipf-ex,drain-untracked";
        let words = ["drain", "--keys", "3000", "--value-size", "300"];
        let words = [&words[..], &["--case", cases], way].concat();
        let report = short(&words, |_| true);
        let cases = report["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 4);
        for case in cases {
            let run = &case["runs"][0];
            assert!(run["writes"].as_u64().unwrap() > 0, "{case:#}");
            assert!(run["redis_ns"].as_f64().unwrap() > 0.0, "{case:#}");
            if case["case"] == "set-16" {
                continue;
            }
            let drained = &run["drained"];
            assert_eq!(drained["mismatches"], 0, "{case:#}");
            assert!(run["drain_ns"].as_f64().unwrap() > 0.0, "{case:#}");
            assert!(drained["coalescing"].as_f64().unwrap() >= 1.0, "{case:#}");
        }
    }
}

#[test]
fn servers_that_ordinary_clients_cannot_use_are_refused() {
    for (server, word) in [("echo", "erb bench capacity"), ("erb-tc", "--server erb")] {
        let output = bench(&["clients", "--server", server]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(word.split(' ').next_back().unwrap()),
            "{text}"
        );
    }
}

/// The only run of the only server.
fn only_run(report: &Value) -> &Value {
    &report["servers"][0]["runs"][0]
}

fn workload_run(words: &[&str]) -> Value {
    let words = [&["workload", "--server", "redis"], words].concat();
    let report = wait(ASKED_AGAIN, || measured(&words));
    only_run(&report).clone()
}

#[test]
fn every_mix_and_record_is_answered_rightly_by_redis() {
    for (options, operations) in [
        ("--mix a --keys 500 --conns 10", ["read", "update"]),
        ("--mix d --keys 500 --over lo", ["insert", "read"]),
        (
            "--mix f --keys 10 --distribution hotspot --hot-keys 0.1",
            ["read", "read-modify-write"],
        ),
        (
            "--mix a --keys 50 --record hash --conns 2000 --threads 4",
            ["read", "update"],
        ),
        (
            "--mix d --keys 50 --record hash --read-fields 3",
            ["insert", "read"],
        ),
        (
            "--reads 0.1 --keys 1 --value-bytes 100000",
            ["read", "update"],
        ),
    ] {
        let words = ["workload", "--server", "redis", "--warm-up", "0"];
        let split: Vec<&str> = options.split(' ').collect();
        let report = short(&[&words[..], &split].concat(), |report| {
            only_run(report)["operations"].as_u64().unwrap() >= OPERATIONS_MIN
        });
        let run = only_run(&report);
        let latencies = run["latencies"].as_object().unwrap();
        assert_eq!(
            latencies.keys().collect::<Vec<_>>(),
            operations,
            "{options}"
        );
        for latency in latencies.values() {
            let at = |name: &str| latency[name].as_f64().unwrap();
            assert!(
                0.0 < at("p50_us") && at("p50_us") <= at("p99_us"),
                "{run:#}"
            );
            assert!(
                at("p99_us") <= at("p999_us") && at("p999_us") <= at("max_us"),
                "{run:#}"
            );
        }
        // Redis's own count and the clients' are the same requests.
        assert_eq!(run["reads_by_redis"], 1.0, "{run:#}");
    }
}

#[test]
fn a_rate_is_offered_and_what_redis_does_not_keep_up_with_is_told() {
    let words = [
        "--keys",
        "100",
        "--seconds",
        "0.5",
        "--warm-up",
        "0",
        "--rate",
    ];
    let run = workload_run(&[&words[..], &["1000"]].concat());
    let offered = &run["offered"];
    assert_eq!(offered["rate"], 1000.0);
    let all = run["operations"].as_f64().unwrap() / (1.0 - offered["unsent"].as_f64().unwrap());
    assert!((499.0..=501.0).contains(&all), "{run:#}");
    let run = workload_run(&[&words[..], &["10000000"]].concat());
    assert!(run["offered"]["unsent"].as_f64().unwrap() > 0.5, "{run:#}");
    let p50 = run["latencies"]["read"]["p50_us"].as_f64().unwrap();
    if p50 <= 100_000.0 {
        too_slow(format_args!("of half a second nearly half: {run:#}"));
    }
}

#[test]
fn a_trace_is_replayed_once_and_at_its_times() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let line = |number| match number % 3 {
        0 => format!("w key:{} {}", number % 7, 16 + number),
        _ => format!("r key:{}", number % 7),
    };
    for (timed, least_s) in [(false, 0.0), (true, 0.29)] {
        let lines = (0..300).map(|number| match timed {
            true => format!("{} {}\n", line(number), number * 1000),
            false => format!("{}\n", line(number)),
        });
        std::fs::write(path, lines.collect::<String>()).unwrap();
        let run = workload_run(&["--trace", path, "--threads", "2"]);
        assert_eq!(run["latencies"]["read"]["count"], 200, "{run:#}");
        assert_eq!(run["latencies"]["update"]["count"], 100, "{run:#}");
        let seconds = run["seconds"].as_f64().unwrap();
        assert!(seconds >= least_s, "{run:#}");
        assert_eq!(run["offered"].is_object(), timed);
        if seconds >= 5.0 {
            too_slow(format_args!("{run:#}"));
        }
    }
}

#[test]
fn workloads_that_cannot_be_measured_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, "r a\nw a\n").unwrap();
    for (words, said) in [
        (
            &["--trace", path][..],
            "line 2, `w a`: it does not say how many bytes",
        ),
        (&["--server", "redis-io"], "redis-io has 1 threads"),
        (&["--server", "erb-tc", "--over", "lo"], "use --server erb"),
        (&["--client-core", "900"], "no processor 900"),
        (
            &["--threads", "3", "--conns", "2"],
            "3 threads for 2 connections",
        ),
    ] {
        let output = bench(&[&["workload"], words].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(said), "{text}");
    }
}

fn start(arguments: &[&str]) -> Child {
    start_program(Path::new(PROGRAM), arguments)
}

fn start_program(program: &Path, arguments: &[&str]) -> Child {
    Command::new(program)
        .args(["bench", "capacity"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("erb-lab did not start")
}

#[test]
fn erb_without_erb_is_a_clear_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("erb-lab");
    std::fs::copy(PROGRAM, &alone).unwrap();
    let child = start_program(&alone, &["--server", "erb", "--keys", "10", "--conns", "1"]);
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("put it beside erb-lab"),
        "{text}"
    );
    assert_eq!(namespaces_of(pid), [""; 0]);
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let child = start(&[
        "--server",
        "redis",
        "--keys",
        "10",
        "--conns",
        "1",
        "--seconds",
        "60",
    ]);
    let pid = child.id();
    wait_until(
        Duration::from_secs(30),
        "it has made its namespaces",
        || namespaces_of(pid).len() >= 2,
    );
    sleep(Duration::from_millis(300));
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("interrupted by a signal"),
        "{text}"
    );
    assert_eq!(namespaces_of(pid), [""; 0]);
}
