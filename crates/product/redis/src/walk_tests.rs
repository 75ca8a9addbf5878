// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks in pieces.

use erb_abi as abi;

use super::Bench;
use crate::clock::MS;
use crate::walk::Pieces;

/// A table of so many entries, two per run and two runs per turn.
fn bench(entries: u32) -> Bench {
    let mut bench = Bench::serving_by(Pieces {
        places: 2,
        per_turn: 2,
    });
    bench.core.path.places.borrow_mut()[abi::PLACES_USED as usize] = (1..=entries).collect();
    bench.core.path.sweep.borrow_mut().conns = 1;
    sweep_anew(&mut bench);
    bench.core.path.walked.take();
    bench
}

fn sweep_anew(bench: &mut Bench) {
    bench.core.connections.begin_anew();
    bench.core.sweep().unwrap();
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
    bench.core.sweep().unwrap();
    assert_eq!(walked(&bench, abi::PLACES_USED), [[5, 6].as_slice(), &[7]]);
    assert_eq!(bench.core.last_sweep().conns, 4, "one per run");
    bench.core.sweep().unwrap();
    let runs = walked(&bench, abi::PLACES_USED);
    assert_eq!(runs[..2], [[1, 2], [3, 4]]);
    assert!(runs[2..].iter().all(Vec::is_empty), "nobody holds anything");
}

#[test]
fn what_holds_something_is_looked_at_in_each_turn_of_a_large_table() {
    let mut bench = bench(20);
    bench.core.path.places.borrow_mut()[abi::PLACES_HELD as usize] = vec![19];
    for _ in 0..3 {
        bench.core.sweep().unwrap();
        let runs = walked(&bench, abi::PLACES_USED);
        assert_eq!(runs.len(), 3, "{runs:?}");
        assert_eq!(runs[2], [19]);
    }
}

#[test]
fn it_is_looked_at_while_the_round_rests() {
    let mut bench = bench(20);
    bench.core.path.places.borrow_mut()[abi::PLACES_HELD as usize] = vec![19];
    // The next part takes so long that it rests.
    bench.core.machine.step_ns.set(20 * MS);
    bench.core.sweep().unwrap();
    bench.core.machine.step_ns.set(0);
    bench.pass(250, true);
    bench.core.path.walked.take();
    bench.pass(51, true);
    assert!(walked(&bench, abi::PLACES_USED).is_empty(), "nobody waits");
    bench.core.path.set(|control| control.fence = 1);
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
    assert!(bench.core.timer.is_unacked(), "it is not over");
    bench.pass(50, true);
    assert_eq!(walked(&bench, abi::PLACES_TIMER), [[8]]);
    assert!(!bench.core.timer.is_unacked());
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
fn rest_is_no_rest_while_a_sweep_is_under_way() {
    let mut bench = bench(100);
    bench.pass(6_300, true);
    sweep_anew(&mut bench);
    let ticks = bench.core.next_wake_ns(bench.now());
    bench.core.machine.now_ns.set(ticks);
    bench.turn(false);
    assert_eq!(bench.core.next_wake_ns(ticks) - ticks, 50 * MS);
}
