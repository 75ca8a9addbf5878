// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes of a disk that are nearly right: starts and repairs neither panic nor grow. `ERB_LONG=1` has them read 10^9 bytes.

use std::fs;

use erb_sim_store::amount;
use erb_sim_store::image::{MetBytes, changed};

/// Of one disk. Then another history makes the next one.
const BYTES_PER_DISK: u64 = 10_000_000;
const MIB: u64 = 1 << 20;
/// More than one start may leave behind in the allocator.
const GROWTH_BYTES: u64 = 64 * MIB;

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|it| it.parse::<u64>().ok());
    pages.expect("pages") * 4096
}

#[test]
fn a_start_that_reads_nearly_right_bytes_neither_panics_nor_grows() {
    let (mut all, mut seed, mut first_bytes) = (MetBytes::default(), 7000, None);
    while all.bytes < amount(200_000_000, 1_000_000_000) {
        let met = changed(seed, BYTES_PER_DISK).unwrap_or_else(|difference| panic!("{difference}"));
        all.bytes += met.bytes;
        all.opened += met.opened;
        all.refused += met.refused;
        all.sealed += met.sealed;
        seed += 1;
        let bytes = resident_bytes();
        let before = *first_bytes.get_or_insert(bytes);
        assert!(
            bytes < before + GROWTH_BYTES,
            "{before} bytes, then {bytes}"
        );
    }
    println!(
        "{all}; {} bytes of memory, {:?} behind the first disk",
        resident_bytes(),
        first_bytes
    );
    assert!(all.opened > 0 && all.refused > 0 && all.sealed > 0, "{all}");
}
