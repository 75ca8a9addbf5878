// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a failing run small: fewer kinds of faults, operations and connections, less time, as long
//! as the same check fails.

use crate::fault::Fault;
use crate::plan::Plan;

/// Runs that shrinking may take.
pub const TRIES_MAX: u32 = 300;

/// Cuts `plan` while `fails` says that the same check still fails. Returns the smallest plan found
/// and the runs it took.
pub fn shrink(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> (Plan, u32) {
    let mut best = plan.clone();
    let mut tries = 0;
    loop {
        let before = size(&best);
        for smaller in candidates(&best) {
            if tries >= TRIES_MAX {
                return (best, tries);
            }
            // Made from an older best: still smaller in its own way, but maybe larger in another.
            if size(&smaller) >= size(&best) {
                continue;
            }
            tries += 1;
            if fails(&smaller) {
                best = smaller;
            }
        }
        for fault in Fault::ALL {
            if !best.faults.has(fault) || tries >= TRIES_MAX {
                continue;
            }
            let mut without = best.clone();
            without.faults = best.faults.without(fault);
            tries += 1;
            if fails(&without) {
                best = without;
            }
        }
        if size(&best) == before {
            return (best, tries);
        }
    }
}

/// Connections, operations, kinds of faults, duration.
pub type Size = (u32, u32, usize, u64);

/// How large a plan is.
#[must_use]
pub fn size(plan: &Plan) -> Size {
    let faults = plan.faults.iter().count();
    (plan.connections, plan.operations, faults, plan.duration)
}

/// Plans with one number cut, the boldest cuts first.
fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    for (numerator, denominator) in [(1, 8), (1, 4), (1, 2), (3, 4), (7, 8)] {
        let cut = |number: u32| (number * numerator / denominator).max(1);
        all.push(Plan {
            connections: cut(plan.connections),
            ..plan.clone()
        });
        all.push(Plan {
            operations: cut(plan.operations),
            ..plan.clone()
        });
        all.push(Plan {
            duration: plan.duration * u64::from(numerator) / u64::from(denominator),
            ..plan.clone()
        });
    }
    if plan.connections > 1 {
        let connections = plan.connections - 1;
        all.push(Plan {
            connections,
            ..plan.clone()
        });
    }
    if plan.operations > 1 {
        let operations = plan.operations - 1;
        all.push(Plan {
            operations,
            ..plan.clone()
        });
    }
    all
}
