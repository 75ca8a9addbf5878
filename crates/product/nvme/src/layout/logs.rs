// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our log pages.
//!
//! ```text
//! status  watermark u64 0, floor u64 8, size u64 16, used u64 24, keys u64 32, flags u32 40 (1 full, 2 read
//!         only), damaged u64 48, the node's time in microseconds since 1970 u64 56; of the cache of values: bytes u64 64, hits u64 72, misses u64 80; 96 bytes
//! marks   generation u64 0, count u32 8; 64 bytes; rows: id u64 0, keys u64 8, target u64 16, namespace u32 24,
//!         kind u8 28 (1 roll back, 2 dry run, 3 snapshot); 32 bytes
//! damage  generation u64 0, count u32 8, bytes of all u64 16; 64 bytes; rows: address u64 0, namespace u32 8 (0: it is
//!         not known whose), key length u16 12; 16 bytes, key, padded to 8
//! ```

use crate::backend::{Damage, Health, Mark, MarkKind};
use crate::bytes::{pad_to, put_u16, put_u32, put_u64, take, u16_at, u32_at, u64_at};

/// Bytes of a log's head.
pub const LOG_HEAD_BYTES: usize = 64;
/// Bytes of the log of status.
pub const STATUS_BYTES: usize = 96;
const MARK_BYTES: usize = 32;
const DAMAGE_BYTES: usize = 16;

/// The log of status.
#[must_use]
pub fn health_bytes(health: &Health) -> Vec<u8> {
    let mut bytes = vec![0; STATUS_BYTES];
    put_u64(&mut bytes, 0, health.watermark);
    put_u64(&mut bytes, 8, health.floor);
    put_u64(&mut bytes, 16, health.size_bytes);
    put_u64(&mut bytes, 24, health.used_bytes);
    put_u64(&mut bytes, 32, health.keys);
    let flags = u32::from(health.is_full) | (u32::from(health.is_read_only) << 1);
    put_u32(&mut bytes, 40, flags);
    put_u64(&mut bytes, 48, health.damaged);
    put_u64(&mut bytes, 56, health.now_us);
    put_u64(&mut bytes, 64, health.cached_bytes);
    put_u64(&mut bytes, 72, health.cache_hits);
    put_u64(&mut bytes, 80, health.cache_misses);
    bytes
}

/// The log of status.
#[must_use]
pub fn health_of(bytes: &[u8]) -> Option<Health> {
    // Who asks for the head alone hears nothing of the cache.
    let of_cache = |at| {
        if bytes.len() >= STATUS_BYTES {
            u64_at(bytes, at)
        } else {
            0
        }
    };
    (bytes.len() >= LOG_HEAD_BYTES).then(|| Health {
        watermark: u64_at(bytes, 0),
        floor: u64_at(bytes, 8),
        size_bytes: u64_at(bytes, 16),
        used_bytes: u64_at(bytes, 24),
        keys: u64_at(bytes, 32),
        is_full: u32_at(bytes, 40) & 1 != 0,
        is_read_only: u32_at(bytes, 40) & 2 != 0,
        damaged: u64_at(bytes, 48),
        now_us: u64_at(bytes, 56),
        cached_bytes: of_cache(64),
        cache_hits: of_cache(72),
        cache_misses: of_cache(80),
    })
}

/// The log of marks.
#[must_use]
pub fn marks_bytes(generation: u64, marks: &[Mark]) -> Vec<u8> {
    let mut bytes = vec![0; LOG_HEAD_BYTES + marks.len() * MARK_BYTES];
    put_u64(&mut bytes, 0, generation);
    put_u32(
        &mut bytes,
        8,
        u32::try_from(marks.len()).unwrap_or(u32::MAX),
    );
    let rows = bytes[LOG_HEAD_BYTES..].chunks_exact_mut(MARK_BYTES);
    for (row, mark) in rows.zip(marks) {
        put_u64(row, 0, mark.id);
        put_u64(row, 8, mark.keys);
        put_u64(row, 16, mark.target);
        put_u32(row, 24, mark.namespace);
        row[28] = mark.kind as u8;
    }
    bytes
}

/// Bytes of the log of marks, by its head; none: that is no head.
#[must_use]
pub fn marks_len(head: &[u8]) -> Option<usize> {
    let head = head.get(..LOG_HEAD_BYTES)?;
    let rows = usize::try_from(u32_at(head, 8)).ok()?;
    rows.checked_mul(MARK_BYTES)?.checked_add(LOG_HEAD_BYTES)
}

/// The log of marks: its generation and its rows. Pieces with different generations do not belong together.
#[must_use]
pub fn marks_of(mut bytes: &[u8]) -> Option<(u64, Vec<Mark>)> {
    let rest = &mut bytes;
    let head = take(rest, LOG_HEAD_BYTES)?;
    let mut marks = Vec::new();
    for _ in 0..u32_at(head, 8) {
        let row = take(rest, MARK_BYTES)?;
        let kind = match row[28] {
            1 => MarkKind::RollBack,
            2 => MarkKind::DryRun,
            3 => MarkKind::Snapshot,
            _ => return None,
        };
        marks.push(Mark {
            kind,
            id: u64_at(row, 0),
            namespace: u32_at(row, 24),
            keys: u64_at(row, 8),
            target: u64_at(row, 16),
        });
    }
    Some((u64_at(head, 0), marks))
}

/// The log of damage.
#[must_use]
pub fn damage_bytes(generation: u64, damage: &[Damage]) -> Vec<u8> {
    let mut bytes = vec![0; LOG_HEAD_BYTES];
    for row in damage {
        let mut head = [0; DAMAGE_BYTES];
        put_u64(&mut head, 0, row.address);
        put_u32(&mut head, 8, row.namespace);
        put_u16(
            &mut head,
            12,
            u16::try_from(row.key.len()).unwrap_or(u16::MAX),
        );
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&row.key);
        pad_to(&mut bytes, 8);
    }
    let length = bytes.len() as u64;
    put_u64(&mut bytes, 0, generation);
    put_u32(
        &mut bytes,
        8,
        u32::try_from(damage.len()).unwrap_or(u32::MAX),
    );
    put_u64(&mut bytes, 16, length);
    bytes
}

/// Bytes of the log of damage, by its head; none: that is no head.
#[must_use]
pub fn damage_len(head: &[u8]) -> Option<usize> {
    let head = head.get(..LOG_HEAD_BYTES)?;
    usize::try_from(u64_at(head, 16)).ok()
}

/// The log of damage: its generation and its rows. Pieces with different generations do not belong together.
#[must_use]
pub fn damage_of(mut bytes: &[u8]) -> Option<(u64, Vec<Damage>)> {
    let rest = &mut bytes;
    let head = take(rest, LOG_HEAD_BYTES)?;
    let mut damage = Vec::new();
    for _ in 0..u32_at(head, 8) {
        let row = take(rest, DAMAGE_BYTES)?;
        let length = usize::from(u16_at(row, 12));
        let key = take(rest, length)?.to_vec();
        take(rest, length.next_multiple_of(8) - length)?;
        damage.push(Damage {
            address: u64_at(row, 0),
            namespace: u32_at(row, 8),
            key,
        });
    }
    Some((u64_at(head, 0), damage))
}
