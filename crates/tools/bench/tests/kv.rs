// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench kv --paper`, tiny: the table is whole. What the figures are is no matter.

use clap::Parser;
use erb_bench::args::{BenchArgs, BenchCommand};
use erb_bench::kv::{KvReport, measure};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn measured(words: &str) -> KvReport {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let path = folder.path().to_str().expect("text");
    let line = format!("bench kv {path} {words} --db-bench none --json");
    let line = Line::parse_from(line.split_whitespace());
    let BenchCommand::Kv(args) = line.bench.command else {
        panic!("another command");
    };
    let report = measure(&args).expect("it measures");
    let left = std::fs::read_dir(folder.path()).expect("the folder");
    assert_eq!(left.count(), 0, "all that was made is gone");
    report
}

#[test]
fn a_tiny_run_of_the_papers_experiments_has_all_rows_and_their_bars() {
    let sizes = "--rounds 2 --pairs 2 --small-keys 50 --large-keys 200 --full-mib 100";
    let report = measured(&format!("--paper {sizes} --roll-back-keys 100 --times 3"));
    for what in [
        "fillseq, 8 KiB x 40, NVMe/TCP",
        "put of 100 B, 64 waiting, in process",
        "put of 100 B, one alone, in process, p50",
        "get of 8 KiB, 32 waiting, in process",
        "get of 8 KiB, one alone, NVMe/TCP, p50, over raw",
        "rewriting 50 keys (small), 8 KiB x 40, versions kept",
        "rewriting 200 keys (large), 8 KiB x 40, versions kept",
        "get of 8 KiB, 1000 back, NVMe/TCP, p50",
        "80 % full, overwritten at random, 8 KiB x 40, in process: bytes written, by those of values",
        "80 % full, overwritten at random, 8 KiB x 40, in process: put, p99",
        "80 % full, overwritten at random, 8 KiB x 40, in process: longest put, over the bare disk's longest write",
        "100 keys of 8 KiB rolled back, durable, p50",
        "100 keys of 8 KiB rolled back, durable, p99",
        "10 keys of 8 KiB rolled back, durable, p50",
        "4 keys over 1,000 versions rolled back, durable, p50",
        "first get behind a roll back, NVMe/TCP, p50, over one of a key that was not rolled back",
        "100 restores, 128 waiting, in process",
    ] {
        let mut rows = report.rows.iter().filter(|row| row.what == what);
        let row = rows.next().expect(what);
        assert!(row.erb.median.is_finite(), "{row:?}");
        assert!(row.bar.is_some(), "{row:?}");
    }
    for (size, bytes) in [("100 B", 100.0_f64), ("8 KiB", 8192.0)] {
        for depth in [1, 4, 64] {
            let what = format!(
                "put of {size}, {depth} under way, in process: bytes written, by those of values"
            );
            let mut rows = report.rows.iter().filter(|row| row.what == what);
            let amplified = rows.next().expect(&what).erb.median;
            // A put alone is a batch of its own, of 4 KiB at least.
            let least = if depth == 1 {
                (4096.0 / bytes).max(1.0)
            } else {
                1.0
            };
            assert!(amplified >= least, "{what}: {amplified}");
        }
    }
    assert!(report.rocksdb.starts_with("none: "), "{}", report.rocksdb);
    for row in &report.rows {
        let is_rocks = row.beside.as_ref().is_some_and(|it| it.contains("RocksDB"));
        assert_eq!(
            row.ratio.is_some(),
            row.beside.is_some() && !is_rocks,
            "{row:?}"
        );
    }
    let table = report.to_table();
    assert!(table.contains("not known"), "{table}");
    assert!(
        report.rows.iter().all(|row| table.contains(&row.what)),
        "{table}"
    );
}
