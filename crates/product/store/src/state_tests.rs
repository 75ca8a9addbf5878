// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries, and the states that they make.

use proptest::prelude::*;

use super::*;
use crate::entry::tests::{checkpoints, rows, used};

fn layout() -> Layout {
    Layout::new(4 << 30, 3).unwrap()
}

proptest! {
    #[test]
    fn a_state_is_made_again_by_its_entries(
        segments in prop::collection::vec((0u32..60, 0u32..5, used()), 0..40),
        mut rows in prop::collection::vec(rows(), 0..20),
        checkpoints in prop::collection::vec((0u16..4, checkpoints()), 0..9),
        numbers in prop::collection::vec((0u64..20, 0u32..3), 0..20),
    ) {
        let mut state = State::new(&layout(), Settings::NEW);
        rows.sort_by_key(|row| row.id);
        let mut entries: Vec<Entry> = rows.into_iter().map(Entry::RollBack).collect();
        entries.extend(segments.into_iter().map(|(number, uses, used_for)| {
            Entry::Segment(number, SegmentState { uses, used_for })
        }));
        entries.extend(checkpoints.into_iter().map(|(shard, it)| Entry::Checkpoint(shard, it)));
        for (number, count) in numbers {
            let version = Version::new(number);
            entries.push(Entry::Snapshot(version, count));
            entries.push(Entry::Ending {
                moment: version, count: 1 + count, at_us: number / 3, ending: 1 + count / 2,
            });
            entries.push(Entry::Floors(version, Version::new(number / 2)));
            entries.push(Entry::Commit(version, u64::from(count)));
            entries.push(Entry::CheckpointDropped(1, number));
            entries.push(Entry::RowsForgotten(version));
            entries.push(Entry::Sample(Sample { run_us: number, version }));
            entries.push(Entry::Time { ceiling: version, wall_us: number, run_us: number });
            let settings = Settings {
                min_age_us: number, keep_deleted_us: number + 1, min_count: 1 + count, counted: 1,
            };
            entries.push(Entry::Settings(settings));
            entries.push(Entry::Shortening(Shortening { to: settings, at_us: number }));
            entries.push(Entry::Locked(number));
            entries.push(Entry::Hosts(number));
            entries.push(Entry::Durable((number % 4) as u16, number));
        }
        for entry in &entries {
            let before = state.clone();
            if state.apply(entry).is_err() {
                prop_assert_eq!(&state, &before);
            }
        }
        let mut again = State::new(&layout(), Settings::NEW);
        for entry in state.entries() {
            let decoded = Entry::decode(&entry.encode()).unwrap();
            prop_assert_eq!(again.apply(&decoded), Ok(()));
        }
        prop_assert_eq!(again, state);
    }
}

fn roll_back(number: u64) -> Entry {
    Entry::RollBack(RollBack {
        id: Version::new(number),
        namespace: 1,
        prefix: number.to_be_bytes().to_vec(),
        target: crate::rows::Target::Back(1),
        unless_written_since: None,
    })
}

#[test]
fn roll_backs_that_went_are_known_by_their_ids_up_to_a_number_of_them() {
    let mut state = State::new(&layout(), Settings::NEW);
    let most = ROWS_MAX as u64;
    let known = |state: &State, id| {
        let found = state.roll_back(Version::new(id));
        found.map(|row| Entry::RollBack(row.clone())) == Some(roll_back(id))
    };
    for id in 1..=most {
        assert_eq!(state.apply(&roll_back(id)), Ok(()));
    }
    assert_eq!(
        state.apply(&roll_back(most + 1)),
        Err(Impossible),
        "live ones"
    );
    let half = Version::new(most / 2);
    assert_eq!(state.apply(&Entry::RowsForgotten(half)), Ok(()));
    assert_eq!(state.rows.len(), ROWS_MAX / 2);
    assert!((1..=most).all(|id| known(&state, id)));
    assert_eq!(state.apply(&roll_back(most + 1)), Ok(()));
    assert!(!known(&state, 1) && known(&state, 2) && known(&state, most + 1));
    let all = Entry::RowsForgotten(Version::new(most + 1));
    assert_eq!(state.apply(&all), Ok(()));
    assert_eq!(
        state.apply(&roll_back(most)),
        Err(Impossible),
        "it is older"
    );
    let mut again = State::new(&layout(), Settings::NEW);
    for entry in state.entries() {
        assert_eq!(again.apply(&entry), Ok(()));
    }
    assert_eq!(again, state);
    assert!(!known(&again, 1) && known(&again, 2) && known(&again, most + 1));
    assert!(again.rows.is_empty());
}

