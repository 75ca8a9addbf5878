// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks in pieces.

use erb_abi as abi;

use crate::turn::MS;
use crate::turn_tests::Bench;
use crate::walk::Pieces;

/// A table of so many entries, two per run and two runs per turn.
fn bench(entries: u32) -> Bench {
    let mut bench = Bench::serving();
    bench.core.settings.pieces = Pieces {
        places: 2,
        per_turn: 2,
    };
    bench.core.path.places.borrow_mut()[abi::PLACES_USED as usize] = (1..=entries).collect();
    bench.core.path.sweep.borrow_mut().conns = 1;
    bench.core.sweep_anew().unwrap();
    bench.core.path.walked.take();
    bench
}

fn walked(bench: &Bench, list: abi::place_list) -> Vec<Vec<u32>> {
    let runs = bench.core.path.walked.take();
    let of_list = runs.into_iter().filter(|(found, _)| *found == list);
    of_list.map(|(_, places)| places).collect()
}

#[test]
fn a_large_table_is_swept_over_several_turns_and_counted_when_all_is_seen() {
    let mut bench = bench(7);
    assert_eq!(bench.core.last_sweep().conns, 0, "not over");
    bench.core.sweep_connections().unwrap();
    assert_eq!(walked(&bench, abi::PLACES_USED), [[5, 6].as_slice(), &[7]]);
    assert_eq!(bench.core.last_sweep().conns, 4, "one per run");
    bench.core.sweep_connections().unwrap();
    let runs = walked(&bench, abi::PLACES_USED);
    assert_eq!(runs[..2], [[1, 2], [3, 4]]);
    assert!(runs[2..].iter().all(Vec::is_empty), "nobody holds anything");
}

#[test]
fn what_holds_something_is_looked_at_in_each_turn_of_a_large_table() {
    let mut bench = bench(20);
    bench.core.path.places.borrow_mut()[abi::PLACES_HELD as usize] = vec![19];
    for _ in 0..3 {
        bench.core.sweep_connections().unwrap();
        let runs = walked(&bench, abi::PLACES_USED);
        assert_eq!(runs.len(), 3, "{runs:?}");
        assert_eq!(runs[2], [19]);
    }
}

#[test]
fn it_is_looked_at_while_the_round_rests() {
    let mut bench = bench(20);
    bench.core.path.places.borrow_mut()[abi::PLACES_HELD as usize] = vec![19];
    bench.core.sweep_pace.ran(0, bench.now());
    bench.pass(51, true);
    assert!(walked(&bench, abi::PLACES_USED).is_empty(), "nobody waits");
    bench.core.path.control.borrow_mut().fence = 1;
    bench.pass(51, true);
    assert_eq!(walked(&bench, abi::PLACES_USED), [[19]]);
}

#[test]
fn the_timer_goes_on_where_it_was_and_looks_at_its_list_alone() {
    let mut bench = bench(9);
    bench.core.path.places.borrow_mut()[abi::PLACES_TIMER as usize] = vec![1, 2, 4, 6, 8];
    bench.count(abi::STAT_FAST_PACKET);
    bench.pass(52, true);
    assert_eq!(walked(&bench, abi::PLACES_TIMER), [[1, 2], [4, 6]]);
    assert!(bench.core.unacked, "it is not over");
    bench.pass(50, true);
    assert_eq!(walked(&bench, abi::PLACES_TIMER), [[8]]);
    assert!(!bench.core.unacked);
}

#[test]
fn a_large_table_is_left_when_a_whole_round_found_nothing() {
    let mut bench = bench(10);
    bench.core.path.sweep.borrow_mut().translated = 0;
    bench.core.stop(false).unwrap();
    bench.pass(50, true);
    assert!(
        !bench.core.is_leaving(),
        "a part of the table was looked at"
    );
    // Nothing is found by the runs to come, but by one of this round.
    bench.core.path.sweep.borrow_mut().translated = 1;
    bench.pass(50, true);
    bench.core.path.sweep.borrow_mut().translated = 0;
    for _ in 0..3 {
        assert!(!bench.core.is_leaving());
        bench.pass(50, true);
    }
    bench.pass(500, true);
    assert!(bench.core.is_leaving());
}

#[test]
fn an_admission_that_is_left_out_has_its_turn() {
    let mut bench = bench(3);
    bench.core.path.sweep.borrow_mut().admit = vec![abi::admit_row::default(); 600];
    bench.core.sweep_anew().unwrap();
    assert_eq!(bench.core.last_sweep().admit_more, 1200 - 1024);
    assert_eq!(bench.core.admissions_to_skip(), 1024);
    bench.core.sweep_anew().unwrap();
    assert_eq!(bench.core.last_sweep().admit_more, 0);
    assert_eq!(bench.core.admissions_to_skip(), 0);
}

#[test]
fn rest_is_no_rest_while_a_sweep_is_under_way() {
    let mut bench = bench(100);
    bench.pass(6_300, true);
    bench.core.sweep_anew().unwrap();
    let ticks = bench.core.next_wake_ns(bench.now());
    bench.core.machine.now_ns.set(ticks);
    bench.turn(false);
    assert_eq!(bench.core.next_wake_ns(ticks) - ticks, 50 * MS);
}
