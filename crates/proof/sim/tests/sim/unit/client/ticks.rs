// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timestamps of a clock that steps, and their echoes.

use erb_sim::client::ticks::Ticks;

#[test]
fn an_echo_is_of_the_step_that_it_was_sent_in() {
    let mut ticks = Ticks::default();
    let first = ticks.sent(1, 100);
    assert_eq!((first, ticks.heard(1, first)), (100, 100));
    ticks.step(1 << 30);
    assert_eq!(ticks.heard(1, first), 100);
    let second = ticks.sent(1, 105);
    assert_eq!(second, 105 + (1 << 30));
    assert_eq!((ticks.heard(1, second), ticks.heard(1, first)), (105, 100));
    ticks.step(7_u32.wrapping_neg());
    assert_eq!(ticks.heard(1, second), 105);
    assert_eq!(ticks.newest(1), Some(98 + (1 << 30)));
}
