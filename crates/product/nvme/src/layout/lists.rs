// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of keys and versions. The layouts stand at the head of `layout/mod.rs`.

use super::{HEAD_BYTES, VERSION_ROW_BYTES, head_of, write_head};
use crate::backend::{Head, Listed};
use crate::bytes::{pad_to, put_u16, put_u32, put_u64, take, u16_at, u32_at, u64_at};

const PAGE_ROW_BYTES: usize = 16;

/// Bytes of a row of the standard's list.
#[must_use]
pub fn list_row_bytes(key: &[u8]) -> usize {
    (2 + key.len()).next_multiple_of(4)
}

/// The standard's list.
#[must_use]
pub fn list_bytes(keys: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    put_u32(&mut bytes, 0, count(keys.len()));
    for key in keys {
        bytes.extend_from_slice(&length(key.len()).to_le_bytes());
        bytes.extend_from_slice(key);
        pad_to(&mut bytes, 4);
    }
    bytes
}

/// The keys of the standard's list.
#[must_use]
pub fn list_of(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let rest = &mut bytes;
    let count = u32_at(take(rest, 4)?, 0);
    let mut keys = Vec::new();
    for _ in 0..count {
        let length = usize::from(u16_at(take(rest, 2)?, 0));
        keys.push(take(rest, length)?.to_vec());
        take(rest, (2 + length).next_multiple_of(4) - 2 - length)?;
    }
    Some(keys)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("fewer rows than bytes of a transfer")
}

fn length(key_bytes: usize) -> u16 {
    u16::try_from(key_bytes).expect("a key has at most 1,024 bytes")
}

/// A list of versions.
#[must_use]
pub fn versions_bytes(rows: &[Head], has_more: bool, floor: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES + rows.len() * VERSION_ROW_BYTES];
    put_u32(&mut bytes, 0, count(rows.len()));
    put_u32(&mut bytes, 4, u32::from(has_more));
    put_u64(&mut bytes, 8, floor);
    let places = bytes[HEAD_BYTES..].chunks_exact_mut(VERSION_ROW_BYTES);
    for (place, row) in places.zip(rows) {
        write_head(place, row);
    }
    bytes
}

/// A list of versions: rows, whether there are more, the floor.
#[must_use]
pub fn versions_of(bytes: &[u8]) -> Option<(Vec<Head>, bool, u64)> {
    let (head, rows) = bytes.split_at_checked(HEAD_BYTES)?;
    let count = u32_at(head, 0) as usize;
    let rows = rows.chunks_exact(VERSION_ROW_BYTES).take(count);
    let rows: Option<Vec<Head>> = rows.map(head_of).collect();
    let rows = rows.filter(|rows| rows.len() == count)?;
    Some((rows, u32_at(head, 4) != 0, u64_at(head, 8)))
}

/// Bytes of a key's row in a page.
#[must_use]
pub fn page_row_bytes(key: &[u8]) -> usize {
    (PAGE_ROW_BYTES + key.len()).next_multiple_of(8)
}

/// A page of keys.
#[must_use]
pub fn page_bytes(rows: &[Listed], cursor: u64, cut: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    put_u32(&mut bytes, 0, count(rows.len()));
    put_u32(&mut bytes, 4, u32::from(cursor != 0));
    put_u64(&mut bytes, 8, cursor);
    put_u64(&mut bytes, 16, cut);
    for row in rows {
        let mut head = [0; PAGE_ROW_BYTES];
        put_u64(&mut head, 0, row.version);
        put_u32(&mut head, 8, row.bytes);
        put_u16(&mut head, 12, length(row.key.len()));
        put_u16(&mut head, 14, row.flags);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&row.key);
        pad_to(&mut bytes, 8);
    }
    bytes
}

/// A page of keys: rows, the next cursor (0: none), the cut.
#[must_use]
pub fn page_of(mut bytes: &[u8]) -> Option<(Vec<Listed>, u64, u64)> {
    let rest = &mut bytes;
    let head = take(rest, HEAD_BYTES)?;
    let mut rows = Vec::new();
    for _ in 0..u32_at(head, 0) {
        let row = take(rest, PAGE_ROW_BYTES)?;
        let key_bytes = usize::from(u16_at(row, 12));
        let key = take(rest, key_bytes)?.to_vec();
        take(rest, page_row_bytes(&key) - PAGE_ROW_BYTES - key_bytes)?;
        rows.push(Listed {
            key,
            version: u64_at(row, 0),
            bytes: u32_at(row, 8),
            flags: u16_at(row, 14),
        });
    }
    Some((rows, u64_at(head, 8), u64_at(head, 16)))
}
