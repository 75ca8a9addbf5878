// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb-sim`: runs and replays simulations.

fn main() {}
