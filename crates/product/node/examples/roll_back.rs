// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a roll back of many keys takes until it is answered, which is when it is durable, beside two durable
//! writes in a row of the same disk. Both are interleaved; quote ratios.
//!
//! `cargo run --release -p erb-node --example roll_back FOLDER [keys] [times]`

mod common;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::{Measured, Raw};
use erb_kv::{Client, RollBack, Selector, Target, Url};

const VALUE_BYTES: usize = 8192;
const CLIENTS: u64 = 40;

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Gives every key a value: how long it took, and the last version.
fn fill(url: &Url, keys: u64, byte: u8) -> (Duration, u64) {
    let begun = Instant::now();
    let last = thread::scope(|scope| {
        let fills = (0..CLIENTS).map(|client| {
            scope.spawn(move || {
                let mut to = Client::connect(url).expect("the node answers");
                let value = vec![byte; VALUE_BYTES];
                let mine = (client..keys).step_by(CLIENTS as usize);
                let put = |number| to.put(&key(number), &value, None).expect("put");
                mine.map(put).max()
            })
        });
        let fills: Vec<_> = fills.collect();
        let last = fills
            .into_iter()
            .filter_map(|it| it.join().expect("no panic"));
        last.max()
    });
    (begun.elapsed(), last.expect("there are keys"))
}

fn told(what: &str, mut all: Vec<Duration>) {
    all.sort();
    let at =
        |share: usize| all[(all.len() * share / 100).min(all.len() - 1)].as_secs_f64() * 1000.0;
    println!("{what}: p50 {:.2} ms, p99 {:.2} ms", at(50), at(99));
}

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().expect("a folder on the disk to measure"));
    let keys = words
        .next()
        .and_then(|it| it.parse().ok())
        .unwrap_or(50_000);
    let times = words.next().and_then(|it| it.parse().ok()).unwrap_or(100);
    let node = Measured::start(&folder);
    let mut disk = Raw::new(&folder).expect("raw writes");
    let (took, good) = fill(&node.url, keys, b'g');
    println!(
        "{keys} keys of 8 KiB by {CLIENTS} clients: {:.1} s",
        took.as_secs_f64()
    );
    let (_, bad) = fill(&node.url, keys, b'b');
    let mut client = Client::connect(&node.url).expect("the node answers");
    let (mut rolled, mut raw) = (Vec::new(), Vec::new());
    for time in 0..times {
        let begun = Instant::now();
        let wanted = RollBack {
            prefix: Vec::new(),
            target: Target::Moment(if time % 2 == 0 { good } else { bad }),
            unless_written_since: None,
            is_dry_run: false,
        };
        client.roll_back(&wanted).expect("it is rolled back");
        rolled.push(begun.elapsed());
        let wanted = if time % 2 == 0 { b'g' } else { b'b' };
        let found = client.get(&key(time * 7919 % keys), Selector::Head);
        assert_eq!(found.expect("it is there").value, vec![wanted; VALUE_BYTES]);
        let begun = Instant::now();
        disk.write()
            .and_then(|()| disk.write())
            .expect("raw writes");
        raw.push(begun.elapsed());
    }
    told(&format!("all {keys} keys rolled back"), rolled);
    told("two durable writes of 4 KiB in a row", raw);
    drop(client);
    node.end();
}
