// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data of commands: what one end writes the other reads, and any bytes are read without harm.

use erb_nvme::backend::{
    Change, Condition, Head, Health, Key, Listed, Mark, MarkKind, RollBack, Selector, Target, Write,
};
use erb_nvme::layout;
use proptest::collection::vec;
use proptest::prelude::*;

fn selector() -> impl Strategy<Value = Selector> {
    prop_oneof![
        Just(Selector::Head),
        any::<u64>().prop_map(Selector::Version),
        any::<u32>().prop_map(Selector::Back),
        any::<u64>().prop_map(Selector::AsOf),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let change = prop_oneof![
        vec(any::<u8>(), 0..100).prop_map(Change::Put),
        Just(Change::Delete),
        selector().prop_map(Change::Restore),
    ];
    let condition = prop_oneof![Just(Condition::Any), any::<u64>().prop_map(Condition::Head),];
    (vec(any::<u8>(), 1..1025), change, condition).prop_map(|(key, change, condition)| Write {
        key: Key::Plain(key),
        change,
        condition,
    })
}

fn head() -> impl Strategy<Value = Head> {
    (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
    )
        .prop_map(|(version, source, bytes, flags, writer, expiry_ms)| Head {
            version,
            source,
            bytes,
            flags,
            writer,
            expiry_ms,
        })
}

fn listed() -> impl Strategy<Value = Listed> {
    (
        vec(any::<u8>(), 1..1025),
        any::<u64>(),
        any::<u32>(),
        any::<u16>(),
    )
        .prop_map(|(key, version, bytes, flags)| Listed {
            key,
            version,
            bytes,
            flags,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_written_is_read(
        writes in vec(write(), 1..20),
        heads in vec(head(), 0..20),
        rows in vec(listed(), 0..20),
        keys in vec(vec(any::<u8>(), 1..17), 0..20),
        more: bool,
        numbers: (u64, u64),
    ) {
        let mut unique = writes.clone();
        unique.dedup_by(|a, b| a.key == b.key);
        let bytes = layout::batch_bytes(&unique);
        if let Some(read) = layout::batch_of(&bytes) {
            prop_assert_eq!(read, unique);
        }
        let bytes = layout::versions_bytes(&heads, more, numbers.0);
        prop_assert_eq!(layout::versions_of(&bytes), Some((heads.clone(), more, numbers.0)));
        let bytes = layout::page_bytes(&rows, numbers.0, numbers.1);
        let size: usize = rows.iter().map(|row| layout::page_row_bytes(&row.key)).sum();
        prop_assert_eq!(bytes.len(), 64 + size);
        prop_assert_eq!(layout::page_of(&bytes), Some((rows, numbers.0, numbers.1)));
        let bytes = layout::list_bytes(&keys);
        let size: usize = keys.iter().map(|key| layout::list_row_bytes(key)).sum();
        prop_assert_eq!(bytes.len(), 4 + size);
        prop_assert_eq!(layout::list_of(&bytes), Some(keys));
        for head in heads {
            prop_assert_eq!(layout::head_of(&layout::head_bytes(&head)), Some(head));
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(mut bytes in vec(any::<u8>(), 0..400), count in 0..5_u8) {
        // Small counts are the ones that lead somewhere.
        for at in [0, 8] {
            if bytes.len() > at + 4 {
                bytes[at..at + 4].copy_from_slice(&[count, 0, 0, 0]);
            }
        }
        let _ = layout::batch_of(&bytes).map(|rows| prop_assert_rows(rows.len()));
        let _ = (layout::versions_of(&bytes), layout::page_of(&bytes), layout::list_of(&bytes));
        let _ = (layout::roll_back_of(&bytes), layout::listing_of(&bytes));
        let _ = (layout::retention_of(&bytes), layout::kept_of(&bytes), layout::health_of(&bytes));
        let _ = (layout::damage_of(&bytes), layout::damage_len(&bytes), layout::lock_of(&bytes));
        let _ = (layout::marks_of(&bytes), layout::long_of(&bytes), layout::head_of(&bytes));
    }
}

fn prop_assert_rows(rows: usize) {
    assert!((1..=4096).contains(&rows));
}

#[test]
fn roll_backs_and_logs_are_read_as_they_were_written() {
    for roll_back in [
        RollBack {
            prefix: Vec::new(),
            target: Target::Back(3),
            unless_written_since: None,
            is_dry_run: false,
        },
        RollBack {
            prefix: vec![9; 1024],
            target: Target::Moment(77),
            unless_written_since: Some(88),
            is_dry_run: true,
        },
        RollBack {
            prefix: Vec::new(),
            target: Target::Undo(99),
            unless_written_since: Some(99),
            is_dry_run: false,
        },
    ] {
        let bytes = layout::roll_back_bytes(&roll_back);
        assert_eq!(layout::roll_back_of(&bytes), Some(roll_back));
        assert_eq!(layout::roll_back_of(&bytes[..bytes.len() - 1]), None);
    }
    let health = Health {
        watermark: 1,
        floor: 2,
        size_bytes: 3,
        used_bytes: 4,
        keys: 5,
        is_full: true,
        is_read_only: true,
        damaged: 6,
        cached_bytes: 7,
        cache_hits: 8,
        cache_misses: 9,
        now_us: 10,
    };
    assert_eq!(
        layout::health_of(&layout::health_bytes(&health)),
        Some(health)
    );
    let mark = Mark {
        kind: MarkKind::Snapshot,
        id: 1,
        namespace: 2,
        keys: 3,
        target: 4,
    };
    assert_eq!(
        layout::marks_of(&layout::marks_bytes(9, &[mark])),
        Some((9, vec![mark]))
    );
}
