// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast a node puts and gets values of 8 KiB, beside the same disk without it. Rounds are interleaved; quote ratios.
//!
//! `cargo run --release -p erb-node --example pace FOLDER [clients] [seconds]`

mod common;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Measured, Raw};
use erb_kv::{Client, Selector, Url};

const VALUE_BYTES: usize = 8192;
const KEYS: u64 = 5000;
const ROUNDS: usize = 5;

/// Puts, or gets, of so many clients: how many a second.
fn pace(url: &Url, clients: u64, time: Duration, puts: bool) -> f64 {
    let done = AtomicU64::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for number in 0..clients {
            let done = &done;
            scope.spawn(move || {
                let mut client = Client::connect(url).expect("the node answers");
                let value = vec![number as u8; VALUE_BYTES];
                for round in 0_u64.. {
                    if begun.elapsed() > time {
                        return;
                    }
                    let key = ((number * 7919 + round) % KEYS).to_le_bytes();
                    if puts {
                        client.put(&key, &value, None).expect("put");
                    } else if let Err(error) = client.get(&key, Selector::Head) {
                        assert!(error.status().is_some(), "{error}");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

/// Durable writes of a block, one after the other: how many a second.
fn raw(raw: &mut Raw, time: Duration) -> io::Result<f64> {
    let (begun, mut count) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        raw.write()?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().expect("a folder on the disk to measure"));
    let clients = words.next().and_then(|it| it.parse().ok()).unwrap_or(40);
    let seconds = words.next().and_then(|it| it.parse().ok()).unwrap_or(2);
    let time = Duration::from_secs(seconds);
    let node = Measured::start(&folder);
    let mut disk = Raw::new(&folder).expect("raw writes");
    let mut all: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        all[0].push(raw(&mut disk, time).expect("raw writes"));
        all[1].push(pace(&node.url, 1, time, true));
        all[2].push(pace(&node.url, clients, time, true));
        all[3].push(pace(&node.url, clients, time, false));
    }
    let [raw, one, puts, gets] = all.map(median);
    println!("durable writes of 4 KiB, raw, one at a time: {raw:.0} /s");
    println!(
        "puts of 8 KiB, 1 client: {one:.0} /s, {:.2} of raw",
        one / raw
    );
    println!(
        "puts of 8 KiB, {clients} clients: {puts:.0} /s, {:.2} of raw",
        puts / raw
    );
    println!("gets of 8 KiB, {clients} clients: {gets:.0} /s");
    node.end();
}
