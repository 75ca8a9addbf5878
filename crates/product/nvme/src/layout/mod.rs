// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data of commands, both ways: the node reads what a client writes, and the other way round.
//!
//! ```text
//! list      u32 count; rows: u16 length, key, padded to 4                             (the standard's)
//! head      version u64 0, source u64 8, size u32 16, flags u32 20, writer u32 24, expiry ms u64 32; 64 bytes
//! versions  count u32 0, more u32 4, floor u64 8; 64 bytes; rows as a head, 48 bytes
//! keys      count u32 0, more u32 4, cursor u64 8, cut u64 16; 64 bytes;
//!           rows: version u64 0, size u32 8, key length u16 12, flags u16 14, key, padded to 8
//! put LONG  key length u16, key, value
//! batch     count u32 0; 16 bytes; rows: what u8 0 (1 put, 2 delete, 3 restore), flags u8 1 (2 IF_VERSION),
//!           key length u16 2, value length u32 4, expected u64 8, selector u8 16, argument u64 24; 32 bytes, key,
//!           value, padded to 8
//! roll back mode u8 0 (1 a moment, 2 n back, 3 before the roll back with this id), flags u8 1 (1 dry run, 2 unless written since), prefix length u16 2,
//!           n u32 4, target u64 8, unless u64 16; 64 bytes; prefix
//! listing   moment u64 0 (0: now), changed since u64 8, prefix length u16 16, flags u16 18 (1 also what was deleted
//!           since); 32 bytes; prefix
//! retention min-age us u64 0, keep-deleted us u64 8, min-count u32 16, flags u32 20 (1 less waits), locked us u64 24,
//!           less: in us u64 32, min-age us u64 40, keep-deleted us u64 48, min-count u32 56; 64 bytes. Set: the first
//!           three; with CDW11 1 the lock alone
//! ```
//!
//! Every reader takes any bytes and says no to those that make no sense.

mod changes;
mod lists;
mod logs;

pub use changes::*;
pub use lists::*;
pub use logs::*;

use crate::backend::{Head, Selector};
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

/// Bytes before a value, if they are asked for, and before rows.
pub const HEAD_BYTES: usize = 64;
/// Bytes of a row of versions.
pub const VERSION_ROW_BYTES: usize = 48;

/// Flags of our commands, CDW11 31:24.
pub mod flag {
    /// The key is above 16 bytes.
    pub const LONG: u8 = 1;
    /// The argument is the expected head.
    pub const IF_VERSION: u8 = 2;
    /// A head comes before the value.
    pub const HEAD: u8 = 4;
}

/// A selector's number and argument.
#[must_use]
pub fn selector_numbers(selector: Selector) -> (u8, u64) {
    match selector {
        Selector::Head => (0, 0),
        Selector::Version(version) => (1, version),
        Selector::Back(back) => (2, u64::from(back)),
        Selector::AsOf(moment) => (3, moment),
    }
}

/// The selector of a number and an argument.
#[must_use]
pub fn selector_of(number: u8, argument: u64) -> Option<Selector> {
    Some(match number {
        0 => Selector::Head,
        1 => Selector::Version(argument),
        2 => Selector::Back(u32::try_from(argument).ok()?),
        3 => Selector::AsOf(argument),
        _ => return None,
    })
}

fn write_head(bytes: &mut [u8], head: &Head) {
    put_u64(bytes, 0, head.version);
    put_u64(bytes, 8, head.source);
    put_u32(bytes, 16, head.bytes);
    put_u32(bytes, 20, head.flags);
    put_u32(bytes, 24, head.writer);
    put_u64(bytes, 32, head.expiry_ms);
}

/// A head, as it stands before a value.
#[must_use]
pub fn head_bytes(head: &Head) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    write_head(&mut bytes, head);
    bytes
}

/// A head, from 48 bytes or more.
#[must_use]
pub fn head_of(bytes: &[u8]) -> Option<Head> {
    (bytes.len() >= VERSION_ROW_BYTES).then(|| Head {
        version: u64_at(bytes, 0),
        source: u64_at(bytes, 8),
        bytes: u32_at(bytes, 16),
        flags: u32_at(bytes, 20),
        writer: u32_at(bytes, 24),
        expiry_ms: u64_at(bytes, 32),
    })
}
