// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways of the cache as they are read back.

use erb_abi as abi;
use erb_sim::check::cache::{entry, way_bytes};

/// A way of class 0 with a key and a value.
fn slot(key: &[u8], value: &[u8], expiry_ms: Option<u64>) -> Vec<u8> {
    let mut bytes = vec![0; abi::CLASS0_BYTES as usize];
    bytes[0] = 9;
    bytes[4..6].copy_from_slice(&(value.len() as u16).to_le_bytes());
    bytes[6..8].copy_from_slice(&(key.len() as u16).to_le_bytes());
    bytes[12..12 + value.len()].copy_from_slice(value);
    bytes[12 + value.len()..12 + value.len() + key.len()].copy_from_slice(key);
    if let Some(expiry) = expiry_ms {
        bytes[8] = 1;
        let end = bytes.len();
        bytes[end - 8..].copy_from_slice(&expiry.to_le_bytes());
    }
    bytes
}

#[test]
fn ways_are_read_back() {
    let bytes = slot(b"key", b"value", Some(77));
    let found = entry(&bytes).unwrap();
    assert_eq!((found.key, found.value), (&b"key"[..], &b"value"[..]));
    assert_eq!((found.epoch, found.expiry_ms), (9, Some(77)));
}

#[test]
fn ways_that_cannot_be_are_found() {
    let mut long = slot(b"key", b"value", None);
    long[4..6].copy_from_slice(&114_u16.to_le_bytes());
    assert!(entry(&long).is_err(), "value and key do not fit");
    let mut dirty = slot(b"key", b"value", None);
    dirty[12 + 5 + 3] = 1;
    assert!(entry(&dirty).is_err(), "padding");
    let full = slot(b"key", &[b'v'; 104], None);
    assert!(entry(&full).is_ok());
    let expiring = slot(b"key", &[b'v'; 104], Some(1));
    assert!(entry(&expiring).is_err(), "the expiry lies over the key");
}

#[test]
fn every_way_has_its_place() {
    // SAFETY: plain data for which all zeros are a value.
    let (set, large): (abi::cache_set, abi::cache_large) = unsafe { std::mem::zeroed() };
    let sizes: Vec<usize> = (0..16)
        .map(|way| way_bytes(&set, &large, way).len())
        .collect();
    let mut expected = vec![128; 8];
    expected.extend([256; 5]);
    expected.extend([512; 2]);
    expected.push(2048);
    assert_eq!(sizes, expected);
    let last = way_bytes(&set, &large, 15).as_ptr_range();
    assert_eq!(last.end, large.slots.as_ptr_range().end);
}
