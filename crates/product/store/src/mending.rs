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
