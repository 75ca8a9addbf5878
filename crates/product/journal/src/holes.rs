// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies between the segments of a journal and is in none of them. A late journal has holes by its nature: what was
//! drained before it was late was never written. One that keeps all has none, unless a disk was away or a segment was.

use std::collections::BTreeMap;

use crate::format::Identity;
use crate::survey::Segment;

/// LSNs that are in no segment, though earlier and later ones are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Of which journal.
    pub identity: Identity,
    /// The first of them.
    pub first: u64,
    /// The last.
    pub last: u64,
}

/// The holes of all journals that are among these segments. Each journal has LSNs of its own.
#[must_use]
pub fn holes(segments: &[Segment]) -> Vec<Hole> {
    let mut journals: BTreeMap<Identity, Vec<(u64, u64)>> = BTreeMap::new();
    for segment in segments {
        if let Some((identity, lsns)) = segment.identity().zip(segment.lsns) {
            journals.entry(identity).or_default().push(lsns);
        }
    }
    journals.into_iter().flat_map(between).collect()
}

/// What no interval has, between the least and the greatest of a journal.
fn between((identity, mut lsns): (Identity, Vec<(u64, u64)>)) -> Vec<Hole> {
    lsns.sort_unstable();
    let mut found = Vec::new();
    let mut reached: Option<u64> = None;
    for (first, last) in lsns {
        // The greatest number has none behind it.
        let next = reached.map(|reached| reached.saturating_add(1));
        if let Some(next) = next.filter(|next| *next < first) {
            found.push(Hole {
                identity,
                first: next,
                last: first - 1,
            });
        }
        reached = reached.max(Some(last));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::format::{Header, Id};
    use crate::survey::State;

    fn segment(journal: u8, number: u64, lsns: Option<(u64, u64)>) -> Segment {
        let identity = Identity {
            journal: Id([journal; 16]),
            boot: Id([0; 16]),
        };
        Segment {
            path: PathBuf::new(),
            number,
            header: Some(Header {
                identity,
                number,
                first_lsn: 1,
            }),
            state: State::Sound,
            is_at_work: false,
            records: lsns.map_or(0, |(first, last)| last - first + 1),
            lsns,
            bytes: 0,
        }
    }

    fn found(segments: &[Segment]) -> Vec<(u8, u64, u64)> {
        let holes = holes(segments).into_iter();
        holes
            .map(|hole| (hole.identity.journal.0[0], hole.first, hole.last))
            .collect()
    }

    #[test]
    fn what_is_in_no_segment_of_its_journal_is_a_hole() {
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[segment(1, 1, Some((5, 9)))]), []);
        let whole = [segment(1, 1, Some((1, 4))), segment(1, 2, Some((5, 9)))];
        assert_eq!(found(&whole), []);
        let holed = [
            segment(1, 1, Some((1, 4))),
            segment(1, 2, None),
            segment(1, 3, Some((6, 9))),
            segment(1, 4, Some((20, u64::MAX))),
            segment(1, 5, Some((u64::MAX, u64::MAX))),
        ];
        assert_eq!(found(&holed), [(1, 5, 5), (1, 10, 19)]);
    }

    #[test]
    fn what_was_written_again_fills_holes_whatever_the_order() {
        let again = [
            segment(1, 1, Some((1, 4))),
            segment(1, 2, Some((8, 9))),
            segment(1, 3, Some((3, 12))),
            segment(1, 4, Some((2, 3))),
        ];
        assert_eq!(found(&again), []);
    }

    #[test]
    fn numbers_of_two_journals_do_not_compare() {
        let two = [
            segment(2, 1, Some((1, 4))),
            segment(1, 2, Some((50, 60))),
            segment(2, 3, Some((7, 9))),
            segment(1, 4, Some((62, 63))),
        ];
        assert_eq!(found(&two), [(1, 61, 61), (2, 5, 6)]);
    }
}
