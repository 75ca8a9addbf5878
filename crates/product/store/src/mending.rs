// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A control log of which entries are rotten, as a repair puts it together.
//!
//! Invariants:
//! 1. An area begins with a snapshot of what the area before said, and that is begun anew only behind it. So the area
//!    before has nearly all that a rotten snapshot had: nothing counts less for its rot.
//! 2. Of the area before only that counts of which a later batch of it says that it was durable. The start that began
//!    the present area may have found the rest torn, and gone on without it.
//! 3. Entries of the present area are newer: they are taken last. What cannot be without those that are lost is left
//!    out.
//! 4. Roll backs count in their order, whichever area has them.

use crate::entry::Entry;
use crate::rows::RollBack;
use crate::state::State;

/// What both areas have, each in its order.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    /// With the batch that has it.
    pub(crate) earlier: Vec<(u64, Entry)>,
    pub(crate) present: Vec<Entry>,
}

impl Mending {
    /// What they make of the state of a store that was just formatted. Earlier batches below this one were durable.
    pub(crate) fn finish(self, mut state: State, durable_lsn: u64) -> State {
        let mut rows: Vec<RollBack> = Vec::new();
        let earlier = self.earlier.into_iter();
        let earlier = earlier.filter(|(lsn, _)| *lsn < durable_lsn);
        let earlier = earlier.map(|(_, entry)| entry);
        for entry in earlier.chain(self.present) {
            match entry {
                Entry::RollBack(row) => rows.push(row),
                other => {
                    let _ = state.apply(&other);
                }
            }
        }
        rows.sort_by_key(|row| row.id);
        rows.dedup_by_key(|row| row.id);
        let forgotten = state.forgotten;
        for row in rows.into_iter().filter(|row| row.id > forgotten) {
            let _ = state.apply(&Entry::RollBack(row));
        }
        let samples = state.samples.make_contiguous();
        samples.sort_by_key(|sample| (sample.run_us, sample.version));
        let mut samples = Vec::from(std::mem::take(&mut state.samples));
        samples.dedup();
        state.samples = samples.into();
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{SegmentState, UsedFor};
    use crate::layout::Layout;
    use crate::retention::Settings;
    use crate::retention_clock::Sample;
    use crate::rows::Target;
    use crate::version::Version;

    fn finish(earlier: &[(u64, Entry)], present: &[Entry], durable_lsn: u64) -> State {
        let layout = Layout::new(4 << 30, 2).unwrap();
        let mending = Mending {
            earlier: earlier.to_vec(),
            present: present.to_vec(),
        };
        mending.finish(State::new(&layout, Settings::NEW), durable_lsn)
    }

    fn row(id: u64) -> Entry {
        Entry::RollBack(RollBack {
            id: Version::new(id),
            namespace: 1,
            prefix: Vec::new(),
            target: Target::Back(1),
            unless_written_since: None,
        })
    }

    fn ids(state: &State) -> Vec<u64> {
        state.rows.iter().map(|row| row.id.number()).collect()
    }

    #[test]
    fn of_the_area_before_only_what_a_later_batch_vouches_for_counts() {
        let earlier = [(1, Entry::Hosts(1)), (2, Entry::Hosts(2)), (2, row(5))];
        assert_eq!(finish(&earlier, &[], 2).hosts, 1);
        assert_eq!(finish(&earlier, &[], 2).rows, []);
        assert_eq!(finish(&earlier, &[], 3).hosts, 2);
        assert_eq!(ids(&finish(&earlier, &[], 3)), [5]);
        // Of the present one everything does.
        assert_eq!(finish(&[], &[Entry::Hosts(3), row(7)], 0).hosts, 3);
    }

    #[test]
    fn the_present_area_is_taken_last_and_what_cannot_be_is_left_out() {
        let log = |uses, order| {
            let end = None;
            let shard = 1;
            let used_for = UsedFor::Log { shard, order, end };
            Entry::Segment(3, SegmentState { uses, used_for })
        };
        let of = |state: &State| state.segments[3];
        let state = finish(&[(1, log(2, 0))], &[log(2, 9)], 9);
        let found = (of(&state).uses, of(&state).used_for);
        let (shard, end) = (1, None);
        let wanted = UsedFor::Log {
            shard,
            order: 9,
            end,
        };
        assert_eq!(found, (2, wanted));
        // Uses never go back, so that is what rot has made of it, and what follows counts all the same.
        let state = finish(&[(1, log(4, 0))], &[log(2, 9), Entry::Hosts(6)], 9);
        assert_eq!((of(&state).uses, state.hosts), (4, 6));
    }

    #[test]
    fn roll_backs_count_once_in_their_order_whichever_area_has_them() {
        // The snapshot of the present area has 4 and 6, and one batch of it is lost: 6 comes from before.
        let earlier = [(1, row(2)), (1, row(6)), (2, row(4))];
        let state = finish(&earlier, &[row(4), row(9)], 9);
        assert_eq!(ids(&state), [2, 4, 6, 9]);
    }

    #[test]
    fn a_row_that_all_checkpoints_have_does_not_come_back() {
        let forgotten = Entry::RowsForgotten(Version::new(4));
        let earlier = [(1, row(2)), (1, row(4)), (1, row(5))];
        assert_eq!(ids(&finish(&earlier, &[forgotten], 9)), [5]);
    }

    #[test]
    fn moments_of_the_retention_clock_are_in_order_and_there_once() {
        let sample = |run_us, version| {
            let version = Version::new(version);
            Sample { run_us, version }
        };
        let earlier = [3, 1].map(|at| (1, Entry::Sample(sample(at, 10 * at))));
        let present = [2, 3].map(|at| Entry::Sample(sample(at, 10 * at)));
        let found = finish(&earlier, &present, 9).samples;
        assert_eq!(found, [1, 2, 3].map(|at| sample(at, 10 * at)));
    }
}
