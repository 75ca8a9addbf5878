// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All tables of rows, in one process: the programs are loaded once.

mod absent;
mod absorb;
mod acks;
mod admission;
mod answers;
mod costs;
mod egress;
mod foreseen;
mod front;
mod fuzz;
mod hashes;
mod held;
mod link;
mod live;
mod more;
mod odd;
mod order;
mod refusals;
mod scanners;
mod splice;
mod stream;
mod table;
mod tc;
mod through;
mod touched;

use erb_packets::scene::Scene;
pub use erb_wire::resp::bulk;

/// GET of the key that [`fast`] fills.
pub const GET_KEY: &[u8] = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
/// PING as an array.
pub const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
/// A write of that key.
pub const SET_KEY: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n1\r\n";
/// A write of another.
pub const SET_OTHER: &[u8] = b"*3\r\n$3\r\nSET\r\n$5\r\nother\r\n$1\r\n1\r\n";

/// A FAST, quiescent connection; `key` = `value` is in the cache.
pub fn fast(scene: &mut Scene) {
    scene.bench.fill(b"key", b"value", 0);
    scene.make_fast();
}

/// As [`fast`], and a PING was answered: 14 bytes consumed, 7 inserted.
pub fn spliced(scene: &mut Scene) {
    scene.bench.fill(b"key", b"value", 0);
    scene.make_spliced();
}

/// A GET command.
pub fn get(key: &str) -> Vec<u8> {
    erb_wire::resp::command(&[b"GET", key.as_bytes()])
}

/// The seed of a random test: `ERB_SEED`, else the clock's; printed, so that a failure repeats.
pub fn seed() -> u64 {
    let seed = std::env::var("ERB_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("ERB_SEED={seed}");
    seed
}
