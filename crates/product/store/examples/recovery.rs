// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a shard's index takes to be there again: keys as a checkpoint brings them, then as a log does.
//!
//! `cargo run --release -p erb-store --example recovery [keys]`

use std::time::Instant;

use erb_store::layout::Layout;
use erb_store::mistake::Sound;
use erb_store::{Held, Key, KeyHasher, Place, Retention, Saved, Version, Versions};

const KEYS: u64 = 1_000_000;
const RECORD_BYTES: u64 = 128;

fn versions(layout: Layout) -> Versions<Sound> {
    let hasher = KeyHasher::new([1, 2]);
    let mut versions = Versions::new(hasher, Retention::new(1), usize::MAX, Sound);
    versions.count_segments(layout);
    versions
}

fn held(layout: &Layout, number: u64) -> Held {
    let address = layout.segment_at(0) + number * RECORD_BYTES;
    Held {
        version: Version::new(number + 1),
        place: Place::written(address, RECORD_BYTES, false),
    }
}

fn said(what: &str, begun: Instant, keys: u64) {
    let elapsed = begun.elapsed();
    println!(
        "{what}: {:.2} s, {:.0} ns a key",
        elapsed.as_secs_f64(),
        elapsed.as_nanos() as f64 / keys as f64
    );
}

fn main() {
    let keys = std::env::args().nth(1).and_then(|keys| keys.parse().ok());
    let keys: u64 = keys.unwrap_or(KEYS);
    let layout = Layout::new(64 << 30, 1).expect("a store of 64 GiB can be");
    let mut first = versions(layout);
    let begun = Instant::now();
    for number in 0..keys {
        let bytes = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let key = Key {
            namespace: 1,
            bytes: &bytes,
        };
        let applied = first.apply(key, held(&layout, number));
        applied.expect("there is room");
    }
    said("as a log brings them", begun, keys);
    let bytes = first.memory_bytes() as f64 / keys as f64;
    println!("{bytes:.1} bytes a key");
    let mut saved: Vec<Saved> = Vec::new();
    let (mut from, begun) = (Some(0), Instant::now());
    while let Some(hash) = from {
        let (slice, next) = first.save(hash);
        saved.extend(slice);
        from = next;
    }
    said("saved", begun, keys);
    drop(first);
    let mut second = versions(layout);
    let begun = Instant::now();
    saved.iter().for_each(|key| second.load(key));
    said("as a checkpoint brings them", begun, keys);
    assert_eq!(second.keys_len() as u64, keys);
}
