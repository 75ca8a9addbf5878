// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::io::Write;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: WorkloadArgs,
}

/// A command line.
pub fn args(words: &[&str]) -> Result<WorkloadArgs> {
    Ok(Cli::try_parse_from([&["workload"], words].concat())?.args)
}

/// The plan of a command line.
pub fn plan(words: &[&str]) -> Result<Plan> {
    Plan::of(&args(words)?)
}

fn refused(words: &[&str], reason: &str) {
    let error = plan(words).unwrap_err().to_string();
    assert!(error.contains(reason), "{words:?}: {error}");
}

#[test]
fn mixes_have_the_shares_and_keys_of_ycsb() {
    for (mix, reads, inserts, modifies) in [
        ("a", 0.5, 0.0, 0.0),
        ("b", 0.95, 0.0, 0.0),
        ("c", 1.0, 0.0, 0.0),
        ("d", 0.95, 0.05, 0.0),
        ("f", 0.5, 0.0, 0.5),
    ] {
        let plan = plan(&["--mix", mix]).unwrap();
        let Operations::Drawn(shares, draw) = &plan.operations else {
            panic!("a trace");
        };
        let wanted = Shares {
            reads,
            inserts,
            modifies,
            counts: false,
        };
        assert_eq!(*shares, wanted);
        assert_eq!(matches!(draw, Draw::Latest(_)), mix == "d", "{draw:?}");
        assert_eq!(plan.keys, 100_000);
    }
    let drawn = plan(&["--reads", "0.8", "--distribution", "uniform"]).unwrap();
    let strings = "of 100000 strings of 100 bytes";
    assert_eq!(drawn.label, format!("0.8 reads {strings}, uniform"));
    assert_eq!(
        plan(&[]).unwrap().label,
        format!("mix b {strings}, zipf 0.99")
    );
}

#[test]
fn each_connection_is_asked_twice_before_a_run() {
    let settled = |words: &[&str]| plan(words).unwrap().settled(1000).as_secs_f64();
    assert_eq!(settled(&[]), 0.5);
    assert_eq!(settled(&["--rate", "10000"]), 0.5);
    assert_eq!(settled(&["--rate", "500"]), 4.0);
    assert_eq!(settled(&["--rate", "0.1"]), 30.0);
}

#[test]
fn records_are_those_of_ycsb_unless_told_otherwise() {
    let hash = plan(&["--record", "hash"]).unwrap();
    let record = Record::Hash {
        fields: 10,
        bytes: 100,
        read: None,
    };
    assert_eq!((hash.record, hash.keys), (record, 10_000));
    assert_eq!(
        (hash.read_command(), hash.write_command()),
        ("HGETALL", "HSET")
    );
    assert_eq!(hash.notes, [""; 0]);
    let more = plan(&["--record", "hash", "--fields", "20"]).unwrap();
    assert!(
        more.notes[0].contains("20 fields takes 2578 bytes"),
        "{:?}",
        more.notes
    );
    let some = plan(&[
        "--record",
        "hash",
        "--field-bytes",
        "64",
        "--read-fields",
        "2",
    ])
    .unwrap();
    assert_eq!((some.read_command(), some.notes.len()), ("HMGET", 0));
    let all = plan(&["--record", "hash", "--read-fields", "10"]).unwrap();
    assert_eq!(all.read_command(), "HGETALL");
    let long = plan(&["--value-bytes", "1452"]).unwrap();
    assert!(long.notes[0].contains("1451"), "{:?}", long.notes);
    assert_eq!(plan(&["--value-bytes", "1451"]).unwrap().notes, [""; 0]);
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (words, reason) in [
        (&["--mix", "a", "--reads", "0.5"][..], "--reads"),
        (&["--mix", "a", "--trace", "x"], "--trace"),
        (&["--keys", "5", "--trace", "x"], "--trace"),
        (&["--series", "--warm-up", "1"], "--warm-up"),
        (&["--fields", "5"], "--record hash"),
        (
            &["--record", "hash", "--value-bytes", "50"],
            "--field-bytes",
        ),
        (&["--record", "hash", "--read-fields", "11"], "10 fields"),
        (&["--record", "hash", "--trace", "x"], "--record"),
        (&["--trace", "/nowhere/x"], "/nowhere/x"),
        (
            &["--distribution", "hotspot", "--hot-keys", "1"],
            "--hot-keys",
        ),
        (
            &[
                "--distribution",
                "hotspot",
                "--keys",
                "2",
                "--hot-keys",
                "0.1",
            ],
            "--hot-keys",
        ),
        (&["--value-bytes", "15"], "15"),
        (&["--rate", "0"], "0"),
        (&["--conns", "28001"], "28001"),
        (&["--io-threads", "1"], "1"),
        (&["--mix", "e"], "'e'"),
    ] {
        refused(words, reason);
    }
}

#[test]
fn a_trace_s_keys_are_loaded_as_it_first_writes_them() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "w a 300 0\nr b 10\nw c 3 2000").unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let traced = plan(&["--trace", &path, "--value-bytes", "50"]).unwrap();
    assert_eq!((traced.keys, traced.cold, traced.timed()), (3, true, true));
    assert!(
        traced.notes[0].contains("1 writes of less than 16 bytes"),
        "{:?}",
        traced.notes
    );
    for (key, name, bytes) in [(0, "a", 300), (1, "b", 50), (2, "c", 16)] {
        let stored = traced.store(key).get_packed_command();
        let begin = format!("*3\r\n$3\r\nSET\r\n$1\r\n{name}\r\n${bytes}\r\n");
        assert!(stored.starts_with(begin.as_bytes()), "{key}");
        let value = &stored[begin.len()..stored.len() - 2];
        assert_eq!(value::version_of(value, key.into()).unwrap(), LOADED);
    }
    assert!(matches!(
        traced.pace(1, 2),
        Pace::Times {
            first: 1,
            clients: 2,
            ..
        }
    ));
    let rated = plan(&["--trace", &path, "--rate", "100"]).unwrap();
    assert!(matches!(rated.pace(0, 1), Pace::Even { .. }));
}