#[test]
fn what_cannot_be_is_refused() {
    let mut state = State::new(&layout(), Settings::NEW);
    let log = |shard| UsedFor::Log {
        shard,
        order: 1,
        end: None,
    };
    let set = |number, uses, used_for| Entry::Segment(number, SegmentState { uses, used_for });
    assert_eq!(state.apply(&set(0, 2, log(0))), Ok(()));
    assert_eq!(state.apply(&set(0, 1, log(0))), Err(Impossible));
    assert_eq!(state.apply(&set(0, 3, log(3))), Err(Impossible));
    assert_eq!(state.apply(&set(1 << 20, 1, log(0))), Err(Impossible));
}

fn checkpoint(number: u64) -> Checkpoint {
    Checkpoint {
        number,
        order: 0,
        lsn: 1,
        crc_before: 0,
        incarnation: 1,
        keys: 0,
        chunks: 1,
        rows_up_to: Version::ZERO,
    }
}

/// Bytes that entries take in a log: records, padded, and heads of batches.
fn logged_bytes(entries: &[Entry]) -> u64 {
    let bytes = entries
        .iter()
        .map(|entry| 48 + entry.encode().len().next_multiple_of(8));
    let bytes = bytes.sum::<usize>() as u64;
    // A batch of a megabyte ends at a multiple of 4,096.
    bytes + bytes.div_ceil(1 << 20) * (64 + 4096)
}

#[test]
fn a_control_area_holds_the_largest_state_twice_however_a_store_has_grown() {
    let at = Version::MAX;
    let checkpoint = checkpoint(1);
    let row = RollBack {
        id: at,
        namespace: 1,
        prefix: vec![0; crate::key::KEY_BYTES_MAX],
        target: crate::rows::Target::Moment(at),
        unless_written_since: Some(at),
    };
    let (run_us, version) = (1, at);
    let sample = Sample { run_us, version };
    let mut entries = State::new(&layout(), Settings::NEW).entries();
    entries.extend(vec![Entry::Sample(sample); SAMPLES_MAX]);
    entries.extend(vec![
        Entry::Snapshot(at, 1);
        crate::retention::SNAPSHOTS_MAX
    ]);
    let ending = Entry::Ending {
        moment: at,
        count: 1,
        at_us: 1,
        ending: 1,
    };
    entries.extend(vec![ending; crate::retention::SNAPSHOTS_MAX]);
    entries.extend(vec![Entry::RollBack(row); ROWS_MAX]);
    entries.extend(vec![Entry::Commit(at, 1); COMMITS_MAX]);
    let shards = usize::from(crate::layout::SHARDS_MAX);
    entries.extend(vec![Entry::Durable(1, 1); shards]);
    entries.extend(vec![
        Entry::Checkpoint(1, checkpoint);
        CHECKPOINTS_KEPT * shards
    ]);
    let end = crate::log::LogEnd {
        bytes: 1,
        lsn: 1,
        crc: 1,
        sectors: 1,
        loose_bytes: Some(1),
        directory: Some(crate::log::DirectoryAt { bytes: 1, crc: 1 }),
    };
    let used_for = UsedFor::Log {
        shard: 1,
        order: 1,
        end: Some(end),
    };
    let formatted = layout();
    let grown = Layout {
        store_bytes: formatted.store_bytes_max(),
        ..formatted
    };
    let most = grown.segments();
    assert!(most > formatted.segments() + 16_000, "{most}");
    let segment = Entry::Segment(1, SegmentState { uses: 1, used_for });
    entries.extend(vec![segment; most as usize]);
    let needed = 2 * logged_bytes(&entries);
    assert!(
        needed <= grown.area_bytes,
        "{needed} of {}",
        grown.area_bytes
    );
}

#[test]
fn samples_and_checkpoints_are_bounded() {
    let mut state = State::new(&layout(), Settings::NEW);
    for number in 0..5000 {
        let sample = Sample {
            run_us: number,
            version: Version::new(number),
        };
        state.apply(&Entry::Sample(sample)).unwrap();
    }
    assert!(state.samples.len() <= SAMPLES_MAX);
    for number in 1..5 {
        let entry = Entry::Checkpoint(1, checkpoint(number));
        assert_eq!(state.apply(&entry), Ok(()));
    }
    assert_eq!(state.checkpoints[1], [checkpoint(3), checkpoint(4)]);
}
