// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the data path costs: instructions verified per program, bytes per connection and entry.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use erb_abi as abi;
use erb_packets::{budget, fixture};

/// Set to re-record `bpf/budget.txt` from the programs as they are now.
const RECORD: &str = "ERB_RECORD_BUDGET";

fn table_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../bpf/budget.txt")
}

/// The verifier's work, a measure of complexity that grows before anything breaks: its limit is a
/// million instructions. A tenth above the record is allowed, so that small changes need no new one.
#[test]
fn instructions_verified() {
    let found = fixture::with(|bench| bench.verified.clone());
    for (program, count) in &found {
        println!("{program:24} {count:8} instructions verified");
    }
    if std::env::var_os(RECORD).is_some() {
        std::fs::write(table_path(), budget::table(&found)).unwrap();
    }
    let text = std::fs::read_to_string(table_path()).expect("bpf/budget.txt");
    let allowed = budget::parse(&text);
    let mut wrong = String::new();
    for (program, count) in &found {
        match allowed.get(program) {
            None => writeln!(wrong, "{program} is not in bpf/budget.txt").unwrap(),
            Some(budget) if count > budget => {
                writeln!(wrong, "{program}: {count} verified, budget {budget}").unwrap();
            }
            Some(_) => {}
        }
    }
    let names: BTreeMap<_, _> = found.into_iter().collect();
    for program in allowed.keys().filter(|name| !names.contains_key(*name)) {
        writeln!(wrong, "{program} is in bpf/budget.txt but not loaded").unwrap();
    }
    assert!(
        wrong.is_empty(),
        "\n{wrong}set {RECORD}=1 once to record anew\n"
    );
}

/// Stated in docs/operating/boost.md; with a hash element's header, which the kernel adds: 81 cache lines.
const CONNECTION_BYTES_MAX: usize = 81 * 64 - 48;
/// 16 entries: on the average 341 bytes each.
const SET_BYTES: usize = 5456;

#[test]
fn sizes() {
    let connection = size_of::<abi::conn>() + size_of::<abi::conn_key>();
    println!(
        "connection: {connection} bytes, {} of them replay",
        abi::REPLAY_BYTES
    );
    assert!(
        connection <= CONNECTION_BYTES_MAX,
        "{connection} bytes per connection"
    );
    assert_eq!(
        size_of::<abi::cache_set>()
            + size_of::<abi::cache_large>()
            + size_of::<abi::cache_digest>(),
        SET_BYTES
    );
    let header = std::mem::offset_of!(abi::cache_set, slots);
    assert_eq!(header, 64, "a header of one cache line");
    println!("cache set: {SET_BYTES} bytes for {} entries", abi::WAYS);
    let table = connection * abi::CONNS_DEFAULT as usize;
    println!("{} connections: {} MiB", abi::CONNS_DEFAULT, table >> 20);
    assert!(table <= 81 << 20, "the usual table is bounded by 81 MiB");
    let classes = [
        (abi::CLASS0_BYTES, abi::CLASS0_WAYS),
        (abi::CLASS1_BYTES, abi::CLASS1_WAYS),
        (abi::CLASS2_BYTES, abi::CLASS2_WAYS),
        (abi::CLASS3_BYTES, abi::CLASS3_WAYS),
    ];
    for (bytes, ways) in classes {
        let room = bytes - abi::SLOT_HEADER_BYTES;
        println!("{ways} entries of {bytes} bytes: key and value up to {room} bytes");
    }
    assert_eq!(classes.iter().map(|(_, ways)| ways).sum::<u32>(), abi::WAYS);
}
