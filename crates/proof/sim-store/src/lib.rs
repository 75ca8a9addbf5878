// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the storage node's engine is judged by: its semantics as a model, and random histories.
//!
//! The product may use nothing that proves it, not even in tests. So the model is a crate of its own, and
//! tests of the engine that need it stand here too.
//!
//! [`oracle`] is the meaning, the naive way: a roll back visits every key, and nothing is forgotten.
//! [`model`] is what the engine does, as plainly as it can be said: a roll back is one row, and a key learns
//! of it when it is next touched. [`compare`] plays random histories on both. [`model::Mistake`] lists
//! mistakes of which each must be found that way; `tests/store/model.rs` sees to it.
//!
//! [`judge`] plays histories on the engine itself and on the oracle, with trims, checkpoints and crashes. The
//! engine has mistakes of its own, `erb_store::mistake`; `tests/store/versions.rs` sees that each is found.
//!
//! [`crash`] plays histories on a whole store on a simulated disk, several shards and their control log, and stops
//! process or machine at any step, in recovery too. `tests/store/crash.rs` does so at every one. [`rot`] ends such histories
//! with damage of what was written last.

mod ask;
pub mod compare;
pub mod crash;
mod growing;
pub mod image;
pub mod judge;
pub mod model;
mod node;
pub mod oracle;
mod padding;
pub mod plan;
mod play;
mod pressed;
pub mod repair;
pub mod rot;
pub mod steady;
mod survivors;
mod values;

/// Set to 1: tests take their long form.
const LONG: &str = "ERB_LONG";

/// `long` if `ERB_LONG=1`, else `short`: how much of something a test does.
#[must_use]
pub fn amount(short: u64, long: u64) -> u64 {
    let is_long = std::env::var_os(LONG).is_some_and(|value| value == "1");
    if is_long { long } else { short }
}
