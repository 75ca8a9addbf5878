// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The coarse clock, and times as they are shown.

use erb_sim::time::{JIFFY_NS, MS, START_NS, coarse, show};

#[test]
fn the_coarse_clock_lags_less_than_a_jiffy() {
    for at in [
        START_NS,
        START_NS + 1,
        START_NS + JIFFY_NS - 1,
        START_NS + JIFFY_NS,
    ] {
        assert!(coarse(at) <= at && at - coarse(at) < JIFFY_NS);
    }
    assert_eq!(show(START_NS + 1_500 * MS), "1.500000");
}
