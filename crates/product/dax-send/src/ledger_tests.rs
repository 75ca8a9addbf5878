// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger against a set of numbers, with completions joined, split, shuffled and repeated.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Completion, Ledger};

fn completion(first: u64, last: u64) -> Completion {
    Completion {
        first: first as u32,
        last: last as u32,
        copied: false,
    }
}

/// Where counters begin: at 0, before the wrap of 32 bits, and far behind it.
fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        (1_u64 << 32) - 40..(1 << 32) + 2,
        (7_u64 << 32) - 40..(7 << 32) + 40,
    ]
}

proptest! {
    #[test]
    fn a_send_is_done_when_it_was_named_and_not_before(
        start in starts(),
        steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..6), 1..200),
    ) {
        let mut ledger = Ledger::new(start);
        let mut open = BTreeSet::new();
        let mut next = start;
        for (sends, from, count) in steps {
            if sends {
                prop_assert_eq!(ledger.open(next), next);
                open.insert(next);
                next += 1;
            } else {
                let first = start + from;
                let named: Vec<u64> = (first..=first + count).collect();
                let mut given = Vec::new();
                let good = ledger.complete(completion(first, first + count), |it| given.push(it));
                if named.iter().all(|one| open.contains(one)) {
                    prop_assert_eq!(good, Ok(()));
                    prop_assert_eq!(&given, &named);
                    named.iter().for_each(|one| { open.remove(one); });
                } else {
                    prop_assert!(good.is_err());
                    prop_assert!(given.is_empty());
                }
            }
            prop_assert_eq!(ledger.next(), next);
            prop_assert_eq!(ledger.done_below(), open.first().copied().unwrap_or(next));
            prop_assert_eq!(ledger.is_empty(), open.is_empty());
            prop_assert_eq!(ledger.oldest(), open.first());
        }
    }

    #[test]
    fn any_numbers_of_the_kernel_are_refused_or_open(
        start in starts(), sends in 0_u64..50, first: u32, last: u32,
    ) {
        let mut ledger = Ledger::new(start);
        (0..sends).for_each(|_| { ledger.open(()); });
        let mut given = 0;
        let good = ledger.complete(Completion { first, last, copied: true }, |()| given += 1);
        prop_assert_eq!(good.is_ok(), given > 0);
        prop_assert!(given <= sends);
    }
}

#[test]
fn numbers_wrap_inside_one_completion() {
    let start = u64::from(u32::MAX) - 1;
    let mut ledger = Ledger::new(start);
    for number in start..start + 5 {
        ledger.open(number);
    }
    let mut given = Vec::new();
    let wrapped = Completion {
        first: u32::MAX,
        last: 1,
        copied: false,
    };
    ledger.complete(wrapped, |it| given.push(it)).expect("open");
    assert_eq!(given, [start + 1, start + 2, start + 3]);
    assert_eq!(ledger.done_below(), start);
    ledger
        .complete(completion(start, start), drop)
        .expect("open");
    assert_eq!(ledger.done_below(), start + 4);
}
