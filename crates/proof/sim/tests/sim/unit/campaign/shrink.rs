// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A failing plan is cut to what its failure needs.

use erb_sim::campaign::shrink::{TRIES_MAX, shrink, size};
use erb_sim::{Fault, Plan, profile};

#[test]
fn only_what_the_failure_needs_is_left() {
    let plan = Plan::new(&profile::CALM, 1);
    let needs =
        |plan: &Plan| plan.connections >= 3 && plan.operations >= 7 && plan.faults.has(Fault::Loss);
    let (small, tries) = shrink(&plan, needs);
    assert_eq!((small.connections, small.operations), (3, 7));
    assert_eq!(small.faults.iter().collect::<Vec<_>>(), [Fault::Loss]);
    assert!(tries <= TRIES_MAX);
}

#[test]
fn what_cannot_be_cut_stays() {
    let plan = Plan::new(&profile::CALM, 1);
    let (small, _) = shrink(&plan, |_| false);
    assert_eq!(size(&small), size(&plan));
}
