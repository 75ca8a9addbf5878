// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timer and sweep over a table in use, on the kernel at hand: each run is short, whatever the table's
//! size, and all of them together see each entry once. `ERB_LONG=1`: a table of 262,144.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_abi::{self as abi, ControlPlane as _};
use erb_datapath::{CacheSize, Datapath, LoadOptions, Sizes, TableSize};
use erb_packets::fixture::{conn_key, key_bytes, private_bpffs};
use erb_packets::frame::{Family, PORT};
use erb_steady::{scaled, too_slow};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sched::{CloneFlags, unshare};

const LOOPBACK: u32 = 1;
/// Entries of the smaller table, an eighth of those of the larger one, or less.
const FEW: u32 = 2_048;
/// A run over a piece of the larger table may take so many times what one over the smaller takes: its entries are in no
/// cache of the processor's.
const TIMES_MAX: u32 = 5;

/// A data path in namespaces that end with this thread.
fn loaded(connections: u32) -> (Datapath, PathBuf) {
    unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
    let root = private_bpffs().expect("root is needed").join("erb");
    fs::create_dir(&root).unwrap();
    let options = LoadOptions {
        sizes: Sizes {
            cache: CacheSize::from_bytes(4 << 20, u64::MAX).unwrap(),
            table: TableSize::of(connections, u64::MAX).unwrap(),
            log_rings: 0,
        },
        sink: erb_datapath::JournalSink::default(),
        port: PORT,
        devices: vec![LOOPBACK],
        hash: abi::hash_secret::of_seed(1),
    };
    erb_datapath::load(&root, &options).unwrap();
    (Datapath::open(&root, LOOPBACK).unwrap(), root)
}

fn bytes_of<T>(value: &T) -> &[u8] {
    // SAFETY: plain integers, seen as bytes for as long as the value lives; the kernel copies them.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Entries of connections that have no socket, with unacknowledged answers, each in its place.
fn fill(root: &Path, connections: u32) {
    let map = |name: &str| MapHandle::from_pinned_path(root.join(name)).unwrap();
    let (conns, places, lines) = (map("erb_conns"), map("erb_places"), map("erb_place_lines"));
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let now_ns = Duration::from(now).as_nanos() as u64;
    for number in 0..connections {
        let mut key = conn_key(Family::V4, (number & 0xffff) as u16);
        key.client_addr[13] = (number >> 16) as u8;
        let entry = abi::conn {
            key,
            place: number + 1,
            called: 1 << abi::PLACES_TIMER,
            family: 4,
            out_delta: 100,
            sent_ns: now_ns,
            tries: 15, // due after two minutes
            ..Default::default()
        };
        let place = abi::place {
            key,
            ..Default::default()
        };
        conns
            .update(&key_bytes(&key), bytes_of(&entry), MapFlags::ANY)
            .unwrap();
        places
            .update(&number.to_ne_bytes(), bytes_of(&place), MapFlags::ANY)
            .unwrap();
    }
    let mut line = abi::place_line::default();
    line.on[abi::PLACES_USED as usize] = [1; abi::PLACE_LINE as usize];
    line.on[abi::PLACES_TIMER as usize] = [1; abi::PLACE_LINE as usize];
    for index in 0..connections / abi::PLACE_LINE {
        lines
            .update(&index.to_ne_bytes(), bytes_of(&line), MapFlags::ANY)
            .unwrap();
    }
}

/// Runs `work` for each piece of the list; prints and returns its median time.
fn pieces(
    dp: &Datapath,
    what: &str,
    list: abi::place_list,
    mut work: impl FnMut(&[u32]),
) -> Duration {
    let mut times = Vec::new();
    let mut from = 1;
    loop {
        let places = dp.places(list, from, abi::WALK_PLACES as usize);
        let Some(last) = places.last() else { break };
        from = last + 1;
        let began = Instant::now();
        work(&places);
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    let sum: Duration = times.iter().sum();
    println!(
        "{what}: {} runs, {median:?} each (at most {most:?}), {sum:?} in all",
        times.len()
    );
    median
}

/// Walks a table of so many entries; the median time of a run of the timer, and of one of the sweep.
fn walked(connections: u32) -> [Duration; 2] {
    let (dp, root) = loaded(connections);
    assert!(dp.places(abi::PLACES_USED, 1, 1).is_empty());
    assert_eq!(dp.walk().unwrap().conns, 0);
    fill(&root, connections);
    println!("{connections} entries");
    let mut least = [Duration::MAX; 2];
    for _ in 0..2 {
        let mut unacked = 0;
        let timer = pieces(&dp, "timer", abi::PLACES_TIMER, |places| {
            unacked += dp.tick(places).unwrap();
        });
        assert_eq!(unacked, connections, "and they stay on the list");
        let mut conns = 0;
        let sweep = pieces(&dp, "sweep", abi::PLACES_USED, |places| {
            conns += dp.sweep(places).unwrap().conns;
        });
        assert_eq!(conns, connections);
        least = [least[0].min(timer), least[1].min(sweep)];
    }
    let began = Instant::now();
    assert!(dp.places(abi::PLACES_HELD, 1, 1).is_empty());
    println!("reading an empty list: {:?}", began.elapsed());
    least
}

#[test]
fn runs_are_short_and_see_each_entry_once() {
    // Each in namespaces that end with its thread.
    let walk = |connections| {
        std::thread::spawn(move || walked(connections))
            .join()
            .unwrap()
    };
    let (few, many) = (walk(FEW), walk(scaled(16_384, 262_144)));
    for (few, many) in few.into_iter().zip(many) {
        if many > TIMES_MAX * few {
            too_slow(format_args!(
                "a run takes {many:?} in the larger table, {few:?} in the smaller"
            ));
        }
    }
}
